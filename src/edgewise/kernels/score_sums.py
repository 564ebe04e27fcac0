"""Sums of scores over many nodes and edges in compiled loops.

The results are bit for bit those of `edgewise.metrics.elements` and `edgewise.metrics.sums`, the implementations with
tensors: the terms are the same float64 expressions, and sums are exact. ``fields`` are the names of the fields of a
node's record. ``unit`` and ``fraction_bits`` define how a number is rounded to fixed point, ``low_bits`` how it is
split into limbs.

Edges are processed in blocks. Loops compute the terms of a block into buffers that fit the second-level cache, and
another one, the same for all kinds of elements, sums them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import lower_builtin, type_callable
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]

EDGES_PER_BLOCK = 1 << 13
EDGES_PER_PREFETCH = 8  # edges between the prefetch of a row and its use
BYTES_PER_CACHE_LINE = 64
ONE_AS_INTEGER = int(np.float64(1.0).view(np.int64))  # the bits of 1.0


def _structured_view(records: Float[Tensor, "nodes fields"], fields: Sequence[str]) -> Array:
    """Return a structured view of records, whose fields loops access by name."""
    return _structured_rows(records.numpy(), fields)


def _structured_rows(records: Array, fields: Sequence[str]) -> Array:
    layout = np.dtype([(field, np.float64) for field in fields], align=True)
    return records.view(layout)[:, 0]


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
    """Buffers for the terms of a block of elements. ``view`` is the index of an element's table, 0 or 1."""

    view: Array
    bin: Array
    correct: Array
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
    """Sum elements into one table per group."""
    columns = group, bins, correct.long(), confidence, nll, brier
    terms = [column.contiguous().numpy() for column in columns]

    def sum_slice(lo: int, hi: int) -> Array:
        tables = np.zeros((n_groups, n_bins + 2, 4), dtype=np.int64)
        _sum_terms(hi - lo, *_Terms(*(column[lo:hi] for column in terms)), 2.0**fraction_bits, low_bits, tables)
        return tables

    return _sum_slices(sum_slice, len(bins))


@compiled
def _sum_terms(
    num: int,
    views: Array,
    bins: Array,
    correct: Array,
    confidences: Array,
    nlls: Array,
    briers: Array,
    one: float,
    low_bits: int,
    tables: Array,
) -> None:
    """Add terms to the tables of their views (see `edgewise.metrics.sums`)."""
    low_mask, n_bins = (1 << low_bits) - 1, tables.shape[1] - 2
    for k in range(num):
        view, row = views[k], bins[k]
        fixed = np.int64(np.rint(confidences[k] * one))
        tables[view, row, 0] += 1
        tables[view, row, 1] += correct[k]
        tables[view, row, 2] += fixed >> low_bits
        tables[view, row, 3] += fixed & low_mask
        impossible = nlls[k] == np.inf
        fixed = np.int64(np.rint((0.0 if impossible else nlls[k]) * one))
        tables[view, n_bins, 0] += fixed >> low_bits
        tables[view, n_bins, 1] += fixed & low_mask
        fixed = np.int64(np.rint(briers[k] * one))
        tables[view, n_bins, 2] += fixed >> low_bits
        tables[view, n_bins, 3] += fixed & low_mask
        tables[view, n_bins + 1, 0] += impossible


@compiled
def _bin_index(confidence: float, n_bins: int, right: bool) -> int:
    """Return the index of the equal-width bin, as `edgewise.metrics.sums.bin_index` does."""
    index = int(np.ceil(confidence * n_bins)) - 1 if right else int(np.floor(confidence * n_bins))
    return min(max(index, 0), n_bins - 1)


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
        tables, terms = np.zeros((1, n_bins + 2, 4), dtype=np.int64), _Terms.empty(EDGES_PER_BLOCK)
        for first in range(lo, hi, EDGES_PER_BLOCK):
            block = slice(first, min(first + EDGES_PER_BLOCK, hi))
            num = _node_terms(nodes[block], inside[block], n_bins, right, *terms)
            _sum_terms(num, *terms, 2.0**fraction_bits, low_bits, tables)
        return np.asarray(tables[0])

    return _sum_slices(sum_slice, len(mask))


