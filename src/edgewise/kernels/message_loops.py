"""Sweeps of belief propagation in compiled loops. The reference implementation is `edgewise.inference.messages.sweep`.

Both messages of an edge are updated together, from the totals U_i + Σ_k μ_{k→i} of its two ends. So messages are read
and written once, in the order in which they are stored, exp(T) is computed once for both directions, and only the
totals of nodes are accessed at random. The new messages are added to the totals of the next sweep in the same pass.
SIMD instructions process 64 edges at a time, for any number of classes.

Two threads must not add to the total of one node, and the order of additions must not depend on the number of threads.
So the nodes are divided into parts, and the edges between two parts are one task. A sweep consists of steps. In a step
each part belongs to one thread at most.

All loops are in one file, because the cache of a compiled loop is invalidated only when its own file changes (see
`edgewise.kernels.dispatch`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled, map_slices, vectorized, worker_threads

Array = NDArray[Any]

LANES = 64  # edges that are processed at a time
LINE = 64  # bytes of a cache line
MIN_EDGES_PER_PART = 1 << 13  # about half a millisecond of work; for less, waking another thread costs more
MAX_PARTS = 16  # a power of two, as every number of parts
# Methods to compute messages: product with exp(T), product with exp(s T) of each edge, or term by term with max.
PRODUCT, EDGE_PRODUCT, LOG_MAX = range(3)


class Blocks(NamedTuple):
    """Edges sorted by task, in blocks of 64 lanes. Free lanes of the last block of a task hold edge 0 and node 0."""

    first: Array  # (tasks + 1,) first block of each task
    size: Array  # (tasks,) number of edges of each task
    nodes: Array  # (2, lanes) start and end of each edge
    edge: Array  # (lanes,) index of each edge
    parts: Array  # (2, tasks) the two parts of each task


class Potentials(NamedTuple):
    """The potentials of one MRF."""

    couplings: Array  # (1 or E, C, C)
    scale: Array  # (1 or E,)
    matrix: Array  # exp(T) for the method PRODUCT, else empty
    is_symmetric: bool  # whether all edges share one symmetric T
    max_coupling: float  # largest |s T| for which a product with exp(s T) is accurate


class Totals(NamedTuple):
    """Two totals U_i + Σ_k μ_{k→i} of each node in the same cache lines: ``sums`` and ``shifted`` share memory."""

    sums: Array  # (nodes, width) float64; the last C columns are sums of the new messages
    shifted: Array  # (nodes, …) of the dtype of messages; the first C columns are of the last sweep, with maximum 0


class Lanes(NamedTuple):
    """Buffers for a block; ``…_bits`` are the same memory as integers."""

    cavity: Array  # (2, classes, 64) of starts and ends
    message: Array  # (2, classes, 64) to starts and ends
    message_bits: Array
    term: Array  # (classes, 64)
    term_bits: Array
    scratch: Array  # (2, classes, 64)
    scratch_bits: Array
    scale: Array  # (64,)
    highest: Array  # (64,)
    spare: Array  # (64,)


def new_lanes(classes: int, dtype: np.dtype[Any]) -> Lanes:
    """Allocate the buffers."""
    bits = np.zeros((7, classes, LANES), dtype=np.int32 if dtype == np.float32 else np.int64)
    real, rows = bits.view(dtype), np.zeros((3, LANES), dtype=dtype)
    return Lanes(real[:2], real[2:4], bits[2:4], real[4], bits[4], real[5:], bits[5:], *rows)


def new_totals(unary: Array) -> Totals:
    """Allocate totals in full cache lines. The sums are the unaries."""
    num_nodes, classes = unary.shape
    line = LINE // 8
    width = -(-(classes + -(-classes * unary.itemsize // 8)) // line) * line
    # NumPy requests huge pages for large arrays, which torch does not, but does not align them to cache lines.
    memory = np.zeros(num_nodes * width + line)
    begin = -memory.ctypes.data % LINE // 8
    sums = memory[begin : begin + num_nodes * width].reshape(num_nodes, width)
    sums[:, width - classes :] = unary
    return Totals(sums, sums.view(unary.dtype))


def sort_edges(edge_index: Array, num_nodes: int) -> Blocks:
    """Sort edges by task."""
    num_edges, num_parts = edge_index.shape[1], MAX_PARTS
    while num_parts > 1 and num_edges < num_parts * MIN_EDGES_PER_PART:
        num_parts //= 2
    factor = (num_parts << 32) // max(num_nodes, 1)  # the part of a node is node * factor >> 32
    low, high = np.triu_indices(num_parts)
    order = np.lexsort((low, low ^ high))
    low, high = low[order], high[order]
    task = np.empty((num_parts, num_parts), dtype=np.int64)
    task[low, high] = task[high, low] = np.arange(len(low))
    size = np.zeros(len(low), dtype=np.int64)
    _count_edges(edge_index, factor, task, size)
    first = np.concatenate([[0], np.cumsum(-(-size // LANES))])
    index = np.int32 if max(num_nodes, num_edges) < 2**31 else np.int64
    nodes, edge = np.zeros((2, first[-1] * LANES), dtype=index), np.zeros(first[-1] * LANES, dtype=index)
    _fill_blocks(edge_index, factor, task, first[:-1] * LANES, nodes, edge)
    return Blocks(first, size, nodes, edge, np.stack([low, high]))


@compiled
def _count_edges(edge_index: Array, factor: int, task: Array, size: Array) -> None:
    """Count the edges of each task."""
    for e in range(edge_index.shape[1]):
        size[task[edge_index[0, e] * factor >> 32, edge_index[1, e] * factor >> 32]] += 1


@compiled
def _fill_blocks(edge_index: Array, factor: int, task: Array, free: Array, nodes: Array, edge: Array) -> None:
    """Put each edge into the first free lane of its task."""
    for e in range(edge_index.shape[1]):
        start, end = edge_index[0, e], edge_index[1, e]
        t = task[start * factor >> 32, end * factor >> 32]
        nodes[0, free[t]], nodes[1, free[t]], edge[free[t]] = start, end, e
        free[t] += 1


def schedule(parts: Array, num_threads: int) -> list[list[Array]]:
    """Divide tasks between parts (2, tasks) among threads. Return steps, each with the tasks of every thread.

    In a step, no part belongs to two threads. For any number of threads, the tasks (i, j) of a part are in order of
    i XOR j. The number of threads is rounded down to a power of two.
    """
    num_parts = int(parts.max()) + 1
    num_groups = min(num_parts, 1 << (2 * num_threads).bit_length() - 1)
    if num_groups <= 2:
        return [[np.arange(parts.shape[1])]]
    # Groups a and b meet in step a XOR b, and edges within a group belong to step 1. All pairs of a step differ in the
    # highest bit of its number. Without this bit, a and b are the same number: the index of their thread.
    group, other = parts * num_groups // num_parts
    step = np.maximum(group ^ other, 1)
    bit = np.array([1 << int(s).bit_length() - 1 for s in step])
    thread = group // (2 * bit) * bit + group % bit
    threads = range(num_groups // 2)
    return [[np.flatnonzero((step == s) & (thread == t)) for t in threads] for s in range(1, num_groups)]


def log_sum_method(couplings: Array, scale: Array, matrix_range: float) -> int:
    """Choose a method to compute log Σ_l exp(h(l) + s T(l, m)).

    ``matrix_range`` is the largest difference of couplings for which a product with exp(s T) is accurate.
    """
    shared = len(couplings) == 1 and len(scale) == 1 and scale[0] == 1.0
    return PRODUCT if shared and np.ptp(couplings) <= matrix_range else EDGE_PRODUCT


def run_sweeps(
    unary: Array,
    couplings: Array,
    scale: Array,
    blocks: Blocks,
    method: int,
    matrix_range: float,
    next_damping: Callable[[], float | None],
    residuals: list[float],
) -> tuple[Array, Array]:
    """Run sweeps on one MRF, from zero messages, until ``next_damping`` returns None instead of a damping.

    The residual of each sweep is appended to ``residuals``. Return the messages (blocks, 2, C, 64) and the totals
    U_i + Σ_k μ_{k→i}.
    """
    num_nodes, classes = unary.shape
    messages = np.zeros((blocks.first[-1], 2, classes, LANES), dtype=unary.dtype)
    matrix = np.exp(couplings[0] - couplings.max()) if method == PRODUCT else couplings[0, :0]
    is_symmetric = len(couplings) == 1 and np.array_equal(couplings[0], couplings[0].T)
    potentials = Potentials(couplings, scale, matrix, is_symmetric, matrix_range / 2)
    totals = new_totals(unary)
    steps = schedule(blocks.parts, torch.get_num_threads())
    lanes = [new_lanes(classes, unary.dtype) for _ in steps[0]]

    def update(tasks: Array, lanes: Lanes, keep: float) -> float:
        return _sweep(method, tasks, blocks, potentials, lanes, messages, totals, keep)

    with worker_threads() as workers:
        while (damping := next_damping()) is not None:
            keep = unary.dtype.type(damping)
            map_slices(partial(_shift, unary=unary, totals=totals), num_nodes, workers)
            change = 0.0
            for tasks in steps:
                rest = workers.map(partial(update, keep=keep), tasks[1:], lanes[1:])
                change = max(update(tasks[0], lanes[0], keep), change, *rest)
            residuals.append(change)
    return messages, totals.sums[:, -classes:].copy()


def in_edge_order(blocks: Blocks, messages: Array) -> torch.Tensor:
    """Return messages (2, E, C) in the order of the edges."""
    _, _, classes, _ = messages.shape
    lane_of = np.empty(blocks.size.sum(), dtype=blocks.edge.dtype)
    map_slices(partial(_invert, blocks=blocks, lane_of=lane_of), len(blocks.size))
    out = torch.from_numpy(messages[:0]).new_empty(2, len(lane_of), classes)
    map_slices(partial(_sort_back, lane_of=lane_of, messages=messages, out=out.numpy()), len(lane_of))
    return out


@compiled
def _invert(task: int, last_task: int, blocks: Blocks, lane_of: Array) -> None:
    """Store the lane of each edge of tasks ``task`` to ``last_task - 1``."""
    first, size, _, edge, _ = blocks
    for t in range(task, last_task):
        for lane in range(first[t] * LANES, first[t] * LANES + size[t]):
            lane_of[edge[lane]] = lane


@compiled
def _sort_back(lo: int, hi: int, lane_of: Array, messages: Array, out: Array) -> None:
    """Copy the messages of edges ``lo`` to ``hi - 1``. Reads of a task are sequential, and so are all writes."""
    for side in range(2):
        for e in range(lo, hi):
            block, lane = divmod(lane_of[e], LANES)
            for c in range(out.shape[2]):
                out[side, e, c] = messages[block, side, c, lane]


@compiled
def _shift(lo: int, hi: int, unary: Array, totals: Totals) -> None:
    """Shift the totals of nodes ``lo`` to ``hi - 1`` to a largest entry of 0, and start new sums.

    Totals of a node of high degree are large. After the shift, rounding does not affect their differences.
    """
    sums, shifted = totals
    classes = unary.shape[1]
    begin = sums.shape[1] - classes
    for node in range(lo, hi):
        highest = sums[node, begin]
        for c in range(classes):
            highest = max(highest, sums[node, begin + c])
        for c in range(classes):
            shifted[node, c] = sums[node, begin + c] - highest
            sums[node, begin + c] = unary[node, c]


@vectorized
def _sweep(
    method: int,
    tasks: Array,
    blocks: Blocks,
    potentials: Potentials,
    lanes: Lanes,
    messages: Array,
    totals: Totals,
    keep: float,
) -> float:
    """Update the messages of some tasks and return the largest change before damping."""
    first, size, nodes, edge, _ = blocks
    sums, shifted = totals
    scale, classes = potentials.scale, messages.shape[2]
    cavity, message, message_bits = lanes.cavity, lanes.message, lanes.message_bits
    scratch, scratch_bits = lanes.scratch.reshape(-1), lanes.scratch_bits.reshape(-1)
    largest = np.zeros(LANES, dtype=messages.dtype)
    for t in tasks:
        for block in range(first[t], first[t + 1]):
            begin, num = block * LANES, min(LANES, size[t] - (block - first[t]) * LANES)
            _prefetch_block(nodes, edge, min(begin + LANES, len(edge) - LANES), sums, potentials.couplings)
            for side in range(2):
                _cavity(nodes[side, begin:], shifted, messages[block, side], cavity[side], lanes)
            if method != PRODUCT:
                for lane in range(LANES):
                    lanes.scale[lane] = scale[edge[begin + lane] if len(scale) > 1 else 0]
            if method == LOG_MAX:
                _log_reduce(potentials, edge[begin:], True, lanes)
            else:
                _exp(cavity.reshape(-1), scratch, scratch_bits, cavity.size)
                if method == PRODUCT:
                    _multiply(potentials.matrix, cavity[0], message[1])
                    _multiply(potentials.matrix.T, cavity[1], message[0])
                    is_accurate = True
                else:
                    is_accurate = _multiply_exp(potentials, edge[begin:], lanes)
                if is_accurate:
                    _log(message.reshape(-1), message_bits.reshape(-1), scratch_bits, message.size)
                else:
                    for side in range(2):
                        _cavity(nodes[side, begin:], shifted, messages[block, side], cavity[side], lanes)
                    _log_reduce(potentials, edge[begin:], False, lanes)
            for side in range(2):
                _shift_to_zero(message[side], lanes)
                change = _damp(message[side], messages[block, side], keep, lanes)
                for lane in range(num):
                    largest[lane] = max(largest[lane], change[lane])
                    node = nodes[side, begin + lane]
                    for c in range(classes):
                        sums[node, sums.shape[1] - classes + c] += messages[block, side, c, lane]
    highest: float = largest.max()
    return highest


@vectorized
def _prefetch_block(nodes: Array, edge: Array, begin: int, sums: Array, couplings: Array) -> None:
    """Start to load the totals and the couplings of a block into the cache."""
    flat, length = sums.reshape(-1), sums.shape[1]
    for side in range(2):
        for lane in range(LANES):
            _prefetch_range(flat, nodes[side, begin + lane] * length, length)
    if len(couplings) > 1:
        matrices, size = couplings.reshape(-1), couplings[0].size
        for lane in range(LANES):
            _prefetch_range(matrices, edge[begin + lane] * size, size)


@vectorized
def _prefetch_range(flat: Array, begin: int, length: int) -> None:
    """Start to load a range of a contiguous array into the cache."""
    for k in range(begin, begin + length, 8):  # 8 float64 are a cache line
        _prefetch(flat, k)
    _prefetch(flat, begin + length - 1)


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Start to load the cache line of an entry of a contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], prefetch)
        entry = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [entry, number(0), number(3), number(1)])  # to read, into the nearest cache, data
        return context.get_dummy_value()

    return types.void(array, index), generate


@vectorized
def _cavity(node: Array, shifted: Array, message: Array, cavity: Array, lanes: Lanes) -> None:
    """Compute h_{i∖j} = U_i + Σ_k μ_{k→i} - μ_{j→i}, shifted to a largest entry of 0."""
    classes = len(cavity)
    for lane in range(LANES):
        row = node[lane]
        for c in range(classes):
            cavity[c, lane] = shifted[row, c]
    for c in range(classes):
        for lane in range(LANES):
            cavity[c, lane] -= message[c, lane]
    _shift_to_zero(cavity, lanes)


@vectorized
def _shift_to_zero(x: Array, lanes: Lanes) -> None:
    """Subtract the largest entry of each lane."""
    highest = _largest(x, lanes)
    for c in range(len(x)):
        for lane in range(LANES):
            x[c, lane] -= highest[lane]


@vectorized
def _largest(x: Array, lanes: Lanes) -> Array:
    """Return the largest entry of each lane.

    Two buffers take turns, because LLVM compiles an update in place to masked stores, which are slow on AMD processors.
    """
    highest, spare = lanes.highest, lanes.spare
    for lane in range(LANES):
        highest[lane] = -np.inf
    for c in range(len(x)):
        for lane in range(LANES):
            spare[lane] = x[c, lane] if x[c, lane] > highest[lane] else highest[lane]
        highest, spare = spare, highest
    return highest


@vectorized
def _damp(message: Array, old: Array, keep: float, lanes: Lanes) -> Array:
    """Replace the old messages, keep a fraction of them, and return the largest change of each lane before damping."""
    change, one = lanes.term, old.dtype.type(1.0)
    for c in range(len(message)):
        for lane in range(LANES):
            unit = -message[c, lane] if -message[c, lane] > one else one
            change[c, lane] = abs(message[c, lane] - old[c, lane]) / unit
    for c in range(len(message)):
        for lane in range(LANES):
            old[c, lane] = message[c, lane] + keep * (old[c, lane] - message[c, lane])
    return _largest(change, lanes)


@vectorized
def _multiply(matrix: Array, x: Array, out: Array) -> None:
    """Compute Σ_l x(l) matrix(l, m)."""
    for m in range(len(x)):
        for lane in range(LANES):
            out[m, lane] = 0
        for c in range(len(x)):
            factor = matrix[c, m]
            for lane in range(LANES):
                out[m, lane] += factor * x[c, lane]


@vectorized
def _multiply_exp(potentials: Potentials, edge: Array, lanes: Lanes) -> bool:
    """Compute Σ_l x(l) exp(s T(l, m)) in both directions of each edge. Return False if a coupling is too large."""
    couplings, x, out, term = potentials.couplings, lanes.cavity, lanes.message, lanes.term
    scratch, scratch_bits = lanes.scratch.reshape(-1), lanes.scratch_bits.reshape(-1)
    classes = couplings.shape[1]
    for side in range(2):
        for c in range(classes):
            for lane in range(LANES):
                out[side, c, lane] = 0
    for c in range(classes):
        begin = c if potentials.is_symmetric else 0
        _fill_row(couplings, c, begin, edge, lanes)
        if not _is_within(potentials.max_coupling, classes - begin, lanes):
            return False
        _exp(term.reshape(-1), scratch, scratch_bits, (classes - begin) * LANES)
        for m in range(begin, classes):
            for lane in range(LANES):
                out[1, m, lane] += term[m - begin, lane] * x[0, c, lane]
            for lane in range(LANES):
                out[0, c, lane] += term[m - begin, lane] * x[1, m, lane]
            if begin < m and potentials.is_symmetric:
                for lane in range(LANES):
                    out[1, c, lane] += term[m - begin, lane] * x[0, m, lane]
                for lane in range(LANES):
                    out[0, m, lane] += term[m - begin, lane] * x[1, c, lane]
    return True


@vectorized
def _fill_row(couplings: Array, c: int, begin: int, edge: Array, lanes: Lanes) -> None:
    """Write s T(c, m) of the edge of each lane, for m from ``begin``."""
    classes, term, scale = couplings.shape[1], lanes.term, lanes.scale
    if len(couplings) == 1:
        for m in range(begin, classes):
            for lane in range(LANES):
                term[m - begin, lane] = scale[lane] * couplings[0, c, m]
        return
    for lane in range(LANES):
        e = edge[lane]
        for m in range(begin, classes):
            term[m - begin, lane] = couplings[e, c, m]
    for m in range(classes - begin):
        for lane in range(LANES):
            term[m, lane] *= scale[lane]


@vectorized
def _is_within(limit: float, num_rows: int, lanes: Lanes) -> bool:
    """Return whether no term is larger than the limit in magnitude."""
    term, highest, spare = lanes.term, lanes.highest, lanes.spare
    for lane in range(LANES):
        highest[lane] = abs(term[0, lane])
    for m in range(1, num_rows):
        for lane in range(LANES):
            spare[lane] = abs(term[m, lane]) if abs(term[m, lane]) > highest[lane] else highest[lane]
        highest, spare = spare, highest
    within = True
    for lane in range(LANES):
        within &= highest[lane] <= limit
    return within


@vectorized
def _log_reduce(potentials: Potentials, edge: Array, is_max: bool, lanes: Lanes) -> None:
    """Compute max_l h(l) + s T(l, m), or log Σ_l exp(h(l) + s T(l, m)) shifted by the largest term."""
    couplings, message, term, scale = potentials.couplings, lanes.message, lanes.term, lanes.scale
    scratch, scratch_bits = lanes.scratch.reshape(-1), lanes.scratch_bits.reshape(-1)
    classes, is_shared = couplings.shape[1], len(couplings) == 1
    for side in range(2):
        cavity = lanes.cavity[1 - side]
        for m in range(classes):
            for c in range(classes):
                row, column = (c, m) if side == 1 else (m, c)
                if is_shared:
                    for lane in range(LANES):
                        term[c, lane] = cavity[c, lane] + scale[lane] * couplings[0, row, column]
                else:
                    for lane in range(LANES):
                        term[c, lane] = cavity[c, lane] + scale[lane] * couplings[edge[lane], row, column]
            highest = _largest(term, lanes)
            for lane in range(LANES):
                message[side, m, lane] = highest[lane]
            if is_max:
                continue
            for c in range(classes):
                for lane in range(LANES):
                    term[c, lane] -= highest[lane]
            _exp(term.reshape(-1), scratch, scratch_bits, term.size)
            for c in range(1, classes):
                for lane in range(LANES):
                    term[0, lane] += term[c, lane]
            _log(term.reshape(-1), lanes.term_bits.reshape(-1), scratch_bits, LANES)
            for lane in range(LANES):
                message[side, m, lane] += term[0, lane]


@vectorized
def _exp(x: Array, scratch: Array, scratch_bits: Array, num: int) -> None:
    """Replace the first ``num`` numbers x by exp(x) = 2^n e^r, with |r| ≤ log(2)/2 and a Taylor series of e^r.

    Results below the smallest normal number are replaced by about that number.
    """
    if x.itemsize == 4:
        for k in range(num):
            value = max(x[k], np.float32(-87.0))
            n = np.floor(value * np.float32(1.4426950408889634) + np.float32(0.5))
            r = (value - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
            p = r * np.float32(1 / 5040) + np.float32(1 / 720)
            p = p * r + np.float32(1 / 120)
            p = p * r + np.float32(1 / 24)
            p = p * r + np.float32(1 / 6)
            p = p * r + np.float32(1 / 2)
            p = p * r + np.float32(1)
            x[k] = p * r + np.float32(1)
            scratch_bits[k] = (np.int32(n) + np.int32(127)) << np.int32(23)
    else:
        for k in range(num):
            value = max(x[k], -708.0)
            n = np.floor(value * 1.4426950408889634 + 0.5)
            r = (value - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
            p = r * (1 / 6227020800) + 1 / 479001600
            p = p * r + 1 / 39916800
            p = p * r + 1 / 3628800
            p = p * r + 1 / 362880
            p = p * r + 1 / 40320
            p = p * r + 1 / 5040
            p = p * r + 1 / 720
            p = p * r + 1 / 120
            p = p * r + 1 / 24
            p = p * r + 1 / 6
            p = p * r + 1 / 2
            p = p * r + 1.0
            x[k] = p * r + 1.0
            scratch_bits[k] = (np.int64(n) + np.int64(1023)) << np.int64(52)
    for k in range(num):
        x[k] *= scratch[k]


@vectorized
def _log(x: Array, bits: Array, scratch_bits: Array, num: int) -> None:
    """Replace the first ``num`` normal numbers by their logarithms n log 2 + 2 artanh((m - 1) / (m + 1)).

    The mantissa m is between 1/√2 and √2.
    """
    if x.itemsize == 4:
        for k in range(num):
            n = (bits[k] - np.int32(0x3F3504F3)) >> np.int32(23)
            scratch_bits[k] = n
            bits[k] -= n << np.int32(23)
        for k in range(num):
            n32 = np.float32(scratch_bits[k])
            s = (x[k] - np.float32(1)) / (x[k] + np.float32(1))
            z = s * s
            p = z * np.float32(2 / 9) + np.float32(2 / 7)
            p = p * z + np.float32(2 / 5)
            p = p * z + np.float32(2 / 3)
            p = p * z + np.float32(2)
            x[k] = (p * s - n32 * np.float32(2.12194440e-4)) + n32 * np.float32(0.693359375)
    else:
        for k in range(num):
            n = (bits[k] - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
            scratch_bits[k] = n
            bits[k] -= n << np.int64(52)
        for k in range(num):
            n64 = np.float64(scratch_bits[k])
            s = (x[k] - 1.0) / (x[k] + 1.0)
            z = s * s
            p = z * (2 / 23) + 2 / 21
            p = p * z + 2 / 19
            p = p * z + 2 / 17
            p = p * z + 2 / 15
            p = p * z + 2 / 13
            p = p * z + 2 / 11
            p = p * z + 2 / 9
            p = p * z + 2 / 7
            p = p * z + 2 / 5
            p = p * z + 2 / 3
            p = p * z + 2.0
            x[k] = (p * s + n64 * 1.90821492927058770002e-10) + n64 * 0.693147180369123816490
