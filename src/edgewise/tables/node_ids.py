"""From ids of nodes to rows of the node table.

Integers that fill most of a range are row numbers themselves, after subtraction of the first one. For other integers
and for text, DuckDB joins: of the engines tried (benchmarks/scale.py) it took the least processor time, and only it
keeps to a limit of memory, because it moves the rest to disk.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.files.arrays import one_line_message
from edgewise.tables.parts import Part, PartError
from edgewise.tables.table_columns import id_kind, id_type, read_ids

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS_PER_NODE = 2  # of a table whose rows are ids; unused rows cost memory
ROWS_PER_JOINED_BATCH = 1 << 18
PART_NUMBER = "number of the part"
MIN_ID = -(1 << 63)
ENGINE_MEMORY = "320MB"  # for joins; more is moved to disk


@dataclass(frozen=True)
class DenseIds:
    """Integers from ``first`` to ``first + size - 1``, the numbers of the rows."""

    first: int
    size: int
    kind: str = "integer"

    def id_of(self, row: int) -> int:
        """Return the id of a row."""
        return self.first + row

    def table(self) -> None:
        """Return nothing, as no file of ids is needed."""

    def missing(self, skip_unknown: bool) -> int | None:
        """Return the id that stands for an empty one if unknown ids are skipped, or None."""
        outside = self.first - 1 if self.first > MIN_ID else self.first + self.size
        return outside if skip_unknown else None

    def rows(self, ids: "pa.Array") -> NDArray[np.int64]:
        """Return the row of each id, and -1 for those out of range."""
        rows: NDArray[np.int64] = ids.to_numpy(zero_copy_only=False) - self.first
        rows[(rows < 0) | (rows >= self.size)] = -1
        return rows


@dataclass(frozen=True)
class JoinedIds:
    """Ids in a table of their own, in the order of the rows: a Parquet file, or a table in memory."""

    kind: str
    size: int
    source: Any
    first: int = 0

    def table(self) -> "pa.Table":
        """Return the ids as a table in memory, for processes that cannot read their file."""
        from pyarrow import parquet

        return parquet.read_table(self.source)

    def joined(
        self, parts: Sequence[Part], keys: Sequence[str], others: Sequence[str], folder: Path | None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the row of each key, or null, and the other columns, in any order, in columns 0, 1, ….

        ``folder`` is where DuckDB puts what does not fit into memory. `PART_NUMBER` is the name of one of the other
        columns, the number of the part.
        """
        with _connect(folder) as engine, _name_bad_part(parts, keys, others, self.kind):
            nodes = self._nodes(engine)
            source, names = _engine_source(engine, parts, keys, others, self.kind)
            columns = [f"n{k}.row AS row{k}" for k in range(len(keys))] + [f"t.{names[other]}" for other in others]
            joins = " ".join(
                f"LEFT JOIN {nodes} n{k} ON CAST(t.{names[key]} AS {_engine_type(self.kind)}) = n{k}.id"
                for k, key in enumerate(keys)
            )
            query = f"SELECT {', '.join(columns)} FROM {source} t {joins}"
            yield from engine.sql(query).to_arrow_reader(ROWS_PER_JOINED_BATCH)

    def rows(self, ids: "pa.ChunkedArray", folder: Path | None) -> NDArray[np.int64]:
        """Return the row of each id, and -1 for unknown ones."""
        import pyarrow as pa

        rows = np.full(len(ids), -1, dtype=np.int64)
        with _connect(folder) as engine:
            engine.register("keys", pa.table({"id": ids, "position": np.arange(len(ids))}))
            query = f"SELECT k.position, n.row FROM keys k JOIN {self._nodes(engine)} n ON k.id = n.id"
            for batch in engine.sql(query).to_arrow_reader(ROWS_PER_JOINED_BATCH):
                rows[batch.column(0).to_numpy()] = batch.column(1).to_numpy()
        return rows

    def find_unknown(self, part: Part, keys: Sequence[str], folder: Path | None) -> tuple[int, str] | None:
        """Return the first row of a part with an unknown id, and the id, or None."""
        with _connect(folder) as engine, _name_bad_part([part], keys, (), self.kind):
            nodes = self._nodes(engine)
            unknown: set[Any] = set()
            for key in keys:
                source, names = _engine_source(engine, [part], [key], (), self.kind)
                name = f"CAST(t.{names[key]} AS {_engine_type(self.kind)})"
                query = f"SELECT {name} FROM {source} t ANTI JOIN {nodes} n ON {name} = n.id LIMIT 1000"
                unknown |= {row[0] for row in engine.execute(query).fetchall()}
        return next(find_rows(part, keys, self.kind, unknown), None)

    def id_of(self, row: int) -> Any:
        """Return the id of a row."""
        with _connect(None) as engine:
            return engine.execute(f"SELECT id FROM {self._nodes(engine)} WHERE row = {row}").fetchone()[0]

    def find_duplicate(self, folder: Path | None) -> Any:
        """Return an id that is listed twice, or None."""
        with _connect(folder) as engine:
            query = f"SELECT id FROM {self._nodes(engine)} GROUP BY id HAVING count(*) > 1 LIMIT 1"
            found = engine.execute(query).fetchone()
        return None if found is None else found[0]

    def _nodes(self, engine: Any) -> str:
        if isinstance(self.source, str):
            return _read_parquet([self.source])
        engine.register("nodes", self.source)
        return "nodes"


