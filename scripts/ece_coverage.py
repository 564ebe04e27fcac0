"""Measure how often the 95% interval of a calibration error contains the true error, which is known by simulation.

python scripts/ece_coverage.py

Prints the table of docs/how-sure.md. Labels are drawn from softmax(z) and predicted with softmax(T z), so T = 1 is a
perfect model and T > 1 an overconfident one. Edges are random pairs, two per node. It takes about three minutes.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

import edgewise as ew

MODELS = {"perfect": 1.0, "mildly overconfident": 1.2, "strongly overconfident": 2.0}
VIEWS = {"nodewise": "nodes", "edgewise": "edges"}
NUM_CLASSES, LOGIT_SCALE, EDGES_PER_NODE = 4, 1.5, 2
NUM_TRUTH = 400_000  # nodes and pairs for the true error
NUM_DRAWS = 300
COLUMNS = ("Model", "", "Nodes", "True ECE", "Mean ECE", "Contains the true ECE", "Begins above 0")

Probs = Float[np.ndarray, "nodes classes"]


class Coverage(NamedTuple):
    """True error, mean measured error, and fractions of intervals that contain the true error, and that exclude 0."""

    truth: float
    measured: float
    covered: float
    above_zero: float


def softmax(logits: Probs) -> Probs:
    """Return the probabilities of logits."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probs: Probs = powers / powers.sum(1, keepdims=True)
    return probs


def draw_logits(num_nodes: int, rng: np.random.Generator) -> Probs:
    """Draw normal logits."""
    return LOGIT_SCALE * rng.normal(size=(num_nodes, NUM_CLASSES))


def true_errors(temperature: float, n_bins: int = 15) -> dict[str, float]:
    """Return the l1 calibration errors of nodes and edges without noise, from probabilities of correct predictions."""
    rng = np.random.default_rng(99)
    logits = draw_logits(NUM_TRUTH, rng)
    predicted = softmax(temperature * logits)
    labels = predicted.argmax(1)
    confidence, accuracy = predicted.max(1), softmax(logits)[np.arange(NUM_TRUTH), labels]
    i, j = rng.permutation(NUM_TRUTH), rng.permutation(NUM_TRUTH)
    parts = {"nodewise": (confidence, accuracy), "edgewise": (confidence[i] * confidence[j], accuracy[i] * accuracy[j])}
    errors = {}
    for view, (claimed, actual) in parts.items():
        bins = np.clip(np.ceil(claimed * n_bins) - 1, 0, n_bins - 1).astype(int)
        errors[view] = float(np.abs(np.bincount(bins, actual - claimed, minlength=n_bins)).sum() / NUM_TRUTH)
    return errors


def evaluations(
    temperature: float, num_nodes: int, num_draws: int, seed: int, **options: Any
) -> Iterator[ew.Evaluation]:
    """Draw nodes, labels and edges, and evaluate them with intervals."""
    rng = np.random.default_rng(seed)
    for draw in range(num_draws):
        logits = draw_logits(num_nodes, rng)
        y = (softmax(logits).cumsum(1) > rng.random((num_nodes, 1))).argmax(1)
        edges = rng.integers(num_nodes, size=(2, EDGES_PER_NODE * num_nodes))
        yield ew.evaluate(
            softmax(temperature * logits), y, edges, same_label=False, n_resamples=200, seed=draw, **options
        )


def measure(temperature: float, num_nodes: int, num_draws: int = NUM_DRAWS, seed: int = 0) -> dict[str, Coverage]:
    """Compare the intervals of many draws with the true error, of nodes and of edges."""
    truth = dict.fromkeys(VIEWS, 0.0) if temperature == 1 else true_errors(temperature)
    drawn = list(evaluations(temperature, num_nodes, num_draws, seed))
    results = {}
    for view in VIEWS:
        intervals = [ev.intervals[view]["ece"] for ev in drawn]
        covered = [interval.low <= truth[view] <= interval.high for interval in intervals]
        above_zero = [interval.low > 0 for interval in intervals]
        results[view] = Coverage(
            truth[view],
            float(np.mean([ev[view].ece for ev in drawn])),
            float(np.mean(covered)),
            float(np.mean(above_zero)),
        )
    return results


def table() -> str:
    """Return the table in Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for name, temperature in MODELS.items():
        for num_nodes in (500, 2000):
            for view, result in measure(temperature, num_nodes).items():
                errors = (f"{100 * error:.1f}%" for error in (result.truth, result.measured))
                fractions = (f"{100 * fraction:.0f}%" for fraction in (result.covered, result.above_zero))
                rows.append((name, VIEWS[view], f"{num_nodes:,}", *errors, *fractions))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    print(table())
