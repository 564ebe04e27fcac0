"""Compiled loops for many nodes and edges.

They do what `edgewise.metrics.elements` and `edgewise.metrics.collect` do with tensors, bit for bit: the terms are the
same float64 expressions, and sums are exact, so that nobody can tell which of the two made a score.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, in_slices
from edgewise.metrics import elements as tensors
from edgewise.metrics import sums as exact
from edgewise.metrics.elements import Records
from edgewise.metrics.sums import Binning, Elements, carried

Array = NDArray[Any]

BLOCK = 1024

# Spelled out here again, because they are compiled into the loops (see `edgewise.kernels.dispatch`).
CONFIDENCE, NLL, P_TRUE, SQUARE_SUM, CODE = range(5)
ONE, LOW_BITS, LOW_MASK, PRODUCT_UNIT = 2.0**50, 30, (1 << 30) - 1, 2.0**60
if (
    *(tensors.CONFIDENCE, tensors.NLL, tensors.P_TRUE, tensors.SQUARE_SUM, tensors.CODE),
    *(2.0**exact.FRACTION_BITS, exact.LOW_BITS, exact.LOW_MASK, tensors.PRODUCT_UNIT),
) != (CONFIDENCE, NLL, P_TRUE, SQUARE_SUM, CODE, ONE, LOW_BITS, LOW_MASK, PRODUCT_UNIT):
    raise ImportError("Expected constants of compiled_sums.py as in elements.py and exact.py. Change both.")


def fill_node_records(records: Records, probs: Float[Tensor, "nodes classes"], y: Int[Tensor, " nodes"]) -> None:
    """Write all columns of the records but the NLL."""
    out, p, label = records.numpy(), probs.numpy(), y.numpy()
    in_slices(lambda lo, hi: _reduce_nodes(p[lo:hi], label[lo:hi], out[lo:hi]), len(p))


@compiled
def _reduce_nodes(probs: Array, y: Array, out: Array) -> None:
    for i in range(probs.shape[0]):
        highest, prediction, squares = np.float64(probs[i, 0]), 0, np.int64(0)
        for c in range(probs.shape[1]):
            p = np.float64(probs[i, c])
            squares += np.int64(np.rint(p * p * PRODUCT_UNIT))
            if p > highest:
                highest, prediction = p, c
        out[i, CONFIDENCE] = highest
        out[i, P_TRUE] = probs[i, max(y[i], 0)]
        out[i, SQUARE_SUM] = np.float64(squares) / PRODUCT_UNIT
        out[i, CODE] = 2 * y[i] + (prediction == y[i]) if y[i] >= 0 else -1


def sum_elements(
    elements: Elements, bins: Int[Tensor, " elements"], group: Int[Tensor, " elements"], n_groups: int, n_bins: int
) -> Int[Tensor, "groups rows 4"]:
    """Sum elements into the table of their group."""
    confidence, correct, nll, brier = (column.numpy() for column in elements)
    rows, groups = bins.numpy(), group.numpy()

    def sum_slice(lo: int, hi: int) -> Array:
        tables = np.zeros((n_groups, n_bins + 2, 4), dtype=np.int64)
        part = slice(lo, hi)
        _sum_elements(tables, groups[part], rows[part], correct[part], confidence[part], nll[part], brier[part])
        return tables

    return torch.from_numpy(np.stack(in_slices(sum_slice, len(rows))).sum(0))


@compiled
def _sum_elements(
    tables: Array, groups: Array, rows: Array, correct: Array, confidence: Array, nll: Array, brier: Array
) -> None:
    n_bins = tables.shape[1] - 2
    for e in range(len(rows)):
        _add(tables, groups[e], rows[e], n_bins, correct[e], confidence[e], nll[e], brier[e])


def sum_nodes(records: Records, mask: Bool[Tensor, " nodes"], binning: Binning) -> Int[Tensor, "rows 4"]:
    """Sum the nodes of the mask."""
    nodes, inside, n_bins, right = records.numpy(), mask.numpy(), binning.n_bins, binning.closed == "right"

    def sum_slice(lo: int, hi: int) -> Array:
        tables = np.zeros((1, n_bins + 2, 4), dtype=np.int64)
        _sum_nodes(nodes[lo:hi], inside[lo:hi], n_bins, right, tables)
        return tables

    return torch.from_numpy(np.concatenate(in_slices(sum_slice, len(nodes))).sum(0))


@compiled
def _sum_nodes(nodes: Array, inside: Array, n_bins: int, right: bool, tables: Array) -> None:
    for i in range(len(nodes)):
        if inside[i]:
            confidence, correct = nodes[i, CONFIDENCE], int(nodes[i, CODE]) & 1
            index = int(np.ceil(confidence * n_bins)) - 1 if right else int(np.floor(confidence * n_bins))
            brier = 1.0 - 2.0 * nodes[i, P_TRUE] + nodes[i, SQUARE_SUM]
            _add(tables, 0, min(max(index, 0), n_bins - 1), n_bins, correct, confidence, nodes[i, NLL], brier)


def row_products(p: Float[Tensor, "nodes classes"], ends: Int[Tensor, "2 edges"]) -> Float[Tensor, " edges"]:
    """Give Σ_c p_i(c) p_j(c) for each edge."""
    out = np.empty(ends.shape[1])
    rows, start, end = p.numpy(), ends[0].numpy(), ends[1].numpy()
    in_slices(lambda lo, hi: _row_products(rows, start[lo:hi], end[lo:hi], out[lo:hi]), len(out))
    return torch.from_numpy(out)


@compiled
def _row_products(p: Array, start: Array, end: Array, out: Array) -> None:
    for e in range(len(start)):
        total = np.int64(0)
        for c in range(p.shape[1]):
            total += np.int64(np.rint(np.float64(p[start[e], c]) * np.float64(p[end[e], c]) * PRODUCT_UNIT))
        out[e] = np.float64(total) / PRODUCT_UNIT


@compiled
def _add(
    tables: Array, group: int, row: int, n_bins: int, correct: int, confidence: float, nll: float, brier: float
) -> None:
    """Add one element to the table of its group (see `edgewise.metrics.sums`)."""
    possible = nll < np.inf
    tables[group, row, 0] += 1
    tables[group, row, 1] += correct
    fixed = np.int64(np.rint(confidence * ONE))
    tables[group, row, 2] += fixed >> LOW_BITS
    tables[group, row, 3] += fixed & LOW_MASK
    fixed = np.int64(np.rint((nll if possible else 0.0) * ONE))
    tables[group, n_bins, 0] += fixed >> LOW_BITS
    tables[group, n_bins, 1] += fixed & LOW_MASK
    fixed = np.int64(np.rint(brier * ONE))
    tables[group, n_bins, 2] += fixed >> LOW_BITS
    tables[group, n_bins, 3] += fixed & LOW_MASK
    tables[group, n_bins + 1, 0] += not possible


def sum_product_edges(
    records: Records,
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    touched: Bool[Tensor, "2 nodes"],
    binning: Binning,
) -> Int[Tensor, "2 rows 4"]:
    """Sum the kept edges into the tables of (agree, disagree) and note in ``touched`` which nodes have such an edge."""
    nodes, start, end, kept = records.numpy(), edge_index[0].numpy(), edge_index[1].numpy(), keep.numpy()
    n_bins, right = binning.n_bins, binning.closed == "right"

    def sum_slice(lo: int, hi: int) -> tuple[Array, Array]:
        table = np.zeros((2, n_bins + 2, 4), dtype=np.int64)
        # Each thread has flags of its own: two cores that write into one cache line wait for each other.
        seen = np.zeros((2, len(nodes)), dtype=np.bool_)
        _sum_edges(nodes, start[lo:hi], end[lo:hi], kept[lo:hi], seen, n_bins, right, table)
        return table, seen

    total = np.zeros((2, n_bins + 2, 4), dtype=np.int64)
    for table, seen in in_slices(sum_slice, start.shape[0]):
        total += table
        touched |= torch.from_numpy(seen)
    return carried(torch.from_numpy(total), n_bins)


@compiled
def _sum_edges(
    nodes: Array, start: Array, end: Array, kept: Array, seen: Array, n_bins: int, right: bool, table: Array
) -> None:
    """Score blocks of edges: find the kept ones, compute their terms, add them up, and note their ends.

    Short loops instead of one long one let the processor fetch many records at once: where a record lies never depends
    on the value of another.
    """
    edges, views, cells, counts = np.empty((4, BLOCK), dtype=np.int64)
    confidences, nlls, briers = np.empty((3, BLOCK), dtype=np.float64)
    for first in range(0, start.shape[0], BLOCK):
        num = 0
        for e in range(first, min(first + BLOCK, start.shape[0])):
            edges[num] = e
            num += kept[e]
        for k in range(num):
            i, j = start[edges[k]], end[edges[k]]
            code_i, code_j = np.int64(nodes[i, CODE]), np.int64(nodes[j, CODE])
            confidence = nodes[i, CONFIDENCE] * nodes[j, CONFIDENCE]
            p_true, square_sum = nodes[i, P_TRUE] * nodes[j, P_TRUE], nodes[i, SQUARE_SUM] * nodes[j, SQUARE_SUM]
            index = int(np.ceil(confidence * n_bins)) - 1 if right else int(np.floor(confidence * n_bins))
            views[k] = (code_i >> 1) != (code_j >> 1)
            cells[k] = views[k] * n_bins + min(max(index, 0), n_bins - 1)
            counts[k] = 1 + ((code_i & code_j & 1) << 32)
            confidences[k], nlls[k], briers[k] = (
                confidence,
                nodes[i, NLL] + nodes[j, NLL],
                1.0 - 2.0 * p_true + square_sum,
            )
        _sum_block(num, views, cells, counts, confidences, nlls, briers, n_bins, table)
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
    table: Array,
) -> None:
    """Add a block to the tables of (agree, disagree).

    Within a block confidences and Brier scores do not overflow as whole fixed-point numbers, so they are cut into limbs
    once a block; ``counts`` carries 1 in its lower half and correctness in its upper half. What falls on disagreeing
    edges is also summed apart, by a mask and not by a branch: which way it goes cannot be foreseen.
    """
    count, confidence = np.zeros((2, 2 * n_bins), dtype=np.int64)
    nll_high = nll_low = brier = impossible = np.int64(0)
    apart_high = apart_low = apart_brier = apart_impossible = np.int64(0)
    for k in range(num):
        mask = -views[k]
        count[cells[k]] += counts[k]
        confidence[cells[k]] += np.int64(np.rint(confidences[k] * ONE))
        is_impossible = np.int64(nlls[k] == np.inf)
        fixed = np.int64(np.rint((0.0 if is_impossible else nlls[k]) * ONE))
        high, low = fixed >> LOW_BITS, fixed & LOW_MASK
        fixed = np.int64(np.rint(briers[k] * ONE))
        nll_high, nll_low, brier = nll_high + high, nll_low + low, brier + fixed
        impossible += is_impossible
        apart_high, apart_low = apart_high + (high & mask), apart_low + (low & mask)
        apart_brier, apart_impossible = apart_brier + (fixed & mask), apart_impossible + (is_impossible & mask)
    for cell in range(2 * n_bins):
        view, row = divmod(cell, n_bins)
        table[view, row, 0] += count[cell] & 0xFFFFFFFF
        table[view, row, 1] += count[cell] >> 32
        table[view, row, 2] += confidence[cell] >> LOW_BITS
        table[view, row, 3] += confidence[cell] & LOW_MASK
    table[0, n_bins, 0] += nll_high - apart_high
    table[0, n_bins, 1] += nll_low - apart_low
    table[0, n_bins, 2] += (brier - apart_brier) >> LOW_BITS
    table[0, n_bins, 3] += (brier - apart_brier) & LOW_MASK
    table[0, n_bins + 1, 0] += impossible - apart_impossible
    table[1, n_bins, 0] += apart_high
    table[1, n_bins, 1] += apart_low
    table[1, n_bins, 2] += apart_brier >> LOW_BITS
    table[1, n_bins, 3] += apart_brier & LOW_MASK
    table[1, n_bins + 1, 0] += apart_impossible
