"""`Posterior.log_prob`: the probability of given labels of node sets, for every kind of posterior."""

import math
from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import edgewise as ew
from edgewise.data.node_sets import NodeSetSampler
from edgewise.inference.junction_tree import eliminate
from edgewise.posterior import belief, pairwise, set_elimination, tree_joints
from edgewise.posterior.set_elimination import elimination_scopes, log_partition
from helpers.random_fields import cycle, generator, random_graph, random_mrf_inputs, random_tree, small_mrf_inputs
from helpers.small_posteriors import KINDS, random_probs
from helpers.small_posteriors import pairwise as pairwise_posterior

SETS = {  # connected by the edges of the pairwise posteriors: a triangle 0, 1, 2 with node 3 attached to node 2
    1: torch.tensor([[0, 4]]),
    2: torch.tensor([[0, 3], [1, 2]]),
    3: torch.tensor([[0, 1, 3], [1, 2, 2], [2, 3, 1]]),
    4: torch.tensor([[3], [2], [0], [1]]),
}


def random_labels(nodes, num_classes, seed=0):
    return torch.randint(num_classes, nodes.shape, generator=generator(seed))


def entries_of_joint(posterior, nodes, labels):
    """Look up the labels in `marginal`, one set after the other."""
    joints = posterior.marginal(nodes).double()
    return torch.stack([joints[(s, *labels[:, s].tolist())] for s in range(nodes.shape[1])]).log()


