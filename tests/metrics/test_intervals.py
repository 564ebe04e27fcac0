import math

import numpy as np
import pytest
import torch

import edgewise as ew
from helpers.random_predictions import random_case


def heavy_tailed_edges(num_nodes, generator):
    """A graph with hubs: ends are drawn in proportion to Pareto weights."""
    weight = torch.rand(num_nodes, generator=generator, dtype=torch.float64) ** (-1 / 1.5)
    ends = torch.multinomial(weight, 6 * num_nodes, replacement=True, generator=generator).view(2, -1)
    return ends.sort(0).values.unique(dim=1)


def draw_prediction(num_nodes, generator):
    """Binary predictions with 10 points too much confidence."""
    confidence = 0.6 + 0.4 * torch.rand(num_nodes, generator=generator, dtype=torch.float64)
    correct = torch.rand(num_nodes, generator=generator) < confidence - 0.1
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    return probs, (~correct).long()


def test_width_is_that_of_repeated_experiments_and_not_that_of_resampled_edges():
    """Nodes are the independent draws: on a graph with hubs, resampling edges is several times too sure."""
    g = torch.Generator().manual_seed(0)
    n = 1500
    edge_index = heavy_tailed_edges(n, g)
    runs = [ew.evaluate(*draw_prediction(n, g), edge_index).edgewise for _ in range(200)]
    probs, y = draw_prediction(n, g)
    interval = ew.evaluate(probs, y, edge_index, n_resamples=400).intervals["edgewise"]
    right = (y[edge_index] == 0).all(0).double()
    for metric in ("accuracy", "brier", "ece"):
        true_std = float(np.std([run[metric] for run in runs]))
        ours = (interval[metric].high - interval[metric].low) / (2 * 1.96)
        assert 0.7 < ours / true_std < 1.5, metric
    by_edges = float(right.std()) / math.sqrt(len(right))
    assert by_edges < 0.3 * float(np.std([run.accuracy for run in runs]))


@pytest.mark.parametrize("graph", ["ring", "matching"])
def test_where_edges_hardly_share_nodes_intervals_are_wide_by_root_three_at_most(graph):
    g = torch.Generator().manual_seed(0)
    n = 1000
    nodes = torch.arange(n)
    edge_index = torch.stack([nodes, (nodes + 1) % n]) if graph == "ring" else nodes.view(2, -1)
    runs = [ew.evaluate(*draw_prediction(n, g), edge_index).edgewise.accuracy for _ in range(300)]
    interval = ew.evaluate(*draw_prediction(n, g), edge_index, n_resamples=400).intervals["edgewise"]["accuracy"]
    assert 1.0 < (interval.high - interval.low) / (2 * 1.96) / float(np.std(runs)) < 2.0


def test_a_calibrated_model_may_well_have_no_error():
    """Plain quantiles of the resamples lie above the truth, zero, altogether."""
    g = torch.Generator().manual_seed(0)
    holds_zero = 0
    for _ in range(20):
        probs = 0.5 + 0.5 * torch.rand(400, 1, generator=g, dtype=torch.float64)
        y = (torch.rand(400, generator=g) >= probs[:, 0]).long()
        ev = ew.evaluate(torch.cat([probs, 1 - probs], dim=1), y, torch.arange(400).view(2, -1), n_resamples=100)
        holds_zero += ev.intervals["nodewise"]["ece"].low < 0.01
    assert holds_zero >= 15


def test_coverage_is_near_the_level():
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


def test_intervals_hold_the_score_and_grow_with_the_level():
    probs, y, edge_index, mask = random_case(0, num_nodes=300, num_edges=900)
    narrow, wide = (
        ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=200, confidence_level=level) for level in (0.5, 0.99)
    )
    for view in ew.VIEWS:
        for metric in ("accuracy", "nll", "brier"):
            inner, outer = narrow.intervals[view][metric], wide.intervals[view][metric]
            assert outer.low <= inner.low <= inner.high <= outer.high
            assert outer.low <= wide[view][metric] <= outer.high


def test_a_seed_gives_the_same_interval_and_leaves_other_generators_alone():
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=100)
    state = torch.random.get_rng_state()
    first, again, other = (
        ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=20, seed=seed).intervals for seed in (3, 3, 4)
    )
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), state)


def test_without_resamples_there_are_no_intervals_and_scores_do_not_depend_on_them():
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=100)
    plain = ew.evaluate(probs, y, edge_index, mask=mask)
    with_intervals = ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=5)
    assert plain.intervals == {}
    assert plain.scalars() == with_intervals.scalars()


def test_a_view_that_is_empty_or_infinite_has_no_interval():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    ev = ew.evaluate(probs, torch.tensor([1, 1, 1]), torch.tensor([[0, 1], [1, 2]]), n_resamples=20)
    assert math.isnan(ev.intervals["disagree"]["ece"].low)
    assert (ev.intervals["agree"]["nll"].low, ev.intervals["agree"]["nll"].high) == (math.inf, math.inf)
    assert ev.intervals["nodewise"]["accuracy"].low == 0.0


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_every_choice_of_edges_and_bins(binning):
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=100)
    for choice in ("both", "any", "all"):
        ev = ew.evaluate(probs, y, edge_index, mask=mask, edge_choice=choice, binning=binning, n_resamples=50)
        interval = ev.intervals["edgewise"]["brier"]
        assert interval.low < ev.edgewise.brier < interval.high


def test_ends_outside_the_mask_are_resampled_too():
    """A star: its center is scored, and its leaves bear all the uncertainty of its edges."""
    g = torch.Generator().manual_seed(0)
    probs, y = draw_prediction(200, g)
    y[0] = 0
    star = torch.stack([torch.zeros(199, dtype=torch.long), torch.arange(1, 200)])
    mask = torch.arange(200) == 0
    interval = ew.evaluate(probs, y, star, mask=mask, edge_choice="any", n_resamples=200).intervals["edgewise"][
        "accuracy"
    ]
    assert interval.high - interval.low > 0.05
