"""Thresholds on P(event): chosen for a precision, a cost or a false discovery rate, and checked on labeled pairs."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from edgewise.decisions.risk_coverage import check_scores, counts_by_threshold
from edgewise.representation import shorten
from edgewise.small_samples import MIN_SAMPLE, fraction_interval, warn_small_sample
from edgewise.validation import ArrayLike, as_tensor, check_number

Probabilities = Float[np.ndarray, " pairs"]


@dataclass(frozen=True)
class Costs:
    """The costs of a false positive (selected, event did not occur) and a false negative (not selected, it did)."""

    false_positive: float
    false_negative: float

    def __post_init__(self) -> None:
        check_number("false_positive", self.false_positive, least=0)
        check_number("false_negative", self.false_negative, least=0)
        if self.false_positive == self.false_negative == 0:
            raise ValueError(
                "Expected costs that are not both 0, but got 0 and 0. Pass 1 and 1 to weight both errors equally."
            )

    @property
    def bayes_threshold(self) -> float:
        """The threshold fp / (fp + fn), which has the lowest cost if probabilities are calibrated."""
        return self.false_positive / (self.false_positive + self.false_negative)


@dataclass(frozen=True)
class ThresholdOutcome:
    """Counts and rates of a threshold on labeled pairs."""

    count: int  # pairs
    selected: int
    happened: int  # positives: pairs for which the event occurred
    hits: int  # true positives: selected pairs for which the event occurred
    costs: Costs | None = None

    @property
    def precision(self) -> float:
        """The fraction of true positives among the selected; NaN if nothing is selected."""
        return self.hits / self.selected if self.selected else math.nan

    @property
    def precision_interval(self) -> tuple[float, float]:
        """The 95% interval of the precision, as if pairs were independent; (0, 1) if nothing is selected.

        It is the Wilson score interval. For the pairs by which a threshold was chosen it is optimistic.
        """
        return fraction_interval(self.hits, self.selected)

    @property
    def false_discoveries(self) -> float:
        """The false discovery proportion: the fraction of false positives among the selected; 0 if there are none."""
        return (self.selected - self.hits) / self.selected if self.selected else 0.0

    @property
    def recall(self) -> float:
        """The fraction of the positives that are selected; NaN without positives."""
        return self.hits / self.happened if self.happened else math.nan

    @property
    def coverage(self) -> float:
        """The fraction of pairs that are selected; NaN without pairs."""
        return self.selected / self.count if self.count else math.nan

    @property
    def cost(self) -> float:
        """The mean cost per pair; NaN without costs or pairs."""
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
        cost = f", cost {self.cost:.4f} per pair" if self.costs else ""
        return (
            f"{self.selected:,} of {self.count:,} pairs selected, precision {self.precision:.4f}, "
            f"recall {self.recall:.4f}{cost}"
        )


@dataclass(frozen=True, repr=False)
class Threshold:
    """A threshold that selects the pairs with P(event) ≥ ``value``.

    Attributes
    ----------
    value
        The lowest probability that is selected; infinite if nothing is selected.
    rule
        How the threshold was chosen, or why nothing is selected.
    validation
        The outcome on the pairs by which it was chosen, which is optimistic for other pairs.
    costs
        The costs of errors, if it was chosen by cost.

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
        """Whether the threshold is finite."""
        return self.value < math.inf

    def select(self, probability: ArrayLike) -> Bool[np.ndarray, " pairs"]:
        """Return which pairs are selected."""
        selected: Bool[np.ndarray, " pairs"] = (
            as_tensor(probability, "probability").cpu().double().numpy() >= self.value
        )
        return selected

    def check(self, probability: ArrayLike, happened: ArrayLike) -> ThresholdOutcome:
        """Return the outcome on other labeled pairs, such as those of test nodes."""
        p, outcomes = check_outcomes(probability, happened)
        return count_selected(self.value, p, outcomes, self.costs)

    def __repr__(self) -> str:
        return shorten(f"Threshold(value={self.value:.6g}, rule={self.rule!r})")

    def __str__(self) -> str:
        return f"P ≥ {self.value:.6g}, {self.rule}" if self.found else f"nothing, {self.rule}"


def count_selected(
    value: float, probability: np.ndarray, outcomes: np.ndarray, costs: Costs | None = None
) -> ThresholdOutcome:
    """Count positives, selected pairs and true positives at a threshold."""
    selected = probability >= value
    true_positives = int((selected & outcomes).sum())
    return ThresholdOutcome(len(probability), int(selected.sum()), int(outcomes.sum()), true_positives, costs)


