"""Tables of one or many parts: files of a folder, a glob or a URL, datasets of pyarrow, and datasets of Ray.

A `Part` is read in batches, in bounded memory, and can be sent to another process. Its name is printed in messages, and
has no secrets: access keys of an object store come from the environment.
"""

import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from edgewise.files.arrays import one_line_message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

TableLike = Any  # a path, glob or URL, a list of them, a pyarrow dataset or table, or a Ray Dataset

SUFFIXES = (".parquet", ".csv", ".tsv")
ROWS_PER_BATCH = 1 << 20
CSV_BLOCK_BYTES = 16 << 20
MAX_HEADER_BYTES = 1 << 16
DELIMITERS = ",\t;|"
FOOTER_THREADS = 16  # that read the footers of Parquet files, which is waiting more than work
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
    """

    name: str
    num_bytes: int
    num_rows: int | None = None
    version: str = ""

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns."""
        raise NotImplementedError

    def read(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches of at most ``num_rows``, in the order of the rows.

        ``types`` are those of columns of a text file, whose batches depend on the bytes of a row instead.
        """
        raise NotImplementedError

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
    first_row: int = 0  # of the row groups, in the file

    @property
    def local_file(self) -> str | None:
        """The path of a whole local Parquet file, or None."""
        from pyarrow import fs

        is_local = isinstance(self.filesystem, fs.LocalFileSystem) and self.path.lower().endswith(".parquet")
        return self.path if is_local and self.row_groups is None else None

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns. The types of a CSV file are those of its first block."""
        with _name_part(self.name):
            if self.path.lower().endswith(".parquet"):
                with self._open_parquet() as file:
                    return file.schema_arrow
            with self._open_csv(None, None) as reader:
                schema, first = reader.schema, next(iter(reader), None)
            return schema if first is None else _text_unless_canonical(schema, self._first_block_as_text(schema))

    def read(
        self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None, num_rows: int | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        import pyarrow as pa

        with _name_part(self.name):
            if self.path.lower().endswith(".parquet"):
                with self._open_parquet() as file:
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
        whole = (first, stop) == (0, total)
        num_bytes = self.num_bytes * (stop - first) // max(total, 1)
        groups = None if whole else (first, stop)
        return FilePart(self.name, num_bytes, count, self.version, self.path, self.filesystem, groups, before)

    def _open_parquet(self) -> Any:
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

    for k, field in enumerate(schema):
        if pa.types.is_integer(field.type):
            cells = block.column(k).drop_null()
            if not compute.all(compute.match_substring_regex(cells, CANONICAL_INTEGER)).as_py():
                schema = schema.set(k, field.with_type(pa.string()))
    return schema


def _check_columns(wanted: Sequence[str], names: Sequence[str], part: str) -> None:
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
        with _name_part(self.name):
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
        with _name_part(self.name):
            yield from self.fragment.to_batches(
                columns=list(columns),
                schema=self.dataset_schema,
                batch_size=num_rows or ROWS_PER_BATCH,
                batch_readahead=READ_AHEAD,
            )


@contextmanager
def _name_part(name: str) -> Iterator[None]:
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


# --- finding the parts of a table ---


def find_parts(source: TableLike, name: str, max_rows: int | None = None) -> list[Part]:
    """Return the parts of a table. ``name`` is that of the argument; Parquet files are split after ``max_rows`` rows.

    A folder has the parts of its folders too, but it must not have tables in several of them: then it holds several
    tables, such as one for each type of nodes.
    """
    import pyarrow as pa
    from pyarrow import dataset

    if isinstance(source, pa.Table | pa.RecordBatch):
        table = pa.table(source)
        return [MemoryPart(name, table.nbytes, table.num_rows, block=table)]
    if isinstance(source, dataset.Dataset):
        parts = [
            _fragment_part(fragment, f"{name} part {k}", source.schema)
            for k, fragment in enumerate(source.get_fragments())
        ]
        return _nonempty(parts, name, "the dataset")
    if hasattr(source, "to_arrow_refs"):  # a Ray Dataset
        return _nonempty(list(_ray_parts(source, name)), name, "the Ray Dataset")
    sources = [source] if isinstance(source, str | Path) else source
    if not isinstance(sources, Sequence) or not all(isinstance(path, str | Path) for path in sources):
        raise ValueError(
            f"Expected {name} as a path, a glob, a URL, a list of them, a pyarrow dataset or a Ray Dataset, but got "
            f"{type(source).__name__}. Save it as Parquet, or use ew.evaluate for arrays."
        )
    files = [file for path in sources for file in _find_files(str(path), name)]
    return _read_footers(files, name, max_rows)


def fragment_path(fragment: Any, *suffixes: str) -> str | None:
    """Return the path of a fragment of a dataset of files, or None for another one, or with another suffix."""
    path = getattr(fragment, "path", None)
    return path if path and (not suffixes or path.lower().endswith(suffixes)) else None


def _fragment_part(fragment: Any, name: str, schema: "pa.Schema") -> Part:
    path = fragment_path(fragment)
    if path is None:
        return FragmentPart(name, 0, None, fragment=fragment, dataset_schema=schema)
    num_rows = fragment.count_rows() if fragment_path(fragment, ".parquet", ".feather") else None
    info = fragment.filesystem.get_file_info(path)
    version = str(info.mtime_ns or "")
    return FragmentPart(path, info.size or 0, num_rows, version, fragment=fragment, dataset_schema=schema)


def _nonempty(parts: list[Part], name: str, where: str) -> list[Part]:
    if not parts:
        raise ValueError(f"Expected tables for {name}, but {where} has none. Check it.")
    return parts


def _ray_parts(source: Any, name: str) -> Iterator[Part]:
    for k, block in enumerate(source.to_arrow_refs()):
        yield MemoryPart(f"{name} block {k}", 0, None, block=block)


def is_url(path: str) -> bool:
    """Return whether a path names a file system, such as s3://bucket/folder."""
    return re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]+://", path) is not None


def has_wildcard(path: str) -> bool:
    """Return whether a path is a glob. A local file with such a name is no glob."""
    return any(char in path for char in "*?[") and (is_url(path) or not Path(path).exists())


def _split_query(place: str) -> tuple[str, str]:
    """Split the query, such as region=us-east-1, from a URL. A question mark without a name is a wildcard.

    >>> _split_query("s3://bucket/part-?.csv?region=us-east-1&scheme=http")
    ('s3://bucket/part-?.csv', 'region=us-east-1&scheme=http')
    """
    match = re.search(r"\?(\w+=.*)$", place) if is_url(place) else None
    return (place, "") if match is None else (place[: match.start()], match[1])


def _find_files(place: str, name: str) -> list[FilePart]:
    """Return the files of one path, folder, glob or URL, without splitting or counting."""
    from pyarrow import fs

    _check_no_secrets(place, name)
    if is_url(place):
        base, query = _split_query(place)
        root = _without_glob(base)
        try:
            filesystem, path = fs.FileSystem.from_uri(root + (f"?{query}" if query else ""))
        except (ValueError, OSError, NotImplementedError) as error:
            raise ValueError(
                f"Expected {name} as a path or a URL such as s3://bucket/folder, gs://… or file://…, but got {base}: "
                f"{one_line_message(error)}."
            ) from error
        path, prefix = path.rstrip("/") + base[len(root) :], f"{base.partition('://')[0]}://"
    else:
        filesystem, path, prefix = fs.LocalFileSystem(), str(Path(place).expanduser()), ""
    with _name_part(_split_query(place)[0]):
        if has_wildcard(path if is_url(place) else place):
            found = _glob(filesystem, path)
        else:
            info = filesystem.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                raise PartError(f"Expected {name} at {_split_query(place)[0]}, but there is nothing. Check the path.")
            found = [info]
            if info.type == fs.FileType.Directory:
                found = _files_below(filesystem, path, name)
    parts = [
        FilePart(f"{prefix}{info.path}", info.size or 0, None, str(info.mtime_ns or ""), info.path, filesystem)
        for info in sorted(found, key=lambda info: info.path)
        if info.type == fs.FileType.File
    ]
    if not parts:
        raise ValueError(
            f"Expected files that end in {', '.join(SUFFIXES)} for {name} in {_split_query(place)[0]}, but there are "
            "none. Check the path."
        )
    if wrong := next((part for part in parts if not part.path.lower().endswith(SUFFIXES)), None):
        raise ValueError(
            f"Expected files that end in {', '.join(SUFFIXES)} for {name}, but got {wrong.name}. Save it as Parquet."
        )
    return parts


def _check_no_secrets(place: str, name: str) -> None:
    """Raise ValueError for access keys in a URL, without repeating them."""
    rest = place.partition("://")[2] if is_url(place) else ""
    names = re.findall(r"[?&]([^=&]*(?:key|secret|token|password)[^=&]*)=", place.lower()) if rest else []
    user = rest.partition("/")[0].rpartition("@")[0]
    if user not in ("", "anonymous") or names:
        raise ValueError(
            f"Expected {name} as a URL without access keys, which others could see, but got some. Set them in the "
            "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and omit them in the URL."
        )


def _without_glob(url: str) -> str:
    """Return the part of a path or URL before the folder or file with the first wildcard."""
    match = re.search(r"[*?\[]", url) if has_wildcard(url) else None
    return url if match is None else url[: match.start()].rpartition("/")[0]


def _glob(filesystem: "fs.FileSystem", pattern: str) -> list[Any]:
    """Return the files that match a pattern, in which * does not match a slash and ** does."""
    from pyarrow import fs

    folder = _without_glob(pattern)
    selector = fs.FileSelector(
        folder or ("/" if pattern.startswith("/") else "."), recursive=True, allow_not_found=True
    )
    files = [info for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]
    matching = re.compile(_glob_expression(pattern.removeprefix("./")))
    return [
        info
        for info in files
        if matching.fullmatch(info.path.removeprefix("./")) and not _is_hidden(info.path, folder or ".")
    ]


def _glob_expression(pattern: str) -> str:
    r"""Return the regular expression of a glob.

    >>> _glob_expression("a/**/[!b]*.csv")
    'a/(?:.*/)?[^b][^/]*\\.csv'
    """
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^/\]]+\])", pattern)
    sets = (piece.replace("[!", "[^") if piece.startswith("[") and len(piece) > 2 else None for piece in pieces)
    return "".join(wildcards.get(piece) or found or re.escape(piece) for piece, found in zip(pieces, sets, strict=True))


