"""Scores of a view computed from its sums: accuracy, NLL, Brier score, calibration error and reliability."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from edgewise.metrics.score_parts import Decomposition, ReliabilityCurve, ScoreDetails
from edgewise.metrics.sums import from_fixed_point
from edgewise.suggestions import did_you_mean

METRICS = ("accuracy", "nll", "brier", "ece")
"""Metrics of each view, in the order of the columns of tables."""

EVENT_METRICS = ("probability", "frequency", "nll", "brier", "ece")
"""Metrics of the event "same label": its mean predicted probability, how often it occurred, and its scores."""

Norm = Literal["l1", "l2", "max"]


@dataclass(frozen=True)
class Reliability:
    """Sums per confidence bin, as shown in a reliability diagram.

    Attributes
    ----------
    count
        Number of elements per bin.
    confidence_sum
        Σ confidence per bin.
    correct_sum
        Σ correct per bin.
    boundaries
        Boundaries of the bins, including 0 and 1.
    """

    count: Int[Tensor, " bins"]
    confidence_sum: Float[Tensor, " bins"]
    correct_sum: Int[Tensor, " bins"]
    boundaries: Float[Tensor, " limits"]

    @property
    def filled(self) -> Bool[Tensor, " bins"]:
        """Mask of nonempty bins. Empty bins have no weight and are not drawn."""
        return self.count > 0

    @property
    def accuracy(self) -> Float[Tensor, " bins"]:
        """Fraction of correct elements per bin, NaN for empty bins."""
        return self.correct_sum.double() / self.count

    @property
    def confidence(self) -> Float[Tensor, " bins"]:
        """Mean confidence per bin, NaN for empty bins."""
        return self.confidence_sum / self.count

    def calibration_error(self, norm: Norm = "l1") -> float:
        """Calibration error in a norm, see `calibration_error`."""
        return float(calibration_error(self.count, self.confidence_sum, self.correct_sum, norm))

    def overconfidence(self) -> float:
        """Return Σ_k n_k/n max(conf_k - acc_k, 0), the part of the l1 error from overconfident bins."""
        return _mean(float((self.confidence_sum - self.correct_sum).clamp(min=0).sum()), int(self.count.sum()))

    def underconfidence(self) -> float:
        """Return Σ_k n_k/n max(acc_k - conf_k, 0), the part of the l1 error from underconfident bins."""
        return _mean(float((self.correct_sum - self.confidence_sum).clamp(min=0).sum()), int(self.count.sum()))

    def debiased_error(self) -> float:
        """Return the l2 error without the bias of finite bins (Kumar, Liang and Ma 2019), at least 0.

        It is the root of Σ_k n_k/n [ (acc_k - conf_k)² - acc_k (1 - acc_k) / (n_k - 1) ]. Bins of one element are
        skipped because their variance is unknown, as in the authors' implementation.
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
    """Return Σ_k n_k/n |acc_k - conf_k| for "l1", the root of Σ_k n_k/n |acc_k - conf_k|² for "l2", or the largest gap.

    With s_k = Σ correct - Σ confidence of a bin, n_k |acc_k - conf_k| = |s_k|. Empty bins have no weight. Without
    elements the error is NaN.
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
    """Sums of one view over all bins."""

    count: int
    correct: int
    nll: float
    brier: float
    zero_probability: int


def read_table(table: Int[Tensor, "rows 4"], boundaries: Float[Tensor, " limits"]) -> tuple[Totals, Reliability]:
    """Convert a table of sums (see `edgewise.metrics.sums`) to totals and reliability."""
    bins, (nll, brier) = table[:-2], from_fixed_point(table[-2].view(2, 2)).tolist()
    zero_probability = int(table[-1, 0])
    totals = Totals(
        count=int(bins[:, 0].sum()),
        correct=int(bins[:, 1].sum()),
        nll=math.inf if zero_probability else nll,
        brier=brier,
        zero_probability=zero_probability,
    )
    return totals, Reliability(bins[:, 0].clone(), from_fixed_point(bins[:, 2:]), bins[:, 1].clone(), boundaries)


class Scores:
    """Scores common to views and events. Without elements the count is 0 and the scores are NaN."""

    def __init__(
        self,
        table: Int[Tensor, "rows 4"],
        boundaries: Float[Tensor, " limits"],
        norm: Norm,
        details: ScoreDetails | None = None,
    ):
        self._totals, self.reliability = read_table(table, boundaries)
        self._norm: Norm = norm
        self.details = details or ScoreDetails()

    @property
    def count(self) -> int:
        """Number of scored elements."""
        return self._totals.count

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the true label, infinite if a true label has probability zero."""
        return _mean(self._totals.nll, self.count)

    @property
    def brier(self) -> float:
        """Mean squared distance between the predicted distribution and the one-hot true label, from 0 to 2."""
        return _mean(self._totals.brier, self.count)

    @property
    def ece(self) -> float:
        """Calibration error in the chosen norm. It is the expected calibration error for "l1", the default."""
        return self.reliability.calibration_error(self._norm)

    @property
    def debiased_l2(self) -> float:
        """Calibration error in the l2 norm without the bias of finite bins, see `Reliability.debiased_error`."""
        return self.reliability.debiased_error()

    @property
    def overconfidence(self) -> float:
        """Part of the l1 error from overconfident bins, see `Reliability.overconfidence`."""
        return self.reliability.overconfidence()

    @property
    def underconfidence(self) -> float:
        """Part of the l1 error from underconfident bins, see `Reliability.underconfidence`."""
        return self.reliability.underconfidence()

    @property
    def zero_probability(self) -> int:
        """Number of elements whose true label has probability zero. If it is above 0, the NLL is infinite."""
        return self._totals.zero_probability

    @property
    def decomposition(self) -> Decomposition | None:
        """Parts of the Brier score of one event, the mean of (forecast - outcome)². None without ``decompose=True``.

        In a view, the event is that the prediction is correct: the forecast is the probability of the prediction,
        p(ŷ_i) of a node and q(ŷ_i, ŷ_j) of an edge, even where the confidence of the ECE is the largest entry of the
        joint. Of "same label", the score of the parts is half of ``brier``, which is summed over both outcomes.
        """
        return self.details.decomposition

    @property
    def log_decomposition(self) -> Decomposition | None:
        """Parts of the log score of the same event, the mean of -log P(outcome). None if it is not finite."""
        return self.details.log_decomposition

    @property
    def log_decomposition_reason(self) -> str | None:
        """Why there is no log decomposition, or None if there is one or none was requested."""
        return self.details.log_decomposition_reason

    @property
    def curve(self) -> ReliabilityCurve | None:
        """Isotonic reliability curve of the same event. None without ``decompose=True``."""
        return self.details.curve

    @property
    def smooth_ece(self) -> float | None:
        """Smooth ECE of the confidences, see `edgewise.smooth_ece`. None without ``smooth=True``."""
        return self.details.smooth_ece

    def to_dict(self) -> dict[str, object]:
        """Return all scores and the reliability sums as plain numbers and lists."""
        names = ("nll", "brier", "ece", "debiased_l2", "overconfidence", "underconfidence", "zero_probability")
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, **self.details.to_dict(), "reliability": _to_lists(self.reliability)}


