"""Joints of pairs that are not edges: against enumeration, their marginals, the clamped nodes, and the stated cost."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.inference import clamping, exact_marginals, max_product, sum_product, tree_reweighted
from edgewise.inference.clamping import round_to_marginals, vertex_cover
from helpers.random_fields import (
    KINDS,
    cycle,
    generator,
    random_graph,
    random_mrf_inputs,
    random_tree,
    small_mrf_inputs,
)


def all_pairs(num_nodes):
    """Return all pairs of distinct nodes, in both directions."""
    low = torch.triu_indices(num_nodes, num_nodes, 1)
    return torch.cat([low, low.flip(0)], dim=1)


def product(posterior, pairs):
    start, end = posterior.node[pairs]
    return start[:, :, None] * end[:, None, :]


def distances(joints, truth):
    """Return the total variation distance of each joint."""
    return (joints - truth).abs().sum((1, 2)) / 2


@given(inputs=small_mrf_inputs(), solver=st.sampled_from([sum_product, exact_marginals]))
def test_joints_on_a_forest_are_exact(inputs, solver):
    posterior, _ = solver(inputs.mrf())
    pairs = all_pairs(posterior.num_nodes)
    joints = posterior.joint(pairs, clamp=True).numpy()
    assert len(joints) == pairs.shape[1]
    if len(joints):
        np.testing.assert_allclose(joints, inputs.enumeration().edges(pairs.T.tolist()), rtol=0, atol=1e-9)


def test_joints_of_tree_reweighted_marginals_on_a_forest_are_exact():
    inputs = random_mrf_inputs(random_tree(6, generator(1)), 6, 3, generator(2), kind="scaled per edge", num_observed=1)
    joints = tree_reweighted(inputs.mrf())[0].joint(all_pairs(6), clamp=True)
    expected = inputs.enumeration().edges(all_pairs(6).T.tolist())
    np.testing.assert_allclose(joints.numpy(), expected, rtol=0, atol=1e-6)


def test_joints_on_graphs_with_loops_are_closer_to_the_truth_than_products():
    """On 24 random fields, the mean distance is about half of that of products, which have the same marginals."""
    clamped, products = [], []
    for seed in range(24):
        kind = KINDS[seed % len(KINDS)]
        inputs = random_mrf_inputs(
            random_graph(7, 9, generator(seed)), 7, 2, generator(seed + 100), kind=kind, dtype=torch.float32
        )
        posterior, truth = sum_product(inputs.mrf())[0], exact_marginals(inputs.mrf())[0]
        edges = {frozenset(edge) for edge in inputs.edges}
        pairs = torch.tensor([pair for pair in combinations(range(7), 2) if frozenset(pair) not in edges]).T
        clamped.append(distances(posterior.joint(pairs, clamp=True), truth.joint(pairs)))
        products.append(distances(product(posterior, pairs), truth.joint(pairs)))
    assert float(torch.cat(clamped).mean()) < 0.7 * float(torch.cat(products).mean())
    assert sum(float(c.mean()) < float(p.mean()) for c, p in zip(clamped, products, strict=True)) >= 20


@pytest.mark.parametrize("solver", [sum_product, tree_reweighted])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_joints_have_the_marginals_of_the_nodes(solver, dtype):
    inputs = random_mrf_inputs(cycle(6), 6, 3, generator(1), kind="per edge", coupling_std=2.0, dtype=dtype)
    inputs.unary[2, 1] = -torch.inf
    posterior, _ = solver(inputs.mrf())
    pairs = all_pairs(6)
    joints = posterior.joint(pairs, clamp=True)
    edge = posterior._lookup.find(pairs).edge >= 0
    assert joints.dtype == dtype and torch.equal(joints[edge], posterior.joint(pairs[:, edge]))
    close = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 1e-13}
    torch.testing.assert_close(joints[~edge].sum(2), posterior.node[pairs[0, ~edge]], **close)
    torch.testing.assert_close(joints[~edge].sum(1), posterior.node[pairs[1, ~edge]], **close)
    torch.testing.assert_close(joints[:15], joints[15:].mT, **close)
    assert (joints >= 0).all()
    loop = posterior.joint(torch.tensor([[0, 0], [0, 3]]), clamp=True)
    assert torch.equal(loop[0], posterior.node[0].diag())


def test_joints_of_calibrated_marginals_on_a_tree_follow_the_chain_rule():
    edges = torch.tensor([[0, 2, 2], [1, 1, 3]])
    samples = (2 * torch.randn(6, 5, 3, generator=generator(5), dtype=torch.float64)).softmax(-1)
    samples[:3, :, 0], samples[3:, :, 2] = 0.0, 0.0  # impossible pairs of labels
    mixture = ew.MixturePosterior(samples / samples.sum(-1, keepdim=True))
    q01, q21, q23 = mixture.joint(edges)
    posterior = ew.PairwisePosterior.from_joints(mixture.node, edges, torch.stack([q01, q21, q23]))
    expected = q01 @ (q21.T / mixture.node[1][:, None]) @ (q23 / mixture.node[2][:, None])  # P(0, 1) P(2|1) P(3|2)
    joints = posterior.joint(torch.tensor([[0, 0], [3, 4]]), clamp=True)
    torch.testing.assert_close(joints[0], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(joints[1], mixture.node[0][:, None] * mixture.node[4])


def test_joints_of_certain_nodes_and_of_other_components_need_no_runs():
    edges = torch.tensor([[0, 1, 3], [1, 2, 4]])
    posterior, _ = sum_product(
        ew.PairwiseMRF(torch.randn(5, 2, generator=generator(0)), edges, torch.eye(2), evidence={1: 0})
    )
    pairs = torch.tensor([[0, 0, 1], [2, 3, 4]])  # behind a certain node; in another component; a certain node
    assert posterior.clamping_cost(pairs) == ew.posterior.ClampingCost(0, 0, 0.0)
    torch.testing.assert_close(posterior.joint(pairs, clamp=True), product(posterior, pairs))


def test_impossible_labels_are_not_run():
    unary = torch.zeros(4, 3)
    unary[0, 1] = -torch.inf
    posterior, _ = sum_product(ew.PairwiseMRF(unary, cycle(4), torch.eye(3)))
    cost = posterior.clamping_cost([(0, 2), (0, 1), (2, 0)])
    assert (cost.num_nodes, cost.num_runs) == (1, 2) and cost.seconds > 0
    assert "2 runs" in str(cost) and "1 clamped node," in str(cost)
    assert float(posterior.joint(torch.tensor([[0], [2]]), clamp=True)[0, 1].sum()) == 0


def test_few_nodes_are_clamped():
    assert vertex_cover(torch.tensor([[0, 1, 2, 3, 5], [4, 4, 4, 4, 6]]), 7) == [4, 5]
    assert vertex_cover(torch.tensor([[0, 1], [1, 0]]), 2) == [0]
    assert vertex_cover(torch.empty(2, 0, dtype=torch.long), 3) == []
    pairs = random_graph(30, 60, generator(0))
    assert all({i, j} & set(vertex_cover(pairs, 30)) for i, j in pairs.T.tolist())


@pytest.mark.parametrize("edges", [cycle(7), random_tree(7, generator(3))])
def test_batches_and_chunks_change_nothing(edges, monkeypatch):
    inputs = random_mrf_inputs(edges, 7, 3, generator(2), kind="scaled per edge")
    posterior, _ = sum_product(inputs.mrf())
    whole = posterior.joint(all_pairs(7), clamp=True)
    for name in ("BATCH_ELEMENTS", "CHUNK_ELEMENTS"):
        monkeypatch.setattr(clamping, name, 1)
    torch.testing.assert_close(posterior.joint(all_pairs(7), clamp=True), whole, rtol=0, atol=1e-9)


def test_long_path_is_exact():
    """Messages take more sweeps than sum_product has to travel along a path of 3,000 nodes."""
    nodes = torch.arange(3000)
    mrf = ew.PairwiseMRF(torch.zeros(3000, 2).double(), torch.stack([nodes[:-1], nodes[1:]]), 9 * torch.eye(2).double())
    joint = exact_marginals(mrf)[0].joint(torch.tensor([[0], [2999]]), clamp=True)[0]
    correlation = np.tanh(4.5) ** 2999
    assert float(joint[0, 0]) == pytest.approx((1 + correlation) / 4)


def test_all_other_posteriors_ignore_clamp():
    mrf = random_mrf_inputs(cycle(5), 5, 2, generator(0)).mrf()
    pairs = all_pairs(5)
    for posterior in (exact_marginals(mrf)[0], ew.mean_field(mrf)[0]):
        assert torch.equal(posterior.joint(pairs, clamp=True), posterior.joint(pairs))
        assert str(posterior.clamping_cost(pairs)) == "No pair needs clamping."


def test_no_gradients_are_computed():
    unary = torch.zeros(4, 2, requires_grad=True)
    posterior, _ = sum_product(ew.PairwiseMRF(unary, cycle(4), torch.eye(2)))
    assert not posterior.joint(torch.tensor([[0, 0], [1, 2]]), clamp=True).requires_grad


def test_slow_clamping_is_announced_before_it_starts(monkeypatch):
    posterior, _ = sum_product(random_mrf_inputs(cycle(6), 6, 3, generator(0)).mrf())
    pairs = torch.tensor([[0, 0], [2, 3]])
    monkeypatch.setattr(clamping, "MIN_TIMED_OPERATIONS", 0)
    monkeypatch.setattr(clamping.Solver, "seconds_per_run", lambda *_: 40.0)
    monkeypatch.setattr(clamping.Solver, "run", lambda *_: pytest.fail("It has started."))
    with pytest.warns(ew.SlowClampingWarning, match="3 runs.* about 2 min"):
        posterior.clamped_joints(pairs)
    assert str(posterior.clamping_cost(pairs)).endswith("about 2 min.")
    monkeypatch.setattr(clamping.Solver, "seconds_per_run", lambda *_: 3.0)
    posterior.clamped_joints(pairs)  # 9 s: no warning


@pytest.mark.parametrize("edges", [random_tree(5, generator(0)), cycle(200), random_graph(400, 4000, generator(0))])
def test_cost_is_measured(edges):
    num_nodes = int(edges.max()) + 1
    posterior, _ = sum_product(ew.PairwiseMRF(torch.zeros(num_nodes, 7), edges, 0.1 * torch.eye(7)))
    far = next(int(n) for n in range(1, num_nodes) if int(posterior._lookup.find(torch.tensor([[0], [n]])).edge) < 0)
    cost = posterior.clamping_cost([(0, far)])
    assert (cost.num_nodes, cost.num_runs) == (1, 7) and 0 < cost.seconds < 1000


def test_runs_that_do_not_converge_are_reported(monkeypatch):
    posterior, _ = sum_product(random_mrf_inputs(cycle(5), 5, 2, generator(0)).mrf())
    monkeypatch.setattr(clamping, "sum_product", lambda fields, **_: sum_product(fields, max_sweeps=1, tolerance=0.0))
    with pytest.warns(UserWarning, match="did not converge for up to 2 of 2"):
        joint = posterior.joint(torch.tensor([[0], [2]]), clamp=True)[0]
    torch.testing.assert_close(joint.sum(1), posterior.node[0])


def test_max_marginals_and_batches_are_refused():
    pairs = torch.tensor([[0], [2]])
    with pytest.raises(ValueError, match=r"max-marginals.*sum_product"):
        posterior, _ = max_product(random_mrf_inputs(cycle(5), 5, 2, generator(0)).mrf())
        posterior.joint(pairs, clamp=True)
    assert torch.equal(posterior.joint(cycle(5), clamp=True), posterior.joint(cycle(5)))
    batch, _ = sum_product(random_mrf_inputs(cycle(5), 5, 2, generator(0), batch=(2,)).mrf())
    for query in (lambda: batch.joint(pairs, clamp=True), lambda: batch.clamping_cost(pairs), lambda: batch.sample(2)):
        with pytest.raises(ValueError, match=r"batch of shape \(2,\).*posterior\[b\]"):
            query()
    with pytest.raises(ValueError, match=r"pair \(0, 2\) is not an edge.*clamp=True"):
        batch[0].joint(pairs)


@given(seed=st.integers(0, 1000))
def test_rounding_gives_joints_with_the_marginals(seed):
    g = generator(seed)
    joints = torch.rand(4, 3, 3, generator=g, dtype=torch.float64) * (torch.rand(4, 3, 3, generator=g) < 0.6)
    rows, columns = torch.rand(2, 4, 3, generator=g, dtype=torch.float64).unbind(0)
    rows[0, 1] = 0.0
    rows, columns = rows / rows.sum(1, keepdim=True), columns / columns.sum(1, keepdim=True)
    rounded = round_to_marginals(joints, rows, columns)
    torch.testing.assert_close(rounded.sum(2), rows)
    torch.testing.assert_close(rounded.sum(1), columns)
    assert (rounded >= 0).all() and float(rounded[0, 1].sum()) == 0
