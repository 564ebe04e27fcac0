"""Compiled loops over streams of edges, against plain Python."""

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.kernels.edge_stream import (
    BACKWARD,
    BITS_NEEDED,
    BOTH,
    FORWARD,
    LABELED,
    NUM_BUCKETS,
    PRESENT,
    SCORED,
    hash_pair,
    select_buckets,
    select_edges,
    set_bits,
)

BITS_64 = (1 << 64) - 1
NUM_NODES = 8
pairs = st.lists(st.tuples(*[st.integers(0, NUM_NODES - 1)] * 2), max_size=40)


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS_64
    return x ^ (x >> 31)


def plain_hash_pair(i: int, j: int) -> tuple[int, int]:
    low, high = sorted((i, j))
    first = mix((low + 0x9E3779B97F4A7C15) & BITS_64)
    both = ((first ^ high) * 0xD1B54A32D192ED03 + first) & BITS_64
    return mix(both), (both * 0xA24BAED4963EE407 + first) & BITS_64


def plain_checksums(edges: list[tuple[int, int]]) -> list[int]:
    sums = [0] * NUM_BUCKETS
    for i, j in edges:
        if i != j:
            checksum, bucket = plain_hash_pair(i, j)
            sums[bucket >> 48] += checksum if i < j else -checksum
    return [total & BITS_64 for total in sums]


def ends_of(edges: list[tuple[int, int]], first: int = 0, dtype: type = np.int64) -> np.ndarray:
    return np.array(edges, dtype=dtype).reshape(-1, 2).T + np.array(first, dtype=dtype)


def checksums_of(edges: list[tuple[int, int]]) -> np.ndarray:
    start, end = ends_of(edges)
    checksums, out = np.zeros(NUM_BUCKETS, dtype=np.uint64), np.empty((2, len(edges)), dtype=np.int64)
    select_edges(start, end, 0, np.zeros(1 << 20, np.uint8), False, 0, 0, FORWARD, checksums, *out)
    return checksums


@given(i=st.integers(0, 2**40), j=st.integers(0, 2**40))
def test_hash_is_that_of_plain_python_and_of_both_directions(i: int, j: int) -> None:
    assert tuple(map(int, hash_pair(i, j))) == plain_hash_pair(i, j) == tuple(map(int, hash_pair(j, i)))


@given(
    edges=pairs,
    states=st.lists(
        st.sampled_from([0, PRESENT, PRESENT | LABELED, PRESENT | LABELED | SCORED]),
        min_size=NUM_NODES,
        max_size=NUM_NODES,
    ),
    choice=st.sampled_from(sorted(BITS_NEEDED)),
    direction=st.sampled_from([BOTH, FORWARD, BACKWARD]),
    reads_state=st.booleans(),
    first=st.sampled_from([0, -3, 100]),
    dtype=st.sampled_from([np.int64, np.int32]),
)
def test_selection_is_that_of_a_plain_loop(edges, states, choice, direction, reads_state, first, dtype) -> None:
    edges = [*edges, (0, NUM_NODES), (-1, 0)]  # the last ones are out of range
    selected, unknown, qualified = [], [], []
    for e, (i, j) in enumerate(edges):
        if not (0 <= i < NUM_NODES and 0 <= j < NUM_NODES) or (reads_state and not states[i] & states[j] & PRESENT):
            unknown.append(e)
            continue
        scored = sum(bool(states[k] & SCORED) for k in (i, j))
        needed = {"both": 2, "any": 1, "all": 0}[choice]
        if i == j or (reads_state and (scored < needed or not states[i] & states[j] & LABELED)):
            continue
        qualified.append((i, j))
        if direction == BOTH or (i < j) == (direction == FORWARD):
            selected.append((i, j))
    start, end = ends_of(edges, first, dtype)
    checksums, out = np.zeros(NUM_BUCKETS, dtype=np.uint64), np.empty((2, len(edges)), dtype=np.int64)
    options = np.array(states, dtype=np.uint8), reads_state, *BITS_NEEDED[choice], direction
    num, *counts = select_edges(start, end, first, *options, checksums, *out)
    assert list(zip(*out[:, :num].tolist(), strict=True)) == selected
    forward = sum(i < j for i, j in qualified)
    assert counts == [forward, len(qualified) - forward, len(unknown), unknown[0]]
    assert checksums.tolist() == plain_checksums(qualified)


