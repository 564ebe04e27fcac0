"""Building the node table in three passes over bounded batches.

The ids of the predictions give the rows, labels and mask give the states, and probabilities are reduced to the records
that all scores of nodes and edges depend on.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.edge_stream import LABELED, PRESENT, SCORED, set_bits
from edgewise.metrics.elements import RECORD_COLUMNS, node_records
from edgewise.tables.node_ids import (
    MAX_ROWS_PER_NODE,
    PART_NUMBER,
    DenseIds,
    Ids,
    JoinedIds,
    check_kinds,
    find_rows,
)
from edgewise.tables.node_table import NodeCounts, NodeTable
from edgewise.tables.parts import Part, PartError, read_ahead
from edgewise.tables.table_columns import (
    INVALID,
    NodeColumns,
    id_type,
    kind_of_ids,
    prob_types,
    read_ids,
    read_labels,
    read_prob_rows,
)
from edgewise.tables.table_jobs import Progress, RowCounter
from edgewise.validation import check_distributions, normalize_distributions

if TYPE_CHECKING:
    import pyarrow as pa

UNLABELED = -1
PROBS_PER_BATCH = 1 << 21


class NodeTableInput(NamedTuple):
    """The parts of the tables of nodes, their columns, and options. Without labels, there are no records."""

    probs: Sequence[Part]
    labels: Sequence[Part]
    mask: Sequence[Part]
    prob_columns: NodeColumns
    label_columns: NodeColumns | None
    mask_columns: NodeColumns | None
    class_names: "pa.Array | None"
    normalize: bool
    keep_probs: bool
    skip_unknown: bool


def build_node_table(source: NodeTableInput, folder: Path, progress: Progress | None = None) -> NodeTable:
    """Read predictions, labels and mask, and write the node table below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = kind_of_ids(source.probs, source.prob_columns.id)
    check_kinds(source.probs, [source.prob_columns.id], kind)
    ids, num_predictions, state = _read_node_ids(source, kind, folder, progress)
    labels = None
    if source.label_columns is not None:
        labels = _new_array(folder / "labels.npy", (ids.size,), np.int32)
        labels[:] = UNLABELED
    builder = _Builder(source, folder, ids, state, labels, progress)
    num_classes, probs_type = shape_of_probs(source)
    unknown_labels = builder.add_labels(num_classes)
    unknown_mask = builder.add_mask()
    builder.add_probs(num_classes, probs_type)
    counts = NodeCounts(
        num_predictions,
        int(np.count_nonzero(state & LABELED)),
        int(np.count_nonzero(state & SCORED)),
        unknown_labels,
        unknown_mask,
    )
    table = NodeTable(folder, ids, num_classes, counts)
    table.save()
    _release_memory()
    return table


