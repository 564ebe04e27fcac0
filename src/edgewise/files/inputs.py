"""Readers for the input files of commands: probabilities, labels, edges and masks.

Labels may be names of classes if the names of all classes are passed, and nodes may be ids if the ids of all nodes are
passed. If these names are words, a file without any of them holds numbers, of the columns and rows of the
probabilities. If a name is a number itself, every label or node must be a name.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from edgewise.files.arrays import Array, FileError, TextError, convert_read_errors, read_npy, read_npz, suffix_of
from edgewise.files.names import NameFile, is_integer, is_text, is_text_file, look_up, read_cells
from edgewise.files.tables import is_number, is_table_file, read_table
from edgewise.files.tensors import read_pt
from edgewise.suggestions import did_you_mean

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


def read_labels(path: Path, classes: NameFile | None = None, num_nodes: int = 0) -> Int[np.ndarray, " nodes"]:
    """Read labels, one per node: column numbers, or names of ``classes``. An empty cell of a table is -1."""
    if classes is not None:
        return _read_class_names(path, classes, num_nodes)
    hint = f"{CLASSES_HINT} Remove other columns, such as ids."
    labels = _as_column(read_array(path, hint, missing=-1), path, LABELS_MEANING)
    if is_table_file(path) and labels.dtype.kind == "f":
        labels = np.nan_to_num(labels, nan=-1)
    return _as_integers(
        labels,
        path,
        "labels",
        "Write classes as 0, 1, 2, … and an unknown label as -1, and save them with .astype(int).",
    )


def read_edges(path: Path, ids: NameFile | None = None) -> Int[np.ndarray, "2 edges"]:
    """Read edges (2, edges): row numbers, or ``ids``, which are converted to row numbers.

    A table has two columns. An array (edges, 2) is transposed, unless it is (2, 2).
    """
    edges = read_array(path, IDS_HINT) if ids is None else read_cells(path)
    if edges.ndim != 2 or 2 not in edges.shape or (is_table_file(path) and edges.shape[1] != 2):
        expected = "two columns, the end nodes" if is_table_file(path) else "(2, edges)"
        is_square = edges.ndim == 2 and edges.shape[0] == edges.shape[1]
        hint = "For an adjacency save np.argwhere(adjacency).T." if is_square else "Remove others, such as weights."
        raise FileError(f"Expected {path} to hold edges as {expected}, but got shape {edges.shape}. {hint}")
    edges = edges.T if is_table_file(path) or edges.shape[0] != 2 else edges
    if ids is not None:
        return _find_nodes(edges, path, ids)
    return _as_integers(edges, path, "nodes", "Number nodes from 0 and save them with .astype(int).")


def read_mask(path: Path, ids: NameFile | None = None) -> Bool[np.ndarray, " nodes"]:
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
        if ids is None or len(mask) == len(ids.values) or is_text(ids.values):
            return mask.astype(np.bool_)
    return _read_listed_nodes(path, ids)


def read_groups(path: Path, num_nodes: int) -> Array:
    """Read the group of each node: integers or text. An empty cell and -1 mean no group. An extra line is a header.

    If the last cell is empty and its line is not ended, a file with a header has as many lines as there are nodes. Then
    the first line is a header if it is the name of the file, or the only cell that is no integer.
    """
    cells = _as_column(read_cells(path), path, "one group per node")
    if is_text_file(path) and len(cells) == num_nodes + 1:
        cells = cells[1:]
    elif is_text_file(path) and is_text(cells) and len(cells) == num_nodes > 1:
        is_name = cells[0].lower() == path.stem.lower() and cells[0] not in cells[1:]
        if is_name or (not is_integer(cells[0] or "0") and all(is_integer(cell or "0") for cell in cells[1:])):
            cells = np.append(cells[1:], "")
    if is_text(cells) and all(is_integer(cell) or not cell for cell in cells):
        return np.array([int(cell) if cell else -1 for cell in cells], dtype=np.int64)
    return cells


def _as_floats(array: Array, path: Path) -> Array:
    """Convert integers of a text file to float64, because text has no types, and a table to row-major order."""
    if suffix_of(path) in (".csv", ".tsv") and array.dtype.kind in "iu":
        return array.astype(np.float64, order="C")
    return np.ascontiguousarray(array) if is_table_file(path) else array


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
    if is_table_file(path) and array.dtype.kind == "f":
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
            return read_table(path, missing) if is_table_file(path) else READERS[suffix](path)
        except TextError as error:
            raise FileError(f"{error} {text_hint}") from error


def _read_class_names(path: Path, classes: NameFile, num_nodes: int) -> NDArray[np.int64]:
    """Return the column of each label, and -1 if a cell is empty or -1."""
    cells = _as_column(read_cells(path), path, LABELS_MEANING)
    found = look_up(cells, classes.values)
    if not (found >= 0).any() and _are_words(classes.values):
        with suppress(FileError):
            return read_labels(path)
    is_wrong = found < 0
    is_wrong[is_wrong] = [str(cell) not in ("", "-1") for cell in cells[is_wrong]]
    if is_text_file(path) and len(cells) > num_nodes:
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


def _are_words(names: NDArray[Any]) -> bool:
    """Return whether no name is a number, so that numbers in a file cannot be meant as names."""
    return is_text(names) and not any(name.isdecimal() for name in names)


def _find_nodes(pairs: NDArray[Any], path: Path, ids: NameFile) -> NDArray[np.int64]:
    """Return the rows of pairs of ids. If ids are words, and none of them is in the file, it holds row numbers."""
    found = look_up(pairs, ids.values)
    has_ids = (found >= 0).any()
    if not has_ids and _are_words(ids.values):
        with suppress(FileError):
            return read_edges(path)
    if is_text_file(path) and found.shape[1] and (found[:, 0] < 0).all() and not any(map(is_number, pairs[:, 0])):
        pairs, found = pairs[:, 1:], found[:, 1:]  # without the header
    if (found < 0).any():
        side, row = np.argwhere(found < 0)[0]
        hint = "Add it to the ids, with a row of probabilities, or remove the pair."
        if not has_ids:
            hint = "If these are row numbers, save the ids of the rows: ids[edges]."
        raise FileError(
            f"Expected pairs of ids in {path}, such as {ids.values[0]!r} ({ids.path}), but pair {row} has "
            f"{str(pairs[side, row])[:40]!r}. {hint}"
        )
    return found


def _read_listed_nodes(path: Path, ids: NameFile) -> NDArray[np.bool_]:
    """Return a mask of the ids in a file."""
    cells = _as_column(read_cells(path), path, "one id per line")
    if is_text(cells) and not is_text(ids.values) and len(cells) and not is_integer(cells[0]):
        cells = cells[1:]  # a header
    found = look_up(cells, ids.values)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        raise FileError(
            f"Expected ids in {path}, such as {ids.values[0]!r} ({ids.path}), or one boolean (or 0 or 1) per node, but "
            f"row {row} holds {str(cells[row])[:40]!r}. Remove it, also if it is a header."
        )
    mask = np.zeros(len(ids.values), np.bool_)
    mask[found] = True
    return mask