def _files_below(filesystem: "fs.FileSystem", folder: str, name: str) -> list[Any]:
    """Return the tables below a folder, which must all be in one folder, or in folders such as day=1 of one table."""
    from pyarrow import fs

    infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    tables = [
        info
        for info in infos
        if info.type == fs.FileType.File and info.path.lower().endswith(SUFFIXES) and not _is_hidden(info.path, folder)
    ]
    folders = sorted({_without_keys(posixpath.relpath(posixpath.dirname(info.path), folder)) for info in tables})
    if len(folders) > 1:
        names, suffix = ", ".join(folders[:5]), posixpath.splitext(tables[-1].path)[1]
        raise PartError(
            f"Expected the parts of one table for {name} in {folder}, but it has folders with tables: {names}. Pass "
            f"one of them, or a glob, such as {posixpath.join(folder, folders[-1], '**', f'*{suffix}')}."
        )
    return tables


def _without_keys(folder: str) -> str:
    """Return a path without the folders of a partitioned table, such as day=1."""
    return "/".join(name for name in folder.split("/") if "=" not in name) or "."


def _is_hidden(path: str, folder: str) -> bool:
    """Return whether a file, or a folder below ``folder``, starts with a dot or an underscore, like _SUCCESS."""
    return any(part.startswith((".", "_")) for part in path.removeprefix(folder).strip("/").split("/"))


