"""Selection of the scored edges, lookup of edges, connected components, spanning forests and matchings."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling

EdgeChoice = Literal["both", "any", "all"]
MIN_ENDS_IN_MASK: dict[EdgeChoice, int] = {"both": 2, "any": 1, "all": 0}


def scored_edges(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], choice: EdgeChoice = "both"
) -> Bool[Tensor, " edges"]:
    """Return for each listed edge whether it is scored.

    An edge qualifies if it is not a self-loop and ``"both"`` its ends are in the mask, or ``"any"`` of them. With
    ``"all"`` every edge but self-loops qualifies. If a pair is listed f times as (i, j) and b times as (j, i), then
    max(f, b) edges are scored: an edge listed in both directions counts once, and parallel edges count separately.

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]])
    >>> scored_edges(edge_index, torch.tensor([True, True, True])).tolist()
    [True, False, True, False]
    """
    if worth_compiling(edge_index):
        keep, candidates = kernels.long_edge_list.match_directions(edge_index, mask, MIN_ENDS_IN_MASK[choice])
    else:
        keep = _ends_qualify(edge_index, mask, choice)
        candidates = keep.nonzero().squeeze(1)
    # Candidates may be listed in both directions.
    keep[candidates[~select_one_direction(edge_index[:, candidates], mask.shape[0])]] = False
    return keep


def _ends_qualify(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], choice: EdgeChoice
) -> Bool[Tensor, " edges"]:
    """Return for each listed edge whether its ends differ and satisfy the choice."""
    start, end = edge_index.long()
    not_loop: Tensor = start != end
    if choice == "both":
        return not_loop.logical_and(mask[start]).logical_and(mask[end])
    if choice == "any":
        return not_loop.logical_and(mask[start] | mask[end])
    return not_loop


def select_one_direction(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Bool[Tensor, " edges"]:
    """Return a mask that keeps one direction of each pair: the one listed more often, or (low, high) if equal."""
    start, end = edge_index.long()
    forward: Tensor = start < end
    if bool(forward.all()) or not bool(forward.any()):
        return torch.ones_like(forward)
    _, index = pair_keys(edge_index, num_nodes).unique(return_inverse=True)
    # Number of forward minus backward edges of each pair. Integers, so the order of addition does not matter.
    difference = torch.zeros(int(index.max()) + 1, dtype=torch.long, device=index.device)
    difference.index_add_(0, index, torch.where(forward, 1, -1))
    keep_forward: Tensor = difference[index] >= 0
    return torch.eq(forward, keep_forward)


class EdgeMatch(NamedTuple):
    """Edge of each pair, or -1, and whether it runs from the second node of the pair to the first."""

    edge: Int[Tensor, " pairs"]
    backward: Bool[Tensor, " pairs"]


class EdgeLookup:
    """Sorted undirected edges of a graph, for lookup of pairs by binary search.

    >>> EdgeLookup(torch.tensor([[0, 2], [1, 1]]), 3).find(torch.tensor([[1, 0], [2, 2]])).edge.tolist()
    [1, -1]
    """

    def __init__(self, edge_index: Int[Tensor, "2 edges"], num_nodes: int):
        self._start, self._num_nodes = edge_index[0], num_nodes
        self._keys, self._order = pair_keys(edge_index, num_nodes).sort()

    def find(self, pairs: Int[Tensor, "2 pairs"]) -> EdgeMatch:
        """Return the edges of pairs, in either direction."""
        if len(self._keys) == 0:
            return EdgeMatch(torch.full_like(pairs[0], -1), torch.zeros_like(pairs[0], dtype=torch.bool))
        keys = pair_keys(pairs, self._num_nodes)
        position = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        edge = torch.where(self._keys[position] == keys, self._order[position], -1)
        return EdgeMatch(edge, (edge >= 0) & (self._start[edge] != pairs[0]))


def pair_keys(pairs: Int[Tensor, "2 pairs"], num_nodes: int) -> Int[Tensor, " pairs"]:
    """Map each pair of nodes to an integer, the same for both directions."""
    start, end = pairs.long()
    return torch.minimum(start, end) * num_nodes + torch.maximum(start, end)


def connected_components(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Int[Tensor, " nodes"]:
    """Return the index of the connected component of each node, from 0.

    >>> connected_components(torch.tensor([[0], [2]]), 3).tolist()
    [0, 1, 0]
    """
    from scipy.sparse import coo_array, csgraph

    start, end = edge_index.cpu().numpy()
    graph = coo_array((np.ones(len(start), dtype=np.int8), (start, end)), shape=(num_nodes, num_nodes))
    return torch.from_numpy(csgraph.connected_components(graph, directed=False)[1]).long().to(edge_index.device)


def forms_forest(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> bool:
    """Return whether the edges have no loops.

    >>> forms_forest(torch.tensor([[0, 1, 0], [1, 2, 2]]), 3)
    False
    """
    num_components = int(connected_components(edge_index, num_nodes).max()) + 1 if num_nodes else 0
    return edge_index.shape[1] == num_nodes - num_components


def spanning_forest(
    edge_index: Int[Tensor, "2 edges"], rank: Int[Tensor, " edges"], num_nodes: int
) -> Bool[Tensor, " edges"]:
    """Return which edges are in the spanning forest with the lowest ranks. The ranks are 0, …, E - 1, in any order.

    >>> spanning_forest(torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.tensor([2, 0, 1]), 3).tolist()
    [False, True, True]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    start, end = edge_index.cpu().numpy()
    # The rank identifies an edge in the forest. scipy takes an entry of 0 for a missing edge.
    graph = coo_array((rank.cpu().numpy() + 1.0, (start, end)), shape=(num_nodes, num_nodes)).tocsr()
    chosen = torch.from_numpy(minimum_spanning_tree(graph).data.astype(np.int64) - 1)
    in_forest = torch.zeros(len(rank), dtype=torch.bool)
    in_forest[chosen] = True
    return in_forest.to(rank.device)[rank]


