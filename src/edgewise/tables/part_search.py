"""The parts of a table: files of a path, a folder, a glob or a URL, and those of datasets of pyarrow and Ray."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.files.arrays import one_line_message
from edgewise.tables.parts import FilePart, FragmentPart, MemoryPart, Part, PartError, name_part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

TableLike = Any  # a path, glob or URL, a list of them, a pyarrow dataset or table, or a Ray Dataset

SUFFIXES = (".parquet", ".csv", ".tsv")
FOOTER_THREADS = 16  # that read the footers of Parquet files, which is waiting more than work


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
    with name_part(_split_query(place)[0]):
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
        if not file.is_parquet:
            return [file]
        with name_part(file.name):
            if file.num_bytes == 0:
                raise PartError(f"Expected a Parquet file, but {file.name} is empty. Write it again.")
            with file.open_parquet() as opened:
                metadata = opened.metadata
            rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        limit = max_rows or max(metadata.num_rows, 1)
        return [*file.split(metadata.num_row_groups, rows, limit)]

    with ThreadPoolExecutor(FOOTER_THREADS) as threads:
        return [part for parts in threads.map(describe, files) for part in parts]
