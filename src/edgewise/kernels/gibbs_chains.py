"""Gibbs chains of labels in compiled loops.

They draw from P(y) ∝ exp( Σ_i U_i(y_i) + Σ_{edges} T_ij(y_i, y_j) - Σ_{pairs i<j} w_i w_j R(y_i, y_j) ). The plain twin
is the loop in the tests of the simulation, which draws the same labels.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]


class GibbsArrays(NamedTuple):
    """A field as arrays of float64 and int64.

    The neighbors of node i are ``neighbor[begin[i]:begin[i + 1]]``, by the edges at the same places of ``edge``.
    """

    free: Array  # the nodes with more than one possible label
    unary: Array  # U (N, C)
    begin: Array  # (N + 1,)
    neighbor: Array  # (2E,)
    edge: Array  # (2E,)
    coupling: Array  # T (E or 1, C, C)
    weight: Array  # w (N,)
    rate: Array  # R (C, C)


@compiled
def sweep_labels(labels: Array, field: GibbsArrays, num_sweeps: int, rng: np.random.Generator) -> None:
    """Draw each free node's label given all others, in turn, so many times; ``labels`` are changed in place."""
    weight, classes = field.weight, field.unary.shape[1]
    sums = np.zeros(classes)
    for i in range(len(labels)):
        sums[labels[i]] += weight[i]
    log_p = np.empty(classes)
    for _ in range(num_sweeps):
        for i in field.free:
            sums[labels[i]] -= weight[i]
            _log_conditional(i, labels, field, sums, log_p)
            labels[i] = _draw(log_p, rng.random())
            sums[labels[i]] += weight[i]


@compiled
def run_chain(
    labels: Array,
    field: GibbsArrays,
    ends: Array,
    affinity: Array,
    num_sweeps: int,
    rng: np.random.Generator,
    node_sum: Array,
    node_square: Array,
    joint_sum: Array,
) -> None:
    """Sweep, and after each sweep add up what every node and every edge would be given the labels of all others.

    ``affinity`` (E or 1, C, C) is exp of all that couples the ends of an edge. ``node_sum`` and ``node_square`` (N, C)
    take P(y_i | rest) and its square, ``joint_sum`` (E, C, C) takes P(y_i, y_j | rest).
    """
    weight, (num_nodes, classes) = field.weight, field.unary.shape
    given = np.empty((num_nodes, classes))
    pair = np.empty((classes, classes))
    sums = np.empty(classes)
    for _ in range(num_sweeps):
        sweep_labels(labels, field, 1, rng)
        sums[:] = 0.0
        for i in range(num_nodes):
            sums[labels[i]] += weight[i]
        for i in range(num_nodes):
            sums[labels[i]] -= weight[i]
            _log_conditional(i, labels, field, sums, given[i])
            sums[labels[i]] += weight[i]
            _add_node(given[i], node_sum[i], node_square[i])
        for e in range(ends.shape[1]):
            i, j = ends[0, e], ends[1, e]
            both = affinity[e if len(affinity) > 1 else 0]
            _add_pair(given[i], given[j], labels[i], labels[j], both, pair, joint_sum[e])


@compiled
def _log_conditional(i: int, labels: Array, field: GibbsArrays, sums: Array, log_p: Array) -> None:
    """Compute log P(y_i | rest) up to a constant; ``sums`` are those of the other nodes."""
    classes = len(log_p)
    for label in range(classes):
        outside = 0.0
        for other in range(classes):
            outside += field.rate[label, other] * sums[other]
        log_p[label] = field.unary[i, label] - field.weight[i] * outside
    for place in range(field.begin[i], field.begin[i + 1]):
        edge = field.edge[place] if len(field.coupling) > 1 else 0
        row = field.coupling[edge, labels[field.neighbor[place]]]
        for label in range(classes):
            log_p[label] += row[label]


@compiled
def _draw(log_p: Array, level: float) -> int:
    """Draw a label with probability ∝ exp(log_p); ``log_p`` is used up."""
    highest = log_p.max()
    total = 0.0
    for label in range(len(log_p)):
        total += np.exp(log_p[label] - highest)
        log_p[label] = total
    label = 0
    while label < len(log_p) - 1 and log_p[label] <= level * total:
        label += 1
    return label


@compiled
def _add_node(log_p: Array, node_sum: Array, node_square: Array) -> None:
    """Turn log P(y_i | rest) into P(y_i | rest) in place, and add it up."""
    highest, total = log_p.max(), 0.0
    for label in range(len(log_p)):
        log_p[label] = np.exp(log_p[label] - highest)
        total += log_p[label]
    for label in range(len(log_p)):
        log_p[label] /= total
        node_sum[label] += log_p[label]
        node_square[label] += log_p[label] * log_p[label]


@compiled
def _add_pair(
    given_i: Array, given_j: Array, label_i: int, label_j: int, affinity: Array, pair: Array, joint_sum: Array
) -> None:
    """Take the other end's label out of P(y_i | rest) and P(y_j | rest), couple the ends, and normalize."""
    classes, total = len(given_i), 0.0
    for low in range(classes):
        alone = given_i[low] / affinity[low, label_j]
        for high in range(classes):
            pair[low, high] = alone * affinity[low, high] * given_j[high] / affinity[label_i, high]
            total += pair[low, high]
    for low in range(classes):
        for high in range(classes):
            joint_sum[low, high] += pair[low, high] / total
