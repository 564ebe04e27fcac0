"""Compiled Gibbs chains against a reference loop: the same labels and the same sums of conditionals."""

import numpy as np
import pytest
import torch

from edgewise.kernels.gibbs_chains import run_chain, sweep_labels
from edgewise.simulation import synthetic
from edgewise.simulation.field import observed_labels


def log_conditional(distribution, labels, i):
    """Compute log P(y_i | all other labels) up to a constant, from the definition of `LabelDistribution`."""
    log_p = distribution.unary[i].numpy().copy()
    for e, (a, b) in enumerate(distribution.edge_index.T.tolist()):
        coupling = distribution.coupling[e if len(distribution.coupling) > 1 else 0].numpy()
        if i in (a, b):
            log_p += coupling[labels[b if i == a else a]]
    for j in range(len(labels)):
        if j != i:
            log_p -= float(distribution.weight[i] * distribution.weight[j]) * distribution.rate.numpy()[labels[j]]
    return log_p


def probabilities(log_p):
    p = np.exp(log_p - log_p.max())
    return p / p.sum()


def reference_sweep(distribution, labels, rng):
    for i in range(len(labels)):
        if int(distribution.unary[i].isfinite().sum()) > 1:
            cumulative = np.cumsum(probabilities(log_conditional(distribution, labels, i)))
            labels[i] = min(int((cumulative <= rng.random() * cumulative[-1]).sum()), len(cumulative) - 1)


def make_distribution(kind):
    graph = synthetic(25, 3, kind=kind, homophily=0.5, average_degree=3.0, seed=2)
    return graph.field.condition(observed_labels(torch.arange(25) < 5, graph.data.y)), graph.data.y.numpy()


@pytest.mark.parametrize("kind", ["block_model", "mrf"])
def test_compiled_sweeps_draw_the_same_labels_as_the_reference(kind):
    distribution, start = make_distribution(kind)
    compiled, reference = start.copy(), start.copy()
    sweep_labels(compiled, distribution.gibbs_arrays(), 5, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    for _ in range(5):
        reference_sweep(distribution, reference, rng)
    assert compiled.tolist() == reference.tolist()
    assert compiled[:5].tolist() == start[:5].tolist() and compiled.tolist() != start.tolist()


@pytest.mark.parametrize("kind", ["block_model", "mrf"])
def test_compiled_sums_equal_the_reference(kind):
    distribution, start = make_distribution(kind)
    num_nodes, num_classes, ends = distribution.num_nodes, distribution.num_classes, distribution.edge_index.numpy()
    affinity = (
        distribution.coupling - distribution.weight[distribution.edge_index].prod(0)[:, None, None] * distribution.rate
    )
    affinity = affinity.exp().numpy()
    node_sum, node_square = np.zeros((2, num_nodes, num_classes))
    joint_sum = np.zeros((ends.shape[1], num_classes, num_classes))
    labels, arrays = start.copy(), distribution.gibbs_arrays()
    run_chain(labels, arrays, ends, affinity, 3, np.random.default_rng(1), node_sum, node_square, joint_sum)

    expected_node, expected_joint = np.zeros_like(node_sum), np.zeros_like(joint_sum)
    labels, rng = start.copy(), np.random.default_rng(1)
    for _ in range(3):
        reference_sweep(distribution, labels, rng)
        expected_node += [probabilities(log_conditional(distribution, labels, i)) for i in range(num_nodes)]
        for e, (i, j) in enumerate(ends.T.tolist()):
            joint = np.zeros((num_classes, num_classes))
            for k in range(num_classes):
                changed = labels.copy()
                changed[i] = k
                given_k = log_conditional(distribution, changed, j)
                log_prior = log_conditional(distribution, labels, i)[k] - np.log(
                    affinity[e % len(affinity), k, labels[j]]
                )
                joint[k] = log_prior + given_k
            expected_joint[e] += probabilities(joint)
    np.testing.assert_allclose(node_sum, expected_node, rtol=0, atol=1e-12)
    np.testing.assert_allclose(joint_sum, expected_joint, rtol=0, atol=1e-12)
    assert (node_square <= node_sum + 1e-12).all()
