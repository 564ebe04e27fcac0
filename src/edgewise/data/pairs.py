"""Pairs of nodes: which of them are edges, and what edges connect."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Found(NamedTuple):
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

    def find(self, pairs: Int[Tensor, "2 pairs"]) -> Found:
        """Find pairs, in either direction."""
        if len(self._keys) == 0:
            return Found(torch.full_like(pairs[0], -1), torch.zeros_like(pairs[0], dtype=torch.bool))
        wanted = pair_keys(pairs, self._num_nodes)
        place = torch.searchsorted(self._keys, wanted).clamp(max=len(self._keys) - 1)
        edge = torch.where(self._keys[place] == wanted, self._order[place], -1)
        return Found(edge, (edge >= 0) & (self._start[edge] != pairs[0]))


def pair_keys(pairs: Int[Tensor, "2 pairs"], num_nodes: int) -> Int[Tensor, " pairs"]:
    """Give pairs of nodes numbers, both directions of a pair the same."""
    start, end = pairs.long()
    return torch.minimum(start, end) * num_nodes + torch.maximum(start, end)


def connected_parts(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Int[Tensor, " nodes"]:
    """Give each node the number of the connected part of the graph that it is in.

    >>> connected_parts(torch.tensor([[0], [2]]), 3).tolist()
    [0, 1, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    start, end = edge_index.cpu().numpy()
    graph = coo_array((np.ones(len(start), dtype=np.int8), (start, end)), shape=(num_nodes, num_nodes))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long().to(edge_index.device)


def check_listed_once(edges: Int[Tensor, "2 edges"], num_nodes: int) -> None:
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
