"""Choose a threshold for a false discovery rate: by validation pairs, or by what the probabilities themselves say.

The guarantee holds for pairs that are exchangeable. Edges share nodes, so for edges it is approximate: check each
threshold on test pairs.
"""

import math

import numpy as np

from edgewise.data.arrays import ArrayLike
from edgewise.decisions.risk_coverage import counts_by_threshold
from edgewise.decisions.threshold import Threshold, check_share, checked_outcomes, checked_probabilities, outcome


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
    check_share("fdr", fdr)
    p, truth = checked_outcomes(probability, happened)
    decided = p if among is None else checked_probabilities(among, "among")
    value, selected, _ = counts_by_threshold(decided, np.zeros(len(decided), np.bool_))
    false = np.sort(p[~truth])
    above = len(false) - np.searchsorted(false, value)
    passed = np.flatnonzero((1 + above) * len(decided) <= fdr * (len(p) + 1) * selected)
    chosen = float(value[passed[-1]]) if len(passed) else math.inf
    words = f"a false discovery rate of {fdr:g}"
    rule = f"the lowest threshold for {words}" if len(passed) else f"as no threshold has {words}"
    return Threshold(chosen, rule, outcome(chosen, p, truth))


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
    check_share("fdr", fdr)
    p = np.sort(checked_probabilities(probability))[::-1]
    value, selected, _ = counts_by_threshold(p, np.zeros(len(p), np.bool_))
    believed = np.cumsum(1.0 - p)[selected - 1] / selected
    passed = np.flatnonzero(believed <= fdr)
    chosen = float(value[passed[-1]]) if len(passed) else math.inf
    words = f"a believed false discovery rate of {fdr:g}"
    return Threshold(chosen, f"the lowest threshold for {words}" if len(passed) else f"as no threshold has {words}")
