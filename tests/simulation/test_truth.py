import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.inference import exact_marginals, sum_product
from edgewise.metrics import evaluate
from edgewise.simulation import synthetic
from edgewise.simulation.field import LabelField
from edgewise.simulation.gibbs import gibbs_marginals
from helpers.reference.labelings import Law

LAWS = [("mrf", "poisson"), ("mrf", "power_law"), ("mrf", "regular"), ("block_model", "poisson")]
LAWS.append(("block_model", "power_law"))


def tiny(kind, degree_law, seed, **options):
    coupling = {"mrf": np.array([[0.9, -0.4], [-0.4, 0.2]]), "block_model": np.array([[1.5, 0.2], [0.2, 0.8]])}[kind]
    options = {"coupling": coupling, "average_degree": 3, "num_features": 4, **options}
    return synthetic(6, 2, kind=kind, degree_law=degree_law, seed=seed, **options)


def mask(num_nodes, *nodes):
    known = torch.zeros(num_nodes, dtype=torch.bool)
    known[list(nodes)] = True
    return known


@pytest.mark.parametrize("known", [(), (0, 3)])
@pytest.mark.parametrize(("kind", "degree_law"), LAWS)
def test_truth_is_bayes_rule_over_all_labelings(kind, degree_law, known):
    graph = tiny(kind, degree_law, seed=3)
    posterior, report = graph.truth(mask(6, *known))
    law = Law(graph, known)
    assert report.exact and report.converged and str(report) == "exact"
    np.testing.assert_allclose(posterior.node, law.nodes(), atol=1e-9)
    np.testing.assert_allclose(posterior.joint(graph.edge_index), law.joints(graph.edge_index), atol=1e-9)


def test_truth_of_three_classes():
    graph = synthetic(5, 3, homophily=0.7, average_degree=2.0, num_features=3, seed=1)
    law = Law(graph, [4])
    np.testing.assert_allclose(graph.truth(mask(5, 4))[0].node, law.nodes(), atol=1e-9)


@pytest.mark.parametrize("known", [(), (1, 2)])
@pytest.mark.parametrize(("kind", "degree_law"), LAWS)
def test_chains_come_near_bayes_rule_as_they_say(kind, degree_law, known):
    graph = tiny(kind, degree_law, seed=5)
    law, field = Law(graph, known), graph._given(mask(6, *known))
    posterior, report = gibbs_marginals(field, graph._starts(4, 0), burn_in=50, sweeps=10000, seed=0)
    joints = posterior.joint(graph.edge_index).numpy()
    assert report.converged and not report.exact
    assert report.error < 0.005
    assert np.sqrt(((joints - law.joints(graph.edge_index)) ** 2).mean()) < 3 * report.error
    np.testing.assert_allclose(posterior.node, law.nodes(), atol=0.01)
    np.testing.assert_allclose(posterior.node[list(known)].max(1).values if known else [], 1.0)


def test_reported_error_is_that_of_many_runs():
    graph = tiny("block_model", "poisson", seed=2)
    expected = Law(graph).joints(graph.edge_index)
    said, happened = [], []
    for seed in range(20):
        posterior, report = gibbs_marginals(graph.field, graph._starts(4, seed), burn_in=20, sweeps=200, seed=seed)
        said.append(report.error)
        happened.append(np.sqrt(((posterior.joint(graph.edge_index).numpy() - expected) ** 2).mean()))
    assert 0.6 < np.mean(happened) / np.mean(said) < 1.4


def test_chains_agree_with_exact_inference_on_a_large_forest():
    graph = synthetic(400, 3, kind="mrf", coupling=1.0, average_degree=0.8, feature_noise=1.5, seed=4)
    exact, report = graph.truth()
    chains, sampled = gibbs_marginals(graph.field, graph._starts(4, 0), burn_in=200, sweeps=1000, seed=0)
    assert report.exact and sampled.converged
    gap = chains.joint(graph.edge_index) - exact.joint(graph.edge_index)
    assert float(gap.square().mean().sqrt()) < 2 * sampled.error < 0.01


def test_truth_is_the_same_on_any_number_of_threads():
    graph = synthetic(200, 3, seed=1)
    alone = graph.truth(chains=3, burn_in=5, sweeps=5)[0]
    torch.set_num_threads(3)
    assert torch.equal(alone.node, graph.truth(chains=3, burn_in=5, sweeps=5)[0].node)


