"""Labelings drawn from pairwise posteriors: frequencies against enumeration, evidence, diagnostics, seeds."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.inference import exact_marginals, field_samples, junction_tree, max_product, sum_product, tree_reweighted
from edgewise.inference.elimination_order import NoExactInference
from edgewise.inference.messages import field_of
from helpers.random_fields import (
    KINDS,
    batch_item,
    cycle,
    extreme_mrf,
    generator,
    random_forest,
    random_graph,
    random_mrf_inputs,
    random_tree,
    small_mrf_inputs,
)

SOLVERS = {"sum-product": sum_product, "max-product": max_product, "tree-reweighted": tree_reweighted}


def assert_frequencies(labels, probability, effective_size=None):
    """Assert that each labeling is drawn as often as its probability, within five standard errors."""
    size = len(labels) if effective_size is None else effective_size
    counts = Counter(map(tuple, labels.tolist()))
    assert set(counts) <= {labeling for labeling, p in probability.items() if p > 0}
    for labeling, p in probability.items():
        standard_error = np.sqrt(max(p * (1 - p), 1 / size) / size)
        assert abs(counts[labeling] / len(labels) - p) < 5 * standard_error, labeling


@pytest.fixture
def only_gibbs(monkeypatch):
    """Make exact inference infeasible."""

    def refuse(mrf):
        raise NoExactInference("Too wide.", "a small width", "")

    monkeypatch.setattr(field_samples, "feasible_order", refuse)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_draws_from_a_field_with_loops_have_its_probabilities(solver, kind):
    inputs = random_mrf_inputs(random_graph(5, 7, generator(1)), 5, 3, generator(2), kind=kind, num_observed=1)
    inputs.unary[next(node for node in range(5) if node not in inputs.evidence), 1] = -torch.inf
    labels, sampling = SOLVERS[solver](inputs.mrf(), max_sweeps=30)[0].sample(20_000, seed=3)
    assert sampling == ew.posterior.Sampling("elimination", is_exact=True, keeps_marginals=False)
    assert labels.dtype == torch.long
    assert_frequencies(labels, inputs.enumeration().probability)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["exact", *SOLVERS])
def test_draws_on_a_forest_have_the_probabilities_of_the_field(solver, kind):
    edges = torch.cat([random_forest(5, generator(3), keep=0.9), torch.tensor([[5, 5], [0, 3]])], dim=1)
    inputs = random_mrf_inputs(edges, 6, 3, generator(4), kind=kind)
    inputs = inputs._replace(evidence={5: 2})  # an observed node closes a loop, which does not count
    inputs.unary[0, 1] = -torch.inf
    solve = exact_marginals if solver == "exact" else SOLVERS[solver]
    labels, sampling = solve(inputs.mrf())[0].sample(20_000, seed=5)
    assert (sampling.method, sampling.is_exact) == ("forest", True)
    assert_frequencies(labels, inputs.enumeration().probability)


@pytest.mark.parametrize(("limit", "method"), [(1 << 18, "mixture"), (0, "elimination")])
def test_draws_of_exact_marginals_have_the_probabilities_of_the_field(limit, method, monkeypatch):
    monkeypatch.setattr("edgewise.inference.exact.MIN_ELIMINATION_ELEMENTS", limit)
    inputs = random_mrf_inputs(random_graph(5, 7, generator(6)), 5, 3, generator(7), kind="scaled", num_observed=1)
    labels, sampling = exact_marginals(inputs.mrf())[0].sample(20_000, seed=1)
    assert (sampling.method, sampling.is_exact) == (method, True)
    assert_frequencies(labels, inputs.enumeration().probability)


@pytest.mark.parametrize("kind", KINDS)
def test_gibbs_chains_have_the_probabilities_of_the_field(only_gibbs, kind):
    inputs = random_mrf_inputs(random_graph(5, 9, generator(8)), 5, 3, generator(9), kind=kind, num_observed=1)
    inputs.unary[next(node for node in range(5) if node not in inputs.evidence), 1] = -torch.inf
    labels, sampling = sum_product(inputs.mrf(), max_sweeps=3)[0].sample(20_000, seed=1)
    assert (sampling.method, sampling.is_exact, sampling.advice) == ("gibbs", False, "")
    assert 1 <= sampling.r_hat < 1.05 and 2_000 < sampling.effective_size <= 20_000
    assert_frequencies(labels, inputs.enumeration().probability, sampling.effective_size)


def complete_graph(num_nodes, coupling):
    """Return a field of two labels whose width is too large for exact inference."""
    return ew.PairwiseMRF(
        torch.zeros(num_nodes, 2), torch.triu_indices(num_nodes, num_nodes, 1), coupling * torch.eye(2)
    )


@pytest.mark.parametrize("n", [1, 10, 900])
def test_diagnostics_of_gibbs_chains_flag_a_field_with_two_modes(n):
    labels, sampling = sum_product(complete_graph(40, 0.5))[0].sample(n)
    assert labels.shape == (n, 40) and sampling.method == "gibbs"
    assert sampling.r_hat > 2 and "R-hat" in sampling.advice and "40 of 40 nodes" in sampling.advice


@pytest.mark.parametrize("n", [1, 10, 900])
def test_diagnostics_of_gibbs_chains_accept_a_field_with_weak_couplings(n):
    labels, sampling = sum_product(complete_graph(40, 0.01))[0].sample(n)
    assert sampling.r_hat < field_samples.MAX_R_HAT and sampling.advice == ""
    assert n / 2 < sampling.effective_size <= n
    assert n < 900 or labels.double().mean() == pytest.approx(0.5, abs=0.02)


def test_effective_size_of_known_chains():
    """Independent states are worth their number; states that all chains repeat k times are worth a k-th of it."""
    g = generator(0)
    for repeats in (1, 5):
        states = torch.randint(2, (16, 500, 200), generator=g).repeat_interleave(repeats, dim=1)
        counts = torch.stack([(states == label).sum(1) for label in (0, 1)], dim=-1)
        diagnostics = field_samples._diagnose(counts, 500 * repeats)
        assert diagnostics.effective_size == pytest.approx(16 * 500, rel=0.1)
    fixed = torch.tensor([[[50, 0]]] * 8 + [[[0, 50]]] * 8)
    assert float(field_samples._diagnose(fixed, 50).r_hat) == np.inf
    assert field_samples._diagnose(fixed[:8], 50) == (torch.tensor([1.0]), 400)


@given(inputs=small_mrf_inputs(loops=True), solver=st.sampled_from(sorted(SOLVERS)), sweeps=st.sampled_from([1, 20]))
def test_field_of_a_posterior_is_the_original_one(inputs, solver, sweeps):
    mrf = inputs.mrf()
    field = field_of(SOLVERS[solver](mrf, max_sweeps=sweeps)[0])
    possible = mrf.unary > -torch.inf
    assert torch.equal(field.unary > -torch.inf, possible)
    torch.testing.assert_close(field.unary[possible], mrf.unary[possible], rtol=0, atol=1e-10)
    shape = (mrf.num_edges, mrf.num_classes, mrf.num_classes)
    edges = slice(None)
    torch.testing.assert_close(field.coupling(edges).expand(shape), mrf.coupling(edges).expand(shape))


def test_field_of_one_posterior_of_a_batch_and_of_a_saved_one(tmp_path):
    inputs = random_mrf_inputs(cycle(5), 5, 3, generator(1), kind="scaled per edge", batch=(2,), dtype=torch.float32)
    batch, _ = tree_reweighted(inputs.mrf())
    original = batch_item(inputs, 1).mrf()
    batch[1].save(tmp_path / "x.safetensors")
    for posterior in (batch[1], ew.Posterior.load(tmp_path / "x.safetensors"), batch[1].to("cpu"), batch[1].detach()):
        field = field_of(posterior)
        torch.testing.assert_close(field.unary.float(), original.unary, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(field.coupling(slice(None)).float(), original.coupling(slice(None)))
        assert torch.equal(posterior.sample(50, seed=1).labels, batch[1].sample(50, seed=1).labels)


def chain_rule(node, edges, joints):
    """Return Π q_ij / Π p_i^(d_i - 1) of all labelings, from which marginals of a forest are computed at sight."""
    degree = torch.bincount(edges.flatten(), minlength=len(node)).tolist()
    probability = {}
    for labeling in np.ndindex(*[node.shape[1]] * len(node)):
        p = 1.0
        for joint, (i, j) in zip(joints, edges.T.tolist(), strict=True):
            p *= float(joint[labeling[i], labeling[j]])
        for i, label in enumerate(labeling):
            p = p / float(node[i, label]) ** (degree[i] - 1) if p else 0.0
        probability[labeling] = p
    return probability


def mixture_joints(edges, num_nodes=5, impossible=True):
    """Return node marginals and edge joints of a random mixture. Some pairs of labels are impossible."""
    samples = (2 * torch.randn(6, num_nodes, 3, generator=generator(5), dtype=torch.float64)).softmax(-1)
    if impossible:
        samples[:3, :, 0], samples[3:, :, 2] = 0.0, 0.0
    mixture = ew.MixturePosterior(samples / samples.sum(-1, keepdim=True))
    return mixture.node, edges, mixture.joint(edges)


def test_draws_from_joints_on_a_forest_follow_the_chain_rule():
    parts = mixture_joints(random_tree(5, generator(1)))
    labels, sampling = ew.PairwisePosterior.from_joints(*parts).sample(20_000, seed=2)
    assert (sampling.method, sampling.is_exact, sampling.advice) == ("forest", True, "")
    assert_frequencies(labels, chain_rule(*parts))


def test_draws_from_joints_with_loops_keep_node_marginals_and_the_joints_of_a_forest():
    node, edges, joints = mixture_joints(random_graph(5, 8, generator(2)))
    posterior = ew.PairwisePosterior.from_joints(node, edges, joints)
    number = 40_000
    labels, sampling = posterior.sample(number, seed=3)
    assert (sampling.method, sampling.is_exact) == ("spanning forest", False)
    assert "4 of 8 edges" in sampling.advice
    error = 5 * (node * (1 - node) / number).sqrt()
    frequency = torch.nn.functional.one_hot(labels, 3).double().mean(0)
    assert ((frequency - node).abs() <= error).all()
    drawn = torch.zeros(8, 9, dtype=torch.float64)
    for e, (i, j) in enumerate(edges.T.tolist()):
        drawn[e] = torch.bincount(3 * labels[:, i] + labels[:, j], minlength=9) / number
    flat = joints.flatten(1)
    kept = ((drawn - flat).abs() <= 5 * (flat * (1 - flat) / number).sqrt()).all(1)
    assert int(kept.sum()) == 4
    # The forest has the largest total mutual information of all spanning trees.
    p, q = joints.sum(2, keepdim=True), joints.sum(1, keepdim=True)
    information = (torch.xlogy(joints, joints) - torch.xlogy(joints, p * q)).sum((1, 2))
    trees = [tree for tree in torch.combinations(torch.arange(8), 4) if is_tree(edges[:, tree])]
    assert float(information[kept].sum()) == pytest.approx(max(float(information[tree].sum()) for tree in trees))


def is_tree(edges):
    reached = {0}
    for _ in range(5):
        reached |= {int(j) for i, j in [*edges.T, *edges.flip(0).T] if int(i) in reached}
    return len(reached) == 5


def test_edges_of_certain_nodes_are_no_loops():
    node = torch.tensor([[0.0, 1.0], [0.3, 0.7], [0.6, 0.4]])
    edges = cycle(3)
    last = node[2][:, None] * node[0]
    joint = torch.tensor([[0.25, 0.05], [0.35, 0.35]])
    posterior = ew.PairwisePosterior.from_joints(node, edges, torch.stack([node[0][:, None] * node[1], joint, last]))
    labels, sampling = posterior.sample(5_000)
    assert (sampling.method, sampling.is_exact) == ("forest", True)
    assert (labels[:, 0] == 1).all()
    assert (labels[:, 1:] == 0).all(1).double().mean() == pytest.approx(0.25, abs=5 * 0.006)


def test_rounded_joints_that_exclude_all_labels_of_a_child_are_drawn_by_its_marginal():
    node = torch.tensor([[0.9995, 0.0005], [0.5, 0.5]], dtype=torch.float64)
    joint = torch.tensor([[[0.5, 0.5], [0.0, 0.0]]], dtype=torch.float64)
    labels, _ = ew.PairwisePosterior.from_joints(node, torch.tensor([[0], [1]]), joint).sample(50_000)
    assert labels[:, 0].any() and set(labels[labels[:, 0] == 1, 1].tolist()) == {0, 1}


def disjoint_union(batch):
    """Return the MRFs of a batch as one MRF whose components are independent."""
    num_fields, num_nodes, num_classes = batch.unary.shape
    shift = num_nodes * torch.arange(num_fields)[:, None]
    couplings = batch.coupling(slice(None)).expand(num_fields, batch.num_edges, num_classes, num_classes)
    edges = torch.stack([(end + shift).flatten() for end in batch.edge_index])
    return ew.PairwiseMRF(batch.unary.flatten(0, 1), edges, couplings.flatten(0, 1))


@pytest.mark.parametrize("gibbs", [False, True])
def test_extreme_fields_have_possible_labels(gibbs, monkeypatch, request):
    """3,000 fields with potentials of all magnitudes: evidence is respected and no impossible label is drawn."""
    if gibbs:
        request.getfixturevalue("only_gibbs")
        for name, number in (("BURN_IN_SWEEPS", 5), ("MIN_STATES", 4)):
            monkeypatch.setattr(field_samples, name, number)
    for seed in range(30):
        batch, evidence = extreme_mrf(seed)
        mrf = disjoint_union(batch)
        labels, _ = (sum_product, max_product)[seed % 2](mrf, max_sweeps=1 + seed % 3)[0].sample(3, seed=seed)
        assert (mrf.unary.gather(1, labels.T) > -torch.inf).all()
        for node, label in evidence.items():
            assert (labels[:, node :: batch.num_nodes] == label).all()


def test_extreme_potentials_determine_the_labels():
    """Couplings and unaries of 1e4 leave one labeling, on a forest, by elimination and by Gibbs chains."""
    unary = torch.zeros(4, 3)
    unary[0, 1] = 1e4
    for edges in (torch.tensor([[0, 1, 2], [1, 2, 3]]), cycle(4)):
        posterior, _ = sum_product(ew.PairwiseMRF(unary, edges, 1e4 * torch.eye(3)))
        assert (posterior.sample(100).labels == 1).all()


def posteriors():
    g = generator(0)
    loops = random_mrf_inputs(random_graph(6, 9, g), 6, 3, g).mrf()
    yield "elimination", sum_product(loops)[0]
    yield "forest", sum_product(random_mrf_inputs(random_tree(6, g), 6, 3, g).mrf())[0]
    yield "spanning forest", ew.PairwisePosterior.from_joints(*mixture_joints(random_graph(5, 8, g)))
    yield "gibbs", sum_product(complete_graph(40, 0.01))[0]
    yield "mixture", exact_marginals(loops)[0]
    yield "elimination", junction_tree.eliminate(loops)


@pytest.mark.parametrize("case", range(6))
def test_seed_determines_the_labels(case, tmp_path):
    method, posterior = list(posteriors())[case]
    labels, sampling = posterior.sample(20, seed=4)
    assert sampling.method == method and labels.shape == (20, posterior.num_nodes)
    threads = torch.get_num_threads()
    posterior.save(tmp_path / "x.safetensors")
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            again, same = ew.Posterior.load(tmp_path / "x.safetensors").sample(20, seed=4)
            assert torch.equal(again, labels) and same == sampling
    finally:
        torch.set_num_threads(threads)
    assert not torch.equal(posterior.sample(20, seed=5).labels, labels)


@pytest.mark.parametrize("case", [0, 1, 2, 5])
def test_chunks_of_labels_change_nothing(case, monkeypatch):
    posterior = list(posteriors())[case][1]
    labels = posterior.sample(20, seed=1).labels
    monkeypatch.setattr(field_samples, "CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(junction_tree, "CHUNK_ELEMENTS", 1)
    assert torch.equal(posterior.sample(20, seed=1).labels, labels)


def test_potentials_with_gradients_can_be_sampled():
    unary = torch.zeros(3, 2, requires_grad=True)
    posterior, _ = sum_product(ew.PairwiseMRF(unary, cycle(3), torch.eye(2)))
    labels, _ = posterior.sample(5)
    assert labels.shape == (5, 3) and not labels.requires_grad


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_fields_without_edges_or_nodes(num_nodes):
    mrf = ew.PairwiseMRF(torch.zeros(num_nodes, 2), torch.empty(2, 0, dtype=torch.long), torch.eye(2))
    labels, sampling = sum_product(mrf)[0].sample(4)
    assert labels.shape == (4, num_nodes) and sampling.method == "forest"


def test_long_path_is_drawn_on_a_forest():
    """A labeling of a path of 20,000 nodes, with strong couplings, has few changes of the label."""
    nodes = torch.arange(20_000)
    mrf = ew.PairwiseMRF(torch.zeros(20_000, 2), torch.stack([nodes[:-1], nodes[1:]]), 5 * torch.eye(2))
    labels, sampling = exact_marginals(mrf)[0].sample(10)
    changes = (labels[:, 1:] != labels[:, :-1]).double().mean()
    assert sampling.method == "forest"
    assert float(changes) == pytest.approx(1 / (1 + np.exp(5)), abs=5 * np.sqrt(0.0067 / 2e5))
