"""StructuredCalibrator: marginals, coupling, log odds ratio, and edge scores."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch_geometric.utils import to_undirected

from edgewise import (
    BayesianScaling,
    IsotonicCalibration,
    LocalScaling,
    StructuredCalibrator,
    TemperatureScaling,
    VectorScaling,
)
from edgewise.data.splits import make_splits
from edgewise.inference.coupled_marginals import pointwise_mutual_information
from edgewise.metrics import evaluate
from edgewise.posterior import IndependentPosterior, PairwisePosterior, Posterior
from edgewise.simulation import synthetic

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

NODES = [BayesianScaling(), LocalScaling(), TemperatureScaling(), VectorScaling(), IsotonicCalibration()]


def edges_of(case):
    edges = case.data.edge_index
    return edges[:, edges[0] < edges[1]]


def degree_factors(case):
    """((1 + d_i) (1 + d_j))^-0.2 of each edge, divided by its mean."""
    neighbors = case.data.edge_index[0].bincount(minlength=len(case.data.y)).double()
    factor = (1 + neighbors[edges_of(case)]).prod(0) ** -0.2
    return factor / factor.mean()


@pytest.mark.parametrize("nodes", NODES, ids=lambda nodes: type(nodes).__name__)
def test_marginals_are_those_of_the_node_calibrator(case, nodes):
    calibrated = StructuredCalibrator(nodes).fit(case.logits, case.data, case.split)
    found, parameters = calibrated.posterior(), calibrated.parameters
    alone = nodes.fit(case.logits, case.data, case.split)
    assert isinstance(found, PairwisePosterior)
    assert torch.equal(found.node, alone.posterior().node)
    for name, value in alone.parameters.items():
        torch.testing.assert_close(parameters[name], value, atol=0.0, rtol=0.0)
    edges = edges_of(case)
    joints = found.joint(edges)
    torch.testing.assert_close(joints.sum(2), found.node[edges[0]], atol=1e-12, rtol=0.0)
    torch.testing.assert_close(joints.sum(1), found.node[edges[1]], atol=1e-12, rtol=0.0)
    torch.testing.assert_close(found.joint(edges.flip(0)), joints.transpose(1, 2))
    ratio = joints[:, 0, 0] * joints[:, 1, 1] / (joints[:, 0, 1] * joints[:, 1, 0])
    torch.testing.assert_close(ratio.log() / 2, parameters["coupling"] * degree_factors(case))
    assert abs(parameters["coupling"]) > 0.1


def test_posterior_is_saved_and_loaded(case, tmp_path):
    found = StructuredCalibrator().fit(case.logits, case.data, case.split).posterior()
    found.save(tmp_path / "found.safetensors")
    again = Posterior.load(tmp_path / "found.safetensors")
    assert torch.equal(again.node, found.node)
    assert torch.equal(again.joint(edges_of(case)), found.joint(edges_of(case)))


def test_log_odds_ratio_by_hand():
    """Nodes 0 to 4 have labels 0 0 1 1 0. Node 5 is neither a training nor a validation node."""
    nodes = torch.arange(6)
    y = torch.tensor([0, 0, 1, 1, 0, 0])
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 4]])  # same label on 0-1, 2-3, 0-4, not on 1-2, 3-4
    split = SimpleNamespace(train=nodes < 3, val=(nodes == 3) | (nodes == 4))
    data = SimpleNamespace(y=y, edge_index=edges)
    logits = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = StructuredCalibrator().fit(logits, data, split).parameters
    # The label is the same on 3 of 5 labeled edges, and in 3 + 1 of 10 pairs of labeled nodes.
    estimate, variance = math.log(3.5 / 2.5) - math.log(4.5 / 6.5), 1 / 3.5 + 1 / 2.5
    # Residuals of the edges are 2/5 (same) and -3/5. Each node adds the square of its sum, the edges subtract theirs.
    squares = 3 * 0.4**2 + 2 * 0.6**2
    shared = (0.4 + 0.4) ** 2 + (0.4 - 0.6) ** 2 + (0.4 - 0.6) ** 2 + (0.4 - 0.6) ** 2 + (0.4 - 0.6) ** 2 - squares
    assert shared < 0  # edges of one node vary more than by chance, so all of them count
    assert parameters["log_odds_ratio"] == pytest.approx(estimate**3 / (estimate**2 + variance))


def test_edges_that_share_nodes_count_less():
    """Two stars: all neighbors of node 0 have its label, no neighbor of node 11 has its label."""
    y = torch.tensor([0] * 11 + [1] + [0] * 10)
    edges = torch.stack([torch.tensor([0] * 10 + [11] * 10), torch.cat([torch.arange(1, 11), torch.arange(12, 22)])])
    split = SimpleNamespace(train=torch.zeros(22, dtype=torch.bool), val=torch.ones(22, dtype=torch.bool))
    data = SimpleNamespace(y=y, edge_index=edges)
    logits = torch.randn(22, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = StructuredCalibrator(TemperatureScaling()).fit(logits, data, split).parameters
    # All residuals are ±½: 20 squares of ½, two centers with (10 / 2)², 20 leaves with (½)².
    kappa = 20 / 4 / (2 * 25 + 20 / 4 - 20 / 4)
    same_pairs, pairs = 21 * 20 / 2, 22 * 21 / 2
    estimate = math.log(10.5 / 10.5) - math.log((same_pairs + 0.5) / (pairs - same_pairs + 0.5))
    variance = 2 / 10.5 / kappa
    assert found["log_odds_ratio"] == pytest.approx(estimate**3 / (estimate**2 + variance))


def effective_log_odds(case):
    """Return f, V and κ by loops."""
    labeled = case.split.train | case.split.val
    y = case.data.y.tolist()
    edges = [(i, j) for i, j in edges_of(case).T.tolist() if labeled[i] and labeled[j]]
    nodes = labeled.nonzero().flatten().tolist()
    pairs = [y[i] == y[j] for i in nodes for j in nodes if i < j]
    same = sum(y[i] == y[j] for i, j in edges)

    def log_odds(k, n):
        return math.log((k + 0.5) / (n - k + 0.5))

    residual = [(y[i] == y[j]) - same / len(edges) for i, j in edges]
    shared = 2 * sum(
        residual[e] * residual[f] for e in range(len(edges)) for f in range(e) if set(edges[e]) & set(edges[f])
    )
    squares = sum(r**2 for r in residual)
    kappa = min(1.0, squares / (squares + shared)) if squares + shared > 0 else 1.0
    variance = (1 / (same + 0.5) + 1 / (len(edges) - same + 0.5)) / kappa
    return log_odds(same, len(edges)) - log_odds(sum(pairs), len(pairs)), variance, kappa


def normal_density(x, variance):
    return math.exp(-(x**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def slab_of(f, variance):
    """Mean and variance of the slab."""
    ratio = f**3 / (f**2 + variance)
    return 0.35 * ratio, (0.1 * ratio) ** 2 + 0.35**2 * variance + 0.25**2


@pytest.mark.parametrize("num_edges", [150, 600])
def test_coupling_is_the_posterior_mean_of_spike_and_slab(make_case, num_edges):
    """2 x 2 joints have a closed form. The slab is integrated over [-3, 4]."""
    case = make_case(5, num_nodes=80, num_edges=num_edges, num_classes=2)
    case.data.x = None
    calibrated = StructuredCalibrator(TemperatureScaling()).fit(case.logits, case.data, case.split)
    p, y, parameters = calibrated.posterior().node.numpy(), case.data.y.numpy(), calibrated.parameters
    f, variance, kappa = effective_log_odds(case)
    assert parameters["log_odds_ratio"] == pytest.approx(f**3 / (f**2 + variance))
    factors = degree_factors(case).tolist()
    used = [
        (g, i, j)
        for g, (i, j) in zip(factors, edges_of(case).T.tolist(), strict=True)
        if case.split.val[i] and case.split.val[j]
    ]
    assert len(used) > 5

    def joint(a, b, w):
        """q(0, 0) = x solves x (1 - a - b + x) = e^2w (a - x) (b - x)."""
        k = math.exp(2 * w)
        roots = np.roots([1 - k, 1 - a - b + k * (a + b), -k * a * b]).real
        x = next(x for x in roots if max(0.0, a + b - 1) - 1e-12 <= x <= min(a, b) + 1e-12)
        return np.array([[x, a - x], [b - x, 1 - a - b + x]])

    def likelihood(w):
        terms = (math.log(joint(p[i, 0], p[j, 0], w * g)[y[i], y[j]] / (p[i, y[i]] * p[j, y[j]])) for g, i, j in used)
        return math.exp(kappa * sum(terms))

    mean, slab_variance = slab_of(f, variance)
    grid = np.linspace(-3, 4, 281)
    grid = grid[np.abs(grid) > 1e-9]  # where the equation of x is quadratic
    prior = np.array([normal_density(w - mean, slab_variance) for w in grid])
    posterior = prior * np.array([likelihood(w) for w in grid])
    spike = normal_density(f, variance) / (normal_density(f, variance) + normal_density(f, variance + 1))
    evidence = posterior.sum() / prior.sum()
    probability = 1 / (1 + spike / ((1 - spike) * evidence))
    assert parameters["uses_coupling"] == pytest.approx(probability, abs=1e-3)
    assert parameters["coupling"] == pytest.approx(probability * (posterior @ grid) / posterior.sum(), abs=2e-3)


def test_coupling_without_features_and_validation_edges_comes_from_the_prior(case):
    val = case.split.val[case.data.edge_index].all(0)
    case.data.edge_index = case.data.edge_index[:, ~val]
    case.data.x = None
    parameters = StructuredCalibrator().fit(case.logits, case.data, case.split).parameters
    f, variance, _ = effective_log_odds(case)
    mean, _ = slab_of(f, variance)
    spike_odds = normal_density(f, variance) / normal_density(f, variance + 1)
    assert parameters["uses_coupling"] == pytest.approx(1 / (1 + spike_odds), abs=1e-6)
    assert parameters["coupling"] == pytest.approx(mean / (1 + spike_odds), abs=1e-3)


def test_without_labeled_edges_joints_are_products(case):
    labeled = case.split.train | case.split.val
    case.data.edge_index = case.data.edge_index[:, ~labeled[case.data.edge_index].all(0)]
    calibrated = StructuredCalibrator().fit(case.logits, case.data, case.split)
    found, parameters = calibrated.posterior(), calibrated.parameters
    product = IndependentPosterior(found.node)
    assert parameters["coupling"] == 0.0
    torch.testing.assert_close(found.joint(edges_of(case)), product.joint(edges_of(case)))


def test_graph_without_edges_keeps_marginals(case):
    case.data.edge_index = torch.zeros(2, 0, dtype=torch.long)
    found = StructuredCalibrator(TemperatureScaling()).fit(case.logits, case.data, case.split).posterior()
    expected = TemperatureScaling().fit(case.logits, case.data, case.split).posterior()
    assert torch.equal(found.node, expected.node)
    assert found.joint(case.data.edge_index).shape == (0, 3, 3)


@pytest.mark.parametrize(("equal", "sign"), [(True, 1), (False, -1)])
@pytest.mark.parametrize("features", [True, False])
def test_coupling_has_the_sign_of_homophily(make_case, equal, sign, features):
    case = make_case(2, num_nodes=120)
    y = case.data.y
    pairs = torch.triu_indices(120, 120, 1)
    candidates = pairs[:, (y[pairs[0]] == y[pairs[1]]) == equal]
    chosen = candidates[:, torch.randperm(candidates.shape[1], generator=torch.Generator().manual_seed(0))[:400]]
    case.data.edge_index = to_undirected(chosen)
    if not features:
        case.data.x = None
    calibrated = StructuredCalibrator().fit(case.logits, case.data, case.split)
    found, parameters = calibrated.posterior(), calibrated.parameters
    assert sign * parameters["log_odds_ratio"] > 2 and sign * parameters["coupling"] > 0.3
    same = found.joint(chosen).diagonal(dim1=1, dim2=2).sum(1)
    product = IndependentPosterior(found.node).joint(chosen).diagonal(dim1=1, dim2=2).sum(1)
    assert bool((sign * (same - product) > 0).all())


def test_joints_score_better_than_products_on_synthetic_graphs():
    """The logits are calibrated and use features only, so all dependence between neighbors is left to w."""
    gains = []
    for seed in range(3):
        graph = synthetic(600, 3, homophily=0.85, feature_noise=1.0, seed=seed)
        split = make_splits(graph.data.y, n_splits=1, seed=seed)[0]
        logits = graph.field.unary
        calibrated = StructuredCalibrator().fit(logits, graph.data, split)
        found, parameters = calibrated.posterior(), calibrated.parameters
        nodes = BayesianScaling().fit(logits, graph.data, split).posterior()
        ours, product = (evaluate(p, graph.data.y, graph.data.edge_index, mask=split.test) for p in (found, nodes))
        assert parameters["coupling"] > 0.5
        assert ours.nodewise.nll == pytest.approx(product.nodewise.nll, rel=1e-12)
        gains.append(product.edgewise.nll - ours.edgewise.nll)
    assert min(gains) > 0.05


def test_sparse_and_dense_features_give_the_same_bits(case):
    dense = StructuredCalibrator().fit(case.logits, case.data, case.split).posterior()
    case.data.x = case.data.x.to_sparse()
    sparse = StructuredCalibrator().fit(case.logits, case.data, case.split).posterior()
    assert torch.equal(dense.joint(edges_of(case)), sparse.joint(edges_of(case)))


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (
            torch.ones(59, 4),
            "shape (59, 4)",
        ),
        (torch.ones(60), "shape (60,)"),
        (
            torch.full((60, 2), math.nan),
            "first for node 0",
        ),
        ([[1.0]] * 59 + [[]], "x as nested lists of one length"),
    ],
)
def test_invalid_features_raise(case, x, match):
    data = SimpleNamespace(x=x, y=case.data.y, edge_index=case.data.edge_index)
    with pytest.raises(ValueError, match=re.escape(match)):
        StructuredCalibrator().fit(case.logits, data, case.split).posterior()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"nodes": "temperature"}, "TemperatureScaling()"),
        ({"nodes": StructuredCalibrator()}, "but got StructuredCalibrator("),
        ({"ridge": 0.0}, "Expected ridge to be a number of at least 1e-08, but got 0.0."),
    ],
)
def test_invalid_options_raise(options, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        StructuredCalibrator(**options)


@pytest.mark.parametrize("proportion", [0.5, 0.8, 0.97])
def test_independent_labels_have_no_coupling_for_any_class_proportions(proportion):
    """Labels, edges and features are independent. Many neighbors have the same label by chance."""
    found = []
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        nodes = torch.arange(600)
        y = (torch.rand(600, generator=g) >= proportion).long()
        data = SimpleNamespace(
            x=torch.randn(600, 8, generator=g), edge_index=torch.randint(600, (2, 3000), generator=g), y=y
        )
        split = SimpleNamespace(train=nodes < 300, val=(nodes >= 300) & (nodes < 450))
        noise = 0.1 * torch.randn(600, 2, generator=g)
        logits = torch.tensor([proportion, 1 - proportion]).log().expand(600, 2) + noise
        found.append(StructuredCalibrator(TemperatureScaling()).fit(logits, data, split).parameters["coupling"])
    assert max(map(abs, found)) < 0.15


@pytest.mark.parametrize("features", [True, False])
def test_labels_of_one_class_show_no_coupling(features):
    """All edges and all pairs have equal labels, so there is nothing to compare."""
    g, nodes = torch.Generator().manual_seed(0), torch.arange(200)
    y = (nodes >= 150).long()
    data = SimpleNamespace(
        x=torch.randn(200, 4, generator=g), y=y, edge_index=torch.randint(200, (2, 800), generator=g)
    )
    if not features:
        data.x = None
    split = SimpleNamespace(train=nodes < 50, val=(nodes >= 50) & (nodes < 150))
    logits = torch.randn(200, 2, generator=g, dtype=torch.float64)
    found = StructuredCalibrator(TemperatureScaling()).fit(logits, data, split).parameters
    assert found["log_odds_ratio"] == found["coupling"] == found["uses_coupling"] == 0.0


@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
def test_coupling_uses_predictions_that_leave_labels_out(make_case, ridge):
    """Without validation edges, w rests on ridge regressions that are refitted without the two ends of each edge."""
    case = make_case(3, num_nodes=80, num_edges=160, num_classes=2)
    case.split.val &= torch.arange(80) > 76  # too few for an edge between them
    found = StructuredCalibrator(TemperatureScaling(), ridge=ridge).fit(case.logits, case.data, case.split).parameters
    y, labeled = case.data.y.numpy(), (case.split.train | case.split.val).numpy()
    edges = edges_of(case).T.tolist()
    dense = np.eye(80)
    for i, j in edges:
        dense[i, j] = dense[j, i] = 1.0
    root = np.sqrt(dense.sum(1))
    x = np.linalg.matrix_power(dense / np.outer(root, root), 2) @ case.data.x.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    nodes = np.flatnonzero(labeled)
    targets = np.eye(2)[y] - np.eye(2)[y[nodes]].mean(0)

    def refit(without):
        kept = np.setdiff1d(nodes, without)
        gram = x[kept].T @ x[kept] + ridge * np.eye(x.shape[1])
        return x[without] @ np.linalg.solve(gram, x[kept].T @ targets[kept])

    log_proportions = np.log(np.bincount(y[nodes], minlength=2) + 0.5)
    alone = np.concatenate([refit([i]) for i in nodes])

    def nll(log_t):
        z = alone / math.exp(log_t) + log_proportions
        return float((np.logaddexp.reduce(z, axis=1) - z[np.arange(len(nodes)), y[nodes]]).sum())

    temperature = math.exp(minimize_scalar(nll, bounds=(-10.0, 10.0), method="bounded", options={"xatol": 1e-8}).x)
    factors = degree_factors(case).tolist()
    used = [(g, i, j) for g, (i, j) in zip(factors, edges, strict=True) if labeled[i] and labeled[j]]
    f, variance, kappa = effective_log_odds(case)
    log_p = torch.stack(
        [torch.from_numpy(refit([i, j]) / temperature + log_proportions).log_softmax(1) for _, i, j in used], dim=1
    )
    labels = torch.tensor([[y[i], y[j]] for _, i, j in used]).T

    def likelihood(w):
        terms = pointwise_mutual_information(log_p, w * torch.tensor([g for g, _, _ in used]).double(), labels)
        return math.exp(kappa * float(terms.sum()))

    mean, slab_variance = slab_of(f, variance)
    grid = np.linspace(-3, 4, 701)
    prior = np.array([normal_density(w - mean, slab_variance) for w in grid])
    posterior = prior * np.array([likelihood(w) for w in grid])
    spike = normal_density(f, variance) / (normal_density(f, variance) + normal_density(f, variance + 1))
    probability = 1 / (1 + spike * prior.sum() / ((1 - spike) * posterior.sum()))
    assert found["coupling"] == pytest.approx(probability * (posterior @ grid) / posterior.sum(), abs=2e-3)
