"""True posteriors of synthetic graphs against Bayes' rule over all labelings, and Gibbs chain diagnostics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.inference import exact_marginals, sum_product
from edgewise.metrics import evaluate
from edgewise.simulation import synthetic
from edgewise.simulation.field import LabelDistribution
from edgewise.simulation.gibbs import gibbs_marginals
from helpers.reference.labelings import LabelPosterior

KINDS = [
    ("mrf", "poisson"),
    ("mrf", "power_law"),
    ("mrf", "regular"),
    ("block_model", "poisson"),
    ("block_model", "power_law"),
]


def tiny_graph(kind, degree_law, seed, **options):
    coupling = {"mrf": np.array([[0.9, -0.4], [-0.4, 0.2]]), "block_model": np.array([[1.5, 0.2], [0.2, 0.8]])}[kind]
    options = {"coupling": coupling, "average_degree": 3, "num_features": 4, **options}
    return synthetic(6, 2, kind=kind, degree_law=degree_law, seed=seed, **options)


def make_mask(num_nodes, *nodes):
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[list(nodes)] = True
    return mask


@pytest.mark.parametrize("observed", [(), (0, 3)])
@pytest.mark.parametrize(("kind", "degree_law"), KINDS)
def test_truth_equals_bayes_rule_over_all_labelings(kind, degree_law, observed):
    graph = tiny_graph(kind, degree_law, seed=3)
    posterior, report = graph.truth(make_mask(6, *observed))
    reference = LabelPosterior(graph, observed)
    assert report.exact and report.converged and str(report) == "exact"
    np.testing.assert_allclose(posterior.node, reference.nodes(), atol=1e-9)
    np.testing.assert_allclose(posterior.joint(graph.edge_index), reference.joints(graph.edge_index), atol=1e-9)


def test_truth_of_three_classes_equals_bayes_rule():
    graph = synthetic(5, 3, homophily=0.7, average_degree=2.0, num_features=3, seed=1)
    reference = LabelPosterior(graph, [4])
    np.testing.assert_allclose(graph.truth(make_mask(5, 4))[0].node, reference.nodes(), atol=1e-9)


@pytest.mark.parametrize("observed", [(), (1, 2)])
@pytest.mark.parametrize(("kind", "degree_law"), KINDS)
def test_gibbs_chains_are_within_their_reported_error_of_bayes_rule(kind, degree_law, observed):
    graph = tiny_graph(kind, degree_law, seed=5)
    reference, distribution = LabelPosterior(graph, observed), graph._condition(make_mask(6, *observed))
    posterior, report = gibbs_marginals(distribution, graph._starts(4, 0), burn_in=50, sweeps=10000, seed=0)
    joints = posterior.joint(graph.edge_index).numpy()
    assert report.converged and not report.exact
    assert report.error < 0.005
    assert np.sqrt(((joints - reference.joints(graph.edge_index)) ** 2).mean()) < 3 * report.error
    np.testing.assert_allclose(posterior.node, reference.nodes(), atol=0.01)
    np.testing.assert_allclose(posterior.node[list(observed)].max(1).values if observed else [], 1.0)


def test_reported_error_equals_the_error_over_many_runs():
    graph = tiny_graph("block_model", "poisson", seed=2)
    expected = LabelPosterior(graph).joints(graph.edge_index)
    reported, actual = [], []
    for seed in range(20):
        posterior, report = gibbs_marginals(graph.field, graph._starts(4, seed), burn_in=20, sweeps=200, seed=seed)
        reported.append(report.error)
        actual.append(np.sqrt(((posterior.joint(graph.edge_index).numpy() - expected) ** 2).mean()))
    assert 0.6 < np.mean(actual) / np.mean(reported) < 1.4


def test_gibbs_chains_are_close_to_exact_inference_on_a_large_forest():
    graph = synthetic(400, 3, kind="mrf", coupling=1.0, average_degree=0.8, feature_noise=1.5, seed=4)
    exact, report = graph.truth()
    chains, sampled = gibbs_marginals(graph.field, graph._starts(4, 0), burn_in=200, sweeps=1000, seed=0)
    assert report.exact and sampled.converged
    error = chains.joint(graph.edge_index) - exact.joint(graph.edge_index)
    assert float(error.square().mean().sqrt()) < 2 * sampled.error < 0.01


def test_truth_does_not_depend_on_the_number_of_threads():
    graph = synthetic(200, 3, seed=1)
    expected = graph.truth(chains=3, burn_in=5, sweeps=5)[0]
    torch.set_num_threads(3)
    assert torch.equal(expected.node, graph.truth(chains=3, burn_in=5, sweeps=5)[0].node)


def test_sum_product_is_close_to_the_truth_on_a_large_sparse_block_model():
    graph = synthetic(600, 3, homophily=0.75, seed=0)
    observed = torch.arange(600) % 5 == 0
    true, _ = graph.truth(observed, burn_in=200, sweeps=400)
    estimate, convergence = sum_product(graph.mrf(observed))
    assert convergence.converged
    distance = (true.joint(graph.edge_index) - estimate.joint(graph.edge_index)).abs().sum((1, 2)) / 2
    assert float(distance.mean()) < 0.01


@pytest.mark.parametrize(
    "options", [{"homophily": 0.1}, {"homophily": 0.9}, {"kind": "mrf", "average_degree": 3, "homophily": 0.5}]
)
def test_labels_are_calibrated_under_their_true_posterior(options):
    graph = synthetic(1000, 3, feature_noise=1.2, seed=7, **options)
    observed = torch.rand(1000, generator=torch.Generator().manual_seed(0)) < 0.1
    posterior, report = graph.truth(observed, burn_in=100, sweeps=250)
    ev = evaluate(posterior, graph.data.y, graph.data.edge_index, mask=~observed, n_bins=5)
    assert report.converged
    assert max(ev.edgewise.ece, ev.nodewise.ece, ev.same_label.ece) < 0.045
    joints = posterior.joint(graph.edge_index[:, ~observed[graph.edge_index].any(0)])
    entropy = -torch.special.xlogy(joints, joints).sum((1, 2)).mean()
    assert ev.edgewise.nll == pytest.approx(float(entropy), rel=0.05, abs=0.03)


def test_chains_that_do_not_mix_are_reported():
    clique = tiny_graph("mrf", "regular", seed=0, average_degree=5, coupling=6.0, feature_noise=50.0)
    starts = torch.stack([torch.zeros(6), torch.ones(6)]).long()
    _, report = gibbs_marginals(clique.field, starts, burn_in=0, sweeps=200, seed=0)
    assert not report and report.r_hat > 1.5
    assert "raise sweeps" in str(report)


def test_gibbs_chains_replace_exact_inference_only_if_there_are_too_many_labelings(monkeypatch):
    """Other errors of exact inference are raised."""
    loop = tiny_graph("mrf", "regular", 0)
    monkeypatch.setattr("edgewise.inference.exact.MIN_ELIMINATION_ELEMENTS", 1)
    monkeypatch.setattr("edgewise.inference.elimination_order.MAX_MESSAGE_BYTES", 1)
    assert str(loop.truth(sweeps=10, burn_in=0)[1]) != "exact"

    def broken(mrf):
        raise ValueError("another error")

    monkeypatch.setattr("edgewise.simulation.synthetic_graph.exact_marginals", broken)
    with pytest.raises(ValueError, match="another error"):
        loop.truth()


@pytest.mark.parametrize(
    ("evidence", "fact"),
    [
        (torch.ones(5, dtype=torch.bool), r"\(6,\).*but got \(5,\)"),
        (torch.full((6,), 0.5), "boolean"),
        (np.array([0, 1]), "np.isin"),
        ({0, 1}, "array"),
    ],
)
def test_evidence_that_is_not_a_mask_raises(evidence, fact):
    with pytest.raises(ValueError, match=fact):
        tiny_graph("mrf", "poisson", 0).truth(evidence)


@pytest.mark.parametrize("option", [{"chains": 1}, {"sweeps": 0}, {"burn_in": -1}, {"seed": -1}, {"sweeps": 1.5}])
def test_invalid_numbers_of_chains_and_sweeps_raise(option):
    (name,) = option
    with pytest.raises(ValueError, match=name):
        synthetic(300, seed=0).truth(**option)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), kind=st.sampled_from(["mrf", "block_model"]))
def test_permuting_nodes_and_classes_and_reversing_edges_permutes_marginals(seed, kind):
    distribution = tiny_graph(kind, "poisson", seed).field
    rng = torch.Generator().manual_seed(seed)
    nodes, classes = torch.randperm(6, generator=rng), torch.randperm(2, generator=rng)
    permuted = LabelDistribution(
        distribution.unary[nodes][:, classes],
        nodes.argsort()[distribution.edge_index].flip(0),
        distribution.coupling[:, classes][:, :, classes],
        distribution.weight[nodes],
        distribution.rate[classes][:, classes],
    )
    before, after = (exact_marginals(p.exact_mrf())[0] for p in (distribution, permuted))
    torch.testing.assert_close(after.node, before.node[nodes][:, classes])
    torch.testing.assert_close(
        after.joint(permuted.edge_index), before.joint(distribution.edge_index.flip(0))[:, classes][:, :, classes]
    )
