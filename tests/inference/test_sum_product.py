"""Sum-product against enumeration, exact inference, closed forms and invariances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.inference import Convergence, PairwiseMRF, exact_marginals, sum_product
from helpers.random_fields import (
    KINDS,
    MRFInputs,
    assert_matches_enumeration,
    batch_item,
    cycle,
    generator,
    random_forest,
    random_graph,
    random_mrf_inputs,
    random_tree,
    small_mrf_inputs,
)

TOLERANCE = 1e-10


def assert_close(got, expected, tolerance):
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


@given(inputs=small_mrf_inputs())
def test_small_forests_equal_enumeration(inputs):
    posterior, convergence = sum_product(inputs.mrf())
    assert convergence.converged
    assert_matches_enumeration(posterior, inputs, TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 30])
def test_larger_trees_equal_exact_marginals(kind, num_observed):
    g = generator(7)
    tree = random_tree(300, g)
    mrf = random_mrf_inputs(tree, 300, 4, g, kind=kind, coupling_std=2.0, num_observed=num_observed).mrf()
    posterior, convergence = sum_product(mrf)
    exact, _ = exact_marginals(mrf)
    assert convergence.converged
    assert_close(posterior.node, exact.node, TOLERANCE)
    assert_close(posterior.joint(tree), exact.joint(tree), TOLERANCE)


def test_number_of_sweeps_on_a_path_is_its_length_plus_one():
    g = generator(0)
    path = torch.stack([torch.arange(9), torch.arange(1, 10)])
    _, convergence = sum_product(random_mrf_inputs(path, 10, 3, g).mrf())
    assert (convergence.converged, convergence.sweeps) == (True, 10)


@given(inputs=small_mrf_inputs())
def test_joints_of_connected_nodes_are_exact_on_trees(inputs):
    posterior, _ = sum_product(inputs.mrf())
    middle = [node for node in range(len(inputs.unary)) if sum(node in edge for edge in inputs.edges) >= 2]
    for node in middle:
        a, b = [sum(edge) - node for edge in inputs.edges if node in edge][:2]
        joint = posterior.marginal(torch.tensor([[a], [node], [b]]))[0]
        np.testing.assert_allclose(joint.numpy(), inputs.enumeration().joint([a, node, b]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 4])
def test_edge_joints_sum_to_node_marginals(kind, num_observed):
    g = generator(3)
    edge_index = random_graph(20, 45, g)
    inputs = random_mrf_inputs(edge_index, 20, 3, g, kind=kind, coupling_std=0.5, num_observed=num_observed)
    posterior, convergence = sum_product(inputs.mrf())
    assert convergence.converged
    joint = posterior.joint(edge_index)
    assert_close(joint.sum(-1), posterior.node[edge_index[0]], 1e-11)
    assert_close(joint.sum(-2), posterior.node[edge_index[1]], 1e-11)
    # This holds at fixed points only.
    early, _ = sum_product(inputs.mrf(), max_sweeps=1)
    assert (early.joint(edge_index).sum(-1) - early.node[edge_index[0]]).abs().max() > 1e-3


def test_nodes_without_couplings_are_independent():
    g = generator(1)
    edge_index = random_graph(8, 15, g)
    unary = torch.randn(8, 3, generator=g, dtype=torch.float64)
    posterior, convergence = sum_product(PairwiseMRF(unary, edge_index, torch.zeros(3, 3)))
    p = unary.softmax(-1)
    assert convergence == Convergence(True, 1, 0.0, method="sum-product")
    assert_close(posterior.node, p, 1e-15)
    assert_close(posterior.joint(edge_index), p[edge_index[0]][:, :, None] * p[edge_index[1]][:, None, :], 1e-15)


def test_edge_scale_of_zero_removes_the_edge():
    g = generator(5)
    edge_index = random_graph(6, 9, g)
    inputs = random_mrf_inputs(edge_index, 6, 3, g, kind="scaled", coupling_std=0.5)
    inputs.edge_scale[4] = 0.0
    keep = torch.arange(9) != 4
    without = inputs._replace(edge_index=edge_index[:, keep], edge_scale=inputs.edge_scale[keep])
    assert_close(sum_product(inputs.mrf())[0].node, sum_product(without.mrf())[0].node, 1e-11)


def run_both(inputs, changed, **options):
    return sum_product(inputs.mrf(), **options)[0], sum_product(changed.mrf(), **options)[0]


# The invariances hold after any number of sweeps, so ten are enough.
@given(inputs=small_mrf_inputs(loops=True), seed=st.integers(0, 1000))
def test_permuting_nodes_permutes_marginals(inputs, seed):
    order = torch.randperm(len(inputs.unary), generator=generator(seed))
    name = order.argsort()
    evidence = {int(name[node]): label for node, label in (inputs.evidence or {}).items()}
    renamed = inputs._replace(unary=inputs.unary[order], edge_index=name[inputs.edge_index], evidence=evidence)
    before, after = run_both(inputs, renamed, max_sweeps=10)
    assert_close(after.node, before.node[order], 1e-12)
    assert_close(after.joint(name[inputs.edge_index]), before.joint(inputs.edge_index), 1e-12)


@given(inputs=small_mrf_inputs(loops=True), seed=st.integers(0, 1000))
def test_permuting_classes_permutes_marginals(inputs, seed):
    order = torch.randperm(inputs.unary.shape[1], generator=generator(seed))
    name = order.argsort().tolist()
    evidence = {node: name[label] for node, label in (inputs.evidence or {}).items()}
    pairwise = inputs.pairwise[..., order, :][..., order]
    before, after = run_both(
        inputs, inputs._replace(unary=inputs.unary[:, order], pairwise=pairwise, evidence=evidence), max_sweeps=10
    )
    assert_close(after.node, before.node[:, order], 1e-12)
    joint = before.joint(inputs.edge_index)[..., order, :][..., order]
    assert_close(after.joint(inputs.edge_index), joint, 1e-12)


@given(inputs=small_mrf_inputs(loops=True), seed=st.integers(0, 1000))
def test_order_and_direction_of_edges_do_not_matter(inputs, seed):
    g = generator(seed)
    num_edges = inputs.edge_index.shape[1]
    order = torch.randperm(num_edges, generator=g)
    flip = torch.rand(num_edges, generator=g) < 0.5
    couplings = inputs.couplings
    changed = MRFInputs(
        inputs.unary,
        torch.where(flip, inputs.edge_index.flip(0), inputs.edge_index)[:, order],
        torch.where(flip[:, None, None], couplings.mT, couplings)[order],
        None,
        inputs.evidence,
    )
    before, after = run_both(inputs, changed, max_sweeps=10)
    assert_close(after.node, before.node, 1e-12)
    assert_close(after.joint(inputs.edge_index), before.joint(inputs.edge_index), 1e-12)


@given(inputs=small_mrf_inputs(loops=True), seed=st.integers(0, 1000))
def test_constants_in_potentials_do_not_matter(inputs, seed):
    g = generator(seed)
    rows = 10 * torch.randn(len(inputs.unary), 1, generator=g, dtype=torch.float64)
    changed = inputs._replace(unary=inputs.unary + rows, pairwise=inputs.pairwise + 3.0)
    before, after = run_both(inputs, changed, max_sweeps=10)
    assert_close(after.node, before.node, 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_error_on_a_loop_is_of_the_order_of_the_product_of_couplings(seed):
    """On a loop of length n the error is O(coupling_std^n)."""
    errors = []
    for coupling_std in (0.2, 0.1, 0.05):
        inputs = random_mrf_inputs(cycle(4), 4, 2, generator(seed), kind="per edge", coupling_std=coupling_std)
        posterior, convergence = sum_product(inputs.mrf())
        assert convergence.converged
        errors.append(np.abs(posterior.node.numpy() - inputs.enumeration().nodes()).max())
    assert 0 < errors[0] < 0.2**4
    # Halving coupling_std divides the error by 2^4 up to higher orders. A wrong sweep would have a first-order error.
    assert errors[1] < errors[0] / 8 and errors[2] < errors[1] / 8


@given(inputs=small_mrf_inputs(loops=True, coupling_std=0.05))
def test_weak_couplings_have_small_errors(inputs):
    """The shortest loop is a triangle, so the error is O(coupling_std^3) per loop."""
    posterior, convergence = sum_product(inputs.mrf())
    assert convergence.converged
    # |s T| is rarely above 4 · 0.05, so a triangle contributes (0.2)^3 = 0.008. A first-order error would be 0.05.
    assert_matches_enumeration(posterior, inputs, tolerance=0.01)


def test_argmax_is_correct_on_a_single_loop_of_binary_labels():
    """Weiss (2000): on a single loop with two labels, estimated and true marginals are on the same side of 1/2."""
    for seed in range(30):
        inputs = random_mrf_inputs(cycle(5), 5, 2, generator(seed), kind="per edge", coupling_std=1.0)
        posterior, convergence = sum_product(inputs.mrf())
        assert convergence.converged
        true = inputs.enumeration().nodes()
        assert (posterior.node.argmax(-1).numpy() == true.argmax(-1)).all()


def test_marginals_on_a_single_loop_follow_from_the_transfer_matrix():
    """Weiss (2000): let M be the product of transfer matrices around the loop from node 0.

    The belief of node 0 is the product of the left and right leading eigenvectors of M, normalized. The true marginal
    is diag(M) / trace(M).
    """
    inputs = random_mrf_inputs(cycle(4), 4, 3, generator(2), kind="per edge", coupling_std=1.0)
    around = np.eye(3)
    for node in range(4):
        around = around @ np.diag(np.exp(inputs.unary[node].numpy())) @ np.exp(inputs.couplings[node].numpy())
    true = np.diag(around) / np.trace(around)
    values, right = np.linalg.eig(around)
    left = np.linalg.inv(right).T
    leading = np.abs(values).argmax()
    belief = (right[:, leading] * left[:, leading]).real
    posterior, _ = sum_product(inputs.mrf())
    np.testing.assert_allclose(posterior.node[0].numpy(), belief / belief.sum(), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(inputs.enumeration().nodes()[0], true, rtol=0, atol=1e-14)
    assert np.abs(belief / belief.sum() - true).max() > 1e-3  # so that the test tells them apart


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_observed_labels_have_probability_one_and_impossible_labels_zero(dtype):
    g = generator(4)
    inputs = random_mrf_inputs(random_graph(12, 25, g), 12, 4, g, coupling_std=0.5, num_observed=3, dtype=dtype)
    free = [node for node in range(12) if node not in inputs.evidence][:4]
    inputs.unary[free, torch.tensor([0, 1, 2, 3])] = -torch.inf
    posterior, _ = sum_product(inputs.mrf(), damping=0.3)
    for node, label in inputs.evidence.items():
        assert posterior.node[node].tolist() == torch.eye(4)[label].tolist()
    assert (posterior.node[free, torch.tensor([0, 1, 2, 3])] == 0).all()
    joint = posterior.joint(inputs.edge_index)
    for (i, j), table in zip(inputs.edges, joint, strict=True):
        assert (table[posterior.node[i] == 0] == 0).all() and (table[:, posterior.node[j] == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["shared", "per edge", "scaled"])
def test_huge_couplings_on_trees_equal_enumeration(dtype, kind):
    """Couplings of ±1e4 forbid pairs of labels."""
    for seed in range(10):
        g = generator(seed)
        inputs = random_mrf_inputs(random_tree(6, g), 6, 3, g, kind=kind, dtype=dtype)
        inputs.pairwise.copy_(1e4 * torch.randint(-1, 2, inputs.pairwise.shape, generator=g))
        if kind == "scaled":
            inputs.edge_scale.copy_(torch.randint(-1, 2, (5,), generator=g))
        posterior, convergence = sum_product(inputs.mrf())
        assert convergence.converged
        # Sums of 1e4 have rounding errors of 1e-3 in float32.
        assert_matches_enumeration(posterior, inputs, tolerance=2e-3 if dtype == torch.float32 else TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("outwards", [True, False])
def test_star_of_100000_leaves(dtype, outwards):
    """Messages to the hub are sums over labels of a leaf; messages to a leaf exclude the message from that leaf."""
    num_leaves = 100_000
    g = generator(0)
    unary = torch.randn(num_leaves + 1, 3, generator=g, dtype=torch.float64).to(dtype)
    coupling = torch.tensor([[0.5, -0.2, 0.0], [0.3, 0.1, -0.4], [0.0, 0.2, 0.6]], dtype=dtype)
    hub, leaves = torch.zeros(num_leaves, dtype=torch.long), torch.arange(1, num_leaves + 1)
    edge_index = torch.stack([hub, leaves] if outwards else [leaves, hub])
    posterior, convergence = sum_product(PairwiseMRF(unary, edge_index, coupling))
    assert convergence.converged
    u, t = unary.double(), coupling.double()
    t = t if outwards else t.T  # hub × leaf
    messages = torch.logsumexp(u[1:, None, :] + t, -1)
    total = u[0] + messages.sum(0)
    joints = (total - messages)[:, :, None] + t + u[1:, None, :]
    joints = joints.flatten(1).softmax(-1).reshape(-1, 3, 3)
    # Errors of 1e-8 in each of 100,000 float32 messages may add up to 1e-3.
    atol = 1e-3 if dtype == torch.float32 else 1e-10
    assert_close(posterior.node[0].double(), total.softmax(-1), atol)
    assert_close(posterior.node[1:].double(), joints.sum(1), atol)
    got = posterior.joint(edge_index).double()
    assert_close(got if outwards else got.mT, joints, atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_messages_that_cancel_at_a_hub(dtype):
    """The messages of 100,000 leaves cancel, so the hub is uncertain. Large sums must not lose precision."""
    half = 50_000
    unary = torch.zeros(2 * half + 1, 2, dtype=dtype)
    unary[1 : half + 1, 0], unary[half + 1 :, 1] = 3.0, 3.0
    edge_index = torch.stack([torch.zeros(2 * half, dtype=torch.long), torch.arange(1, 2 * half + 1)])
    posterior, _ = sum_product(PairwiseMRF(unary, edge_index, 2.0 * torch.eye(2)))
    assert posterior.node[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    leaf_message = math.log((math.exp(5) + 1) / (math.exp(3) + math.exp(2)))  # which the cavity of the hub lacks
    cavity = 1 / (1 + math.exp(leaf_message))
    weight_0 = math.exp(3) * (cavity * math.exp(2) + 1 - cavity)
    weight_1 = cavity + (1 - cavity) * math.exp(2)
    assert float(posterior.node[1, 0]) == pytest.approx(weight_0 / (weight_0 + weight_1), abs=1e-5)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 17, 70, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_classes(num_classes, dtype):
    """The joint of two nodes is the softmax of the sum of their potentials."""
    g = generator(num_classes)
    inputs = random_mrf_inputs(torch.tensor([[1], [0]]), 3, num_classes, g, dtype=dtype)
    posterior, _ = sum_product(inputs.mrf())
    logits = inputs.unary[1].double()[:, None] + inputs.unary[0].double() + inputs.pairwise.double()
    joint = logits.flatten().softmax(-1).reshape(num_classes, num_classes)
    atol = 1e-6 if dtype == torch.float32 else 1e-14
    assert_close(posterior.joint(inputs.edge_index)[0].double(), joint, atol)
    assert_close(posterior.node[1].double(), joint.sum(1), atol)
    assert_close(posterior.node[0].double(), joint.sum(0), atol)
    assert_close(posterior.node[2], inputs.unary[2].softmax(-1), atol)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
@pytest.mark.parametrize("coupling", [torch.eye(3), torch.empty(0, 3, 3)])
def test_no_edges(num_nodes, coupling):
    unary = torch.randn(num_nodes, 3, generator=generator(0))
    no_edges = torch.empty(2, 0, dtype=torch.long)
    posterior, convergence = sum_product(PairwiseMRF(unary, no_edges, coupling))
    assert convergence == Convergence(True, 1, 0.0, method="sum-product")
    assert_close(posterior.node, unary.softmax(-1), 1e-7)
    assert posterior.joint(no_edges).shape == (0, 3, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_posterior_has_the_dtype_of_unary(dtype):
    inputs = random_mrf_inputs(cycle(3), 3, 2, generator(0), coupling_std=0.3)
    posterior, _ = sum_product(PairwiseMRF(inputs.unary.to(dtype), inputs.edge_index, inputs.pairwise))
    assert posterior.node.dtype == posterior.joint(inputs.edge_index).dtype == dtype


def frustrated_triangle(coupling):
    """Return an MRF of three nodes that repel each other, with unary potentials that break the symmetry."""
    unary = torch.tensor([[0.5, 0.0], [0.0, 0.3], [0.2, 0.0]], dtype=torch.float64)
    return PairwiseMRF(unary, cycle(3), -coupling * torch.eye(2, dtype=torch.float64))


def repelling_complete_graph(num_nodes, coupling):
    g = generator(1)
    unary = 0.3 * torch.randn(num_nodes, 2, generator=g, dtype=torch.float64)
    pairs = torch.triu_indices(num_nodes, num_nodes, 1)
    return PairwiseMRF(unary, pairs, -coupling * torch.eye(2, dtype=torch.float64))


def test_converged_run_stops_at_the_first_residual_within_tolerance():
    _, convergence = sum_product(frustrated_triangle(1.0), tolerance=1e-6)
    assert convergence.converged and convergence.advice == ""
    assert 0 < convergence.residual <= 1e-6 and 1 < convergence.sweeps < 1000
    _, early = sum_product(frustrated_triangle(1.0), tolerance=1e-6, max_sweeps=convergence.sweeps - 1)
    assert not early.converged and early.sweeps == convergence.sweeps - 1 and early.residual > 1e-6


def test_truncated_run_advises_more_sweeps():
    _, convergence = sum_product(frustrated_triangle(2.0), max_sweeps=10)
    assert not convergence.converged and convergence.sweeps == 10 and convergence.residual > 1e-12
    for fact in ("10 sweeps", f"{convergence.residual:.2g}", "1e-12", "raise max_sweeps"):
        assert fact in convergence.advice


def test_oscillating_run_advises_damping_and_damping_helps():
    mrf = repelling_complete_graph(4, 2.0)
    _, undamped = sum_product(mrf, damping=0.0)
    assert not undamped.converged and undamped.sweeps == 1000 and undamped.residual > 0.1
    assert "damping=None" in undamped.advice
    _, damped = sum_product(mrf, damping=None)
    assert damped.converged and damped and not undamped


def test_advice_is_damping_that_adapts_or_another_solver():
    _, convergence = sum_product(repelling_complete_graph(30, 40.0), damping=0.6, max_sweeps=60)
    assert "damping=None" in convergence.advice
    _, convergence = sum_product(repelling_complete_graph(30, 40.0), damping=0.9, max_sweeps=200)
    assert "infer" in convergence.advice and "damping=" not in convergence.advice


def test_damping_does_not_change_the_fixed_point():
    g = generator(8)
    mrf = random_mrf_inputs(random_graph(10, 18, g), 10, 3, g, coupling_std=0.5).mrf()
    plain, damped = sum_product(mrf)[0], sum_product(mrf, damping=0.7)[0]
    assert_close(damped.node, plain.node, 1e-10)


def test_damping_keeps_a_fraction_of_old_messages():
    g = generator(8)
    mrf = random_mrf_inputs(random_graph(6, 8, g), 6, 3, g).mrf()
    once = sum_product(mrf, max_sweeps=1)[0].messages
    damped = sum_product(mrf, max_sweeps=1, damping=0.25)[0].messages
    assert_close(damped, 0.75 * once, 1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 3])
def test_batch_equals_single_mrfs(kind, num_observed):
    g = generator(9)
    edge_index = random_graph(9, 14, g)
    batch = random_mrf_inputs(edge_index, 9, 3, g, kind=kind, coupling_std=0.4, batch=(5,), num_observed=num_observed)
    together, convergence = sum_product(batch.mrf())
    alone = [sum_product(batch_item(batch, b).mrf()) for b in range(5)]
    assert convergence.converged
    assert convergence.sweeps == max(one.sweeps for _, one in alone)
    for b, (posterior, _) in enumerate(alone):
        # A single MRF stops earlier than the batch, when it has converged to 1e-12.
        assert_close(together.node[b], posterior.node, 1e-11)
        assert_close(together.joint(edge_index)[b], posterior.joint(edge_index), 1e-11)
        assert_close(together[b].joint(edge_index), posterior.joint(edge_index), 1e-11)


def test_couplings_and_scales_shared_by_a_batch():
    g = generator(10)
    edge_index = random_forest(7, g, keep=1.0)
    unary = torch.randn(4, 7, 2, generator=g, dtype=torch.float64)
    pairwise = torch.randn(6, 2, 2, generator=g, dtype=torch.float64)
    scale = torch.rand(6, generator=g, dtype=torch.float64)
    together, _ = sum_product(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale))
    for b in range(4):
        assert_matches_enumeration(together[b], MRFInputs(unary[b], edge_index, pairwise, scale), TOLERANCE)


def test_numpy_arrays_equal_tensors():
    g = generator(11)
    inputs = random_mrf_inputs(random_tree(6, g), 6, 3, g, kind="scaled per edge", num_observed=1)
    mrf_of_arrays = PairwiseMRF(
        inputs.unary.numpy(),
        inputs.edge_index.numpy().astype(np.int32),
        inputs.pairwise.numpy(),
        edge_scale=inputs.edge_scale.numpy(),
        evidence={np.int64(node): np.int64(label) for node, label in inputs.evidence.items()},
    )
    assert torch.equal(sum_product(mrf_of_arrays)[0].node, sum_product(inputs.mrf())[0].node)
    assert_matches_enumeration(sum_product(mrf_of_arrays)[0], inputs, TOLERANCE)


def test_evidence_accepts_int32():
    mrf = PairwiseMRF(torch.zeros(2, 2), torch.tensor([[0], [1]]), torch.eye(2), evidence={np.int32(0): np.int32(1)})
    assert sum_product(mrf)[0].node[0].tolist() == [0.0, 1.0]
