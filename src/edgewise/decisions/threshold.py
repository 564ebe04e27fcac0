"""A threshold of a probability: what it selects, and what came of it."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from edgewise.data.arrays import ArrayLike, as_tensor
from edgewise.data.options import check_number
from edgewise.decisions.risk_coverage import checked_scores

Probabilities = Float[np.ndarray, " pairs"]


@dataclass(frozen=True)
class Costs:
    """What a selected pair costs where the event does not happen, and a pair that is left out where it does."""

    false_positive: float
    false_negative: float

    def __post_init__(self) -> None:
        check_number("false_positive", self.false_positive, least=0)
        check_number("false_negative", self.false_negative, least=0)
        if self.false_positive == self.false_negative == 0:
            raise ValueError(
                "Expected costs that are not both 0, but got 0 and 0. Mistakes of one weight cost 1 and 1."
            )

    @property
    def bayes_threshold(self) -> float:
        """The probability from which on selecting is the cheaper choice, fp / (fp + fn), if probabilities are right."""
        return self.false_positive / (self.false_positive + self.false_negative)


@dataclass(frozen=True)
class Outcome:
    """What a threshold selects among pairs whose truth is known."""

    count: int
    selected: int
    happened: int
    hits: int  # selected, and the event happened
    costs: Costs | None = None

    @property
    def precision(self) -> float:
        """The share of the selected for which the event happened; NaN if nothing is selected."""
        return self.hits / self.selected if self.selected else math.nan

    @property
    def false_discoveries(self) -> float:
        """The share of the selected for which it did not; 0 if nothing is selected."""
        return (self.selected - self.hits) / self.selected if self.selected else 0.0

    @property
    def recall(self) -> float:
        """The share of what happened that is selected; NaN if nothing happened."""
        return self.hits / self.happened if self.happened else math.nan

    @property
    def coverage(self) -> float:
        """The share that is selected; NaN without pairs."""
        return self.selected / self.count if self.count else math.nan

    @property
    def cost(self) -> float:
        """The mean cost of a pair; NaN without costs or pairs."""
        if self.costs is None or not self.count:
            return math.nan
        false_positives, false_negatives = self.selected - self.hits, self.happened - self.hits
        total = self.costs.false_positive * false_positives + self.costs.false_negative * false_negatives
        return total / self.count

    def to_dict(self) -> dict[str, float]:
        """Give everything as numbers."""
        names = ("count", "selected", "happened", "hits", "precision", "recall", "false_discoveries", "coverage")
        return {name: getattr(self, name) for name in names} | ({"cost": self.cost} if self.costs else {})

    def __str__(self) -> str:
        cost = f", cost {self.cost:.4f} a pair" if self.costs else ""
        return (
            f"{self.selected:,} of {self.count:,} pairs selected, precision {self.precision:.4f}, "
            f"recall {self.recall:.4f}{cost}"
        )


@dataclass(frozen=True)
class Threshold:
    """A threshold that selects pairs whose probability is at least ``value``.

    Attributes
    ----------
    value
        The least probability that is selected; infinite if nothing is.
    rule
        How it was chosen, or why nothing is selected.
    validation
        What it selects among the pairs by which it was chosen, which it suits better than others.
    costs
        What mistakes cost, if it was chosen by that.

    Examples
    --------
    >>> threshold = Threshold(0.5, "set by hand")
    >>> print(threshold.check(np.array([0.9, 0.6, 0.2]), np.array([True, False, False])))
    2 of 3 pairs selected, precision 0.5000, recall 1.0000
    """

    value: float
    rule: str
    validation: Outcome | None = None
    costs: Costs | None = None

    @property
    def found(self) -> bool:
        """Whether anything can be selected."""
        return self.value < math.inf

    def select(self, probability: ArrayLike) -> Bool[np.ndarray, " pairs"]:
        """Tell which pairs are selected."""
        selected: Bool[np.ndarray, " pairs"] = (
            as_tensor(probability, "probability").cpu().double().numpy() >= self.value
        )
        return selected

    def check(self, probability: ArrayLike, happened: ArrayLike) -> Outcome:
        """Tell what comes of the threshold on other pairs, such as those of test nodes."""
        p, truth = checked_outcomes(probability, happened)
        return outcome(self.value, p, truth, self.costs)

    def __str__(self) -> str:
        return f"P ≥ {self.value:.6g}, {self.rule}" if self.found else f"nothing, {self.rule}"


def outcome(value: float, probability: np.ndarray, happened: np.ndarray, costs: Costs | None = None) -> Outcome:
    """Count what a threshold selects."""
    selected = probability >= value
    hits = int((selected & happened).sum())
    return Outcome(len(probability), int(selected.sum()), int(happened.sum()), hits, costs)


def checked_outcomes(probability: ArrayLike, happened: ArrayLike) -> tuple[Probabilities, Bool[np.ndarray, " pairs"]]:
    """Check that there is a probability and a boolean for each pair."""
    p, truth = checked_scores(probability, happened, "probability", "happened")
    return checked_probabilities(p), truth


def checked_probabilities(probability: ArrayLike, name: str = "probability") -> Probabilities:
    """Check that there is a number from 0 to 1 for each pair."""
    p: Probabilities = as_tensor(probability, name).cpu().double().numpy()
    if p.ndim != 1:
        raise ValueError(f"Expected {name} of shape (pairs,), but got shape {p.shape}.")
    outside = np.flatnonzero(~((p >= 0.0) & (p <= 1.0)))
    if len(outside):
        k = int(outside[0])
        raise ValueError(f"Expected probabilities from 0 to 1, but pair {k} has {p[k]:.6g}.")
    return p


def check_share(name: str, share: float) -> None:
    """Refuse what is no share, or none of anything."""
    check_number(name, share, above=0, most=1, way_out="For percent divide by 100.")
