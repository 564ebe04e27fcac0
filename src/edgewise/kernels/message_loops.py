"""Belief propagation in compiled loops: one pass per sweep. The plain twin is `edgewise.inference.messages.sweep`.

Messages lie in the order of the nodes that receive them ("slots"), so a node reads all its incoming messages in one go,
forms its cavities and writes its outgoing messages to the slots of its neighbors. 64 messages go side by side through
vector instructions, whatever the number of classes. A second pass, over whole arrays, damps and finds the largest
change.

All of it is in one file because compiled loops that call each other must be: what is kept of them on disk is thrown
away only when their own file changes (see `edgewise.kernels.dispatch`).
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled, map_slices, vectorized, worker_threads

Array = NDArray[Any]

LANES = 64
# How a message is computed from a cavity: as a product with exp(T), with exp(s T) of each edge, or term by term in
# logarithms.
PRODUCT, SCALED_PRODUCT, LOG_SUM, LOG_MAX = range(4)


class Slots(NamedTuple):
    """Directed edges in the order of their targets."""

    first: Array  # (N + 1,) where the slots of each node begin
    reverse: Array  # (2E,) the slot of the message that runs the other way
    edge: Array  # (2E,) the edge
    forward: Array  # (2E,) whether the target is the edge's start, so that its own message runs along the edge
    order: Array  # (2E,) the place of each slot's message among those into starts, then into ends


class Potentials(NamedTuple):
    """The log-potentials of one field."""

    unary: Array  # (N, C)
    couplings: Array  # (1 or E, C, C)
    scale: Array  # (1 or E,)
    matrix: Array  # exp(T) for the method PRODUCT, else empty


class Lanes(NamedTuple):
    """Room for 64 messages side by side, class by class; ``bits`` are the same memory as integers."""

    cavity: Array
    message: Array
    message_bits: Array
    term: Array
    term_bits: Array
    spare: Array
    spare_bits: Array


def new_lanes(classes: int, dtype: np.dtype[Any]) -> Lanes:
    """Allocate the room."""
    bits = np.zeros((4, classes * LANES), dtype=np.int32 if dtype == np.float32 else np.int64)
    cavity, message, term, spare = bits.view(dtype)
    return Lanes(cavity, message, bits[1], term, bits[2], spare, bits[3])


def sort_by_target(edge_index: Array, num_nodes: int) -> Slots:
    """Sort the two directions of all edges by the node that receives."""
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
    """Count the slots of each node, then assign each edge one at its start and one at its end."""
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
    """Choose how to compute log Σ_l exp(h(l) + s T(l, m)).

    ``matrix_range`` is how far couplings may lie apart for a product with exp(s T) to lose nothing.
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
    """Sweep one field from zero messages until none changes by more than the tolerance.

    Returns the messages (2E, C) in the order of ``slots`` and the residual of each sweep.
    """
    num_slots, classes = len(slots.edge), unary.shape[1]
    old, new = np.zeros((2, num_slots * classes), dtype=unary.dtype)
    matrix = np.exp(couplings[0] - couplings.max()) if method == PRODUCT else couplings[0, :0]
    potentials, keep = Potentials(unary, couplings, scale, matrix), unary.dtype.type(damping)

    def send(lo: int, hi: int, incoming: Array, outgoing: Array) -> None:
        nodes = np.searchsorted(slots.first[:-1], (lo, hi if hi < num_slots else num_slots + 1))
        _sweep(method, nodes[0], nodes[1], slots, potentials, new_lanes(classes, unary.dtype), incoming, outgoing)

    residuals: list[float] = []
    with worker_threads() as others:
        while len(residuals) < max_sweeps and (not residuals or residuals[-1] > tolerance):
            map_slices(partial(send, incoming=old, outgoing=new), num_slots, others)
            changes = map_slices(partial(_damp, old=old, new=new, keep=keep), len(new), others)
            residuals.append(float(max(changes)))
            old, new = new, old
    return old.reshape(num_slots, classes), residuals