def count_failures_above(
    values: Float[np.ndarray, " values"], probability: Probabilities, outcomes: Bool[np.ndarray, " pairs"]
) -> Int[np.ndarray, " values"]:
    """Count, for each value, the pairs with at least this probability for which the event did not occur.

    >>> count_failures_above(np.array([0.8, 0.1]), np.array([0.9, 0.8, 0.3]), np.array([True, False, False])).tolist()
    [1, 2]
    """
    negatives = np.sort(probability[~outcomes])
    counts: Int[np.ndarray, " values"] = len(negatives) - np.searchsorted(negatives, values)
    return counts


def check_outcomes(probability: ArrayLike, happened: ArrayLike) -> tuple[Probabilities, Bool[np.ndarray, " pairs"]]:
    """Check that there is one probability and one boolean per pair."""
    p, outcomes = check_scores(probability, happened, "probability", "happened")
    return check_probabilities(p), outcomes


def check_probabilities(probability: ArrayLike, name: str = "probability") -> Probabilities:
    """Check that there is one number from 0 to 1 per pair."""
    p: Probabilities = as_tensor(probability, name).cpu().double().numpy()
    if p.ndim != 1:
        raise ValueError(f"Expected {name} of shape (pairs,), but got shape {p.shape}.")
    outside = np.flatnonzero(~((p >= 0.0) & (p <= 1.0)))
    if len(outside):
        k = int(outside[0])
        raise ValueError(f"Expected probabilities from 0 to 1, but pair {k} has {p[k]:.6g}.")
    return p


def check_fraction(name: str, fraction: float) -> None:
    """Raise ValueError unless 0 < fraction ≤ 1."""
    check_number(name, fraction, above=0, most=1, hint="Divide percentages by 100.")


MIN_SELECTED = 10  # pairs: among fewer, a precision of 0.9 allows no error


def _warn_if_few(threshold: Threshold, min_selected: int = 0) -> Threshold:
    """Return the threshold, and warn if it was chosen on few labeled pairs or if it selects few of them."""
    on = threshold.validation
    if on is None or (on.count >= MIN_SAMPLE and not 0 < on.selected < min_selected):
        return threshold
    low, high = on.precision_interval
    advice = f"Label more pairs, if possible {MIN_SAMPLE} or more"
    if on.count >= MIN_SAMPLE:
        advice = "Lower the precision, or label more pairs with a high probability"
    warn_small_sample(
        f"The threshold was chosen on {on.count:,} labeled pairs and selects {on.selected:,} of them"
        + (f" with precision {on.precision:.2f}" if on.selected else "")
        + f". The 95% interval of its precision is {low:.2f} to {high:.2f}. {advice}, and check the threshold on test "
        "pairs: threshold.check(p, happened)."
    )
    return threshold


SIZE_GROWTH_FACTOR = 1.25  # between the numbers of selected pairs at which a guaranteed precision is tested


def threshold_for_precision(
    probability: ArrayLike, happened: ArrayLike, precision: float, *, confidence: float | None = None
) -> Threshold:
    """Choose the lowest threshold with at least the requested precision.

    Without ``confidence`` this is the precision on the given pairs. It is optimistic for other pairs, because the
    threshold was chosen by it.

    Parameters
    ----------
    probability
        P(event) of validation pairs; `EdgePredictions.outcomes` returns both arrays.
    happened
        Whether the event occurred.
    precision
        The requested fraction of true positives among the selected pairs, such as 0.9.
    confidence
        If given, such as 0.9, the precision on the population of pairs is at least ``precision`` with this
        probability, if pairs are independent. Numbers of selected pairs are fixed in advance, each 1.25 times the one
        before, and each is tested by a one-sided binomial test at level (1 - confidence) / number of tests
        (Bonferroni).

    Returns
    -------
    Threshold
        Infinite, so that nothing is selected, if no threshold qualifies.

    Warns
    -----
    SmallSampleWarning
        If there are fewer than 100 pairs, or, without ``confidence``, if fewer than 10 are selected.

    Examples
    --------
    >>> p, happened = np.repeat([0.9, 0.8, 0.7, 0.6], 25), np.repeat([True, True, False, True], 25)
    >>> threshold_for_precision(p, happened, 0.75).value
    0.6
    """
    check_fraction("precision", precision)
    p, outcomes = check_outcomes(probability, happened)
    if confidence is None:
        return _warn_if_few(_choose_by_observed_precision(p, outcomes, precision), MIN_SELECTED)
    return _warn_if_few(_choose_by_guaranteed_precision(p, outcomes, precision, confidence))


