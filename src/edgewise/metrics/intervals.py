"""Confidence intervals by resampling nodes.

Edges share nodes, so they are not independent: resampling edges gives intervals that are several times too narrow on a
graph with hubs. A resample draws n of the n nodes with replacement. A node that is drawn w_i times has weight w_i, and
an edge has weight w_i · w_j. Bins are not recomputed.

The interval is the basic bootstrap interval [2s - q(1-α/2), 2s - q(α/2)], for a score s and the quantiles q of its
resamples. A calibration error needs another one. It is a norm ‖g‖ of the gaps g_k = accuracy - confidence of the bins,
weighted by their counts, and noise only raises a norm. Near zero, where all gaps are noise, the basic interval begins
above the true error in every second case.

- The lower bound inverts a test. Resampled gaps g* show the noise e = g* - g. If the true gaps were λg, the measured
  error would be ‖λg + e‖. The lower bound is λ‖g‖ for the smallest λ >= 0 at which an error of ‖g‖ or more has
  probability α/2. It is 0 if the noise alone reaches ‖g‖ so often, so the interval of a perfect model contains 0.
  Resamples of n_k elements of a bin understate its variance by the factor (n_k - 1) / n_k, which is corrected.
- A calibration error is at least the absolute mean gap |accuracy - confidence| of all elements, which is less noisy
  than the gaps of single bins. The lower bound is the larger of both lower bounds, each at half of the tail α/2.
- The upper bound is s + q(1/2) - q(α/2), without a correction for bias: s is at least the true error on average.

Weights w_i · w_j triple the variance of the terms that edges do not share. So the intervals are too wide, by at most a
factor √3, on a graph where few edges share nodes. On graphs with hubs the shared terms dominate.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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
NUM_BISECTIONS = 40
ECE = METRICS.index("ece")
ORDER: dict[Norm, float] = {"l1": 1, "l2": 2, "max": math.inf}
MAX_SCORE = {"accuracy": 1.0, "nll": math.inf, "brier": 2.0, "ece": 1.0}


class _View(NamedTuple):
    """Elements of a view, their bins, and their nodes (one or two each), whose weights are multiplied."""

    elements: Elements
    bins: Int[Tensor, " elements"]
    nodes: Int[Tensor, "ends elements"]


@dataclass(frozen=True)
class _WeightedSums:
    """Weighted sums of the elements of a view: of each bin, and of all elements."""

    count: Float[Tensor, "resamples bins"]
    confidence: Float[Tensor, "resamples bins"]
    correct: Float[Tensor, "resamples bins"]
    nll: Float[Tensor, " resamples"]
    impossible: Float[Tensor, " resamples"]
    brier: Float[Tensor, " resamples"]

    def scores(self, norm: Norm) -> Float[Tensor, "resamples metrics"]:
        """Compute the scores, in the order of METRICS."""
        total = self.count.sum(1)
        nll = torch.where(self.impossible > 0, math.inf, self.nll)
        error = calibration_error(self.count, self.confidence, self.correct, norm)
        return torch.stack([self.correct.sum(1) / total, nll / total, self.brier / total, error], dim=1)

    def mean_gap(self) -> Float[Tensor, " resamples"]:
        """Compute accuracy - confidence of all elements together."""
        return (self.correct - self.confidence).sum(1) / self.count.sum(1)

    def gaps(self, norm: Norm) -> Float[Tensor, "resamples bins"]:
        """Compute accuracy - confidence of each bin, weighted such that its norm is the calibration error."""
        total, count = self.count.sum(1, keepdim=True), self.count.clamp(min=1)
        weight = {"l1": total, "l2": (count * total).sqrt(), "max": torch.where(total > 0, count, math.nan)}[norm]
        return (self.correct - self.confidence) / weight


class Resampled(NamedTuple):
    """Weighted sums of a view: of all elements with weight 1, and of the resamples."""

    observed: _WeightedSums
    resampled: _WeightedSums

    def noise(self, norm: Norm) -> Float[Tensor, "resamples bins"]:
        """Compute how far the gaps of each resample are from the observed gaps.

        Resamples of n elements of a bin understate its variance by the factor (n - 1) / n, which is corrected.
        """
        count = self.observed.count.clamp(min=2)
        return (self.resampled.gaps(norm) - self.observed.gaps(norm)) * (count / (count - 1)).sqrt()


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
    population = resampled_nodes(mask, elements["edgewise"].nodes)
    observed = [_weighted_sums(view, population.double().unsqueeze(0), binning.n_bins) for view in views]
    resampled: list[list[Tensor]] = [[] for _ in views]
    lower_errors: list[list[Tensor]] = [[] for _ in views]
    mean_gaps: list[list[Tensor]] = [[] for _ in views]
    for weights in draw_weights(population, n_resamples, seed):
        for v, view in enumerate(views):
            sums_of_view = _weighted_sums(view, weights, binning.n_bins)
            resampled[v].append(sums_of_view.scores(norm))
            lower_errors[v].append(_lower_errors(Resampled(observed[v], sums_of_view), norm))
            mean_gaps[v].append(sums_of_view.mean_gap())
    tail = (1.0 - confidence_level) / 2
    return {
        view: _view_intervals(
            view,
            observed[v].scores(norm)[0],
            torch.cat(resampled[v]),
            _lower_bound(torch.cat(lower_errors[v]), observed[v].mean_gap()[0], torch.cat(mean_gaps[v]), tail),
            tail,
        )
        for v, view in enumerate(elements)
    }


def resample_models(
    models: Sequence[Mapping[str, ViewElements]],
    boundaries: Sequence[Mapping[str, Float[Tensor, " limits"]]],
    mask: Bool[Tensor, " nodes"],
    binning: Binning,
    n_resamples: int,
    seed: int,
) -> list[dict[str, Resampled]]:
    """Compute the weighted sums of each view of several models, with the same resamples of nodes for all."""
    views = [
        {
            view: _View(view_elements, bin_index(view_elements.confidence, binning, limits[view]), nodes)
            for view, (view_elements, nodes) in elements.items()
        }
        for elements, limits in zip(models, boundaries, strict=True)
    ]
    population = resampled_nodes(mask, models[0]["edgewise"].nodes)
    observed = population.double().unsqueeze(0)
    draws: list[list[dict[str, _WeightedSums]]] = [[] for _ in models]
    for weights in draw_weights(population, n_resamples, seed):
        for of_model, draws_of_model in zip(views, draws, strict=True):
            draws_of_model.append({name: _weighted_sums(v, weights, binning.n_bins) for name, v in of_model.items()})
    return [
        {
            name: Resampled(
                _weighted_sums(view, observed, binning.n_bins), _concatenate([part[name] for part in draws_of_model])
            )
            for name, view in of_model.items()
        }
        for of_model, draws_of_model in zip(views, draws, strict=True)
    ]


def _concatenate(parts: Sequence[_WeightedSums]) -> _WeightedSums:
    return _WeightedSums(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(_WeightedSums)))


def resampled_nodes(mask: Bool[Tensor, " nodes"], edges: Int[Tensor, "2 edges"]) -> Bool[Tensor, " nodes"]:
    """Return the mask of the nodes to draw from: scored nodes, and the ends of scored edges."""
    population = mask.clone()
    population[edges.flatten()] = True
    return population


def draw_weights(
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


def resampled_fraction_interval(
    hits: Bool[Tensor, " edges"],
    edges: Int[Tensor, "2 edges"],
    population: Bool[Tensor, " nodes"],
    n_resamples: int,
    confidence_level: float,
    seed: int,
) -> tuple[float, float]:
    """Compute the basic bootstrap interval of a fraction of edges, from resampled nodes.

    It is (0, 1) without edges, and if no resample has any.
    """
    if not len(hits):
        return 0.0, 1.0
    fractions = []
    for weights in draw_weights(population, n_resamples, seed):
        total, correct = weights.new_zeros(2, len(weights))
        for part in torch.arange(len(hits)).split(max(1, CHUNK_ELEMENTS // len(weights))):
            of_edges = weights[:, edges[:, part]].prod(1)
            total += of_edges.sum(1)
            correct += of_edges[:, hits[part]].sum(1)
        fractions.append(correct / total)
    tail = (1.0 - confidence_level) / 2
    levels = torch.tensor([1.0 - tail, tail], dtype=torch.float64)
    bounds = (2 * hits.double().mean() - torch.cat(fractions).nanquantile(levels)).clamp(0.0, 1.0)
    low, high = (0.0, 1.0) if bool(bounds.isnan().any()) else bounds.tolist()
    return low, high


def _weighted_sums(view: _View, weights: Float[Tensor, "resamples nodes"], n_bins: int) -> _WeightedSums:
    """Compute weighted sums, weights (resamples, elements) times terms (elements, sums)."""
    weights = weights.to(view.bins.device)
    sums = weights.new_zeros(len(weights), 3 * n_bins + 3)
    step = max(1, CHUNK_ELEMENTS // max(len(weights), 3 * n_bins + 3))
    for lo in range(0, len(view.bins), step):
        part = slice(lo, lo + step)
        columns = _columns(Elements(*(column[part] for column in view.elements)), view.bins[part], n_bins)
        sums += weights[:, view.nodes[:, part]].prod(1) @ columns
    sums = sums.cpu()
    return _WeightedSums(*sums[:, : 3 * n_bins].view(-1, 3, n_bins).unbind(1), *sums[:, 3 * n_bins :].unbind(1))


def _lower_errors(view: Resampled, norm: Norm) -> Float[Tensor, " resamples"]:
    """Return λ‖g‖ of each resample, for the smallest λ >= 0 with ‖λg + e‖ >= ‖g‖, where e are its gaps minus g.

    ‖λg + e‖ is convex in λ. So if ‖e‖ < ‖g‖, there is a single λ, from 0 to 1 + ‖e‖ / ‖g‖, and it is found by
    bisection. NaN for a resample without elements.
    """
    gaps, noise = view.observed.gaps(norm), view.noise(norm)
    error, noise_error = norm_of_gaps(gaps, norm), norm_of_gaps(noise, norm)
    low, high = torch.zeros_like(noise_error), 1 + noise_error / error
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        is_below = norm_of_gaps(middle.unsqueeze(1) * gaps + noise, norm) < error
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    # Also 0 without any gaps, where noise and error are 0.
    return torch.where(noise_error.isnan(), math.nan, torch.where(noise_error < error, low * error, 0.0))


def _lower_bound(
    lower_errors: Float[Tensor, " resamples"],
    mean_gap: Float[Tensor, ""],
    mean_gaps: Float[Tensor, " resamples"],
    tail: float,
) -> Float[Tensor, ""]:
    """Return the lower bound of a calibration error: from the gaps of bins, or from the mean gap if that is larger."""
    levels = torch.tensor([tail / 2, 1 - tail / 2], dtype=torch.float64)
    small, large = mean_gaps.nanquantile(levels)
    # 2d - q are the bounds of the mean gap. The one nearer to 0 bounds its absolute value, if both have the sign of d.
    nearest = torch.minimum(mean_gap.sign() * (2 * mean_gap - small), mean_gap.sign() * (2 * mean_gap - large))
    return torch.maximum(lower_errors.nanquantile(tail / 2), nearest.clamp(min=0.0))


def norm_of_gaps(gaps: Float[Tensor, "*runs bins"], norm: Norm) -> Float[Tensor, "*runs"]:
    """Compute the calibration error from the weighted gaps of the bins."""
    error: Tensor = torch.linalg.vector_norm(gaps, ORDER[norm], dim=-1)
    return error


def _columns(elements: Elements, bins: Int[Tensor, " elements"], n_bins: int) -> Float[Tensor, "elements columns"]:
    """Return count, confidence and correct per bin, then NLL, whether p_true is zero, and Brier score."""
    in_bin = torch.nn.functional.one_hot(bins, n_bins).double()
    possible = elements.nll.isfinite()
    nll = torch.where(possible, elements.nll, 0.0)
    totals = torch.stack([nll, (~possible).double(), elements.brier], dim=1)
    per_bin = [in_bin, in_bin * elements.confidence[:, None], in_bin * elements.correct[:, None]]
    return torch.cat([*per_bin, totals], dim=1)


def _view_intervals(
    view: str,
    observed: Float[Tensor, " metrics"],
    resampled: Float[Tensor, "resamples metrics"],
    lower_error: Float[Tensor, ""],
    tail: float,
) -> dict[str, Interval]:
    """Compute the interval of each metric of a view, within the range of the metric."""
    levels = torch.tensor([1.0 - tail, tail, 0.5], dtype=torch.float64)
    # A resample without elements of a view has NaN scores, which nanquantile ignores.
    large, small, median = resampled.nanquantile(levels, dim=0)
    low, high = 2 * observed - large, 2 * observed - small
    low[ECE], high[ECE] = lower_error, (observed + median - small)[ECE]
    bounds = torch.where(observed == math.inf, math.inf, torch.stack((low, high)))
    intervals = {}
    for m, metric in enumerate(METRICS):
        name = "frequency" if view == "same_label" and metric == "accuracy" else metric
        intervals[name] = Interval(*bounds[:, m].clamp(0.0, MAX_SCORE[metric]).tolist())
    return intervals
