"""Predictions for pairs of nodes in tables that do not fit into memory, written to a folder of Parquet parts.

Probabilities become a table that is mapped into memory, with a row per node. Pairs are read in stretches of bounded
size. The rows of both ends of a stretch are looked up, and it is predicted and written as one part. Parts are in a
hidden folder until all are there, so that no reader takes some of them for the whole.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.conversion import NameLike, check_names
from edgewise.decisions import predict_edges
from edgewise.decisions.events import EventLike
from edgewise.files.output import make_folder, replace_file
from edgewise.kernels.edge_stream import PRESENT
from edgewise.representation import format_bytes
from edgewise.suggestions import suggest_keywords
from edgewise.tables.node_builder import NodeTableInput, build_node_table, shape_of_probs
from edgewise.tables.node_ids import DenseIds, Ids, JoinedIds, check_kinds
from edgewise.tables.node_table import NodeTable, as_shared_tensor
from edgewise.tables.part_search import TableLike, find_parts, is_url
from edgewise.tables.parts import MemoryPart, Part, PartError, read_ahead, total_rows
from edgewise.tables.table_columns import (
    check_columns,
    find_edge_columns,
    find_prob_columns,
    id_type,
    kind_of_ids,
    read_ids,
)
from edgewise.tables.table_evaluation import (
    EdgeJob,
    Progress,
    counter,
    describe_tables,
    group_parts,
    reporter,
    run_on_cluster,
)
from edgewise.tables.work_folder import PLAN, work_folder
from edgewise.validation import as_tensor, check_flag
from edgewise.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

PAIRS_PER_PART = 1 << 22  # that are looked up at once, and written to a file
VALUES_PER_CHUNK = 1 << 22  # probabilities of the pairs that are predicted at once
UNFINISHED = "_edgewise"  # folder of a run that has not ended: the plan, the node table and the finished parts
ORDER = "order.json"  # written when all parts are finished: their names in order


@suggest_keywords
def predict_tables(
    probs: TableLike,
    pairs: TableLike,
    out: Path | str,
    events: Iterable[EventLike] = ("same", "both_correct"),
    *,
    columns: Mapping[str, Any] | None = None,
    class_names: NameLike | None = None,
    normalize: bool = False,
    top: int = 1,
    skip_unknown: bool = False,
    ray: str | None = None,
    progress: Progress | None = None,
) -> "PairTable":
    """Predict pairs of nodes in tables of many parts, in bounded memory, and write a folder of Parquet parts.

    Columns and values are those of `predict_edges` for the same probabilities and pairs, to the last bit, and rows are
    in the order of the pairs. Probabilities become a table on disk that is mapped into memory. About four million pairs
    at a time are read, predicted and written as one part.

    A run that was stopped continues if it is called again with the same tables and options: parts that are finished are
    not predicted again. They are in the folder ``_edgewise`` in ``out`` until all are finished.

    Parameters
    ----------
    probs
        Predictions: a file, a folder, a glob or a URL of Parquet or CSV, a pyarrow dataset or table, or a Ray Dataset,
        with a column of ids and columns of probabilities in any order of rows, as in `evaluate_tables`.
    pairs
        Ids of both ends, in tables of any such form. Each row is one pair, also if it is listed in both directions.
    out
        Folder for the parts. It is created, or empty, or of an earlier run with the same tables and options.
    events
        Events, as in `predict_edges`.
    columns
        Names of columns that are not found by well-known names: "id", "probs" (one, or one per class), "src", "dst".
    class_names
        Text or integers (C,), used in the table and in ``events``. By default 0, …, C - 1.
    normalize
        Divide rounded probabilities by their sums, which may differ from 1 by 2%.
    top
        The number of most likely label pairs to list.
    skip_unknown
        Leave out and count pairs with an id that has no prediction. By default this is an error.
    ray
        Address of a Ray cluster, or "auto" or "local", whose workers predict. All read the same paths. This process
        writes the parts.
    progress
        Function called with (what is read, rows so far, all rows or None if unknown).

    Returns
    -------
    PairTable
        The folder, and the numbers of pairs, of parts and of skipped pairs.

    Raises
    ------
    ValueError
        If a table is invalid. The message names the part and the row.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from pyarrow import parquet
    >>> from tempfile import TemporaryDirectory
    >>> probs = pa.table({"nid": ["b", "a", "c"], "pred": [[0.8, 0.2], [0.9, 0.1], [0.5, 0.5]]})
    >>> pairs = pa.table({"src": ["a", "b"], "dst": ["b", "c"]})
    >>> with TemporaryDirectory() as folder:
    ...     num_pairs = predict_tables(probs, pairs, folder, events=["same"]).num_pairs
    ...     table = parquet.read_table(folder)
    >>> num_pairs, table.select(["start", "end", "P(same)"]).to_pydict()
    (2, {'start': ['a', 'b'], 'end': ['b', 'c'], 'P(same)': [0.74..., 0.5]})
    """
    plan = plan_pairs(
        probs,
        pairs,
        events,
        columns=columns,
        class_names=class_names,
        normalize=normalize,
        top=top,
        skip_unknown=skip_unknown,
    )
    return plan.run(out, ray, progress)


def plan_pairs(
    probs: TableLike,
    pairs: TableLike,
    events: Iterable[EventLike] = ("same", "both_correct"),
    *,
    columns: Mapping[str, Any] | None = None,
    class_names: NameLike | None = None,
    normalize: bool = False,
    top: int = 1,
    skip_unknown: bool = False,
) -> "PairPlan":
    """Find the parts and columns, and check the options of `predict_tables`. Of rows, only the first are read."""
    for name, flag in {"normalize": normalize, "skip_unknown": skip_unknown}.items():
        check_flag(name, flag)
    told = check_columns(columns)
    prob_parts = find_parts(probs, "probs")
    prob_columns = find_prob_columns(prob_parts[0], told)
    nodes = NodeTableInput(
        prob_parts, [], [], prob_columns, None, None, None, normalize, keep_probs=True, skip_unknown=skip_unknown
    )
    num_classes, _ = shape_of_probs(nodes)
    names = check_names(class_names, num_classes, "class_names", "class").values
    options = PairOptions(events if isinstance(events, str) else tuple(events), names, top, num_classes, skip_unknown)
    options.empty_table("integer")  # raises ValueError for invalid events and top
    pair_parts = find_parts(pairs, "pairs", PAIRS_PER_PART)
    return PairPlan(nodes, pair_parts, find_edge_columns(pair_parts[0], told, "pairs"), options)


@dataclass(frozen=True)
class PairTable:
    """What `predict_tables` wrote: a folder of Parquet parts, part-00000.parquet and so on, in the order of the pairs.

    Attributes
    ----------
    folder
        The folder, which has nothing but the parts.
    num_pairs
        The number of rows of all parts.
    num_parts
        The number of files.
    num_skipped
        The number of pairs that were left out, because an id has no prediction.
    """

    folder: Path
    num_pairs: int
    num_parts: int
    num_skipped: int = 0

    def __str__(self) -> str:
        parts = f"{self.num_parts:,} part{'' if self.num_parts == 1 else 's'}"
        skipped = f"; skipped: {self.num_skipped:,} pairs, as there is no prediction" if self.num_skipped else ""
        return f"{self.num_pairs:,} pairs in {parts} in {self.folder}{skipped}"


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


# --- predicting a job, here or in another process ---


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

    def __call__(self, job: EdgeJob, nodes: Mapping[str, Any]) -> list[bytes] | str:
        """Return the files of a job, or the message of a bad part. ``nodes`` are the fields of `PairNodes`."""
        files: list[bytes] = []
        arrays = PairNodes(**nodes)
        try:
            for stretch in self.stretches(job.parts):
                self.write(job, stretch, arrays, stream := BytesIO())
                files.append(stream.getvalue())
        except PartError as error:
            return str(error)
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

    def write(self, job: EdgeJob, stretch: Stretch, nodes: PairNodes, file: Path | BytesIO) -> None:
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
        """Return which pairs have predictions. Raise `PartError` for others, and for a node with itself."""
        is_known: NDArray[np.bool_] = np.ones(rows.shape[1], dtype=np.bool_)
        for side in rows:
            has_row = side >= 0
            if len(nodes.state):
                is_known &= has_row & ((nodes.state[np.where(has_row, side, 0)] & PRESENT) != 0)
            else:
                is_known &= has_row
        is_loop = is_known & (rows[0] == rows[1])
        is_wrong = is_loop if self.options.skip_unknown else is_loop | ~is_known
        if not is_wrong.any():
            return is_known
        position = int(is_wrong.argmax())
        name, row, start, end = stretch.place(position)
        if is_loop[position]:
            raise PartError(
                f"Expected pairs of two different nodes, but row {row} of {name} is {start!r} with itself. Remove such "
                "pairs."
            )
        raise PartError(
            f"Expected predictions for both ends of each pair, but row {row} of {name} is the pair {start!r}, {end!r}, "
            "and one of them has none. Add predictions, or skip such pairs: skip_unknown=True, or --skip-unknown."
        )


# --- all jobs, and the folder ---


@dataclass(frozen=True)
class PairPlan:
    """Checked tables and options, before rows are read."""

    nodes: NodeTableInput
    pairs: Sequence[Part]
    pair_columns: tuple[str, str]
    options: PairOptions

    def document(self) -> dict[str, object]:
        """Return what the predictions depend on, to recognize those of an earlier run."""
        tables = {"probs": self.nodes.probs, "pairs": self.pairs}
        return {
            **{name: [[part.name, part.num_bytes, _version(part)] for part in parts] for name, parts in tables.items()},
            "columns": [self.nodes.prob_columns, self.pair_columns],
            "normalize": self.nodes.normalize,
            **self.options.document(),
            "pairs_per_part": PAIRS_PER_PART,
            "version": __version__,
        }

    def text(self) -> str:
        """Describe what would be read and written, and how large it is."""
        columns = {"probs": (self.nodes.prob_columns.id, *self.nodes.prob_columns.values), "pairs": self.pair_columns}
        lines = describe_tables({"probs": self.nodes.probs, "pairs": self.pairs}, columns)
        num_nodes, num_pairs = total_rows(self.nodes.probs), total_rows(self.pairs)
        _, dtype = shape_of_probs(self.nodes)
        if num_nodes is not None:
            disk = num_nodes * (1 + self.options.num_classes * dtype.itemsize)
            lines += ["", f"node table {format_bytes(disk)} on disk during the run, without gaps between ids"]
        if num_pairs is not None:
            table = self.options.empty_table(kind_of_ids(self.nodes.probs, self.nodes.prob_columns.id))
            width = sum(
                8 if field.type in ("int64", "double") else 4 for field in table.schema if field.type != "string"
            )
            lines.append(
                f"{num_pairs:,} rows with {table.num_columns} columns, {format_bytes(num_pairs * width)} and text "
                "before compression"
            )
        return "\n".join(lines)

    def run(self, out: Path | str, ray: str | None = None, progress: Progress | None = None) -> PairTable:
        """Read the tables, and write the parts that are not finished."""
        if is_url(str(out)):
            raise ValueError(
                f"Expected out as a local folder, but got {out}. Write to a local folder, and copy it afterwards."
            )
        out = Path(out)
        make_folder(out, "out (--out)")
        document = json.dumps(self.document(), sort_keys=True)
        digest, unfinished = sha256(document.encode()).hexdigest(), out / UNFINISHED
        if not (unfinished / PLAN).exists() and any(path != unfinished for path in out.iterdir()):
            _check_finished(out, digest)
        else:
            if not any(unfinished.glob("*.parquet")) and not (unfinished / ORDER).exists():
                _remove_other_plan(unfinished, json.loads(document))
            with work_folder(unfinished, json.loads(document), "out (--out)") as folder:
                if not (folder / ORDER).exists():
                    self._predict(folder, digest, ray, progress)
                    names = sorted(file.name for file in folder.glob("*.parquet"))
                    replace_file(folder / ORDER, lambda file: file.write_text(json.dumps(names)))
                _move_parts(folder, out)
        shutil.rmtree(unfinished, ignore_errors=True)
        return _describe(out)

    def _predict(self, folder: Path, digest: str, ray: str | None, progress: Progress | None) -> None:
        """Write the parts of all jobs to a folder, except those that are in it."""
        for file in folder.glob(".*.tmp"):  # of a run that was killed
            file.unlink()
        jobs = group_parts(self.pairs, PAIRS_PER_PART)
        finished = {int(file.name.split("-")[0]) for file in folder.glob("*-last.parquet")}
        left = [job for job in jobs if job.number not in finished]
        report = counter(progress, "pairs", total_rows(self.pairs))
        report(sum(job.num_rows for job in jobs if job.number in finished))
        if not left:
            return
        nodes_folder = folder / "nodes"
        table = NodeTable.load(nodes_folder) or build_node_table(
            self.nodes, nodes_folder, reporter(progress, self.nodes)
        )
        nodes = PairNodes(*table.state_and_probs())
        predict = PredictPairs(
            table.ids, self.pair_columns, self.options, PAIRS_PER_PART, len(jobs), {"plan": digest}, nodes_folder
        )
        if ray is None:
            for job in left:
                for number, stretch in enumerate(predict.stretches(job.parts)):
                    file = _unfinished_file(folder, job, number, stretch.is_last)
                    if not file.exists():
                        replace_file(file, partial(predict.write, job, stretch, nodes))
                    report(stretch.num_pairs)
            return
        if isinstance(table.ids, JoinedIds):
            from pyarrow import parquet

            nodes = nodes._replace(ids=parquet.read_table(table.ids.source))
        with closing(run_on_cluster(replace(predict, folder=None), left, ray, nodes._asdict())) as outcomes:
            for job, contents in outcomes:
                for number, content in enumerate(contents):
                    file = _unfinished_file(folder, job, number, number == len(contents) - 1)
                    replace_file(file, partial(_write_bytes, content))
                report(job.num_rows)


def _remove_other_plan(unfinished: Path, plan: Mapping[str, object]) -> None:
    """Remove the folder of a run with another plan, in which no part is finished."""
    file = unfinished / PLAN
    if not file.exists() or json.loads(file.read_text(encoding="utf-8")) != plan:
        shutil.rmtree(unfinished, ignore_errors=True)


def _version(part: Part) -> str:
    """Return what tells a changed part from the one that was read before."""
    import pyarrow as pa

    if isinstance(part, MemoryPart) and isinstance(part.block, pa.Table):
        digest = sha256()
        for batch in part.block.to_batches():
            digest.update(batch.serialize())
        return digest.hexdigest()
    return part.version or uuid4().hex


def _unfinished_file(folder: Path, job: EdgeJob, number: int, is_last: bool) -> Path:
    """Return the file for a stretch of a job. That of the last one says that the job is finished."""
    return folder / f"{job.number:06d}-{number:06d}{'-last' if is_last else ''}.parquet"


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)


def _part_names(count: int) -> list[str]:
    """Return the names of the parts, whose alphabetical order is that of their numbers."""
    width = max(5, len(str(count - 1)))
    return [f"part-{number:0{width}d}.parquet" for number in range(count)]


def _move_parts(folder: Path, out: Path) -> None:
    """Move all parts to the folder for readers, except those that were moved before."""
    unfinished_names = json.loads((folder / ORDER).read_text())
    for unfinished, name in zip(unfinished_names, _part_names(len(unfinished_names)), strict=True):
        if (folder / unfinished).exists():
            (folder / unfinished).rename(out / name)


def _check_finished(out: Path, digest: str) -> None:
    """Raise ValueError unless a folder has the parts of a finished run with the same plan, and nothing else."""
    files = sorted(out.iterdir())
    metadata = [_metadata(file) for file in files]
    if [file.name for file in files] != _part_names(len(files)) or not all(metadata):
        raise ValueError(
            f"Expected an empty folder for out (--out), or one of an earlier run, but {out} holds other files. Pass "
            "another folder."
        )
    if {found["plan"] for found in metadata} != {digest} or metadata[-1]["is_last"] != "true":
        raise ValueError(
            f"Expected {out} to hold the predictions for these files and options, but it holds others, or some were "
            "removed. Pass another folder as out (--out), or delete it."
        )


def _metadata(file: Path) -> dict[str, str]:
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


def _describe(out: Path) -> PairTable:
    """Return the numbers of a finished folder."""
    from pyarrow import parquet

    files = sorted(out.iterdir())
    num_pairs = sum(parquet.read_metadata(file).num_rows for file in files)
    return PairTable(out, num_pairs, len(files), sum(int(_metadata(file)["skipped"]) for file in files))
