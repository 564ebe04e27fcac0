"""Chains of labels in compiled loops."""

import numpy as np

from edgewise.kernels.dispatch import compiled
from edgewise.simulation.field import Array, FieldArrays


@compiled
def sweep_labels(labels: Array, arrays: FieldArrays, num_sweeps: int, rng: np.random.Generator) -> None:
    """Draw each free node's label given all others, in turn, so many times; ``labels`` are changed in place."""
    weight, classes = arrays.weight, arrays.unary.shape[1]
    sums = np.zeros(classes)
    for i in range(len(labels)):
        sums[labels[i]] += weight[i]
    field = np.empty(classes)
    for _ in range(num_sweeps):
        for i in arrays.free:
            sums[labels[i]] -= weight[i]
            _listen(i, labels, arrays, sums, field)
            labels[i] = _drawn(field, rng.random())
            sums[labels[i]] += weight[i]


@compiled
def run_chain(
    labels: Array,
    arrays: FieldArrays,
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
    weight, (num_nodes, classes) = arrays.weight, arrays.unary.shape
    given = np.empty((num_nodes, classes))
    pair = np.empty((classes, classes))
    sums = np.empty(classes)
    for _ in range(num_sweeps):
        sweep_labels(labels, arrays, 1, rng)
        sums[:] = 0.0
        for i in range(num_nodes):
            sums[labels[i]] += weight[i]
        for i in range(num_nodes):
            sums[labels[i]] -= weight[i]
            _listen(i, labels, arrays, sums, given[i])
            sums[labels[i]] += weight[i]
            _add_node(given[i], node_sum[i], node_square[i])
        for e in range(ends.shape[1]):
            i, j = ends[0, e], ends[1, e]
            both = affinity[e if len(affinity) > 1 else 0]
            _add_pair(given[i], given[j], labels[i], labels[j], both, pair, joint_sum[e])


@compiled
def _listen(i: int, labels: Array, arrays: FieldArrays, sums: Array, field: Array) -> None:
    """Give log P(y_i | rest) up to a constant; ``sums`` are those of the other nodes."""
    classes = len(field)
    for label in range(classes):
        outside = 0.0
        for other in range(classes):
            outside += arrays.rate[label, other] * sums[other]
        field[label] = arrays.unary[i, label] - arrays.weight[i] * outside
    for place in range(arrays.begin[i], arrays.begin[i + 1]):
        edge = arrays.edge[place] if len(arrays.coupling) > 1 else 0
        row = arrays.coupling[edge, labels[arrays.neighbour[place]]]
        for label in range(classes):
            field[label] += row[label]


@compiled
def _drawn(field: Array, level: float) -> int:
    """Draw a label with probability ∝ exp(field); ``field`` is used up."""
    highest = field.max()
    total = 0.0
    for label in range(len(field)):
        total += np.exp(field[label] - highest)
        field[label] = total
    label = 0
    while label < len(field) - 1 and field[label] <= level * total:
        label += 1
    return label


@compiled
def _add_node(field: Array, node_sum: Array, node_square: Array) -> None:
    """Turn log P(y_i | rest) into P(y_i | rest) in place, and add it up."""
    highest, total = field.max(), 0.0
    for label in range(len(field)):
        field[label] = np.exp(field[label] - highest)
        total += field[label]
    for label in range(len(field)):
        field[label] /= total
        node_sum[label] += field[label]
        node_square[label] += field[label] * field[label]


@compiled
def _add_pair(
    given_i: Array, given_j: Array, label_i: int, label_j: int, affinity: Array, pair: Array, joint_sum: Array
) -> None:
    """Take the other end's label out of P(y_i | rest) and P(y_j | rest), couple the ends, and normalise."""
    classes, total = len(given_i), 0.0
    for low in range(classes):
        alone = given_i[low] / affinity[low, label_j]
        for high in range(classes):
            pair[low, high] = alone * affinity[low, high] * given_j[high] / affinity[label_i, high]
            total += pair[low, high]
    for low in range(classes):
        for high in range(classes):
            joint_sum[low, high] += pair[low, high] / total
