"""Error rates of thresholds over many draws, and their numbers in docs/decisions.md."""

import math
from pathlib import Path

import numpy as np

from edgewise.decisions import predict_edges, threshold_for_fdr, threshold_for_precision
from helpers.page_numbers import has_numbers

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"
DRAWS = 120


def pairs(seed):
    """Draw pairs as the page does: P(same) and outcomes of validation and of test edges."""
    g = np.random.default_rng(seed)
    probs = g.dirichlet([0.4, 0.4, 0.4], size=6000)
    labels = (probs.cumsum(1) > g.random((6000, 1))).argmax(1)
    edges = g.integers(0, 6000, size=(2, 20000))
    table, val = predict_edges(probs, edges[:, edges[0] != edges[1]], ["same"]), np.arange(6000) < 3000
    return table.outcomes("same", labels, val), table.outcomes("same", labels, ~val)


def population_precision():
    """Return the precision of P ≥ t over a million pairs: as P is calibrated, it is the mean of those P."""
    g = np.random.default_rng(DRAWS)
    start, end = g.dirichlet([0.4, 0.4, 0.4], size=(2, 1_000_000))
    p = np.sort((start * end).sum(1))[::-1]
    means = p.cumsum() / np.arange(1, len(p) + 1)
    return lambda t: means[np.searchsorted(-p, -t, side="right") - 1]


def test_error_rates_of_thresholds_are_those_on_the_page():
    precision = population_precision()
    false, plain, sure = [], [], []
    for seed in range(DRAWS):
        on_val, on_test = pairs(seed)
        false.append(threshold_for_fdr(*on_val, 0.2, among=on_test[0]).check(*on_test).false_discoveries)
        plain.append(precision(threshold_for_precision(*on_val, 0.8).value))
        cautious = threshold_for_precision(*on_val, 0.8, confidence=0.9)
        if cautious.found:
            sure.append(precision(cautious.value))
    error = np.std(false) / math.sqrt(DRAWS)
    assert np.mean(false) < 0.2 + 2 * error
    assert min(sure) > 0.8
    assert has_numbers(PAGE, f"{np.mean(false):.3f}", f"{error:.3f}", str(DRAWS))
    below = f"{np.mean(np.array(plain) < 0.8):.0%}"
    assert has_numbers(PAGE, "0.8", below, "0.8", "0.9", f"{len(sure) / DRAWS:.0%}")