def greedy_matching(
    edge_index: Int[Tensor, "2 edges"], rank: Int[Tensor, " edges"], num_nodes: int
) -> Bool[Tensor, " edges"]:
    """Return which edges are in the matching that takes edges by rank if both ends are free. It is maximal.

    The ranks are distinct, and there are no self-loops. Each round takes all edges that have the lowest rank at both of
    their ends, and removes their neighbors. The result is that of one edge after the other, in about log E rounds.

    >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> greedy_matching(path, torch.tensor([1, 0, 2]), 4).tolist()
    [False, True, False]
    """
    matched = torch.zeros_like(rank, dtype=torch.bool)
    left = torch.arange(len(rank), device=rank.device)
    while len(left):
        ends, ranks = edge_index[:, left].long(), rank[left]
        lowest = torch.full((num_nodes,), len(rank), dtype=ranks.dtype, device=rank.device)
        for nodes in ends:
            lowest.scatter_reduce_(0, nodes, ranks, "amin")
        taken = (lowest[ends] == ranks).all(0)
        matched[left[taken]] = True
        is_free = torch.ones(num_nodes, dtype=torch.bool, device=rank.device)
        is_free[ends[:, taken].flatten()] = False
        left = left[is_free[ends].all(0)]
    return matched


def check_unique_edges(edges: Int[Tensor, "2 edges"], num_nodes: int) -> None:
    """Raise ValueError if an edge is listed twice, in the same direction or in both."""
    keys, order = pair_keys(edges, num_nodes).sort(stable=True)
    duplicate = keys[1:] == keys[:-1]
    if bool(duplicate.any()):
        k = int(duplicate.nonzero()[0])
        first, second = sorted((int(order[k]), int(order[k + 1])))
        pair = tuple(edges[:, second].tolist())
        raise ValueError(
            f"Expected each undirected edge once, but edges {first} and {second} both connect {pair}. If both "
            "directions are listed, keep one: edge_index[:, edge_index[0] < edge_index[1]]. Merge parallel edges by "
            "adding their couplings."
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
