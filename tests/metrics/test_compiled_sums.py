"""Compiled loops and tensor operations give the same bits."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.data.edges import scored_edges
from edgewise.kernels import dispatch, score_sums
from helpers.random_predictions import random_case


@pytest.fixture
def use_compiled(monkeypatch):
    def switch(on):
        monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", 0 if on else 1 << 62)

    return switch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("choice", ["both", "any", "all"])
@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("size", [(5, 7), (40, 300), (3000, 20_000)])
def test_same_bits(use_compiled, dtype, choice, closed, size):
    for seed in range(2):
        probs, y, edge_index, mask = random_case(seed, *size, num_classes=5, dtype=dtype, sharpness=30.0)
        probs[: len(y) // 3] = torch.eye(5, dtype=dtype)[y[: len(y) // 3] - 1]  # true labels of probability zero
        y[~mask] = torch.where(y[~mask] == 0, -1, y[~mask])
        results = []
        for on in (True, False):
            use_compiled(on)
            ev = ew.evaluate(probs, y, edge_index, mask=mask, closed=closed, edge_choice=choice, n_bins=7)
            results.append(ev.to_dict())
        np.testing.assert_equal(*results)


def test_same_bits_for_int32_edges_any_layout_and_any_number_of_threads(use_compiled):
    probs, y, edge_index, mask = random_case(0, 300, 5000)
    use_compiled(False)
    expected = ew.evaluate(probs, y, edge_index, mask=mask).to_dict()
    use_compiled(True)
    threads = torch.get_num_threads()
    try:
        for num in (1, 2, 5):
            torch.set_num_threads(num)
            for layout in (edge_index, edge_index.int(), edge_index.T.contiguous().T):
                np.testing.assert_equal(ew.evaluate(probs, y, layout, mask=mask).to_dict(), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("num_classes", [1, 2, 7, 16, 40])
def test_same_label_has_the_same_bits_and_matches_the_loop(use_compiled, monkeypatch, dtype, num_classes):
    monkeypatch.setattr(score_sums, "EDGES_PER_BLOCK", 64)
    probs, y, edge_index, mask = random_case(3, 60, 500, num_classes, dtype, sharpness=5.0)
    results, threads = [], torch.get_num_threads()
    try:
        for on, num, edges in ((False, 1, edge_index), (True, 1, edge_index.int()), (True, 3, edge_index)):
            use_compiled(on)
            torch.set_num_threads(num)
            results.append(ew.evaluate(probs, y, edges, mask=mask).same_label)
    finally:
        torch.set_num_threads(threads)
    for same in results[1:]:
        assert same.to_dict() == results[0].to_dict()
    kept = scored_edges(edge_index, mask)
    nll, brier, p_same = [], [], []
    for i, j in edge_index[:, kept].T.tolist():
        p = math.fsum(a * b for a, b in zip(probs[i].tolist(), probs[j].tolist(), strict=True))
        p_labels = float(probs[i, y[i]].double() * probs[j, y[j]].double())
        p_outcome = max(p if y[i] == y[j] else 1 - p, p_labels)
        nll.append(-math.log(p_outcome) if p_outcome > 0 else math.inf)
        brier.append(2 * (1 - p_outcome) ** 2)
        p_same.append(p)
    assert same.count == len(nll) > 100
    assert same.frequency == (y[edge_index[0]] == y[edge_index[1]])[kept].double().mean()
    assert same.probability == pytest.approx(sum(p_same) / len(p_same), abs=1e-12 if dtype != torch.float16 else 1e-3)
    assert same.brier == pytest.approx(sum(brier) / len(brier), abs=1e-12 if dtype != torch.float16 else 1e-3)
    assert same.nll == pytest.approx(sum(nll) / len(nll), rel=1e-9 if dtype != torch.float16 else 1e-2)


def test_scores_of_two_million_edges_match_numpy_to_1e_9():
    g = torch.Generator().manual_seed(0)
    n, num_edges = 50_000, 2_000_000
    probs = (3 * torch.randn(n, 6, generator=g)).softmax(-1)
    y = torch.randint(6, (n,), generator=g)
    start, end = torch.randint(n, (2, num_edges), generator=g)
    edge_index = torch.stack([torch.minimum(start, end), torch.maximum(start, end)])
    ev = ew.evaluate(probs, y, edge_index)
    i, j = edge_index[:, edge_index[0] != edge_index[1]].numpy()
    p = probs.double().numpy()
    labels, prediction = y.numpy(), probs.argmax(1).numpy()
    joint_true = p[i, labels[i]] * p[j, labels[j]]
    correct = (prediction == labels)[i] & (prediction == labels)[j]
    confidence = p.max(1)[i] * p.max(1)[j]
    square_sum = (p**2).sum(1)[i] * (p**2).sum(1)[j]
    bins = np.clip(np.ceil(confidence * 15) - 1, 0, 14).astype(int)
    for view, chosen in [("edgewise", i >= 0), ("agree", labels[i] == labels[j]), ("disagree", labels[i] != labels[j])]:
        scores = ev[view]
        assert scores.count == chosen.sum()
        assert scores.accuracy == pytest.approx(correct[chosen].mean(), abs=1e-12)
        assert scores.nll == pytest.approx(-np.log(joint_true[chosen]).mean(), rel=1e-9)
        brier = (1 - joint_true) ** 2 + square_sum - joint_true**2
        assert scores.brier == pytest.approx(brier[chosen].mean(), abs=1e-9)
        gap = np.bincount(bins[chosen], (correct - confidence)[chosen], minlength=15)
        assert scores.ece == pytest.approx(np.abs(gap).sum() / chosen.sum(), abs=1e-9)


def test_short_inputs_do_not_import_numba():
    """The import takes a second, which pays off only for long inputs."""
    code = (
        "import sys, torch, edgewise as ew\n"
        "ew.evaluate(torch.eye(3), torch.arange(3), torch.tensor([[0, 1], [1, 2]]), n_resamples=40)\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
