"""Thresholds of a probability: how they are chosen, what they select, and how often that is right."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from edgewise.decisions.risk_coverage import check_scores, counts_by_threshold
from edgewise.validation import ArrayLike, as_tensor, check_number

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
class ThresholdOutcome:
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
        """Return all counts and rates by name."""
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
    validation: ThresholdOutcome | None = None
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

    def check(self, probability: ArrayLike, happened: ArrayLike) -> ThresholdOutcome:
        """Tell what the threshold selects among other pairs, such as those of test nodes."""
        p, truth = check_outcomes(probability, happened)
        return count_selected(self.value, p, truth, self.costs)

    def __str__(self) -> str:
        return f"P ≥ {self.value:.6g}, {self.rule}" if self.found else f"nothing, {self.rule}"


def count_selected(
    value: float, probability: np.ndarray, happened: np.ndarray, costs: Costs | None = None
) -> ThresholdOutcome:
    """Count what a threshold selects."""
    selected = probability >= value
    hits = int((selected & happened).sum())
    return ThresholdOutcome(len(probability), int(selected.sum()), int(happened.sum()), hits, costs)


def check_outcomes(probability: ArrayLike, happened: ArrayLike) -> tuple[Probabilities, Bool[np.ndarray, " pairs"]]:
    """Check that there is a probability and a boolean for each pair."""
    p, truth = check_scores(probability, happened, "probability", "happened")
    return check_probabilities(p), truth


def check_probabilities(probability: ArrayLike, name: str = "probability") -> Probabilities:
    """Check that there is a number from 0 to 1 for each pair."""
    p: Probabilities = as_tensor(probability, name).cpu().double().numpy()
    if p.ndim != 1:
        raise ValueError(f"Expected {name} of shape (pairs,), but got shape {p.shape}.")
    outside = np.flatnonzero(~((p >= 0.0) & (p <= 1.0)))
    if len(outside):
        k = int(outside[0])
        raise ValueError(f"Expected probabilities from 0 to 1, but pair {k} has {p[k]:.6g}.")
    return p


def check_fraction(name: str, share: float) -> None:
    """Refuse what is no share, or none of anything."""
    check_number(name, share, above=0, most=1, hint="For percent divide by 100.")


SIZE_GROWTH = 1.25  # of the numbers of pairs at which a guaranteed precision is tested


def threshold_for_precision(
    probability: ArrayLike, happened: ArrayLike, precision: float, *, confidence: float | None = None
) -> Threshold:
    """Choose the lowest threshold whose precision is at least as wanted.

    It is the precision on these pairs, which is an optimistic guess of that on others: the threshold was chosen by it.
    A ``confidence`` asks for more.

    Parameters
    ----------
    probability
        P(event) of validation pairs; `EdgePredictions.outcomes` gives both.
    happened
        Whether it happened.
    precision
        The wanted share of selected pairs for which the event happens, such as 0.9.
    confidence
        If given, such as 0.9, the precision on all pairs there could be is as wanted with this probability, if pairs
        are independent: some numbers of selected pairs are fixed in advance, growing by a quarter, and each is tested
        by the binomial distribution at its part of 1 - confidence.

    Returns
    -------
    Threshold
        An infinite one, which selects nothing, if none is good enough.

    Examples
    --------
    >>> p, happened = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, True, False, True])
    >>> threshold_for_precision(p, happened, 0.75).value
    0.6
    """
    check_fraction("precision", precision)
    p, truth = check_outcomes(probability, happened)
    if confidence is None:
        return _choose_by_observed(p, truth, precision)
    return _choose_by_guaranteed(p, truth, precision, confidence)


def _choose_by_observed(p: np.ndarray, truth: np.ndarray, precision: float) -> Threshold:
    value, selected, wrong = counts_by_threshold(p, ~truth)
    reached = np.flatnonzero((selected - wrong) / selected >= precision)
    if len(reached):
        chosen, rule = float(value[reached[-1]]), f"the lowest threshold with a precision of at least {precision:g}"
    else:
        chosen, rule = math.inf, f"as no threshold has a precision of at least {precision:g}"
        if len(value):
            best = int(np.argmax((selected - wrong) / selected))
            rule += f": the best is {1 - wrong[best] / selected[best]:.4f}, at P ≥ {value[best]:.6g}"
    return Threshold(chosen, rule, count_selected(chosen, p, truth))


def _choose_by_guaranteed(p: np.ndarray, truth: np.ndarray, precision: float, confidence: float) -> Threshold:
    from scipy.stats import binom

    check_number("confidence", confidence, above=0, below=1, hint="Usual ones are 0.9 and 0.95.")
    value, selected, wrong = counts_by_threshold(p, ~truth)
    sizes = _tested_sizes(len(p), precision, confidence)
    goal = f"a precision of at least {precision:g} with confidence {confidence:g}"
    if len(sizes) == 0:
        rule = f"as {len(p)} pairs are too few to show {goal}"
        return Threshold(math.inf, rule, count_selected(math.inf, p, truth))
    places = np.searchsorted(selected, sizes)
    chances = binom.cdf(wrong[places], selected[places], 1.0 - precision)
    passed = places[chances <= (1.0 - confidence) / len(sizes)]
    if len(passed) == 0:
        return Threshold(math.inf, f"as no threshold shows {goal}", count_selected(math.inf, p, truth))
    # The n most probable are a sample of all that is above the next lower value, not of what reaches their own lowest.
    place = int(passed.max())
    chosen = float(np.nextafter(value[place + 1], 1.0)) if place + 1 < len(value) else 0.0
    return Threshold(chosen, f"the lowest threshold that shows {goal}", count_selected(chosen, p, truth))


def _tested_sizes(count: int, precision: float, confidence: float) -> Int[np.ndarray, " sizes"]:
    """Fix how many selected pairs are tested: from the fewest that could show anything to all."""
    if precision >= 1.0:
        return np.empty(0, np.int64)
    fewest = math.ceil(math.log(1.0 - confidence) / math.log(precision))
    if fewest > count:
        return np.empty(0, np.int64)
    steps = math.ceil(math.log(count / fewest) / math.log(SIZE_GROWTH))
    return np.unique(np.append((fewest * SIZE_GROWTH ** np.arange(steps)).astype(np.int64), count))


def threshold_for_cost(
    probability: ArrayLike, happened: ArrayLike, *, false_positive: float, false_negative: float
) -> Threshold:
    """Choose the threshold that costs least on these pairs; of several the highest, which may select nothing.

    Where probabilities are calibrated `bayes_threshold` is as good, and needs no pairs.

    Parameters
    ----------
    probability
        P(event) of validation pairs.
    happened
        Whether it happened.
    false_positive
        What a selected pair costs where the event does not happen.
    false_negative
        What a pair that is left out costs where it does.

    Examples
    --------
    >>> p, happened = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> print(threshold_for_cost(p, happened, false_positive=1, false_negative=4))
    P ≥ 0.7, which costs least at 1 a false positive and 4 a false negative
    """
    costs = Costs(false_positive, false_negative)
    p, truth = check_outcomes(probability, happened)
    value, selected, wrong = counts_by_threshold(p, ~truth)
    left_out = truth.sum() - (selected - wrong)
    total = np.append(false_negative * truth.sum(), false_positive * wrong + false_negative * left_out)
    best = int(np.argmin(total))
    chosen = math.inf if best == 0 else float(value[best - 1])
    rule = f"which costs least at {_describe(costs)}"
    return Threshold(chosen, rule, count_selected(chosen, p, truth, costs), costs)


def bayes_threshold(*, false_positive: float, false_negative: float) -> Threshold:
    """Return the threshold fp / (fp + fn), from which on selecting is the cheaper choice if probabilities are right.

    Parameters
    ----------
    false_positive
        fp, what a selected pair costs where the event does not happen.
    false_negative
        fn, what a pair that is left out costs where it does.

    Examples
    --------
    >>> bayes_threshold(false_positive=1, false_negative=4).value
    0.2
    """
    costs = Costs(false_positive, false_negative)
    return Threshold(costs.bayes_threshold, f"which costs least at {_describe(costs)} if P is right", costs=costs)


def _describe(costs: Costs) -> str:
    return f"{costs.false_positive:g} a false positive and {costs.false_negative:g} a false negative"


def threshold_for_fdr(
    probability: ArrayLike, happened: ArrayLike, fdr: float, *, among: ArrayLike | None = None
) -> Threshold:
    """Choose the lowest threshold that keeps the expected share of false discoveries among the selected below a rate.

    Each pair that is to be decided is given a p-value, the share of validation pairs that look as probable but did not
    happen, (1 + #{i: p_i ≥ p, not happened}) / (n + 1), and the procedure of Benjamini and Hochberg selects by these.
    The rate is that of ``among``, and holds, whatever the probabilities are worth, if validation pairs and those to
    decide are exchangeable; without ``among`` it is a guess at pairs like the validation pairs.

    Parameters
    ----------
    probability
        P(event) of validation pairs.
    happened
        Whether it happened.
    fdr
        The rate, such as 0.1.
    among
        The probabilities of the pairs that are to be decided; by default those of the validation pairs.

    Returns
    -------
    Threshold
        An infinite one, which selects nothing, if none has the rate.

    Examples
    --------
    >>> p, happened = np.linspace(0.99, 0.01, 50), np.arange(50) < 25
    >>> threshold_for_fdr(p, happened, 0.2, among=np.array([0.97, 0.95, 0.6, 0.1])).value
    0.6
    """
    check_fraction("fdr", fdr)
    p, truth = check_outcomes(probability, happened)
    decided = p if among is None else check_probabilities(among, "among")
    value, selected, _ = counts_by_threshold(decided, np.zeros(len(decided), np.bool_))
    false = np.sort(p[~truth])
    above = len(false) - np.searchsorted(false, value)
    passed = np.flatnonzero((1 + above) * len(decided) <= fdr * (len(p) + 1) * selected)
    chosen = float(value[passed[-1]]) if len(passed) else math.inf
    words = f"a false discovery rate of {fdr:g}"
    rule = f"the lowest threshold for {words}" if len(passed) else f"as no threshold has {words}"
    return Threshold(chosen, rule, count_selected(chosen, p, truth))


def threshold_for_believed_fdr(probability: ArrayLike, fdr: float) -> Threshold:
    """Choose the lowest threshold above which the mean of 1 - P is at most a rate, without any labels.

    The largest set that the model itself believes to have so few false discoveries: right if P is calibrated.

    Parameters
    ----------
    probability
        P(event) of the pairs that are to be decided.
    fdr
        The rate, such as 0.1.

    Examples
    --------
    >>> threshold_for_believed_fdr(np.array([0.99, 0.95, 0.8, 0.3]), 0.1).value  # the mean of 0.01, 0.05 and 0.2
    0.8
    """
    check_fraction("fdr", fdr)
    p = np.sort(check_probabilities(probability))[::-1]
    value, selected, _ = counts_by_threshold(p, np.zeros(len(p), np.bool_))
    believed = np.cumsum(1.0 - p)[selected - 1] / selected
    passed = np.flatnonzero(believed <= fdr)
    chosen = float(value[passed[-1]]) if len(passed) else math.inf
    words = f"a believed false discovery rate of {fdr:g}"
    return Threshold(chosen, f"the lowest threshold for {words}" if len(passed) else f"as no threshold has {words}")
