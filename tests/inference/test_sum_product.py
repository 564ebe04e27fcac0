import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.inference import Convergence, PairwiseMRF, exact_marginals, sum_product
from helpers.random_fields import (
    KINDS,
    Field,
    assert_enumerated,
    cycle,
    generator,
    one_of,
    random_field,
    random_forest,
    random_graph,
    random_tree,
    small_fields,
)

EXACT = 1e-10


def assert_same(got, expected, tolerance):
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


@given(field=small_fields())
@settings(max_examples=150)
def test_exact_on_small_forests(field):
    posterior, convergence = sum_product(field.mrf())
    assert convergence.converged
    assert_enumerated(posterior, field, EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 30])
def test_exact_on_larger_trees(kind, num_known):
    g = generator(7)
    tree = random_tree(300, g)
    mrf = random_field(tree, 300, 4, g, kind=kind, strength=2.0, num_known=num_known).mrf()
    posterior, convergence = sum_product(mrf)
    exact, _ = exact_marginals(mrf)
    assert convergence.converged
    assert_same(posterior.node, exact.node, EXACT)
    assert_same(posterior.joint(tree), exact.joint(tree), EXACT)


def test_a_tree_takes_as_many_sweeps_as_its_diameter_and_one_to_notice():
    g = generator(0)
    path = torch.stack([torch.arange(9), torch.arange(1, 10)])
    _, convergence = sum_product(random_field(path, 10, 3, g).mrf())
    assert (convergence.converged, convergence.sweeps) == (True, 10)


@given(field=small_fields())
@settings(max_examples=50)
def test_connected_sets_are_exact_on_trees(field):
    posterior, _ = sum_product(field.mrf())
    middle = [node for node in range(len(field.unary)) if sum(node in edge for edge in field.edges) >= 2]
    for node in middle:
        a, b = [sum(edge) - node for edge in field.edges if node in edge][:2]
        joint = posterior.marginal(torch.tensor([[a], [node], [b]]))[0]
        np.testing.assert_allclose(joint.numpy(), field.enumerated().joint([a, node, b]), rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 4])
def test_beliefs_of_edges_sum_to_those_of_nodes(kind, num_known):
    g = generator(3)
    edge_index = random_graph(20, 45, g)
    field = random_field(edge_index, 20, 3, g, kind=kind, strength=0.5, num_known=num_known)
    posterior, convergence = sum_product(field.mrf())
    assert convergence.converged
    joint = posterior.joint(edge_index)
    assert_same(joint.sum(-1), posterior.node[edge_index[0]], 1e-11)
    assert_same(joint.sum(-2), posterior.node[edge_index[1]], 1e-11)
    # Truncated, they do not: the property is that of a fixed point.
    early, _ = sum_product(field.mrf(), max_sweeps=1)
    assert (early.joint(edge_index).sum(-1) - early.node[edge_index[0]]).abs().max() > 1e-3


def test_without_couplings_nodes_are_independent():
    g = generator(1)
    edge_index = random_graph(8, 15, g)
    unary = torch.randn(8, 3, generator=g, dtype=torch.float64)
    posterior, convergence = sum_product(PairwiseMRF(unary, edge_index, torch.zeros(3, 3)))
    p = unary.softmax(-1)
    assert convergence == Convergence(True, 1, 0.0)
    assert_same(posterior.node, p, 1e-15)
    assert_same(posterior.joint(edge_index), p[edge_index[0]][:, :, None] * p[edge_index[1]][:, None, :], 1e-15)


def test_a_scale_of_zero_takes_an_edge_away():
    g = generator(5)
    edge_index = random_graph(6, 9, g)
    field = random_field(edge_index, 6, 3, g, kind="scaled", strength=0.5)
    field.edge_scale[4] = 0.0
    keep = torch.arange(9) != 4
    without = field._replace(edge_index=edge_index[:, keep], edge_scale=field.edge_scale[keep])
    assert_same(sum_product(field.mrf())[0].node, sum_product(without.mrf())[0].node, 1e-11)


def both_answers(field, changed, **options):
    return sum_product(field.mrf(), **options)[0], sum_product(changed.mrf(), **options)[0]


