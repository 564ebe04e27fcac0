"""Thresholds against scikit-learn, SciPy, loops, and populations of known precision."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import precision_recall_curve, precision_score, recall_score

from edgewise.decisions import (
    Threshold,
    bayes_threshold,
    threshold_for_believed_fdr,
    threshold_for_cost,
    threshold_for_fdr,
    threshold_for_precision,
)

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny samples, on purpose

GRID = st.integers(0, 8).map(lambda k: k / 8)
PAIRS = st.lists(st.tuples(GRID, st.booleans()), min_size=1, max_size=40)


def columns(pairs):
    probability, happened = zip(*pairs, strict=True)
    return np.array(probability), np.array(happened)


def calibrated(count, seed):
    """Draw calibrated uniform probabilities, for which the precision of P ≥ t is (1 + t) / 2."""
    g = np.random.default_rng(seed)
    probability = g.random(count)
    return probability, g.random(count) < probability


@given(PAIRS, st.sampled_from([0.2, 0.5, 0.75, 0.9, 1.0]))
def test_threshold_for_precision_matches_sklearn(pairs, wanted):
    probability, happened = columns(pairs)
    assume(happened.any())
    precision, _, values = precision_recall_curve(happened, probability)
    reached = values[precision[:-1] >= wanted]
    threshold = threshold_for_precision(probability, happened, wanted)
    assert threshold.value == (reached.min() if len(reached) else math.inf)
    assert threshold.found == bool(len(reached))


@given(PAIRS, GRID)
def test_outcome_matches_sklearn(pairs, value):
    probability, happened = columns(pairs)
    outcome = bayes_threshold(false_positive=value, false_negative=1 - value).check(probability, happened)
    selected = probability >= value
    precision = precision_score(happened, selected, zero_division=np.nan)
    recall = recall_score(happened, selected, zero_division=np.nan)
    assert (outcome.precision, outcome.recall) == pytest.approx((precision, recall), nan_ok=True)
    assert outcome.coverage == pytest.approx(selected.mean())
    assert outcome.false_discoveries == pytest.approx(0.0 if math.isnan(precision) else 1 - precision)
    cost = np.where(happened, (1 - value) * ~selected, value * selected).mean()
    assert outcome.cost == pytest.approx(cost)


@given(PAIRS, st.sampled_from([(1, 1), (1, 5), (5, 1), (0, 1), (1, 0)]))
def test_threshold_for_cost_has_the_lowest_cost(pairs, costs):
    probability, happened = columns(pairs)
    fp, fn = costs
    threshold = threshold_for_cost(probability, happened, false_positive=fp, false_negative=fn)
    every = {
        value: np.where(happened, fn * (probability < value), fp * (probability >= value)).mean()
        for value in [*np.unique(probability), math.inf]
    }
    assert threshold.validation.cost == pytest.approx(min(every.values()))
    assert threshold.value == max(value for value, cost in every.items() if cost == min(every.values()))


def test_threshold_for_cost_approaches_bayes_threshold():
    probability, happened = calibrated(200_000, seed=3)
    chosen = threshold_for_cost(probability, happened, false_positive=1, false_negative=4)
    bayes = bayes_threshold(false_positive=1, false_negative=4)
    assert bayes.value == 0.2
    assert chosen.value == pytest.approx(0.2, abs=0.03)
    other = calibrated(200_000, seed=4)
    # ∫ over p: fp (1 - p) above t, fn p below it.
    assert bayes.check(*other).cost == pytest.approx(4 * 0.2**2 / 2 + (1 - 0.2) ** 2 / 2, abs=5e-3)


@given(PAIRS, st.lists(GRID, min_size=1, max_size=30), st.sampled_from([0.1, 0.3, 0.5, 0.9]))
def test_threshold_for_fdr_matches_benjamini_hochberg(pairs, among, rate):
    probability, happened = columns(pairs)
    candidates = np.array(among)
    p_values = [(1 + sum(p >= own and not occurred for p, occurred in pairs)) / (1 + len(pairs)) for own in among]
    rejected = stats.false_discovery_control(p_values, method="bh") <= rate + 1e-12
    selected = threshold_for_fdr(probability, happened, rate, among=candidates).select(candidates)
    assert selected.tolist() == rejected.tolist()


def test_false_discovery_rate_holds_for_overconfident_probabilities():
    proportions = []
    for seed in range(200):
        p, happened = calibrated(400, seed)
        validation, test = slice(0, 200), slice(200, 400)
        overconfident = p**0.2
        threshold = threshold_for_fdr(overconfident[validation], happened[validation], 0.3, among=overconfident[test])
        proportions.append(threshold.check(overconfident[test], happened[test]).false_discoveries)
    assert np.mean(proportions) < 0.3 + 3 * np.std(proportions) / math.sqrt(len(proportions))
    assert np.mean(proportions) > 0.1  # not overly conservative


def test_precision_holds_with_the_requested_confidence():
    missed, found, missed_without_confidence = 0, 0, 0
    for seed in range(200):
        p, happened = calibrated(300, seed)
        guaranteed = threshold_for_precision(p, happened, 0.75, confidence=0.8)
        found += guaranteed.found
        missed += guaranteed.found and (1 + guaranteed.value) / 2 < 0.75
        missed_without_confidence += (1 + threshold_for_precision(p, happened, 0.75).value) / 2 < 0.75
    assert missed / 200 <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 200)
    assert found > 160
    assert missed_without_confidence / 200 > 0.4  # the precision on the validation pairs is optimistic


@pytest.mark.parametrize(("count", "found"), [(22, True), (21, False)])
def test_guaranteed_precision_needs_the_binomial_number_of_pairs(count, found):
    # With one test and no errors: 0.9^n ≤ 0.1 for n ≥ 22.
    threshold = threshold_for_precision(np.full(count, 0.8), np.ones(count, bool), 0.9, confidence=0.9)
    assert threshold.found is found
    assert threshold.value == (0.0 if found else math.inf)


@given(st.lists(GRID, min_size=1, max_size=30), st.sampled_from([0.05, 0.2, 0.5]))
def test_bayesian_fdr_selects_the_largest_qualifying_set(among, rate):
    probability = np.array(among)
    threshold = threshold_for_believed_fdr(probability, rate)
    sets = {value: np.mean(1 - probability[probability >= value]) for value in np.unique(probability)}
    allowed = [value for value, mean in sets.items() if mean <= rate]
    assert threshold.value == (min(allowed) if allowed else math.inf)


def test_bayesian_fdr_holds_for_calibrated_probabilities():
    probability, happened = calibrated(100_000, seed=1)
    threshold = threshold_for_believed_fdr(probability, 0.1)
    assert threshold.value == pytest.approx(0.8, abs=0.01)
    assert threshold.check(probability, happened).false_discoveries == pytest.approx(0.1, abs=0.01)


@given(PAIRS, st.randoms(use_true_random=False))
def test_order_of_pairs_does_not_matter(pairs, random):
    shuffled = pairs.copy()
    random.shuffle(shuffled)
    for choose in (
        lambda p, y: threshold_for_precision(p, y, 0.6),
        lambda p, y: threshold_for_precision(p, y, 0.6, confidence=0.5),
        lambda p, y: threshold_for_cost(p, y, false_positive=1, false_negative=2),
        lambda p, y: threshold_for_fdr(p, y, 0.4),
    ):
        assert choose(*columns(pairs)) == choose(*columns(shuffled))


def test_unreachable_precision_selects_nothing_and_says_why():
    probability, happened = np.array([0.9, 0.8, 0.7]), np.array([False, True, False])
    threshold = threshold_for_precision(probability, happened, 0.9)
    assert not threshold.found
    assert str(threshold).startswith("nothing, because")
    assert "the best is 0.5000, at P ≥ 0.8" in str(threshold)
    assert not threshold.select(probability).any()
    outcome = threshold.check(probability, happened)
    assert (outcome.selected, outcome.recall, outcome.false_discoveries) == (0, 0.0, 0.0)
    assert math.isnan(outcome.precision)
    few = threshold_for_precision(probability, happened, 0.9, confidence=0.9)
    assert "3 pairs are too few" in str(few)
    assert not threshold_for_precision(*calibrated(50, 0), 1.0, confidence=0.9).found
    assert "0.01" in str(threshold_for_fdr(probability, happened, 0.01))


def test_without_pairs_nothing_is_selected():
    empty = np.empty(0), np.empty(0, bool)
    for threshold in (
        threshold_for_precision(*empty, 0.9),
        threshold_for_precision(*empty, 0.9, confidence=0.9),
        threshold_for_cost(*empty, false_positive=1, false_negative=1),
        threshold_for_fdr(*empty, 0.1),
        threshold_for_believed_fdr(empty[0], 0.1),
    ):
        assert not threshold.found
        assert math.isnan(threshold.check(*empty).coverage)


def test_str_has_threshold_rule_and_counts():
    threshold = threshold_for_precision(np.array([0.9, 0.8]), np.array([True, False]), 0.9)
    assert str(threshold).startswith("P ≥ 0.9, ") and "precision of at least 0.9" in str(threshold)
    assert str(threshold.validation) == "1 of 2 pairs selected, precision 1.0000, recall 1.0000"
    cost = threshold_for_cost(np.array([0.9, 0.8]), np.array([True, False]), false_positive=1, false_negative=5)
    assert str(cost) == "P ≥ 0.9, the lowest cost at 1 per false positive and 5 per false negative"
    assert cost.validation.to_dict()["cost"] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: threshold_for_precision(np.array([1.5]), np.array([True]), 0.9), "pair 0 has 1.5"),
        (lambda: threshold_for_precision(np.array([0.5]), np.array([True]), 90), "by 100"),
        (lambda: threshold_for_precision(np.array([0.5]), np.array([1]), 0.9), "happened to hold booleans"),
        (lambda: threshold_for_precision(np.array([0.5]), np.array([True]), 0.9, confidence=1.0), "confidence to be a"),
        (lambda: threshold_for_fdr(np.array([0.5]), np.array([True]), 0.0), "fdr to be a number above 0 and"),
        (lambda: threshold_for_fdr(np.array([0.5]), np.array([True]), 0.1, among=np.array([-1.0])), "pair 0 has -1"),
        (lambda: threshold_for_believed_fdr(np.array([np.nan]), 0.1), "pair 0 has nan"),
        (lambda: threshold_for_believed_fdr(np.full((2, 3), 0.5), 0.1), r"probability of shape \(pairs,\)"),
        (lambda: threshold_for_fdr(np.array([0.5]), np.array([True]), 0.1, among=np.full((2, 3), 0.5)), "among of"),
        (
            lambda: bayes_threshold(false_positive=-1, false_negative=1),
            "false_positive to be a number of at least 0, but",
        ),
        (lambda: bayes_threshold(false_positive=0, false_negative=0), "not both 0"),
        (lambda: Threshold(0.5, "by hand").check(np.array([0.5]), np.array([True, True])), "same shape"),
    ],
)
def test_invalid_input_raises_value_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_select_and_check_compare_float32_in_float64():
    """The float64 threshold is not rounded to float32."""
    p = np.repeat(np.array([0.1, 0.9, 0.95], dtype=np.float32), 100)  # 0.9 is below 0.9 in float32
    happened = np.arange(300) % 3 > 0
    threshold = bayes_threshold(false_positive=9, false_negative=1)
    assert threshold.select(p).sum() == threshold.check(p, happened).selected == (p.astype(np.float64) >= 0.9).sum()