@vectorized
def _damp(lo: int, hi: int, old: Array, new: Array, keep: float) -> float:
    """Keep a share of the old messages, and return the largest change before that."""
    largest = np.zeros(LANES, dtype=old.dtype)
    one = old.dtype.type(1.0)
    whole = lo + (hi - lo) // LANES * LANES
    for first in range(lo, whole, LANES):
        for k in range(LANES):
            message, before = new[first + k], old[first + k]
            change = abs(message - before) / max(one, -message)
            largest[k] = change if change > largest[k] else largest[k]
            new[first + k] = message + keep * (before - message)
    for k in range(whole, hi):
        message, before = new[k], old[k]
        largest[0] = max(largest[0], abs(message - before) / max(one, -message))
        new[k] = message + keep * (before - message)
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
    """Compute the messages that some nodes send to their neighbors."""
    first, reverse, edge, forward, _ = slots
    unary, couplings, scale, matrix = potentials
    cavity, message, message_bits, term, _, spare, spare_bits = lanes
    classes = unary.shape[1]
    totals = np.empty((LANES, classes))
    lane_edge = np.zeros(LANES, dtype=np.int64)
    along, lane_scale = np.ones((2, LANES), dtype=unary.dtype)
    while node < last_node:
        begin, from_node = first[node], node
        # As many nodes as have 64 slots, or one node that has more.
        while node < last_node and node - from_node < LANES and (node == from_node or first[node + 1] - begin <= LANES):
            row = node - from_node
            for c in range(classes):
                totals[row, c] = unary[node, c]
            for slot in range(first[node], first[node + 1]):
                for c in range(classes):
                    totals[row, c] += old[slot * classes + c]
            # At a hub totals are large: what matters of them must survive the rounding of cavities.
            highest = totals[row, 0]
            for c in range(1, classes):
                highest = max(highest, totals[row, c])
            for c in range(classes):
                totals[row, c] -= highest
            node += 1
        at = from_node
        for slot in range(begin, first[node], LANES):
            num = min(LANES, first[node] - slot)
            for lane in range(num):
                while first[at + 1] <= slot + lane:
                    at += 1
                row, place = at - from_node, (slot + lane) * classes
                for c in range(classes):
                    cavity[c * LANES + lane] = totals[row, c] - old[place + c]
                along[lane] = 1 if forward[slot + lane] else 0
            _shift_to_zero(cavity, classes)
            if method == PRODUCT:
                _exp(cavity, spare, spare_bits, classes * LANES)
                _multiply(matrix, along, cavity, message, classes)
                _log(message, message_bits, spare_bits, classes * LANES)
            else:
                for lane in range(num):
                    lane_edge[lane] = edge[slot + lane]
                    lane_scale[lane] = scale[lane_edge[lane] if len(scale) > 1 else 0]
            if method == SCALED_PRODUCT:
                _exp(cavity, spare, spare_bits, classes * LANES)
                _multiply_scaled(couplings, lane_scale, along, cavity, message, term, spare, spare_bits)
                _log(message, message_bits, spare_bits, classes * LANES)
            elif method == LOG_SUM:
                _log_sum(couplings, lane_edge, lane_scale, along, lanes)
            elif method == LOG_MAX:
                _log_max(couplings, lane_edge, lane_scale, along, cavity, message, term)
            _shift_to_zero(message, classes)
            for lane in range(num):
                place = reverse[slot + lane] * classes
                for c in range(classes):
                    new[place + c] = message[c * LANES + lane]


@vectorized
def _shift_to_zero(x: Array, classes: int) -> None:
    """Let the largest entry of each lane be 0."""
    highest = x[:LANES].copy()
    for c in range(1, classes):
        for lane in range(LANES):
            value = x[c * LANES + lane]
            highest[lane] = value if value > highest[lane] else highest[lane]
    for c in range(classes):
        for lane in range(LANES):
            x[c * LANES + lane] -= highest[lane]


@vectorized
def _multiply(matrix: Array, along: Array, x: Array, out: Array, classes: int) -> None:
    """Σ_l x(l) matrix(l, m), with the transpose in lanes that run against their edge."""
    for m in range(classes):
        for lane in range(LANES):
            out[m * LANES + lane] = 0
        for c in range(classes):
            forth, back = matrix[c, m], matrix[m, c]
            if forth == back:  # always so for a symmetric matrix, and quicker
                for lane in range(LANES):
                    out[m * LANES + lane] += forth * x[c * LANES + lane]
            else:
                for lane in range(LANES):
                    out[m * LANES + lane] += (forth if along[lane] > 0 else back) * x[c * LANES + lane]