def _choose_by_observed_precision(p: np.ndarray, outcomes: np.ndarray, precision: float) -> Threshold:
    value, selected, wrong = counts_by_threshold(p, ~outcomes)
    reached = np.flatnonzero((selected - wrong) / selected >= precision)
    if len(reached):
        chosen, rule = float(value[reached[-1]]), f"the lowest threshold with a precision of at least {precision:g}"
    else:
        chosen, rule = math.inf, f"because no threshold has a precision of at least {precision:g}"
        if len(value):
            best = int(np.argmax((selected - wrong) / selected))
            rule += f": the best is {1 - wrong[best] / selected[best]:.4f}, at P ≥ {value[best]:.6g}"
    return Threshold(chosen, rule, count_selected(chosen, p, outcomes))


def _choose_by_guaranteed_precision(
    p: np.ndarray, outcomes: np.ndarray, precision: float, confidence: float
) -> Threshold:
    from scipy.stats import binom

    check_number("confidence", confidence, above=0, below=1, hint="Pass for example 0.9 or 0.95.")
    value, selected, wrong = counts_by_threshold(p, ~outcomes)
    sizes = _tested_sizes(len(p), precision, confidence)
    goal = f"a precision of at least {precision:g} with confidence {confidence:g}"
    if len(sizes) == 0:
        rule = f"because {len(p)} pairs are too few to guarantee {goal}"
        return Threshold(math.inf, rule, count_selected(math.inf, p, outcomes))
    places = np.searchsorted(selected, sizes)
    p_values = binom.cdf(wrong[places], selected[places], 1.0 - precision)
    passed = places[p_values <= (1.0 - confidence) / len(sizes)]
    if len(passed) == 0:
        return Threshold(math.inf, f"because no threshold guarantees {goal}", count_selected(math.inf, p, outcomes))
    # The n largest probabilities are a sample of the pairs above the next lower value, not of those at or above the
    # lowest of the n: that value is itself random.
    place = int(passed.max())
    chosen = float(np.nextafter(value[place + 1], 1.0)) if place + 1 < len(value) else 0.0
    return Threshold(chosen, f"the lowest threshold that guarantees {goal}", count_selected(chosen, p, outcomes))


def _tested_sizes(count: int, precision: float, confidence: float) -> Int[np.ndarray, " sizes"]:
    """Return the numbers of selected pairs to test, from the smallest at which a test without errors passes, to all."""
    if precision >= 1.0:
        return np.empty(0, np.int64)
    fewest = math.ceil(math.log(1.0 - confidence) / math.log(precision))
    if fewest > count:
        return np.empty(0, np.int64)
    steps = math.ceil(math.log(count / fewest) / math.log(SIZE_GROWTH_FACTOR))
    return np.unique(np.append((fewest * SIZE_GROWTH_FACTOR ** np.arange(steps)).astype(np.int64), count))


def threshold_for_cost(
    probability: ArrayLike, happened: ArrayLike, *, false_positive: float, false_negative: float
) -> Threshold:
    """Choose the threshold with the lowest cost on the given pairs; ties go to the highest, which may select nothing.

    If probabilities are calibrated, `bayes_threshold` is as good and needs no pairs.

    Parameters
    ----------
    probability
        P(event) of validation pairs.
    happened
        Whether the event occurred.
    false_positive
        The cost of a selected pair for which the event does not occur.
    false_negative
        The cost of a pair that is not selected although the event occurs.

    Warns
    -----
    SmallSampleWarning
        If there are fewer than 100 pairs.

    Examples
    --------
    >>> p, happened = np.repeat([0.9, 0.8, 0.7, 0.6], 25), np.repeat([True, False, True, False], 25)
    >>> print(threshold_for_cost(p, happened, false_positive=1, false_negative=4))
    P ≥ 0.7, the lowest cost at 1 per false positive and 4 per false negative
    """
    costs = Costs(false_positive, false_negative)
    p, outcomes = check_outcomes(probability, happened)
    value, selected, wrong = counts_by_threshold(p, ~outcomes)
    missed = outcomes.sum() - (selected - wrong)
    total = np.append(false_negative * outcomes.sum(), false_positive * wrong + false_negative * missed)
    best = int(np.argmin(total))
    chosen = math.inf if best == 0 else float(value[best - 1])
    rule = f"the lowest cost at {_describe_costs(costs)}"
    return _warn_if_few(Threshold(chosen, rule, count_selected(chosen, p, outcomes, costs), costs))