@given(edges=pairs, cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 100))
def test_checksums_of_parts_add_up_in_any_order(edges, cuts, seed) -> None:
    order = np.random.default_rng(seed).permutation(len(edges))
    limits = [0, *sorted(min(cut, len(edges)) for cut in cuts), len(edges)]
    parts = [[edges[k] for k in order[lo:hi]] for lo, hi in pairwise(limits)]
    total = np.sum([checksums_of(part) for part in parts], axis=0, dtype=np.uint64)
    assert np.array_equal(total, checksums_of(edges))


@given(edges=pairs)
def test_checksums_are_0_if_and_only_if_all_pairs_are_balanced(edges) -> None:
    listings = Counter((i, j) for i, j in edges if i != j)
    balanced = all(listings[i, j] == listings[j, i] for i, j in product(range(NUM_NODES), repeat=2))
    assert checksums_of(edges).any() != balanced
    assert not checksums_of([*edges, *((j, i) for i, j in edges)]).any()


def test_each_unbalanced_bucket_is_found_around_a_hub() -> None:
    """Pairs of one node have hashes that differ in one input only. Half of them are listed forward, half backward."""
    edges = [(0, k) if k % 2 else (k, 0) for k in range(1, 200_001)]
    found = np.flatnonzero(checksums_of(edges))
    assert found.tolist() == sorted({plain_hash_pair(i, j)[1] >> 48 for i, j in edges})
    assert len(found) > 0.9 * NUM_BUCKETS  # pairs of a hub are spread over the buckets


def test_buckets_and_checksums_share_no_bits() -> None:
    """Within a bucket, the high bits of the checksums of a hub's pairs are those of random numbers."""
    hashes = [plain_hash_pair(0, k) for k in range(1, 200_001)]
    same_bits = np.mean([checksum >> 60 == bucket >> 60 for checksum, bucket in hashes])
    assert same_bits == pytest.approx(1 / 16, abs=0.003)
    multiples = [(checksum * 0xA24BAED4963EE407 & BITS_64) >> 60 == bucket >> 60 for checksum, bucket in hashes]
    assert np.mean(multiples) == pytest.approx(1 / 16, abs=0.003)


@given(edges=pairs, num_partitions=st.integers(1, 5))
def test_partitions_keep_directions_together(edges, num_partitions) -> None:
    wanted = np.random.default_rng(0).random(NUM_BUCKETS) < 0.5
    (start, end), (partition, reverse) = ends_of(edges), np.empty((2, len(edges)), dtype=np.int16)
    select_buckets(start, end, wanted, num_partitions, partition)
    select_buckets(end, start, wanted, num_partitions, reverse)
    assert np.array_equal(partition, reverse)
    for (i, j), k in zip(edges, partition.tolist(), strict=True):
        checksum, bucket = plain_hash_pair(i, j)
        assert k == ((checksum >> 32) % num_partitions if wanted[bucket >> 48] else -1)


@given(rows=st.lists(st.integers(-1, 6), max_size=10), seed=st.integers(0, 100))
def test_bits_are_set_once(rows, seed) -> None:
    state = np.random.default_rng(seed).integers(0, 2, 5).astype(np.uint8) * PRESENT
    expected, unknown, twice = state.tolist(), [], []
    for k, row in enumerate(rows):
        if not 0 <= row < 5 or not expected[row] & PRESENT:
            unknown.append(k)
        elif expected[row] & LABELED:
            twice.append(k)
        else:
            expected[row] |= LABELED
    found = set_bits(np.array(rows, dtype=np.int64), state, PRESENT, LABELED)
    assert found == ((unknown or [-1])[0], (twice or [-1])[0])
    assert state.tolist() == expected
