"""Sequential sweeps of the double loop of `edgewise.inference.double_loop`, in compiled loops.

Messages are sorted by the node that receives them; the position of a message is its slot. All arrays are float64. The
reference implementation is in tests/inference/test_double_loop.py.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]


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


def sort_by_target(edge_index: Array, num_nodes: int) -> Slots:
    """Sort both directions of all edges by their target."""
    num_edges = edge_index.shape[1]
    order = np.argsort(edge_index.ravel(), kind="stable")
    slot = np.empty(2 * num_edges, np.int64)
    slot[order] = np.arange(2 * num_edges)
    first = np.zeros(num_nodes + 1, np.int64)
    first[1:] = np.bincount(edge_index.ravel(), minlength=num_nodes).cumsum()
    is_start = order < num_edges
    reverse = slot[np.where(is_start, order + num_edges, order - num_edges)]
    return Slots(first, reverse, np.where(is_start, order, order - num_edges), is_start, order)


@compiled
def run_round(
    potentials: Potentials, slots: Slots, messages: Array, anchor: Array, log_belief: Array, num_sweeps: int
) -> float:
    """Visit all nodes ``num_sweeps`` times in their order, and return the largest change from the anchor.

    A visit of node i of degree d computes log b_i = (U_i + Σ_k μ_{k→i} + (d - 1) log a_i) / d from the log-beliefs a of
    the anchor, and sends b_i without μ_{k→i} to each neighbor k. ``messages`` (2E, C), in the order of ``slots``, and
    ``log_belief`` (N, C) are changed in place. The change is one of a probability, times the degree of its node.
    """
    num_nodes, classes = log_belief.shape
    cavity, message = np.empty(classes), np.empty(classes)
    for _ in range(num_sweeps):
        for i in range(num_nodes):
            first, last = slots.first[i], slots.first[i + 1]
            _fill_belief(potentials.unary[i], messages[first:last], anchor[i], log_belief[i])
            for slot in range(first, last):
                for c in range(classes):
                    cavity[c] = log_belief[i, c] - messages[slot, c]
                _fill_message(potentials, slots.edge[slot], slots.forward[slot], cavity, message)
                messages[slots.reverse[slot]] = message
    largest = 0.0
    for i in range(num_nodes):
        degree = slots.first[i + 1] - slots.first[i]
        log_z, anchor_log_z = _log_sum_exp(log_belief[i]), _log_sum_exp(anchor[i])
        for c in range(classes):
            change = abs(np.exp(log_belief[i, c] - log_z) - np.exp(anchor[i, c] - anchor_log_z))
            largest = max(largest, max(1, degree) * change)
    return largest


@compiled
def _fill_belief(unary: Array, incoming: Array, anchor: Array, log_belief: Array) -> None:
    """Compute log b_i, shifted to a largest entry of 0."""
    degree, highest = len(incoming), -np.inf
    for c in range(len(unary)):
        total = unary[c]
        for k in range(degree):
            total += incoming[k, c]
        if degree > 1:
            total = (total + (degree - 1) * anchor[c]) / degree
        log_belief[c] = total
        highest = max(highest, total)
    for c in range(len(unary)):
        log_belief[c] -= highest


@compiled
def _fill_message(potentials: Potentials, edge: int, forward: bool, cavity: Array, message: Array) -> None:
    """Compute log Σ_l exp(h(l) + s T(l, m)), shifted to a largest entry of 0; T is transposed if not ``forward``."""
    classes = len(cavity)
    coupling = potentials.couplings[edge if len(potentials.couplings) > 1 else 0]
    scale = potentials.scale[edge if len(potentials.scale) > 1 else 0]
    terms = np.empty(classes)
    for m in range(classes):
        for c in range(classes):
            terms[c] = cavity[c] + scale * (coupling[c, m] if forward else coupling[m, c])
        message[m] = _log_sum_exp(terms)
    highest = message.max()
    for m in range(classes):
        message[m] -= highest


@compiled
def _log_sum_exp(terms: Array) -> float:
    highest, total = terms.max(), 0.0
    for term in terms:
        total += np.exp(term - highest)
    log_sum: float = highest + np.log(total)
    return log_sum