@compiled
def _node_terms(
    nodes: Array,
    inside: Array,
    n_bins: int,
    right: bool,
    views: Array,
    bins: Array,
    correct: Array,
    confidences: Array,
    nlls: Array,
    briers: Array,
) -> int:
    """Compute the terms of the nodes in the mask, and return their number."""
    num = 0
    for k in range(len(nodes)):
        node = nodes[k]
        views[num], bins[num] = 0, _bin_index(node.confidence, n_bins, right)
        correct[num], confidences[num], nlls[num] = np.int64(node.code) & 1, node.confidence, node.nll
        briers[num] = 1.0 - 2.0 * node.p_true + node.square_sum
        num += inside[k]
    return num


def sum_independent_edges(
    fields: Sequence[str],
    records: Float[Tensor, "nodes fields"],
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    degrees: Int[Tensor, "threads 2 nodes"],
    groupings: Sequence[tuple[Int[Tensor, " nodes"], bool, int]],
    n_bins: int,
    right: bool,
    fraction_bits: int,
    low_bits: int,
    keys: Array | None = None,
) -> list[Int[Tensor, "tables rows 4"]]:
    """Sum the kept edges of independent nodes into the tables of (agree, disagree), then into those of each grouping.

    ``degrees`` is updated in place: the number of edges of each view at each node, counted by each thread, as threads
    that share counts would lose some. A grouping consists of the group of each node, or -1, whether groups are ordered,
    and the number of groups of edges. ``keys`` is filled with the packed
    confidences of the kept edges (see `edgewise.metrics.forecasts`).
    """
    rows, nodes, one = records.numpy(), _structured_view(records, fields), 2.0**fraction_bits
    small = [index.to(torch.int8 if num < 128 else torch.int32).numpy() for index, _, num in groupings]
    unused = list(degrees.numpy())

    def sum_slice(lo: int, hi: int) -> list[Array]:
        degree = unused.pop()
        tables, terms = np.zeros((2, n_bins + 2, 4), dtype=np.int64), _Terms.empty(EDGES_PER_BLOCK)
        # The last table of a grouping is for edges without a group.
        group_tables = [np.zeros((num + 1, n_bins + 2, 4), dtype=np.int64) for _, _, num in groupings]
        num_packed = 0 if keys is None else int(keep[:lo].count_nonzero())
        for start, end in _kept_blocks(edge_index[:, lo:hi], keep[lo:hi]):
            _edge_terms(rows, nodes, start, end, n_bins, right, *terms)
            _count_edges(start, end, terms.view, degree)
            if keys is not None:
                out = keys[num_packed : num_packed + len(start)]
                _pack(terms.confidence, terms.correct, 1 - terms.view, out)
                num_packed += len(start)
            _sum_terms(len(start), *terms, one, low_bits, tables)
            for index, (_, ordered, num), table in zip(small, groupings, group_tables, strict=True):
                _group_edges(index, ordered, num, start, end, terms.view)
                _sum_terms(len(start), *terms, one, low_bits, table)
        unused.append(degree)
        return [tables, *(table[:-1] for table in group_tables)]

    parts = map_slices(sum_slice, len(keep))
    return [torch.from_numpy(np.stack(tables).sum(0)) for tables in zip(*parts, strict=True)]


def sum_edge_slice(
    fields: Sequence[str],
    records: Array,
    start: Array,
    end: Array,
    degree: Array,
    n_bins: int,
    right: bool,
    fraction_bits: int,
    low_bits: int,
) -> tuple[Array, Array]:
    """Return the tables of (agree, disagree) of edges of independent nodes, in one thread.

    ``degree``, bytes with shape (2, nodes), is updated in place, modulo 256. The second result has shape (2, n): a view
    and a node for each time that its degree returned to 0.
    """
    tables, terms = np.zeros((2, n_bins + 2, 4), dtype=np.int64), _Terms.empty(EDGES_PER_BLOCK)
    rows = np.asarray(records)
    nodes, overflows = _structured_rows(rows, fields), np.empty((2, 2 * len(start)), dtype=np.int64)
    num = 0
    for first in range(0, len(start), EDGES_PER_BLOCK):
        ends = start[first : first + EDGES_PER_BLOCK], end[first : first + EDGES_PER_BLOCK]
        _edge_terms(rows, nodes, *ends, n_bins, right, *terms)
        num += _count_edges_in_bytes(*ends, terms.view, degree, overflows[:, num:])
        _sum_terms(len(ends[0]), *terms, 2.0**fraction_bits, low_bits, tables)
    return tables, overflows[:, :num].copy()


