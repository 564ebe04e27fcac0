"""Probabilities, labels, edges and masks from files: .npy, .npz, .csv or .parquet."""

import csv
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.lib import format as npy
from numpy.typing import NDArray

Array = NDArray[np.generic]

MAP_FROM = 64 << 20  # bytes; from here on an .npy file is looked at where it lies instead of being read
CSV_BLOCK = 16 << 20  # bytes; a line must fit in a block, and a joint of many classes makes a long line


class FileProblem(ValueError):
    """A file that cannot be read as what it should be; the message names it and a way out."""


# --- what the arrays mean ---


def read_probs(path: Path) -> Array:
    """Read probabilities (nodes, classes)."""
    probs = read_array(path)
    if probs.ndim != 2:
        raise FileProblem(f"Expected {path} to hold probabilities (nodes, classes), but got shape {probs.shape}.")
    return _as_probs(probs, path)


def read_edge_probs(path: Path) -> Array:
    """Read joints (edges, classes, classes), or (edges, classes²) with each joint written row by row."""
    joints = _as_probs(read_array(path), path)
    if joints.ndim == 3:
        return joints
    classes = math.isqrt(joints.shape[1]) if joints.ndim == 2 else 0
    if joints.ndim != 2 or classes**2 != joints.shape[1]:
        raise FileProblem(
            f"Expected {path} to hold joints (edges, classes, classes), or as many columns as classes squared, "
            f"but got shape {joints.shape}."
        )
    return joints.reshape(len(joints), classes, classes)


def read_labels(path: Path) -> Int[np.ndarray, " nodes"]:
    """Read one label a node."""
    labels = _one_column(read_array(path), path, "one label a node")
    _check_integers(labels, path, "labels", "A class is written 0, 1, 2, …, an unknown label -1.")
    return labels


def read_edges(path: Path) -> Int[np.ndarray, "2 edges"]:
    """Read edges (2, edges); a table has two columns, and an array (edges, 2) is turned unless it is (2, 2)."""
    edges = read_array(path)
    if edges.ndim != 2 or 2 not in edges.shape or (_is_table(path) and edges.shape[1] != 2):
        raise FileProblem(f"Expected {path} to hold edges as two columns or (2, edges), but got shape {edges.shape}.")
    _check_integers(edges, path, "nodes", "Nodes are counted from 0; save them with .astype(int).")
    return edges.T if _is_table(path) or edges.shape[0] != 2 else edges


def read_mask(path: Path) -> Bool[np.ndarray, " nodes"]:
    """Read which nodes are chosen: one boolean, or 0 or 1, a node."""
    mask = _one_column(read_array(path), path, "one boolean a node")
    if mask.dtype.kind == "b":
        return mask
    way_out = "For a list of nodes save a mask: mask = np.zeros(num_nodes, bool); mask[nodes] = True."
    _check_integers(mask, path, "booleans, or 0 and 1,", way_out)
    other = np.flatnonzero((mask != 0) & (mask != 1))
    if len(other):
        i = int(other[0])
        raise FileProblem(
            f"Expected {path} to hold booleans, or 0 and 1, one a node, but row {i} holds {mask[i]}. {way_out}"
        )
    return mask.astype(np.bool_)


def _as_probs(array: Array, path: Path) -> Array:
    """Let 1 mean 1.0 in text, which has no types, and lay a table out row by row, the order it is used in."""
    if _ending(path) == ".csv" and array.dtype.kind in "iu":
        return array.astype(np.float64, order="C")
    return np.ascontiguousarray(array) if _is_table(path) else array


def _one_column(array: Array, path: Path, meaning: str) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise FileProblem(f"Expected {path} to hold one column, {meaning}, but got shape {array.shape}.")
    return array


def _check_integers(array: Array, path: Path, meaning: str, way_out: str) -> None:
    if array.dtype.kind not in "iu":
        nan = "with NaN " if array.dtype.kind == "f" and np.isnan(array).any() else ""
        raise FileProblem(
            f"Expected {path} to hold {meaning} as integers, but got numbers {nan}of type {array.dtype}. {way_out}"
        )


# --- any array ---


