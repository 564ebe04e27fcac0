"""Joints of any nodes of a forest, against enumeration and products of transition matrices, and what notes say."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import edgewise as ew
from edgewise.posterior import tree_joints
from helpers.random_fields import (
    cycle,
    generator,
    random_forest,
    random_mrf_inputs,
    random_tree,
    small_mrf_inputs,
)


def path(num_nodes):
    return torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])


def forest_posteriors(inputs):
    """Posteriors of the same field: of two solvers, and of the marginals and joints without a solver."""
    exact = ew.exact_marginals(inputs.mrf())[0]
    edges = inputs.edge_index
    propagated = ew.sum_product(inputs.mrf(), tolerance=1e-12)[0]
    return exact, propagated, ew.PairwisePosterior.from_joints(exact.node, edges, exact.joint(edges))


@settings(max_examples=60)
@given(inputs=small_mrf_inputs(), size=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_any_set_of_a_forest_equals_enumeration(inputs, size, seed):
    """Sets in one tree and in several, with evidence, impossible labels and all kinds of couplings."""
    true, (num_nodes, num_classes) = inputs.enumeration(), inputs.unary.shape
    g = generator(seed)
    nodes = torch.stack([torch.randperm(num_nodes, generator=g)[:size] for _ in range(3)], dim=1)
    labels = torch.randint(num_classes, nodes.shape, generator=g)
    for posterior in forest_posteriors(inputs):
        joints, log_probs = posterior.marginal(nodes), posterior.log_prob(nodes, labels)
        for s in range(3):
            expected = torch.as_tensor(true.joint(nodes[:, s].tolist()))
            torch.testing.assert_close(joints[s], expected, rtol=0, atol=1e-9)
            p = float(expected[tuple(labels[:, s].tolist())])
            assert math.exp(float(log_probs[s])) == pytest.approx(p, abs=1e-9)


@settings(max_examples=30)
@given(num_nodes=st.integers(2, 25), size=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_order_of_nodes_changes_nothing(num_nodes, size, seed):
    g = generator(seed)
    inputs = random_mrf_inputs(random_forest(num_nodes, g), num_nodes, 2, g, kind="per edge", num_observed=1)
    nodes = torch.randperm(num_nodes, generator=g)[:size].unsqueeze(1)
    order = torch.randperm(len(nodes), generator=g)
    for posterior in forest_posteriors(inputs):
        joint = posterior.marginal(nodes)[0]
        torch.testing.assert_close(posterior.marginal(nodes[order])[0], joint.permute(*order.tolist()))
        torch.testing.assert_close(joint.sum(), torch.ones((), dtype=torch.float64))
        others = tuple(range(1, joint.ndim))
        torch.testing.assert_close(joint.sum(others), posterior.node[nodes[0, 0]], rtol=0, atol=1e-9)


def test_far_ends_of_a_long_path_equal_a_product_of_matrices():
    g = generator(0)
    inputs = random_mrf_inputs(path(3000), 3000, 3, g, kind="per edge", coupling_std=3.0)
    posterior = ew.exact_marginals(inputs.mrf())[0]
    joints = posterior.joint(inputs.edge_index)
    conditionals = joints / joints.sum(2, keepdim=True)
    for start, end in ((7, 9), (100, 137), (2, 2998)):
        product = posterior.node[start].diag()
        for conditional in conditionals[start:end]:
            product = product @ conditional
        pair = torch.tensor([[start], [end]])
        torch.testing.assert_close(posterior.joint(pair)[0], product, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(posterior.joint(pair.flip(0))[0], product.T, rtol=1e-8, atol=1e-12)


def test_small_probabilities_do_not_underflow():
    """Neighbors with different labels have probability e^-900 each."""
    posterior = ew.exact_marginals(ew.PairwiseMRF(torch.zeros(4, 2).double(), path(4), 900 * torch.eye(2).double()))[0]
    nodes, labels = torch.tensor([[0], [3]]), torch.tensor([[0], [1]])
    assert float(posterior.log_prob(nodes, labels)) == pytest.approx(math.log(3 / 2) - 900)
    assert float(posterior.joint(nodes)[0, 0, 1]) > 0


def test_batch_and_gradient():
    g = generator(1)
    inputs = random_mrf_inputs(random_tree(9, g), 9, 3, g, kind="scaled per edge", batch=(2,))
    unary = inputs.unary.clone().requires_grad_()
    both = ew.exact_marginals(inputs._replace(unary=unary).mrf())[0]
    nodes, labels = torch.tensor([[0, 5], [4, 1], [8, 2]]), torch.tensor([[0, 1], [2, 2], [1, 0]])
    log_probs = both.log_prob(nodes, labels)
    for b in range(2):
        torch.testing.assert_close(both[b].log_prob(nodes, labels), log_probs[b])
    (gradient,) = torch.autograd.grad(log_probs[0, 0], unary)
    # d log P(y_S) / d U_i(l) = P(y_i = l | y_S) - P(y_i = l)
    for node, label in ((0, 0), (4, 2), (8, 1)):
        expected = torch.eye(3).double()[label] - both.node[0, node]
        torch.testing.assert_close(gradient[0, node], expected, rtol=0, atol=1e-6)
    assert float(gradient[1].abs().max()) == 0.0


def test_trees_beside_a_loop_are_exact():
    """A triangle 0, 1, 2 and a path 3, 4, 5, 6 in one graph."""
    edges = torch.cat([cycle(3), path(4) + 3], dim=1)
    inputs = random_mrf_inputs(edges, 7, 2, generator(2), kind="per edge")
    posterior, true = ew.sum_product(inputs.mrf(), tolerance=1e-12)[0], inputs.enumeration()
    expected = torch.as_tensor(true.joint([3, 6, 5]))
    torch.testing.assert_close(posterior.marginal(torch.tensor([[3], [6], [5]]))[0], expected, rtol=0, atol=1e-8)
    across = posterior.marginal(torch.tensor([[0], [3], [6]]))[0]
    pair = posterior.joint(torch.tensor([[3], [6]]))[0]
    torch.testing.assert_close(across, posterior.node[0][:, None, None] * pair)
    mixed = torch.tensor([[3, 0, 0], [6, 1, 4], [5, 2, 6]])
    note = posterior.describe_sets(mixed)
    assert "exact on trees for 1 of 3 sets" in note and "0 of 3 sets have paths around" in note
    assert posterior.describe_sets(torch.tensor([[3, 3], [6, 4]])) == "exact on trees"
    assert "1 of 2 sets have paths around" in posterior.describe_sets(torch.tensor([[0, 3], [1, 4]]))


def test_only_converged_marginals_are_called_exact():
    mrf = random_mrf_inputs(path(60), 60, 2, generator(3), coupling_std=2.0).mrf()
    near, far = torch.tensor([[4], [5], [6]]), torch.tensor([[4], [5], [40]])
    early, maximal = ew.sum_product(mrf, max_sweeps=1)[0], ew.max_product(mrf)[0]
    for posterior, fact in ((early, "not converged"), (maximal, "max-marginals")):
        for nodes, number in ((near, 0), (far, 1)):
            note = posterior.describe_sets(nodes)
            assert "exact" not in note and fact in note and f"{number} of 1 sets have paths around" in note
        with pytest.raises(ValueError, match="no edges connect"):
            posterior.marginal(far)
    exact = ew.exact_marginals(mrf)[0]
    without_solver = ew.PairwisePosterior.from_joints(exact.node, mrf.edge_index, exact.joint(mrf.edge_index))
    assert exact.describe_sets(far) == ew.sum_product(mrf)[0].describe_sets(far) == "exact on trees"
    assert without_solver.describe_sets(far) == "tree distribution of the joints"


def test_an_observed_node_opens_a_loop():
    inputs = random_mrf_inputs(cycle(6), 6, 3, generator(4))._replace(evidence={2: 1})
    posterior = ew.exact_marginals(inputs.mrf())[0]
    nodes = torch.tensor([[1, 0], [3, 2], [5, 4]])
    assert isinstance(posterior, ew.PairwisePosterior) and posterior.describe_sets(nodes) == "exact on trees"
    for s in range(2):
        expected = torch.as_tensor(inputs.enumeration().joint(nodes[:, s].tolist()))
        torch.testing.assert_close(posterior.marginal(nodes)[s], expected, rtol=0, atol=1e-9)


def test_paths_that_take_too_much_memory_raise(monkeypatch):
    posterior = ew.exact_marginals(random_mrf_inputs(path(30), 30, 2, generator(0)).mrf())[0]
    monkeypatch.setattr(tree_joints, "MAX_PATH_ENTRIES", 80)
    assert posterior.joint(torch.tensor([[0], [20]])).shape == (1, 2, 2)
    with pytest.raises(ValueError, match=r"at most 20 edges in total, but got 21"):
        posterior.joint(torch.tensor([[0], [21]]))
