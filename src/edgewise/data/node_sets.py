"""Random sets of nodes: connected sets, paths and cliques of a graph, or any nodes."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.edges import connected_components, undirected_edges

Sampler = Literal["neighborhood", "random", "path", "triangle"]

MAX_ATTEMPTS = 100  # per set, on average: a path or a clique may end before it has enough nodes
MAX_FAILURES = 10_000  # in a row, after which there are taken to be no more sets


class NodeSetSampler:
    """Draws sets of distinct nodes of a mask, for `joint_nll`.

    Parameters
    ----------
    edge_index
        Edges (2, E). Only those with both ends in the mask are used.
    mask
        Mask (N,) of the nodes.
    sampler
        "neighborhood", "random", "path" or "triangle", as described in `joint_nll`.

    Examples
    --------
    >>> square = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> sets = NodeSetSampler(square, torch.ones(4, dtype=torch.bool), "path").draw(3, num_sets=5, seed=0)
    >>> sets.shape, bool((sets[0] != sets[2]).all())
    (torch.Size([3, 5]), True)
    """

    def __init__(self, edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], sampler: Sampler):
        inside, edges = mask.cpu(), edge_index.long().cpu()
        edges = undirected_edges(edges[:, inside[edges].all(0)], len(inside))
        component = connected_components(edges, len(inside))[inside]
        start, end = torch.cat([edges, edges.flip(0)], dim=1)
        self._neighbors = end[start.argsort(stable=True)].numpy()
        degree = torch.bincount(start, minlength=len(inside))
        self._first = [0, *degree.cumsum(0).tolist()]
        self._nodes = inside.nonzero().squeeze(1)
        self._degree, self._component_size = degree[inside], torch.bincount(component)[component]
        self._sampler: Sampler = sampler

    def draw(self, size: int, num_sets: int, seed: int) -> Int[Tensor, "size sets"]:
        """Draw sets as the columns of a tensor, with replacement. There are fewer if too few were found.

        The sets depend only on the graph, the mask and the arguments.
        """
        rng = np.random.default_rng([seed, size])
        starts = self._starts(size)
        sets: list[list[int]] = []
        num_attempts = num_failures = 0
        while starts and len(sets) < num_sets:
            nodes = self._draw_one(starts, size, rng)
            num_attempts, num_failures = num_attempts + 1, 0 if len(nodes) == size else num_failures + 1
            if len(nodes) == size:
                sets.append(nodes)
            elif num_failures >= MAX_FAILURES or num_attempts >= num_sets * MAX_ATTEMPTS:
                break
        return torch.tensor(sets, dtype=torch.long).reshape(len(sets), size).T.contiguous()

    def _starts(self, size: int) -> list[int]:
        """Return the nodes that a set may start from: in a component, and for cliques with neighbors, for its size."""
        if self._sampler == "random":
            return self._nodes.tolist() if len(self._nodes) >= size else []
        can_start = self._component_size >= size
        if self._sampler == "triangle":
            can_start &= self._degree >= size - 1
        return self._nodes[can_start].tolist()

    def _draw_one(self, starts: list[int], size: int, rng: np.random.Generator) -> list[int]:
        """Draw a set. It has fewer nodes if no node can extend it."""
        if self._sampler == "random":
            return [starts[k] for k in rng.choice(len(starts), size, replace=False).tolist()]
        nodes, candidates, reached = list[int](), list[int](), set[int]()
        new = [starts[rng.integers(len(starts))]]
        while len(nodes) < size:
            if self._sampler == "neighborhood":  # nodes adjacent to any node of the set
                candidates += new
                reached.update(new)
            elif self._sampler == "path" or len(nodes) < 2:  # to the last node
                candidates = new
            else:  # to all nodes
                around = set(new)
                candidates = [node for node in candidates if node in around]
            if not candidates:
                break
            node = candidates.pop(int(rng.integers(len(candidates))))
            nodes.append(node)
            reached.add(node)
            new = [other for other in self._neighbors_of(node) if other not in reached]
        return nodes

    def _neighbors_of(self, node: int) -> list[int]:
        neighbors: list[int] = self._neighbors[self._first[node] : self._first[node + 1]].tolist()
        return neighbors
