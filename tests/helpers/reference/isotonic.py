"""Isotonic regression by its min-max formula, and the decomposition of scores by its definition."""

import math
from fractions import Fraction


def isotonic_fit(forecasts, outcomes):
    """Return max over lows a ≤ f_i of min over highs b ≥ f_i of the mean outcome of forecasts in [a, b], for each i."""
    levels = sorted(set(forecasts))
    position = {level: k for k, level in enumerate(levels)}
    count, events = [0] * len(levels), [0] * len(levels)
    for forecast, outcome in zip(forecasts, outcomes, strict=True):
        count[position[forecast]] += 1
        events[position[forecast]] += outcome

    def mean(a, b):
        return Fraction(sum(events[a : b + 1]), sum(count[a : b + 1]))

    fitted = [
        float(max(min(mean(a, b) for b in range(k, len(levels))) for a in range(k + 1))) for k in range(len(levels))
    ]
    return [fitted[position[forecast]] for forecast in forecasts]


def squared_error(p, y):
    return (p - y) ** 2


def log_loss(p, y):
    p_outcome = p if y else 1 - p
    return -math.log(p_outcome) if p_outcome > 0 else math.inf


def decompose(forecasts, outcomes, score=squared_error):
    """Return miscalibration, discrimination and uncertainty; NaN without elements."""
    if not forecasts:
        return math.nan, math.nan, math.nan

    def mean(ps):
        return math.fsum(score(p, y) for p, y in zip(ps, outcomes, strict=True)) / len(outcomes)

    rate = sum(outcomes) / len(outcomes)
    forecast, recalibrated, constant = (
        mean(forecasts),
        mean(isotonic_fit(forecasts, outcomes)),
        mean([rate] * len(outcomes)),
    )
    return forecast - recalibrated, constant - recalibrated, constant