def bayes_threshold(*, false_positive: float, false_negative: float) -> Threshold:
    """Return the threshold fp / (fp + fn), which has the lowest expected cost if probabilities are calibrated.

    Parameters
    ----------
    false_positive
        fp, the cost of a selected pair for which the event does not occur.
    false_negative
        fn, the cost of a pair that is not selected although the event occurs.

    Examples
    --------
    >>> bayes_threshold(false_positive=1, false_negative=4).value
    0.2
    """
    costs = Costs(false_positive, false_negative)
    rule = f"the lowest expected cost at {_describe_costs(costs)} if P is calibrated"
    return Threshold(costs.bayes_threshold, rule, costs=costs)


def _describe_costs(costs: Costs) -> str:
    return f"{costs.false_positive:g} per false positive and {costs.false_negative:g} per false negative"


def threshold_for_fdr(
    probability: ArrayLike, happened: ArrayLike, fdr: float, *, among: ArrayLike | None = None
) -> Threshold:
    """Choose the lowest threshold with at most the requested false discovery rate (FDR) among the selected pairs.

    Each pair in ``among`` gets a conformal p-value, (1 + #{i: p_i ≥ p, event i did not occur}) / (n + 1) over the n
    validation pairs, and the Benjamini-Hochberg procedure selects by these: Jin and Candès (2023), Selection by
    prediction with conformal p-values, JMLR 24, with their clipped score and without random tie-breaking. The FDR in
    ``among`` is at most ``fdr`` for any probabilities, calibrated or not, if validation pairs and pairs in ``among``
    are exchangeable. Without ``among`` there is no such guarantee: the validation pairs stand in for new ones.

    Parameters
    ----------
    probability
        P(event) of validation pairs.
    happened
        Whether the event occurred.
    fdr
        The requested rate, such as 0.1.
    among
        P(event) of the pairs to select from. By default those of the validation pairs.

    Returns
    -------
    Threshold
        Infinite, so that nothing is selected, if no threshold qualifies.

    Warns
    -----
    SmallSampleWarning
        If there are fewer than 100 pairs.

    Examples
    --------
    >>> p, happened = np.linspace(0.99, 0.01, 100), np.arange(100) < 50
    >>> threshold_for_fdr(p, happened, 0.2, among=np.array([0.97, 0.95, 0.6, 0.1])).value
    0.6
    """
    check_fraction("fdr", fdr)
    p, outcomes = check_outcomes(probability, happened)
    candidates = p if among is None else check_probabilities(among, "among")
    value, selected, _ = counts_by_threshold(candidates, np.zeros(len(candidates), np.bool_))
    above = count_failures_above(value, p, outcomes)
    passed = np.flatnonzero((1 + above) * len(candidates) <= fdr * (len(p) + 1) * selected)
    chosen = float(value[passed[-1]]) if len(passed) else math.inf
    rule = _fdr_rule("a false discovery rate", fdr, chosen)
    return _warn_if_few(Threshold(chosen, rule, count_selected(chosen, p, outcomes)))


def threshold_for_believed_fdr(probability: ArrayLike, fdr: float) -> Threshold:
    """Choose the lowest threshold with at most the requested Bayesian FDR, the mean of 1 - P over the selected pairs.

    It needs no labels. The result is the largest set whose false discovery rate, as expected under the model itself,
    is at most ``fdr``. The expectation is correct if P is calibrated.

    Parameters
    ----------
    probability
        P(event) of the pairs to select from.
    fdr
        The requested rate, such as 0.1.

    Examples
    --------
    >>> threshold_for_believed_fdr(np.array([0.99, 0.95, 0.8, 0.3]), 0.1).value  # the mean of 0.01, 0.05 and 0.2
    0.8
    """
    check_fraction("fdr", fdr)
    p = np.sort(check_probabilities(probability))[::-1]
    value, selected, _ = counts_by_threshold(p, np.zeros(len(p), np.bool_))
    expected_fdr = np.cumsum(1.0 - p)[selected - 1] / selected
    passed = np.flatnonzero(expected_fdr <= fdr)
    chosen = float(value[passed[-1]]) if len(passed) else math.inf
    return Threshold(chosen, _fdr_rule("a Bayesian false discovery rate", fdr, chosen))


def _fdr_rule(name: str, fdr: float, chosen: float) -> str:
    goal = f"{name} of at most {fdr:g}"
    return f"the lowest threshold for {goal}" if chosen < math.inf else f"because no threshold qualifies for {goal}"
