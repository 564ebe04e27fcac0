"""The compiled Gibbs chains are the plain loop below: the same labels, and the same sums of conditionals."""

import numpy as np
import pytest
import torch

from edgewise.kernels.gibbs_chains import run_chain, sweep_labels
from edgewise.simulation import synthetic
from edgewise.simulation.field import field_arrays, known_labels


def log_conditional(field, labels, i):
    """log P(y_i | all other labels) up to a constant, by the definition of the field."""
    log_p = field.unary[i].numpy().copy()
    for e, (a, b) in enumerate(field.edge_index.T.tolist()):
        coupling = field.coupling[e if len(field.coupling) > 1 else 0].numpy()
        if i in (a, b):
            log_p += coupling[labels[b if i == a else a]]
    for j in range(len(labels)):
        if j != i:
            log_p -= float(field.weight[i] * field.weight[j]) * field.rate.numpy()[labels[j]]
    return log_p


def probabilities(log_p):
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


def plain_sweep(field, labels, rng):
    for i in range(len(labels)):
        if int(field.unary[i].isfinite().sum()) > 1:
            below = np.cumsum(probabilities(log_conditional(field, labels, i)))
            labels[i] = min(int((below <= rng.random() * below[-1]).sum()), len(below) - 1)


def field_of(kind):
    graph = synthetic(25, 3, kind=kind, homophily=0.5, average_degree=3.0, seed=2)
    return graph.field.given(known_labels(torch.arange(25) < 5, graph.data.y)), graph.data.y.numpy()


@pytest.mark.parametrize("kind", ["block_model", "mrf"])
def test_compiled_sweeps_draw_the_labels_of_the_plain_loop(kind):
    field, start = field_of(kind)
    compiled, plain = start.copy(), start.copy()
    sweep_labels(compiled, field_arrays(field), 5, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    for _ in range(5):
        plain_sweep(field, plain, rng)
    assert compiled.tolist() == plain.tolist()
    assert compiled[:5].tolist() == start[:5].tolist() and compiled.tolist() != start.tolist()


@pytest.mark.parametrize("kind", ["block_model", "mrf"])
def test_compiled_sums_are_those_of_the_plain_loop(kind):
    field, start = field_of(kind)
    num_nodes, num_classes, ends = field.num_nodes, field.num_classes, field.edge_index.numpy()
    affinity = field.coupling - field.weight[field.edge_index].prod(0)[:, None, None] * field.rate
    affinity = affinity.exp().numpy()
    node_sum, node_square = np.zeros((2, num_nodes, num_classes))
    joint_sum = np.zeros((ends.shape[1], num_classes, num_classes))
    labels, arrays = start.copy(), field_arrays(field)
    run_chain(labels, arrays, ends, affinity, 3, np.random.default_rng(1), node_sum, node_square, joint_sum)

    expected_node, expected_joint = np.zeros_like(node_sum), np.zeros_like(joint_sum)
    labels, rng = start.copy(), np.random.default_rng(1)
    for _ in range(3):
        plain_sweep(field, labels, rng)
        expected_node += [probabilities(log_conditional(field, labels, i)) for i in range(num_nodes)]
        for e, (i, j) in enumerate(ends.T.tolist()):
            joint = np.zeros((num_classes, num_classes))
            for k in range(num_classes):
                changed = labels.copy()
                changed[i] = k
                given_k = log_conditional(field, changed, j)
                log_prior = log_conditional(field, labels, i)[k] - np.log(affinity[e % len(affinity), k, labels[j]])
                joint[k] = log_prior + given_k
            expected_joint[e] += probabilities(joint)
    np.testing.assert_allclose(node_sum, expected_node, rtol=0, atol=1e-12)
    np.testing.assert_allclose(joint_sum, expected_joint, rtol=0, atol=1e-12)
    assert (node_square <= node_sum + 1e-12).all()