@compiled
def _count_edges_in_bytes(start: Array, end: Array, views: Array, degree: Array, overflows: Array) -> int:
    """Count as `_count_edges` does, modulo 256. Return how often a degree returned to 0, and fill ``overflows``."""
    num, last = 0, len(start) - 1
    for k in range(len(start)):
        view, later = views[k], min(k + EDGES_PER_PREFETCH, last)
        _prefetch(degree, views[later], start[later])
        _prefetch(degree, views[later], end[later])
        for node in (start[k], end[k]):
            degree[view, node] += 1
            if degree[view, node] == 0:
                overflows[0, num], overflows[1, num] = view, node
                num += 1
    return num


@compiled
def _pack(forecasts: Array, occurred: Array, groups: Array, keys: Array) -> None:
    """Fill keys with forecasts, whether the event did not occur, and groups."""
    for k in range(len(keys)):
        bits = np.float64(min(forecasts[k], 1.0)).view(np.uint64)
        keys[k] = bits << np.uint64(2) | np.uint64(not occurred[k]) << np.uint64(1) | np.uint64(groups[k])


def _sum_slices(sum_slice: Callable[[int, int], Array], length: int) -> Int[Tensor, "*shape"]:
    return torch.from_numpy(np.stack(map_slices(sum_slice, length)).sum(0))


def _kept_blocks(edge_index: Int[Tensor, "2 edges"], keep: Bool[Tensor, " edges"]) -> Iterator[tuple[Array, Array]]:
    """Yield the ends of the kept edges in blocks. They are copied only if necessary."""
    (start, end), kept = edge_index.numpy(), keep.numpy()
    ends = np.empty((2, EDGES_PER_BLOCK), dtype=np.int64)
    usable = start.dtype == ends.dtype and start.flags.c_contiguous
    for first in range(0, len(kept), EDGES_PER_BLOCK):
        block = slice(first, first + EDGES_PER_BLOCK)
        if usable and kept[block].all():
            yield start[block], end[block]
        else:
            num = _copy_kept(start[block], end[block], kept[block], ends)
            yield ends[0, :num], ends[1, :num]


@compiled
def _copy_kept(start: Array, end: Array, kept: Array, ends: Array) -> int:
    """Copy the ends of the kept edges, and return their number."""
    num = 0
    for e in range(len(start)):
        ends[0, num], ends[1, num] = start[e], end[e]
        num += kept[e]
    return num


def _prefetch(rows: Array, i: int, c: int) -> None:
    """Start to load the cache line of an entry. Without compilation, nothing happens."""


@type_callable(_prefetch)  # type: ignore[untyped-decorator]
def _type_prefetch(context: Any) -> Callable[..., Any]:
    def typer(rows: Any, i: Any, c: Any) -> Any:
        return types.void

    return typer


