"""From ids of nodes to rows of the node table.

Integers that fill most of a range are row numbers themselves, after subtraction of the first one. For other integers
and for text, DuckDB joins: it was the fastest of the engines tried (benchmarks/scale.py), it streams, and it moves what
does not fit into its memory to disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.tables.parts import ROWS_PER_BATCH, Part, PartError
from edgewise.tables.table_columns import id_kind, id_type, read_ids

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS_PER_NODE = 2  # of a table whose rows are ids; unused rows cost memory
ENGINE_MEMORY = "512MB"  # for joins; more is moved to disk


@dataclass(frozen=True)
class DenseIds:
    """Integers from ``first`` to ``first + size - 1``, the numbers of the rows."""

    first: int
    size: int
    kind: str = "integer"

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

    def joined(
        self, parts: Sequence[Part], keys: Sequence[str], others: Sequence[str], folder: Path | None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the row of each key, or null, and the other columns, in any order, in columns 0, 1, ….

        ``folder`` is where DuckDB puts what does not fit into memory.
        """
        with _connect(folder) as engine:
            nodes = self._nodes(engine)
            source = _engine_source(engine, parts, keys, others, self.kind)
            columns = [f"n{k}.row AS c{k}" for k in range(len(keys))] + [f"t.{_quoted(name)}" for name in others]
            joins = " ".join(
                f"LEFT JOIN {nodes} n{k} ON CAST(t.{_quoted(key)} AS {_engine_type(self.kind)}) = n{k}.id"
                for k, key in enumerate(keys)
            )
            query = f"SELECT {', '.join(columns)} FROM {source} t {joins}"
            yield from _checked(engine.sql(query).to_arrow_reader(ROWS_PER_BATCH), parts)

    def rows(self, ids: "pa.ChunkedArray", folder: Path | None) -> NDArray[np.int64]:
        """Return the row of each id, and -1 for unknown ones."""
        import pyarrow as pa

        rows = np.full(len(ids), -1, dtype=np.int64)
        with _connect(folder) as engine:
            engine.register("keys", pa.table({"id": ids, "position": np.arange(len(ids))}))
            query = f"SELECT k.position, n.row FROM keys k JOIN {self._nodes(engine)} n ON k.id = n.id"
            for batch in engine.sql(query).to_arrow_reader(ROWS_PER_BATCH):
                rows[batch.column(0).to_numpy()] = batch.column(1).to_numpy()
        return rows

    def find_unknown(self, part: Part, keys: Sequence[str], folder: Path | None) -> tuple[int, str] | None:
        """Return the first row of a part with an unknown id, and the id, or None."""
        with _connect(folder) as engine:
            nodes = self._nodes(engine)
            unknown: set[Any] = set()
            for key in keys:
                source = _engine_source(engine, [part], [key], (), self.kind)
                name = f"CAST(t.{_quoted(key)} AS {_engine_type(self.kind)})"
                query = f"SELECT {name} FROM {source} t ANTI JOIN {nodes} n ON {name} = n.id LIMIT 1000"
                unknown |= {row[0] for row in engine.execute(query).fetchall()}
        if not unknown:
            return None
        return find_row(part, keys, self.kind, unknown)

    def find_duplicate(self, folder: Path | None) -> Any:
        """Return an id that is listed twice, or None."""
        with _connect(folder) as engine:
            query = f"SELECT id FROM {self._nodes(engine)} GROUP BY id HAVING count(*) > 1 LIMIT 1"
            found = engine.execute(query).fetchone()
        return None if found is None else found[0]

    def _nodes(self, engine: Any) -> str:
        if isinstance(self.source, str):
            return f"read_parquet({_text(self.source)})"
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
    engine.execute(f"SET temp_directory = {_text(str((folder or Path(gettempdir())) / 'duckdb'))}")
    engine.execute("SET preserve_insertion_order = false")
    return engine


def _engine_source(engine: Any, parts: Sequence[Part], keys: Sequence[str], others: Sequence[str], kind: str) -> str:
    """Return the parts as a table for a query. DuckDB reads local Parquet files itself, which is twice as fast."""
    import pyarrow as pa

    files = [part.local_file for part in parts]
    if all(files) and not others:
        return f"read_parquet([{', '.join(_text(str(file)) for file in files)}])"
    types = dict.fromkeys(keys, id_type(kind))
    columns = [*dict.fromkeys((*keys, *others))]

    def batches() -> "Iterator[pa.RecordBatch]":
        for part in parts:
            yield from part.read(columns, types)

    stream = batches()
    first = next(stream, None)
    if first is None:
        schema = pa.schema([(name, types.get(name, pa.int64())) for name in columns])
        reader = pa.RecordBatchReader.from_batches(schema, [])
    else:
        reader = pa.RecordBatchReader.from_batches(first.schema, _prepend(first, stream))
    engine.register("stream", reader)
    return "stream"


def _prepend(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    for batch in rest:
        yield batch.cast(first.schema) if batch.schema != first.schema else batch


def _checked(reader: Any, parts: Sequence[Part]) -> Iterator[Any]:
    import duckdb
    import pyarrow as pa

    try:
        yield from reader
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        names = parts[0].name if len(parts) == 1 else f"one of {len(parts)} parts from {parts[0].name} on"
        raise PartError(f"Expected to join the ids in {names}, but got: {str(error).splitlines()[0]}") from error


def _engine_type(kind: str) -> str:
    return "BIGINT" if kind == "integer" else "VARCHAR"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def find_row(part: Part, keys: Sequence[str], kind: str, wanted: set[Any]) -> tuple[int, str] | None:
    """Return the first row of a part with one of the wanted ids, and the id."""
    import pyarrow as pa
    from pyarrow import compute

    row, values = getattr(part, "first_row", 0), pa.array(list(wanted), id_type(kind))
    for batch in part.read(keys, dict.fromkeys(keys, id_type(kind))):
        found = [(position, key) for key in keys if (position := _first(batch, key, kind, part, row, values)) >= 0]
        if found:
            position, key = min(found)
            del compute
            return row + position, str(batch.column(key)[position])
        row += batch.num_rows
    return None


def _first(batch: Any, key: str, kind: str, part: Part, row: int, values: Any) -> int:
    from pyarrow import compute

    return int(compute.is_in(read_ids(batch, key, kind, part, row), value_set=values).index(True).as_py())


def check_kinds(parts: Sequence[Part], columns: Sequence[str], kind: str) -> None:
    """Raise `PartError` if a part has no such column, or ids of another kind than the predictions."""
    from pyarrow import types

    for part in parts:
        for column in columns:
            found = id_kind(part, column)
            is_text_file = part.name.lower().endswith((".csv", ".tsv"))
            has_no_kind = found != kind and types.is_null(part.schema().field(column).type)  # such as only a header
            if found != kind and not (is_text_file and kind == "text") and not has_no_kind:
                raise PartError(
                    f"Expected {kind} ids in column {column} of {part.name}, as in the predictions, but got {found}. "
                    "Convert them, so that ids are written alike everywhere."
                )
