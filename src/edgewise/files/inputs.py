"""What commands read: probabilities, labels, edges and masks from files of numbers; ids and names from text."""

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
    """Read some numbers a node."""
    rows = read_array(path)
    if rows.ndim != 2:
        raise FileError(f"Expected {path} to hold {meaning}, but got shape {rows.shape}.")
    return _as_numbers(rows, path)


def read_edge_probs(path: Path) -> Array:
    """Read joints (edges, classes, classes), or (edges, classes²) with each joint written row by row."""
    joints = _as_numbers(read_array(path), path)
    if joints.ndim == 3:
        return joints
    classes = math.isqrt(joints.shape[1]) if joints.ndim == 2 else 0
    if joints.ndim != 2 or classes**2 != joints.shape[1]:
        raise FileError(
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
    if edges.ndim != 2 or 2 not in edges.shape or (is_table(path) and edges.shape[1] != 2):
        expected = "two columns, the ends of an edge" if is_table(path) else "(2, edges)"
        raise FileError(
            f"Expected {path} to hold edges as {expected}, but got shape {edges.shape}. Leave weights and ids out."
        )
    _check_integers(edges, path, "nodes", "Nodes are counted from 0; save them with .astype(int).")
    return edges.T if is_table(path) or edges.shape[0] != 2 else edges


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
        raise FileError(
            f"Expected {path} to hold booleans, or 0 and 1, one a node, but row {i} holds {mask[i]}. {way_out}"
        )
    return mask.astype(np.bool_)


def _as_numbers(array: Array, path: Path) -> Array:
    """Let 1 mean 1.0 in text, which has no types, and lay a table out row by row, the order it is used in."""
    if ending_of(path) == ".csv" and array.dtype.kind in "iu":
        return array.astype(np.float64, order="C")
    return np.ascontiguousarray(array) if is_table(path) else array


def _one_column(array: Array, path: Path, meaning: str) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise FileError(f"Expected {path} to hold one column, {meaning}, but got shape {array.shape}.")
    return array


def _check_integers(array: Array, path: Path, meaning: str, way_out: str) -> None:
    if array.dtype.kind not in "iu":
        nan = "with NaN " if array.dtype.kind == "f" and np.isnan(array).any() else ""
        raise FileError(
            f"Expected {path} to hold {meaning} as integers, but got numbers {nan}of type {array.dtype}. {way_out}"
        )


READERS: dict[str, Callable[[Path], Array]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_array(path: Path) -> Array:
    """Read numbers by the ending of the file; ``file.npz:name`` picks one array of several.

    A table gives (rows, columns), or (rows,) if it has one column. Whatever is wrong is a FileError.
    """
    ending = ending_of(path)
    if ending not in READERS:
        raise FileError(
            f"Expected a file that ends in {', '.join(READERS)}, but got {path}. Of a tensor make one by "
            "np.save('FILE.npy', tensor.numpy())."
        )
    with convert_read_errors(path, f"a sound {ending} file of numbers"):
        return READERS[ending](path)


@contextmanager
def convert_read_errors(path: Path, what: str) -> Iterator[None]:
    """Refuse what is no file, and make a FileError of all that is raised while it is read as ``what``."""
    try:
        _check_file(strip_array_name(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header written by Python 2 is as good as any
            yield
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(f"Expected {path} to fit in memory, but it does not. A large .npy file need not.") from error
    except Exception as error:  # a damaged file raises anything: BadZipFile, EOFError, zlib.error, ArrowInvalid, …
        if isinstance(error, OSError) and error.errno:
            raise FileError(f"Expected {path} to be readable, but got: {error.strerror}.") from error
        raise FileError(f"Expected {path} to be {what}, but got: {one_line_message(error)}. Save it again.") from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise FileError(f"Expected a file, but {file} is a folder. Name a file in it.")
    if not file.exists():
        raise FileError(f"Expected a file, but {file} does not exist. Check the path.")
    if not file.is_file():
        raise FileError(f"Expected a file, but {file} is a pipe or a device. Save what comes from it as a file.")
    if file.stat().st_size == 0:
        raise FileError(f"Expected numbers in {file}, but the file is empty. Save it again.")


def ending_of(path: Path) -> str:
    """Give the ending of a file, in lower case."""
    return strip_array_name(path).suffix.lower()


def is_table(path: Path) -> bool:
    """Tell a file that has columns from one that has axes."""
    return ending_of(path) in (".csv", ".parquet")


NAME_ENDINGS = (".csv", ".txt", ".parquet", ".npy")


def read_names(path: Path, count: int, thing: str) -> NDArray[Any]:
    """Read a name for each thing, one a line: text, or whole numbers where all are. One line more is a header."""
    columns = _read_columns(path)
    if len(columns) != 1:
        raise FileError(f"Expected {path} to hold one column, a name for each {thing}, but got {len(columns)}.")
    names = columns[0]
    blank = next((place for place, name in enumerate(names, 1) if not str(name).strip()), None)
    if blank is not None:
        raise FileError(
            f"Expected a name for each {thing} in {path}, but name {blank} is blank. Fill it in, or leave it out."
        )
    if len(names) == count + 1 and _is_text(names) and path.suffix.lower() in (".csv", ".txt"):
        names = names[1:]
    if len(names) != count:
        raise FileError(f"Expected {path} to hold {count} names, one for each {thing}, but got {len(names)}.")
    return _whole_numbers(names) if _is_text(names) and all(map(_is_whole_number, names)) else names


def read_id_pairs(path: Path, ids: NDArray[Any]) -> NDArray[Any]:
    """Read two columns of ids; a first line of text in which neither is an id is a header."""
    columns = _read_columns(path)
    if len(columns) != 2:
        raise FileError(f"Expected {path} to hold two columns, the ids of pairs, but got {len(columns)}.")
    if all(map(_is_text, columns)) and len(columns[0]):
        known = {str(name) for name in ids.tolist()}
        if not any(column[0] in known for column in columns):
            columns = [column[1:] for column in columns]
    pairs = np.stack(columns)
    if _is_text(pairs) and not _is_text(ids):
        stranger = next((name for name in pairs.flat if not _is_whole_number(name)), None)
        if stranger is not None:
            raise FileError(f"Expected {path} to hold ids such as {ids[0]}, but it holds {stranger[:40]!r}.")
        return _whole_numbers(pairs)
    return pairs


def _is_text(names: NDArray[Any]) -> bool:
    return names.dtype.kind not in "iu"


def _is_whole_number(name: str) -> bool:
    """Tell 7 from 007 and 7.0, which are names that only look like numbers."""
    return len(name) < 19 and name.removeprefix("-").isdecimal() and str(int(name)) == name


def _whole_numbers(names: NDArray[Any]) -> NDArray[np.int64]:
    return np.array([int(name) for name in names.flat], np.int64).reshape(names.shape)


def _read_columns(path: Path) -> list[NDArray[Any]]:
    ending = path.suffix.lower()
    if ending not in NAME_ENDINGS:
        raise FileError(f"Expected names in a file that ends in {', '.join(NAME_ENDINGS)}, but got {path}.")
    with convert_read_errors(path, f"a sound {ending} file of names"):
        if ending in (".csv", ".txt"):
            check_utf8(path)
        if ending == ".txt":
            return [np.array(path.read_text(encoding="utf-8-sig").splitlines(), dtype=object)]
        if ending == ".npy":
            return _columns_of_array(read_npy(path, _check_names), path)
        return _columns_of_table(path)


def _check_names(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.kind not in "iuU":
        raise FileError(f"Expected names in {path}, text or whole numbers, but got an array of dtype {dtype}.")


def _columns_of_array(array: NDArray[Any], path: Path) -> list[NDArray[Any]]:
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[0] != 2):
        raise FileError(f"Expected names (names,) or pairs (2, pairs) in {path}, but got shape {array.shape}.")
    if array.dtype.kind == "U":
        array = array.astype(object)
        "".join(array.flat).encode()  # halves of characters could not be written
    return [array] if array.ndim == 1 else list(array)


def _columns_of_table(path: Path) -> list[NDArray[Any]]:
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
            what = "empty cells" if column.null_count else str(column.type)
            raise FileError(f"Expected names in {path}, text or whole numbers, but column {name} holds {what}.")
    return [column.to_numpy() for column in table.columns]
