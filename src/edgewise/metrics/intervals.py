"""Confidence intervals by resampling nodes.

Edges share nodes, so they are not independent: resampling edges gives intervals that are several times too narrow on a
graph with hubs. A resample draws n of the n nodes with replacement. A node that is drawn w_i times has weight w_i, and
an edge has weight w_i · w_j. Bins are not recomputed.

The interval is the basic bootstrap interval [2s - q(1-α/2), 2s - q(α/2)], for a score s and the quantiles q of its
resamples. A calibration error is never negative, so noise biases it upward, and biases its resamples upward once more.
A percentile interval can therefore lie entirely above the true value. The basic interval does not, but it may lie below
the score itself.

Weights w_i · w_j triple the variance of the terms that edges do not share. So the intervals are too wide, by at most a
factor √3, on a graph where few edges share nodes. On graphs with hubs the shared terms dominate.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.metrics.collect import ViewElements
from edgewise.metrics.elements import Elements
from edgewise.metrics.evaluation import Interval, Intervals
from edgewise.metrics.scores import METRICS, Norm, calibration_error
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import Sums, bin_index

CHUNK_ELEMENTS = 1 << 22
MAX_SCORE = {"accuracy": 1.0, "nll": math.inf, "brier": 2.0, "ece": 1.0}


class _View(NamedTuple):
    """Elements of a view, their bins, and their nodes (one or two each), whose weights are multiplied."""

    elements: Elements
    bins: Int[Tensor, " elements"]
    nodes: Int[Tensor, "ends elements"]


def node_resampling_intervals(
    elements: dict[str, ViewElements],
    sums: dict[str, Sums],
    mask: Bool[Tensor, " nodes"],
    binning: Binning,
    norm: Norm,
    n_resamples: int,
    confidence_level: float,
    seed: int,
) -> Intervals:
    """Compute an interval for each metric of each view. The accuracy of the event "same label" is its frequency."""
    views = [
        _View(view_elements, bin_index(view_elements.confidence, binning, sums[view].boundaries), nodes)
        for view, (view_elements, nodes) in elements.items()
    ]
    population = mask.clone()
    population[elements["edgewise"].nodes.flatten()] = True
    original = _scores(views, population.double().unsqueeze(0), binning.n_bins, norm)
    resampled = [
        _scores(views, weights, binning.n_bins, norm) for weights in _draw_weights(population, n_resamples, seed)
    ]
    return _basic_intervals(list(elements), original[0], torch.cat(resampled), confidence_level)


def _draw_weights(
    population: Bool[Tensor, " nodes"], n_resamples: int, seed: int
) -> Iterator[Float[Tensor, "resamples nodes"]]:
    """Yield the number of times that each node is drawn, for several resamples at a time."""
    generator = torch.Generator().manual_seed(seed)
    ids = population.nonzero().squeeze(1)
    step = max(1, CHUNK_ELEMENTS // max(1, len(population)))
    for first in range(0, n_resamples, step):
        num = min(step, n_resamples - first)
        weights = torch.zeros(num, len(population), dtype=torch.float64, device=population.device)
        if len(ids):
            # Drawn on the CPU, so that a seed gives the same resamples on every device.
            drawn = ids[torch.randint(len(ids), (num, len(ids)), generator=generator).to(ids.device)]
            weights.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
        yield weights


def _scores(
    views: list[_View], weights: Float[Tensor, "resamples nodes"], n_bins: int, norm: Norm
) -> Float[Tensor, "resamples views metrics"]:
    """Compute the scores of each view and resample, with metrics in the order of METRICS."""
    return torch.stack([_view_scores(view, weights, n_bins, norm) for view in views], dim=1).cpu()


def _view_scores(
    view: _View, weights: Float[Tensor, "resamples nodes"], n_bins: int, norm: Norm
) -> Float[Tensor, "resamples metrics"]:
    """Compute the scores from weighted sums, weights (resamples, elements) times terms (elements, sums)."""
    sums = weights.new_zeros(len(weights), 3 * n_bins + 3)
    step = max(1, CHUNK_ELEMENTS // max(len(weights), 3 * n_bins + 3))
    for lo in range(0, len(view.bins), step):
        part = slice(lo, lo + step)
        columns = _columns(Elements(*(column[part] for column in view.elements)), view.bins[part], n_bins)
        sums += weights[:, view.nodes[:, part]].prod(1) @ columns
    count, confidence, correct = sums[:, : 3 * n_bins].view(-1, 3, n_bins).unbind(1)
    nll, impossible, brier = sums[:, 3 * n_bins :].unbind(1)
    nll = torch.where(impossible > 0, math.inf, nll)
    total = count.sum(1)
    return torch.stack(
        [correct.sum(1) / total, nll / total, brier / total, calibration_error(count, confidence, correct, norm)], dim=1
    )


def _columns(elements: Elements, bins: Int[Tensor, " elements"], n_bins: int) -> Float[Tensor, "elements columns"]:
    """Return count, confidence and correct per bin, then NLL, whether p_true is zero, and Brier score."""
    in_bin = torch.nn.functional.one_hot(bins, n_bins).double()
    possible = elements.nll.isfinite()
    nll = torch.where(possible, elements.nll, 0.0)
    totals = torch.stack([nll, (~possible).double(), elements.brier], dim=1)
    per_bin = [in_bin, in_bin * elements.confidence[:, None], in_bin * elements.correct[:, None]]
    return torch.cat([*per_bin, totals], dim=1)


def _basic_intervals(
    views: list[str],
    original: Float[Tensor, "views metrics"],
    resampled: Float[Tensor, "resamples views metrics"],
    confidence_level: float,
) -> Intervals:
    """Reflect the quantiles of the resamples at the original score, and clamp to the range of the metric."""
    tail = (1.0 - confidence_level) / 2
    levels = torch.tensor([1.0 - tail, tail], dtype=torch.float64)
    # A resample without elements of a view has NaN scores, which nanquantile ignores.
    reflected = 2 * original - resampled.nanquantile(levels, dim=0)
    reflected = torch.where(original == math.inf, math.inf, reflected)
    intervals: dict[str, dict[str, Interval]] = {}
    for v, view in enumerate(views):
        intervals[view] = {}
        for m, metric in enumerate(METRICS):
            low, high = reflected[:, v, m].clamp(0.0, MAX_SCORE[metric]).tolist()
            name = "frequency" if view == "same_label" and metric == "accuracy" else metric
            intervals[view][name] = Interval(low, high)
    return intervals
