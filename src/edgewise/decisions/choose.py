"""Choose a threshold on validation pairs: for a precision, or a cost.

Guarantees here hold for pairs that are drawn independently. Edges share nodes, so for edges they are approximate: check
each threshold on test pairs.
"""

import math

import numpy as np
from jaxtyping import Int

from edgewise.data.arrays import ArrayLike
from edgewise.data.options import check_number
from edgewise.decisions.risk_coverage import counts_by_threshold
from edgewise.decisions.threshold import Costs, Threshold, check_share, checked_outcomes, outcome

GROWTH = 1.25  # of the numbers of pairs at which a guaranteed precision is tested


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
    check_share("precision", precision)
    p, truth = checked_outcomes(probability, happened)
    return _observed(p, truth, precision) if confidence is None else _guaranteed(p, truth, precision, confidence)


def _observed(p: np.ndarray, truth: np.ndarray, precision: float) -> Threshold:
    value, selected, wrong = counts_by_threshold(p, ~truth)
    reached = np.flatnonzero((selected - wrong) / selected >= precision)
    if len(reached):
        chosen, rule = float(value[reached[-1]]), f"the lowest threshold with a precision of at least {precision:g}"
    else:
        chosen, rule = math.inf, f"as no threshold has a precision of at least {precision:g}"
        if len(value):
            best = int(np.argmax((selected - wrong) / selected))
            rule += f": the best is {1 - wrong[best] / selected[best]:.4f}, at P ≥ {value[best]:.6g}"
    return Threshold(chosen, rule, outcome(chosen, p, truth))


def _guaranteed(p: np.ndarray, truth: np.ndarray, precision: float, confidence: float) -> Threshold:
    from scipy.stats import binom

    check_number("confidence", confidence, above=0, below=1, way_out="Usual ones are 0.9 and 0.95.")
    value, selected, wrong = counts_by_threshold(p, ~truth)
    sizes = _tested_sizes(len(p), precision, confidence)
    goal = f"a precision of at least {precision:g} with confidence {confidence:g}"
    if len(sizes) == 0:
        rule = f"as {len(p)} pairs are too few to show {goal}"
        return Threshold(math.inf, rule, outcome(math.inf, p, truth))
    places = np.searchsorted(selected, sizes)
    chances = binom.cdf(wrong[places], selected[places], 1.0 - precision)
    passed = places[chances <= (1.0 - confidence) / len(sizes)]
    if len(passed) == 0:
        return Threshold(math.inf, f"as no threshold shows {goal}", outcome(math.inf, p, truth))
    # The n most probable are a sample of all that is above the next lower value, not of what reaches their own lowest.
    place = int(passed.max())
    chosen = float(np.nextafter(value[place + 1], 1.0)) if place + 1 < len(value) else 0.0
    return Threshold(chosen, f"the lowest threshold that shows {goal}", outcome(chosen, p, truth))


def _tested_sizes(count: int, precision: float, confidence: float) -> Int[np.ndarray, " sizes"]:
    """Fix how many selected pairs are tested: from the fewest that could show anything to all."""
    if precision >= 1.0:
        return np.empty(0, np.int64)
    fewest = math.ceil(math.log(1.0 - confidence) / math.log(precision))
    if fewest > count:
        return np.empty(0, np.int64)
    steps = math.ceil(math.log(count / fewest) / math.log(GROWTH))
    return np.unique(np.append((fewest * GROWTH ** np.arange(steps)).astype(np.int64), count))


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
    p, truth = checked_outcomes(probability, happened)
    value, selected, wrong = counts_by_threshold(p, ~truth)
    left_out = truth.sum() - (selected - wrong)
    total = np.append(false_negative * truth.sum(), false_positive * wrong + false_negative * left_out)
    best = int(np.argmin(total))
    chosen = math.inf if best == 0 else float(value[best - 1])
    rule = f"which costs least at {_words(costs)}"
    return Threshold(chosen, rule, outcome(chosen, p, truth, costs), costs)


def bayes_threshold(*, false_positive: float, false_negative: float) -> Threshold:
    """Give the threshold fp / (fp + fn), from which on selecting is the cheaper choice if probabilities are right.

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
    return Threshold(costs.bayes_threshold, f"which costs least at {_words(costs)} if P is right", costs=costs)


def _words(costs: Costs) -> str:
    return f"{costs.false_positive:g} a false positive and {costs.false_negative:g} a false negative"
