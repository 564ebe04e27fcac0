"""The edges to score in a list too long to sort: 10^8 edges in a few linear passes and 64 MiB of scratch bits.

Which edges are listed in both directions? Three steps, of which the first is enough for most lists:

1. Cut the pairs into 2^16 buckets by a hash. Where the forward mentions (low, high) of a bucket and the backward ones
   have the same random checksum, the bucket is symmetric, and its forward mentions are the answer. (Two different sets
   of mentions agree by chance with probability 2^-64.)
2. Elsewhere mark every backward pair in a table of bits, at the place that a hash gives, and clear the forward mentions
   that find their bit unset: surely they have no partner. Change sides and hash, and repeat from step 1.
3. What remains suspect is listed in both directions, but not equally often, or is a rare accident of the hash: the
   caller sorts it.

A list with one direction only needs none of this. No answer depends on a hash, but for the checksums of step 1.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]

MAX_TABLE_BITS = 29  # 64 MiB of bits, of which 5 * 10^7 marks fill a tenth
MAX_SORTED = 1 << 18  # suspects that are sorted at once, without any more marks
MAX_ROUNDS = 8
BUCKET_BITS = 16
BLOCK = 1024


def match_directions(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], ends_needed: int
) -> tuple[Bool[Tensor, " edges"], Int[Tensor, " suspects"]]:
    """Mark the edges with enough ends in the mask, without second mentions; and list those still to be compared.

    What is listed is marked; whether it is a second mention depends on the other listed ones only.
    """
    start, end = edge_index[0].numpy(), edge_index[1].numpy()
    inside = mask.numpy().view(np.uint8)
    keep = np.empty(start.shape[0], dtype=np.uint8)

    def qualify(lo: int, hi: int) -> tuple[int, int]:
        return _qualify(start[lo:hi], end[lo:hi], inside, ends_needed, keep[lo:hi])

    parts = map_slices(qualify, start.shape[0])
    suspects = np.empty(0, dtype=np.int64)
    if all(sum(side) > 0 for side in zip(*parts, strict=True)):
        suspects = _drop_second_mentions(start, end, keep)
    return torch.from_numpy(keep).view(torch.bool), torch.from_numpy(suspects)


def _drop_second_mentions(start: Array, end: Array, keep: Array) -> Array:
    """Set ``keep`` to 0 for mentions that would count an edge a second time; return those that stay suspect."""
    suspect, before = keep.copy(), 2 * len(keep)
    for round_ in range(MAX_ROUNDS):
        forward, backward = _resolve_symmetric_buckets(start, end, suspect, keep)
        if forward == 0 or backward == 0:
            return np.empty(0, dtype=np.int64)
        left = forward + backward
        if left <= MAX_SORTED or left > 0.9 * before:  # few enough to sort, or marks do not help any more
            break
        before = left
        # About ten bits a suspect: sparse enough to tell strangers apart, and small tables stay in the cache.
        table_bits = min(MAX_TABLE_BITS, max(16, (5 * left).bit_length()))
        _clear_the_unmarked(start, end, suspect, 1, 2 * round_ + 1, table_bits)
        _clear_the_unmarked(start, end, suspect, 0, 2 * round_ + 2, table_bits)
    return np.flatnonzero(suspect)


def _resolve_symmetric_buckets(start: Array, end: Array, suspect: Array, keep: Array) -> tuple[int, int]:
    """Clear the suspects of symmetric buckets, drop their backward mentions, and count the others by direction."""
    checksums = np.stack(_map_array_slices(_bucket_checksums, start, end, suspect)).sum(0)
    parts = map_slices(
        lambda lo, hi: _resolve(start[lo:hi], end[lo:hi], suspect[lo:hi], keep[lo:hi], checksums), len(start)
    )
    forward, backward = (sum(side) for side in zip(*parts, strict=True))
    return forward, backward


def _clear_the_unmarked(start: Array, end: Array, suspect: Array, side: int, seed: int, table_bits: int) -> None:
    """Clear the suspects of one side whose pair no suspect of the other side can have."""
    table = np.zeros(1 << (table_bits - 3), dtype=np.uint8)
    shift = 64 - table_bits
    num_shards = max(1, torch.get_num_threads())

    def mark(lo: int, hi: int) -> None:
        for shard in range(lo, hi):
            _mark(start, end, suspect, 1 - side, seed, shift, table, shard, num_shards)

    def clear(lo: int, hi: int) -> None:
        _clear(start[lo:hi], end[lo:hi], suspect[lo:hi], side, seed, shift, table)

    map_slices(mark, num_shards)
    map_slices(clear, start.shape[0])


def _map_array_slices(loop: Any, *arrays: Array) -> list[Any]:
    return map_slices(lambda lo, hi: loop(*(array[lo:hi] for array in arrays)), arrays[0].shape[0])


@compiled
def _hash(low: int, high: int, seed: int) -> np.uint64:
    """Mix a pair of nodes into 64 bits (two rounds of multiply and shift, as in splitmix64)."""
    mixed = (
        np.uint64(low) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(high)
        + np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
    )
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@compiled
def _qualify(start: Array, end: Array, inside: Array, ends_needed: int, keep: Array) -> tuple[int, int]:
    """Mark the edges whose ends qualify, and count those that point forward and backward."""
    forward, total = 0, 0
    for e in range(start.shape[0]):
        i, j = start[e], end[e]
        keep[e] = (i != j) & (inside[i] + inside[j] >= ends_needed)
        forward += keep[e] & (i < j)
        total += keep[e]
    return forward, total - forward


@compiled
def _bucket_checksums(start: Array, end: Array, suspect: Array) -> Array:
    """Sum a hash of the forward mentions of each bucket, minus that of the backward ones."""
    checksums = np.zeros(1 << BUCKET_BITS, dtype=np.uint64)
    for e in range(start.shape[0]):
        if suspect[e]:
            mixed = _hash(min(start[e], end[e]), max(start[e], end[e]), 0)
            # No branch for the sign: which way an edge points cannot be foreseen.
            checksums[mixed >> np.uint64(64 - BUCKET_BITS)] += np.uint64(2 * (start[e] < end[e]) - 1) * mixed
    return checksums


@compiled
def _resolve(start: Array, end: Array, suspect: Array, keep: Array, checksums: Array) -> tuple[int, int]:
    forward, total = 0, 0
    for e in range(start.shape[0]):
        if suspect[e]:
            mixed = _hash(min(start[e], end[e]), max(start[e], end[e]), 0)
            symmetric = checksums[mixed >> np.uint64(64 - BUCKET_BITS)] == 0
            keep[e] = 1 - (symmetric & (start[e] > end[e]))
            suspect[e] = 1 - symmetric
            forward += suspect[e] & (start[e] < end[e])
            total += suspect[e]
    return forward, total - forward


@compiled
def _find_places(
    start: Array, end: Array, suspect: Array, side: int, seed: int, shift: int, first: int, edges: Array, places: Array
) -> int:
    """List the suspects of a side in the block of edges from ``first`` on, and where they are marked."""
    num = 0
    for e in range(first, min(first + BLOCK, start.shape[0])):
        edges[num] = e
        num += suspect[e] & ((start[e] > end[e]) == side)
    for k in range(num):
        i, j = start[edges[k]], end[edges[k]]
        places[k] = _hash(min(i, j), max(i, j), seed) >> np.uint64(shift)
    return num


@compiled
def _mark(
    start: Array,
    end: Array,
    suspect: Array,
    side: int,
    seed: int,
    shift: int,
    table: Array,
    shard: int,
    num_shards: int,
) -> None:
    """Mark the pairs of one side; each thread reads all edges and writes only the bytes of its shard."""
    edges, places = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.uint64)
    for first in range(0, start.shape[0], BLOCK):
        for k in range(_find_places(start, end, suspect, side, seed, shift, first, edges, places)):
            byte = places[k] >> np.uint64(3)
            if byte % np.uint64(num_shards) == np.uint64(shard):
                table[byte] |= np.uint8(1) << np.uint8(places[k] & np.uint64(7))


@compiled
def _clear(start: Array, end: Array, suspect: Array, side: int, seed: int, shift: int, table: Array) -> None:
    edges, places = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.uint64)
    for first in range(0, start.shape[0], BLOCK):
        for k in range(_find_places(start, end, suspect, side, seed, shift, first, edges, places)):
            suspect[edges[k]] = (table[places[k] >> np.uint64(3)] >> np.uint8(places[k] & np.uint64(7))) & 1
