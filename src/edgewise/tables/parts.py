"""Tables of one or many parts: files of a folder, a glob or a URL, datasets of pyarrow, and datasets of Ray.

A `Part` is read in batches, in bounded memory, and can be sent to another process. Its name is printed in messages, and
has no secrets: access keys of an object store come from the environment.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from edgewise.files.arrays import one_line_message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

TableLike = Any  # a path, glob or URL, a list of them, a pyarrow dataset or table, or a Ray Dataset

SUFFIXES = (".parquet", ".csv", ".tsv")
ROWS_PER_BATCH = 1 << 21
CSV_BLOCK_BYTES = 16 << 20
FOOTER_THREADS = 16  # that read the footers of Parquet files, which is waiting more than work
READ_AHEAD = 2  # batches that are read while another one is processed
CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"

Batch = TypeVar("Batch")


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

    def read(self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches, in the order of the rows. ``types`` are those of columns of a text file."""
        raise NotImplementedError

    @property
    def local_file(self) -> str | None:
        """The path of a whole local Parquet file, which other programs can read, or None."""
        return None


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

    def read(self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        with _name_part(self.name):
            if self.path.lower().endswith(".parquet"):
                with self._open_parquet() as file:
                    for groups in _groups_of_rows(file.metadata, self.row_groups):
                        yield from file.iter_batches(ROWS_PER_BATCH, row_groups=groups, columns=list(columns))
            else:
                with self._open_csv(columns, types) as reader:
                    yield from reader

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
        from pyarrow import csv, fs

        assert self.filesystem is not None
        source = self.filesystem.open_input_stream(self.path)
        convert = csv.ConvertOptions(
            include_columns=columns, column_types=types, null_values=[""], strings_can_be_null=True
        )
        parse = csv.ParseOptions(delimiter="\t" if self.path.lower().endswith(".tsv") else ",")
        options = csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False)
        with source:
            if isinstance(self.filesystem, fs.LocalFileSystem) and self.num_bytes == 0:
                raise pa.ArrowInvalid("the file is empty")
            yield csv.open_csv(source, options, parse, convert)


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