@vectorized
def _multiply_scaled(
    couplings: Array,
    lane_scale: Array,
    along: Array,
    x: Array,
    out: Array,
    term: Array,
    spare: Array,
    spare_bits: Array,
) -> None:
    """Σ_l x(l) exp(s T(l, m)): as few exponentials as T has entries that differ from their mirror image."""
    classes = couplings.shape[1]
    for k in range(classes * LANES):
        out[k] = 0
    for m in range(classes):
        row = m * LANES
        for c in range(m + 1):
            _fill_scaled(couplings[0, c, m], couplings[0, m, c], lane_scale, along, term, c * LANES)
        _exp(term, spare, spare_bits, (m + 1) * LANES)
        for c in range(m + 1):
            for lane in range(LANES):
                out[row + lane] += term[c * LANES + lane] * x[c * LANES + lane]
        symmetric = True
        for c in range(m):
            symmetric = symmetric and couplings[0, c, m] == couplings[0, m, c]
        if not symmetric:
            for c in range(m):
                _fill_scaled(couplings[0, m, c], couplings[0, c, m], lane_scale, along, term, c * LANES)
            _exp(term, spare, spare_bits, m * LANES)
        for c in range(m):
            for lane in range(LANES):
                out[c * LANES + lane] += term[c * LANES + lane] * x[row + lane]


@vectorized
def _fill_scaled(forth: float, back: float, lane_scale: Array, along: Array, term: Array, row: int) -> None:
    """Write s T(l, m) of a coupling that edges share, oriented as each lane runs."""
    if forth == back:
        for lane in range(LANES):
            term[row + lane] = lane_scale[lane] * forth
    else:
        for lane in range(LANES):
            term[row + lane] = lane_scale[lane] * (forth if along[lane] > 0 else back)


@vectorized
def _fill(
    couplings: Array, c: int, m: int, lane_edge: Array, lane_scale: Array, along: Array, term: Array, row: int
) -> None:
    """Write s T(l, m) of each lane's edge."""
    if len(couplings) == 1:
        _fill_scaled(couplings[0, c, m], couplings[0, m, c], lane_scale, along, term, row)
    else:
        for lane in range(LANES):
            e = lane_edge[lane]
            term[row + lane] = lane_scale[lane] * (couplings[e, c, m] if along[lane] > 0 else couplings[e, m, c])


@vectorized
def _log_max(
    couplings: Array, lane_edge: Array, lane_scale: Array, along: Array, cavity: Array, message: Array, term: Array
) -> None:
    """max_l h(l) + s T(l, m)."""
    classes = couplings.shape[1]
    for m in range(classes):
        for lane in range(LANES):
            message[m * LANES + lane] = -np.inf
        for c in range(classes):
            _fill(couplings, c, m, lane_edge, lane_scale, along, term, 0)
            for lane in range(LANES):
                value = term[lane] + cavity[c * LANES + lane]
                message[m * LANES + lane] = value if value > message[m * LANES + lane] else message[m * LANES + lane]


@vectorized
def _log_sum(couplings: Array, lane_edge: Array, lane_scale: Array, along: Array, lanes: Lanes) -> None:
    """Compute log Σ_l exp(h(l) + s T(l, m)), shifted by the largest term: right for couplings of any size."""
    cavity, message, _, term, term_bits, spare, spare_bits = lanes
    classes = couplings.shape[1]
    _log_max(couplings, lane_edge, lane_scale, along, cavity, message, term)
    for m in range(classes):
        for c in range(classes):
            _fill(couplings, c, m, lane_edge, lane_scale, along, term, c * LANES)
            for lane in range(LANES):
                term[c * LANES + lane] += cavity[c * LANES + lane] - message[m * LANES + lane]
        _exp(term, spare, spare_bits, classes * LANES)
        for c in range(1, classes):
            for lane in range(LANES):
                term[lane] += term[c * LANES + lane]
        _log(term, term_bits, spare_bits, LANES)
        for lane in range(LANES):
            message[m * LANES + lane] += term[lane]


@vectorized
def _exp(x: Array, spare: Array, spare_bits: Array, num: int) -> None:
    """Replace num numbers up to 0 by their exponentials: 2^n e^r with |r| ≤ log(2)/2 and the series of e^r.

    What would be below the smallest normal number is about that number.
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
            spare_bits[k] = (np.int32(n) + np.int32(127)) << np.int32(23)
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
            spare_bits[k] = (np.int64(n) + np.int64(1023)) << np.int64(52)
    for k in range(num):
        x[k] *= spare[k]


@vectorized
def _log(x: Array, bits: Array, spare_bits: Array, num: int) -> None:
    """Replace num normal numbers by their logarithms: n log 2 + 2 artanh((m - 1) / (m + 1)) with m within √2 of 1."""
    if x.itemsize == 4:
        for k in range(num):
            n = (bits[k] - np.int32(0x3F3504F3)) >> np.int32(23)
            spare_bits[k] = n
            bits[k] -= n << np.int32(23)
        for k in range(num):
            n32 = np.float32(spare_bits[k])
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
            spare_bits[k] = n
            bits[k] -= n << np.int64(52)
        for k in range(num):
            n64 = np.float64(spare_bits[k])
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
