"""Probabilities, labels, edges and masks from files: .npy, .npz, .csv or .parquet."""

import math
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from edgewise.data.files.problem import Array, FileProblem
from edgewise.data.files.reading import ending_of, is_table, read_array

__all__ = [
    "FileProblem",
    "read_array",
    "read_edge_probs",
    "read_edges",
    "read_labels",
    "read_mask",
    "read_probs",
    "read_rows",
]


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
