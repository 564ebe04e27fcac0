"""What the rows of a study say: does a better score mean joints that are nearer to the truth."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from edgewise.experiments.study_plan import GraphKey
from edgewise.experiments.study_rows import Row

SCORE_NAMES = {
    "edge_ece": "edge ECE",
    "edge_ece_expected": "edge ECE, expected",
    "same_ece": "P(same) ECE",
    "agree_ece": "agree ECE",
    "disagree_ece": "disagree ECE",
    "node_ece": "node ECE",
    "node_nll": "node NLL",
    "edge_brier": "edge Brier",
    "edge_nll": "edge NLL",
}
RESAMPLES = 2000

Values = NDArray[np.float64]
Cases = Sequence[tuple[Values, Values]]  # of each graph: a metric and a distance of its predictors


@dataclass(frozen=True)
class Agreement:
    """How well the order of predictors by a metric is that by their distance from the truth, both names of scores.

    ``right`` is the share of pairs of predictors, on the same graph, of which the one with the better score is the
    nearer, with its 95% interval over graphs; ``rank`` is Spearman's correlation within a graph, meaned over graphs,
    ``rank_overall`` that over all rows.
    """

    metric: str
    distance: str
    right: float
    interval: tuple[float, float]
    rank: float
    rank_overall: float
    pairs: int


def agreement(rows: Sequence[Row], metric: str, distance: str) -> Agreement:
    """Compare two orders of the predictors of each graph."""
    cases = _by_graph(rows, metric, distance)
    counts = np.array([_right_pairs(*case) for case in cases]).reshape(-1, 2)
    ranks = np.array([rank_correlation(*case) for case in cases])
    all_metric, all_distance = (np.concatenate([case[k] for case in cases] or [np.zeros(0)]) for k in (0, 1))
    return Agreement(
        metric,
        distance,
        _share(counts),
        _interval(counts),
        float(np.nanmean(ranks)) if np.isfinite(ranks).any() else float("nan"),
        rank_correlation(all_metric, all_distance),
        int(counts[:, 1].sum()),
    )


def rank_correlation(a: Values, b: Values) -> float:
    """Give Spearman's rank correlation, equal values sharing their rank; NaN where all are equal.

    >>> rank_correlation(np.array([1.0, 2.0, np.inf]), np.array([0.0, 5.0, 7.0]))
    1.0
    """
    from scipy.stats import rankdata

    first, second = (rankdata(values) - (len(values) + 1) / 2 for values in (a, b))
    size = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / size) if size else float("nan")


def above_truth(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Give all rows but the truth's, each with its edge NLL above that of the true joints on the same labels."""
    least = {row.graph: row.scores["edge_nll"] for row in chosen(rows, ["truth"])}
    others = [row for row in rows if row.predictor != "truth" and row.graph in least]
    return [(row, row.scores["edge_nll"] - least[row.graph]) for row in others]


def chosen(rows: Sequence[Row], predictors: Sequence[str]) -> list[Row]:
    """Give the rows of some predictors."""
    return [row for row in rows if row.predictor in predictors]


def lower_than_truth(rows: Sequence[Row], predictor: str, metric: str) -> tuple[int, int]:
    """Count the graphs on which a predictor scores better than the true joints do, and those that have both."""
    of_truth, of_predictor = (
        {row.graph: row.scores[metric] for row in chosen(rows, [name])} for name in ("truth", predictor)
    )
    both = of_truth.keys() & of_predictor.keys()
    return sum(of_predictor[graph] < of_truth[graph] for graph in both), len(both)


def mean_of(rows: Sequence[Row], predictor: str, score: str) -> float:
    """Give the mean of a score over the graphs."""
    return float(np.mean([row.scores[score] for row in chosen(rows, [predictor])]))


def _by_graph(rows: Sequence[Row], metric: str, distance: str) -> Cases:
    graphs: dict[GraphKey, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        graphs[row.graph].append((row.scores[metric], row.scores[distance]))
    finished = (np.array(values) for values in graphs.values())
    return [(values[:, 0], values[:, 1]) for values in finished if np.isfinite(values[:, 0]).any()]


def _right_pairs(metric: Values, distance: Values) -> tuple[int, int]:
    """Count the pairs that both put in the same order, and all that differ in both."""
    right = total = 0
    for a, b in combinations(range(len(metric)), 2):
        if metric[a] != metric[b] and distance[a] != distance[b]:
            total += 1
            right += (metric[a] < metric[b]) == (distance[a] < distance[b])
    return right, total


def _share(counts: NDArray[np.int64]) -> float:
    right, total = counts.sum(0)
    return float(right / total) if total else float("nan")


def _interval(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Resample graphs: pairs of one graph hang together."""
    if len(counts) < 2:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    sums = counts[drawn].sum(1)
    low, high = np.quantile(sums[:, 0] / np.maximum(1, sums[:, 1]), [0.025, 0.975])
    return float(low), float(high)
