"""Readers for the input files of commands: probabilities, labels, edges, masks, ids and class names.

Labels may be names of classes if the names of all classes are passed, and nodes may be ids if the ids of all nodes are
passed. Numbers are then still accepted as columns and rows of the probabilities, if the names are text.
"""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from edgewise.files.arrays import (
    Array,
    FileError,
    TextError,
    one_line_message,
    read_npy,
    read_npz,
    strip_array_name,
)
from edgewise.files.tables import check_utf8, column_names, is_table, read_table, read_text_columns
from edgewise.files.tensors import load_pt, read_pt
from edgewise.suggestions import did_you_mean

# Numbers

TABLE_HINT = "Separate columns by commas, write classes and nodes as 0, 1, 2, …, and remove other columns."
ROWS_HINT = "Remove columns that are not numbers, such as ids."
CLASSES_HINT = "For names of classes pass --classes FILE, with the names in the order of the columns of probabilities."
IDS_HINT = "For ids of nodes pass --ids FILE, with the ids in the order of the rows of probabilities."
LABELS_MEANING = "one label per node (for one-hot labels save y.argmax(1))"
MASK_HINT = "Convert a list of nodes to a mask: mask = np.zeros(num_nodes, bool); mask[nodes] = True."
MASK_TEXT_HINT = (
    "For a list of ids pass --ids FILE. Convert a column such as train, test, … with np.asarray(column) == 'test'."
)


def read_probs(path: Path) -> Array:
    """Read probabilities, of any shape."""
    return _as_floats(read_array(path, ROWS_HINT), path)


def read_rows(path: Path, meaning: str) -> Array:
    """Read an array of two dimensions, one row per node. ``meaning`` describes it in messages."""
    rows = read_array(path, ROWS_HINT)
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


def read_labels(path: Path, classes: "Names | None" = None, num_nodes: int = 0) -> Int[np.ndarray, " nodes"]:
    """Read labels, one per node: column numbers, or names of ``classes``. An empty cell of a table is -1."""
    if classes is not None:
        return _read_class_names(path, classes, num_nodes)
    hint = f"{CLASSES_HINT} Remove other columns, such as ids."
    labels = _as_column(read_array(path, hint, missing=-1), path, LABELS_MEANING)
    if is_table(path) and labels.dtype.kind == "f":
        labels = np.nan_to_num(labels, nan=-1)
    return _as_integers(
        labels,
        path,
        "labels",
        "Write classes as 0, 1, 2, … and an unknown label as -1, and save them with .astype(int).",
    )


def read_edges(path: Path, ids: "Names | None" = None) -> Int[np.ndarray, "2 edges"]:
    """Read edges (2, edges): row numbers, or ``ids``, which are converted to row numbers.

    A table has two columns. An array (edges, 2) is transposed, unless it is (2, 2).
    """
    edges = read_array(path, IDS_HINT) if ids is None else _read_cells(path)
    if edges.ndim != 2 or 2 not in edges.shape or (is_table(path) and edges.shape[1] != 2):
        expected = "two columns, the end nodes" if is_table(path) else "(2, edges)"
        is_square = edges.ndim == 2 and edges.shape[0] == edges.shape[1]
        hint = "For an adjacency save np.argwhere(adjacency).T." if is_square else "Remove others, such as weights."
        raise FileError(f"Expected {path} to hold edges as {expected}, but got shape {edges.shape}. {hint}")
    edges = edges.T if is_table(path) or edges.shape[0] != 2 else edges
    if ids is not None:
        return _find_nodes(edges, path, ids)
    return _as_integers(edges, path, "nodes", "Number nodes from 0 and save them with .astype(int).")


def read_mask(path: Path, ids: "Names | None" = None) -> Bool[np.ndarray, " nodes"]:
    """Read a mask: one boolean (or 0 or 1) per node, or a list of ``ids``."""
    try:
        mask = _as_column(read_array(path, MASK_TEXT_HINT), path, "one boolean per node")
        other = np.flatnonzero((mask != 0) & (mask != 1))
        if len(other):
            row = int(other[0])
            raise FileError(
                f"Expected {path} to hold booleans, or 0 and 1, one per node, but row {row} holds {mask[row]}. "
                f"{MASK_HINT}"
            )
    except FileError:
        if ids is None:
            raise
    else:
        if ids is None or len(mask) == len(ids.values) or _is_text(ids.values):
            return mask.astype(np.bool_)
    return _read_listed_nodes(path, ids)


def _as_floats(array: Array, path: Path) -> Array:
    """Convert integers of a text file to float64, because text has no types, and a table to row-major order."""
    if suffix_of(path) in (".csv", ".tsv") and array.dtype.kind in "iu":
        return array.astype(np.float64, order="C")
    return np.ascontiguousarray(array) if is_table(path) else array


def _as_column(array: NDArray[Any], path: Path, meaning: str) -> NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise FileError(f"Expected {path} to hold one column, {meaning}, but got shape {array.shape}.")
    return array


MAX_EXACT_FLOAT = 2**53  # larger integers are not exact in float64


