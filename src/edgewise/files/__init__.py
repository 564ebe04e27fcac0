"""Files: arrays, tables and tensors with metadata, read without pickle and written whole or not at all."""

from edgewise.files.arrays import FileProblem
from edgewise.files.inputs import read_array, read_edge_probs, read_edges, read_labels, read_mask, read_probs, read_rows

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