def test_belief_propagation_is_near_the_truth_of_a_large_sparse_block_model():
    graph = synthetic(600, 3, homophily=0.75, seed=0)
    known = torch.arange(600) % 5 == 0
    true, _ = graph.truth(known, burn_in=200, sweeps=400)
    believed, convergence = sum_product(graph.mrf(known))
    assert convergence.converged
    gap = (true.joint(graph.edge_index) - believed.joint(graph.edge_index)).abs().sum((1, 2)) / 2
    assert float(gap.mean()) < 0.01


@pytest.mark.parametrize(
    "options", [{"homophily": 0.1}, {"homophily": 0.9}, {"kind": "mrf", "average_degree": 3, "homophily": 0.5}]
)
def test_labels_are_calibrated_under_their_true_posterior(options):
    graph = synthetic(1000, 3, feature_noise=1.2, seed=7, **options)
    known = torch.rand(1000, generator=torch.Generator().manual_seed(0)) < 0.1
    posterior, report = graph.truth(known, burn_in=100, sweeps=250)
    ev = evaluate(posterior, graph.data.y, graph.data.edge_index, mask=~known, same_label=True, n_bins=5)
    assert report.converged
    assert max(ev.edgewise.ece, ev.nodewise.ece, ev.same_label.ece) < 0.045
    joints = posterior.joint(graph.edge_index[:, ~known[graph.edge_index].any(0)])
    entropy = -torch.special.xlogy(joints, joints).sum((1, 2)).mean()
    assert ev.edgewise.nll == pytest.approx(float(entropy), rel=0.05, abs=0.03)


def test_chains_that_stay_where_they_started_are_found_out():
    clique = tiny("mrf", "regular", seed=0, average_degree=5, coupling=6.0, feature_noise=50.0)
    starts = torch.stack([torch.zeros(6), torch.ones(6)]).long()
    _, report = gibbs_marginals(clique.field, starts, burn_in=0, sweeps=200, seed=0)
    assert not report and report.r_hat > 1.5
    assert "raise sweeps" in str(report)


def test_only_too_many_labelings_are_left_to_chains(monkeypatch):
    """An error of another kind is not taken for a large graph."""
    loop = tiny("mrf", "regular", 0)
    monkeypatch.setattr("edgewise.inference.exact.MAX_NUMBERS", 1)
    assert str(loop.truth(sweeps=10, burn_in=0)[1]) != "exact"

    def broken(mrf):
        raise ValueError("not a question of size")

    monkeypatch.setattr("edgewise.simulation.synthetic_graph.exact_marginals", broken)
    with pytest.raises(ValueError, match="not a question of size"):
        loop.truth()


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (torch.ones(5, dtype=torch.bool), r"evidence of shape \(6,\), one entry per node, but got \(5,\)"),
        (torch.ones(6), "evidence to hold booleans"),
        (np.array([0, 1]), "evidence to hold booleans.*index_to_mask"),
        ([True] * 6, "tensor or a NumPy array"),
    ],
)
def test_evidence_is_a_mask(evidence, words):
    with pytest.raises(ValueError, match=words):
        tiny("mrf", "poisson", 0).truth(evidence)


@pytest.mark.parametrize("option", [{"chains": 1}, {"sweeps": 0}, {"burn_in": -1}, {"seed": -1}, {"sweeps": 1.5}])
def test_numbers_of_chains_and_sweeps_are_whole(option):
    with pytest.raises(ValueError, match="whole number"):
        synthetic(300, seed=0).truth(**option)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), kind=st.sampled_from(["mrf", "block_model"]))
def test_other_names_of_nodes_and_classes_and_turned_edges_change_nothing_else(seed, kind):
    field = tiny(kind, "poisson", seed).field
    rng = torch.Generator().manual_seed(seed)
    nodes, classes = torch.randperm(6, generator=rng), torch.randperm(2, generator=rng)
    renamed = LabelField(
        field.unary[nodes][:, classes],
        nodes.argsort()[field.edge_index].flip(0),
        field.coupling[:, classes][:, :, classes],
        field.weight[nodes],
        field.rate[classes][:, classes],
    )
    before, after = (exact_marginals(some.dense_mrf())[0] for some in (field, renamed))
    torch.testing.assert_close(after.node, before.node[nodes][:, classes])
    torch.testing.assert_close(
        after.joint(renamed.edge_index), before.joint(field.edge_index.flip(0))[:, classes][:, :, classes]
    )
