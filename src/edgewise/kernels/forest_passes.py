"""Sum-product on a forest in compiled loops: from the leaves to the roots and back, after which all messages are exact.

Its plain twin is `edgewise.inference.messages.sweep` with `log_sum`, repeated until nothing changes: on a forest both
end at the same messages.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]


class RootedForest(NamedTuple):
    """Nodes in an order in which parents come before their children, with the edges to their parents."""

    order: Array
    parent: Array  # -1 at a root
    edge: Array
    from_start: Array  # whether the node is the start of the edge to its parent


def pass_up_and_down(unary: Array, couplings: Array, scale: Array, forest: RootedForest, num_edges: int) -> Array:
    """Return the messages (2, E, C) into starts and ends of edges; zero on edges that are not of the forest.

    All numbers are float64; ``couplings`` is (1 or E, C, C), ``scale`` (1 or E,).
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
    """Add to ``totals``, at first U, the messages from children, then those from parents."""
    classes = totals.shape[1]
    cavity, message = np.empty(classes), np.empty(classes)
    for k in range(len(order) - 1, -1, -1):
        node = order[k]
        above = parent[node]
        if above < 0:
            continue
        for c in range(classes):
            cavity[c] = totals[node, c]
        e = edge[node]
        _log_sum(cavity, couplings, scale, e, from_start[node], message)
        for c in range(classes):
            messages[1 if from_start[node] else 0, e, c] = message[c]
            totals[above, c] += message[c]
    for k in range(len(order)):
        node = order[k]
        above = parent[node]
        if above < 0:
            continue
        e = edge[node]
        for c in range(classes):
            cavity[c] = totals[above, c] - messages[1 if from_start[node] else 0, e, c]
        _log_sum(cavity, couplings, scale, e, not from_start[node], message)
        for c in range(classes):
            messages[0 if from_start[node] else 1, e, c] = message[c]
            totals[node, c] += message[c]


@compiled
def _log_sum(cavity: Array, couplings: Array, scale: Array, edge: int, forward: bool, message: Array) -> None:
    """Log Σ_l exp(h(l) + s T(l, m)), with a largest entry of 0; T is transposed against the edge's direction."""
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