Ids = DenseIds | JoinedIds


def _connect(folder: Path | None) -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ValueError(
            "Expected DuckDB for ids that are text or far apart, but it is not installed. Run: pip install duckdb"
        ) from error
    import torch

    engine = duckdb.connect()
    engine.execute(f"SET threads = {torch.get_num_threads()}")
    engine.execute(f"SET memory_limit = '{ENGINE_MEMORY}'")
    # Processes must not share a folder.
    overflow = folder / "duckdb" if folder else Path(gettempdir()) / f"edgewise-duckdb-{os.getpid()}"
    engine.execute(f"SET temp_directory = {_text(str(overflow))}")
    engine.execute("SET preserve_insertion_order = false")
    # The nodes are put into the hash table. DuckDB takes a stream of unknown length for the smaller side.
    engine.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    return engine


def _engine_source(
    engine: Any, parts: Sequence[Part], keys: Sequence[str], others: Sequence[str], kind: str
) -> tuple[str, dict[str, str]]:
    """Return the parts as a table for a query, and the name of each column in it.

    DuckDB reads local Parquet files itself, which is twice as fast, unless names differ in upper and lower case only,
    which it does not tell apart.
    """
    import pyarrow as pa

    files = [part.local_file for part in parts]
    columns = list(dict.fromkeys((*keys, *others)))
    if all(files) and not others and all(_differ_without_case(part.schema().names) for part in parts):
        return _read_parquet(map(str, files)), {name: _quoted(name) for name in columns}
    types, names = dict.fromkeys(keys, id_type(kind)), {name: f"c{k}" for k, name in enumerate(columns)}
    stored = [name for name in columns if name != PART_NUMBER]

    def batches() -> "Iterator[pa.RecordBatch]":
        for number, part in enumerate(parts):
            for batch in part.read(stored, types):
                # Parts may have ids of different types, such as integers of 32 and 64 bits.
                cells = {names[name]: batch.column(name).cast(types.get(name, batch[name].type)) for name in stored}
                if PART_NUMBER in names:
                    cells[names[PART_NUMBER]] = pa.array(np.full(batch.num_rows, number))
                yield pa.RecordBatch.from_pydict(cells)

    stream = batches()
    first = next(stream, None)
    if first is None:
        schema = pa.schema([(names[name], types.get(name, pa.int64())) for name in columns])
        reader = pa.RecordBatchReader.from_batches(schema, [])
    else:
        reader = pa.RecordBatchReader.from_batches(first.schema, _prepend(first, stream))
    engine.register("stream", reader)
    return "stream", names


def _differ_without_case(names: Sequence[str]) -> bool:
    return len({name.casefold() for name in names}) == len(names)


def _read_parquet(files: Iterable[str]) -> str:
    """Return files as a table. Types of integers may differ, and names may have wildcards and keys, as in src=1."""
    names = ", ".join(_text(re.sub(r"([*?\[])", r"[\1]", file)) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def _prepend(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    for batch in rest:
        yield batch.cast(first.schema) if batch.schema != first.schema else batch


@contextmanager
def _name_bad_part(parts: Sequence[Part], keys: Sequence[str], others: Sequence[str], kind: str) -> Iterator[None]:
    """Raise `PartError` for errors of DuckDB, with the name of the part that cannot be read."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for part in parts:
            columns = [name for name in dict.fromkeys((*keys, *others)) if name != PART_NUMBER]
            for row, batch in part.read_numbered(columns, dict.fromkeys(keys, id_type(kind))):
                for key in keys:
                    read_ids(batch, key, kind, part, row, missing=0 if kind == "integer" else "")
        names = parts[0].name if len(parts) == 1 else f"one of {len(parts)} parts from {parts[0].name} on"
        raise PartError(f"Expected to join the ids in {names}, but got: {one_line_message(error)}.") from error


def _engine_type(kind: str) -> str:
    return "BIGINT" if kind == "integer" else "VARCHAR"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def find_rows(part: Part, keys: Sequence[str], kind: str, wanted: set[Any]) -> Iterator[tuple[int, str]]:
    """Yield the rows of a part with one of the wanted ids, and the id."""
    import pyarrow as pa
    from pyarrow import compute

    values = pa.array(list(wanted), id_type(kind))
    for row, batch in part.read_numbered(keys, dict.fromkeys(keys, id_type(kind))) if wanted else ():
        ids = [read_ids(batch, key, kind, part, row) for key in keys]
        found = [compute.is_in(column, value_set=values).to_numpy(zero_copy_only=False) for column in ids]
        for position in np.flatnonzero(np.any(found, axis=0)).tolist():
            key = next(k for k, column in enumerate(found) if column[position])
            yield row + position, str(ids[key][position])


def check_kinds(parts: Sequence[Part], columns: Sequence[str], kind: str) -> None:
    """Raise `PartError` if a part has no such column, or ids of another kind than the predictions."""
    for part in parts:
        for column in columns:
            found = id_kind(part, column)
            if found not in (kind, None) and not (part.is_text_file and kind == "text"):
                raise PartError(
                    f"Expected {kind} ids in column {column} of {part.name}, as in the predictions, but got {found}. "
                    "Convert them, so that ids are written alike everywhere."
                )