def _release_memory() -> None:
    """Return memory that Arrow keeps for later batches, which other libraries would not use."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _new_array(file: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    if 0 in shape:
        np.save(file, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    array: NDArray[Any] = open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # a page of a mapped file that does not fit the disk would end the process
        with file.open("r+b") as stream:
            try:
                os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # of some file systems
                    raise
    return array


def _batches(
    parts: Sequence[Part],
    columns: Sequence[str],
    id_column: str,
    kind: str,
    counter: RowCounter,
    types: "dict[str, pa.DataType] | None" = None,
    num_rows: int | None = None,
) -> "Iterator[tuple[Part, int, pa.RecordBatch]]":
    """Yield (part, first row of the batch in the part, batch), read ahead by another thread, and count the rows."""

    def read() -> "Iterator[tuple[int, int, pa.RecordBatch]]":
        for number, part in enumerate(parts):
            for row, batch in part.read_numbered(columns, {**(types or {}), id_column: id_type(kind)}, num_rows):
                yield number, row, batch

    for number, row, batch in read_ahead(read()):
        yield parts[number], row, batch
        counter.add(batch.num_rows, number)
    counter.add(0, len(parts))


def _read_node_ids(
    source: NodeTableInput, kind: str, folder: Path, progress: Progress | None
) -> tuple[Ids, int, NDArray[np.uint8]]:
    """Return the rows of the ids of the predictions, their number, and the states with the bit for predictions."""
    column = source.prob_columns.id
    smallest, largest, count = 0, -1, 0
    if kind == "integer":
        from pyarrow import compute

        counter = RowCounter(progress, "ids", source.probs)
        for part, row, batch in _batches(source.probs, [column], column, kind, counter):
            ids = read_ids(batch, column, kind, part, row)
            if len(ids):
                low, high = compute.min_max(ids).as_py().values()
                smallest, largest = (min(smallest, low), max(largest, high)) if count else (low, high)
            count += len(ids)
    size = largest - smallest + 1
    if kind == "integer" and size <= MAX_ROWS_PER_NODE * count + 1024:
        dense = DenseIds(smallest, size if count else 0)
        state = _new_array(folder / "state.npy", (dense.size,), np.uint8)
        counter = RowCounter(progress, "ids again", source.probs)
        for part, row, batch in _batches(source.probs, [column], column, kind, counter):
            rows = dense.rows(read_ids(batch, column, kind, part, row))
            _, twice = set_bits(rows, state, 0, PRESENT)
            if twice >= 0:
                raise _duplicate("prediction", part, row + twice, str(int(rows[twice]) + dense.first))
        return dense, count, state
    counter = RowCounter(progress, "ids again" if kind == "integer" else "ids", source.probs)
    joined = _write_ids(source, kind, folder, counter)
    if (twice := joined.find_duplicate(folder)) is not None:
        raise _duplicate("prediction", *_second_row(source.probs, column, kind, twice), str(twice))
    state = _new_array(folder / "state.npy", (joined.size,), np.uint8)
    state[:] = PRESENT
    return joined, joined.size, state


def _duplicate(what: str, part: Part, row: int, node: str) -> PartError:
    return PartError(
        f"Expected one {what} for each node, but row {row} of {part.name} is another one for node {node!r}. Remove one."
    )


def _second_row(parts: Sequence[Part], column: str, kind: str, node: Any) -> tuple[Part, int]:
    """Return where an id is found for the second time."""
    found = ((part, row) for part in parts for row, _ in find_rows(part, [column], kind, {node}))
    next(found)
    return next(found)


def _write_ids(source: NodeTableInput, kind: str, folder: Path, counter: RowCounter) -> JoinedIds:
    """Write the ids of the predictions with their rows, in the order in which they are read."""
    import pyarrow as pa
    from pyarrow import parquet

    column, count, file = source.prob_columns.id, 0, folder / "ids.parquet"
    schema = pa.schema([("id", id_type(kind)), ("row", pa.int64())])
    with parquet.ParquetWriter(file, schema) as writer:
        for part, row, batch in _batches(source.probs, [column], column, kind, counter):
            ids = read_ids(batch, column, kind, part, row)
            writer.write_table(pa.table([ids, pa.array(np.arange(count, count + len(ids)))], schema=schema))
            count += len(ids)
    return JoinedIds(kind, count, str(file))


def shape_of_probs(source: NodeTableInput) -> tuple[int, np.dtype[Any]]:
    """Return the number of classes, and the type of the probabilities."""
    columns = source.prob_columns
    for part in source.probs:
        for row, batch in part.read_numbered(columns.values, prob_types(columns), 1):
            if batch.num_rows:
                probs = read_prob_rows(batch.slice(0, 1), columns.values, part, row)
                return probs.shape[1], probs.dtype
    return max(1, len(columns.values)), np.dtype(np.float64)


class _Builder:
    """Fills the states, labels and records of a node table."""

    def __init__(
        self,
        source: NodeTableInput,
        folder: Path,
        ids: Ids,
        state: NDArray[np.uint8],
        labels: NDArray[np.int32] | None,
        progress: Progress | None,
    ):
        self.source, self.folder, self.ids, self.state, self.labels = source, folder, ids, state, labels
        self.progress = progress

    def add_labels(self, num_classes: int) -> int:
        """Set the labels of nodes, and return the number of rows whose ids have no prediction."""
        columns, names, num_unknown = self.source.label_columns, self.source.class_names, 0
        if columns is None or self.labels is None:
            return 0
        if names is not None and len(names) != num_classes:
            raise ValueError(
                f"Expected a name for each of the {num_classes} probabilities, but class_names has {len(names)}."
            )
        check_kinds(self.source.labels, [columns.id], self.ids.kind)
        for part, row, rows, (column,) in self._joined("labels", self.source.labels, columns):
            labels = read_labels(column, columns.values[0], part, num_classes, self.source.class_names)
            known = rows >= 0
            if (invalid := known & (labels == INVALID)).any():
                position = int(invalid.argmax())
                where = self._find_row(part, columns.id, row, rows, position)
                raise self._invalid_label(part, columns.values[0], where, column[position], num_classes)
            num_unknown += self._set_bits(
                self.source.labels, columns.id, part, row, rows, PRESENT, LABELED, "label", labels >= 0
            )
            known &= labels >= 0
            self.labels[rows[known]] = labels[known]
        return num_unknown

    def _invalid_label(self, part: Part, column: str, row: int, label: "pa.Scalar", num_classes: int) -> PartError:
        expected = f"labels from 0 to {num_classes - 1} (there are {num_classes} probabilities), or -1 if unknown,"
        hint = "If classes are numbered from 1, subtract 1. If labels are names, pass class_names=…, or --classes FILE."
        if self.source.class_names is not None:
            expected, hint = "names of the classes", "Correct the label, or the names: class_names=…, --classes FILE."
        got = str(label.as_py())[:40]
        return PartError(f"Expected {expected} in column {column} of {part.name}, but row {row} has {got!r}. {hint}")

    def _find_row(self, part: Part, column: str, first_row: int | None, rows: NDArray[np.int64], position: int) -> int:
        """Return the row of the part that is at a position of a batch. After a join, it is found by its id."""
        if first_row is not None:
            return first_row + position
        return next(find_rows(part, [column], self.ids.kind, {self.ids.id_of(int(rows[position]))}))[0]

    def add_mask(self) -> int:
        """Set which nodes are scored, and return the number of rows whose ids have no prediction or no label."""
        columns, num_unknown = self.source.mask_columns, 0
        if columns is None:
            self.state[(self.state & LABELED) != 0] |= SCORED
            return 0
        check_kinds(self.source.mask, [columns.id], self.ids.kind)
        for part, row, rows, values in self._joined("mask", self.source.mask, columns):
            selected = _as_mask(values[0], columns.values[0], part) if values else np.ones(len(rows), dtype=bool)
            num_unknown += self._set_bits(
                self.source.mask, columns.id, part, row, rows, PRESENT | LABELED, SCORED, "row of the mask", selected
            )
        return num_unknown

    def _set_bits(
        self,
        parts: Sequence[Part],
        column: str,
        part: Part,
        first_row: int | None,
        rows: NDArray[np.int64],
        needed: int,
        bit: int,
        what: str,
        selected: NDArray[np.bool_],
    ) -> int:
        """Set a bit of the selected rows. Return the number of unknown ones, if they may be skipped."""
        chosen = np.flatnonzero(selected)
        unknown, twice = set_bits(np.ascontiguousarray(rows[chosen]), self.state, needed, bit)
        if twice >= 0:
            node = self.ids.id_of(int(rows[chosen[twice]]))
            where = _second_row(parts, column, self.ids.kind, node)
            raise _duplicate(what, *where, str(node))
        if unknown < 0:
            return 0
        if not self.source.skip_unknown:
            have = "a prediction" if needed == PRESENT else "a prediction and a label"
            row = self._find_row(part, column, first_row, rows, int(chosen[unknown]))
            raise PartError(
                f"Expected {have} for each node of {part.name}, but the one in row {row} has less. Add what is "
                "missing, or skip such nodes: skip_unknown=True, or --skip-unknown."
            )
        inside = rows[chosen]
        known = (inside >= 0) & (inside < len(self.state))
        return int(len(inside) - np.count_nonzero(self.state[inside[known]] & needed == needed))

    def _joined(
        self, what: str, parts: Sequence[Part], columns: NodeColumns
    ) -> "Iterator[tuple[Part, int | None, NDArray[np.int64], tuple[pa.Array, ...]]]":
        """Yield (part, first row or None, row of each id, values). After a join the order of rows is unknown."""
        counter, num_parts = RowCounter(self.progress, what, parts), 0
        if isinstance(self.ids, DenseIds):
            names = [columns.id, *columns.values]
            for part, row, batch in _batches(parts, names, columns.id, self.ids.kind, counter):
                missing = self.ids.missing(self.source.skip_unknown)
                rows = self.ids.rows(read_ids(batch, columns.id, self.ids.kind, part, row, missing))
                yield part, row, rows, tuple(batch.column(name) for name in columns.values)
            return
        for _, group in groupby(parts, lambda part: _types(part, columns.values)):
            same = list(group)
            for found in self._joined_at_once(same, columns):
                yield found
                counter.add(len(found[2]))
            num_parts += len(same)
            counter.add(0, num_parts)

    def _joined_at_once(
        self, parts: Sequence[Part], columns: NodeColumns
    ) -> "Iterator[tuple[Part, None, NDArray[np.int64], tuple[pa.Array, ...]]]":
        """Join parts of equal types, because each join reads all ids. A batch has rows of several parts."""
        others = *columns.values, PART_NUMBER
        assert isinstance(self.ids, JoinedIds)
        for mixed in self.ids.joined(parts, [columns.id], others, self.folder):
            numbers = mixed.column(len(others)).to_numpy()
            for number in np.unique(numbers):
                part, batch = parts[number], mixed.filter(numbers == number)
                rows = batch.column(0).fill_null(-1).to_numpy(zero_copy_only=False)
                if not self.source.skip_unknown and (rows < 0).any():
                    row, node = self.ids.find_unknown(part, [columns.id], self.folder) or (0, "")
                    raise PartError(
                        f"Expected a prediction for each node of {part.name}, but row {row} has {node!r}, which has "
                        "none. Add it, or skip such nodes: skip_unknown=True, or --skip-unknown."
                    )
                yield part, None, rows, tuple(batch.column(k + 1) for k in range(len(columns.values)))

    def add_probs(self, num_classes: int, dtype: np.dtype[Any]) -> None:
        """Check the probabilities, keep them if asked for, and reduce them to records if there are labels."""
        columns, size, records, kept_dtype = self.source.prob_columns, self.ids.size, None, dtype
        if self.labels is not None:
            records = _new_array(self.folder / "records.npy", (size, len(RECORD_COLUMNS)), np.float64)
            # The compiled loops have no half precision. Numbers of 16 bits are numbers of 32 bits.
            kept_dtype = np.dtype(np.float32) if dtype == np.float16 else dtype
        kept = (
            _new_array(self.folder / "probs.npy", (size, num_classes), kept_dtype) if self.source.keep_probs else None
        )
        names, count = [columns.id, *columns.values], 0
        num_rows, types = max(1, PROBS_PER_BATCH // num_classes), prob_types(columns)
        counter = RowCounter(self.progress, "probabilities", self.source.probs)
        for part, row, batch in _batches(self.source.probs, names, columns.id, self.ids.kind, counter, types, num_rows):
            if batch.num_rows == 0:
                continue
            values = read_prob_rows(batch, columns.values, part, row)
            if values.shape[1] != num_classes or values.dtype != dtype:
                raise PartError(
                    f"Expected {num_classes} probabilities of type {dtype} per node, as in the first part, but row "
                    f"{row} of {part.name} has {values.shape[1]} of type {values.dtype}. Write the part again."
                )
            probs = self._checked(torch.from_numpy(_writable(values)), part, row)
            if isinstance(self.ids, DenseIds):
                rows = self.ids.rows(read_ids(batch, columns.id, self.ids.kind, part, row))
            else:
                rows = np.arange(count, count + len(values))
            count += len(values)
            if records is not None and self.labels is not None:
                records[rows] = node_records(probs, torch.from_numpy(self.labels[rows])).numpy()
            if kept is not None:
                kept[rows] = probs.numpy()

    def _checked(self, probs: Tensor, part: Part, row: int) -> Tensor:
        check = normalize_distributions if self.source.normalize else check_distributions
        try:
            checked = check(probs, "probs", "node")
            return probs if checked is None else checked
        except ValueError as error:
            raise PartError(_shift_row(str(error), row, part)) from error


def _shift_row(text: str, first_row: int, part: Part) -> str:
    """Return a message about a node of a batch with its row in the part."""
    text, number = re.subn(
        r"node (\d+) of probs", lambda match: f"row {int(match[1]) + first_row} of {part.name}", text
    )
    return text if number else f"{text.rstrip('.')} ({part.name})."


def _types(part: Part, columns: Sequence[str]) -> "list[pa.DataType | None]":
    schema = part.schema()
    return [schema.field(name).type if name in schema.names else None for name in columns]


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array) if array.flags.writeable else array.copy()


def _as_mask(column: "pa.Array", name: str, part: Part) -> NDArray[np.bool_]:
    from pyarrow import types

    if not (types.is_boolean(column.type) or types.is_integer(column.type)):
        raise PartError(f"Expected booleans, or 0 and 1, in column {name} of {part.name}, but got {column.type}.")
    values: NDArray[Any] = column.cast("int64", safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    if len(values) and not np.isin(values, (0, 1)).all():
        raise PartError(f"Expected booleans, or 0 and 1, in column {name} of {part.name}, but got {values.max()}.")
    return values.astype(np.bool_)
