"""Confidence intervals by resampling nodes."""

import math

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.metrics import intervals
from helpers.random_predictions import random_case
from helpers.scripts import load_script


def heavy_tailed_edges(num_nodes, generator):
    """Edges of a graph with hubs, whose ends are drawn with Pareto weights."""
    weight = torch.rand(num_nodes, generator=generator, dtype=torch.float64) ** (-1 / 1.5)
    ends = torch.multinomial(weight, 6 * num_nodes, replacement=True, generator=generator).view(2, -1)
    return ends.sort(0).values.unique(dim=1)


def draw_prediction(num_nodes, generator):
    """Draw binary predictions whose confidence is 0.1 above the accuracy."""
    confidence = 0.6 + 0.4 * torch.rand(num_nodes, generator=generator, dtype=torch.float64)
    correct = torch.rand(num_nodes, generator=generator) < confidence - 0.1
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    return probs, (~correct).long()


def test_width_matches_repeated_experiments_unlike_resampled_edges():
    """Nodes are the independent draws. On a graph with hubs, resampling edges gives far too narrow intervals."""
    g = torch.Generator().manual_seed(0)
    n = 1500
    edge_index = heavy_tailed_edges(n, g)
    runs = [ew.evaluate(*draw_prediction(n, g), edge_index).edgewise for _ in range(200)]
    probs, y = draw_prediction(n, g)
    interval = ew.evaluate(probs, y, edge_index, n_resamples=400).intervals["edgewise"]
    correct = (y[edge_index] == 0).all(0).double()
    for metric in ("accuracy", "brier", "ece"):
        true_std = float(np.std([run[metric] for run in runs]))
        estimated_std = (interval[metric].high - interval[metric].low) / (2 * 1.96)
        assert 0.7 < estimated_std / true_std < 1.5, metric
    edge_std = float(correct.std()) / math.sqrt(len(correct))
    assert edge_std < 0.3 * float(np.std([run.accuracy for run in runs]))


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["ring", "matching"])
def test_intervals_are_conservative_if_few_edges_share_nodes(graph):
    g = torch.Generator().manual_seed(0)
    n = 1000
    nodes = torch.arange(n)
    edge_index = torch.stack([nodes, (nodes + 1) % n]) if graph == "ring" else nodes.view(2, -1)
    runs = [ew.evaluate(*draw_prediction(n, g), edge_index).edgewise.accuracy for _ in range(300)]
    interval = ew.evaluate(*draw_prediction(n, g), edge_index, n_resamples=400).intervals["edgewise"]["accuracy"]
    assert 1.0 < (interval.high - interval.low) / (2 * 1.96) / float(np.std(runs)) < 2.0


@pytest.fixture(scope="module")
def script():
    with load_script("ece_coverage") as module:
        yield module


def test_interval_of_a_calibrated_model_contains_zero_and_the_error(script):
    """Basic bootstrap intervals begin above zero in every second draw, percentile intervals in all."""
    drawn = list(script.evaluations(1.0, 200, 20, seed=0, n_bins=10))
    for view in ("nodewise", "edgewise"):
        found = [(ev.intervals[view]["ece"], ev[view].ece) for ev in drawn]
        assert sum(interval.low == 0 for interval, _ in found) >= 17
        assert all(interval.low <= error <= interval.high for interval, error in found)


def test_interval_of_a_clearly_miscalibrated_model_excludes_zero(script):
    for ev in script.evaluations(2.5, 500, 3, seed=0):
        for view in ("nodewise", "edgewise"):
            assert 0.05 < ev.intervals[view]["ece"].low < ev[view].ece < ev.intervals[view]["ece"].high


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_lower_bounds_of_errors_match_a_search(norm):
    """The smallest λ with ‖λg + e‖ >= ‖g‖, on a fine grid."""
    rng = np.random.default_rng(0)
    count = rng.integers(1, 30, (6, 5)).astype(float)
    confidence, correct = rng.random((6, 5)) * count, np.floor(rng.random((6, 5)) * (count + 1))
    sums = (*map(torch.from_numpy, (count, confidence, correct)), *torch.zeros(3, 6, dtype=torch.float64))
    observed, resampled = (
        intervals._WeightedSums(*(part[rows] for part in sums)) for rows in (slice(1), slice(1, None))
    )

    def gaps(k):
        gap, total = correct[k] - confidence[k], count[k].sum()
        return gap / {"l1": total, "l2": np.sqrt(count[k] * total), "max": count[k]}[norm]

    def length(x):
        return {"l1": np.abs(x).sum(), "l2": np.sqrt((x**2).sum()), "max": np.abs(x).max()}[norm]

    error = length(gaps(0))
    assert error == pytest.approx(float(observed.scores(norm)[0, 3]))
    scale = np.sqrt(np.maximum(count[0], 2) / (np.maximum(count[0], 2) - 1))
    found = intervals._lower_errors(intervals.Resampled(observed, resampled), norm)
    for k in range(1, 6):
        noise = (gaps(k) - gaps(0)) * scale
        grid = np.linspace(0, 4, 4001)
        smallest = grid[np.argmax([length(factor * gaps(0) + noise) >= error for factor in grid])]
        assert float(found[k - 1]) == pytest.approx(smallest * error, abs=0.0011 * error)


