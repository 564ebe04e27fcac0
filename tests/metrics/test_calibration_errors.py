"""Smooth and classwise calibration errors: compared with loops, relplot and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_calibration_error

import edgewise as ew
from edgewise.kernels import dispatch
from helpers.random_predictions import cases, random_case
from helpers.reference import loops

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # random masks may be empty


def draw_events(seed, count, sharpness=1.5):
    """Draw forecasts, and events that occur more often than forecast."""
    rng = np.random.default_rng(seed)
    p = rng.beta(2, 1, count)
    return p, rng.random(count) < p**sharpness


def smooth_gap(p, occurred, sigma, points):
    """Return ∫ |Σ_i (p_i - y_i) K(t, p_i)| dt / n, where the kernel at p has images at -p and 2 - p."""
    total = 0.0
    for t in points:
        density = sum(np.exp(-((t - image) ** 2) / (2 * sigma**2)) for image in (p, -p, 2 - p))
        total += abs(((p - occurred) * density).sum()) / (sigma * math.sqrt(2 * math.pi))
    return total / len(points) / len(p)


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.1])
def test_smooth_ece_is_the_integral_of_the_smoothed_gap(sigma):
    p, occurred = draw_events(0, 300)
    points = (np.arange(2000) + 0.5) / 2000
    expected = smooth_gap(p, occurred, sigma, points)
    assert ew.smooth_ece(p, occurred, bandwidth=sigma) == pytest.approx(expected, rel=0.01)  # the grid has 200 points


def test_the_bandwidth_is_its_own_error():
    p, occurred = draw_events(1, 2000)
    error = ew.smooth_ece(p, occurred)
    assert ew.smooth_ece(p, occurred, bandwidth=error) == pytest.approx(error, abs=1 / 1024)


def test_one_gap_everywhere_is_the_smooth_ece():
    p = np.linspace(0.3, 0.9, 2000)
    occurred = np.arange(2000) % 2 == 0
    assert ew.smooth_ece(p, occurred, bandwidth=0.02) == pytest.approx(np.abs(p - 0.5).mean(), abs=0.01)


def test_smooth_ece_of_a_calibrated_model_tends_to_zero():
    errors = [ew.smooth_ece(*draw_events(0, count, sharpness=1.0)) for count in (100, 3_000, 100_000)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01


def test_smooth_ece_of_views_is_that_of_their_confidences():
    probs, y, edge_index, mask = random_case(0, num_nodes=200, num_edges=800)
    ev = ew.evaluate(probs, y, edge_index, mask=mask, smooth=True)
    correct, pairs = (
        probs.argmax(1) == y,
        loops.scored_edges(list(zip(*edge_index.tolist(), strict=True)), mask.tolist()),
    )
    start, end = torch.tensor(pairs).T
    confidence = probs.amax(1)[start] * probs.amax(1)[end]
    both, agree = correct[start] & correct[end], y[start] == y[end]
    assert ev.nodewise.smooth_ece == ew.smooth_ece(probs.amax(1)[mask], correct[mask])
    assert ev.edgewise.smooth_ece == pytest.approx(ew.smooth_ece(confidence, both), abs=1e-12)
    assert ev.agree.smooth_ece == pytest.approx(ew.smooth_ece(confidence[agree], both[agree]), abs=1e-12)
    same = (probs[start] * probs[end]).sum(1)
    assert ev.same_label.smooth_ece == pytest.approx(ew.smooth_ece(same, agree), abs=1e-12)


def test_smooth_ece_needs_probabilities_and_outcomes():
    assert math.isnan(ew.smooth_ece(np.zeros(0), np.zeros(0, dtype=bool)))
    assert ew.smooth_ece([1.0], [1]) == pytest.approx(0)
    with pytest.raises(ValueError, match=r"element 1 is 1\.5"):
        ew.smooth_ece([0.5, 1.5], [True, False])
    with pytest.raises(ValueError, match="0 and 1"):
        ew.smooth_ece([0.5, 0.5], [2, 0])
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        ew.smooth_ece([0.5, 0.5], [1, 0, 1])
    with pytest.raises(ValueError, match="bandwidth"):
        ew.smooth_ece([0.5, 0.5], [1, 0], bandwidth=0)


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 300, 20_000])
def test_smooth_ece_equals_relplot(count):
    relplot = pytest.importorskip("relplot")
    for seed in range(3):
        p, occurred = draw_events(seed, count, sharpness=(0.5, 1.0, 3.0)[seed])
        for sigma in (0.002, 0.0077, 0.01, 0.05, 0.1, 0.3, 0.7):
            theirs = relplot.metrics.smECE_sigma(p, occurred.astype(float), sigma)
            assert ew.smooth_ece(p, occurred, bandwidth=sigma) == pytest.approx(theirs, abs=1e-6)
        assert ew.smooth_ece(p, occurred) == pytest.approx(relplot.smECE(p, occurred.astype(float)), abs=1e-3)


# ---- Classes ---------------------------------------------------------------------------------------------------------


@given(
    case=cases(),
    n_bins=st.integers(1, 30),
    norm=st.sampled_from(["l1", "l2", "max"]),
    closed=st.sampled_from(["right", "left"]),
)
def test_class_errors_match_the_loops(case, n_bins, norm, closed):
    probs, y, edge_index, mask = case
    options = {"n_bins": n_bins, "norm": norm, "closed": closed}
    scores = ew.evaluate(probs, y, edge_index, mask=mask, classwise=True, **options).nodewise
    scored, labels = probs[mask].double().tolist(), y[mask].tolist()
    expected = [
        loops.calibration_error([p[c] for p in scored], [label == c for label in labels], **options)
        for c in range(probs.shape[1])
    ]
    assert scores.class_ece.tolist() == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert scores.classwise_ece == pytest.approx(float(np.mean(expected)), abs=1e-12, nan_ok=True)
    assert ew.classwise_ece(probs, y, mask=mask, **options) == pytest.approx(scores.classwise_ece, nan_ok=True)


def test_classwise_ece_equals_torchmetrics_for_each_class():
    probs, y, _, mask = random_case(0, num_nodes=500, num_classes=4)
    theirs = [float(binary_calibration_error(probs[mask, c], (y[mask] == c).long(), n_bins=15)) for c in range(4)]
    assert ew.classwise_ece(probs, y, mask=mask) == pytest.approx(np.mean(theirs), abs=1e-6)


def test_bins_of_equal_mass_are_those_of_each_class():
    """With two classes, an error of one class is that of the binary forecast p(1)."""
    probs, y, edge_index, _ = random_case(0, num_nodes=400, num_classes=2)
    ev = ew.evaluate(probs, y, edge_index, classwise=True, binning="mass")
    order = probs[:, 1].argsort()
    gaps = [(probs[part, 1] - y[part]).sum().abs() for part in order.tensor_split(torch.arange(1, 15) * 400 // 15 + 1)]
    assert float(ev.nodewise.class_ece[1]) == pytest.approx(float(sum(gaps)) / 400, abs=0.01)
    assert ew.classwise_ece(probs, y, binning="mass") == ev.nodewise.classwise_ece


def test_compiled_sums_give_the_same_bits(monkeypatch):
    probs, y, edge_index, mask = random_case(1, num_nodes=300, num_classes=4, dtype=torch.float32)
    plain = ew.evaluate(probs, y, edge_index, mask=mask, classwise=True).nodewise.class_ece
    monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", 0)
    assert torch.equal(ew.evaluate(probs, y, edge_index, mask=mask, classwise=True).nodewise.class_ece, plain)
