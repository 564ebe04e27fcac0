"""Confidence intervals by resampling nodes.

Edges share nodes, so edges are not independent: resampling edges gives intervals several times too narrow on a graph
with hubs. A resample draws as many nodes as there are, with replacement; a node drawn w_i times weighs w_i, and an edge
weighs w_i · w_j. Bins stay as they are.

The interval is the basic one, [2s - q(1-α/2), 2s - q(α/2)] for a score s and the quantiles q of its resamples. A
calibration error is never negative, so noise pushes it up, and pushes its resamples up once more: quantiles alone can
lie above the truth altogether, their mirror image does not. It may lie below the score itself.

Weights w_i · w_j triple the variance of what two edges do not share, so on a graph whose edges hardly share nodes the
intervals are too wide, by √3 at the most. On graphs with hubs the shared part is what counts.
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
from edgewise.metrics.sums import VIEWS, Sums, bin_index

CHUNK_ELEMENTS = 1 << 22
HIGHEST = {"accuracy": 1.0, "nll": math.inf, "brier": 2.0, "ece": 1.0}


class _View(NamedTuple):
    """The elements of a view, their bins, and the nodes (one or two each) whose weights they bear."""

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
    """Compute an interval for each metric of each view."""
    views = [
        _View(of_view, bin_index(of_view.confidence, binning, sums[view].boundaries), nodes)
        for view, (of_view, nodes) in elements.items()
    ]
    population = mask.clone()
    population[elements["edgewise"].nodes.flatten()] = True
    once = _scores(views, population.double().unsqueeze(0), binning.n_bins, norm)
    resampled = [
        _scores(views, weights, binning.n_bins, norm) for weights in _draw_weights(population, n_resamples, seed)
    ]
    return _basic_intervals(once[0], torch.cat(resampled), confidence_level)


def _draw_weights(
    population: Bool[Tensor, " nodes"], n_resamples: int, seed: int
) -> Iterator[Float[Tensor, "resamples nodes"]]:
    """Draw how often each node of the population is in a resample, several resamples at a time."""
    generator = torch.Generator().manual_seed(seed)
    ids = population.nonzero().squeeze(1)
    step = max(1, CHUNK_ELEMENTS // max(1, len(population)))
    for first in range(0, n_resamples, step):
        num = min(step, n_resamples - first)
        weights = torch.zeros(num, len(population), dtype=torch.float64, device=population.device)
        if len(ids):
            # Always drawn on the CPU: a seed means the same resamples on every device.
            drawn = ids[torch.randint(len(ids), (num, len(ids)), generator=generator).to(ids.device)]
            weights.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
        yield weights


def _scores(
    views: list[_View], weights: Float[Tensor, "resamples nodes"], n_bins: int, norm: Norm
) -> Float[Tensor, "resamples views metrics"]:
    """Score every view under every resample, metrics in the order of METRICS."""
    return torch.stack([_view_scores(view, weights, n_bins, norm) for view in views], dim=1).cpu()


def _view_scores(
    view: _View, weights: Float[Tensor, "resamples nodes"], n_bins: int, norm: Norm
) -> Float[Tensor, "resamples metrics"]:
    """Turn weights into sums by one matrix product: a column for each sum, a row for each element."""
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
    """Return count, confidence and correct by bin, then nll, truths of probability zero, and brier."""
    in_bin = torch.nn.functional.one_hot(bins, n_bins).double()
    possible = elements.nll.isfinite()
    nll = torch.where(possible, elements.nll, 0.0)
    totals = torch.stack([nll, (~possible).double(), elements.brier], dim=1)
    of_bins = [in_bin, in_bin * elements.confidence[:, None], in_bin * elements.correct[:, None]]
    return torch.cat([*of_bins, totals], dim=1)


def _basic_intervals(
    once: Float[Tensor, "views metrics"], resampled: Float[Tensor, "resamples views metrics"], confidence_level: float
) -> Intervals:
    """Mirror the quantiles of the resamples at the score, within the range that the score can have."""
    tail = (1.0 - confidence_level) / 2
    levels = torch.tensor([1.0 - tail, tail], dtype=torch.float64)
    # A resample without a single element of a view says nothing about it: NaN, which nanquantile leaves out.
    mirrored = 2 * once - resampled.nanquantile(levels, dim=0)
    mirrored = torch.where(once == math.inf, math.inf, mirrored)
    intervals: dict[str, dict[str, Interval]] = {}
    for v, view in enumerate(VIEWS):
        intervals[view] = {}
        for m, metric in enumerate(METRICS):
            low, high = mirrored[:, v, m].clamp(0.0, HIGHEST[metric]).tolist()
            intervals[view][metric] = Interval(low, high)
    return intervals
