"""Synthetic graphs have the requested distribution, homophily, degrees and features."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from edgewise.simulation import synthetic
from edgewise.simulation.field import LabelDistribution
from edgewise.simulation.gibbs import gibbs_sample
from edgewise.simulation.random_graphs import block_edges

CLIQUE = {"kind": "mrf", "degree_law": "regular", "average_degree": 3, "num_features": 2}  # of 4 nodes


def clique_probabilities(coupling, num_nodes, num_classes):
    labelings = list(itertools.product(range(num_classes), repeat=num_nodes))
    pairs = list(itertools.combinations(range(num_nodes), 2))
    weight = np.array([np.exp(sum(coupling[y[i]][y[j]] for i, j in pairs)) for y in labelings])
    return dict(zip(labelings, weight / weight.sum(), strict=True))


def p_value(drawn, probabilities):
    """Return the p-value of a chi-squared test that outcomes were drawn with these probabilities."""
    count = dict.fromkeys(probabilities, 0)
    for outcome in drawn:
        count[outcome] += 1
    return chisquare(list(count.values()), len(drawn) * np.array(list(probabilities.values()))).pvalue


def test_labels_of_an_mrf_follow_its_distribution():
    coupling = np.array([[0.5, 0.2], [0.2, -0.3]])
    graphs = [synthetic(4, 2, coupling=coupling, seed=seed, **CLIQUE) for seed in range(600)]
    assert all(graph.edge_index.shape[1] == 6 for graph in graphs)
    assert p_value([tuple(graph.data.y.tolist()) for graph in graphs], clique_probabilities(coupling, 4, 2)) > 1e-3


def test_labels_drawn_by_gibbs_chain_follow_the_distribution():
    coupling = np.array([[0.5, 0.2], [0.2, -0.3]])
    distribution = LabelDistribution(
        torch.zeros(4, 2), torch.triu_indices(4, 4, 1), torch.tensor(coupling)[None], torch.zeros(4), torch.zeros(2, 2)
    )
    rng = np.random.default_rng(0)
    drawn = [tuple(gibbs_sample(distribution, 20, rng).tolist()) for _ in range(600)]
    assert p_value(drawn, clique_probabilities(coupling, 4, 2)) > 1e-3


def test_edges_of_a_block_model_follow_its_distribution():
    pairs = list(itertools.combinations(range(3), 2))
    coupling = np.array([[1.0, -0.5], [-0.5, 0.0]])
    rate = np.exp(coupling) / np.exp(coupling).mean() * 1.5 / 3
    weight = np.array([0.5, 1.0, 2.0])
    y, probabilities = np.array([0, 1, 0]), {}
    for present in itertools.product((False, True), repeat=3):
        absent = [np.exp(-weight[i] * weight[j] * rate[y[i], y[j]]) for i, j in pairs]
        factors = [1 - p if is_edge else p for p, is_edge in zip(absent, present, strict=True)]
        probabilities[present] = np.prod(factors)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(3000):
        edges = set(map(tuple, block_edges(y, weight, rate, rng).T.tolist()))
        drawn.append(tuple(pair in edges for pair in pairs))
    assert p_value(drawn, probabilities) > 1e-3


@pytest.mark.parametrize("degree_law", ["poisson", "power_law"])
@pytest.mark.parametrize("homophily", [0.05, 1 / 3, 0.6, 0.95])
def test_block_models_have_the_requested_homophily_and_degree(homophily, degree_law):
    graphs = [synthetic(4000, 3, homophily=homophily, degree_law=degree_law, seed=seed) for seed in range(2)]
    assert np.mean([graph.homophily for graph in graphs]) == pytest.approx(homophily, abs=0.015)
    assert np.mean([2 * graph.edge_index.shape[1] / 4000 for graph in graphs]) == pytest.approx(4.0, rel=0.06)
    assert float((graphs[0].class_shares - 1 / 3).abs().max()) < 0.03


@pytest.mark.parametrize(
    ("options", "homophily"),
    [
        ({"degree_law": "regular", "average_degree": 3}, 0.6),
        ({"degree_law": "regular", "average_degree": 4}, 0.1),
        ({"degree_law": "poisson", "average_degree": 2.0}, 0.55),
        ({"degree_law": "power_law", "average_degree": 2.0}, 0.4),
    ],
)
def test_mrfs_have_the_requested_homophily(options, homophily):
    graphs = [synthetic(800, 3, kind="mrf", homophily=homophily, seed=seed, **options) for seed in range(2)]
    assert np.mean([graph.homophily for graph in graphs]) == pytest.approx(homophily, abs=0.03)
    assert max(float(graph.class_shares.max()) for graph in graphs) < 0.55


def test_degree_distributions():
    for num_nodes, degree in ((500, 5), (7, 4), (8, 5), (5, 4)):
        regular = synthetic(num_nodes, kind="mrf", degree_law="regular", average_degree=degree, coupling=0.1)
        assert torch.bincount(regular.data.edge_index[0]).unique().tolist() == [degree]
    poisson, power_law = (
        torch.bincount(synthetic(20000, degree_law=law, seed=1).data.edge_index[0]).double()
        for law in ("poisson", "power_law")
    )
    assert float(poisson.var()) == pytest.approx(4.0, rel=0.1)
    assert float(power_law.var()) > 20.0 and float(power_law.max()) > 5 * float(poisson.max())


@pytest.mark.parametrize("options", [{}, {"kind": "mrf", "homophily": 0.4}, {"degree_law": "power_law"}])
def test_data_is_a_simple_graph_in_both_directions(options):
    data = synthetic(300, seed=2, **options).data
    edges = list(map(tuple, data.edge_index.T.tolist()))
    assert len(set(edges)) == len(edges)
    assert {(j, i) for i, j in edges} == set(edges)
    assert all(i != j for i, j in edges)
    assert (data.num_nodes, data.num_features, data.y.dtype) == (300, 16, torch.int64)


def test_features_are_normal_around_orthonormal_means():
    graph = synthetic(6000, 4, num_features=8, feature_noise=0.7, seed=0)
    torch.testing.assert_close(graph.feature_means @ graph.feature_means.T, torch.eye(4, dtype=torch.float64))
    noise = graph.data.x.double() - graph.feature_means[graph.data.y]
    assert float(noise.std()) == pytest.approx(0.7, rel=0.02)
    assert float(noise.mean(0).abs().max()) < 0.04


def test_graph_is_determined_by_the_seed():
    first, again, other = (synthetic(200, seed=seed).data for seed in (1, 1, 2))
    for name in ("x", "edge_index", "y"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


def test_feature_noise_does_not_change_labels_or_edges():
    clear, noisy = (synthetic(200, feature_noise=noise).data for noise in (0.1, 2.0))
    assert torch.equal(clear.y, noisy.y) and torch.equal(clear.edge_index, noisy.edge_index)


def test_homophily_and_the_equivalent_coupling_give_the_same_graph():
    by_homophily = synthetic(100, 4, homophily=0.7)
    by_coupling = synthetic(100, 4, coupling=float(np.log(0.7 * 3 / 0.3)))
    assert torch.equal(by_homophily.data.edge_index, by_coupling.data.edge_index)


def test_unreachable_homophily_raises_and_the_equivalent_coupling_does_not():
    with pytest.raises(ValueError, match="one label takes over"):
        synthetic(500, kind="mrf", homophily=0.8)
    ordered = synthetic(500, kind="mrf", coupling=float(np.log(8.0)))
    assert float(ordered.class_shares.max()) > 0.9
    with pytest.raises(ValueError, match="labels freeze"):
        synthetic(500, 2, kind="mrf", homophily=0.05)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"num_nodes": 1}, "num_nodes"),
        ({"num_classes": 1}, "num_classes"),
        ({"num_features": 2}, "num_features"),
        ({"kind": "sbm"}, "block_model, mrf"),
        ({"degree_law": "zipf"}, "poisson, power_law, regular"),
        ({"degree_law": "regular"}, "kind='mrf'"),
        ({"degree_law": "regular", "kind": "mrf", "average_degree": 2.5}, "integer average_degree"),
        ({"degree_law": "regular", "kind": "mrf", "average_degree": 3, "num_nodes": 7}, "even product"),
        ({"homophily": 0.0}, "above 0 and below 1"),
        ({"homophily": 1.0}, "above 0 and below 1"),
        ({"homophily": float("nan")}, "above 0 and below 1"),
        ({"homophily": "0.5"}, "homophily.*but got '0.5'"),
        ({"homophily": 0.5, "coupling": 1.0}, "either homophily or coupling"),
        ({"coupling": np.eye(2)}, "symmetric matrix"),
        ({"coupling": np.triu(np.ones((3, 3)))}, "not symmetric"),
        ({"coupling": float("inf")}, "-50.0 to 50.0"),
        ({"average_degree": 0.0}, "average_degree.*but got 0.0"),
        ({"average_degree": True}, "average_degree.*but got True"),
        ({"average_degree": 1000}, "at most 999"),
        ({"feature_noise": -1.0}, "feature_noise"),
        ({"seed": -1}, "seed"),
    ],
)
def test_invalid_options_raise(options, fact):
    with pytest.raises(ValueError, match=fact):
        synthetic(**options)
