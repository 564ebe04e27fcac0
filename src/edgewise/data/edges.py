"""Which edges are scored: each undirected edge once, no self-loops, chosen by a mask of nodes."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling

EdgeChoice = Literal["both", "any", "all"]
ENDS_NEEDED: dict[EdgeChoice, int] = {"both": 2, "any": 1, "all": 0}  # in the mask


def scored_edges(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], choice: EdgeChoice = "both"
) -> Bool[Tensor, " edges"]:
    """Tell for each listed edge whether it is scored.

    An edge qualifies when it is no self-loop and ``"both"`` its ends lie in the mask, or ``"any"`` of them does;
    ``"all"`` edges qualify whatever the mask says. Of a pair listed f times as (i, j) and b times as (j, i), max(f, b)
    edges are scored: an undirected graph with both directions listed counts each edge once, parallel edges count as
    often as they are there.

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]])
    >>> scored_edges(edge_index, torch.tensor([True, True, True])).tolist()
    [True, False, True, False]
    """
    if worth_compiling(edge_index):
        keep, suspects = kernels.long_edge_list.match_directions(edge_index, mask, ENDS_NEEDED[choice])
    else:
        keep = _ends_qualify(edge_index, mask, choice)
        suspects = keep.nonzero().squeeze(1)
    keep[suspects[~select_one_direction(edge_index[:, suspects], mask.shape[0])]] = False
    return keep


def _ends_qualify(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], choice: EdgeChoice
) -> Bool[Tensor, " edges"]:
    """Tell for each listed edge whether its ends differ and satisfy the choice."""
    start, end = edge_index.long()
    no_loop: Tensor = start != end
    if choice == "both":
        return no_loop.logical_and(mask[start]).logical_and(mask[end])
    if choice == "any":
        return no_loop.logical_and(mask[start] | mask[end])
    return no_loop


def select_one_direction(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Bool[Tensor, " edges"]:
    """Choose one direction of every pair of nodes, the one that is listed more often; (low, high) when equal."""
    start, end = edge_index.long()
    forward: Tensor = start < end
    if bool(forward.all()) or not bool(forward.any()):
        return torch.ones_like(forward)
    _, index = pair_keys(edge_index, num_nodes).unique(return_inverse=True)
    # Forward minus backward mentions of each pair: integers, so the order of addition does not matter.
    surplus = torch.zeros(int(index.max()) + 1, dtype=torch.long, device=index.device)
    surplus.index_add_(0, index, torch.where(forward, 1, -1))
    mostly_forward: Tensor = surplus[index] >= 0
    return torch.eq(forward, mostly_forward)


class EdgeMatch(NamedTuple):
    """Which edge each pair is, or -1; and whether the edge runs from the pair's second node to its first."""

    edge: Int[Tensor, " pairs"]
    backward: Bool[Tensor, " pairs"]


class EdgeLookup:
    """The undirected edges of a graph, sorted so that any pair is found in about log E steps.

    >>> EdgeLookup(torch.tensor([[0, 2], [1, 1]]), 3).find(torch.tensor([[1, 0], [2, 2]])).edge.tolist()
    [1, -1]
    """

    def __init__(self, edge_index: Int[Tensor, "2 edges"], num_nodes: int):
        self._start, self._num_nodes = edge_index[0], num_nodes
        self._keys, self._order = pair_keys(edge_index, num_nodes).sort()

    def find(self, pairs: Int[Tensor, "2 pairs"]) -> EdgeMatch:
        """Find pairs, in either direction."""
        if len(self._keys) == 0:
            return EdgeMatch(torch.full_like(pairs[0], -1), torch.zeros_like(pairs[0], dtype=torch.bool))
        wanted = pair_keys(pairs, self._num_nodes)
        place = torch.searchsorted(self._keys, wanted).clamp(max=len(self._keys) - 1)
        edge = torch.where(self._keys[place] == wanted, self._order[place], -1)
        return EdgeMatch(edge, (edge >= 0) & (self._start[edge] != pairs[0]))


def pair_keys(pairs: Int[Tensor, "2 pairs"], num_nodes: int) -> Int[Tensor, " pairs"]:
    """Map pairs of nodes to numbers, both directions of a pair to the same."""
    start, end = pairs.long()
    return torch.minimum(start, end) * num_nodes + torch.maximum(start, end)


def connected_components(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Int[Tensor, " nodes"]:
    """Find the connected part of the graph that each node is in; parts are numbered from 0.

    >>> connected_components(torch.tensor([[0], [2]]), 3).tolist()
    [0, 1, 0]
    """
    from scipy.sparse import coo_array, csgraph

    start, end = edge_index.cpu().numpy()
    graph = coo_array((np.ones(len(start), dtype=np.int8), (start, end)), shape=(num_nodes, num_nodes))
    return torch.from_numpy(csgraph.connected_components(graph, directed=False)[1]).long().to(edge_index.device)


def check_unique_edges(edges: Int[Tensor, "2 edges"], num_nodes: int) -> None:
    """Refuse a list with an edge twice, in the same direction or in both."""
    keys, order = pair_keys(edges, num_nodes).sort(stable=True)
    again = keys[1:] == keys[:-1]
    if bool(again.any()):
        k = int(again.nonzero()[0])
        first, second = sorted((int(order[k]), int(order[k + 1])))
        pair = tuple(edges[:, second].tolist())
        raise ValueError(
            f"Expected each undirected edge once, but edges {first} and {second} both connect {pair}. If both "
            "directions are listed keep one: edge_index[:, edge_index[0] < edge_index[1]]; couplings of parallel "
            "edges add up to one."
        )


def undirected_edges(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Int[Tensor, "2 undirected"]:
    """Return each undirected edge once, as (low, high) and sorted, without self-loops.

    >>> undirected_edges(torch.tensor([[2, 0, 1, 1], [0, 2, 1, 0]]), 3).tolist()
    [[0, 0], [1, 2]]
    """
    edges = edge_index[:, edge_index[0] != edge_index[1]]
    keys = pair_keys(edges, num_nodes).unique()
    return torch.stack([keys // num_nodes, keys % num_nodes])


def adjacency_with_self_loops(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Any:
    """Return A + I as a scipy CSR array; each undirected edge is listed once, and no self-loop is listed."""
    from scipy.sparse import csr_array

    start, end = edge_index.cpu().numpy()
    loops = np.arange(num_nodes)
    rows, columns = np.concatenate([start, end, loops]), np.concatenate([end, start, loops])
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(num_nodes, num_nodes))
    matrix.sort_indices()
    return matrix


def normalize_adjacency(adjacency: Any) -> Any:
    """Return Â = D^-½ (A + I) D^-½ for the matrix A + I, with D its row sums (Kipf and Welling 2017)."""
    from scipy.sparse import csr_array

    root = np.sqrt(np.diff(adjacency.indptr))
    value = 1.0 / (np.repeat(root, np.diff(adjacency.indptr)) * root[adjacency.indices])
    return csr_array((value, adjacency.indices, adjacency.indptr), shape=adjacency.shape)
