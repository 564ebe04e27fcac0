import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from edgewise.inference import PairwiseMRF, exact_marginals, sum_product
from edgewise.inference.exact import TooManyLabelings
from edgewise.posterior import MixturePosterior, PairwisePosterior
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
    small_fields,
)


@given(field=small_fields())
@settings(max_examples=100)
def test_forests(field):
    posterior, convergence = exact_marginals(field.mrf())
    assert isinstance(posterior, PairwisePosterior)
    assert convergence.converged and convergence.residual == 0.0 and convergence.sweeps == 0
    assert_enumerated(posterior, field, 1e-12)


@given(field=small_fields(loops=True, strength=3.0))
@settings(max_examples=150)
def test_graphs_with_loops(field):
    posterior, convergence = exact_marginals(field.mrf())
    assert convergence.converged
    assert_enumerated(posterior, field, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 1])
def test_any_pair_and_any_set_of_a_graph_with_loops(kind, num_known):
    g = generator(num_known)
    field = random_field(random_graph(6, 13, g), 6, 3, g, kind=kind, strength=2.0, num_known=num_known)
    posterior, _ = exact_marginals(field.mrf())
    assert isinstance(posterior, MixturePosterior)
    true = field.enumerated()
    nodes = range(len(field.unary))
    pairs = list(itertools.permutations(nodes, 2))
    joint = posterior.joint(torch.tensor(pairs).T).numpy()
    np.testing.assert_allclose(joint, [true.joint(pair) for pair in pairs], rtol=0, atol=1e-12)
    for size in (1, 3, 4):
        for chosen in itertools.islice(itertools.permutations(nodes, size), 5):
            got = posterior.marginal(torch.tensor(chosen)[:, None])[0]
            np.testing.assert_allclose(got.numpy(), true.joint(chosen), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chain_of_200000_nodes(dtype):
    """With T = J 1, and node 0 known, node k agrees with it with probability (1 + tanh(J/2)^k) / 2."""
    num_nodes, strength = 200_000, 6.0
    nodes = torch.arange(num_nodes)
    chain = torch.stack([nodes[:-1], nodes[1:]])
    mrf = PairwiseMRF(
        torch.zeros(num_nodes, 2, dtype=dtype), chain, strength * torch.eye(2, dtype=dtype), evidence={0: 1}
    )
    posterior, _ = exact_marginals(mrf)
    agrees = (1 + np.tanh(strength / 2) ** nodes.double().numpy()) / 2
    # float32 holds messages to 1e-7; a chain adds what its nodes lose, up to the length 1 / (1 - tanh) = 200.
    loose = 2e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(posterior.node[:, 1].double().numpy(), agrees, rtol=0, atol=loose)
    step = 1 / (1 + np.exp(-strength))
    joint = posterior.joint(chain).double().numpy()
    np.testing.assert_allclose(joint[:, 1, 1], agrees[:-1] * step, rtol=0, atol=loose)
    np.testing.assert_allclose(joint[:, 1, 0], agrees[:-1] * (1 - step), rtol=0, atol=loose)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_random_forest_is_at_rest(kind, batch):
    """Sum-product that starts elsewhere comes to the same."""
    g = generator(1)
    forest = random_forest(500, g)
    mrf = random_field(forest, 500, 3, g, kind=kind, strength=2.0, num_known=20, batch=batch).mrf()
    exact, swept = exact_marginals(mrf)[0], sum_product(mrf)[0]
    torch.testing.assert_close(exact.node, swept.node, rtol=0, atol=1e-11)
    torch.testing.assert_close(exact.joint(forest), swept.joint(forest), rtol=0, atol=1e-11)
    torch.testing.assert_close(exact.messages, swept.messages, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_cuts_loops(kind):
    """Each loop of the wheel passes the hub or is the rim: known labels of two nodes leave a chain."""
    rim = cycle(5)
    edge_index = torch.cat([rim, torch.stack([torch.full((5,), 5), torch.arange(5)])], dim=1)
    for seed in range(5):
        field = random_field(edge_index, 6, 3, generator(seed), kind=kind)._replace(evidence={5: 2, 1: 0})
        posterior, _ = exact_marginals(field.mrf())
        assert isinstance(posterior, PairwisePosterior)
        assert_enumerated(posterior, field, 1e-12)
        assert posterior.node[5].tolist() == [0, 0, 1] and posterior.node[1].tolist() == [1, 0, 0]


def test_labels_ruled_out_one_by_one_cut_loops_too():
    field = random_field(cycle(6), 6, 3, generator(3), kind="per edge")
    field.unary[2, [0, 2]] = -torch.inf
    posterior, _ = exact_marginals(field.mrf())
    assert isinstance(posterior, PairwisePosterior)
    assert_enumerated(posterior, field, 1e-12)


def test_sets_on_both_sides_of_a_known_node():
    """Nodes 1 and 3 are connected through the known node 0, but depend on each other through node 2."""
    field = Field(
        torch.zeros(4, 2, dtype=torch.float64), cycle(4), 2.0 * torch.eye(2, dtype=torch.float64), None, {0: 0}
    )
    posterior, _ = exact_marginals(field.mrf())
    with pytest.raises(ValueError, match=r"nodes \[0, 1, 3\] are connected only through a node whose label is certain"):
        posterior.marginal(torch.tensor([[0], [1], [3]]))
    whole = posterior.marginal(torch.tensor([[0], [1], [2], [3]]))[0]
    np.testing.assert_allclose(whole.numpy(), field.enumerated().joint([0, 1, 2, 3]), rtol=0, atol=1e-12)


def test_what_only_a_known_node_connects_is_independent():
    field = Field(
        torch.zeros(3, 2, dtype=torch.float64), torch.tensor([[0, 0], [1, 2]]), 2.0 * torch.eye(2), None, {0: 0}
    )
    got = exact_marginals(field.mrf())[0].marginal(torch.tensor([[1], [0], [2]]))[0]
    np.testing.assert_allclose(got.numpy(), field.enumerated().joint([1, 0, 2]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_known", [1, 2])
def test_loops_that_remain_are_enumerated_with_evidence(num_known):
    pairs = torch.triu_indices(6, 6, 1)
    for kind in KINDS:
        field = random_field(pairs, 6, 3, generator(num_known), kind=kind, num_known=num_known)
        posterior, _ = exact_marginals(field.mrf())
        assert isinstance(posterior, MixturePosterior)
        assert_enumerated(posterior, field, 1e-12)
        # To rounding; that it is exact is asked for below.
        for node, label in field.evidence.items():
            np.testing.assert_allclose(posterior.node[node].numpy(), np.eye(3)[label], rtol=0, atol=1e-14)


def test_evidence_is_exact_in_a_mixture():
    for dtype, seed in itertools.product((torch.float32, torch.float64), range(20)):
        field = random_field(torch.triu_indices(5, 5, 1), 5, 3, generator(seed), num_known=1, dtype=dtype)
        (node, label), *_ = field.evidence.items()
        assert float(exact_marginals(field.mrf())[0].node[node, label]) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_potentials(dtype):
    for seed in range(10):
        g = generator(seed)
        for edge_index in (cycle(5), random_forest(5, g)):
            field = random_field(edge_index, 5, 2, g, kind="per edge", dtype=dtype)
            field.pairwise.copy_(1e4 * torch.randint(-1, 2, field.pairwise.shape, generator=g))
            field.unary[0, 1] = -torch.inf
            # Sums of 1e4 in float32 are rounded to 1e-3; enumeration sums in float64.
            loose = 2e-3 if dtype == torch.float32 else 1e-10
            assert_enumerated(exact_marginals(field.mrf())[0], field, loose)


def test_a_large_graph_with_loops_is_refused_with_a_way_out():
    grid = torch.arange(100).reshape(10, 10)
    right = torch.stack([grid[:, :-1].flatten(), grid[:, 1:].flatten()])
    down = torch.stack([grid[:-1].flatten(), grid[1:].flatten()])
    mrf = PairwiseMRF(torch.zeros(100, 3), torch.cat([right, down], dim=1), torch.eye(3))
    with pytest.raises(
        TooManyLabelings,
        match=r"Expected a forest, .* but \d+ nodes or more of 3 classes, with 100 nodes .*Use sum_product",
    ):
        exact_marginals(mrf)


def test_one_loop_with_many_leaves_is_small():
    """The cover is the loop's: leaves cost nothing but memory."""
    leaves = torch.stack([torch.arange(60) % 3, torch.arange(3, 63)])
    edge_index = torch.cat([cycle(3), leaves], dim=1)
    g = generator(4)
    field = random_field(edge_index, 63, 2, g, kind="per edge")
    posterior, _ = exact_marginals(field.mrf())
    # Leaves put into the unaries of the loop leave a field of three nodes.
    inner = field.unary[:3].clone()
    for (i, j), coupling in zip(field.edges[3:], field.couplings[3:], strict=True):
        inner[i] += (coupling + field.unary[j]).logsumexp(-1)
    small = Field(inner, cycle(3), field.pairwise[:3])
    np.testing.assert_allclose(posterior.node[:3].numpy(), small.enumerated().nodes(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("num_known", [0, 1])
def test_a_batch_is_its_fields_one_by_one(kind, loops, num_known):
    g = generator(5)
    edge_index = random_graph(5, 8, g) if loops else random_forest(5, g, keep=1.0)
    batch = random_field(edge_index, 5, 3, g, kind=kind, batch=(3,), num_known=num_known)
    posterior, _ = exact_marginals(batch.mrf())
    assert isinstance(posterior, MixturePosterior if loops else PairwisePosterior)
    assert posterior.node.shape == (3, 5, 3)
    for b in range(3):
        assert_enumerated(posterior[b], one_of(batch, b), 1e-12)
        np.testing.assert_allclose(posterior.node[b].numpy(), one_of(batch, b).enumerated().nodes(), rtol=0, atol=1e-12)


def test_labels_known_in_one_field_of_a_batch_only_do_not_cut():
    g = generator(6)
    batch = random_field(cycle(4), 4, 2, g, kind="per edge", batch=(2,))
    batch.unary[0, 1, 0], batch.unary[1, 1, 1] = -torch.inf, -torch.inf  # known in both, but not the same
    posterior, _ = exact_marginals(batch.mrf())
    assert isinstance(posterior, MixturePosterior)
    for b in range(2):
        assert_enumerated(posterior[b], one_of(batch, b), 1e-12)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_no_edges(num_nodes):
    unary = torch.randn(num_nodes, 3, generator=generator(7))
    posterior, _ = exact_marginals(PairwiseMRF(unary, torch.empty(2, 0, dtype=torch.long), torch.eye(3)))
    torch.testing.assert_close(posterior.node, unary.softmax(-1))


def test_fields_of_a_batch_may_forbid_different_labels():
    """A node that is decided in one field only, or otherwise in another, does not cut the graph."""
    unary = torch.randn(3, 4, 2, generator=generator(8), dtype=torch.float64)
    unary[0, 0, 0] = unary[1, 0, 1] = -torch.inf
    pairwise = torch.tensor([[1.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    both, _ = exact_marginals(PairwiseMRF(unary, cycle(4), pairwise))
    for b in range(3):
        alone, _ = exact_marginals(PairwiseMRF(unary[b], cycle(4), pairwise))
        torch.testing.assert_close(both.node[b], alone.node, rtol=0, atol=1e-12)


def test_a_large_graph_is_refused_at_once(monkeypatch):
    from edgewise.inference import exact

    chosen = []
    monkeypatch.setattr(exact, "MAX_NUMBERS", 10_000)
    monkeypatch.setattr(torch, "bincount", lambda *a, count=torch.bincount, **k: chosen.append(1) or count(*a, **k))
    g = generator(9)
    with pytest.raises(ValueError, match="Use sum_product"):
        exact_marginals(random_field(random_graph(300, 900, g), 300, 2, g).mrf())
    assert len(chosen) < 10
