"""Sums of scores over many nodes and edges in compiled loops.

The results are bit for bit those of `edgewise.metrics.elements` and `edgewise.metrics.sums`, the implementations with
tensors: the terms are the same float64 expressions, and sums are exact. ``fields`` are the names of the fields of a
node's record. ``unit`` and ``fraction_bits`` define how a number is rounded to fixed point, ``low_bits`` how it is
split into limbs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]

EDGES_PER_BLOCK = 1024


def _structured_view(records: Float[Tensor, "nodes fields"], fields: Sequence[str]) -> Array:
    """Return a structured view of records, whose fields loops access by name."""
    layout = np.dtype([(field, np.float64) for field in fields], align=True)
    return records.numpy().view(layout)[:, 0]


def fill_node_records(
    fields: Sequence[str],
    records: Float[Tensor, "nodes fields"],
    probs: Float[Tensor, "nodes classes"],
    y: Int[Tensor, " nodes"],
    unit: float,
) -> None:
    """Fill all fields of the records except the NLL; squares are summed as integer multiples of 1 / ``unit``."""
    out, p, label = _structured_view(records, fields), probs.numpy(), y.numpy()
    map_slices(lambda lo, hi: _reduce_nodes(p[lo:hi], label[lo:hi], out[lo:hi], unit), len(p))


@compiled
def _reduce_nodes(probs: Array, y: Array, out: Array, unit: float) -> None:
    for i in range(probs.shape[0]):
        highest, prediction, squares = np.float64(probs[i, 0]), 0, np.int64(0)
        for c in range(probs.shape[1]):
            p = np.float64(probs[i, c])
            squares += np.int64(np.rint(p * p * unit))
            if p > highest:
                highest, prediction = p, c
        out[i].confidence = highest
        out[i].p_true = probs[i, max(y[i], 0)]
        out[i].square_sum = np.float64(squares) / unit
        out[i].code = 2 * y[i] + (prediction == y[i]) if y[i] >= 0 else -1


def sum_elements(
    confidence: Float[Tensor, " elements"],
    correct: Bool[Tensor, " elements"],
    nll: Float[Tensor, " elements"],
    brier: Float[Tensor, " elements"],
    bins: Int[Tensor, " elements"],
    group: Int[Tensor, " elements"],
    n_groups: int,
    n_bins: int,
    fraction_bits: int,
    low_bits: int,
) -> Int[Tensor, "groups rows 4"]:
    """Sum elements into one table per group."""
    columns = [column.numpy() for column in (group, bins, correct, confidence, nll, brier)]

    def sum_slice(lo: int, hi: int) -> Array:
        tables = np.zeros((n_groups, n_bins + 2, 4), dtype=np.int64)
        _sum_elements(tables, 2.0**fraction_bits, low_bits, *(column[lo:hi] for column in columns))
        return tables

    return torch.from_numpy(np.stack(map_slices(sum_slice, len(bins))).sum(0))


@compiled
def _sum_elements(
    tables: Array,
    one: float,
    low_bits: int,
    groups: Array,
    rows: Array,
    correct: Array,
    confidence: Array,
    nll: Array,
    brier: Array,
) -> None:
    for e in range(len(rows)):
        _add(tables[groups[e]], one, low_bits, rows[e], correct[e], confidence[e], nll[e], brier[e])


def sum_nodes(
    fields: Sequence[str],
    records: Float[Tensor, "nodes fields"],
    mask: Bool[Tensor, " nodes"],
    n_bins: int,
    right: bool,
    fraction_bits: int,
    low_bits: int,
) -> Int[Tensor, "rows 4"]:
    """Sum the nodes in the mask."""
    nodes, inside = _structured_view(records, fields), mask.numpy()

    def sum_slice(lo: int, hi: int) -> Array:
        table = np.zeros((n_bins + 2, 4), dtype=np.int64)
        _sum_nodes(table, 2.0**fraction_bits, low_bits, nodes[lo:hi], inside[lo:hi], right)
        return table

    return torch.from_numpy(np.stack(map_slices(sum_slice, len(nodes))).sum(0))


@compiled
def _bin_index(confidence: float, n_bins: int, right: bool) -> int:
    """Return the index of the equal-width bin, as `edgewise.metrics.sums.bin_index` does."""
    index = int(np.ceil(confidence * n_bins)) - 1 if right else int(np.floor(confidence * n_bins))
    return min(max(index, 0), n_bins - 1)


@compiled
def _sum_nodes(table: Array, one: float, low_bits: int, nodes: Array, inside: Array, right: bool) -> None:
    n_bins = len(table) - 2
    for i in range(len(nodes)):
        if inside[i]:
            node = nodes[i]
            brier = 1.0 - 2.0 * node.p_true + node.square_sum
            row = _bin_index(node.confidence, n_bins, right)
            _add(table, one, low_bits, row, int(node.code) & 1, node.confidence, node.nll, brier)


@compiled
def _add(
    table: Array, one: float, low_bits: int, row: int, correct: int, confidence: float, nll: float, brier: float
) -> None:
    """Add one element to a table (see `edgewise.metrics.sums`)."""
    n_bins, low_mask, possible = len(table) - 2, (1 << low_bits) - 1, nll < np.inf
    table[row, 0] += 1
    table[row, 1] += correct
    fixed = np.int64(np.rint(confidence * one))
    table[row, 2] += fixed >> low_bits
    table[row, 3] += fixed & low_mask
    fixed = np.int64(np.rint((nll if possible else 0.0) * one))
    table[n_bins, 0] += fixed >> low_bits
    table[n_bins, 1] += fixed & low_mask
    fixed = np.int64(np.rint(brier * one))
    table[n_bins, 2] += fixed >> low_bits
    table[n_bins, 3] += fixed & low_mask
    table[n_bins + 1, 0] += not possible


def row_products(
    p: Float[Tensor, "nodes classes"], ends: Int[Tensor, "2 edges"], unit: float
) -> Float[Tensor, " edges"]:
    """Compute Σ_c p_i(c) p_j(c) for each edge, with products rounded to multiples of 1 / ``unit``."""
    out = np.empty(ends.shape[1])
    rows, start, end = p.numpy(), ends[0].numpy(), ends[1].numpy()
    map_slices(lambda lo, hi: _row_products(rows, start[lo:hi], end[lo:hi], out[lo:hi], unit), len(out))
    return torch.from_numpy(out)


@compiled
def _row_products(p: Array, start: Array, end: Array, out: Array, unit: float) -> None:
    for e in range(len(start)):
        total = np.int64(0)
        for c in range(p.shape[1]):
            total += np.int64(np.rint(np.float64(p[start[e], c]) * np.float64(p[end[e], c]) * unit))
        out[e] = np.float64(total) / unit


def sum_independent_edges(
    fields: Sequence[str],
    records: Float[Tensor, "nodes fields"],
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    touched: Bool[Tensor, "2 nodes"],
    n_bins: int,
    right: bool,
    fraction_bits: int,
    low_bits: int,
) -> Int[Tensor, "2 rows 4"]:
    """Sum the kept edges of independent nodes into the tables of (agree, disagree).

    ``touched`` is updated in place: the nodes that have an edge of each view.
    """
    nodes, start, end, kept = (
        _structured_view(records, fields),
        edge_index[0].numpy(),
        edge_index[1].numpy(),
        keep.numpy(),
    )
    one = 2.0**fraction_bits

    def sum_slice(lo: int, hi: int) -> tuple[Array, Array]:
        table = np.zeros((2, n_bins + 2, 4), dtype=np.int64)
        # Each thread has its own flags, to avoid false sharing of cache lines.
        seen = np.zeros((2, len(nodes)), dtype=np.bool_)
        _sum_edges(nodes, start[lo:hi], end[lo:hi], kept[lo:hi], seen, n_bins, right, one, low_bits, table)
        return table, seen

    total = np.zeros((2, n_bins + 2, 4), dtype=np.int64)
    for table, seen in map_slices(sum_slice, start.shape[0]):
        total += table
        touched |= torch.from_numpy(seen)
    return torch.from_numpy(total)


@compiled
def _sum_edges(
    nodes: Array,
    start: Array,
    end: Array,
    kept: Array,
    seen: Array,
    n_bins: int,
    right: bool,
    one: float,
    low_bits: int,
    table: Array,
) -> None:
    """Sum edges in blocks: find the kept edges, compute their terms, sum them, and flag their ends in ``seen``.

    With several short loops instead of one long loop, the processor fetches many records at once, because no address
    depends on the value of another record.
    """
    edges, views, cells, counts = np.empty((4, EDGES_PER_BLOCK), dtype=np.int64)
    confidences, nlls, briers = np.empty((3, EDGES_PER_BLOCK), dtype=np.float64)
    for first in range(0, start.shape[0], EDGES_PER_BLOCK):
        num = 0
        for e in range(first, min(first + EDGES_PER_BLOCK, start.shape[0])):
            edges[num] = e
            num += kept[e]
        for k in range(num):
            i, j = nodes[start[edges[k]]], nodes[end[edges[k]]]
            code_i, code_j = np.int64(i.code), np.int64(j.code)
            confidence, nll = i.confidence * j.confidence, i.nll + j.nll
            p_true, square_sum = i.p_true * j.p_true, i.square_sum * j.square_sum
            views[k] = (code_i >> 1) != (code_j >> 1)
            cells[k] = views[k] * n_bins + _bin_index(confidence, n_bins, right)
            counts[k] = 1 + ((code_i & code_j & 1) << 32)
            confidences[k], nlls[k], briers[k] = confidence, nll, 1.0 - 2.0 * p_true + square_sum
        _sum_block(num, views, cells, counts, confidences, nlls, briers, n_bins, one, low_bits, table)
        for k in range(num):
            seen[views[k], start[edges[k]]] = True
            seen[views[k], end[edges[k]]] = True


@compiled
def _sum_block(
    num: int,
    views: Array,
    cells: Array,
    counts: Array,
    confidences: Array,
    nlls: Array,
    briers: Array,
    n_bins: int,
    one: float,
    low_bits: int,
    table: Array,
) -> None:
    """Add a block to the tables of (agree, disagree).

    Within a block, sums of confidences and Brier scores do not overflow a fixed-point int64, so they are split into
    limbs once per block. ``counts`` holds 1 in its lower half and correctness in its upper half. Terms of disagreeing
    edges are also summed separately, with a mask instead of a branch, because the view of an edge is unpredictable.
    """
    low_mask = (1 << low_bits) - 1
    count, confidence = np.zeros((2, 2 * n_bins), dtype=np.int64)
    nll_high = nll_low = brier = impossible = np.int64(0)
    disagree_high = disagree_low = disagree_brier = disagree_impossible = np.int64(0)
    for k in range(num):
        mask = -views[k]
        count[cells[k]] += counts[k]
        confidence[cells[k]] += np.int64(np.rint(confidences[k] * one))
        is_impossible = np.int64(nlls[k] == np.inf)
        fixed = np.int64(np.rint((0.0 if is_impossible else nlls[k]) * one))
        high, low = fixed >> low_bits, fixed & low_mask
        fixed = np.int64(np.rint(briers[k] * one))
        nll_high, nll_low, brier = nll_high + high, nll_low + low, brier + fixed
        impossible += is_impossible
        disagree_high, disagree_low = disagree_high + (high & mask), disagree_low + (low & mask)
        disagree_brier, disagree_impossible = (
            disagree_brier + (fixed & mask),
            disagree_impossible + (is_impossible & mask),
        )
    for cell in range(2 * n_bins):
        view, row = divmod(cell, n_bins)
        table[view, row, 0] += count[cell] & 0xFFFFFFFF
        table[view, row, 1] += count[cell] >> 32
        table[view, row, 2] += confidence[cell] >> low_bits
        table[view, row, 3] += confidence[cell] & low_mask
    table[0, n_bins, 0] += nll_high - disagree_high
    table[0, n_bins, 1] += nll_low - disagree_low
    table[0, n_bins, 2] += (brier - disagree_brier) >> low_bits
    table[0, n_bins, 3] += (brier - disagree_brier) & low_mask
    table[0, n_bins + 1, 0] += impossible - disagree_impossible
    table[1, n_bins, 0] += disagree_high
    table[1, n_bins, 1] += disagree_low
    table[1, n_bins, 2] += disagree_brier >> low_bits
    table[1, n_bins, 3] += disagree_brier & low_mask
    table[1, n_bins + 1, 0] += disagree_impossible
