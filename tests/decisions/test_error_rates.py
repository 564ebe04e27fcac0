"""The error rates over repeated draws that docs/decisions.md states."""

import math
from pathlib import Path

import numpy as np

from edgewise.decisions import predict_edges, threshold_for_fdr, threshold_for_precision
from helpers.page_numbers import has_numbers

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"
DRAWS = 120


def draw_outcomes(seed):
    """Return P(same) and outcomes of validation and of test edges, drawn as on the page."""
    g = np.random.default_rng(seed)
    probs = g.dirichlet([0.4, 0.4, 0.4], size=6000)
    labels = (probs.cumsum(1) > g.random((6000, 1))).argmax(1)
    edges = g.integers(0, 6000, size=(2, 20000))
    table, val = predict_edges(probs, edges[:, edges[0] != edges[1]], ["same"]), np.arange(6000) < 3000
    return table.outcomes("same", labels, val), table.outcomes("same", labels, ~val)


def population_precision():
    """Return t ↦ precision of P ≥ t, the mean of P ≥ t over a million pairs, as P is calibrated."""
    g = np.random.default_rng(DRAWS)
    start, end = g.dirichlet([0.4, 0.4, 0.4], size=(2, 1_000_000))
    p = np.sort((start * end).sum(1))[::-1]
    means = p.cumsum() / np.arange(1, len(p) + 1)
    return lambda t: means[np.searchsorted(-p, -t, side="right") - 1]


def test_error_rates_over_draws_are_those_on_the_page():
    precision = population_precision()
    false_discoveries, observed, guaranteed = [], [], []
    for seed in range(DRAWS):
        on_val, on_test = draw_outcomes(seed)
        chosen = threshold_for_fdr(*on_val, 0.2, among=on_test[0])
        false_discoveries.append(chosen.check(*on_test).false_discoveries)
        observed.append(precision(threshold_for_precision(*on_val, 0.8).value))
        threshold = threshold_for_precision(*on_val, 0.8, confidence=0.9)
        if threshold.found:
            guaranteed.append(precision(threshold.value))
    error = np.std(false_discoveries) / math.sqrt(DRAWS)
    assert np.mean(false_discoveries) < 0.2 + 2 * error
    assert min(guaranteed) > 0.8
    of_discoveries = str(DRAWS), f"{np.mean(false_discoveries):.3f}", f"{error:.3f}"
    below, found = f"{np.mean(np.array(observed) < 0.8):.0%}", f"{len(guaranteed) / DRAWS:.0%}"
    assert has_numbers(PAGE, *of_discoveries, "0.8", below, "0.8", "0.9", found, near="false discovery rate")
