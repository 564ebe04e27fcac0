"""Loops over a stream of edges against plain ones: selection, degrees in bytes, sums of slices, threads."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.kernels.edge_stream import (
    BACKWARD,
    BITS_NEEDED,
    BOTH,
    FORWARD,
    LABELED,
    NUM_BUCKETS,
    PRESENT,
    SCORED,
    select_edges,
)
from edgewise.kernels.score_sums import sum_edge_slice, sum_independent_edges
from edgewise.metrics.elements import RECORD_COLUMNS, node_records
from edgewise.metrics.sums import FRACTION_BITS, LOW_BITS
from edgewise.tables.parts import map_batches

STATES = (0, PRESENT, PRESENT | LABELED, PRESENT | LABELED | SCORED)
NO_CHECKSUMS = np.empty(0, dtype=np.uint64)


def run_selection(ends, state, direction, checksums, edge_choice="both", first=0):
    out = np.empty((2, ends.shape[1]), dtype=np.int64)
    options = first, state, True, *BITS_NEEDED[edge_choice], direction, checksums
    num, *counts = select_edges(ends[0], ends[1], *options, *out)
    return out[:, :num].T.tolist(), counts


@given(
    st.lists(st.sampled_from(STATES), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(8, 16), st.integers(8, 16)), max_size=30),
    st.sampled_from(["both", "any", "all"]),
    st.sampled_from([BOTH, FORWARD, BACKWARD]),
)
def test_selection_is_that_of_a_plain_loop(states, edges, edge_choice, direction):
    selected, forward, backward, unknown = list[list[int]](), 0, 0, list[int]()
    for e, (start, end) in enumerate(edges):
        i, j = start - 10, end - 10
        if not all(0 <= node < len(states) and states[node] & PRESENT for node in (i, j)):
            unknown.append(e)
            continue
        scored = [bool(states[node] & SCORED) for node in (i, j)]
        labeled = all(states[node] & LABELED for node in (i, j))
        if i == j or not labeled or not {"both": all(scored), "any": any(scored), "all": True}[edge_choice]:
            continue
        forward, backward = forward + (i < j), backward + (i > j)
        if direction == BOTH or (direction == FORWARD) == (i < j):
            selected.append([i, j])
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy()
    found, counts = run_selection(ends, np.array(states, dtype=np.uint8), direction, NO_CHECKSUMS, edge_choice, 10)
    assert found == selected
    assert counts == [forward, backward, len(unknown), unknown[0] if unknown else -1]


def test_checksums_cancel_if_and_only_if_each_pair_is_listed_equally_often_in_both_directions():
    rng = np.random.default_rng(0)
    state, forward = np.full(1000, STATES[-1], dtype=np.uint8), rng.integers(1000, size=(2, 5000))
    checksums = np.zeros(NUM_BUCKETS, dtype=np.uint64)
    run_selection(forward, state, FORWARD, checksums)
    assert checksums.any()
    run_selection(forward[::-1, ::-1].copy(), state, FORWARD, checksums)
    assert not checksums.any()
    run_selection(np.array([[3], [4]]), state, FORWARD, checksums)
    assert np.count_nonzero(checksums) == 1


def records_of(num_nodes, num_classes=3):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(num_nodes, num_classes, generator=generator).softmax(-1)
    return node_records(probs, torch.randint(num_classes, (num_nodes,), generator=generator))


def test_sums_of_a_slice_are_those_of_edges_in_memory():
    records, rng = records_of(50), np.random.default_rng(0)
    ends = rng.integers(50, size=(2, 20_000))  # several blocks, and degrees above 256
    options = 15, True, FRACTION_BITS, LOW_BITS
    wide = torch.zeros(torch.get_num_threads(), 2, 50, dtype=torch.int32)
    keep = torch.ones(20_000, dtype=torch.bool)
    (expected,) = sum_independent_edges(RECORD_COLUMNS, records, torch.from_numpy(ends), keep, wide, (), *options)

    degree = np.zeros((2, 50), dtype=np.uint8)
    tables, overflows = sum_edge_slice(RECORD_COLUMNS, records.numpy(), ends[0], ends[1], degree, *options)
    assert np.array_equal(tables, expected.numpy())
    whole = degree.astype(np.int64)
    np.add.at(whole, tuple(overflows), 256)
    assert np.array_equal(whole, wide.sum(0).numpy())
    assert whole.max() > 256


@pytest.mark.parametrize("degree", [255, 256, 257, 70_000])
def test_degrees_above_a_byte_count_in_full(degree):
    probs = torch.tensor([[0.75, 0.25]]).repeat(degree + 1, 1)
    y, hub = torch.zeros(degree + 1, dtype=torch.long), torch.zeros(degree, dtype=torch.long)
    edges = torch.stack((hub, torch.arange(1, degree + 1)))
    ids = np.arange(degree + 1)
    found = ew.evaluate_tables(
        pa.table({"nid": ids, "pred": pa.array(probs.tolist())}),
        pa.table({"nid": ids, "label": y.numpy()}),
        pa.table({"src": edges[0].numpy(), "dst": edges[1].numpy()}),
    )
    expected = ew.evaluate(probs, y, edges, same_label=False)
    assert all(torch.equal(sums.table, found._sums[view].table) for view, sums in expected._sums.items())


def test_batches_are_mapped_in_order_and_few_are_read_before_they_are_used():
    num_read = 0

    def read() -> Iterator[int]:
        nonlocal num_read
        while num_read < 100:
            num_read += 1
            yield num_read

    for k, result in enumerate(map_batches(lambda number: number**2, read(), 2), 1):
        assert result == k**2
        assert num_read <= k + 3


def test_error_of_the_first_bad_batch_is_raised():
    def check(number: int) -> int:
        if number >= 5:
            raise ValueError(f"batch {number}")
        return number

    results = map_batches(check, iter(range(100)), 4)
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="batch 5"):
        next(results)