@pytest.mark.parametrize("sign", [1, -1])
def test_lower_bound_is_at_least_that_of_the_mean_gap(sign):
    rng = np.random.default_rng(0)
    mean_gap, resampled = sign * 0.6, sign * 0.6 + rng.normal(0, 0.1, 400)
    nearest = 2 * abs(mean_gap) - np.quantile(sign * resampled, 1 - 0.0125)
    for lower_error in (0.0, 0.9):
        found = intervals._lower_bound(
            torch.full((400,), lower_error).double(),
            torch.tensor(mean_gap).double(),
            torch.from_numpy(resampled),
            0.025,
        )
        assert float(found) == pytest.approx(max(lower_error, nearest))


def test_interval_of_few_wrong_edges_excludes_zero_as_that_of_their_accuracy_does():
    """Forty edges of confidence about 0.8 that are nearly all wrong: single bins are noise, their mean is not."""
    rng = np.random.default_rng(0)
    n = 80
    confidence = rng.uniform(0.85, 0.95, n)
    y = np.arange(n) % 2  # one end of each edge is wrong
    ev = ew.evaluate(np.c_[confidence, 1 - confidence], y, np.arange(n).reshape(-1, 2).T, n_resamples=400, n_bins=50)
    accuracy, ece = ev.intervals["edgewise"]["accuracy"], ev.intervals["edgewise"]["ece"]
    assert accuracy.high < 0.05 and ece.low > 0.5
    assert ece.low <= ev.edgewise.ece <= ece.high


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_lower_bound_of_a_perfect_model_is_zero_at_the_nominal_rate(script, norm):
    drawn = list(script.evaluations(1.0, 500, 80, seed=1, norm=norm))
    for view in ("nodewise", "edgewise"):
        num_zero = sum(ev.intervals[view]["ece"].low == 0 for ev in drawn)
        assert num_zero >= (66 if norm == "max" else 71), (view, num_zero)


@pytest.mark.slow
def test_interval_covers_the_true_error_and_excludes_zero_if_it_is_large(script):
    mild, strong = (script.measure(temperature, 500, 80) for temperature in (1.2, 2.0))
    for view in ("nodewise", "edgewise"):
        assert mild[view].covered > 0.87 and strong[view].covered > 0.85
        assert strong[view].above_zero > 0.95


@pytest.mark.slow
def test_coverage_is_near_the_confidence_level():
    g = torch.Generator().manual_seed(1)
    n = 600
    edge_index = heavy_tailed_edges(n, g)
    expected = {"accuracy": 0.7, "ece": 0.1}  # of nodes, by construction
    edge_truth = np.mean([ew.evaluate(*draw_prediction(n, g), edge_index).edgewise.accuracy for _ in range(300)])
    covered = {"accuracy": 0, "ece": 0, "edges": 0}
    repeats = 80
    for _ in range(repeats):
        ev = ew.evaluate(*draw_prediction(n, g), edge_index, n_resamples=150, confidence_level=0.9)
        for metric, truth in expected.items():
            interval = ev.intervals["nodewise"][metric]
            covered[metric] += interval.low <= truth <= interval.high
        interval = ev.intervals["edgewise"]["accuracy"]
        covered["edges"] += interval.low <= edge_truth <= interval.high
    for name, count in covered.items():
        assert count / repeats > 0.78, name


