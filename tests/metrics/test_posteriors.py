"""`evaluate` with all kinds of posteriors, and with node sets."""

from itertools import product

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.kernels import dispatch
from edgewise.metrics import collect
from helpers.random_predictions import random_case


def mrf_case(seed=0, dtype=torch.float64):
    """Return an MRF on a random graph, labels, listed edges and a mask."""
    _, y, edge_index, mask = random_case(seed, num_nodes=30, num_edges=60)
    once = edge_index.sort(0).values.unique(dim=1)
    once = once[:, once[0] != once[1]]
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(30, 3, generator=g, dtype=torch.float64).to(dtype)
    mrf = ew.PairwiseMRF(unary, once, 0.5 * torch.eye(3, dtype=dtype))
    return mrf, y, edge_index, mask


def make_posteriors(dtype=torch.float64):
    mrf, y, edge_index, mask = mrf_case(dtype=dtype)
    g = torch.Generator().manual_seed(1)
    samples = torch.randn(6, 30, 3, generator=g, dtype=torch.float64).softmax(-1).to(dtype)
    posteriors = {
        "independent": ew.IndependentPosterior(samples[0]),
        "mixture": ew.MixturePosterior(samples),
        "pairwise": ew.sum_product(mrf)[0],
    }
    return posteriors, y, edge_index, mask


