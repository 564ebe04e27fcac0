"""Warnings about thresholds and curves that rest on few labeled pairs."""

import warnings
from functools import partial

import numpy as np
import pytest
from scipy.stats import binomtest

import edgewise as ew
from edgewise.small_samples import fraction_interval
from edgewise.workers.outcomes import Finished, attempt

FUNCTIONS = [
    partial(ew.threshold_for_precision, precision=0.8),
    partial(ew.threshold_for_precision, precision=0.8, confidence=0.9),
    partial(ew.threshold_for_cost, false_positive=1, false_negative=1),
    partial(ew.threshold_for_fdr, fdr=0.2),
    ew.risk_coverage,
]


def outcomes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities in descending order, of which the upper half happened."""
    return np.linspace(1.0, 0.0, count), np.arange(count) < count // 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_less_than_a_hundred_pairs_warn_with_their_number(function):
    with pytest.warns(ew.SmallSampleWarning, match=r"\b99 labeled") as caught:
        function(*outcomes(99))
    assert len(caught) == 1 and caught[0].filename == __file__
    function(*outcomes(100))  # a warning would be an error


def test_warning_states_the_interval_of_the_precision():
    """Nine of the ten selected pairs are correct, and two are not selected."""
    p, happened = np.linspace(0.9, 0.1, 12), np.array([True] * 8 + [False, True] + [False] * 2)
    interval = binomtest(9, 10).proportion_ci(0.95, method="wilson")
    with pytest.warns(ew.SmallSampleWarning) as caught:
        threshold = ew.threshold_for_precision(p, happened, 0.9)
    message = str(caught[0].message)
    assert "12 labeled pairs" in message and "selects 10 of them with precision 0.90" in message
    assert f"{interval.low:.2f} to {interval.high:.2f}" in message
    assert threshold.validation.precision_interval == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (1, 1), (3, 7), (50, 100), (999, 1000)])
def test_interval_matches_scipy(hits, count):
    expected = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert fraction_interval(hits, count) == pytest.approx((expected.low, expected.high))


def test_nothing_is_known_of_a_fraction_of_nothing():
    assert fraction_interval(0, 0) == (0.0, 1.0)
    with pytest.warns(ew.SmallSampleWarning, match="0 labeled pairs.* 0.00 to 1.00"):
        ew.threshold_for_precision(*outcomes(0), 0.9)


def test_few_selected_pairs_of_many_warn():
    """The precision rests on the selected pairs only."""
    p, happened = outcomes(1000)
    few = np.arange(1000) < 7
    with pytest.warns(ew.SmallSampleWarning, match="1,000 labeled pairs and selects 7") as caught:
        ew.threshold_for_precision(p, few, 1.0)
    message = str(caught[0].message)
    assert "Lower the precision" in message and "100 or more" not in message
    ew.threshold_for_precision(p, few, 0.5)  # the advice is followed
    ew.threshold_for_precision(p, happened, 1.0)


def test_thresholds_without_labels_do_not_warn():
    ew.bayes_threshold(false_positive=1, false_negative=2)
    ew.threshold_for_believed_fdr(np.array([0.9, 0.8]), 0.2)


def test_selective_names_what_is_few():
    nodes = np.arange(120)
    probs, labels = np.tile([0.7, 0.3], (120, 1)), nodes % 2
    cycle, path = np.array([nodes, (nodes + 1) % 120]), np.array([nodes[:12], nodes[1:13]])
    ew.selective(probs, labels, cycle)
    with pytest.warns(ew.SmallSampleWarning, match="12 labeled edges") as caught:
        ew.selective(probs, labels, path)
    assert len(caught) == 1  # not again for the event
    ew.selective(probs, labels, path[:, :0])  # without edges there is no curve


def test_warning_can_be_filtered_by_its_category():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ew.SmallSampleWarning)
        ew.threshold_for_precision(*outcomes(20), 0.8)


def test_jobs_of_a_sweep_do_not_warn():
    """A sweep would repeat the same warning for each of its runs."""
    outcome = attempt(lambda count: ew.threshold_for_precision(*outcomes(count), 0.8).value, 20)
    assert isinstance(outcome, Finished)
