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
    EnsembleTemperatureScaling,
    IsotonicCalibration,
    LocalScaling,
    StructuredCalibrator,
    TemperatureScaling,
    VectorScaling,
)
from edgewise.data.splits import make_splits
from edgewise.metrics import evaluate
from edgewise.posterior import IndependentPosterior, PairwisePosterior, Posterior
from edgewise.simulation import synthetic

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

NODES = [LocalScaling(), TemperatureScaling(), VectorScaling(), EnsembleTemperatureScaling(), IsotonicCalibration()]


def edges_of(case):
    edges = case.data.edge_index
    return edges[:, edges[0] < edges[1]]


@pytest.mark.parametrize("nodes", NODES, ids=lambda nodes: type(nodes).__name__)
def test_marginals_are_those_of_the_node_calibrator(case, nodes):
    calibrated = StructuredCalibrator(nodes).fit(case.logits, case.data, case.split)
    found, parameters = calibrated.posterior(), calibrated.parameters
    alone = nodes.fit(case.logits, case.data, case.split)
    assert isinstance(found, PairwisePosterior)
    assert torch.equal(found.node, alone.posterior().node)
    assert {name: parameters[name] for name in alone.parameters}.keys() == alone.parameters.keys()
    edges = edges_of(case)
    joints = found.joint(edges)
    torch.testing.assert_close(joints.sum(2), found.node[edges[0]], atol=1e-12, rtol=0.0)
    torch.testing.assert_close(joints.sum(1), found.node[edges[1]], atol=1e-9, rtol=0.0)  # scaled to 1e-10 nats
    torch.testing.assert_close(found.joint(edges.flip(0)), joints.transpose(1, 2))
    ratio = joints[:, 0, 0] * joints[:, 1, 1] / (joints[:, 0, 1] * joints[:, 1, 0])
    torch.testing.assert_close(ratio.log() / 2, torch.full_like(ratio, parameters["coupling"]))
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
    assert parameters["log_odds_ratio"] == pytest.approx(estimate**3 / (estimate**2 + variance))


def test_coupling_without_features_is_fitted_to_validation_edges(make_case):
    """w minimizes the NLL of edges between validation nodes plus (w - J/2)² / 2σ²; 2 x 2 joints have a closed form."""
    case = make_case(5, num_nodes=80, num_edges=600, num_classes=2)
    case.data.x = None
    calibrated = StructuredCalibrator(TemperatureScaling()).fit(case.logits, case.data, case.split)
    found, parameters = calibrated.posterior(), calibrated.parameters
    edges = edges_of(case)
    edges = edges[:, case.split.val[edges].all(0)]
    p, y, log_odds_ratio = found.node.numpy(), case.data.y.numpy(), parameters["log_odds_ratio"]
    assert edges.shape[1] > 10
    labeled = edges_of(case)
    labeled = labeled[:, (case.split.train | case.split.val)[labeled].all(0)]
    equal = int((case.data.y[labeled[0]] == case.data.y[labeled[1]]).sum())
    variance = 1 / (equal + 0.5) + 1 / (labeled.shape[1] - equal + 0.5)
    prior_variance = (log_odds_ratio / 6) ** 2 + variance / 4 + 0.25**2

    def joint(a, b, w):
        """q(0, 0) = x solves x (1 - a - b + x) = e^2w (a - x) (b - x)."""
        k = math.exp(2 * w)
        roots = np.roots([1 - k, 1 - a - b + k * (a + b), -k * a * b]).real
        x = next(x for x in roots if max(0.0, a + b - 1) <= x <= min(a, b))
        return np.array([[x, a - x], [b - x, 1 - a - b + x]])

    def loss(w):
        nll = -sum(math.log(joint(p[i, 0], p[j, 0], w)[y[i], y[j]]) for i, j in edges.T.tolist())
        return nll + (w - log_odds_ratio / 2) ** 2 / (2 * prior_variance)

    best = minimize_scalar(loss, bounds=(-6.0, 6.0), method="bounded", options={"xatol": 1e-5}).x
    assert parameters["coupling"] == pytest.approx(best, abs=1e-3)
    assert parameters["coupling"] != pytest.approx(log_odds_ratio / 2, abs=1e-2)


def test_coupling_without_features_and_validation_edges_is_half_the_log_odds_ratio(case):
    val = case.split.val[case.data.edge_index].all(0)
    case.data.edge_index = case.data.edge_index[:, ~val]
    case.data.x = None
    parameters = StructuredCalibrator().fit(case.logits, case.data, case.split).parameters
    assert parameters["coupling"] == pytest.approx(parameters["log_odds_ratio"] / 2, abs=1e-3)


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
        nodes = LocalScaling().fit(logits, graph.data, split).posterior()
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
            "those of node 0",
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
        ({"ridge": 0.0}, "Expected ridge to be a number above 0, but got 0.0."),
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
    assert abs(sum(found) / 3) < 0.15
