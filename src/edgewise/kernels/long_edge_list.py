"""Deduplication of directions in a long edge list without sorting: 10^8 edges in a few linear passes and 64 MiB.

An undirected edge may be listed forward (low, high), backward (high, low), or in both directions. Finding
the edges that are listed in both directions takes up to three steps. The first is enough for most lists:

1. Hash the pairs into 2^16 buckets. If the forward and the backward listings of a bucket have the same random checksum,
   the bucket is symmetric, and its forward listings are kept.
2. For the other buckets, set a bit in a hash table for every backward listing. A forward listing whose bit is not set
   has no partner and is resolved. Swap directions, change the hash, and repeat from step 1.
   Few candidates are copied first, so that later rounds do not read all edges.
3. The remaining candidates are listed in both directions, but not equally often, or are rare hash collisions. The
   caller sorts them.

A list with one direction only needs none of these steps. No result depends on a hash, except for the checksums of
step 1. The bucket and the checksum of a pair are different hashes of 64 bits. For hashes as good as random numbers, a
bucket that is not symmetric has a checksum of 0 with probability 2^-64, or 2^(t-64) if every pair is listed a multiple
of 2^t times more often in one direction than in the other. With 2^16 buckets in at most 9 rounds, the probability that
any edge is counted wrongly is below 2^(t-44), where t = 0 unless there are parallel edges.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]

MAX_TABLE_BITS = 29  # log2 of the bits of the hash table: 64 MiB, of which 5 * 10^7 pairs fill a tenth
MAX_SORTED = 1 << 18  # candidates that are left to the caller to sort without further rounds
MAX_ROUNDS = 8
MAX_COPIED_FRACTION = 1 / 8  # of the edges, for at most three more bytes per edge
BUCKET_BITS = 16  # log2 of the number of buckets
BUCKET_SEED, CHECKSUM_SEED = 0, 2 * MAX_ROUNDS + 1  # hash tables have seeds between them
EDGES_PER_BLOCK = 1024


def match_directions(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], ends_needed: int
) -> tuple[Bool[Tensor, " edges"], Int[Tensor, " candidates"]]:
    """Return a mask of the edges to score, and the indices of the candidates that the caller has to compare.

    The returned mask has the edges with ``ends_needed`` ends in ``mask``, without second listings, except among
    candidates. Candidates are in the returned mask. Whether one is a second listing depends only on other candidates.
    """
    start, end = edge_index[0].numpy(), edge_index[1].numpy()
    inside = mask.numpy().view(np.uint8)
    if bool(mask.all()):
        ends_needed = 0
    keep = np.empty(start.shape[0], dtype=np.uint8)

    def select(lo: int, hi: int) -> tuple[int, int]:
        return _select(start[lo:hi], end[lo:hi], inside, ends_needed, keep[lo:hi])

    parts = map_slices(select, start.shape[0])
    candidates = np.empty(0, dtype=np.int64)
    if all(sum(side) > 0 for side in zip(*parts, strict=True)):
        candidates = _drop_second_listings(start, end, keep.copy(), keep, before=np.inf, round_=0)
    return torch.from_numpy(keep).view(torch.bool), torch.from_numpy(candidates)


def _drop_second_listings(start: Array, end: Array, candidate: Array, keep: Array, before: float, round_: int) -> Array:
    """Set ``keep`` to 0 for second listings among candidates; return the indices of the remaining candidates.

    ``before`` is the number of candidates in the round before.
    """
    forward, backward = _resolve_symmetric_buckets(start, end, candidate, keep)
    remaining = forward + backward
    if forward == 0 or backward == 0:
        return np.empty(0, dtype=np.int64)
    if remaining <= MAX_SORTED or remaining > 0.9 * before or round_ == MAX_ROUNDS:  # few, or no progress
        return np.flatnonzero(candidate)
    # About ten bits per candidate: few collisions, and small tables fit into the cache.
    table_bits = min(MAX_TABLE_BITS, max(16, (5 * remaining).bit_length()))
    _clear_unmatched(start, end, candidate, 1, 2 * round_ + 1, table_bits)
    _clear_unmatched(start, end, candidate, 0, 2 * round_ + 2, table_bits)
    if np.count_nonzero(candidate) > MAX_COPIED_FRACTION * len(start):
        return _drop_second_listings(start, end, candidate, keep, remaining, round_ + 1)
    position = np.flatnonzero(candidate)
    candidate, own_keep = candidate[position], keep[position]
    found = _drop_second_listings(start[position], end[position], candidate, own_keep, remaining, round_ + 1)
    keep[position] = own_keep
    return np.asarray(position[found])


def _resolve_symmetric_buckets(start: Array, end: Array, candidate: Array, keep: Array) -> tuple[int, int]:
    """Keep the forward listings of symmetric buckets; return the numbers of other forward and backward candidates."""

    def sum_checksums(lo: int, hi: int) -> Array:
        checksums = np.zeros(1 << BUCKET_BITS, dtype=np.uint64)
        _bucket_checksums(start[lo:hi], end[lo:hi], candidate[lo:hi], checksums)
        return checksums

    checksums = np.stack(map_slices(sum_checksums, len(start))).sum(0)
    parts = map_slices(
        lambda lo, hi: _resolve(start[lo:hi], end[lo:hi], candidate[lo:hi], keep[lo:hi], checksums), len(start)
    )
    forward, backward = (sum(side) for side in zip(*parts, strict=True))
    return forward, backward


def _clear_unmatched(start: Array, end: Array, candidate: Array, direction: int, seed: int, table_bits: int) -> None:
    """Remove candidates of one direction that have no candidate of the other direction."""
    table = np.zeros(1 << (table_bits - 3), dtype=np.uint8)
    shift = 64 - table_bits
    num_shards = max(1, torch.get_num_threads())

    def mark(lo: int, hi: int) -> None:
        for shard in range(lo, hi):
            _mark(start, end, candidate, 1 - direction, seed, shift, table, *_block_buffers(), shard, num_shards)

    def clear(lo: int, hi: int) -> None:
        _clear(start[lo:hi], end[lo:hi], candidate[lo:hi], direction, seed, shift, table, *_block_buffers())

    map_slices(mark, num_shards)
    map_slices(clear, start.shape[0])


def _block_buffers() -> tuple[Array, Array]:
    """Allocate buffers for the edges of a block and their bits."""
    return np.empty(EDGES_PER_BLOCK, dtype=np.int64), np.empty(EDGES_PER_BLOCK, dtype=np.uint64)


@compiled
def _hash(i: int, j: int, seed: int | np.int64) -> np.uint64:
    """Hash a pair of nodes in any order to 64 bits, with two rounds of multiply and shift as in splitmix64."""
    low, high = (i, j) if i < j else (j, i)
    mixed = (
        np.uint64(low) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(high)
        + np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
    )
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@compiled
def _select(start: Array, end: Array, inside: Array, ends_needed: int, keep: Array) -> tuple[int, int]:
    """Set ``keep`` for edges with enough ends in the mask, and count them by direction."""
    forward, total = 0, 0
    for e in range(start.shape[0]):
        i, j = start[e], end[e]
        keep[e] = (i != j) & (ends_needed == 0 or inside[i] + inside[j] >= ends_needed)  # 0: the mask is not read
        forward += keep[e] & (i < j)
        total += keep[e]
    return forward, total - forward


@compiled
def _bucket_checksums(start: Array, end: Array, candidate: Array, checksums: Array) -> None:
    """Sum the hashes of the forward listings of each bucket, minus those of the backward listings."""
    for e in range(start.shape[0]):
        if candidate[e]:
            bucket = _hash(start[e], end[e], BUCKET_SEED) >> np.uint64(64 - BUCKET_BITS)
            # The sign is computed without a branch, because the direction of an edge is unpredictable.
            checksums[bucket] += np.uint64(2 * (start[e] < end[e]) - 1) * _hash(start[e], end[e], CHECKSUM_SEED)


@compiled
def _resolve(start: Array, end: Array, candidate: Array, keep: Array, checksums: Array) -> tuple[int, int]:
    forward, total = 0, 0
    for e in range(start.shape[0]):
        if candidate[e]:
            symmetric = checksums[_hash(start[e], end[e], BUCKET_SEED) >> np.uint64(64 - BUCKET_BITS)] == 0
            keep[e] = 1 - (symmetric & (start[e] > end[e]))
            candidate[e] = 1 - symmetric
            forward += candidate[e] & (start[e] < end[e])
            total += candidate[e]
    return forward, total - forward


@compiled
def _find_bits(
    start: Array,
    end: Array,
    candidate: Array,
    direction: int,
    seed: int,
    shift: int,
    first: int,
    edges: Array,
    bits: Array,
) -> int:
    """Find the candidates of a direction in the block of edges from ``first`` on, and their bits in the hash table."""
    num = 0
    for e in range(first, min(first + EDGES_PER_BLOCK, start.shape[0])):
        edges[num] = e
        num += candidate[e] & ((start[e] > end[e]) == direction)
    for k in range(num):
        i, j = start[edges[k]], end[edges[k]]
        bits[k] = _hash(i, j, seed) >> np.uint64(shift)
    return num


@compiled
def _mark(
    start: Array,
    end: Array,
    candidate: Array,
    direction: int,
    seed: int,
    shift: int,
    table: Array,
    edges: Array,
    bits: Array,
    shard: int,
    num_shards: int,
) -> None:
    """Set the bits of one direction. Each thread reads all edges, but writes only the bytes of its shard."""
    for first in range(0, start.shape[0], EDGES_PER_BLOCK):
        for k in range(_find_bits(start, end, candidate, direction, seed, shift, first, edges, bits)):
            byte = bits[k] >> np.uint64(3)
            if byte % np.uint64(num_shards) == np.uint64(shard):
                table[byte] |= np.uint8(1) << np.uint8(bits[k] & np.uint64(7))


@compiled
def _clear(
    start: Array,
    end: Array,
    candidate: Array,
    direction: int,
    seed: int,
    shift: int,
    table: Array,
    edges: Array,
    bits: Array,
) -> None:
    for first in range(0, start.shape[0], EDGES_PER_BLOCK):
        for k in range(_find_bits(start, end, candidate, direction, seed, shift, first, edges, bits)):
            candidate[edges[k]] = (table[bits[k] >> np.uint64(3)] >> np.uint8(bits[k] & np.uint64(7))) & 1