def _as_integers(array: NDArray[Any], path: Path, meaning: str, hint: str) -> NDArray[Any]:
    """Check for integers. Whole floats of a table are converted: pandas writes 3 as 3.0 if a column has empty cells."""
    if array.dtype.kind in "iu":
        return array
    fractions = np.ones(0)
    if is_table(path) and array.dtype.kind == "f":
        fractions = array[~((array == np.floor(array)) & (np.abs(array) < MAX_EXACT_FLOAT))]
        if len(fractions) == 0:
            return array.astype(np.int64)
    got = f"but got {fractions[0]}" if len(fractions) else f"but got numbers of type {array.dtype}"
    if array.dtype.kind == "f" and np.isnan(array).any():
        got = f"but got numbers with NaN of type {array.dtype}"
    raise FileError(f"Expected {path} to hold {meaning} as integers, {got}. {hint}")


READERS: dict[str, Callable[[Path], Array]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".pt": read_pt,
    ".pth": read_pt,
    ".csv": read_table,
    ".tsv": read_table,
    ".parquet": read_table,
}
SUFFIXES = ", ".join(suffix for suffix in READERS if suffix != ".pth")


def read_array(path: Path, text_hint: str = TABLE_HINT, missing: int | None = None) -> Array:
    """Read numbers from a file, by its suffix. ``file.npz:name`` selects one array of an archive, likewise for .pt.

    A table returns (rows, columns), or (rows,) if it has one column. Its empty cells get the number ``missing``, if
    any. All failures raise FileError. ``text_hint`` ends the message if the file holds text.
    """
    suffix = suffix_of(path)
    if suffix not in READERS:
        hint = "Save an array with np.save('FILE.npy', array), or a tensor with torch.save(tensor, 'FILE.pt')."
        if suffix == ".txt":
            hint = f"Rename it to .csv if commas separate columns, or to .tsv if tabs do. {text_hint}"
        raise FileError(f"Expected a file that ends in {SUFFIXES}, but got {path}. {hint}")
    with convert_read_errors(path, f"a valid {suffix} file of numbers"):
        try:
            return read_table(path, missing) if is_table(path) else READERS[suffix](path)
        except TextError as error:
            raise FileError(f"{error} {text_hint}") from error


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


# Names

NAME_SUFFIXES = (".csv", ".txt", ".tsv", ".parquet", ".npy", ".npz", ".pt")
WHOLE_NUMBER = r"^(0|-?[1-9]\d{0,17})\.0+$"  # pandas writes 3 as 3.0 beside empty cells


class Names(NamedTuple):
    """Names of all nodes or classes, in order, and the file that they are from. They are all integers or all text."""

    values: NDArray[Any]
    path: Path


def read_names(path: Path, count: int, thing: str) -> Names:
    """Read ``count`` names, one per line. Names are converted if all are integers. One extra line is a header."""
    names = _read_cells(path)
    if names.ndim != 1:
        raise FileError(f"Expected {path} to hold one column, a name for each {thing}, but got {names.shape[1]}.")
    if _is_text(names):
        blank = next((row for row, name in enumerate(names, 1) if not name), None)
        if blank is not None:
            raise FileError(
                f"Expected a name for each {thing} in {path}, but name {blank} is blank. Fill it in, or delete the "
                "line."
            )
        names = names[1:] if len(names) == count + 1 and _is_text_file(path) else names
    if len(names) != count:
        raise FileError(f"Expected {path} to hold {count} names, one for each {thing}, but got {len(names)}.")
    return _as_names(names, path, thing)


def read_header_names(path: Path, count: int) -> Names | None:
    """Read names of classes from the header of a table, or return None if it has none."""
    if not is_table(path):
        return None
    with convert_read_errors(path, "a valid table"):
        names = column_names(path)
    if names is None or len(set(names)) != count or len(names) != count:
        return None
    return None if names == [str(k) for k in range(count)] else _as_names(np.array(names, dtype=object), path, "class")


def _as_names(values: NDArray[Any], path: Path, thing: str) -> Names:
    """Check that names are unique, and convert them if all are integers."""
    whole = [re.sub(WHOLE_NUMBER, r"\1", name) for name in values] if _is_text(values) else []
    if whole and all(map(_is_integer, whole)):
        values = np.array([int(name) for name in whole], np.int64)
    if len(set(values.tolist())) < len(values):
        duplicate = next(name for name, times in Counter(values.tolist()).items() if times > 1)
        raise FileError(f"Expected a different name for each {thing} in {path}, but got {duplicate!r} twice.")
    return Names(values, path)


def _read_class_names(path: Path, classes: Names, num_nodes: int) -> NDArray[np.int64]:
    """Return the column of each label, and -1 if a cell is empty or -1."""
    cells = _as_column(_read_cells(path), path, LABELS_MEANING)
    found = _look_up(cells, classes.values)
    if not (found >= 0).any():
        with suppress(FileError):
            return read_labels(path)
    is_wrong = found < 0
    is_wrong[is_wrong] = [str(cell) not in ("", "-1") for cell in cells[is_wrong]]
    if _is_text_file(path) and len(cells) > num_nodes:
        start = int(is_wrong[0])  # a header
        stop = start + num_nodes if (found[start + num_nodes :] < 0).all() else len(cells)  # blank lines at the end
        cells, found, is_wrong = cells[start:stop], found[start:stop], is_wrong[start:stop]
    if is_wrong.any():
        node = int(np.flatnonzero(is_wrong)[0])
        names = [str(name) for name in classes.values.tolist()]
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise FileError(
            f"Expected labels in {path} out of {shown} ({classes.path}), or empty if unknown, but that of node {node} "
            f"is {str(cells[node])[:40]!r}.{did_you_mean(cells[node], names)} {CLASSES_HINT}"
        )
    return found


