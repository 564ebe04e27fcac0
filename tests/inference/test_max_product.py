"""Max-product against enumeration."""

import numpy as np
import pytest
import torch
from hypothesis import given

from edgewise.inference import PairwiseMRF, max_product
from helpers.random_fields import (
    KINDS,
    batch_item,
    cycle,
    generator,
    random_graph,
    random_mrf_inputs,
    random_tree,
    small_mrf_inputs,
)


@given(inputs=small_mrf_inputs())
def test_max_marginals_of_forests_equal_enumeration(inputs):
    posterior, convergence = max_product(inputs.mrf())
    true = inputs.enumeration()
    assert convergence.converged
    np.testing.assert_allclose(posterior.node.numpy(), true.max_nodes(), rtol=0, atol=1e-10)
    for edge, joint in zip(inputs.edges, posterior.joint(inputs.edge_index), strict=True):
        np.testing.assert_allclose(joint.numpy(), true.max_joint(edge), rtol=0, atol=1e-10)


@given(inputs=small_mrf_inputs())
def test_argmax_is_the_most_likely_labeling_of_forests(inputs):
    # Continuous random potentials have a unique best labeling.
    assert max_product(inputs.mrf())[0].node.argmax(-1).tolist() == inputs.enumeration().most_likely()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_most_likely_labeling_differs_from_most_likely_labels(dtype):
    """The most likely label of node 0 is 0, but it has label 1 in the most likely labeling."""
    joint = torch.tensor([[0.3, 0.3, 0.0], [0.0, 0.0, 0.4], [0.0, 0.0, 0.0]], dtype=dtype)
    mrf = PairwiseMRF(torch.zeros(2, 3, dtype=dtype), torch.tensor([[0], [1]]), joint.clamp(min=1e-30).log())
    posterior, _ = max_product(mrf)
    assert posterior.node.argmax(-1).tolist() == [1, 2]
    np.testing.assert_allclose(posterior.node.numpy(), [[3 / 7, 4 / 7, 0], [0.3, 0.3, 0.4]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_single_label_change_improves_the_argmax_of_a_large_tree(kind):
    g = generator(6)
    inputs = random_mrf_inputs(random_tree(200, g), 200, 3, g, kind=kind, coupling_std=2.0, num_observed=10)
    labels = max_product(inputs.mrf())[0].node.argmax(-1)
    start, end = inputs.edge_index

    def score(y):
        return float(
            inputs.unary[torch.arange(200), y].sum() + inputs.couplings[torch.arange(199), y[start], y[end]].sum()
        )

    best = score(labels)
    for node in set(range(200)) - set(inputs.evidence):
        for label in range(3):
            if label != labels[node]:
                changed = labels.clone()
                changed[node] = label
                assert score(changed) < best
    assert {node: int(labels[node]) for node in inputs.evidence} == inputs.evidence


def test_observed_labels_have_probability_one_and_impossible_labels_zero():
    g = generator(7)
    inputs = random_mrf_inputs(random_graph(10, 15, g), 10, 3, g, num_observed=2, dtype=torch.float32)
    free = next(node for node in range(10) if node not in inputs.evidence)
    inputs.unary[free, 2] = -torch.inf
    posterior, _ = max_product(inputs.mrf(), damping=0.5)
    for node, label in inputs.evidence.items():
        assert posterior.node[node].tolist() == torch.eye(3)[label].tolist()
    assert posterior.node[free, 2] == 0


def test_huge_couplings_on_a_chain():
    """Neighbors must have different labels, and node 0 has label 1."""
    chain = torch.stack([torch.arange(49), torch.arange(1, 50)])
    mrf = PairwiseMRF(torch.zeros(50, 2), chain, -1e4 * torch.eye(2), evidence={0: 1})
    posterior, convergence = max_product(mrf)
    assert convergence.converged
    assert posterior.node.argmax(-1).tolist() == [1, 0] * 25
    assert (posterior.node.amax(-1) == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_single_mrfs(kind):
    g = generator(9)
    batch = random_mrf_inputs(random_tree(8, g), 8, 3, g, kind=kind, batch=(4,), num_observed=1)
    together, _ = max_product(batch.mrf())
    for b in range(4):
        alone, _ = max_product(batch_item(batch, b).mrf())
        torch.testing.assert_close(together.node[b], alone.node, rtol=0, atol=1e-11)
        np.testing.assert_allclose(
            together.node[b].numpy(), batch_item(batch, b).enumeration().max_nodes(), rtol=0, atol=1e-10
        )


def test_converged_max_product_on_a_single_loop_is_correct():
    """Weiss (2000): on a single loop converged max-product finds the most likely labeling, if there are no ties."""
    num_converged = 0
    for seed in range(20):
        inputs = random_mrf_inputs(cycle(5), 5, 3, generator(seed), kind="per edge")
        posterior, convergence = max_product(inputs.mrf())
        if convergence.converged:
            num_converged += 1
            assert posterior.node.argmax(-1).tolist() == inputs.enumeration().most_likely()
    assert num_converged >= 10
