"""Predictions for pairs of nodes in tables that do not fit into memory, written to a folder of Parquet parts.

Probabilities become a table that is mapped into memory, with a row per node. Pairs are read in stretches of bounded
size. The rows of both ends of a stretch are looked up, and it is predicted and written as one part. Parts are in a
hidden folder until all are there, so that no reader takes some of them for the whole.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from edgewise.conversion import NameLike, check_names
from edgewise.decisions.events import EventLike
from edgewise.files.output import make_folder, replace_file
from edgewise.representation import format_bytes
from edgewise.suggestions import suggest_keywords
from edgewise.tables.node_builder import NodeTableInput, build_node_table, shape_of_probs
from edgewise.tables.node_table import NodeTable
from edgewise.tables.pair_parts import (
    PairNodes,
    PairOptions,
    PredictPairs,
    check_finished,
    count_rows,
    part_metadata,
    part_names,
    unfinished_file,
)
from edgewise.tables.part_search import TableLike, find_parts, is_url
from edgewise.tables.parts import MemoryPart, Part, total_rows
from edgewise.tables.table_columns import check_columns, find_edge_columns, find_prob_columns, kind_of_ids
from edgewise.tables.table_jobs import Progress, RowCounter, describe_tables, group_parts, run_on_cluster
from edgewise.tables.work_folder import PLAN, lock_folder, work_folder
from edgewise.validation import check_flag
from edgewise.version import __version__

PAIRS_PER_PART = 1 << 22  # that are looked up at once, and written to a file
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
        Leave out and count pairs with an id that has no prediction, and of a node with itself. By default these are
        errors.
    ray
        Address of a Ray cluster, or "auto" or "local", whose workers predict. All read the same paths. This process
        writes the parts.
    progress
        Function called with a named tuple: (what, rows, num_rows, parts, num_parts), as in `evaluate_tables`.

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
    events: Iterable[EventLike],
    *,
    columns: Mapping[str, Any] | None,
    class_names: NameLike | None,
    normalize: bool,
    top: int,
    skip_unknown: bool,
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
        what = "pairs without a prediction or of a node with itself"
        skipped = f"; skipped {what}: {self.num_skipped:,}" if self.num_skipped else ""
        return f"{self.num_pairs:,} pairs in {parts} in {self.folder}{skipped}"


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
            lines += ["", f"node table: {format_bytes(disk)} on disk during the run, more if integer ids have gaps"]
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
        with lock_folder(out, "out (--out)"):
            return self._run(out, ray, progress)

    def _run(self, out: Path, ray: str | None, progress: Progress | None) -> PairTable:
        document = json.dumps(self.document(), sort_keys=True)
        digest, unfinished = sha256(document.encode()).hexdigest(), out / UNFINISHED
        if not (unfinished / PLAN).exists() and any(path != unfinished for path in out.iterdir()):
            check_finished(out, digest)
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
        jobs = group_parts(self.pairs, PAIRS_PER_PART)
        finished = {int(file.name.split("-")[0]) for file in folder.glob("*-last.parquet")}
        left = [job for job in jobs if job.number not in finished]
        if not left:
            return
        nodes_folder = folder / "nodes"
        table = NodeTable.load(nodes_folder) or build_node_table(self.nodes, nodes_folder, progress)
        num_rows = sum(count_rows(file) for file in folder.glob("*.parquet"))
        num_parts = sum(len(job.parts) for job in jobs if job.number in finished)
        counter = RowCounter(progress, "pairs", self.pairs, finished_rows=num_rows, finished_parts=num_parts)
        nodes = PairNodes(*table.state_and_probs())
        predict = PredictPairs(
            table.ids, self.pair_columns, self.options, PAIRS_PER_PART, len(jobs), {"plan": digest}, nodes_folder
        )
        if ray is None:
            for job in left:
                for number, stretch in enumerate(predict.stretches(job.parts)):
                    file = unfinished_file(folder, job, number, stretch.is_last)
                    if not file.exists():
                        replace_file(file, partial(predict.write, job, stretch, nodes))
                        counter.add(stretch.num_pairs)
                num_parts += len(job.parts)
                counter.add(0, num_parts)
            return
        shared = nodes._replace(ids=table.ids.table())._asdict()
        with closing(run_on_cluster(replace(predict, folder=None), left, ray, shared)) as outcomes:
            for job, contents in outcomes:
                num_parts += len(job.parts)
                for number, content in enumerate(contents):
                    is_last = number == len(contents) - 1
                    file = unfinished_file(folder, job, number, is_last)
                    if not file.exists():
                        replace_file(file, partial(_write_bytes, content))
                        counter.add(count_rows(file), num_parts if is_last else None)


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


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)


def _move_parts(folder: Path, out: Path) -> None:
    """Move all parts to the folder for readers, except those that were moved before."""
    unfinished_names = json.loads((folder / ORDER).read_text())
    for unfinished, name in zip(unfinished_names, part_names(len(unfinished_names)), strict=True):
        if (folder / unfinished).exists():
            (folder / unfinished).rename(out / name)


def _describe(out: Path) -> PairTable:
    """Return the numbers of a finished folder."""
    from pyarrow import parquet

    files = sorted(out.iterdir())
    num_pairs = sum(parquet.read_metadata(file).num_rows for file in files)
    return PairTable(out, num_pairs, len(files), sum(int(part_metadata(file)["skipped"]) for file in files))
