"""Traits of nodes that depend on all edges, in compiled loops: counts of neighbors, and distances from training nodes.

The results are those of `edgewise.metrics.node_traits`, the implementations with tensors. Nothing is stored per edge.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]


def count_neighbors(
    edge_index: Int[Tensor, "2 edges"], keep: Bool[Tensor, " edges"], y: Int[Tensor, " nodes"]
) -> Int[Tensor, "3 nodes"]:
    """Count the kept edges of each node, those to known labels, and those to the same label."""
    (start, end), kept, labels = edge_index.numpy(), keep.numpy(), y.to(torch.int32).numpy()

    def count_slice(lo: int, hi: int) -> Array:
        counts = np.zeros((len(labels), 4), dtype=np.int32)  # 4 columns: a node does not cross a cache line
        _count_neighbors(start[lo:hi], end[lo:hi], kept[lo:hi], labels, counts)
        return counts

    counts = np.stack(map_slices(count_slice, len(kept))).sum(0, dtype=np.int64)
    return torch.from_numpy(counts[:, :3].T.copy())


@compiled
def _count_neighbors(start: Array, end: Array, kept: Array, labels: Array, counts: Array) -> None:
    for e in range(len(start)):
        if kept[e]:
            i, j = start[e], end[e]
            is_same = np.int32(labels[i] == labels[j])
            counts[i, 0] += 1
            counts[i, 1] += np.int32(labels[j] >= 0)
            counts[i, 2] += is_same
            counts[j, 0] += 1
            counts[j, 1] += np.int32(labels[i] >= 0)
            counts[j, 2] += is_same


def train_distance(
    edge_index: Int[Tensor, "2 edges"], train: Bool[Tensor, " nodes"], far: int, unreachable: int
) -> Int[Tensor, " nodes"]:
    """Return the number of edges to the nearest training node, ``far`` if it is not below, or ``unreachable``."""
    start, end = edge_index.numpy()
    distance = np.where(train.numpy(), 0, unreachable).astype(np.int8)
    for hop in range(1, far):
        _reach_all(start, end, hop, distance)
    if (distance == unreachable).any() and train.any():
        parent = np.where(distance == unreachable, np.arange(len(distance)), len(distance))
        parent = np.append(parent, len(distance))  # all nodes that are reached are one, number N
        _connect(start, end, parent)
        _mark_connected(parent, far, unreachable, distance)
    return torch.from_numpy(distance).long()


def _reach_all(start: Array, end: Array, hop: int, distance: Array) -> None:
    # Threads may set the same distance twice, to the same value.
    map_slices(lambda lo, hi: _reach(start[lo:hi], end[lo:hi], hop, distance), len(start))


@compiled
def _reach(start: Array, end: Array, hop: int, distance: Array) -> None:
    """Set the distance of neighbors of nodes within ``hop`` - 1 edges."""
    for e in range(len(start)):
        i, j = start[e], end[e]
        if distance[i] < hop:
            if distance[j] > hop:
                distance[j] = hop
        elif distance[j] < hop and distance[i] > hop:
            distance[i] = hop


@compiled
def _find(parent: Array, i: int) -> int:
    """Return the root of a node, and shorten its path."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@compiled
def _connect(start: Array, end: Array, parent: Array) -> None:
    """Connect the ends of all edges. The root of a set is its largest number."""
    for e in range(len(start)):
        i, j = parent[start[e]], parent[end[e]]
        if i != j:
            i, j = _find(parent, i), _find(parent, j)
            parent[min(i, j)] = max(i, j)


@compiled
def _mark_connected(parent: Array, far: int, unreachable: int, distance: Array) -> None:
    for i in range(len(distance)):
        if distance[i] == unreachable and _find(parent, i) == len(distance):
            distance[i] = far
