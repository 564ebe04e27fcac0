"""Scores from sums: accuracy, NLL, Brier score, calibration error and reliability of one view."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from edgewise.metrics.sums import to_floats

METRICS = ("accuracy", "nll", "brier", "ece")
"""The scores of each view, in the order of tables."""

Norm = Literal["l1", "l2", "max"]


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows.

    Attributes
    ----------
    count
        How many elements fall into each bin.
    confidence_sum
        Σ confidence of each bin.
    correct_sum
        Σ correct of each bin.
    boundaries
        The limits of the bins, 0 and 1 included.
    """

    count: Int[Tensor, " bins"]
    confidence_sum: Float[Tensor, " bins"]
    correct_sum: Int[Tensor, " bins"]
    boundaries: Float[Tensor, " limits"]

    @property
    def filled(self) -> Bool[Tensor, " bins"]:
        """Bins that hold something; an empty bin carries no weight and is not drawn."""
        return self.count > 0

    @property
    def accuracy(self) -> Float[Tensor, " bins"]:
        """Share of correct elements per bin; NaN where empty."""
        return self.correct_sum.double() / self.count

    @property
    def confidence(self) -> Float[Tensor, " bins"]:
        """Mean confidence per bin; NaN where empty."""
        return self.confidence_sum / self.count

    def calibration_error(self, norm: Norm = "l1") -> float:
        """See `calibration_error`."""
        return float(calibration_error(self.count, self.confidence_sum, self.correct_sum, norm))

    def overconfidence(self) -> float:
        """Σ_k n_k/n max(conf_k - acc_k, 0): the part of the l1 error where the model promises too much."""
        return _mean(float((self.confidence_sum - self.correct_sum).clamp(min=0).sum()), int(self.count.sum()))

    def underconfidence(self) -> float:
        """Σ_k n_k/n max(acc_k - conf_k, 0): the part of the l1 error where the model promises too little."""
        return _mean(float((self.correct_sum - self.confidence_sum).clamp(min=0).sum()), int(self.count.sum()))

    def debiased_error(self) -> float:
        """Estimate the l2 error without the bias of finite bins (Kumar, Liang and Ma 2019), at least 0.

        Σ_k n_k/n [ (acc_k - conf_k)² - acc_k (1 - acc_k) / (n_k - 1) ], then the root. A bin of one element tells
        nothing about its own noise and is left out, as in the authors' implementation.
        """
        if int(self.count.sum()) == 0:
            return math.nan
        several = self.count > 1
        count, accuracy = self.count[several], self.accuracy[several]
        square = (accuracy - self.confidence[several]).square() - accuracy * (1 - accuracy) / (count - 1)
        return math.sqrt(max(0.0, float((count * square).sum()) / int(self.count.sum())))


def calibration_error(
    count: Shaped[Tensor, "*runs bins"],
    confidence_sum: Float[Tensor, "*runs bins"],
    correct_sum: Shaped[Tensor, "*runs bins"],
    norm: Norm,
) -> Float[Tensor, "*runs"]:
    """Σ_k n_k/n |acc_k - conf_k|; for "l2" the root of the weighted mean square, for "max" the largest gap.

    With a gap of sums s_k = Σ correct - Σ confidence, n_k |acc_k - conf_k| = |s_k|. Empty bins carry no weight; without
    any element the error is NaN.
    """
    gap_sum, total = (correct_sum - confidence_sum).abs(), count.sum(-1).double()
    if norm == "l1":
        return gap_sum.sum(-1) / total
    per_element = gap_sum / count.clamp(min=1)
    if norm == "l2":
        return ((gap_sum * per_element).sum(-1) / total).sqrt()
    return torch.where(total > 0, per_element.amax(-1), math.nan)


@dataclass(frozen=True)
class Totals:
    """The sums of one view over its bins."""

    count: int
    correct: int
    nll: float
    brier: float
    zero_probability: int


