"""Sweeps of belief propagation in compiled loops. The reference implementation is `edgewise.inference.messages.sweep`.

Messages are sorted by the node that receives them; the position of a message is its slot. So a node reads its incoming
messages contiguously, computes its cavities, and writes its outgoing messages to the slots of its neighbors. SIMD
instructions process 64 messages at a time, for any number of classes. A second pass over the arrays applies damping and
finds the largest change.

All loops are in one file, because the cache of a compiled loop is invalidated only when its own file changes (see
`edgewise.kernels.dispatch`).
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled, map_slices, vectorized, worker_threads

Array = NDArray[Any]

LANES = 64  # messages that are processed at a time
# Methods to compute a message from a cavity: product with exp(T), product with exp(s T) of each edge, or term by term
# in the log domain.
PRODUCT, SCALED_PRODUCT, LOG_SUM, LOG_MAX = range(4)


class Slots(NamedTuple):
    """Directed edges, that is messages, sorted by target."""

    first: Array  # (N + 1,) first slot of each node
    reverse: Array  # (2E,) slot of the message in the opposite direction
    edge: Array  # (2E,) index of the edge
    forward: Array  # (2E,) whether the target is the start of the edge, so that it sends along the edge
    order: Array  # (2E,) index of the message among those into starts, then into ends


class Potentials(NamedTuple):
    """The log-potentials of one MRF."""

    unary: Array  # (N, C)
    couplings: Array  # (1 or E, C, C)
    scale: Array  # (1 or E,)
    matrix: Array  # exp(T) for the method PRODUCT, else empty


class Lanes(NamedTuple):
    """Buffers of shape (classes, 64) for 64 messages; ``…_bits`` are the same memory as integers."""

    cavity: Array
    message: Array
    message_bits: Array
    term: Array
    term_bits: Array
    scratch: Array
    scratch_bits: Array


def new_lanes(classes: int, dtype: np.dtype[Any]) -> Lanes:
    """Allocate the buffers."""
    bits = np.zeros((4, classes * LANES), dtype=np.int32 if dtype == np.float32 else np.int64)
    cavity, message, term, scratch = bits.view(dtype)
    return Lanes(cavity, message, bits[1], term, bits[2], scratch, bits[3])


def sort_by_target(edge_index: Array, num_nodes: int) -> Slots:
    """Sort both directions of all edges by their target."""
    start, end = edge_index
    num_edges = len(start)
    first = np.zeros(num_nodes + 1, dtype=np.int64)
    reverse, edge, order = np.empty((3, 2 * num_edges), dtype=np.int64)
    forward = np.empty(2 * num_edges, dtype=np.bool_)
    _fill_slots(start, end, first, reverse, edge, forward, order)
    return Slots(first, reverse, edge, forward, order)


@compiled
def _fill_slots(
    start: Array, end: Array, first: Array, reverse: Array, edge: Array, forward: Array, order: Array
) -> None:
    """Count the slots of each node, then assign each edge a slot of its start and a slot of its end."""
    for e in range(len(start)):
        first[start[e] + 1] += 1
        first[end[e] + 1] += 1
    for node in range(len(first) - 1):
        first[node + 1] += first[node]
    free = first[:-1].copy()
    for e in range(len(start)):
        at_start, at_end = free[start[e]], free[end[e]]
        free[start[e]] += 1
        free[end[e]] += 1
        reverse[at_start], reverse[at_end] = at_end, at_start
        edge[at_start], edge[at_end] = e, e
        forward[at_start], forward[at_end] = True, False
        order[at_start], order[at_end] = e, e + len(start)


def log_sum_method(couplings: Array, scale: Array, matrix_range: float) -> int:
    """Choose a method to compute log Σ_l exp(h(l) + s T(l, m)).

    ``matrix_range`` is the largest difference of couplings for which a product with exp(s T) is accurate.
    """
    if len(couplings) == 1 and len(scale) == 1 and scale[0] == 1.0 and np.ptp(couplings) <= matrix_range:
        return PRODUCT
    if len(couplings) == 1 and 2 * np.abs(couplings).max() * np.abs(scale).max(initial=0.0) <= matrix_range:
        return SCALED_PRODUCT
    return LOG_SUM


def run_sweeps(
    unary: Array,
    couplings: Array,
    scale: Array,
    slots: Slots,
    method: int,
    max_sweeps: int,
    damping: float,
    tolerance: float,
) -> tuple[Array, list[float]]:
    """Run sweeps on one MRF, from zero messages, until no message changes by more than the tolerance.

    Return the messages (2E, C) in the order of ``slots`` and the residual of each sweep.
    """
    num_slots, classes = len(slots.edge), unary.shape[1]
    old, new = np.zeros((2, num_slots * classes), dtype=unary.dtype)
    matrix = np.exp(couplings[0] - couplings.max()) if method == PRODUCT else couplings[0, :0]
    potentials, keep = Potentials(unary, couplings, scale, matrix), unary.dtype.type(damping)

    def send(lo: int, hi: int, incoming: Array, outgoing: Array) -> None:
        nodes = np.searchsorted(slots.first[:-1], (lo, hi if hi < num_slots else num_slots + 1))
        _sweep(method, nodes[0], nodes[1], slots, potentials, new_lanes(classes, unary.dtype), incoming, outgoing)

    residuals: list[float] = []
    with worker_threads() as workers:
        while len(residuals) < max_sweeps and (not residuals or residuals[-1] > tolerance):
            map_slices(partial(send, incoming=old, outgoing=new), num_slots, workers)
            changes = map_slices(partial(_damp, old=old, new=new, keep=keep), len(new), workers)
            residuals.append(float(max(changes)))
            old, new = new, old
    return old.reshape(num_slots, classes), residuals


@vectorized
def _damp(lo: int, hi: int, old: Array, new: Array, keep: float) -> float:
    """Apply damping with the fraction ``keep`` of old messages, and return the largest change before damping."""
    largest = np.zeros(LANES, dtype=old.dtype)
    one = old.dtype.type(1.0)
    last_block_end = lo + (hi - lo) // LANES * LANES
    for first in range(lo, last_block_end, LANES):
        for k in range(LANES):
            message, old_message = new[first + k], old[first + k]
            change = abs(message - old_message) / max(one, -message)
            largest[k] = change if change > largest[k] else largest[k]
            new[first + k] = message + keep * (old_message - message)
    for k in range(last_block_end, hi):
        message, old_message = new[k], old[k]
        largest[0] = max(largest[0], abs(message - old_message) / max(one, -message))
        new[k] = message + keep * (old_message - message)
    highest: float = largest.max()
    return highest


@vectorized
def _sweep(
    method: int,
    node: int,
    last_node: int,
    slots: Slots,
    potentials: Potentials,
    lanes: Lanes,
    old: Array,
    new: Array,
) -> None:
    """Compute the messages from nodes ``node`` to ``last_node - 1`` to their neighbors."""
    first, reverse, edge, forward, _ = slots
    unary, couplings, scale, matrix = potentials
    cavity, message, message_bits, term, _, scratch, scratch_bits = lanes
    classes = unary.shape[1]
    totals = np.empty((LANES, classes))
    lane_edge = np.zeros(LANES, dtype=np.int64)
    is_forward, lane_scale = np.ones((2, LANES), dtype=unary.dtype)
    while node < last_node:
        begin, from_node = first[node], node
        # Take as many nodes as fit into 64 slots, or a single node with more slots.
        while node < last_node and node - from_node < LANES and (node == from_node or first[node + 1] - begin <= LANES):
            row = node - from_node
            for c in range(classes):
                totals[row, c] = unary[node, c]
            for slot in range(first[node], first[node + 1]):
                for c in range(classes):
                    totals[row, c] += old[slot * classes + c]
            # Totals of a node of high degree are large. Shift them, so that rounding does not affect their differences.
            highest = totals[row, 0]
            for c in range(1, classes):
                highest = max(highest, totals[row, c])
            for c in range(classes):
                totals[row, c] -= highest
            node += 1
        target = from_node
        for slot in range(begin, first[node], LANES):
            num = min(LANES, first[node] - slot)
            for lane in range(num):
                while first[target + 1] <= slot + lane:
                    target += 1
                row, place = target - from_node, (slot + lane) * classes
                for c in range(classes):
                    cavity[c * LANES + lane] = totals[row, c] - old[place + c]
                is_forward[lane] = 1 if forward[slot + lane] else 0
            _shift_to_zero(cavity, classes)
            if method == PRODUCT:
                _exp(cavity, scratch, scratch_bits, classes * LANES)
                _multiply(matrix, is_forward, cavity, message, classes)
                _log(message, message_bits, scratch_bits, classes * LANES)
            else:
                for lane in range(num):
                    lane_edge[lane] = edge[slot + lane]
                    lane_scale[lane] = scale[lane_edge[lane] if len(scale) > 1 else 0]
            if method == SCALED_PRODUCT:
                _exp(cavity, scratch, scratch_bits, classes * LANES)
                _multiply_scaled(couplings, lane_scale, is_forward, cavity, message, term, scratch, scratch_bits)
                _log(message, message_bits, scratch_bits, classes * LANES)
            elif method == LOG_SUM:
                _log_sum(couplings, lane_edge, lane_scale, is_forward, lanes)
            elif method == LOG_MAX:
                _log_max(couplings, lane_edge, lane_scale, is_forward, cavity, message, term)
            _shift_to_zero(message, classes)
            for lane in range(num):
                place = reverse[slot + lane] * classes
                for c in range(classes):
                    new[place + c] = message[c * LANES + lane]


@vectorized
def _shift_to_zero(x: Array, classes: int) -> None:
    """Subtract the largest entry of each lane."""
    highest = x[:LANES].copy()
    for c in range(1, classes):
        for lane in range(LANES):
            value = x[c * LANES + lane]
            highest[lane] = value if value > highest[lane] else highest[lane]
    for c in range(classes):
        for lane in range(LANES):
            x[c * LANES + lane] -= highest[lane]


@vectorized
def _multiply(matrix: Array, is_forward: Array, x: Array, out: Array, classes: int) -> None:
    """Compute Σ_l x(l) matrix(l, m), with the transposed matrix in lanes that send against their edge."""
    for m in range(classes):
        for lane in range(LANES):
            out[m * LANES + lane] = 0
        for c in range(classes):
            forth, back = matrix[c, m], matrix[m, c]
            if forth == back:  # faster; always true for a symmetric matrix
                for lane in range(LANES):
                    out[m * LANES + lane] += forth * x[c * LANES + lane]
            else:
                for lane in range(LANES):
                    out[m * LANES + lane] += (forth if is_forward[lane] > 0 else back) * x[c * LANES + lane]


@vectorized
def _multiply_scaled(
    couplings: Array,
    lane_scale: Array,
    is_forward: Array,
    x: Array,
    out: Array,
    term: Array,
    scratch: Array,
    scratch_bits: Array,
) -> None:
    """Compute Σ_l x(l) exp(s T(l, m)), with one exponential for both T(l, m) and T(m, l) if T is symmetric."""
    classes = couplings.shape[1]
    for k in range(classes * LANES):
        out[k] = 0
    for m in range(classes):
        row = m * LANES
        for c in range(m + 1):
            _fill_scaled(couplings[0, c, m], couplings[0, m, c], lane_scale, is_forward, term, c * LANES)
        _exp(term, scratch, scratch_bits, (m + 1) * LANES)
        for c in range(m + 1):
            for lane in range(LANES):
                out[row + lane] += term[c * LANES + lane] * x[c * LANES + lane]
        symmetric = True
        for c in range(m):
            symmetric = symmetric and couplings[0, c, m] == couplings[0, m, c]
        if not symmetric:
            for c in range(m):
                _fill_scaled(couplings[0, m, c], couplings[0, c, m], lane_scale, is_forward, term, c * LANES)
            _exp(term, scratch, scratch_bits, m * LANES)
        for c in range(m):
            for lane in range(LANES):
                out[c * LANES + lane] += term[c * LANES + lane] * x[row + lane]


@vectorized
def _fill_scaled(forth: float, back: float, lane_scale: Array, is_forward: Array, term: Array, row: int) -> None:
    """Write s T(l, m) of a shared coupling, transposed in lanes that send against their edge."""
    if forth == back:
        for lane in range(LANES):
            term[row + lane] = lane_scale[lane] * forth
    else:
        for lane in range(LANES):
            term[row + lane] = lane_scale[lane] * (forth if is_forward[lane] > 0 else back)


@vectorized
def _fill(
    couplings: Array, c: int, m: int, lane_edge: Array, lane_scale: Array, is_forward: Array, term: Array, row: int
) -> None:
    """Write s T(l, m) of the edge of each lane."""
    if len(couplings) == 1:
        _fill_scaled(couplings[0, c, m], couplings[0, m, c], lane_scale, is_forward, term, row)
    else:
        for lane in range(LANES):
            e = lane_edge[lane]
            term[row + lane] = lane_scale[lane] * (couplings[e, c, m] if is_forward[lane] > 0 else couplings[e, m, c])


@vectorized
def _log_max(
    couplings: Array, lane_edge: Array, lane_scale: Array, is_forward: Array, cavity: Array, message: Array, term: Array
) -> None:
    """Compute max_l h(l) + s T(l, m)."""
    classes = couplings.shape[1]
    for m in range(classes):
        for lane in range(LANES):
            message[m * LANES + lane] = -np.inf
        for c in range(classes):
            _fill(couplings, c, m, lane_edge, lane_scale, is_forward, term, 0)
            for lane in range(LANES):
                value = term[lane] + cavity[c * LANES + lane]
                message[m * LANES + lane] = value if value > message[m * LANES + lane] else message[m * LANES + lane]


@vectorized
def _log_sum(couplings: Array, lane_edge: Array, lane_scale: Array, is_forward: Array, lanes: Lanes) -> None:
    """Compute log Σ_l exp(h(l) + s T(l, m)), shifted by the largest term, for couplings of any magnitude."""
    cavity, message, _, term, term_bits, scratch, scratch_bits = lanes
    classes = couplings.shape[1]
    _log_max(couplings, lane_edge, lane_scale, is_forward, cavity, message, term)
    for m in range(classes):
        for c in range(classes):
            _fill(couplings, c, m, lane_edge, lane_scale, is_forward, term, c * LANES)
            for lane in range(LANES):
                term[c * LANES + lane] += cavity[c * LANES + lane] - message[m * LANES + lane]
        _exp(term, scratch, scratch_bits, classes * LANES)
        for c in range(1, classes):
            for lane in range(LANES):
                term[lane] += term[c * LANES + lane]
        _log(term, term_bits, scratch_bits, LANES)
        for lane in range(LANES):
            message[m * LANES + lane] += term[lane]


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
