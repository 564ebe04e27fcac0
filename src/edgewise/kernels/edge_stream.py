"""Selection of the edges of a stream: ids to rows, unknown ends, the mask, direction, and checksums of directions.

One pass over a batch does all of it. ``state`` has three bits for each row of the node table, which are defined here.

Checksums decide whether a list has both directions of every edge, in one pass over its parts in any order. Each pair of
nodes has a bucket and a 64-bit hash. The checksum of a bucket is the sum, modulo 2^64, of the hashes of its forward
listings (low, high) minus those of its backward listings (high, low), so checksums of parts are added. All of them
are 0 if every pair is listed equally often in both directions.

Otherwise let 2^t be the largest power of two that divides, for all pairs of a bucket, the difference between forward
and backward listings, which is not 0 for all of them; t = 0 unless there are parallel edges. If the hashes were
independent random numbers of 64 bits, also independent of the buckets, the checksum would be 0 with probability at most
2^(t-64): given the other pairs, one hash times its difference has 2^(64-t) equally likely values. So some unequal
bucket is missed with probability at most 2^(16+t-64), below 10^-14 for t = 0. `hash_pair` is a fixed function, for
which this is a model: the bucket depends on all bits of (low, high), but not on the mixing that gives the checksum.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]

PRESENT, SCORED, LABELED = 1, 2, 4  # bits of the state of a node: it has a prediction, is scored, has a label
BOTH, FORWARD, BACKWARD = 0, 1, 2  # which listings are selected
BUCKET_BITS = 16
NUM_BUCKETS = 1 << BUCKET_BITS

# What the ends of an edge need: bits that both have, and bits that one of them has.
BITS_NEEDED = {"both": (SCORED, 0), "any": (LABELED, SCORED), "all": (LABELED, 0)}


@compiled
def _mix(x: np.uint64) -> np.uint64:
    """Mix the bits of a number so that each bit of the result depends on all of them (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def hash_pair(i: int, j: int) -> tuple[np.uint64, np.uint64]:
    """Return the hash for the checksum of a pair, in any order, and one for its bucket."""
    low, high = (i, j) if i < j else (j, i)
    first = _mix(np.uint64(low) + np.uint64(0x9E3779B97F4A7C15))
    both = (first ^ np.uint64(high)) * np.uint64(0xD1B54A32D192ED03) + first
    return _mix(both), both * np.uint64(0xA24BAED4963EE407) + first


@compiled
def select_edges(
    start: Array,
    end: Array,
    first: int,
    state: Array,
    reads_state: bool,
    bits_of_both: int,
    bits_of_one: int,
    direction: int,
    checksums: Array,
    out_start: Array,
    out_end: Array,
) -> tuple[int, int, int, int, int]:
    """Write the rows of the selected edges, and add the qualified ones to the checksums, unless these are empty.

    Return the numbers of selected, forward, backward and unknown edges, and the position of the first unknown one. An
    edge is unknown if an end is no row, or has no prediction. Without ``reads_state`` all nodes have all bits.
    """
    num, forward, backward, unknown, where = 0, 0, 0, 0, -1
    with_checksums = len(checksums) > 0
    for e in range(len(start)):
        i, j = np.int64(start[e]) - first, np.int64(end[e]) - first
        known = (i >= 0) & (i < len(state)) & (j >= 0) & (j < len(state))
        qualified = known & (i != j)
        if reads_state and known:
            a, b = state[i], state[j]
            known = (a & b & PRESENT) != 0
            qualified = (
                known & (i != j) & ((a & b & bits_of_both) == bits_of_both) & (((a | b) & bits_of_one) == bits_of_one)
            )
        if not known:
            unknown += 1
            where = e if where < 0 else where
            continue
        if not qualified:
            continue
        is_forward = i < j
        forward += is_forward
        backward += not is_forward
        out_start[num], out_end[num] = i, j
        num += (direction == BOTH) | (is_forward & (direction == FORWARD)) | (~is_forward & (direction == BACKWARD))
        if with_checksums:
            checksum, bucket = hash_pair(i, j)
            sign = np.uint64(2 * is_forward - 1)  # 1 or -1 modulo 2^64
            checksums[bucket >> np.uint64(64 - BUCKET_BITS)] += sign * checksum
    return num, forward, backward, unknown, where


@compiled
def select_buckets(start: Array, end: Array, wanted: Array, num_partitions: int, out: Array) -> None:
    """Set ``out`` to the partition of each edge whose bucket is wanted, and to -1 for the others."""
    for e in range(len(start)):
        checksum, bucket = hash_pair(start[e], end[e])
        is_wanted = wanted[bucket >> np.uint64(64 - BUCKET_BITS)]
        out[e] = np.int64((checksum >> np.uint64(32)) % np.uint64(num_partitions)) if is_wanted else -1


@compiled
def set_bits(rows: Array, state: Array, needed: int, bit: int) -> tuple[int, int]:
    """Set a bit of rows that have the needed ones. Return the positions of the first unknown and the first second one.

    Rows that are -1, out of range or without the needed bits are unknown. Positions are -1 if there are none.
    """
    unknown, twice = -1, -1
    for k in range(len(rows)):
        row = rows[k]
        if row < 0 or row >= len(state) or (state[row] & needed) != needed:
            unknown = k if unknown < 0 else unknown
        elif state[row] & bit:
            twice = k if twice < 0 else twice
        else:
            state[row] |= bit
    return unknown, twice