def read_table(table: Int[Tensor, "rows 4"], boundaries: Float[Tensor, " limits"]) -> tuple[Totals, Reliability]:
    """Read a table of sums (see `edgewise.metrics.sums`)."""
    bins, (nll, brier) = table[:-2], to_floats(table[-2].view(2, 2)).tolist()
    zero_probability = int(table[-1, 0])
    totals = Totals(
        count=int(bins[:, 0].sum()),
        correct=int(bins[:, 1].sum()),
        nll=math.inf if zero_probability else nll,
        brier=brier,
        zero_probability=zero_probability,
    )
    return totals, Reliability(bins[:, 0].clone(), to_floats(bins[:, 2:]), bins[:, 1].clone(), boundaries)


class Scores:
    """What nodes, edges and events have in common; the scores of an empty set are NaN and its count is 0."""

    def __init__(self, table: Int[Tensor, "rows 4"], boundaries: Float[Tensor, " limits"], norm: Norm):
        self._totals, self.reliability = read_table(table, boundaries)
        self._norm: Norm = norm

    @property
    def count(self) -> int:
        """How many elements were scored."""
        return self._totals.count

    @property
    def nll(self) -> float:
        """Mean -log of the probability of the truth; infinite if a truth had probability zero."""
        return _mean(self._totals.nll, self.count)

    @property
    def brier(self) -> float:
        """Mean squared distance between the predicted distribution and the truth, from 0 to 2."""
        return _mean(self._totals.brier, self.count)

    @property
    def ece(self) -> float:
        """Expected calibration error in the norm that was asked for."""
        return self.reliability.calibration_error(self._norm)

    @property
    def debiased_l2(self) -> float:
        """The l2 error without the bias of finite bins, see `Reliability.debiased_error`."""
        return self.reliability.debiased_error()

    @property
    def overconfidence(self) -> float:
        """See `Reliability.overconfidence`."""
        return self.reliability.overconfidence()

    @property
    def underconfidence(self) -> float:
        """See `Reliability.underconfidence`."""
        return self.reliability.underconfidence()

    @property
    def zero_probability(self) -> int:
        """How many truths had probability zero: the reason for an infinite NLL."""
        return self._totals.zero_probability

    def to_dict(self) -> dict[str, object]:
        """Return all scores and the reliability sums as plain numbers and lists."""
        names = ("nll", "brier", "ece", "debiased_l2", "overconfidence", "underconfidence", "zero_probability")
        return {**{name: getattr(self, name) for name in names}, "reliability": _plain(self.reliability)}


class ViewScores(Scores):
    """The scores of one view: nodewise, edgewise, agree or disagree."""

    @property
    def accuracy(self) -> float:
        """Share of nodes predicted right; for edges, of edges with both ends right."""
        return _mean(self._totals.correct, self.count)

    def __getitem__(self, metric: str) -> float:
        if metric not in METRICS:
            raise KeyError(f"Expected one of {', '.join(METRICS)}, but got {metric!r}.")
        return float(getattr(self, metric))

    def __repr__(self) -> str:
        scores = ", ".join(f"{metric}={self[metric]:.4f}" for metric in METRICS)
        return f"ViewScores(count={self.count}, {scores})"

    def to_dict(self) -> dict[str, object]:
        """Return all scores and the reliability sums as plain numbers and lists."""
        return {"count": self.count, "accuracy": self.accuracy, **super().to_dict()}


class EventScores(Scores):
    """How well the predicted probability of an event fits: here "both ends have the same label"."""

    @property
    def frequency(self) -> float:
        """Share of edges at which the event happened."""
        return _mean(self._totals.correct, self.count)

    @property
    def probability(self) -> float:
        """Mean predicted probability of the event."""
        return _mean(float(self.reliability.confidence_sum.sum()), self.count)

    def __repr__(self) -> str:
        return f"EventScores(count={self.count}, frequency={self.frequency:.4f}, ece={self.ece:.4f})"

    def to_dict(self) -> dict[str, object]:
        """Return all scores and the reliability sums as plain numbers and lists."""
        return {
            "count": self.count,
            "frequency": self.frequency,
            "probability": self.probability,
            **super().to_dict(),
        }


def _plain(reliability: Reliability) -> dict[str, object]:
    return {
        "boundaries": reliability.boundaries.tolist(),
        "count": reliability.count.tolist(),
        "confidence_sum": reliability.confidence_sum.tolist(),
        "correct_sum": reliability.correct_sum.tolist(),
    }


def _mean(total: int | float, count: int) -> float:
    return total / count if count else math.nan
