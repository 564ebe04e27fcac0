"""Parts of tables: files, row groups, tables in memory, and fragments of datasets, which are read in batches.

A `Part` is read in bounded memory, and can be sent to another process. Its name is printed in messages, and has no
secrets: access keys of an object store come from the environment.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from edgewise.files.arrays import one_line_message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

ROWS_PER_BATCH = 1 << 20
CSV_BLOCK_BYTES = 16 << 20
MAX_HEADER_BYTES = 1 << 16
DELIMITERS = ",\t;|"
READ_AHEAD = 2  # batches that are read while others are processed
CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"

Batch = TypeVar("Batch")
Result = TypeVar("Result")


class PartError(ValueError):
    """Raised for the content of a part. The message names the part, and the row if there is one."""


@dataclass(frozen=True)
class Part:
    """A file of a table, some row groups of a Parquet file, or a table in memory.

    Attributes
    ----------
    name
        Where the part is, for messages.
    num_bytes
        Size of the file, or of the table in memory.
    num_rows
        Number of rows, or None if only reading the part can tell.
    version
        Time of the last change, so that a changed file is not taken for the one that was read before.
    first_row
        Number of the first row in the file, for messages.
    """

    name: str
    num_bytes: int
    num_rows: int | None = None
    version: str = ""
    first_row: int = field(default=0, kw_only=True)

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns."""
        raise NotImplementedError

    def read(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches of at most ``num_rows``, by default `ROWS_PER_BATCH`, in the order of the rows.

        ``types`` are those of columns of a text file, whose batches depend on the bytes of a row instead.
        """
        raise NotImplementedError

    def read_numbered(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Yield the batches of `read`, each with the number of its first row in the file."""
        row = self.first_row
        for batch in self.read(columns, types, num_rows):
            yield row, batch
            row += batch.num_rows

    @property
    def local_file(self) -> str | None:
        """The path of a whole local Parquet file, which other programs can read, or None."""
        return None

    @property
    def is_text_file(self) -> bool:
        """Whether the types of the columns are guessed."""
        return self.name.lower().endswith((".csv", ".tsv"))


@dataclass(frozen=True)
class FilePart(Part):
    """A file, on disk or in an object store, or some row groups of it."""

    path: str = ""
    filesystem: "fs.FileSystem | None" = None
    row_groups: tuple[int, int] | None = None  # the first one, and the one after the last one

    @property
    def is_parquet(self) -> bool:
        """Whether the file is read as Parquet."""
        return self.path.lower().endswith(".parquet")

    @property
    def local_file(self) -> str | None:
        """The path of a whole local Parquet file, or None."""
        from pyarrow import fs

        is_local = isinstance(self.filesystem, fs.LocalFileSystem) and self.is_parquet
        return self.path if is_local and self.row_groups is None else None

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns. The types of a CSV file are those of its first block."""
        with name_part(self.name):
            if self.is_parquet:
                with self.open_parquet() as file:
                    return file.schema_arrow
            with self._open_csv(None, None) as reader:
                schema, first = reader.schema, next(iter(reader), None)
            return schema if first is None else _text_unless_canonical(schema, self._first_block_as_text(schema))

    def read(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        import pyarrow as pa

        with name_part(self.name):
            if self.is_parquet:
                with self.open_parquet() as file:
                    _check_columns(columns, file.schema_arrow.names, self.name)
                    for groups in _groups_of_rows(file.metadata, self.row_groups):
                        yield from file.iter_batches(
                            num_rows or ROWS_PER_BATCH, row_groups=groups, columns=list(columns)
                        )
            else:
                integers = [name for name, type_ in (types or {}).items() if pa.types.is_integer(type_)]
                row = 0
                with self._open_csv(columns, {**(types or {}), **dict.fromkeys(integers, pa.string())}) as reader:
                    for batch in reader:
                        yield _parse_integers(batch, integers, self.name, row)
                        row += batch.num_rows

    def split(self, num_row_groups: int, rows: Sequence[int], max_rows: int) -> "list[FilePart]":
        """Split a Parquet file into parts of at least one row group, with at most ``max_rows`` rows if possible."""
        parts, first, count, before = list[FilePart](), 0, 0, 0
        for group in range(num_row_groups):
            if count and count + rows[group] > max_rows:
                parts.append(self._groups(first, group, count, before, num_row_groups))
                first, before, count = group, before + count, 0
            count += rows[group]
        return [*parts, self._groups(first, num_row_groups, count, before, num_row_groups)]

    def _groups(self, first: int, stop: int, count: int, before: int, total: int) -> "FilePart":
        groups = None if (first, stop) == (0, total) else (first, stop)
        num_bytes = self.num_bytes * (stop - first) // max(total, 1)
        return replace(self, num_bytes=num_bytes, num_rows=count, row_groups=groups, first_row=before)

    def open_parquet(self) -> Any:
        """Open the file with pyarrow."""
        from pyarrow.parquet import ParquetFile

        return ParquetFile(self.path, filesystem=self.filesystem, pre_buffer=True)

    def _first_block_as_text(self, schema: "pa.Schema") -> "pa.RecordBatch":
        import pyarrow as pa

        with self._open_csv(None, dict.fromkeys(schema.names, pa.string())) as reader:
            return next(iter(reader))

    @contextmanager
    def _open_csv(self, columns: Sequence[str] | None, types: "dict[str, pa.DataType] | None") -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import csv

        assert self.filesystem is not None
        with self.filesystem.open_input_stream(self.path) as source:
            header = source.read(MAX_HEADER_BYTES).partition(b"\n")[0].decode(errors="replace")
        source = self.filesystem.open_input_stream(self.path)
        convert = csv.ConvertOptions(
            include_columns=columns, column_types=types, null_values=[""], strings_can_be_null=True
        )
        parse = csv.ParseOptions(delimiter=_find_delimiter(header))
        options = csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False)
        with source:
            if not header.strip():
                raise pa.ArrowInvalid("the first row is empty, instead of the names of the columns")
            if re.match(r"-?[0-9]+(\D|$)", header):
                raise pa.ArrowInvalid("the first row has numbers, instead of the names of the columns")
            yield csv.open_csv(source, options, parse, convert)


def _find_delimiter(header: str) -> str:
    """Return the first delimiter that the header of a text file has.

    >>> _find_delimiter("nid;pred")
    ';'
    """
    return next((char for char in DELIMITERS if char in header), DELIMITERS[0])


def _groups_of_rows(metadata: Any, row_groups: tuple[int, int] | None) -> Iterator[list[int]]:
    """Yield consecutive row groups with about one batch of rows, which pyarrow holds in memory at a time."""
    group, count = list[int](), 0
    for k in range(*(row_groups or (0, metadata.num_row_groups))):
        group.append(k)
        count += metadata.row_group(k).num_rows
        if count >= ROWS_PER_BATCH:
            yield group
            group, count = [], 0
    if group:
        yield group


def _text_unless_canonical(schema: "pa.Schema", block: "pa.RecordBatch") -> "pa.Schema":
    """Return the schema of a CSV file, where integers such as 007, which are not the number 7, are text."""
    import pyarrow as pa
    from pyarrow import compute

    for k, column in enumerate(schema):
        if pa.types.is_integer(column.type):
            cells = block.column(k).drop_null()
            if not compute.all(compute.match_substring_regex(cells, CANONICAL_INTEGER)).as_py():
                schema = schema.set(k, column.with_type(pa.string()))
    return schema


def _check_columns(wanted: Sequence[str], names: Sequence[str], part: str) -> None:
    if twice := [name for name in wanted if list(names).count(name) > 1]:
        raise PartError(f"Expected one column {twice[0]} in {part}, but it has several. Rename the others.")
    if missing := [name for name in wanted if name not in names]:
        raise PartError(
            f"Expected a column {missing[0]} in {part}, as in the first part, but it has {', '.join(names)}. Write the "
            "part again."
        )


def _parse_integers(batch: "pa.RecordBatch", columns: Sequence[str], part: str, first_row: int) -> "pa.RecordBatch":
    """Convert columns of text to integers. 007 is none, as it is not the same id as 7."""
    import pyarrow as pa
    from pyarrow import compute

    for name in columns:
        text = batch.column(name)
        wrong = compute.invert(compute.match_substring_regex(text, CANONICAL_INTEGER))
        if (row := wrong.index(True).as_py()) >= 0:
            raise PartError(
                f"Expected integer ids in column {name} of {part}, as in the predictions, but row {first_row + row} "
                f"has {text[row].as_py()!r}. Write ids alike everywhere: save the predictions with ids as text, too."
            )
        batch = batch.set_column(batch.schema.get_field_index(name), name, text.cast(pa.int64()))
    return batch


@dataclass(frozen=True)
class MemoryPart(Part):
    """A table in memory, or a block of a Ray Dataset in the object store of Ray."""

    block: Any = None

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns."""
        return self._table().schema

    def read(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        with name_part(self.name):
            table = self._table()
            _check_columns(columns, table.schema.names, self.name)
            yield from table.select(list(columns)).to_batches(max_chunksize=num_rows or ROWS_PER_BATCH)

    def _table(self) -> "pa.Table":
        if type(self.block).__name__ != "ObjectRef":
            return self.block
        import ray

        return ray.get(self.block)


@dataclass(frozen=True)
class FragmentPart(Part):
    """A fragment of a pyarrow dataset, with the columns of its schema."""

    fragment: Any = None
    dataset_schema: Any = None

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns."""
        return self.dataset_schema

    def read(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        with name_part(self.name):
            yield from self.fragment.to_batches(
                columns=list(columns),
                schema=self.dataset_schema,
                batch_size=num_rows or ROWS_PER_BATCH,
                batch_readahead=READ_AHEAD,
            )


@contextmanager
def name_part(name: str) -> Iterator[None]:
    """Raise `PartError` with the name of the part for the errors of pyarrow, and of a file system."""
    import pyarrow as pa

    try:
        yield
    except PartError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = re.sub(r"(?i)(secret|token|key)\S*=\S+", r"\1=…", one_line_message(error))
        raise PartError(
            f"Expected to read {name}, but got: {reason.rstrip('.')}. Check the part, and run again."
        ) from error


def total_rows(parts: Sequence[Part]) -> int | None:
    """Return the number of rows of all parts, or None if it is unknown."""
    counts = [part.num_rows for part in parts]
    return None if None in counts else sum(count or 0 for count in counts)


# --- reading ahead ---


def read_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same batches, which another thread reads while this one works."""
    queue: Queue[tuple[str, Any]] = Queue(READ_AHEAD)
    stopped = False

    def read() -> None:
        try:
            for batch in batches:
                queue.put(("batch", batch))
                if stopped:
                    return
            queue.put(("end", None))
        except BaseException as error:  # raised again where the batches are used
            queue.put(("error", error))

    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        while (message := queue.get())[0] == "batch":
            yield message[1]
        if message[0] == "error":
            raise message[1]
    finally:
        stopped = True
        while thread.is_alive():  # it may wait for room in the queue
            while not queue.empty():
                queue.get_nowait()
            thread.join(0.01)


def map_batches(function: Callable[[Batch], Result], batches: Iterator[Batch], num_threads: int) -> Iterator[Result]:
    """Yield the result of each batch, in order. Several threads work on batches, one of which waits for them."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads) as threads:
        try:
            for batch in batches:
                waiting.append(threads.submit(function, batch))
                del batch
                if len(waiting) > num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