def read_array(path: Path) -> Array:
    """Read numbers by the ending of the file; ``file.npz:name`` picks one array of several.

    A table gives (rows, columns), or (rows,) if it has one column. Whatever is wrong is a FileProblem.
    """
    file, ending = _file(path), _ending(path)
    if ending not in _READERS:
        raise FileProblem(f"Expected a file that ends in {', '.join(_READERS)}, but got {path}.")
    try:
        _check_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header written by Python 2 is as good as any
            return _READERS[ending](path)
    except FileProblem:
        raise
    except MemoryError as error:
        raise FileProblem(f"Expected {path} to fit in memory, but it does not. A large .npy file need not.") from error
    except Exception as error:  # a damaged file raises anything: BadZipFile, EOFError, zlib.error, ArrowInvalid, …
        if isinstance(error, OSError) and error.errno:
            raise FileProblem(f"Expected {path} to be readable, but got: {error.strerror}.") from error
        raise FileProblem(
            f"Expected {path} to be a sound {ending} file of numbers, but got: {_in_one_line(error)}. Save it again."
        ) from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise FileProblem(f"Expected a file, but {file} is a folder. Name a file in it.")
    if not file.exists():
        raise FileProblem(f"Expected a file, but {file} does not exist. Check the path.")
    if file.stat().st_size == 0:
        raise FileProblem(f"Expected numbers in {file}, but the file is empty. Save it again.")


def _file(path: Path) -> Path:
    return Path(re.sub(r"(\.npz):.*", r"\1", str(path), flags=re.IGNORECASE | re.DOTALL))


def _ending(path: Path) -> str:
    return _file(path).suffix.lower()


def _is_table(path: Path) -> bool:
    return _ending(path) in (".csv", ".parquet")


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


