"""Readers for the input files of commands: probabilities, labels, edges, masks, ids and class names."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from edgewise.files.arrays import Array, FileError, one_line_message, read_npy, read_npz, strip_array_name
from edgewise.files.tables import check_utf8, read_csv, read_parquet


def read_probs(path: Path) -> Array:
    """Read probabilities (nodes, classes)."""
    return read_rows(path, "probabilities (nodes, classes)")


def read_rows(path: Path, meaning: str) -> Array:
    """Read an array of two dimensions, one row per node. ``meaning`` describes it in messages."""
    rows = read_array(path)
    if rows.ndim != 2:
        raise FileError(f"Expected {path} to hold {meaning}, but got shape {rows.shape}.")
    return _as_floats(rows, path)


def read_edge_probs(path: Path) -> Array:
    """Read joints (edges, classes, classes), or (edges, classes²) with each joint flattened in row-major order."""
    joints = _as_floats(read_array(path), path)
    if joints.ndim == 3:
        return joints
    classes = math.isqrt(joints.shape[1]) if joints.ndim == 2 else 0
    if joints.ndim != 2 or classes**2 != joints.shape[1]:
        raise FileError(
            f"Expected {path} to hold joints (edges, classes, classes) or (edges, classes²), but got shape "
            f"{joints.shape}."
        )
    return joints.reshape(len(joints), classes, classes)


def read_labels(path: Path) -> Int[np.ndarray, " nodes"]:
    """Read labels, one per node."""
    labels = _as_column(read_array(path), path, "one label per node")
    _check_integers(labels, path, "labels", "Write classes as 0, 1, 2, … and an unknown label as -1.")
    return labels


def read_edges(path: Path) -> Int[np.ndarray, "2 edges"]:
    """Read edges (2, edges). A table has two columns. An array (edges, 2) is transposed, unless it is (2, 2)."""
    edges = read_array(path)
    if edges.ndim != 2 or 2 not in edges.shape or (is_table(path) and edges.shape[1] != 2):
        expected = "two columns, the end nodes" if is_table(path) else "(2, edges)"
        raise FileError(
            f"Expected {path} to hold edges as {expected}, but got shape {edges.shape}. Remove weights and ids."
        )
    _check_integers(edges, path, "nodes", "Number nodes from 0 and save them with .astype(int).")
    return edges.T if is_table(path) or edges.shape[0] != 2 else edges


def read_mask(path: Path) -> Bool[np.ndarray, " nodes"]:
    """Read a mask, one boolean (or 0 or 1) per node."""
    mask = _as_column(read_array(path), path, "one boolean per node")
    if mask.dtype.kind == "b":
        return mask
    hint = "Convert a list of nodes to a mask: mask = np.zeros(num_nodes, bool); mask[nodes] = True."
    _check_integers(mask, path, "booleans, or 0 and 1,", hint)
    other = np.flatnonzero((mask != 0) & (mask != 1))
    if len(other):
        i = int(other[0])
        raise FileError(
            f"Expected {path} to hold booleans, or 0 and 1, one per node, but row {i} holds {mask[i]}. {hint}"
        )
    return mask.astype(np.bool_)


def _as_floats(array: Array, path: Path) -> Array:
    """Convert integers of a .csv file to float64, because text has no types, and a table to row-major order."""
    if suffix_of(path) == ".csv" and array.dtype.kind in "iu":
        return array.astype(np.float64, order="C")
    return np.ascontiguousarray(array) if is_table(path) else array


def _as_column(array: Array, path: Path, meaning: str) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise FileError(f"Expected {path} to hold one column, {meaning}, but got shape {array.shape}.")
    return array


def _check_integers(array: Array, path: Path, meaning: str, hint: str) -> None:
    if array.dtype.kind not in "iu":
        nan = "with NaN " if array.dtype.kind == "f" and np.isnan(array).any() else ""
        raise FileError(
            f"Expected {path} to hold {meaning} as integers, but got numbers {nan}of type {array.dtype}. {hint}"
        )


READERS: dict[str, Callable[[Path], Array]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_array(path: Path) -> Array:
    """Read numbers from a file, by its suffix. ``file.npz:name`` selects one array of an archive.

    A table returns (rows, columns), or (rows,) if it has one column. All failures raise FileError.
    """
    suffix = suffix_of(path)
    if suffix not in READERS:
        raise FileError(
            f"Expected a file that ends in {', '.join(READERS)}, but got {path}. Save a tensor with "
            "np.save('FILE.npy', tensor.numpy())."
        )
    with convert_read_errors(path, f"a valid {suffix} file of numbers"):
        return READERS[suffix](path)


@contextmanager
def convert_read_errors(path: Path, expected: str) -> Iterator[None]:
    """Check that a file exists, and convert exceptions raised while it is read to FileError."""
    try:
        _check_file(strip_array_name(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2 are valid
            yield
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(
            f"Expected {path} to fit in memory, but it does not. Save it as .npy, which is memory-mapped."
        ) from error
    except Exception as error:  # damaged files raise BadZipFile, EOFError, zlib.error, ArrowInvalid, …
        if isinstance(error, OSError) and error.errno:
            raise FileError(f"Expected {path} to be readable, but got: {error.strerror}.") from error
        raise FileError(
            f"Expected {path} to be {expected}, but got: {one_line_message(error)}. Save it again."
        ) from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise FileError(f"Expected a file, but {file} is a folder. Pass a file in it.")
    if not file.exists():
        raise FileError(f"Expected a file, but {file} does not exist. Check the path.")
    if not file.is_file():
        raise FileError(f"Expected a file, but {file} is a pipe or a device. Save its content as a file.")
    if file.stat().st_size == 0:
        raise FileError(f"Expected numbers in {file}, but the file is empty. Save it again.")


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, such as ".npz"."""
    return strip_array_name(path).suffix.lower()


