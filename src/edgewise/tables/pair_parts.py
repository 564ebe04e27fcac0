"""The work on one job of pairs: they are read in stretches, looked up, predicted, and written as Parquet parts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.decisions import predict_edges
from edgewise.decisions.events import EventLike
from edgewise.kernels.edge_stream import PRESENT
from edgewise.tables.node_ids import DenseIds, Ids, JoinedIds, check_kinds
from edgewise.tables.node_table import as_shared_tensor
from edgewise.tables.parts import Part, PartError, read_ahead
from edgewise.tables.table_columns import id_type, read_ids
from edgewise.tables.table_jobs import TableJob
from edgewise.validation import as_tensor
from edgewise.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

VALUES_PER_CHUNK = 1 << 22  # probabilities of the pairs that are predicted at once


@dataclass(frozen=True)
class PairOptions:
    """Options of the predictions, without tables."""

    events: tuple[EventLike, ...] | str
    class_names: NDArray[Any] | None
    top: int
    num_classes: int
    skip_unknown: bool

    def predict(
        self, probs: torch.Tensor, ends: torch.Tensor, start: "pa.Array", end: "pa.Array", metadata: Mapping[str, str]
    ) -> "pa.Table":
        """Return the predictions for pairs of rows of the probabilities, with their ids."""
        table = predict_edges(probs, ends, self.events, class_names=self.class_names, top=self.top).to_arrow()
        for k, ids in enumerate((start, end)):
            table = table.set_column(k, table.schema.field(k).name, ids)
        return table.replace_schema_metadata({**table.schema.metadata, **metadata, b"edgewise": __version__})

    def empty_table(self, kind: str, metadata: Mapping[str, str] | None = None) -> "pa.Table":
        """Return the table of no pairs."""
        import pyarrow as pa

        probs = torch.full((1, self.num_classes), 1 / self.num_classes, dtype=torch.float64)
        ids = pa.array([], id_type(kind))
        return self.predict(probs, torch.empty(2, 0, dtype=torch.long), ids, ids, metadata or {})

    def document(self) -> dict[str, object]:
        """Return the options as text, numbers and lists."""
        events = [e if isinstance(e, str) else [e[0], as_tensor(e[1], e[0]).tolist()] for e in self.events]
        names = None if self.class_names is None else self.class_names.tolist()
        return {"events": events, "class_names": names, "top": self.top, "skip_unknown": self.skip_unknown}


class PairNodes(NamedTuple):
    """Arrays with a row per node, which processes share, and the ids where their file is out of reach."""

    state: NDArray[np.uint8]
    probs: NDArray[Any]
    ids: "pa.Table | None" = None


class Batch(NamedTuple):
    """Consecutive pairs of a part, and the number of the first row."""

    part: Part
    row: int
    start: "pa.Array"
    end: "pa.Array"

    def slice(self, first: int, count: int) -> "Batch":
        """Return some of the pairs."""
        return Batch(self.part, self.row + first, self.start.slice(first, count), self.end.slice(first, count))


class Stretch(NamedTuple):
    """Consecutive pairs that become a part, and whether they are the last ones of their job."""

    batches: list[Batch]
    is_last: bool

    @property
    def num_pairs(self) -> int:
        """The number of pairs."""
        return sum(len(batch.start) for batch in self.batches)

    def place(self, position: int) -> tuple[str, int, str, str]:
        """Return the name of the part, the row, and the ids of a pair."""
        for batch in self.batches:
            if position < len(batch.start):
                ends = str(batch.start[position]), str(batch.end[position])
                return (batch.part.name, batch.row + position, *ends)
            position -= len(batch.start)
        raise IndexError(position)


@dataclass(frozen=True)
class PredictPairs:
    """The work on one job, which can be sent to other processes."""

    ids: Ids
    columns: tuple[str, str]
    options: PairOptions
    pairs_per_part: int
    num_jobs: int
    metadata: Mapping[str, str]
    folder: Path | None = None  # for joins that do not fit into memory; None is a temporary one

    def __call__(self, job: TableJob, nodes: Mapping[str, Any]) -> list[bytes]:
        """Return the files of a job, in another process. ``nodes`` are the fields of `PairNodes`."""
        files, arrays = list[bytes](), PairNodes(**nodes)
        for stretch in self.stretches(job.parts):
            self.write(job, stretch, arrays, stream := BytesIO())
            files.append(stream.getvalue())
        return files

    def stretches(self, parts: Sequence[Part]) -> Iterator[Stretch]:
        """Yield the pairs of parts in order, divided into stretches of one size. There is at least one."""
        check_kinds(parts, self.columns, self.ids.kind)
        batches, count = list[Batch](), 0
        for batch in read_ahead(self._read(parts)):
            rest = batch
            while len(rest.start):
                if count == self.pairs_per_part:
                    yield Stretch(batches, is_last=False)
                    batches, count = [], 0
                piece = rest.slice(0, self.pairs_per_part - count)
                batches.append(piece)
                count += len(piece.start)
                rest = rest.slice(len(piece.start), len(rest.start))
        yield Stretch(batches, is_last=True)

    def _read(self, parts: Sequence[Part]) -> Iterator[Batch]:
        kind = self.ids.kind
        for part in parts:
            for row, batch in part.read_numbered(self.columns, dict.fromkeys(self.columns, id_type(kind))):
                yield Batch(part, row, *(self._ids(batch, name, part, row) for name in self.columns))

    def _ids(self, batch: "pa.RecordBatch", column: str, part: Part, row: int) -> "pa.Array":
        """Return the ids of a column. If unknown ones are skipped, an empty one is unknown, too."""
        kind, skips = self.ids.kind, self.options.skip_unknown
        if isinstance(self.ids, DenseIds):
            return read_ids(batch, column, kind, part, row, self.ids.missing(skips))
        return batch.column(column).cast(id_type(kind)) if skips else read_ids(batch, column, kind, part, row)

    def write(self, job: TableJob, stretch: Stretch, nodes: PairNodes, file: Path | BytesIO) -> None:
        """Predict pairs of a job, and write them as a Parquet file."""
        from pyarrow import parquet

        is_last = stretch.is_last and job.number == self.num_jobs - 1
        metadata = {**self.metadata, "is_last": str(is_last).lower()}
        tables = read_ahead(self._predict(stretch, nodes, metadata))  # one thread predicts while another one compresses
        first = next(tables)
        # Ids and probabilities rarely repeat, so a dictionary makes them larger and takes time.
        repeated = [field.name for field in first.schema if field.type != "double"][2:]
        with parquet.ParquetWriter(file, first.schema, compression="zstd", use_dictionary=repeated) as writer:
            writer.write_table(first)
            for table in tables:
                writer.write_table(table)

    def _predict(self, stretch: Stretch, nodes: PairNodes, metadata: Mapping[str, str]) -> "Iterator[pa.Table]":
        """Yield the predictions of some pairs at a time. There is at least one table."""
        import pyarrow as pa

        kind = id_type(self.ids.kind)
        ids = [pa.chunked_array([batch[k] for batch in stretch.batches], kind) for k in (2, 3)]
        rows = self._rows(ids, nodes)
        is_known = self._check(stretch, rows, nodes)
        num_skipped = len(is_known) - np.count_nonzero(is_known)
        metadata = {**metadata, "skipped": str(num_skipped)}
        if num_skipped:
            rows, ids = rows[:, is_known], [column.filter(pa.array(is_known)) for column in ids]
        if rows.shape[1] == 0:
            yield self.options.empty_table(self.ids.kind, metadata)
        probs = as_shared_tensor(nodes.probs)
        step = max(1, VALUES_PER_CHUNK // (2 * self.options.num_classes))
        for lo in range(0, rows.shape[1], step):
            chunk = torch.from_numpy(np.ascontiguousarray(rows[:, lo : lo + step]))
            ends = torch.arange(chunk.numel()).view(chunk.shape)
            start, end = (column.slice(lo, step) for column in ids)
            yield self.options.predict(probs[chunk.flatten()], ends, start, end, metadata)

    def _rows(self, ids: "Sequence[pa.ChunkedArray]", nodes: PairNodes) -> NDArray[np.int64]:
        """Return the rows (2, pairs) of the ids of both ends, and -1 for ids without a row."""
        import pyarrow as pa

        if isinstance(self.ids, DenseIds):
            return np.stack([self.ids.rows(column) for column in ids])
        joined = self.ids if nodes.ids is None else JoinedIds(self.ids.kind, self.ids.size, nodes.ids)
        both = pa.chunked_array([*ids[0].chunks, *ids[1].chunks], ids[0].type)
        return joined.rows(both, self.folder).reshape(2, -1)

    def _check(self, stretch: Stretch, rows: NDArray[np.int64], nodes: PairNodes) -> NDArray[np.bool_]:
        """Return which pairs are predicted: those of two different nodes with predictions.

        Raise `PartError` for others, unless they are skipped.
        """
        is_known: NDArray[np.bool_] = np.ones(rows.shape[1], dtype=np.bool_)
        for side in rows:
            has_row = side >= 0
            if len(nodes.state):
                is_known &= has_row & ((nodes.state[np.where(has_row, side, 0)] & PRESENT) != 0)
            else:
                is_known &= has_row
        is_loop = is_known & (rows[0] == rows[1])
        is_right: NDArray[np.bool_] = is_known & ~is_loop
        if self.options.skip_unknown or is_right.all():
            return is_right
        position = int(is_right.argmin())
        name, row, start, end = stretch.place(position)
        if is_loop[position]:
            raise PartError(
                f"Expected pairs of two different nodes, but row {row} of {name} is {start!r} with itself. Remove such "
                "pairs, or skip them: skip_unknown=True, or --skip-unknown."
            )
        raise PartError(
            f"Expected predictions for both ends of each pair, but row {row} of {name} is the pair {start!r}, {end!r}, "
            "and one of them has none. Add predictions, or skip such pairs: skip_unknown=True, or --skip-unknown."
        )


# --- the files of a run ---


def unfinished_file(folder: Path, job: TableJob, number: int, is_last: bool) -> Path:
    """Return the file for a stretch of a job. That of the last one says that the job is finished."""
    return folder / f"{job.number:06d}-{number:06d}{'-last' if is_last else ''}.parquet"


def part_names(count: int) -> list[str]:
    """Return the names of the parts, whose alphabetical order is that of their numbers."""
    width = max(5, len(str(count - 1)))
    return [f"part-{number:0{width}d}.parquet" for number in range(count)]


def check_finished(out: Path, digest: str) -> None:
    """Raise ValueError unless a folder has the parts of a finished run with the same plan, and nothing else."""
    files = sorted(out.iterdir())
    metadata = [part_metadata(file) for file in files]
    if [file.name for file in files] != part_names(len(files)) or not all(metadata):
        raise ValueError(
            f"Expected an empty folder for out (--out), or one of an earlier run, but {out} holds other files. Pass "
            "another folder."
        )
    if {found["plan"] for found in metadata} != {digest} or metadata[-1]["is_last"] != "true":
        raise ValueError(
            f"Expected {out} to hold the predictions for these files and options, but it holds others, or some were "
            "removed. Pass another folder as out (--out), or delete it."
        )


def part_metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a part that `predict_tables` wrote, or nothing for another file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        found = {
            key.decode(): value.decode()
            for key, value in (parquet.read_metadata(file).metadata or {}).items()
            if key != b"ARROW:schema"
        }
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return {}
    return found if {"plan", "is_last", "skipped"} <= found.keys() else {}


def count_rows(file: Path) -> int:
    """Return the number of pairs of a part, with the skipped ones."""
    from pyarrow import parquet

    return int(parquet.read_metadata(file).num_rows) + int(part_metadata(file)["skipped"])