def test_intervals_contain_the_score_and_grow_with_the_confidence_level():
    probs, y, edge_index, mask = random_case(0, num_nodes=300, num_edges=900)
    narrow, wide = (
        ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=200, confidence_level=level) for level in (0.5, 0.99)
    )
    for view in ew.VIEWS:
        for metric in ("accuracy", "nll", "brier"):
            inner, outer = narrow.intervals[view][metric], wide.intervals[view][metric]
            assert outer.low <= inner.low <= inner.high <= outer.high
            assert outer.low <= wide[view][metric] <= outer.high


def test_intervals_are_reproducible_and_keep_the_global_random_state():
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=100)
    state = torch.random.get_rng_state()
    first, again, other = (
        ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=40, seed=seed).intervals for seed in (3, 3, 4)
    )
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)


def test_scores_do_not_depend_on_resamples():
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=100)
    plain = ew.evaluate(probs, y, edge_index, mask=mask)
    with_intervals = ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=40)
    assert plain.intervals == {}
    assert plain.scalars() == with_intervals.scalars()


def test_intervals_of_empty_views_and_infinite_scores():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    ev = ew.evaluate(probs, torch.tensor([1, 1, 1]), torch.tensor([[0, 1], [1, 2]]), n_resamples=40)
    assert math.isnan(ev.intervals["disagree"]["ece"].low)
    assert (ev.intervals["agree"]["nll"].low, ev.intervals["agree"]["nll"].high) == (math.inf, math.inf)
    assert ev.intervals["nodewise"]["accuracy"].low == 0.0


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_intervals_for_all_edge_choices_and_binnings(binning):
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=100)
    for choice in ("both", "any", "all"):
        ev = ew.evaluate(probs, y, edge_index, mask=mask, edge_choice=choice, binning=binning, n_resamples=50)
        interval = ev.intervals["edgewise"]["brier"]
        assert interval.low < ev.edgewise.brier < interval.high


def test_ends_outside_the_mask_are_resampled():
    """Only the center of a star is in the mask, but the uncertainty of its edges comes from the leaves."""
    g = torch.Generator().manual_seed(0)
    probs, y = draw_prediction(200, g)
    y[0] = 0
    star = torch.stack([torch.zeros(199, dtype=torch.long), torch.arange(1, 200)])
    mask = torch.arange(200) == 0
    interval = ew.evaluate(probs, y, star, mask=mask, edge_choice="any", n_resamples=200).intervals["edgewise"][
        "accuracy"
    ]
    assert interval.high - interval.low > 0.05


def test_too_few_resamples_for_the_level_are_reported():
    probs, y, edge_index, mask = random_case(0)
    for n_resamples, level in ((1, 0.95), (39, 0.95), (199, 0.99), (3, 0.5)):
        with pytest.warns(
            UserWarning, match=f"^{n_resamples} resample.*n_resamples of at least {round(2 / (1 - level))}"
        ):
            ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=n_resamples, confidence_level=level)
    for n_resamples, level in ((0, 0.95), (40, 0.95), (200, 0.99), (4, 0.5)):
        ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=n_resamples, confidence_level=level)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_intervals_of_the_event_match_a_loop_over_resamples(binning):
    rng = np.random.default_rng(0)
    probs, y, edges = rng.dirichlet([1, 1, 1], 200), rng.integers(0, 3, 200), rng.integers(0, 200, (2, 400))
    start, end = np.array(sorted({(min(i, j), max(i, j)) for i, j in edges.T.tolist() if i != j})).T
    happened = y[start] == y[end]
    p_same = (probs[start] * probs[end]).sum(1)
    nll = -np.log(np.where(happened, p_same, 1 - p_same))
    resampled = []
    for _ in range(4000):
        times = np.bincount(rng.integers(0, 200, 200), minlength=200)
        resampled.append([np.average(score, weights=times[start] * times[end]) for score in (happened, nll)])
    ev = ew.evaluate(probs, y, np.stack((start, end)), n_resamples=4000, binning=binning)
    for k, (metric, score) in enumerate((("frequency", happened.mean()), ("nll", nll.mean()))):
        high, low = np.quantile(np.array(resampled)[:, k], [0.025, 0.975])
        interval = ev.intervals["same_label"][metric]
        assert interval.low == pytest.approx(2 * score - low, abs=0.01)
        assert interval.high == pytest.approx(2 * score - high, abs=0.01)
    assert "same_label" not in ew.evaluate(probs, y, edges, n_resamples=40, same_label=False).intervals
