"""Belief propagation in compiled loops: what `edgewise.inference.messages` does with tensors, in one pass a sweep.

Messages lie in the order of the nodes that receive them ("slots"), so a node reads all that it hears in one go, forms
its cavities and writes what it tells to the slots of its neighbours. 64 messages go side by side through vector
instructions, whatever the number of classes. A second pass, over whole arrays, damps and finds the largest change.

All of it is in one file because compiled loops that call each other must be: what is kept of them on disk is thrown
away only when their own file changes (see `edgewise.kernels.dispatch`).
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.inference.messages import MATRIX_RANGE, Messages
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.solver import verdict
from edgewise.kernels.dispatch import compiled, in_slices, other_threads, vectorized
from edgewise.posterior import Convergence

Array = NDArray[Any]

LANES = 64
# What a node does to tell: multiply by exp(T), or by exp(s T) of each edge, or go term by term in logarithms.
PRODUCT, SCALED_PRODUCT, LOG_SUM, LOG_MAX = range(4)


class Slots(NamedTuple):
    """Directed edges in the order of their receivers."""

    first: Array  # (N + 1,) where the slots of each node begin
    reverse: Array  # (2E,) the slot of the message that runs the other way
    edge: Array  # (2E,) the edge
    forward: Array  # (2E,) whether the receiver is the edge's start, so that its own message runs along the edge
    order: Array  # (2E,) the place of each slot's message among those into starts, then into ends


class Potentials(NamedTuple):
    """What the sweeps of one field need to know of it."""

    unary: Array  # (N, C)
    couplings: Array  # (1 or E, C, C)
    scale: Array  # (1 or E,)
    matrix: Array  # exp(T) where nodes tell by a matrix product


class Lanes(NamedTuple):
    """Room for 64 messages side by side, class by class; ``bits`` are the same memory as integers."""

    field: Array
    told: Array
    told_bits: Array
    term: Array
    term_bits: Array
    spare: Array
    spare_bits: Array


def lanes_for(classes: int, dtype: np.dtype[Any]) -> Lanes:
    """Make room."""
    bits = np.zeros((4, classes * LANES), dtype=np.int32 if dtype == np.float32 else np.int64)
    field, told, term, spare = bits.view(dtype)
    return Lanes(field, told, bits[1], term, bits[2], spare, bits[3])


def slots_of(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Slots:
    """Sort the two directions of all edges by receiver."""
    num_edges = edge_index.shape[1]
    start, end = edge_index.numpy()
    first = np.zeros(num_nodes + 1, dtype=np.int64)
    reverse, edge, order = np.empty((3, 2 * num_edges), dtype=np.int64)
    forward = np.empty(2 * num_edges, dtype=np.bool_)
    _place(start, end, first, reverse, edge, forward, order)
    return Slots(first, reverse, edge, forward, order)


@compiled
def _place(start: Array, end: Array, first: Array, reverse: Array, edge: Array, forward: Array, order: Array) -> None:
    """Count the slots of each node, then give each edge one at its start and one at its end."""
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


def run_compiled(
    mrf: PairwiseMRF, rule: Literal["sum", "max"], max_sweeps: int, damping: float, tolerance: float
) -> tuple[Messages, Convergence]:
    """Sweep each field of a batch until it converges."""
    slots = slots_of(mrf.edge_index, mrf.num_nodes)
    fields = mrf.unary.reshape(-1, mrf.num_nodes, mrf.num_classes).contiguous().numpy()
    couplings = mrf.pairwise.reshape(len(fields), -1, mrf.num_classes, mrf.num_classes).contiguous().numpy()
    scales = np.ones((len(fields), 1)) if mrf.edge_scale is None else mrf.edge_scale.reshape(len(fields), -1).numpy()
    messages = mrf.unary.new_empty(len(fields), 2 * mrf.num_edges, mrf.num_classes)
    verdicts = []
    for b, field in enumerate(fields):
        told, residuals = _run_one(
            field, couplings[b], scales[b].astype(field.dtype), slots, rule, max_sweeps, damping, tolerance
        )
        messages[b, torch.from_numpy(slots.order)] = torch.from_numpy(told)
        verdicts.append(verdict(residuals, tolerance, damping))
    worst = max(verdicts, key=lambda one: (not one.converged, one.residual))
    sweeps = max(one.sweeps for one in verdicts)
    shape = (*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)
    return messages.reshape(shape), Convergence(worst.converged, sweeps, worst.residual, worst.advice)


def _run_one(
    unary: Array,
    couplings: Array,
    scale: Array,
    slots: Slots,
    rule: Literal["sum", "max"],
    max_sweeps: int,
    damping: float,
    tolerance: float,
) -> tuple[Array, list[float]]:
    num_slots, classes = len(slots.edge), unary.shape[1]
    old, new = np.zeros((2, num_slots * classes), dtype=unary.dtype)
    method, matrix = _method(couplings, scale, rule)
    potentials, keep = Potentials(unary, couplings, scale, matrix), unary.dtype.type(damping)

    def tell(lo: int, hi: int, heard: Array, told: Array) -> None:
        nodes = np.searchsorted(slots.first[:-1], (lo, hi if hi < num_slots else num_slots + 1))
        _sweep(method, nodes[0], nodes[1], slots, potentials, lanes_for(classes, unary.dtype), heard, told)

    residuals: list[float] = []
    with other_threads() as others:
        while len(residuals) < max_sweeps and (not residuals or residuals[-1] > tolerance):
            in_slices(partial(tell, heard=old, told=new), num_slots, others)
            changes = in_slices(partial(_settle, old=old, new=new, keep=keep), len(new), others)
            residuals.append(float(max(changes)))
            old, new = new, old
    return old.reshape(num_slots, classes), residuals


def _method(couplings: Array, scale: Array, rule: Literal["sum", "max"]) -> tuple[int, Array]:
    """Choose how nodes tell, and give exp(T) where they do so by a matrix product."""
    widest = MATRIX_RANGE[torch.float32 if couplings.dtype == np.float32 else torch.float64]
    nothing = couplings[0, :0]
    if rule == "max":
        return LOG_MAX, nothing
    if len(couplings) == 1 and len(scale) == 1 and scale[0] == 1.0 and np.ptp(couplings) <= widest:
        return PRODUCT, np.exp(couplings[0] - couplings.max())
    if len(couplings) == 1 and 2 * np.abs(couplings).max() * np.abs(scale).max(initial=0.0) <= widest:
        return SCALED_PRODUCT, nothing
    return LOG_SUM, nothing


@vectorized
def _settle(lo: int, hi: int, old: Array, new: Array, keep: float) -> float:
    """Keep a share of the old messages, and give the largest change before that."""
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
    """Let nodes tell their neighbours what they believe without what these told them."""
    first, reverse, edge, forward, _ = slots
    unary, couplings, scale, matrix = potentials
    field, told, told_bits, term, _, spare, spare_bits = lanes
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
                    field[c * LANES + lane] = totals[row, c] - old[place + c]
                along[lane] = 1 if forward[slot + lane] else 0
            _shift_to_zero(field, classes)
            if method == PRODUCT:
                _exp(field, spare, spare_bits, classes * LANES)
                _multiply(matrix, along, field, told, classes)
                _log(told, told_bits, spare_bits, classes * LANES)
            else:
                for lane in range(num):
                    lane_edge[lane] = edge[slot + lane]
                    lane_scale[lane] = scale[lane_edge[lane] if len(scale) > 1 else 0]
            if method == SCALED_PRODUCT:
                _exp(field, spare, spare_bits, classes * LANES)
                _multiply_scaled(couplings, lane_scale, along, field, told, term, spare, spare_bits)
                _log(told, told_bits, spare_bits, classes * LANES)
            elif method == LOG_SUM:
                _log_sum(couplings, lane_edge, lane_scale, along, lanes)
            elif method == LOG_MAX:
                _log_max(couplings, lane_edge, lane_scale, along, field, told, term)
            _shift_to_zero(told, classes)
            for lane in range(num):
                place = reverse[slot + lane] * classes
                for c in range(classes):
                    new[place + c] = told[c * LANES + lane]


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
    couplings: Array, lane_edge: Array, lane_scale: Array, along: Array, field: Array, told: Array, term: Array
) -> None:
    """max_l h(l) + s T(l, m)."""
    classes = couplings.shape[1]
    for m in range(classes):
        for lane in range(LANES):
            told[m * LANES + lane] = -np.inf
        for c in range(classes):
            _fill(couplings, c, m, lane_edge, lane_scale, along, term, 0)
            for lane in range(LANES):
                value = term[lane] + field[c * LANES + lane]
                told[m * LANES + lane] = value if value > told[m * LANES + lane] else told[m * LANES + lane]


@vectorized
def _log_sum(couplings: Array, lane_edge: Array, lane_scale: Array, along: Array, lanes: Lanes) -> None:
    """Give log Σ_l exp(h(l) + s T(l, m)), from the largest term on: right for couplings of any size."""
    field, told, _, term, term_bits, spare, spare_bits = lanes
    classes = couplings.shape[1]
    _log_max(couplings, lane_edge, lane_scale, along, field, told, term)
    for m in range(classes):
        for c in range(classes):
            _fill(couplings, c, m, lane_edge, lane_scale, along, term, c * LANES)
            for lane in range(LANES):
                term[c * LANES + lane] += field[c * LANES + lane] - told[m * LANES + lane]
        _exp(term, spare, spare_bits, classes * LANES)
        for c in range(1, classes):
            for lane in range(LANES):
                term[lane] += term[c * LANES + lane]
        _log(term, term_bits, spare_bits, LANES)
        for lane in range(LANES):
            told[m * LANES + lane] += term[lane]


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
