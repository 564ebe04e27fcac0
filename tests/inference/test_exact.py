"""Exact inference against enumeration, closed forms and sum-product."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given

from edgewise.inference import PairwiseMRF, exact_marginals, sum_product
from edgewise.posterior import MixturePosterior, PairwisePosterior
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
    small_mrf_inputs,
)


@given(inputs=small_mrf_inputs())
def test_forests_equal_enumeration(inputs):
    posterior, convergence = exact_marginals(inputs.mrf())
    assert isinstance(posterior, PairwisePosterior)
    assert convergence.converged and convergence.residual == 0.0 and convergence.sweeps == 0
    assert_matches_enumeration(posterior, inputs, 1e-12)
    np.testing.assert_allclose(float(posterior.log_partition), inputs.enumeration().log_z, rtol=1e-12, atol=1e-11)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=3.0))
def test_graphs_with_loops_equal_enumeration(inputs):
    posterior, convergence = exact_marginals(inputs.mrf())
    assert convergence.converged
    assert_matches_enumeration(posterior, inputs, 1e-12)
    np.testing.assert_allclose(float(posterior.log_partition), inputs.enumeration().log_z, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_observed", [0, 1])
def test_joints_of_arbitrary_node_sets_on_graphs_with_loops(kind, num_observed):
    g = generator(num_observed)
    inputs = random_mrf_inputs(random_graph(6, 13, g), 6, 3, g, kind=kind, coupling_std=2.0, num_observed=num_observed)
    posterior, _ = exact_marginals(inputs.mrf())
    assert isinstance(posterior, MixturePosterior)
    true = inputs.enumeration()
    nodes = range(len(inputs.unary))
    pairs = list(itertools.permutations(nodes, 2))
    joint = posterior.joint(torch.tensor(pairs).T).numpy()
    np.testing.assert_allclose(joint, [true.joint(pair) for pair in pairs], rtol=0, atol=1e-12)
    for size in (1, 3, 4):
        for chosen in itertools.islice(itertools.permutations(nodes, size), 5):
            got = posterior.marginal(torch.tensor(chosen)[:, None])[0]
            np.testing.assert_allclose(got.numpy(), true.joint(chosen), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chain_of_200000_nodes(dtype):
    """With T = J 1 and node 0 observed, node k has the same label with probability (1 + tanh(J/2)^k) / 2."""
    num_nodes, coupling = 200_000, 6.0
    nodes = torch.arange(num_nodes)
    chain = torch.stack([nodes[:-1], nodes[1:]])
    mrf = PairwiseMRF(
        torch.zeros(num_nodes, 2, dtype=dtype), chain, coupling * torch.eye(2, dtype=dtype), evidence={0: 1}
    )
    posterior, _ = exact_marginals(mrf)
    p_same = (1 + np.tanh(coupling / 2) ** nodes.double().numpy()) / 2
    # Messages have errors of 1e-7 in float32, which add up over a length of 1 / (1 - tanh) = 200 nodes.
    atol = 2e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(posterior.node[:, 1].double().numpy(), p_same, rtol=0, atol=atol)
    step = 1 / (1 + np.exp(-coupling))
    joint = posterior.joint(chain).double().numpy()
    np.testing.assert_allclose(joint[:, 1, 1], p_same[:-1] * step, rtol=0, atol=atol)
    np.testing.assert_allclose(joint[:, 1, 0], p_same[:-1] * (1 - step), rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_random_forest_equals_sum_product(kind, batch):
    g = generator(1)
    forest = random_forest(500, g)
    mrf = random_mrf_inputs(forest, 500, 3, g, kind=kind, coupling_std=2.0, num_observed=20, batch=batch).mrf()
    exact, iterated = exact_marginals(mrf)[0], sum_product(mrf)[0]
    torch.testing.assert_close(exact.node, iterated.node, rtol=0, atol=1e-11)
    torch.testing.assert_close(exact.joint(forest), iterated.joint(forest), rtol=0, atol=1e-11)
    torch.testing.assert_close(exact.messages, iterated.messages, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_cuts_loops(kind):
    """Each loop of the wheel contains the hub or is the rim, so observing the hub and a rim node leaves a chain."""
    rim = cycle(5)
    edge_index = torch.cat([rim, torch.stack([torch.full((5,), 5), torch.arange(5)])], dim=1)
    for seed in range(5):
        inputs = random_mrf_inputs(edge_index, 6, 3, generator(seed), kind=kind)._replace(evidence={5: 2, 1: 0})
        posterior, _ = exact_marginals(inputs.mrf())
        assert isinstance(posterior, PairwisePosterior)
        assert_matches_enumeration(posterior, inputs, 1e-12)
        assert posterior.node[5].tolist() == [0, 0, 1] and posterior.node[1].tolist() == [1, 0, 0]


def test_nodes_with_one_possible_label_cut_loops():
    inputs = random_mrf_inputs(cycle(6), 6, 3, generator(3), kind="per edge")
    inputs.unary[2, [0, 2]] = -torch.inf
    posterior, _ = exact_marginals(inputs.mrf())
    assert isinstance(posterior, PairwisePosterior)
    assert_matches_enumeration(posterior, inputs, 1e-12)


def test_joint_of_nodes_separated_by_an_observed_node():
    """Nodes 1 and 3 are connected through the observed node 0, but depend on each other through node 2."""
    inputs = MRFInputs(
        torch.zeros(4, 2, dtype=torch.float64), cycle(4), 2.0 * torch.eye(2, dtype=torch.float64), None, {0: 0}
    )
    posterior, _ = exact_marginals(inputs.mrf())
    for nodes in ([0, 1, 3], [0, 1, 2, 3]):
        found = posterior.marginal(torch.tensor(nodes).unsqueeze(1))[0]
        np.testing.assert_allclose(found.numpy(), inputs.enumeration().joint(nodes), rtol=0, atol=1e-12)


def test_nodes_connected_only_through_an_observed_node_are_independent():
    inputs = MRFInputs(
        torch.zeros(3, 2, dtype=torch.float64), torch.tensor([[0, 0], [1, 2]]), 2.0 * torch.eye(2), None, {0: 0}
    )
    got = exact_marginals(inputs.mrf())[0].marginal(torch.tensor([[1], [0], [2]]))[0]
    np.testing.assert_allclose(got.numpy(), inputs.enumeration().joint([1, 0, 2]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_observed", [1, 2])
def test_remaining_loops_are_enumerated_with_evidence(num_observed):
    pairs = torch.triu_indices(6, 6, 1)
    for kind in KINDS:
        inputs = random_mrf_inputs(pairs, 6, 3, generator(num_observed), kind=kind, num_observed=num_observed)
        posterior, _ = exact_marginals(inputs.mrf())
        assert isinstance(posterior, MixturePosterior)
        assert_matches_enumeration(posterior, inputs, 1e-12)
        # Up to rounding here; the next test requires equality.
        for node, label in inputs.evidence.items():
            np.testing.assert_allclose(posterior.node[node].numpy(), np.eye(3)[label], rtol=0, atol=1e-14)


def test_observed_label_has_probability_one_in_a_mixture():
    for dtype, seed in itertools.product((torch.float32, torch.float64), range(20)):
        inputs = random_mrf_inputs(torch.triu_indices(5, 5, 1), 5, 3, generator(seed), num_observed=1, dtype=dtype)
        (node, label), *_ = inputs.evidence.items()
        assert float(exact_marginals(inputs.mrf())[0].node[node, label]) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_potentials(dtype):
    for seed in range(10):
        g = generator(seed)
        for edge_index in (cycle(5), random_forest(5, g)):
            inputs = random_mrf_inputs(edge_index, 5, 2, g, kind="per edge", dtype=dtype)
            inputs.pairwise.copy_(1e4 * torch.randint(-1, 2, inputs.pairwise.shape, generator=g))
            inputs.unary[0, 1] = -torch.inf
            # Sums of 1e4 have rounding errors of 1e-3 in float32; the enumeration sums in float64.
            atol = 2e-3 if dtype == torch.float32 else 1e-10
            assert_matches_enumeration(exact_marginals(inputs.mrf())[0], inputs, atol)


def test_leaves_are_not_enumerated():
    """The vertex cover consists of the nodes of the loop."""
    leaves = torch.stack([torch.arange(60) % 3, torch.arange(3, 63)])
    edge_index = torch.cat([cycle(3), leaves], dim=1)
    g = generator(4)
    inputs = random_mrf_inputs(edge_index, 63, 2, g, kind="per edge")
    posterior, _ = exact_marginals(inputs.mrf())
    # Summing out the leaves leaves an MRF of three nodes.
    inner = inputs.unary[:3].clone()
    for (i, j), coupling in zip(inputs.edges[3:], inputs.couplings[3:], strict=True):
        inner[i] += (coupling + inputs.unary[j]).logsumexp(-1)
    small = MRFInputs(inner, cycle(3), inputs.pairwise[:3])
    np.testing.assert_allclose(posterior.node[:3].numpy(), small.enumeration().nodes(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("num_observed", [0, 1])
def test_batch_equals_single_mrfs(kind, loops, num_observed):
    g = generator(5)
    edge_index = random_graph(5, 8, g) if loops else random_forest(5, g, keep=1.0)
    batch = random_mrf_inputs(edge_index, 5, 3, g, kind=kind, batch=(3,), num_observed=num_observed)
    posterior, _ = exact_marginals(batch.mrf())
    assert isinstance(posterior, MixturePosterior if loops else PairwisePosterior)
    assert posterior.node.shape == (3, 5, 3)
    for b in range(3):
        assert_matches_enumeration(posterior[b], batch_item(batch, b), 1e-12)
        np.testing.assert_allclose(
            posterior.node[b].numpy(), batch_item(batch, b).enumeration().nodes(), rtol=0, atol=1e-12
        )


def test_labels_that_differ_within_a_batch_do_not_cut_loops():
    g = generator(6)
    batch = random_mrf_inputs(cycle(4), 4, 2, g, kind="per edge", batch=(2,))
    batch.unary[0, 1, 0], batch.unary[1, 1, 1] = -torch.inf, -torch.inf  # observed in both, with different labels
    posterior, _ = exact_marginals(batch.mrf())
    assert isinstance(posterior, MixturePosterior)
    for b in range(2):
        assert_matches_enumeration(posterior[b], batch_item(batch, b), 1e-12)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_no_edges(num_nodes):
    unary = torch.randn(num_nodes, 3, generator=generator(7))
    posterior, _ = exact_marginals(PairwiseMRF(unary, torch.empty(2, 0, dtype=torch.long), torch.eye(3)))
    torch.testing.assert_close(posterior.node, unary.softmax(-1))


def test_impossible_labels_may_differ_within_a_batch():
    """A node cuts the graph only if it has the same single possible label in all MRFs of the batch."""
    unary = torch.randn(3, 4, 2, generator=generator(8), dtype=torch.float64)
    unary[0, 0, 0] = unary[1, 0, 1] = -torch.inf
    pairwise = torch.tensor([[1.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    both, _ = exact_marginals(PairwiseMRF(unary, cycle(4), pairwise))
    for b in range(3):
        alone, _ = exact_marginals(PairwiseMRF(unary[b], cycle(4), pairwise))
        torch.testing.assert_close(both.node[b], alone.node, rtol=0, atol=1e-12)
