"""Gibbs sampling of labels in compiled loops.

The chains sample from P(y) ∝ exp( Σ_i U_i(y_i) + Σ_{edges} s_e T_e(y_i, y_j) - Σ_{pairs i<j} w_i w_j R(y_i, y_j) ). T
need not be symmetric, R is. The reference implementation is in tests/simulation/test_compiled_chains.py.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]


class GibbsArrays(NamedTuple):
    """A label distribution as float64, int64 and bool arrays.

    The neighbors of node i are ``neighbor[begin[i]:begin[i + 1]]``, through the edges ``edge[begin[i]:begin[i + 1]]``.
    """

    free: Array  # nodes with more than one possible label
    unary: Array  # U (N, C)
    begin: Array  # (N + 1,)
    neighbor: Array  # (2E,)
    edge: Array  # (2E,)
    is_start: Array  # (2E,) whether node i is the start of the edge
    coupling: Array  # T (E or 1, C, C), a row for each label of the start
    scale: Array  # s (E or 1,)
    weight: Array  # w (N,)
    rate: Array  # R (C, C)


def gibbs_arrays(
    unary: Array,
    edge_index: Array,
    coupling: Array,
    scale: Array | None = None,
    weight: Array | None = None,
    rate: Array | None = None,
) -> GibbsArrays:
    """Sort the edges of a label distribution by node. By default s is 1 and w and R are 0."""
    (num_nodes, num_classes), num_edges = unary.shape, edge_index.shape[1]
    node, neighbor = edge_index.reshape(-1), edge_index[::-1].reshape(-1)
    order = np.argsort(node, kind="stable")
    begin = np.zeros(num_nodes + 1, dtype=np.int64)
    begin[1:] = np.bincount(node, minlength=num_nodes).cumsum()
    free = np.flatnonzero(np.isfinite(unary).sum(1) > 1)
    scale = np.ones(1) if scale is None else scale
    weight = np.zeros(num_nodes) if weight is None else weight
    rate = np.zeros((num_classes, num_classes)) if rate is None else rate
    unary, coupling, scale, weight, rate = (
        np.ascontiguousarray(part, np.float64) for part in (unary, coupling, scale, weight, rate)
    )
    slots = begin, neighbor[order], order % max(1, num_edges), order < num_edges
    return GibbsArrays(free, unary, *slots, coupling, scale, weight, rate)


@compiled
def sweep_labels(labels: Array, arrays: GibbsArrays, num_sweeps: int, rng: np.random.Generator) -> None:
    """Run Gibbs sweeps, each of which draws the label of every free node once; changes ``labels`` in place."""
    weight, classes = arrays.weight, arrays.unary.shape[1]
    sums = np.zeros(classes)
    for i in range(len(labels)):
        sums[labels[i]] += weight[i]
    log_p = np.empty(classes)
    for _ in range(num_sweeps):
        for i in arrays.free:
            sums[labels[i]] -= weight[i]
            _log_conditional(i, labels, arrays, sums, log_p)
            labels[i] = _draw(log_p, rng.random())
            sums[labels[i]] += weight[i]


@compiled
def run_chain(
    labels: Array,
    arrays: GibbsArrays,
    ends: Array,
    affinity: Array,
    num_sweeps: int,
    rng: np.random.Generator,
    node_sum: Array,
    node_square: Array,
    joint_sum: Array,
) -> None:
    """Run Gibbs sweeps and accumulate the conditionals of every node and edge given all other labels.

    ``affinity`` (E or 1, C, C) is exp of the sum of all terms that couple the ends of an edge. P(y_i | rest) is added
    to ``node_sum`` (N, C), its square to ``node_square``, and P(y_i, y_j | rest) to ``joint_sum`` (E, C, C).
    """
    weight, (num_nodes, classes) = arrays.weight, arrays.unary.shape
    conditional = np.empty((num_nodes, classes))
    pair = np.empty((classes, classes))
    sums = np.empty(classes)
    for _ in range(num_sweeps):
        sweep_labels(labels, arrays, 1, rng)
        sums[:] = 0.0
        for i in range(num_nodes):
            sums[labels[i]] += weight[i]
        for i in range(num_nodes):
            sums[labels[i]] -= weight[i]
            _log_conditional(i, labels, arrays, sums, conditional[i])
            sums[labels[i]] += weight[i]
            _add_node(conditional[i], node_sum[i], node_square[i])
        for e in range(ends.shape[1]):
            i, j = ends[0, e], ends[1, e]
            both = affinity[e if len(affinity) > 1 else 0]
            _add_pair(conditional[i], conditional[j], labels[i], labels[j], both, pair, joint_sum[e])


@compiled
def _log_conditional(i: int, labels: Array, arrays: GibbsArrays, sums: Array, log_p: Array) -> None:
    """Compute log P(y_i | rest) up to a constant, where ``sums`` are the class weights of all nodes except i."""
    classes = len(log_p)
    for label in range(classes):
        all_pairs = 0.0
        if arrays.weight[i] != 0.0:  # 0 in a field, where only edges couple nodes
            for other in range(classes):
                all_pairs += arrays.rate[label, other] * sums[other]
        log_p[label] = arrays.unary[i, label] - arrays.weight[i] * all_pairs
    for k in range(arrays.begin[i], arrays.begin[i + 1]):
        edge, other = arrays.edge[k], labels[arrays.neighbor[k]]
        coupling = arrays.coupling[edge if len(arrays.coupling) > 1 else 0]
        scale = arrays.scale[edge if len(arrays.scale) > 1 else 0]
        for label in range(classes):
            log_p[label] += scale * (coupling[label, other] if arrays.is_start[k] else coupling[other, label])


@compiled
def _draw(log_p: Array, uniform: float) -> int:
    """Draw a label with probability ∝ exp(log_p) from a uniform number; overwrites ``log_p``."""
    highest = log_p.max()
    total = 0.0
    for label in range(len(log_p)):
        total += np.exp(log_p[label] - highest)
        log_p[label] = total
    label = 0
    while label < len(log_p) - 1 and log_p[label] <= uniform * total:
        label += 1
    while label > 0 and log_p[label] == log_p[label - 1]:  # rounding must not choose an impossible label
        label -= 1
    return label


@compiled
def _add_node(log_p: Array, node_sum: Array, node_square: Array) -> None:
    """Replace log P(y_i | rest) by P(y_i | rest) in place, and accumulate it and its square."""
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
    conditional_i: Array,
    conditional_j: Array,
    label_i: int,
    label_j: int,
    affinity: Array,
    pair: Array,
    joint_sum: Array,
) -> None:
    """Accumulate P(y_i, y_j | rest).

    It is ∝ a(y_i, y_j) P(y_i | rest) / a(y_i, label_j) · P(y_j | rest) / a(label_i, y_j), where a is the affinity.
    """
    classes, total = len(conditional_i), 0.0
    for first in range(classes):
        cavity = conditional_i[first] / affinity[first, label_j]
        for second in range(classes):
            pair[first, second] = cavity * affinity[first, second] * conditional_j[second] / affinity[label_i, second]
            total += pair[first, second]
    for first in range(classes):
        for second in range(classes):
            joint_sum[first, second] += pair[first, second] / total