class ViewScores(Scores):
    """Scores of one view (nodewise, edgewise, agree or disagree), or of node sets."""

    @property
    def accuracy(self) -> float:
        """Fraction of correct nodes. For edges, the fraction of edges with both ends correct."""
        return _mean(self._totals.correct, self.count)

    @property
    def classwise_ece(self) -> float | None:
        """Mean of ``class_ece``, see `edgewise.classwise_ece`. None without ``classwise=True`` and for edges."""
        return self.details.classwise_ece

    @property
    def class_ece(self) -> Float[Tensor, " classes"] | None:
        """Calibration error of the event "label c" of nodes for each class c. None without ``classwise=True``."""
        return self.details.class_ece

    def __getitem__(self, metric: str) -> float:
        if metric not in METRICS:
            raise KeyError(f"Expected one of {', '.join(METRICS)}, but got {metric!r}.{did_you_mean(metric, METRICS)}")
        return float(getattr(self, metric))

    def __repr__(self) -> str:
        scores = ", ".join(f"{metric}={self[metric]:.4f}" for metric in METRICS)
        return f"ViewScores(count={self.count}, {scores})"

    def to_dict(self) -> dict[str, object]:
        """Return all scores and the reliability sums as plain numbers and lists."""
        return {"count": self.count, "accuracy": self.accuracy, **super().to_dict()}


class EventScores(Scores):
    """Scores of the predicted probability of the event "both ends have the same label"."""

    @property
    def frequency(self) -> float:
        """Fraction of edges on which the event occurred."""
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


def _to_lists(reliability: Reliability) -> dict[str, object]:
    return {
        "boundaries": reliability.boundaries.tolist(),
        "count": reliability.count.tolist(),
        "confidence_sum": reliability.confidence_sum.tolist(),
        "correct_sum": reliability.correct_sum.tolist(),
    }


def _mean(total: int | float, count: int) -> float:
    return total / count if count else math.nan
