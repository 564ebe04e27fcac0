"""Selection of pairs by conformal p-values and the Benjamini-Hochberg procedure."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.decisions.conformal_scores import labels_of_pairs
from edgewise.decisions.events import Event
from edgewise.decisions.thresholds import (
    Probabilities,
    ThresholdOutcome,
    check_fraction,
    check_outcomes,
    check_probabilities,
    count_failures_above,
)
from edgewise.representation import shorten
from edgewise.validation import ArrayLike


def conformal_p_values(probability: ArrayLike, happened: ArrayLike, among: ArrayLike) -> Probabilities:
    """Return a p-value of "the event does not occur" for each pair in ``among``.

    It is (1 + #{i: p_i ≥ p, event i did not occur}) / (n + 1) over the n calibration pairs (Jin and Candès 2023). If
    the pair is exchangeable with them, it is at most u with probability at most u together with the event not
    occurring, whether or not the probabilities are calibrated.

    Parameters
    ----------
    probability
        P(event) of calibration pairs.
    happened
        Whether the event occurred.
    among
        P(event) of the pairs to select from.

    Examples
    --------
    >>> conformal_p_values([0.9, 0.8, 0.3, 0.2], [True, False, False, True], [0.95, 0.5, 0.1]).tolist()
    [0.2, 0.4, 0.6]
    """
    p, outcomes = check_outcomes(probability, happened)
    above = count_failures_above(check_probabilities(among, "among"), p, outcomes)
    p_values: Probabilities = (1 + above) / (len(p) + 1)
    return p_values


def benjamini_hochberg(p_values: ArrayLike, fdr: float) -> Bool[np.ndarray, " pairs"]:
    """Return which p-values are selected: the k smallest, for the largest k whose k-th is at most fdr · k / m.

    Examples
    --------
    >>> benjamini_hochberg([0.01, 0.04, 0.9, 0.05], 0.1).tolist()
    [True, True, False, True]
    """
    check_fraction("fdr", fdr)
    p = check_probabilities(p_values, "p_values")
    ordered = np.sort(p)
    # Multiplied by m before the comparison, and with a tolerance of rounding: 3 · 0.1 is above 0.3 in floating point.
    passed = np.flatnonzero(ordered * len(p) <= fdr * np.arange(1, len(p) + 1) * (1 + 1e-12))
    selected: Bool[np.ndarray, " pairs"] = p <= ordered[passed[-1]] if len(passed) else np.zeros(len(p), np.bool_)
    return selected


@dataclass(frozen=True, eq=False, repr=False)
class PairSelection:
    """Test pairs of a matching that are selected for an event. Returned by `PairPredictionSets.select`.

    Attributes
    ----------
    event
        The event, such as "same".
    fdr
        The largest expected fraction of selected pairs for which the event does not occur.
    pairs
        The candidates (2, M), as node indices.
    probability
        P(event) of each candidate.
    p_values
        The conformal p-value of each candidate.
    selected
        Whether a candidate is selected.
    predicted
        The most probable label of each node.
    num_classes
        The number of classes.
    """

    event: Event
    fdr: float
    pairs: Int[Tensor, "2 pairs"]
    probability: Float[np.ndarray, " pairs"]
    p_values: Float[np.ndarray, " pairs"]
    selected: Bool[np.ndarray, " pairs"]
    predicted: Int[Tensor, " nodes"]
    num_classes: int

    def check(self, y: ArrayLike) -> ThresholdOutcome:
        """Return precision and recall, given the labels of all candidates."""
        labels = labels_of_pairs(y, self.pairs, len(self.predicted), self.num_classes)
        happened = self.event.outcomes(labels, self.predicted[self.pairs]).numpy()
        hits = int((self.selected & happened).sum())
        return ThresholdOutcome(len(happened), int(self.selected.sum()), int(happened.sum()), hits)

    def __repr__(self) -> str:
        return shorten(
            f"PairSelection({self.event.name!r}, fdr={self.fdr:g}, selected={int(self.selected.sum())} of "
            f"{len(self.selected)} pairs)"
        )
