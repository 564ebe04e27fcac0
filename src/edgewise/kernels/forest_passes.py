"""Exact sum-product on a forest in compiled loops, with a pass from the leaves to the roots and a pass back.

The reference implementation repeats `edgewise.inference.messages.sweep` with `log_sum` until convergence, which gives
the same messages on a forest.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]


class RootedForest(NamedTuple):
    """The nodes of a forest, ordered so that parents come before their children, and the edges to their parents."""

    order: Array
    parent: Array  # -1 for a root
    edge: Array  # index of the edge to the parent
    from_start: Array  # whether the node is the start of that edge


def pass_up_and_down(unary: Array, couplings: Array, scale: Array, forest: RootedForest, num_edges: int) -> Array:
    """Compute the messages (2, E, C) into the start and the end of each edge; zero for edges outside the forest.

    All arrays are float64; ``couplings`` is (1 or E, C, C), ``scale`` is (1 or E,).
    """
    messages = np.zeros((2, num_edges, unary.shape[1]))
    _pass_up_and_down(unary.copy(), couplings, scale, *forest, messages)
    return messages


@compiled
def _pass_up_and_down(
    totals: Array,
    couplings: Array,
    scale: Array,
    order: Array,
    parent: Array,
    edge: Array,
    from_start: Array,
    messages: Array,
) -> None:
    """Add the messages from children, then the messages from parents, to ``totals``, which initially holds U."""
    classes = totals.shape[1]
    cavity, message = np.empty(classes), np.empty(classes)
    for k in range(len(order) - 1, -1, -1):
        node = order[k]
        up = parent[node]
        if up < 0:
            continue
        for c in range(classes):
            cavity[c] = totals[node, c]
        e = edge[node]
        _log_sum(cavity, couplings, scale, e, from_start[node], message)
        for c in range(classes):
            messages[1 if from_start[node] else 0, e, c] = message[c]
            totals[up, c] += message[c]
    for k in range(len(order)):
        node = order[k]
        up = parent[node]
        if up < 0:
            continue
        e = edge[node]
        for c in range(classes):
            cavity[c] = totals[up, c] - messages[1 if from_start[node] else 0, e, c]
        _log_sum(cavity, couplings, scale, e, not from_start[node], message)
        for c in range(classes):
            messages[0 if from_start[node] else 1, e, c] = message[c]
            totals[node, c] += message[c]


@compiled
def _log_sum(cavity: Array, couplings: Array, scale: Array, edge: int, forward: bool, message: Array) -> None:
    """Compute log Σ_l exp(h(l) + s T(l, m)), shifted to a largest entry of 0; T is transposed if not ``forward``."""
    classes = len(cavity)
    t = edge if len(couplings) > 1 else 0
    s = scale[edge] if len(scale) > 1 else scale[0]
    highest = -np.inf
    for m in range(classes):
        largest = -np.inf
        for c in range(classes):
            largest = max(largest, cavity[c] + s * (couplings[t, c, m] if forward else couplings[t, m, c]))
        total = 0.0
        for c in range(classes):
            total += np.exp(cavity[c] + s * (couplings[t, c, m] if forward else couplings[t, m, c]) - largest)
        message[m] = largest + np.log(total)
        highest = max(highest, message[m])
    for m in range(classes):
        message[m] -= highest
