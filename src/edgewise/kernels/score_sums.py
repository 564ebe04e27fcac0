"""Sums of scores over many nodes and edges in compiled loops.

The results are bit for bit those of `edgewise.metrics.elements` and `edgewise.metrics.sums`, the implementations with
tensors: the terms are the same float64 expressions, and sums are exact. ``fields`` are the names of the fields of a
node's record. ``unit`` and ``fraction_bits`` define how a number is rounded to fixed point, ``low_bits`` how it is
split into limbs.

Edges are processed in blocks. One loop computes the terms of a block into buffers that fit the second-level cache, and
another one, the same for all kinds of elements, sums them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]

EDGES_PER_BLOCK = 1 << 13
TERMS_PER_PARTIAL_SUM = 1 << 10
ROWS_PER_FETCH = 128
CLASSES_PER_CACHE_LINE = 16  # of float32
ONE_AS_INTEGER = int(np.float64(1.0).view(np.int64))  # the bits of 1.0


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


class _Terms(NamedTuple):
    """Buffers for the terms of a block of elements.

    ``view`` is 0 for elements of the first table and 1 for those of the second. ``cell`` is view · n_bins + bin.
    ``counts`` holds 1 in its lower half and correctness in its upper half.
    """

    view: Array
    cell: Array
    counts: Array
    confidence: Array
    nll: Array
    brier: Array

    @classmethod
    def empty(cls, length: int) -> "_Terms":
        """Allocate uninitialized buffers."""
        integers, floats = np.empty((3, length), dtype=np.int64), np.empty((3, length))
        return cls(*integers, *floats)


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
    """Sum elements into one table per group, at most two."""
    integers = group, group * n_bins + bins, 1 + (correct.long() << 32)
    terms = [column.contiguous().numpy() for column in (*integers, confidence, nll, brier)]

    def sum_slice(lo: int, hi: int) -> Array:
        tables = _Tables(n_bins, fraction_bits, low_bits)
        tables.add(hi - lo, _Terms(*(column[lo:hi] for column in terms)))
        return tables.sums

    return torch.from_numpy(np.stack(map_slices(sum_slice, len(bins))).sum(0)[:n_groups])


class _Tables:
    """Two tables of sums, and the memory for partial sums."""

    def __init__(self, n_bins: int, fraction_bits: int, low_bits: int):
        self.sums = np.zeros((2, n_bins + 2, 4), dtype=np.int64)
        self._count, self._confidence = (np.empty(2 * n_bins, dtype=np.int64) for _ in range(2))
        self._options = n_bins, 2.0**fraction_bits, low_bits

    def add(self, num: int, terms: _Terms) -> None:
        """Add the first ``num`` terms of a block."""
        _sum_terms(num, *terms, *self._options, self._count, self._confidence, self.sums)


@compiled
def _sum_terms(
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
    count: Array,
    confidence: Array,
    tables: Array,
) -> None:
    """Add terms to the two tables (see `edgewise.metrics.sums`).

    Partial sums of confidences and Brier scores do not overflow a fixed-point int64, so they are split into limbs once
    per partial sum. Terms of the second table are also summed separately, with a mask instead of a branch, because the
    view of an edge is unpredictable.
    """
    low_mask = (1 << low_bits) - 1
    for first in range(0, num, TERMS_PER_PARTIAL_SUM):
        count[:] = 0
        confidence[:] = 0
        nll_high = nll_low = brier = impossible = np.int64(0)
        second_high = second_low = second_brier = second_impossible = np.int64(0)
        for k in range(first, min(first + TERMS_PER_PARTIAL_SUM, num)):
            mask = -views[k]
            count[cells[k]] += counts[k]
            confidence[cells[k]] += np.int64(np.rint(confidences[k] * one))
            is_impossible = np.int64(nlls[k] == np.inf)
            fixed = np.int64(np.rint((0.0 if is_impossible else nlls[k]) * one))
            high, low = fixed >> low_bits, fixed & low_mask
            fixed = np.int64(np.rint(briers[k] * one))
            nll_high, nll_low, brier = nll_high + high, nll_low + low, brier + fixed
            impossible += is_impossible
            second_high, second_low = second_high + (high & mask), second_low + (low & mask)
            second_brier, second_impossible = second_brier + (fixed & mask), second_impossible + (is_impossible & mask)
        for view in range(2):
            for row in range(n_bins):
                cell = view * n_bins + row
                tables[view, row, 0] += count[cell] & 0xFFFFFFFF
                tables[view, row, 1] += count[cell] >> 32
                tables[view, row, 2] += confidence[cell] >> low_bits
                tables[view, row, 3] += confidence[cell] & low_mask
        tables[0, n_bins, 0] += nll_high - second_high
        tables[0, n_bins, 1] += nll_low - second_low
        tables[0, n_bins, 2] += (brier - second_brier) >> low_bits
        tables[0, n_bins, 3] += (brier - second_brier) & low_mask
        tables[0, n_bins + 1, 0] += impossible - second_impossible
        tables[1, n_bins, 0] += second_high
        tables[1, n_bins, 1] += second_low
        tables[1, n_bins, 2] += second_brier >> low_bits
        tables[1, n_bins, 3] += second_brier & low_mask
        tables[1, n_bins + 1, 0] += second_impossible


@compiled
def _bin_index(confidence: float, n_bins: int, right: bool) -> int:
    """Return the index of the equal-width bin, as `edgewise.metrics.sums.bin_index` does."""
    index = int(np.ceil(confidence * n_bins)) - 1 if right else int(np.floor(confidence * n_bins))
    return min(max(index, 0), n_bins - 1)


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
    nodes = _structured_view(records, fields)
    flags = []

    def block_terms() -> Callable[..., int]:
        # Each thread has its own flags, to avoid false sharing of cache lines.
        seen = np.zeros((2, len(nodes)), dtype=np.bool_)
        flags.append(torch.from_numpy(seen))
        ends = np.empty((2, EDGES_PER_BLOCK), dtype=np.int64)
        return lambda start, end, kept, terms: _edge_terms(nodes, start, end, kept, ends, seen, n_bins, right, *terms)

    total = _sum_blocks(block_terms, edge_index, keep, n_bins, fraction_bits, low_bits)
    for seen in flags:
        touched |= seen
    return total


def _sum_blocks(
    block_terms: Callable[[], Callable[..., int]],
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    n_bins: int,
    fraction_bits: int,
    low_bits: int,
) -> Int[Tensor, "2 rows 4"]:
    """Sum the terms of blocks of edges. Each thread calls ``block_terms`` once for a function that computes them."""
    arrays = edge_index[0].numpy(), edge_index[1].numpy(), keep.numpy()

    def sum_slice(lo: int, hi: int) -> Array:
        compute, terms, tables = block_terms(), _Terms.empty(EDGES_PER_BLOCK), _Tables(n_bins, fraction_bits, low_bits)
        for first in range(lo, hi, EDGES_PER_BLOCK):
            block = slice(first, min(first + EDGES_PER_BLOCK, hi))
            tables.add(compute(*(array[block] for array in arrays), terms), terms)
        return tables.sums

    return torch.from_numpy(np.stack(map_slices(sum_slice, len(keep))).sum(0))


@compiled
def _edge_terms(
    nodes: Array,
    start: Array,
    end: Array,
    kept: Array,
    ends: Array,
    seen: Array,
    n_bins: int,
    right: bool,
    views: Array,
    cells: Array,
    counts: Array,
    confidences: Array,
    nlls: Array,
    briers: Array,
) -> int:
    """Compute the terms of the kept edges, flag their ends in ``seen``, and return their number.

    With several short loops instead of one long loop, the processor fetches many records at once, because no address
    depends on the value of another record.
    """
    num = 0
    for e in range(len(start)):
        ends[0, num], ends[1, num] = start[e], end[e]
        num += kept[e]
    for k in range(num):
        i, j = nodes[ends[0, k]], nodes[ends[1, k]]
        code_i, code_j = np.int64(i.code), np.int64(j.code)
        confidence = i.confidence * j.confidence
        views[k] = (code_i >> 1) != (code_j >> 1)
        cells[k] = views[k] * n_bins + _bin_index(confidence, n_bins, right)
        counts[k] = 1 + ((code_i & code_j & 1) << 32)
        confidences[k], nlls[k] = confidence, i.nll + j.nll
        briers[k] = 1.0 - 2.0 * (i.p_true * j.p_true) + i.square_sum * j.square_sum
    for k in range(num):
        seen[views[k], ends[0, k]] = True
        seen[views[k], ends[1, k]] = True
    return num


def sum_same_label(
    probs: Float[Tensor, "nodes classes"],
    y: Int[Tensor, " nodes"],
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    product_bits: int,
    small_bits: int,
    n_bins: int,
    right: bool,
    fraction_bits: int,
    low_bits: int,
) -> Int[Tensor, "rows 4"]:
    """Sum the event "both ends have the same label" over the kept edges of independent nodes.

    ``product_bits`` and ``small_bits`` are the constants of `edgewise.metrics.elements.product_same_label_elements`.
    """
    rows, labels = probs.numpy(), y.int().numpy()
    options = 0.5**product_bits, 0.5**small_bits, 2.0**small_bits, n_bins, right

    def block_terms() -> Callable[..., int]:
        ends = np.empty((2, EDGES_PER_BLOCK), dtype=np.int64)

        def compute(start: Array, end: Array, kept: Array, terms: _Terms) -> int:
            num, _ = _same_label_terms(rows, labels, start, end, kept, ends, *options, *terms)
            torch.from_numpy(terms.nll[:num]).log_().neg_()  # the same logarithm as with tensors
            return int(num)

        return compute

    return _sum_blocks(block_terms, edge_index, keep, n_bins, fraction_bits, low_bits).sum(0)


@compiled
def _same_label_terms(
    probs: Array,
    labels: Array,
    start: Array,
    end: Array,
    kept: Array,
    ends: Array,
    unit: float,
    small: float,
    scale: float,
    n_bins: int,
    right: bool,
    views: Array,
    cells: Array,
    counts: Array,
    confidences: Array,
    p_outcomes: Array,
    briers: Array,
) -> tuple[int, float]:
    """Compute the terms of the kept edges, with the probability of the outcome instead of its NLL.

    Return their number. Rows of probabilities are far apart in memory, so one loop first reads a number of each cache
    line, many at once, and the next one finds them in the cache. The maximum of these numbers is returned, because the
    compiler would drop a loop without a result.
    """
    num, classes, highest = 0, probs.shape[1], 0.0
    for e in range(len(start)):
        ends[0, num], ends[1, num] = start[e], end[e]
        num += kept[e]
    for first in range(0, num, ROWS_PER_FETCH):
        last = min(first + ROWS_PER_FETCH, num)
        for k in range(first, last):
            i, j = ends[0, k], ends[1, k]
            views[k] = labels[i] != labels[j]
            if classes > CLASSES_PER_CACHE_LINE:
                for c in range(0, classes, CLASSES_PER_CACHE_LINE):
                    highest = max(highest, max(probs[i, c], probs[j, c]))
        for k in range(first, last):
            i, j, total = ends[0, k], ends[1, k], np.int64(0)
            for c in range(classes):
                total += np.float64(1.0 + np.float64(probs[i, c]) * np.float64(probs[j, c])).view(np.int64)
            cells[k] = total - classes * ONE_AS_INTEGER
    for k in range(num):
        p_same = min(cells[k] * unit, 1.0)
        p_outcome = 1.0 - p_same if views[k] else p_same
        cells[k] = views[k] * n_bins + _bin_index(p_same, n_bins, right)
        counts[k] = 1 + ((1 - views[k]) << 32)
        confidences[k], p_outcomes[k] = p_same, p_outcome
        briers[k] = 2.0 * ((1.0 - p_outcome) * (1.0 - p_outcome))
    for k in range(num):
        if p_outcomes[k] < small:
            i, j, total = ends[0, k], ends[1, k], np.int64(0)
            if not views[k]:
                for c in range(classes):
                    product = np.float64(probs[i, c]) * np.float64(probs[j, c]) * scale
                    total += np.float64(1.0 + product).view(np.int64)
                p_outcomes[k] = (total - classes * ONE_AS_INTEGER) * unit * small
            p_outcomes[k] = max(p_outcomes[k], np.float64(probs[i, labels[i]]) * np.float64(probs[j, labels[j]]))
    return num, highest