# Ten sweeps, converged or not: the invariances are those of each sweep.
@given(field=small_fields(loops=True), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_names_of_nodes_change_nothing(field, seed):
    order = torch.randperm(len(field.unary), generator=generator(seed))
    name = order.argsort()
    known = {int(name[node]): label for node, label in (field.evidence or {}).items()}
    renamed = field._replace(unary=field.unary[order], edge_index=name[field.edge_index], evidence=known)
    here, there = both_answers(field, renamed, max_sweeps=10)
    assert_same(there.node, here.node[order], 1e-12)
    assert_same(there.joint(name[field.edge_index]), here.joint(field.edge_index), 1e-12)


@given(field=small_fields(loops=True), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_names_of_classes_change_nothing(field, seed):
    order = torch.randperm(field.unary.shape[1], generator=generator(seed))
    name = order.argsort().tolist()
    known = {node: name[label] for node, label in (field.evidence or {}).items()}
    pairwise = field.pairwise[..., order, :][..., order]
    here, there = both_answers(
        field, field._replace(unary=field.unary[:, order], pairwise=pairwise, evidence=known), max_sweeps=10
    )
    assert_same(there.node, here.node[:, order], 1e-12)
    joint = here.joint(field.edge_index)[..., order, :][..., order]
    assert_same(there.joint(field.edge_index), joint, 1e-12)


@given(field=small_fields(loops=True), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_order_and_direction_of_edges_change_nothing(field, seed):
    g = generator(seed)
    num_edges = field.edge_index.shape[1]
    order = torch.randperm(num_edges, generator=g)
    turn = torch.rand(num_edges, generator=g) < 0.5
    couplings = field.couplings
    moved = Field(
        field.unary,
        torch.where(turn, field.edge_index.flip(0), field.edge_index)[:, order],
        torch.where(turn[:, None, None], couplings.mT, couplings)[order],
        None,
        field.evidence,
    )
    here, there = both_answers(field, moved, max_sweeps=10)
    assert_same(there.node, here.node, 1e-12)
    assert_same(there.joint(field.edge_index), here.joint(field.edge_index), 1e-12)


@given(field=small_fields(loops=True), seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_constants_change_nothing(field, seed):
    g = generator(seed)
    rows = 10 * torch.randn(len(field.unary), 1, generator=g, dtype=torch.float64)
    moved = field._replace(unary=field.unary + rows, pairwise=field.pairwise + 3.0)
    here, there = both_answers(field, moved, max_sweeps=10)
    assert_same(there.node, here.node, 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_error_of_a_loop_shrinks_with_its_couplings(seed):
    """Around a loop of length n a disturbance comes back n couplings later: the error is O(strength^n)."""
    errors = []
    for strength in (0.2, 0.1, 0.05):
        field = random_field(cycle(4), 4, 2, generator(seed), kind="per edge", strength=strength)
        posterior, convergence = sum_product(field.mrf())
        assert convergence.converged
        errors.append(np.abs(posterior.node.numpy() - field.enumerated().nodes()).max())
    assert 0 < errors[0] < 0.2**4
    # Halving divides the error by 2^4 up to higher orders in the strength; a wrong sweep would leave O(strength).
    assert errors[1] < errors[0] / 8 and errors[2] < errors[1] / 8


@given(field=small_fields(loops=True, strength=0.05))
@settings(max_examples=60)
def test_weak_couplings_are_nearly_exact(field):
    """The shortest loop is a triangle, so the error is O(strength^3); its factor grows with the number of loops."""
    posterior, convergence = sum_product(field.mrf())
    assert convergence.converged
    # |s T| is seldom above 4 · 0.05 and a triangle's loop gain (0.2)^3 = 0.008. First order (0.05) would show.
    assert_enumerated(posterior, field, tolerance=0.01)


def test_one_loop_of_two_labels_knows_which_label_is_likelier():
    """Weiss (2000): with one loop and two labels, the believed and the true marginals are on one side of 1/2."""
    for seed in range(30):
        field = random_field(cycle(5), 5, 2, generator(seed), kind="per edge", strength=1.0)
        posterior, convergence = sum_product(field.mrf())
        assert convergence.converged
        true = field.enumerated().nodes()
        assert (posterior.node.argmax(-1).numpy() == true.argmax(-1)).all()


def test_one_loop_corrected_by_its_eigenvalues_is_exact():
    """Weiss (2000): b(l) and p(l) of a loop of two labels obey b = p + (λ2 / λ1)(b_other - p_other) p-weighted.

    With M the product of transfer matrices around the loop from node 0, whose eigenvalues are λ1 > λ2:
    the belief is the product of M's left and right leading eigenvectors, the truth is diag(M) / trace(M).
    """
    field = random_field(cycle(4), 4, 3, generator(2), kind="per edge", strength=1.0)
    around = np.eye(3)
    for node in range(4):
        around = around @ np.diag(np.exp(field.unary[node].numpy())) @ np.exp(field.couplings[node].numpy())
    true = np.diag(around) / np.trace(around)
    values, right = np.linalg.eig(around)
    left = np.linalg.inv(right).T
    leading = np.abs(values).argmax()
    belief = (right[:, leading] * left[:, leading]).real
    posterior, _ = sum_product(field.mrf())
    np.testing.assert_allclose(posterior.node[0].numpy(), belief / belief.sum(), rtol=0, atol=EXACT)
    np.testing.assert_allclose(field.enumerated().nodes()[0], true, rtol=0, atol=1e-14)
    assert np.abs(belief / belief.sum() - true).max() > 1e-3  # or the two could not be told apart


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evidence_and_impossible_labels_are_exact(dtype):
    g = generator(4)
    field = random_field(random_graph(12, 25, g), 12, 4, g, strength=0.5, num_known=3, dtype=dtype)
    free = [node for node in range(12) if node not in field.evidence][:4]
    field.unary[free, torch.tensor([0, 1, 2, 3])] = -torch.inf
    posterior, _ = sum_product(field.mrf(), damping=0.3)
    for node, label in field.evidence.items():
        assert posterior.node[node].tolist() == torch.eye(4)[label].tolist()
    assert (posterior.node[free, torch.tensor([0, 1, 2, 3])] == 0).all()
    joint = posterior.joint(field.edge_index)
    for (i, j), table in zip(field.edges, joint, strict=True):
        assert (table[posterior.node[i] == 0] == 0).all() and (table[:, posterior.node[j] == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["shared", "per edge", "scaled"])
def test_huge_couplings(dtype, kind):
    """±1e4 forbids pairs of labels: on a tree the rest is still right."""
    for seed in range(10):
        g = generator(seed)
        field = random_field(random_tree(6, g), 6, 3, g, kind=kind, dtype=dtype)
        field.pairwise.copy_(1e4 * torch.randint(-1, 2, field.pairwise.shape, generator=g))
        if kind == "scaled":
            field.edge_scale.copy_(torch.randint(-1, 2, (5,), generator=g))
        posterior, convergence = sum_product(field.mrf())
        assert convergence.converged
        # Sums of 1e4 in float32 are rounded to 1e-3.
        assert_enumerated(posterior, field, tolerance=2e-3 if dtype == torch.float32 else EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outwards", [True, False])
def test_a_hub_of_degree_100000(dtype, outwards):
    """The hub of a star hears T^T-softmax of each leaf; a leaf hears the hub without itself."""
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
    heard = torch.logsumexp(u[1:, None, :] + t, -1)
    total = u[0] + heard.sum(0)
    joints = (total - heard)[:, :, None] + t + u[1:, None, :]
    joints = joints.flatten(1).softmax(-1).reshape(-1, 3, 3)
    # In float32 100,000 messages of size 1 with errors of 1e-8 each may add up to 1e-3 in a logarithm.
    loose = 1e-3 if dtype == torch.float32 else 1e-10
    assert_same(posterior.node[0].double(), total.softmax(-1), loose)
    assert_same(posterior.node[1:].double(), joints.sum(1), loose)
    got = posterior.joint(edge_index).double()
    assert_same(got if outwards else got.mT, joints, loose)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hub_forgets_what_a_leaf_told_it(dtype):
    """In balance the hub is uncertain although 100,000 leaves pull it both ways: nothing is lost in large sums."""
    half = 50_000
    unary = torch.zeros(2 * half + 1, 2, dtype=dtype)
    unary[1 : half + 1, 0], unary[half + 1 :, 1] = 3.0, 3.0
    edge_index = torch.stack([torch.zeros(2 * half, dtype=torch.long), torch.arange(1, 2 * half + 1)])
    posterior, _ = sum_product(PairwiseMRF(unary, edge_index, 2.0 * torch.eye(2)))
    assert posterior.node[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    one_pull = math.log((math.exp(5) + 1) / (math.exp(3) + math.exp(2)))  # of a leaf, which its own cavity lacks
    cavity = 1 / (1 + math.exp(one_pull))
    right = math.exp(3) * (cavity * math.exp(2) + 1 - cavity)
    wrong = cavity + (1 - cavity) * math.exp(2)
    assert float(posterior.node[1, 0]) == pytest.approx(right / (right + wrong), abs=1e-5)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 17, 70, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_classes(num_classes, dtype):
    """Two nodes: the joint is the softmax of all potentials."""
    g = generator(num_classes)
    field = random_field(torch.tensor([[1], [0]]), 3, num_classes, g, dtype=dtype)
    posterior, _ = sum_product(field.mrf())
    logits = field.unary[1].double()[:, None] + field.unary[0].double() + field.pairwise.double()
    joint = logits.flatten().softmax(-1).reshape(num_classes, num_classes)
    loose = 1e-6 if dtype == torch.float32 else 1e-14
    assert_same(posterior.joint(field.edge_index)[0].double(), joint, loose)
    assert_same(posterior.node[1].double(), joint.sum(1), loose)
    assert_same(posterior.node[0].double(), joint.sum(0), loose)
    assert_same(posterior.node[2], field.unary[2].softmax(-1), loose)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
@pytest.mark.parametrize("coupling", [torch.eye(3), torch.empty(0, 3, 3)])
def test_no_edges(num_nodes, coupling):
    unary = torch.randn(num_nodes, 3, generator=generator(0))
    no_edges = torch.empty(2, 0, dtype=torch.long)
    posterior, convergence = sum_product(PairwiseMRF(unary, no_edges, coupling))
    assert convergence == Convergence(True, 1, 0.0)
    assert_same(posterior.node, unary.softmax(-1), 1e-7)
    assert posterior.joint(no_edges).shape == (0, 3, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_come_in_the_dtype_of_the_unaries(dtype):
    field = random_field(cycle(3), 3, 2, generator(0), strength=0.3)
    posterior, _ = sum_product(PairwiseMRF(field.unary.to(dtype), field.edge_index, field.pairwise))
    assert posterior.node.dtype == posterior.joint(field.edge_index).dtype == dtype


def frustrated(strength):
    """Three nodes that all want to differ, with unaries that break the symmetry."""
    unary = torch.tensor([[0.5, 0.0], [0.0, 0.3], [0.2, 0.0]], dtype=torch.float64)
    return PairwiseMRF(unary, cycle(3), -strength * torch.eye(2, dtype=torch.float64))


def complete(num_nodes, strength):
    g = generator(1)
    unary = 0.3 * torch.randn(num_nodes, 2, generator=g, dtype=torch.float64)
    pairs = torch.triu_indices(num_nodes, num_nodes, 1)
    return PairwiseMRF(unary, pairs, -strength * torch.eye(2, dtype=torch.float64))


def test_a_converged_run_says_so():
    _, convergence = sum_product(frustrated(1.0), tolerance=1e-6)
    assert convergence.converged and convergence.advice == ""
    assert 0 < convergence.residual <= 1e-6 and 1 < convergence.sweeps < 1000
    # One sweep less would not have been enough.
    _, early = sum_product(frustrated(1.0), tolerance=1e-6, max_sweeps=convergence.sweeps - 1)
    assert not early.converged and early.sweeps == convergence.sweeps - 1 and early.residual > 1e-6


def test_a_run_that_needs_more_sweeps_is_told_so():
    _, convergence = sum_product(frustrated(2.0), max_sweeps=10)
    assert not convergence.converged and convergence.sweeps == 10 and convergence.residual > 1e-12
    assert "Did not converge in 10 sweeps" in convergence.advice
    assert f"the residual is {convergence.residual:.2g}, the tolerance 1e-12" in convergence.advice
    assert convergence.advice.endswith("It may still fall: raise max_sweeps.")


def test_a_run_that_oscillates_is_told_to_damp_and_damping_helps():
    mrf = complete(4, 2.0)
    _, wild = sum_product(mrf)
    assert not wild.converged and wild.sweeps == 1000 and wild.residual > 0.1
    assert wild.advice.endswith("It does not fall: try damping=0.5, or weaker couplings.")
    _, calm = sum_product(mrf, damping=0.5)
    assert calm.converged and calm and not wild


def test_advice_asks_for_more_damping_than_there_was():
    _, convergence = sum_product(complete(30, 40.0), damping=0.6, max_sweeps=60)
    assert "try damping=0.9," in convergence.advice
    _, convergence = sum_product(complete(30, 40.0), damping=0.9, max_sweeps=200)
    assert convergence.advice.endswith("use weaker couplings, mean_field, or exact_marginals if the graph is small.")


def test_damping_does_not_move_the_fixed_point():
    g = generator(8)
    mrf = random_field(random_graph(10, 18, g), 10, 3, g, strength=0.5).mrf()
    plain, damped = sum_product(mrf)[0], sum_product(mrf, damping=0.7)[0]
    assert_same(damped.node, plain.node, 1e-10)


def test_damping_keeps_its_share_of_old_messages():
    g = generator(8)
    mrf = random_field(random_graph(6, 8, g), 6, 3, g).mrf()
    once = sum_product(mrf, max_sweeps=1)[0].messages
    damped = sum_product(mrf, max_sweeps=1, damping=0.25)[0].messages
    assert_same(damped, 0.75 * once, 1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 3])
def test_a_batch_is_its_fields_one_by_one(kind, num_known):
    g = generator(9)
    edge_index = random_graph(9, 14, g)
    batch = random_field(edge_index, 9, 3, g, kind=kind, strength=0.4, batch=(5,), num_known=num_known)
    together, convergence = sum_product(batch.mrf())
    alone = [sum_product(one_of(batch, b).mrf()) for b in range(5)]
    assert convergence.converged
    assert convergence.sweeps == max(one.sweeps for _, one in alone)
    for b, (posterior, _) in enumerate(alone):
        # Alone a field stops sweeping when it has converged, to 1e-12.
        assert_same(together.node[b], posterior.node, 1e-11)
        assert_same(together.joint(edge_index)[b], posterior.joint(edge_index), 1e-11)
        assert_same(together[b].joint(edge_index), posterior.joint(edge_index), 1e-11)


def test_a_batch_may_share_couplings_and_scales():
    g = generator(10)
    edge_index = random_forest(7, g, keep=1.0)
    unary = torch.randn(4, 7, 2, generator=g, dtype=torch.float64)
    pairwise = torch.randn(6, 2, 2, generator=g, dtype=torch.float64)
    scale = torch.rand(6, generator=g, dtype=torch.float64)
    together, _ = sum_product(PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale))
    for b in range(4):
        assert_enumerated(together[b], Field(unary[b], edge_index, pairwise, scale), EXACT)


def test_numpy_arrays_are_as_good_as_tensors():
    g = generator(11)
    field = random_field(random_tree(6, g), 6, 3, g, kind="scaled per edge", num_known=1)
    of_arrays = PairwiseMRF(
        field.unary.numpy(),
        field.edge_index.numpy().astype(np.int32),
        field.pairwise.numpy(),
        edge_scale=field.edge_scale.numpy(),
        evidence={np.int64(node): np.int64(label) for node, label in field.evidence.items()},
    )
    assert torch.equal(sum_product(of_arrays)[0].node, sum_product(field.mrf())[0].node)
    assert_enumerated(sum_product(of_arrays)[0], field, EXACT)


def test_evidence_may_be_narrow_integers():
    mrf = PairwiseMRF(torch.zeros(2, 2), torch.tensor([[0], [1]]), torch.eye(2), evidence={np.int32(0): np.int32(1)})
    assert sum_product(mrf)[0].node[0].tolist() == [0.0, 1.0]
