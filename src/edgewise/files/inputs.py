"""Probabilities, labels, edges and masks from files: .npy, .npz, .csv or .parquet."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from edgewise.files.arrays import Array, FileProblem, archive_of, in_one_line, read_npy, read_npz
from edgewise.files.tables import read_csv, read_parquet


def read_probs(path: Path) -> Array:
    """Read probabilities (nodes, classes)."""
    return read_rows(path, "probabilities (nodes, classes)")


def read_rows(path: Path, meaning: str) -> Array:
    """Read some numbers a node."""
    rows = read_array(path)
    if rows.ndim != 2:
        raise FileProblem(f"Expected {path} to hold {meaning}, but got shape {rows.shape}.")
    return _as_numbers(rows, path)


def read_edge_probs(path: Path) -> Array:
    """Read joints (edges, classes, classes), or (edges, classes²) with each joint written row by row."""
    joints = _as_numbers(read_array(path), path)
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
    if edges.ndim != 2 or 2 not in edges.shape or (is_table(path) and edges.shape[1] != 2):
        expected = "two columns, the ends of an edge" if is_table(path) else "(2, edges)"
        raise FileProblem(
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
        raise FileProblem(
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
        raise FileProblem(f"Expected {path} to hold one column, {meaning}, but got shape {array.shape}.")
    return array


def _check_integers(array: Array, path: Path, meaning: str, way_out: str) -> None:
    if array.dtype.kind not in "iu":
        nan = "with NaN " if array.dtype.kind == "f" and np.isnan(array).any() else ""
        raise FileProblem(
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

    A table gives (rows, columns), or (rows,) if it has one column. Whatever is wrong is a FileProblem.
    """
    ending = ending_of(path)
    if ending not in READERS:
        raise FileProblem(
            f"Expected a file that ends in {', '.join(READERS)}, but got {path}. Of a tensor make one by "
            "np.save('FILE.npy', tensor.numpy())."
        )
    with refusals(path, f"a sound {ending} file of numbers"):
        return READERS[ending](path)


@contextmanager
def refusals(path: Path, what: str) -> Iterator[None]:
    """Refuse what is no file, and make a FileProblem of all that is raised while it is read as ``what``."""
    try:
        _check_file(archive_of(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header written by Python 2 is as good as any
            yield
    except FileProblem:
        raise
    except MemoryError as error:
        raise FileProblem(f"Expected {path} to fit in memory, but it does not. A large .npy file need not.") from error
    except Exception as error:  # a damaged file raises anything: BadZipFile, EOFError, zlib.error, ArrowInvalid, …
        if isinstance(error, OSError) and error.errno:
            raise FileProblem(f"Expected {path} to be readable, but got: {error.strerror}.") from error
        raise FileProblem(f"Expected {path} to be {what}, but got: {in_one_line(error)}. Save it again.") from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise FileProblem(f"Expected a file, but {file} is a folder. Name a file in it.")
    if not file.exists():
        raise FileProblem(f"Expected a file, but {file} does not exist. Check the path.")
    if not file.is_file():
        raise FileProblem(f"Expected a file, but {file} is a pipe or a device. Save what comes from it as a file.")
    if file.stat().st_size == 0:
        raise FileProblem(f"Expected numbers in {file}, but the file is empty. Save it again.")


def ending_of(path: Path) -> str:
    """Give the ending of a file, in lower case."""
    return archive_of(path).suffix.lower()


def is_table(path: Path) -> bool:
    """Tell a file that has columns from one that has axes."""
    return ending_of(path) in (".csv", ".parquet")
