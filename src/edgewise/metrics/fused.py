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

from edgewise.data.compiled import compiled, in_slices
from edgewise.metrics.binning import Binning
from edgewise.metrics.elements import CODE, CONFIDENCE, NLL, P_TRUE, SQUARE_SUM, SQUARE_UNIT, Records
from edgewise.metrics.exact import FRACTION_BITS, LOW_BITS, LOW_MASK
from edgewise.metrics.sums import carried

Array = NDArray[Any]

BLOCK = 512
ONE = 2.0**FRACTION_BITS


def first_bad_row_of_many(p: Float[Tensor, "rows classes"], tolerance: float) -> int | None:
    """Find the first row that is no distribution."""
    rows = p.numpy()

    def search(lo: int, hi: int) -> int | None:
        row: int = _first_bad_row(rows[lo:hi], tolerance)
        return lo + row if row < hi - lo else None

    return next((row for row in in_slices(search, len(rows)) if row is not None), None)


@compiled
def _first_bad_row(p: Array, tolerance: float) -> int:
    for i in range(p.shape[0]):
        total, lowest = 0.0, 0.0
        for c in range(p.shape[1]):
            total += p[i, c]
            lowest = min(lowest, p[i, c])
        if not (abs(total - 1.0) <= tolerance and lowest >= 0.0):  # NaN fails every comparison
            return i
    return len(p)


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
            squares += np.int64(np.rint(p * p * SQUARE_UNIT))
            if p > highest:
                highest, prediction = p, c
        out[i, CONFIDENCE] = highest
        out[i, P_TRUE] = probs[i, max(y[i], 0)]
        out[i, SQUARE_SUM] = np.float64(squares) / SQUARE_UNIT
        out[i, CODE] = 2 * y[i] + (prediction == y[i]) if y[i] >= 0 else -1


def sum_product_edges(
    records: Records,
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    touched: Bool[Tensor, "2 nodes"],
    binning: Binning,
) -> Int[Tensor, "2 rows 4"]:
    """Sum the kept edges into the tables of (agree, disagree) and note in ``touched`` which nodes have such an edge."""
    nodes, start, end = records.numpy(), edge_index[0].numpy(), edge_index[1].numpy()
    kept, seen = keep.numpy().view(np.uint8), touched.numpy().view(np.uint8)
    n_bins, right = binning.n_bins, binning.closed == "right"

    def sum_slice(lo: int, hi: int) -> Array:
        table = np.zeros((2, n_bins + 2, 4), dtype=np.int64)
        _sum_edges(nodes, start[lo:hi], end[lo:hi], kept[lo:hi], seen, n_bins, right, table)
        return table

    tables = np.stack(in_slices(sum_slice, start.shape[0]))
    return carried(torch.from_numpy(tables.sum(0)), n_bins)


@compiled
def _sum_edges(
    nodes: Array, start: Array, end: Array, kept: Array, seen: Array, n_bins: int, right: bool, table: Array
) -> None:
    """Score blocks of edges: find the kept ones, compute their terms, then add them up.

    Three short loops instead of one long one let the processor fetch many records at once: nothing that the first two
    do depends on the value of a record.
    """
    edges = np.empty(BLOCK, dtype=np.int64)
    views, bins, correct = np.empty((3, BLOCK), dtype=np.int64)
    terms = np.empty((BLOCK, 3), dtype=np.float64)
    for first in range(0, start.shape[0], BLOCK):
        num = 0
        for e in range(first, min(first + BLOCK, start.shape[0])):
            edges[num] = e
            num += kept[e]
        for k in range(num):
            a, b = nodes[start[edges[k]]], nodes[end[edges[k]]]
            code_a, code_b = np.int64(a[CODE]), np.int64(b[CODE])
            views[k] = (code_a >> 1) != (code_b >> 1)
            correct[k] = code_a & code_b & 1
            confidence = a[CONFIDENCE] * b[CONFIDENCE]
            scaled = confidence * n_bins
            index = int(np.ceil(scaled)) - 1 if right else int(np.floor(scaled))
            bins[k] = min(max(index, 0), n_bins - 1)
            terms[k, 0] = confidence
            terms[k, 1] = a[NLL] + b[NLL]
            terms[k, 2] = 1.0 - 2.0 * (a[P_TRUE] * b[P_TRUE]) + a[SQUARE_SUM] * b[SQUARE_SUM]
        for k in range(num):
            view, row = views[k], bins[k]
            possible = terms[k, 1] < np.inf
            fixed = np.int64(np.rint(terms[k, 0] * ONE))
            table[view, row, 0] += 1
            table[view, row, 1] += correct[k]
            table[view, row, 2] += fixed >> LOW_BITS
            table[view, row, 3] += fixed & LOW_MASK
            fixed = np.int64(np.rint((terms[k, 1] if possible else 0.0) * ONE))
            table[view, n_bins, 0] += fixed >> LOW_BITS
            table[view, n_bins, 1] += fixed & LOW_MASK
            fixed = np.int64(np.rint(terms[k, 2] * ONE))
            table[view, n_bins, 2] += fixed >> LOW_BITS
            table[view, n_bins, 3] += fixed & LOW_MASK
            table[view, n_bins + 1, 0] += not possible
            # Threads may write the same flag at once; they all write 1.
            seen[view, start[edges[k]]] = 1
            seen[view, end[edges[k]]] = 1
