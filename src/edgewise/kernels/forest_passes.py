"""Exact sum-product on a forest in compiled loops, with a pass from the leaves to the roots and a pass back; and draws.

The reference implementation repeats `edgewise.inference.messages.sweep` with `log_sum` until convergence, which gives
the same messages on a forest.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled, map_slices

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


def draw_on_forest(
    log_node: Array, cavity: Array, couplings: Array, scale: Array, forest: RootedForest, uniform: Array
) -> Array:
    """Draw labels (samples, N) from the roots to the leaves, with uniform numbers (samples, N).

    P(m) ∝ exp(log_node(m)) at a root. Other nodes are drawn given the label l of the parent: P(m | l) ∝
    exp(s T(l, m) + cavity(m)), where the cavity is the log-belief of the node without the message from its parent.
    """
    labels = np.empty(uniform.shape, np.int64)
    map_slices(partial(_draw_on_forest, log_node, cavity, couplings, scale, *forest, uniform, labels), len(labels))
    return labels


@compiled
def _draw_on_forest(
    log_node: Array,
    cavity: Array,
    couplings: Array,
    scale: Array,
    order: Array,
    parent: Array,
    edge: Array,
    from_start: Array,
    uniform: Array,
    labels: Array,
    first: int,
    last: int,
) -> None:
    classes = log_node.shape[1]
    terms = np.empty(classes)
    for sample in range(first, last):
        for node in order:
            up, highest = parent[node], -np.inf
            if up >= 0:
                given = labels[sample, up]
                t = couplings[edge[node] if len(couplings) > 1 else 0]
                s = scale[edge[node] if len(scale) > 1 else 0]
                for label in range(classes):
                    terms[label] = s * (t[label, given] if from_start[node] else t[given, label]) + cavity[node, label]
                    highest = max(highest, terms[label])
            if highest == -np.inf:  # a root; or joints that are not quite consistent exclude all labels
                for label in range(classes):
                    terms[label] = log_node[node, label]
                    highest = max(highest, terms[label])
            total = 0.0
            for label in range(classes):
                terms[label] = np.exp(terms[label] - highest)
                total += terms[label]
            rest, chosen = uniform[sample, node] * total, 0
            while chosen < classes - 1 and rest >= terms[chosen]:
                rest -= terms[chosen]
                chosen += 1
            while terms[chosen] == 0.0:  # rounding must not choose an impossible label
                chosen -= 1
            labels[sample, node] = chosen
