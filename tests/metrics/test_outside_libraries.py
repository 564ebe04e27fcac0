"""Scores compared with torchmetrics, netcal, scikit-learn and uncertainty-calibration."""

import numpy as np
import pytest
import torch
from calibration.utils import unbiased_l2_ce
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

import edgewise as ew
from helpers.random_predictions import random_case


@pytest.fixture(params=range(3))
def case(request):
    return random_case(request.param, num_nodes=500, num_edges=2000, num_classes=4)


def flat_product(probs, ends):
    return (probs[ends[0]][:, :, None] * probs[ends[1]][:, None, :]).flatten(1)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("n_bins", [5, 15])
def test_nodewise_calibration_error_equals_torchmetrics(case, norm, n_bins):
    probs, y, edge_index, mask = case
    ev = ew.evaluate(probs, y, edge_index, mask=mask, norm=norm, n_bins=n_bins)
    theirs = multiclass_calibration_error(probs[mask], y[mask], num_classes=4, n_bins=n_bins, norm=norm)
    assert ev.nodewise.ece == pytest.approx(float(theirs), abs=1e-6)  # torchmetrics sums in float32


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_edgewise_calibration_error_equals_torchmetrics_with_pairs_as_classes(case, norm):
    probs, y, edge_index, mask = case
    once = edge_index.unique(dim=1)
    once = once[:, (once[0] < once[1]) & mask[once[0]] & mask[once[1]]]
    ev = ew.evaluate(probs, y, once, mask=mask, norm=norm)
    pairs = y[once[0]] * 4 + y[once[1]]
    for view, chosen in [("edgewise", pairs >= 0), ("agree", pairs % 5 == 0), ("disagree", pairs % 5 != 0)]:
        joint = flat_product(probs, once[:, chosen])
        theirs = multiclass_calibration_error(joint, pairs[chosen], num_classes=16, n_bins=15, norm=norm)
        assert ev[view].ece == pytest.approx(float(theirs), abs=1e-6)
        accuracy = multiclass_accuracy(joint, pairs[chosen], num_classes=16, average="micro")
        assert ev[view].accuracy == pytest.approx(float(accuracy), abs=1e-6)


@pytest.mark.slow
def test_nodewise_calibration_errors_equal_netcal(case):
    from netcal.metrics import ECE, MCE

    probs, y, edge_index, mask = case
    p, labels = probs[mask].numpy(), y[mask].numpy()
    for norm, theirs in (("l1", ECE), ("max", MCE)):
        ev = ew.evaluate(probs, y, edge_index, mask=mask, norm=norm)
        assert ev.nodewise.ece == pytest.approx(theirs(bins=15).measure(p, labels), abs=1e-12)


def test_nodewise_scores_equal_scikit_learn(case):
    probs, y, edge_index, mask = case
    ev = ew.evaluate(probs, y, edge_index, mask=mask)
    p, labels = probs[mask].numpy(), y[mask].numpy()
    assert ev.nodewise.accuracy == accuracy_score(labels, p.argmax(1))
    assert ev.nodewise.nll == pytest.approx(log_loss(labels, p, labels=range(4)), rel=1e-12)
    assert ev.nodewise.brier == pytest.approx(((p - np.eye(4)[labels]) ** 2).sum(1).mean(), rel=1e-12)


def test_debiased_error_equals_the_implementation_of_its_authors(case):
    """Kumar, Liang and Ma publish it as `uncertainty-calibration`."""
    probs, y, edge_index, mask = case
    confidence, prediction = probs[mask].max(1)
    correct = (prediction == y[mask]).long()
    bins = (confidence * 15).ceil().long().clamp(1, 15)
    binned = [
        list(zip(confidence[bins == k].tolist(), correct[bins == k].tolist(), strict=True)) for k in bins.unique()
    ]
    ev = ew.evaluate(probs, y, edge_index, mask=mask)
    assert ev.nodewise.debiased_l2 == pytest.approx(unbiased_l2_ce(binned), abs=1e-12)


def test_debiased_error_of_a_calibrated_model_is_closer_to_zero():
    g = torch.Generator().manual_seed(0)
    no_edges = torch.empty(2, 0, dtype=torch.long)
    plain, debiased = [], []
    for _ in range(50):
        probs = torch.rand(200, 2, generator=g, dtype=torch.float64)
        probs /= probs.sum(1, keepdim=True)
        y = torch.multinomial(probs, 1, generator=g).squeeze(1)
        scores = ew.evaluate(probs, y, no_edges, norm="l2").nodewise
        plain.append(scores.ece)
        debiased.append(scores.debiased_l2)
    assert sum(debiased) < 0.5 * sum(plain)
