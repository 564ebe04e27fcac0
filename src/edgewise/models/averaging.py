"""A graph as scipy matrices: who is whose neighbour, and averages over neighbours."""

from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor


def neighbours(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Any:
    """Make A + I, in which each node is its own neighbour, of edges that are listed once, without self-loops."""
    from scipy.sparse import csr_array

    start, end = edge_index.cpu().numpy()
    itself = np.arange(num_nodes)
    rows, columns = np.concatenate([start, end, itself]), np.concatenate([end, start, itself])
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(num_nodes, num_nodes))
    matrix.sort_indices()
    return matrix


def averaging(neighbours: Any) -> Any:
    """Make Â = D^-½ (A + I) D^-½, D the row sums of A + I (Kipf and Welling 2017)."""
    from scipy.sparse import csr_array

    root = np.sqrt(np.diff(neighbours.indptr))
    value = 1.0 / (np.repeat(root, np.diff(neighbours.indptr)) * root[neighbours.indices])
    return csr_array((value, neighbours.indices, neighbours.indptr), shape=neighbours.shape)