@lower_builtin(_prefetch, types.Array, types.Integer, types.Integer)  # type: ignore[untyped-decorator]
def _lower_prefetch(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kind, number = signature.args[0], ir.IntType(32)
    array = context.make_array(kind)(context, builder, args[0])
    entry = cgutils.get_item_pointer(context, builder, kind, array, args[1:], wraparound=False)
    signature = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    read, keep_in_all_caches, data = (ir.Constant(number, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(entry, cgutils.voidptr_t), read, keep_in_all_caches, data])
    return context.get_dummy_value()


@compiled
def _edge_terms(
    records: Array,
    nodes: Array,
    start: Array,
    end: Array,
    n_bins: int,
    right: bool,
    views: Array,
    bins: Array,
    correct: Array,
    confidences: Array,
    nlls: Array,
    briers: Array,
) -> None:
    """Compute the terms of edges.

    With several short loops instead of one long loop, the processor fetches many records at once, because no address
    depends on the value of another record.
    """
    num, last = len(start), records.shape[1] - 1
    for k in range(num):
        later = min(k + EDGES_PER_PREFETCH, num - 1)
        for column in (0, last):  # a record may be in two cache lines
            _prefetch(records, start[later], column)
            _prefetch(records, end[later], column)
        i, j = nodes[start[k]], nodes[end[k]]
        code_i, code_j = np.int64(i.code), np.int64(j.code)
        confidence = i.confidence * j.confidence
        views[k] = (code_i >> 1) != (code_j >> 1)
        bins[k] = _bin_index(confidence, n_bins, right)
        correct[k] = code_i & code_j & 1
        confidences[k], nlls[k] = confidence, i.nll + j.nll
        briers[k] = 1.0 - 2.0 * (i.p_true * j.p_true) + i.square_sum * j.square_sum


@compiled
def _count_edges(start: Array, end: Array, views: Array, degree: Array) -> None:
    """Count the edges of each view at both ends."""
    for k in range(len(start)):
        degree[views[k], start[k]] += 1
        degree[views[k], end[k]] += 1


@compiled
def _group_edges(index: Array, ordered: bool, num: int, start: Array, end: Array, out: Array) -> None:
    """Compute the group of each edge, or ``num`` if an end has none (see `edgewise.metrics.node_groups.NodeGroups`)."""
    for k in range(len(start)):
        i, j = np.int64(index[start[k]]), np.int64(index[end[k]])
        low, high = min(i, j), max(i, j)
        group = low if ordered else ((high * (high + 1)) >> 1) + low
        out[k] = num if low < 0 else group


def sum_same_label(
    probs: Float[Tensor, "nodes classes"],
    y: Int[Tensor, " nodes"],
    edge_index: Int[Tensor, "2 edges"],
    keep: Bool[Tensor, " edges"],
    recompute_small: Callable[[Tensor, Tensor], Tensor],
    product_bits: int,
    small_bits: int,
    n_bins: int,
    right: bool,
    fraction_bits: int,
    low_bits: int,
    keys: Array | None = None,
) -> Int[Tensor, "rows 4"]:
    """Sum the event "both ends have the same label" over the kept edges of independent nodes.

    ``product_bits`` and ``small_bits`` are the constants of `edgewise.metrics.elements.product_same_label_elements`.
    ``recompute_small`` returns precise probabilities of the outcomes of edges, given their ends and the probabilities
    below 2^-small_bits. ``keys`` is filled with the packed probabilities of the event.
    """
    rows, one = probs.numpy(), 2.0**fraction_bits
    labels = y.to(torch.int8 if probs.shape[1] <= 128 else torch.int32).numpy()  # less memory, so more cache hits
    line, options = BYTES_PER_CACHE_LINE // rows.itemsize, (0.5**product_bits, right, one, low_bits)

    def sum_slice(lo: int, hi: int) -> Array:
        table = np.zeros((n_bins + 2, 4), dtype=np.int64)
        totals, p_outcomes = np.empty(EDGES_PER_BLOCK, dtype=np.int64), np.empty(EDGES_PER_BLOCK)
        same, bins = np.empty(EDGES_PER_BLOCK, dtype=np.bool_), np.empty(EDGES_PER_BLOCK, dtype=np.int32)
        num_packed = 0 if keys is None else int(keep[:lo].count_nonzero())
        for start, end in _kept_blocks(edge_index[:, lo:hi], keep[lo:hi]):
            p_outcome = p_outcomes[: len(start)]
            _sum_row_products(rows, start, end, line, totals)
            _sum_same_label(labels, start, end, *options, totals, same, bins, p_outcome, table)
            if keys is not None:
                _pack_same_label(p_outcome, same, keys[num_packed : num_packed + len(start)])
                num_packed += len(start)
            if p_outcome.min(initial=1.0) < 0.5**small_bits:
                small = np.flatnonzero(p_outcome < 0.5**small_bits)
                ends = torch.from_numpy(np.stack((start[small], end[small])))
                p_outcome[small] = recompute_small(ends, torch.from_numpy(p_outcome[small])).numpy()
            torch.from_numpy(p_outcome).log_()  # the same logarithm as with tensors
            _sum_nlls(p_outcome, one, low_bits, table)
        return table

    return _sum_slices(sum_slice, len(keep))


@compiled
def _pack_same_label(p_outcomes: Array, same: Array, keys: Array) -> None:
    """Fill keys with P(same label), a multiple of 2^-52, so that 1 - (1 - P) is exact."""
    for k in range(len(keys)):
        bits = np.float64(p_outcomes[k] if same[k] else 1.0 - p_outcomes[k]).view(np.uint64)
        keys[k] = bits << np.uint64(2) | np.uint64(not same[k]) << np.uint64(1)


@compiled
def _sum_row_products(probs: Array, start: Array, end: Array, line: int, totals: Array) -> None:
    """Compute Σ_c p_i(c) p_j(c) of each edge as a multiple of 2^-52.

    Rows are far apart in memory, so they are prefetched, ``line`` classes at a time. The conversion of a sum to a
    float64 is left to another loop, because it would delay this one.
    """
    num, classes = len(start), probs.shape[1]
    lines = (classes + line - 1) // line
    for k in range(num):
        later = min(k + EDGES_PER_PREFETCH, num - 1)
        for part in range(lines):
            _prefetch(probs, start[later], part * line)
            _prefetch(probs, end[later], part * line)
        i, j, total = start[k], end[k], np.int64(0)
        for c in range(classes):
            total += np.float64(1.0 + np.float64(probs[i, c]) * np.float64(probs[j, c])).view(np.int64)
        totals[k] = total - classes * ONE_AS_INTEGER


@compiled
def _sum_same_label(
    labels: Array,
    start: Array,
    end: Array,
    unit: float,
    right: bool,
    one: float,
    low_bits: int,
    totals: Array,
    same: Array,
    bins: Array,
    p_outcomes: Array,
    table: Array,
) -> None:
    """Sum all terms but the NLL of edges with probabilities ``totals`` · ``unit``, and compute ``p_outcomes``.

    The loop over the bins is short, so that the compiler can use SIMD instructions for the rest.
    """
    low_mask, n_bins, high, low = (1 << low_bits) - 1, len(table) - 2, np.int64(0), np.int64(0)
    for k in range(len(start)):
        same[k] = labels[start[k]] == labels[end[k]]
    for k in range(len(start)):
        p = min(totals[k] * unit, 1.0)
        p_outcome = p if same[k] else 1.0 - p
        bins[k], p_outcomes[k], totals[k] = _bin_index(p, n_bins, right), p_outcome, np.int64(np.rint(p * one))
        brier = np.int64(np.rint(2.0 * ((1.0 - p_outcome) * (1.0 - p_outcome)) * one))
        high, low = high + (brier >> low_bits), low + (brier & low_mask)
    table[n_bins, 2] += high
    table[n_bins, 3] += low
    for k in range(len(start)):
        row, fixed = bins[k], totals[k]
        table[row, 0] += 1
        table[row, 1] += same[k]
        table[row, 2] += fixed >> low_bits
        table[row, 3] += fixed & low_mask


@compiled
def _sum_nlls(log_p: Array, one: float, low_bits: int, table: Array) -> None:
    """Sum negative logarithms of probabilities, and count those of zero."""
    low_mask, n_bins, high, low, zeros = (1 << low_bits) - 1, len(table) - 2, np.int64(0), np.int64(0), np.int64(0)
    for k in range(len(log_p)):
        is_zero = log_p[k] == -np.inf
        fixed = np.int64(np.rint((0.0 if is_zero else -log_p[k]) * one))
        high, low, zeros = high + (fixed >> low_bits), low + (fixed & low_mask), zeros + is_zero
    table[n_bins, 0] += high
    table[n_bins, 1] += low
    table[n_bins + 1, 0] += zeros