def is_table(path: Path) -> bool:
    """Return whether a file is a table (.csv or .parquet)."""
    return suffix_of(path) in (".csv", ".parquet")


NAME_SUFFIXES = (".csv", ".txt", ".parquet", ".npy")


def read_names(path: Path, count: int, thing: str) -> NDArray[Any]:
    """Read ``count`` names, one per line. Names are converted if all are integers. One extra line is a header."""
    columns = _read_columns(path)
    if len(columns) != 1:
        raise FileError(f"Expected {path} to hold one column, a name for each {thing}, but got {len(columns)}.")
    names = columns[0]
    blank = next((row for row, name in enumerate(names, 1) if not str(name).strip()), None)
    if blank is not None:
        raise FileError(
            f"Expected a name for each {thing} in {path}, but name {blank} is blank. Fill it in, or delete the line."
        )
    if len(names) == count + 1 and _is_text(names) and path.suffix.lower() in (".csv", ".txt"):
        names = names[1:]
    if len(names) != count:
        raise FileError(f"Expected {path} to hold {count} names, one for each {thing}, but got {len(names)}.")
    return _to_integers(names) if _is_text(names) and all(map(_is_integer, names)) else names


def read_id_pairs(path: Path, ids: NDArray[Any]) -> NDArray[Any]:
    """Read two columns of ids. A first line of text in which neither cell is an id is a header."""
    columns = _read_columns(path)
    if len(columns) != 2:
        raise FileError(f"Expected {path} to hold two columns of ids, but got {len(columns)}.")
    if all(map(_is_text, columns)) and len(columns[0]):
        valid_ids = {str(name) for name in ids.tolist()}
        if not any(column[0] in valid_ids for column in columns):
            columns = [column[1:] for column in columns]
    pairs = np.stack(columns)
    if _is_text(pairs) and not _is_text(ids):
        invalid = next((name for name in pairs.flat if not _is_integer(name)), None)
        if invalid is not None:
            raise FileError(f"Expected {path} to hold ids such as {ids[0]}, but it holds {invalid[:40]!r}.")
        return _to_integers(pairs)
    return pairs


def _is_text(names: NDArray[Any]) -> bool:
    return names.dtype.kind not in "iu"


def _is_integer(name: str) -> bool:
    """Return whether text is a canonical integer: 7 is, but 007 and 7.0 are not."""
    return len(name) < 19 and name.removeprefix("-").isdecimal() and str(int(name)) == name


def _to_integers(names: NDArray[Any]) -> NDArray[np.int64]:
    return np.array([int(name) for name in names.flat], np.int64).reshape(names.shape)


def _read_columns(path: Path) -> list[NDArray[Any]]:
    suffix = path.suffix.lower()
    if suffix not in NAME_SUFFIXES:
        raise FileError(f"Expected names in a file that ends in {', '.join(NAME_SUFFIXES)}, but got {path}.")
    with convert_read_errors(path, f"a valid {suffix} file of names"):
        if suffix in (".csv", ".txt"):
            check_utf8(path)
        if suffix == ".txt":
            return [np.array(path.read_text(encoding="utf-8-sig").splitlines(), dtype=object)]
        if suffix == ".npy":
            return _array_columns(read_npy(path, _check_names), path)
        return _table_columns(path)


def _check_names(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.kind not in "iuU":
        raise FileError(f"Expected names in {path}, text or integers, but got an array of dtype {dtype}.")


def _array_columns(array: NDArray[Any], path: Path) -> list[NDArray[Any]]:
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[0] != 2):
        raise FileError(f"Expected names (names,) or pairs (2, pairs) in {path}, but got shape {array.shape}.")
    if array.dtype.kind == "U":
        array = array.astype(object)
        "".join(array.flat).encode()  # raise now if there are lone surrogates, which cannot be written
    return [array] if array.ndim == 1 else list(array)


def _table_columns(path: Path) -> list[NDArray[Any]]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix.lower() == ".parquet":
        table = parquet.read_table(path)
    else:
        text = {f"f{k}": pa.string() for k in range(2)}
        table = csv.read_csv(
            path,
            csv.ReadOptions(autogenerate_column_names=True),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types=text),
        )
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_name = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
        if column.null_count or not (is_name or pa.types.is_large_string(column.type)):
            content = "empty cells" if column.null_count else str(column.type)
            raise FileError(f"Expected names in {path}, text or integers, but column {name} holds {content}.")
    return [column.to_numpy() for column in table.columns]