@pytest.mark.parametrize("kind", ["independent", "mixture", "pairwise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"binning": "mass"}, {"edge_choice": "any"}, {"n_resamples": 40}])
def test_posteriors_match_explicit_joints(kind, dtype, options):
    posteriors, y, edge_index, mask = make_posteriors(dtype)
    posterior = posteriors[kind]
    ev = ew.evaluate(posterior, y, edge_index, mask=mask, **options)
    joints = posterior.joint(edge_index)
    explicit = ew.evaluate(posterior.node, y, edge_index, mask=mask, edge_probs=joints, **options)
    assert ev.edgewise.count == explicit.edgewise.count > 0
    for name, value in explicit.scalars().items():
        assert ev.scalars()[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name
    assert ev.same_label.ece == pytest.approx(explicit.same_label.ece, abs=1e-6)


def test_independent_nodes_need_no_joints(monkeypatch):
    posteriors, y, edge_index, mask = make_posteriors()
    monkeypatch.setattr(collect, "joint_elements", None)  # a call would fail
    ev = ew.evaluate(posteriors["independent"], y, edge_index, mask=mask)
    assert ev.scalars() == ew.evaluate(posteriors["independent"].node, y, edge_index, mask=mask).scalars()
    with pytest.raises(TypeError):
        ew.evaluate(posteriors["mixture"], y, edge_index, mask=mask)


def test_posterior_is_not_checked_again(monkeypatch):
    posteriors, y, edge_index, mask = make_posteriors()
    monkeypatch.setattr("edgewise.metrics.scoring_input.check_distributions", None)
    ew.evaluate(posteriors["pairwise"], y, edge_index, mask=mask)


def test_only_scored_edges_need_joints():
    mrf, y, edge_index, _ = mrf_case()
    posterior, _ = ew.sum_product(mrf)
    extra = torch.tensor([[0], [1]])
    listed = {tuple(pair) for pair in mrf.edge_index.T.tolist()}
    assert (0, 1) not in listed
    mask = torch.ones(30, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"pair \(0, 1\) is not an edge"):
        ew.evaluate(posterior, y, torch.cat([edge_index, extra], 1), mask=mask)
    mask[0] = False
    ew.evaluate(posterior, y, torch.cat([edge_index, extra], 1), mask=mask)


def test_module_accepts_posteriors():
    posteriors, y, edge_index, mask = make_posteriors()
    metric = ew.GraphCalibration()
    metric.update(posteriors["mixture"], y, edge_index, mask)
    assert metric.compute().scalars() == ew.evaluate(posteriors["mixture"], y, edge_index, mask=mask).scalars()


def test_invalid_posteriors_and_node_sets_are_rejected():
    posteriors, y, edge_index, mask = make_posteriors()
    joints = posteriors["pairwise"].joint(edge_index)
    with pytest.raises(ValueError, match="Omit edge_probs"):
        ew.evaluate(posteriors["pairwise"], y, edge_index, mask=mask, edge_probs=joints)
    batch = ew.IndependentPosterior(posteriors["independent"].node.expand(2, 30, 3))
    with pytest.raises(ValueError, match=r"batch of shape \(2,\).*posterior\[b\]"):
        ew.evaluate(batch, y, edge_index)
    with pytest.raises(ValueError, match="posterior, convergence = "):
        ew.evaluate((posteriors["pairwise"], None), y, edge_index)
    with pytest.raises(ValueError, match="joints of edges only"):
        sets = torch.tensor([[0], [1], [2]])
        ew.evaluate(posteriors["pairwise"].node, y, edge_index, mask=mask, edge_probs=joints, node_sets=sets)
    with pytest.raises(ValueError, match=r"distinct nodes.*set 0 is \[1, 1, 2\]"):
        ew.evaluate(posteriors["mixture"], y, edge_index, node_sets=torch.tensor([[1], [1], [2]]))
    with pytest.raises(ValueError, match=r"node_sets to hold nodes from 0 to 29, but set 1"):
        ew.evaluate(posteriors["mixture"], y, edge_index, node_sets=torch.tensor([[1, 30], [0, 1]]))


def loop_over_sets(posterior, y, sets, predictions=None, n_bins=15):
    """Compute the scores of node sets with a loop over sets."""
    prediction = posterior.node.argmax(-1) if predictions is None else predictions
    correct, nll, brier, confidence = [], [], [], []
    for column in sets.T.tolist():
        joint = posterior.marginal(torch.tensor(column)[:, None])[0]
        truth = tuple(int(y[node]) for node in column)
        correct.append(all(int(prediction[node]) == int(y[node]) for node in column))
        nll.append(-float(joint[truth].log()))
        square = sum(float(joint[labels]) ** 2 for labels in product(range(joint.shape[0]), repeat=len(column)))
        brier.append(1 - 2 * float(joint[truth]) + square)
        confidence.append(float(joint.max() if predictions is None else joint[tuple(prediction[column].tolist())]))
    bins = [min(max(int(np.ceil(c * n_bins)) - 1, 0), n_bins - 1) for c in confidence]
    ece = sum(
        abs(sum(correct[s] - confidence[s] for s in range(len(bins)) if bins[s] == k)) for k in range(n_bins)
    ) / len(bins)
    return {"accuracy": np.mean(correct), "nll": np.mean(nll), "brier": np.mean(brier), "ece": ece}


def some_wedges(edge_index):
    """Return some paths of three nodes."""
    wedges = []
    pairs = edge_index.T.tolist()
    for i, j in pairs:
        wedges += [(i, j, k) for a, k in pairs if a == j and k not in (i, j)][:2]
    return torch.tensor(wedges).T


@pytest.mark.parametrize("given", [False, True], ids=["most probable labels", "given labels"])
@pytest.mark.parametrize("kind", ["independent", "mixture", "pairwise"])
def test_node_sets_match_the_loop(kind, given, monkeypatch):
    posteriors, y, _, mask = make_posteriors()
    generator = torch.Generator().manual_seed(5)
    right = torch.rand(30, generator=generator) < 0.7
    predictions = torch.where(right, y, torch.randint(3, (30,), generator=generator)) if given else None
    posterior = posteriors[kind]
    edge_index = posteriors["pairwise"].edge_index
    sets = some_wedges(edge_index)
    inside = mask[sets].all(0)
    assert 5 < int(inside.sum()) < len(inside)
    options = {"mask": mask, "node_sets": sets, "predictions": predictions}
    ev = ew.evaluate(posterior, y, edge_index, **options)
    assert ev.node_sets.count == int(inside.sum())
    expected = loop_over_sets(posterior, y, sets[:, inside], predictions)
    assert not given or 0 < expected["accuracy"] < 1
    for metric, value in expected.items():
        assert ev.node_sets[metric] == pytest.approx(value, abs=1e-9), metric
    monkeypatch.setattr(collect, "CHUNK_ELEMENTS", 100)
    assert ew.evaluate(posterior, y, edge_index, **options).node_sets.to_dict() == ev.node_sets.to_dict()


def test_edges_as_node_sets_have_the_scores_of_edges():
    posteriors, y, _, mask = make_posteriors()
    once = posteriors["pairwise"].edge_index
    for posterior in posteriors.values():
        ev = ew.evaluate(posterior, y, once, mask=mask, node_sets=once)
        assert {m: ev.node_sets[m] for m in ew.METRICS} == {m: ev.edgewise[m] for m in ew.METRICS}
        assert ev.node_sets.count == ev.edgewise.count


def test_large_node_sets_of_independent_nodes_and_edge_choice():
    posteriors, y, edge_index, mask = make_posteriors()
    y = y.clone()
    y[~mask] = -1
    sets = torch.arange(30)[:, None].repeat(1, 2)
    sets[:, 0] = sets[:, 0].roll(3)
    assert ew.evaluate(posteriors["independent"], y, edge_index, mask=mask, node_sets=sets).node_sets.count == 0
    labeled = mask.nonzero().T
    ev = ew.evaluate(posteriors["independent"], y, edge_index, mask=mask, node_sets=labeled.T, edge_choice="any")
    assert ev.node_sets.count == 1
    log_p = posteriors["independent"].node.log()[mask].gather(1, y[mask][:, None])
    assert ev.node_sets.nll == pytest.approx(-float(log_p.sum()))


def test_node_sets_in_output_sums_and_bins_of_equal_mass():
    posteriors, y, edge_index, mask = make_posteriors()
    sets = some_wedges(posteriors["pairwise"].edge_index)
    options = {"mask": mask, "node_sets": sets}
    ev = ew.evaluate(posteriors["mixture"], y, edge_index, **options)
    assert f"node sets: {ev.node_sets.count}, accuracy" in str(ev)
    assert ev.to_dict()["node_sets"]["nll"] == ev.scalars()["node_sets/nll"] == ev.node_sets.nll
    assert (ev + ev).node_sets.count == 2 * ev.node_sets.count
    plain = ew.evaluate(posteriors["mixture"], y, edge_index, mask=mask)
    assert plain.node_sets is None
    assert plain.to_dict()["node_sets"] is None
    with pytest.raises(ValueError, match="same options"):
        ev + plain
    mass = ew.evaluate(posteriors["mixture"], y, edge_index, **options, binning="mass", n_bins=4)
    counts = mass.node_sets.reliability.count
    assert int(counts.max() - counts.min()) <= 1
    assert mass.node_sets.nll == ev.node_sets.nll


def test_compiled_sums_of_pairwise_posteriors_are_equal(monkeypatch):
    posteriors, y, edge_index, mask = make_posteriors()
    posterior = posteriors["pairwise"]
    wedges = some_wedges(posterior.edge_index)
    tensors = ew.evaluate(posterior, y, edge_index, mask=mask, node_sets=wedges)
    monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", 1)
    compiled = ew.evaluate(posterior, y, edge_index, mask=mask, node_sets=wedges)
    assert tensors.to_dict() == compiled.to_dict()
