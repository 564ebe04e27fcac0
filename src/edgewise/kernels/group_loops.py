"""Loops over edges for groups of nodes: counts of neighbors, distances from training nodes, shared nodes of edges.

The results are those of `edgewise.metrics.node_groups` and `edgewise.metrics.group_sums`, the implementations with
tensors.
"""

from collections.abc import Sequence
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


def sum_covariances(
    level: Int[Tensor, " nodes"],
    bin_table: Int[Tensor, "levels levels"],
    weight: Int[Tensor, " nodes"],
    term: Int[Tensor, " nodes"],
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    groupings: Sequence[tuple[Int[Tensor, " nodes"], bool, int]],
    n_bins: int,
) -> list[Int[Tensor, " tables"]]:
    """Sum weight_i · term_j · term_k over pairs of kept edges (i, j) and (i, k) in the same group and bin.

    ``bin_table`` has the bin of an edge by the levels of its ends. Needs 8 bytes per edge, for lists of neighbors.
    """
    (start, end), kept = edge_index.numpy(), keep.numpy()
    offsets = np.zeros(len(level) + 1, dtype=np.int64)
    _count_ends(start, end, kept, offsets)
    neighbors = np.empty(offsets[-1], dtype=np.int32)
    _list_neighbors(start, end, kept, offsets[:-1].copy(), neighbors)
    # One short row per node, so that a neighbor is one random read, which often hits the cache.
    records = torch.stack([level, term, *(group for group, _, _ in groupings)], dim=1)
    nodes = records.to(torch.int16 if int(records.max()) < 1 << 15 else torch.int32).numpy(), weight.numpy()
    bins = bin_table.to(torch.int16 if n_bins < 1 << 15 else torch.int32).numpy()
    is_ordered, limits = np.array([ordered for _, ordered, _ in groupings]), np.cumsum([num for *_, num in groupings])
    longest = int(np.diff(offsets).max(initial=0))

    def sum_slice(lo: int, hi: int) -> Array:
        # Slices of edge ends, so that threads have equal work. Each covers the nodes whose neighbors begin in it.
        first, last = (int(node) for node in np.searchsorted(offsets[:-1], (lo, hi)))
        sums, scratch = np.zeros(limits[-1], dtype=np.int64), np.empty((records.shape[1], longest), dtype=np.int32)
        _sum_pairs(first, last, offsets, neighbors, *nodes, bins, is_ordered, limits, n_bins, scratch, sums)
        return sums

    sums = np.stack(map_slices(sum_slice, len(neighbors))).sum(0)
    return [torch.from_numpy(part) for part in np.split(sums, limits[:-1])]


@compiled
def _count_ends(start: Array, end: Array, kept: Array, offsets: Array) -> None:
    """Compute where the neighbors of each node begin."""
    for e in range(len(start)):
        offsets[start[e] + 1] += kept[e]
        offsets[end[e] + 1] += kept[e]
    for i in range(1, len(offsets)):
        offsets[i] += offsets[i - 1]


@compiled
def _list_neighbors(start: Array, end: Array, kept: Array, position: Array, neighbors: Array) -> None:
    for e in range(len(start)):
        if kept[e]:
            i, j = start[e], end[e]
            neighbors[position[i]], neighbors[position[j]] = j, i
            position[i] += 1
            position[j] += 1


@compiled
def _sum_pairs(
    first: int,
    last: int,
    offsets: Array,
    neighbors: Array,
    records: Array,
    weight: Array,
    bin_table: Array,
    is_ordered: Array,
    limits: Array,
    n_bins: int,
    scratch: Array,
    out: Array,
) -> None:
    """Add the pairs at nodes ``first``, …, ``last`` - 1 to the sums of all groupings, which end at ``limits``.

    ``records`` has the level, the term and the groups of each node. ``scratch`` has room for those of its neighbors.
    Each neighbor adds its products with the neighbors before it in the same slot, a group and a bin. Sums of slots need
    not be cleared: ``visit`` is the last visit of a node and a grouping to a slot, and older sums count as zero.
    """
    num_slots = (np.int64(records[:, 2:].max()) + 1) * n_bins if len(records) else 0
    sums, visit = np.zeros(num_slots, dtype=np.int64), np.zeros(num_slots, dtype=np.int64)
    bins, terms, others = scratch[0], scratch[1], scratch[2:]
    number = 0
    for i in range(first, last):
        begin, num = offsets[i], offsets[i + 1] - offsets[i]
        if num < 2:
            continue
        bin_row = bin_table[records[i, 0]]
        for n in range(num):
            near = neighbors[begin + n]
            bins[n], terms[n] = bin_row[records[near, 0]], records[near, 1]
            for q in range(len(others)):
                others[q, n] = records[near, 2 + q]
        twice = 2 * np.int64(weight[i])
        for q in range(len(others)):
            group, number, ordered = np.int64(records[i, 2 + q]), number + 1, is_ordered[q]
            base = limits[q - 1] if q else 0
            if group < 0:
                continue
            for n in range(num):
                other = np.int64(others[q, n])
                if other < 0:
                    continue
                low, high = min(group, other), max(group, other)
                slot = (low if ordered else other) * n_bins + bins[n]
                before = sums[slot] if visit[slot] == number else 0
                visit[slot], sums[slot] = number, before + terms[n]
                out[base + (low if ordered else ((high * (high + 1)) >> 1) + low)] += twice * (before * terms[n])