def _check_dtype(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.hasobject:
        raise FileProblem(
            f"Expected numbers in {path}, but got pickled Python objects, which are never loaded. "
            "Save a plain numeric array, such as np.asarray(values, dtype=float)."
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise FileProblem(f"Expected numbers of 64 bits at most in {path}, but got an array of dtype {dtype}.")


# --- .npy and .npz ---


def _read_npy(path: Path) -> Array:
    num_bytes = path.stat().st_size
    with path.open("rb") as stream:
        _check_header(stream, num_bytes, path)
        if num_bytes < MAP_FROM:
            return _read_stream(stream)
    # Copy on write: torch wants an array it may write into, and the file must never change.
    array: Array = npy.open_memmap(path, mode="c")
    return array


def _read_npz(path: Path) -> Array:
    with zipfile.ZipFile(_file(path)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        name = _chosen_name(path, names)
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as stream:
            _check_header(stream, member.file_size, path)
            return _read_stream(stream)


def _chosen_name(path: Path, names: list[str]) -> str:
    name = str(path).removeprefix(str(_file(path))).removeprefix(":")
    if name in names:
        return name
    if name:
        raise FileProblem(f"Expected an array {name!r} in {_file(path)}, but it holds {', '.join(names) or 'none'}.")
    if len(names) != 1:
        raise FileProblem(
            f"Expected one array in {path}, but it holds {', '.join(names) or 'none'}. Pick one: {path}:NAME."
        )
    return names[0]


def _check_header(stream: IO[bytes], num_bytes: int, path: Path) -> None:
    """Compare what the header promises with what is there, before memory is taken on its word."""
    read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    _check_dtype(dtype, path)
    promised, held = math.prod(shape) * dtype.itemsize, num_bytes - stream.tell()
    if promised != held:
        raise FileProblem(
            f"Expected {promised} bytes of numbers in {path}, but got {held}: it is cut off or damaged. Save it again."
        )


def _read_stream(stream: IO[bytes]) -> Array:
    stream.seek(0)
    array: Array = npy.read_array(stream, allow_pickle=False)
    return array


# --- .csv and .parquet ---


def _read_csv(path: Path) -> Array:
    import pyarrow

    first, second = _first_lines(path)
    header = _is_header(first, second, path)
    if header and not second:
        return np.empty((0, len(first)), np.int64)
    names = [f"{k}" for k in range(1, len(first) + 1)]
    try:
        table = _parse_csv(path, names, header, use_threads=True)
    except pyarrow.ArrowInvalid:
        # Either a column begins with many whole numbers and goes on with fractions, which double will do for; or there
        # is something wrong, and a single thread can tell in which line.
        types = dict.fromkeys(names, pyarrow.float64())
        table = _parse_csv(path, names, header, use_threads=False, column_types=types)
    return _from_table(table, path)


def _parse_csv(path: Path, names: list[str], header: bool, use_threads: bool, column_types: Any = None) -> Any:
    from pyarrow import csv as arrow

    reading = arrow.ReadOptions(
        column_names=names, skip_rows=int(header), block_size=CSV_BLOCK, use_threads=use_threads
    )
    # Only an empty cell is missing: "nan" is a number, and "NA" is text.
    converting = arrow.ConvertOptions(null_values=[""], column_types=column_types)
    return arrow.read_csv(path, read_options=reading, convert_options=converting)


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """Give the cells of the first two lines."""
    with path.open("rb") as stream:
        lines = [stream.readline(CSV_BLOCK).decode("utf-8-sig", "replace").strip("\r\n") for _ in range(2)]
    if not lines[0].strip():
        raise FileProblem(f"Expected names or numbers in the first line of {path}, but it is empty.")
    first, second = (next(csv.reader([line.replace("\0", "\ufffd")]), []) for line in lines)
    return first, second


def _is_header(first: list[str], second: list[str], path: Path) -> bool:
    """Tell names from numbers; 0,1,2,… above fractions are names too, those that pandas gives."""
    if not first[0].strip():
        raise FileProblem(
            f"Expected a name or a number first in {path}, but got an empty cell. Fill it in; or, above row numbers, "
            "save the table without them (pandas: index=False)."
        )
    names = [cell for cell in first if not _is_number(cell)]
    if names and len(names) < len(first):
        # A header, or a row with a slip in it: whoever guesses loses a row in silence.
        raise FileProblem(
            f"Expected either names or numbers in the first line of {path}, but got both, such as {names[0][:40]!r}. "
            "Correct it, or name every column."
        )
    counted = first == [str(k) for k in range(len(first))]
    return bool(names) or (counted and any(not re.fullmatch(r"\s*[+-]?\d*\s*", cell) for cell in second))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in ("", "true", "false")
    return True


def _read_parquet(path: Path) -> Array:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, memory_map=True) as file:
        return _from_table(file.read(), path)


def _from_table(table: Any, path: Path) -> Array:
    """Turn a table of Arrow into an array (rows, columns), laid out column by column."""
    if table.num_columns == 0:
        raise FileProblem(f"Expected a column of numbers in {path}, but it has no columns.")
    types = [_number_type(column, name, path) for name, column in zip(table.column_names, table.columns, strict=True)]
    if table.num_columns == 1:
        parts = list(_chunks(table.column(0), table.column_names[0], path))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    columns = np.empty((table.num_columns, table.num_rows), np.result_type(*types))
    for row, name, column in zip(columns, table.column_names, table.columns, strict=True):
        start = 0
        for part in _chunks(column, name, path):
            if part.ndim != 1:
                raise FileProblem(f"Expected one column in {path}, as it holds lists, but got {len(types)} columns.")
            row[start : start + len(part)] = part
            start += len(part)
    return columns.T


def _number_type(column: Any, name: str, path: Path) -> np.dtype[Any]:
    from pyarrow import types

    inner = column.type
    while _is_list(inner):
        inner = inner.value_type
    if types.is_null(inner):
        _check_complete(column, name, path)
        return np.dtype(np.int64)
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        raise FileProblem(f"Expected numbers in {path}, but column {name} holds {_example(column)}. Leave it out.")
    number_type: np.dtype[Any] = np.dtype(inner.to_pandas_dtype())
    return number_type


def _chunks(column: Any, name: str, path: Path) -> Iterator[Array]:
    """Give a column in the pieces it lies in; lists of equal length become further axes."""
    filled = [chunk for chunk in column.chunks if len(chunk)]
    for chunk in filled or [column.combine_chunks()]:
        _check_complete(chunk, name, path)
        shape, values = [len(chunk)], chunk
        while _is_list(values.type):
            shape.append(_common_length(values, name, path))
            values = values.flatten()
            _check_complete(values, name, path)
        yield values.to_numpy(zero_copy_only=False).reshape(shape)


def _is_list(arrow_type: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type))


def _common_length(lists: Any, name: str, path: Path) -> int:
    from pyarrow import compute

    least, most = compute.min_max(compute.list_value_length(lists)).as_py().values()
    if least != most:
        raise FileProblem(
            f"Expected lists of one length in column {name} of {path}, but got lengths from {least} to {most}."
        )
    return int(most or 0)


def _check_complete(values: Any, name: str, path: Path) -> None:
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise FileProblem(
            f"Expected a number in every cell of {path}, but column {name} is empty in row {row} (counted from 0). "
            "An unknown label is written -1."
        )


def _example(column: Any) -> str:
    """Show the first cell that is no number; there is one in any column of text."""
    cells = (cell.as_py() for cell in column)
    text = next((cell for cell in cells if isinstance(cell, str) and cell and not _is_number(cell)), None)
    return f"{column.type} values" if text is None else f"text such as {text[:40]!r}"


_READERS: dict[str, Callable[[Path], Array]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