def _find_nodes(pairs: NDArray[Any], path: Path, ids: Names) -> NDArray[np.int64]:
    """Return the rows of pairs of ids. If none of them is an id, they are row numbers already."""
    found = _look_up(pairs, ids.values)
    if not (found >= 0).any():
        with suppress(FileError):
            return read_edges(path)
    if _is_text_file(path) and found.shape[1] and (found[:, 0] < 0).all():  # a header
        pairs, found = pairs[:, 1:], found[:, 1:]
    if (found < 0).any():
        side, row = np.argwhere(found < 0)[0]
        raise FileError(
            f"Expected pairs of ids in {path}, such as {ids.values[0]!r} ({ids.path}), but pair {row} has "
            f"{str(pairs[side, row])[:40]!r}. Add it to the ids, with a row of probabilities, or remove the pair."
        )
    return found


def _read_listed_nodes(path: Path, ids: Names) -> NDArray[np.bool_]:
    """Return a mask of the ids in a file."""
    cells = _as_column(_read_cells(path), path, "one id per line")
    if _is_text(cells) and not _is_text(ids.values) and len(cells) and not _is_integer(cells[0]):
        cells = cells[1:]  # a header
    found = _look_up(cells, ids.values)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        raise FileError(
            f"Expected ids in {path}, such as {ids.values[0]!r} ({ids.path}), or one boolean (or 0 or 1) per node, but "
            f"row {row} holds {str(cells[row])[:40]!r}. Remove it, also if it is a header."
        )
    mask = np.zeros(len(ids.values), np.bool_)
    mask[found] = True
    return mask


def _look_up(cells: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each cell among the names, and -1 if it is none of them. 3.0 is the integer 3."""
    import pyarrow as pa
    from pyarrow import compute

    if not _is_text(cells) and _is_text(names):
        return np.full(cells.shape, -1)
    flat, values = pa.array(cells.ravel()), pa.array(names)
    if cells.dtype.kind == names.dtype.kind != "O":
        flat, values = (
            column.cast(pa.int64() if names.dtype.kind == "i" else pa.uint64()) for column in (flat, values)
        )
    else:
        flat, values = flat.cast(pa.string()), values.cast(pa.string())
        if not _is_text(names):
            flat = compute.replace_substring_regex(flat, WHOLE_NUMBER, r"\1")
    found = compute.index_in(flat, value_set=values).fill_null(-1)
    positions: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return positions.reshape(cells.shape)


def _is_text(names: NDArray[Any]) -> bool:
    return names.dtype.kind not in "iu"


def _is_integer(name: str) -> bool:
    """Return whether text is a canonical integer: 7 is, but 007 is not."""
    return len(name) < 19 and name.removeprefix("-").isdecimal() and str(int(name)) == name


def _is_text_file(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv", ".txt")


def _read_cells(path: Path) -> NDArray[Any]:
    """Read text or integers: (rows,), (rows, columns) from a table, or an array as it was saved."""
    suffix = suffix_of(path)
    if suffix not in (*NAME_SUFFIXES, ".pth"):
        raise FileError(f"Expected names in a file that ends in {', '.join(NAME_SUFFIXES)}, but got {path}.")
    with convert_read_errors(path, f"a valid {suffix} file of names"):
        if suffix == ".txt":
            check_utf8(path)
            return np.array([line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()], dtype=object)
        if is_table(path):
            return _as_rows(read_text_columns(path))
        if suffix in (".npy", ".npz"):
            array: NDArray[Any] = {".npy": read_npy, ".npz": read_npz}[suffix](path, _check_names)
        else:
            content = load_pt(path)
            is_list = isinstance(content, list | tuple) and all(isinstance(name, str) for name in content)
            array = np.array(content) if is_list else read_pt(path)
            _check_names(array.dtype, path)
        if array.dtype.kind == "U":
            array = array.astype(object)
            "".join(array.flat).encode()  # raise now if there are lone surrogates, which cannot be written
        return array


def _as_rows(columns: list[NDArray[Any]]) -> NDArray[Any]:
    if len(columns) == 1:
        return columns[0]
    if any(map(_is_text, columns)):
        columns = [column if _is_text(column) else column.astype(str).astype(object) for column in columns]
    return np.stack(columns, axis=1)


def _check_names(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.kind not in "iuU":
        raise FileError(
            f"Expected names in {path}, text or integers, but got an array of dtype {dtype}. Save it with "
            f"{'.astype(int)' if dtype.kind == 'f' else '.astype(str)'}."
        )