@dataclass(frozen=True)
class MemoryPart(Part):
    """A table in memory, or a block of a Ray Dataset in the object store of Ray."""

    block: Any = None

    def schema(self) -> "pa.Schema":
        """Return the names and types of the columns."""
        return self._table().schema

    def read(self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        with _name_part(self.name):
            yield from self._table().select(list(columns)).to_batches(max_chunksize=ROWS_PER_BATCH)

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

    def read(self, columns: Sequence[str], types: "dict[str, pa.DataType] | None" = None) -> "Iterator[pa.RecordBatch]":
        """Yield the columns in batches."""
        with _name_part(self.name):
            yield from self.fragment.to_batches(
                columns=list(columns), schema=self.dataset_schema, batch_size=ROWS_PER_BATCH, batch_readahead=READ_AHEAD
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
        parts: list[Part] = [
            FragmentPart(
                f"{name} part {k}" if fragment_path(fragment) is None else str(fragment_path(fragment)),
                0,
                fragment.count_rows() if fragment_path(fragment, ".parquet", ".feather") else None,
                fragment=fragment,
                dataset_schema=source.schema,
            )
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


def _find_files(place: str, name: str) -> list[FilePart]:
    """Return the files of one path, folder, glob or URL, without splitting or counting."""
    from pyarrow import fs

    _check_no_secrets(place, name)
    if is_url(place):
        base, _, query = place.partition("?") if not has_wildcard(place) or "=" in place else (place, "", "")
        try:
            filesystem, path = fs.FileSystem.from_uri(_without_glob(base) + (f"?{query}" if query else ""))
        except (ValueError, OSError, NotImplementedError) as error:
            raise ValueError(
                f"Expected {name} as a path or a URL such as s3://bucket/folder, gs://… or file://…, but got {base}: "
                f"{one_line_message(error)}."
            ) from error
        prefix = (
            base[: len(_without_glob(base)) - len(path)] if base.startswith("file") else f"{base.split('://')[0]}://"
        )
        if has_wildcard(base):
            path = base.split("://", 1)[1] if not base.startswith("file") else urlsplit(base.replace("?", "%3F")).path
    else:
        filesystem, path, prefix = fs.LocalFileSystem(), str(Path(place).expanduser()), ""
    with _name_part(place.partition("?")[0] if is_url(place) and not has_wildcard(place) else place):
        if has_wildcard(path if is_url(place) else place):
            found = _glob(filesystem, path)
        else:
            info = filesystem.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                raise PartError(f"Expected {name} at {place.partition('?')[0]}, but there is nothing. Check the path.")
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
            f"Expected files that end in {', '.join(SUFFIXES)} for {name} in {place}, but there are none. Check the "
            "path."
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
    if "@" in rest.partition("/")[0] or names:
        raise ValueError(
            f"Expected {name} as a URL without access keys, which others could see, but got some. Set them in the "
            "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and omit them in the URL."
        )


def _without_glob(url: str) -> str:
    """Return the part of a URL before the folder or file with the first wildcard."""
    match = re.search(r"[*?\[]", url)
    return url if match is None else url[: match.start()].rpartition("/")[0]


def _glob(filesystem: "fs.FileSystem", pattern: str) -> list[Any]:
    """Return the files that match a pattern, in which * does not match a slash and ** does."""
    from pyarrow import fs

    folder = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    selector = fs.FileSelector(
        folder or ("/" if pattern.startswith("/") else "."), recursive=True, allow_not_found=True
    )
    depth = None if "**" in pattern else pattern.count("/")
    matches = [
        info
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
        and (depth is None or info.path.count("/") == depth)
        and fnmatch.fnmatchcase(info.path, pattern.replace("**/", "*"))
    ]
    return [info for info in matches if not _is_hidden(info.path, folder)]


def _files_below(filesystem: "fs.FileSystem", folder: str, name: str) -> list[Any]:
    """Return the tables below a folder, which must all be in one folder, or in folders such as day=1 of one table."""
    from pyarrow import fs

    infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
    tables = [
        info
        for info in infos
        if info.type == fs.FileType.File and info.path.lower().endswith(SUFFIXES) and not _is_hidden(info.path, folder)
    ]
    folders = sorted({posixpath.dirname(info.path) for info in tables if "=" not in posixpath.dirname(info.path)})
    if len(folders) > 1:
        names = ", ".join(posixpath.relpath(path, folder) for path in folders[:5])
        glob = posixpath.join(folders[-1], f"*{posixpath.splitext(tables[-1].path)[1]}")
        raise ValueError(
            f"Expected the parts of one table for {name} in {folder}, but it has folders with tables: {names}. Pass "
            f"one of them, or a glob, such as {glob}."
        )
    return tables


def _is_hidden(path: str, folder: str) -> bool:
    """Return whether a file, or a folder below ``folder``, starts with a dot or an underscore, like _SUCCESS."""
    return any(part.startswith((".", "_")) for part in path.removeprefix(folder).strip("/").split("/"))


def _read_footers(files: list[FilePart], name: str, max_rows: int | None) -> list[Part]:
    """Return the files with their numbers of rows, split after ``max_rows`` rows."""
    from pyarrow import fs

    def describe(file: FilePart) -> list[Part]:
        if not file.path.lower().endswith(".parquet"):
            return [file]
        with _name_part(file.name):
            if file.num_bytes == 0 and isinstance(file.filesystem, fs.LocalFileSystem):
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


def total_rows(parts: Sequence[Part]) -> int | None:
    """Return the number of rows of all parts, or None if it is unknown."""
    counts = [part.num_rows for part in parts]
    return None if None in counts else sum(count or 0 for count in counts)