def _read_footers(files: list[FilePart], name: str, max_rows: int | None) -> list[Part]:
    """Return the files with their numbers of rows, split after ``max_rows`` rows."""

    def describe(file: FilePart) -> list[Part]:
        if not file.path.lower().endswith(".parquet"):
            return [file]
        with _name_part(file.name):
            if file.num_bytes == 0:
                raise PartError(f"Expected a Parquet file, but {file.name} is empty. Write it again.")
            with file._open_parquet() as opened:
                metadata = opened.metadata
            rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        limit = max_rows or max(metadata.num_rows, 1)
        return [*file.split(metadata.num_row_groups, rows, limit)]

    with ThreadPoolExecutor(FOOTER_THREADS) as threads:
        return [part for parts in threads.map(describe, files) for part in parts]


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


def check_recognizable(tables: Mapping[str, Sequence[Part]]) -> None:
    """Raise ValueError if parts have no version, so that a later run could not tell whether they changed."""
    for name, parts in tables.items():
        if any(not part.version for part in parts):
            raise ValueError(
                f"Expected {name} in files, as results in work (--work) are kept for a later run, which could not tell "
                "whether a table in memory is the same. Save it as Parquet, or omit work."
            )


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


def total_rows(parts: Sequence[Part]) -> int | None:
    """Return the number of rows of all parts, or None if it is unknown."""
    counts = [part.num_rows for part in parts]
    return None if None in counts else sum(count or 0 for count in counts)
