"""Decomposition of scores into miscalibration, discrimination and uncertainty, and isotonic reliability curves.

For forecasts f of a binary event with outcomes y, the isotonic regression g of y on f recalibrates f, and r is the
fraction of events. A proper score S, a mean over elements, has three parts (Dimitriadis, Gneiting and Jordan 2021):

    S(f, y) = miscalibration - discrimination + uncertainty
            = [S(f, y) - S(g, y)] - [S(r, y) - S(g, y)] + S(r, y)

No number of bins has to be chosen, and no part is negative. All forecasts are needed at once, sorted: 8 bytes per
element.
"""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.metrics.collect import ViewElements
from edgewise.metrics.forecasts import IsotonicFit, Keys, ScoreSums, fit_isotonic, sum_scores
from edgewise.metrics.intervals import draw_weights
from edgewise.metrics.score_parts import Decomposition, ReliabilityCurve, ScoreDetails

Floats = Float[np.ndarray, " points"]

MIN_BAND_POINTS = 101


def decompose_views(keys: Mapping[str, Keys]) -> dict[str, ScoreDetails]:
    """Decompose the scores of each view, and for "edgewise" those of its groups, agree and disagree.

    Keys are sorted in place.
    """
    with ThreadPoolExecutor(max(1, min(torch.get_num_threads(), len(keys)))) as threads:
        parts = threads.map(_decompose_view, keys, keys.values())
    return {view: details for part in parts for view, details in part.items()}


def _decompose_view(view: str, keys: Keys) -> dict[str, ScoreDetails]:
    keys.sort()
    views = (view, "agree", "disagree") if view == "edgewise" else (view,)
    disagree, agree = sum_scores(keys)
    sums = (disagree + agree, agree, disagree)[: len(views)]
    fits = fit_isotonic(keys, ((0, 1), (1,), (0,))[: len(views)])
    return dict(zip(views, map(_details, fits, sums), strict=True))


def _details(fit: IsotonicFit, sums: ScoreSums) -> ScoreDetails:
    points = np.stack([fit.first, fit.last]).T.ravel(), np.repeat(fit.frequency, 2)
    log_decomposition, reason = _decompose_log(fit, sums)
    return ScoreDetails(
        _decompose_brier(fit, sums), log_decomposition, reason, ReliabilityCurve(*map(torch.from_numpy, points))
    )


def _decompose_brier(fit: IsotonicFit, sums: ScoreSums) -> Decomposition:
    """Return the parts of the mean of (forecast - outcome)², NaN without elements."""
    count, frequency = int(fit.count.sum()), fit.frequency
    if count == 0:
        return Decomposition(math.nan, math.nan, math.nan)
    rate = int(fit.events.sum()) / count
    recalibrated = float(fit.count @ (frequency * (1 - frequency)))
    return Decomposition(
        miscalibration=max(0.0, (sums.squares - recalibrated) / count),  # rounding can make it negative
        discrimination=float(fit.count @ np.square(frequency - rate)) / count,
        uncertainty=rate * (1 - rate),
    )


def _decompose_log(fit: IsotonicFit, sums: ScoreSums) -> tuple[Decomposition | None, str | None]:
    """Return the parts of the mean of -log P(outcome), or None and the reason if they are not finite."""
    count = int(fit.count.sum())
    if count == 0:
        return None, "There are no elements."
    if sums.zeros:
        return (
            None,
            f"{sums.zeros:,} of {count:,} outcomes have a probability that rounds to 0, so the log score is infinite.",
        )
    rate = int(fit.events.sum()) / count
    uncertainty, recalibrated = float(_entropy(np.array(rate))), float(fit.count @ _entropy(fit.frequency)) / count
    miscalibration, discrimination = max(0.0, sums.logs / count - recalibrated), max(0.0, uncertainty - recalibrated)
    return Decomposition(miscalibration, discrimination, uncertainty), None


def _entropy(p: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return -p log p - (1 - p) log(1 - p), where 0 log 0 = 0."""
    from scipy.special import entr

    return np.asarray(entr(p) + entr(1 - p))


# ---- Bands -----------------------------------------------------------------------------------------------------------


def curve_bands(
    curves: Mapping[str, ReliabilityCurve],
    views: Mapping[str, ViewElements],
    population: Bool[Tensor, " nodes"],
    n_resamples: int,
    confidence_level: float,
    seed: int,
) -> dict[str, ReliabilityCurve]:
    """Return the curves with pointwise bands: quantiles of the curves of resampled nodes (see `intervals`).

    The nodes are drawn as for the intervals of the scores. Each resample is fitted by isotonic regression with the
    weights w_i w_j of its edges. A resample without elements has no curve and is left out. Points are added to the
    curves where they are far apart, because bands are not linear between them.
    """
    curves = {view: _add_points(curve) for view, curve in curves.items()}
    ties = {view: _Ties(views[view], curve.forecast.numpy()) for view, curve in curves.items()}
    resampled: dict[str, list[Floats]] = {view: [] for view in curves}
    for weights in draw_weights(population, n_resamples, seed):
        for of_nodes in weights.cpu():
            for view, of_view in ties.items():
                resampled[view] += of_view.curve(of_nodes)
    levels = ((1 - confidence_level) / 2, (1 + confidence_level) / 2)
    bands = {}
    for view, curve in curves.items():
        fits = np.array(resampled[view]).reshape(len(resampled[view]), len(curve.forecast))
        low, high = np.quantile(fits, levels, axis=0) if len(fits) else np.full((2, fits.shape[1]), math.nan)
        bands[view] = ReliabilityCurve(curve.forecast, curve.frequency, torch.from_numpy(low), torch.from_numpy(high))
    return bands


def _add_points(curve: ReliabilityCurve) -> ReliabilityCurve:
    """Add points at equal distances from the first to the last forecast."""
    knots, values = curve.forecast.numpy(), curve.frequency.numpy()
    if len(knots) == 0:
        return curve
    points = np.union1d(knots, np.linspace(knots[0], knots[-1], MIN_BAND_POINTS))
    return ReliabilityCurve(torch.from_numpy(points), torch.from_numpy(np.interp(points, knots, values)))


class _Ties:
    """The distinct forecasts of a view, and the nodes and the outcome of each element, for weighted regressions."""

    def __init__(self, view: ViewElements, points: Floats):
        forecast = view.elements.confidence.clamp(0.0, 1.0).cpu().numpy()
        self.forecast, tie = np.unique(forecast, return_inverse=True)
        order = np.argsort(tie, kind="stable")
        self.tie: Int[np.ndarray, " elements"] = tie[order]
        self.occurred = view.elements.correct.cpu().numpy()[order]
        self.nodes, self.points = view.nodes.cpu()[:, torch.from_numpy(order)], points

    def curve(self, weights: Float[Tensor, " nodes"]) -> list[Floats]:
        """Return the fitted frequencies at the points for weighted nodes, or nothing if no element has a weight."""
        from scipy.optimize import isotonic_regression

        weight = weights[self.nodes].prod(0).numpy()
        count = np.bincount(self.tie, weights=weight, minlength=len(self.forecast))
        events = np.bincount(self.tie, weights=weight * self.occurred, minlength=len(self.forecast))
        drawn = count > 0
        if not drawn.any():
            return []
        fitted = isotonic_regression(events[drawn] / count[drawn], weights=count[drawn]).x
        return [np.interp(self.points, self.forecast[drawn], fitted)]