@pytest.mark.parametrize("size", SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_entry_of_the_joint(kind, size):
    posterior, nodes = KINDS[kind](), SETS[size]
    for seed in range(5):
        labels = random_labels(nodes, 3, seed)
        log_prob = posterior.log_prob(nodes, labels)
        assert log_prob.shape == (nodes.shape[1],) and log_prob.dtype == torch.float64
        torch.testing.assert_close(log_prob, entries_of_joint(posterior, nodes, labels), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "posterior",
    [
        ew.IndependentPosterior(random_probs(2, 5, 3)),
        ew.MixturePosterior(random_probs(2, 4, 5, 3)),
        pairwise_posterior(batch=(2,)),
        pairwise_posterior(batch=(2,), shared=False),
    ],
    ids=["independent", "mixture", "pairwise", "pairwise per edge"],
)
def test_batch_equals_its_items(posterior):
    nodes = SETS[3]
    labels = random_labels(nodes, 3)
    log_prob = posterior.log_prob(nodes, labels)
    assert log_prob.shape == (2, 3)
    for b in range(2):
        torch.testing.assert_close(log_prob[b], posterior[b].log_prob(nodes, labels))


@settings(max_examples=40)
@given(inputs=small_mrf_inputs(loops=True), seed=st.integers(0, 2**31))
def test_exact_posteriors_equal_enumeration(inputs, seed):
    true, g = inputs.enumeration(), generator(seed)
    num_nodes, num_classes = inputs.unary.shape
    for posterior in (eliminate(inputs.mrf()), ew.exact_marginals(inputs.mrf())[0]):
        size = int(torch.randint(num_nodes, (), generator=g)) + 1
        nodes = torch.randperm(num_nodes, generator=g)[:size].unsqueeze(1)
        labels = torch.randint(num_classes, (size, 1), generator=g)
        p = true.joint(nodes[:, 0].tolist())[tuple(labels[:, 0].tolist())]
        assert math.exp(float(posterior.log_prob(nodes, labels))) == pytest.approx(p, abs=1e-9)


def test_large_connected_sets_of_a_tree_are_exact():
    """Eight nodes of seven classes: a joint would have 5.7 million entries."""
    g = generator(0)
    edges = random_tree(14, g)
    inputs = random_mrf_inputs(edges, 14, 7, g, kind="scaled per edge")
    forest, elimination = ew.exact_marginals(inputs.mrf())[0], eliminate(inputs.mrf())
    sets = NodeSetSampler(edges, torch.ones(14, dtype=torch.bool), "neighborhood").draw(8, 30, seed=0)
    labels = random_labels(sets, 7)
    torch.testing.assert_close(forest.log_prob(sets, labels), elimination.log_prob(sets, labels), rtol=0, atol=1e-8)
    assert forest.describe_sets(sets) == "exact on trees"


def test_cycles_inside_a_set_are_exact():
    """The set is the whole graph, so that no path is outside of it."""
    g = generator(1)
    inputs = random_mrf_inputs(random_graph(7, 12, g), 7, 2, g, kind="per edge", coupling_std=0.5)
    posterior, convergence = ew.sum_product(inputs.mrf())
    assert convergence
    nodes = torch.arange(7).unsqueeze(1)
    labels = random_labels(nodes, 2)
    p = inputs.enumeration().joint(range(7))[tuple(labels[:, 0].tolist())]
    assert float(posterior.log_prob(nodes, labels)) == pytest.approx(math.log(p), abs=1e-4)
    assert "0 of 1 sets have paths around" in posterior.describe_sets(nodes)


@settings(max_examples=30)
@given(size=st.integers(1, 6), num_links=st.integers(0, 15), num_classes=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_elimination_inside_sets_equals_the_sum_over_all_labels(size, num_links, num_classes, seed):
    g = generator(seed)
    links = [pair for pair in combinations(range(size), 2) if float(torch.rand((), generator=g)) < num_links / 15]
    unaries = list(torch.randn(size, 4, num_classes, generator=g, dtype=torch.float64))
    couplings = {
        pair: torch.randn(1 if k % 2 else 4, num_classes, num_classes, generator=g).double()
        for k, pair in enumerate(links)
    }
    found = log_partition(unaries, couplings, elimination_scopes(size, links))
    for s in range(4):
        scores = [
            sum(float(unary[s, label]) for unary, label in zip(unaries, labels, strict=True))
            + sum(float(t.expand(4, -1, -1)[s, labels[a], labels[b]]) for (a, b), t in couplings.items())
            for labels in product(range(num_classes), repeat=size)
        ]
        assert float(found[s]) == pytest.approx(math.log(math.fsum(map(math.exp, scores))))


def test_parts_of_a_set_that_its_edges_do_not_connect_are_independent():
    posterior, labels = pairwise_posterior(), torch.tensor([[1, 0], [2, 2], [0, 1]])
    nodes = torch.tensor([[0, 0], [1, 1], [3, 4]])  # node 3 is connected through node 2, node 4 is isolated
    expected = posterior.log_prob(nodes[:2], labels[:2]) + posterior.log_prob(nodes[2:], labels[2:])
    torch.testing.assert_close(posterior.log_prob(nodes, labels), expected)
    assert "1 of 2 sets" in posterior.describe_sets(nodes)


def test_sets_of_any_size_without_a_field():
    probs = random_probs(3, 40, 4)
    nodes = torch.randperm(40, generator=generator(0)).reshape(20, 2)
    labels = random_labels(nodes, 4)
    chosen = probs[:, nodes, labels].log().sum(1)
    for posterior, expected in (
        (ew.IndependentPosterior(probs[0]), chosen[0]),
        (ew.MixturePosterior(probs), chosen.logsumexp(0) - math.log(3)),
    ):
        torch.testing.assert_close(posterior.log_prob(nodes, labels), expected)
        with pytest.raises(ValueError, match="at most 6 nodes"):
            posterior.marginal(nodes)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_change_nothing(kind, monkeypatch):
    posterior, nodes = KINDS[kind](), SETS[3].repeat(1, 7)
    labels = random_labels(nodes, 3)
    whole = posterior.log_prob(nodes, labels)
    monkeypatch.setattr(belief, "CHUNK_ELEMENTS", 40)
    for module in (pairwise, tree_joints):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(posterior.log_prob(nodes, labels), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_sets(kind):
    empty = torch.empty(3, 0, dtype=torch.long)
    assert KINDS[kind]().log_prob(empty, empty).shape == (0,)


def test_impossible_labels_have_log_probability_minus_infinity():
    square = ew.PairwiseMRF(torch.zeros(4, 2), cycle(4), torch.eye(2), evidence={0: 1})
    nodes, labels = torch.tensor([[0, 0], [1, 1]]), torch.tensor([[0, 1], [1, 1]])
    zero = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    posteriors = [ew.sum_product(square)[0], eliminate(square), ew.IndependentPosterior(zero.flip(1))]
    for posterior in (*posteriors, ew.MixturePosterior(zero.flip(1).unsqueeze(0))):
        impossible, possible = posterior.log_prob(nodes, labels).tolist()
        assert impossible == -math.inf and math.isfinite(possible)


def test_small_probabilities_do_not_underflow():
    rare = torch.tensor([1e-30, 1.0]).expand(20, 2)
    nodes = torch.arange(20).unsqueeze(1)
    expected = 20 * math.log(float(rare[0, 0]))
    for posterior in (ew.IndependentPosterior(rare), ew.MixturePosterior(rare.expand(3, 20, 2))):
        assert float(posterior.log_prob(nodes, torch.zeros_like(nodes))) == pytest.approx(expected)


def test_gradient_of_a_pairwise_posterior():
    g = generator(3)
    unary = torch.randn(4, 2, generator=g, dtype=torch.float64, requires_grad=True)
    posterior, _ = ew.exact_marginals(ew.PairwiseMRF(unary, cycle(4)[:, :3], torch.eye(2).double()))
    nodes = torch.tensor([[0], [1], [2]])
    labels = torch.zeros_like(nodes)
    (gradient,) = torch.autograd.grad(posterior.log_prob(nodes, labels).sum(), unary, retain_graph=True)
    (expected,) = torch.autograd.grad(posterior.marginal(nodes)[0, 0, 0, 0].log(), unary)
    torch.testing.assert_close(gradient, expected)


class OwnPosterior(ew.IndependentPosterior):
    """A kind of posterior without its own log-probabilities."""

    _log_probs = ew.Posterior._log_probs


def test_other_posteriors_use_their_joints():
    probs, nodes = random_probs(8, 3), torch.tensor([[0, 4], [1, 5], [7, 2]])
    labels = random_labels(nodes, 3)
    expected = ew.IndependentPosterior(probs).log_prob(nodes, labels)
    torch.testing.assert_close(OwnPosterior(probs).log_prob(nodes, labels), expected)
    with pytest.raises(ValueError, match="smaller sets"):
        OwnPosterior(probs).log_prob(torch.arange(7)[:, None], torch.zeros(7, 1, dtype=torch.long))


def test_sets_and_labels_as_tuples():
    posterior = KINDS["mixture"]()
    expected = posterior.log_prob(torch.tensor([[0, 2], [1, 3], [4, 0]]), torch.tensor([[1, 0], [2, 1], [0, 0]]))
    assert torch.equal(posterior.log_prob([(0, 1, 4), (2, 3, 0)], [(1, 2, 0), (0, 1, 0)]), expected)


@pytest.mark.parametrize("labels", [[[0, 1]], [[0, 3], [1, 1]], [[0, -1], [1, 1]]])
def test_bad_labels_raise(labels):
    with pytest.raises(ValueError, match=r"Expected labels from 0 to 2 in the shape of nodes, \(2, 2\)"):
        KINDS["mixture"]().log_prob(torch.tensor([[0, 1], [1, 2]]), torch.tensor(labels))


def test_a_set_with_too_large_a_table_raises(monkeypatch):
    monkeypatch.setattr(set_elimination, "MAX_TABLE_ENTRIES", 26)
    posterior = pairwise_posterior()
    path = torch.tensor([[1], [2], [3]])
    posterior.log_prob(path, path * 0)
    triangle = torch.tensor([[0], [1], [2]])
    with pytest.raises(ValueError, match="0, 1, 2 need 27"):
        posterior.log_prob(triangle, triangle * 0)
