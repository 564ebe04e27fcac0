import numpy as np
import pytest
import torch
from hypothesis import given, settings

from edgewise.inference import PairwiseMRF, max_product
from helpers.random_fields import KINDS, cycle, generator, one_of, random_field, random_graph, random_tree, small_fields


@given(field=small_fields())
@settings(max_examples=150)
def test_max_marginals_of_forests(field):
    posterior, convergence = max_product(field.mrf())
    true = field.enumerated()
    assert convergence.converged
    np.testing.assert_allclose(posterior.node.numpy(), true.max_nodes(), rtol=0, atol=1e-10)
    for edge, joint in zip(field.edges, posterior.joint(field.edge_index), strict=True):
        np.testing.assert_allclose(joint.numpy(), true.max_joint(edge), rtol=0, atol=1e-10)


@given(field=small_fields())
@settings(max_examples=100)
def test_the_argmax_is_the_most_likely_labeling(field):
    # Continuous random potentials have a unique best labeling.
    assert max_product(field.mrf())[0].node.argmax(-1).tolist() == field.enumerated().most_likely()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_that_marginals_would_get_wrong(dtype):
    """The likeliest label of node 0 is 0; but in the likeliest labeling it has label 1."""
    joint = torch.tensor([[0.3, 0.3, 0.0], [0.0, 0.0, 0.4], [0.0, 0.0, 0.0]], dtype=dtype)
    mrf = PairwiseMRF(torch.zeros(2, 3, dtype=dtype), torch.tensor([[0], [1]]), joint.clamp(min=1e-30).log())
    posterior, _ = max_product(mrf)
    assert posterior.node.argmax(-1).tolist() == [1, 2]
    np.testing.assert_allclose(posterior.node.numpy(), [[3 / 7, 4 / 7, 0], [0.3, 0.3, 0.4]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_argmax_of_a_large_tree_is_not_improved_by_any_single_change(kind):
    g = generator(6)
    field = random_field(random_tree(200, g), 200, 3, g, kind=kind, strength=2.0, num_known=10)
    labels = max_product(field.mrf())[0].node.argmax(-1)
    start, end = field.edge_index

    def score(y):
        return float(
            field.unary[torch.arange(200), y].sum() + field.couplings[torch.arange(199), y[start], y[end]].sum()
        )

    best = score(labels)
    for node in set(range(200)) - set(field.evidence):
        for label in range(3):
            if label != labels[node]:
                changed = labels.clone()
                changed[node] = label
                assert score(changed) < best
    assert {node: int(labels[node]) for node in field.evidence} == field.evidence


def test_evidence_is_exact_and_impossible_labels_are_impossible():
    g = generator(7)
    field = random_field(random_graph(10, 15, g), 10, 3, g, num_known=2, dtype=torch.float32)
    free = next(node for node in range(10) if node not in field.evidence)
    field.unary[free, 2] = -torch.inf
    posterior, _ = max_product(field.mrf(), damping=0.5)
    for node, label in field.evidence.items():
        assert posterior.node[node].tolist() == torch.eye(3)[label].tolist()
    assert posterior.node[free, 2] == 0


def test_huge_couplings_on_a_chain():
    """Neighbors must differ, and node 0 has label 1."""
    chain = torch.stack([torch.arange(49), torch.arange(1, 50)])
    mrf = PairwiseMRF(torch.zeros(50, 2), chain, -1e4 * torch.eye(2), evidence={0: 1})
    posterior, convergence = max_product(mrf)
    assert convergence.converged
    assert posterior.node.argmax(-1).tolist() == [1, 0] * 25
    assert (posterior.node.amax(-1) == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_fields_one_by_one(kind):
    g = generator(9)
    batch = random_field(random_tree(8, g), 8, 3, g, kind=kind, batch=(4,), num_known=1)
    together, _ = max_product(batch.mrf())
    for b in range(4):
        alone, _ = max_product(one_of(batch, b).mrf())
        torch.testing.assert_close(together.node[b], alone.node, rtol=0, atol=1e-11)
        np.testing.assert_allclose(
            together.node[b].numpy(), one_of(batch, b).enumerated().max_nodes(), rtol=0, atol=1e-10
        )


def test_one_loop_of_strong_attraction_is_right():
    """Weiss (2000): on one loop a converged max-product gives the most likely labeling, if beliefs have no ties."""
    num_converged = 0
    for seed in range(20):
        field = random_field(cycle(5), 5, 3, generator(seed), kind="per edge")
        posterior, convergence = max_product(field.mrf())
        if convergence.converged:
            num_converged += 1
            assert posterior.node.argmax(-1).tolist() == field.enumerated().most_likely()
    assert num_converged >= 10
