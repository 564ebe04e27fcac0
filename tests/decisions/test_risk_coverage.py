"""Risk-coverage curves against a loop, closed forms and integrals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import edgewise as ew
from edgewise.decisions import risk_coverage, selective

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny samples, on purpose

GRID = st.integers(0, 6).map(lambda k: k / 6)  # few values, so that ties are common
SCORED = st.lists(st.tuples(GRID, st.booleans()), min_size=1, max_size=30)


def aurc_by_loop(elements):
    """Return the mean over elements of the error rate among those that are at least as confident."""
    total = 0.0
    for own, _ in elements:
        accepted = [correct for confidence, correct in elements if confidence >= own]
        total += accepted.count(False) / len(accepted)
    return total / len(elements)


def curve_of(elements):
    confidence, correct = zip(*elements, strict=True)
    return risk_coverage(np.array(confidence), np.array(correct))


@given(SCORED)
def test_area_and_points_match_a_loop(elements):
    curve = curve_of(elements)
    assert curve.aurc == pytest.approx(aurc_by_loop(elements), abs=1e-12)
    for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.risk, strict=True):
        accepted = [correct for confidence, correct in elements if confidence >= threshold]
        assert coverage == len(accepted) / len(elements)
        assert risk == accepted.count(False) / len(accepted)


@given(SCORED, st.randoms(use_true_random=False))
def test_order_of_elements_does_not_matter(elements, random):
    shuffled = elements.copy()
    random.shuffle(shuffled)
    assert curve_of(shuffled).aurc == curve_of(elements).aurc


@given(SCORED)
def test_monotone_transform_of_confidence_does_not_matter(elements):
    stretched = [(math.exp(3 * confidence) - 7, correct) for confidence, correct in elements]
    assert curve_of(stretched).aurc == curve_of(elements).aurc


@given(SCORED)
def test_best_aurc_is_that_of_the_optimal_order(elements):
    curve = curve_of(elements)
    ranked = [(k + 100.0 * correct, correct) for k, (_, correct) in enumerate(elements)]
    assert curve.best_aurc == pytest.approx(aurc_by_loop(ranked), abs=1e-12)
    assert curve.excess_aurc >= -1e-12


@pytest.mark.parametrize("risk", [0.02, 0.1, 0.3, 0.8])
def test_best_aurc_approaches_its_published_limit(risk):
    count = 200_000
    correct = np.arange(count) >= risk * count
    curve = risk_coverage(np.arange(count) / count, correct)
    assert curve.aurc == pytest.approx(risk + (1 - risk) * math.log(1 - risk), abs=1e-4)
    assert curve.excess_aurc == pytest.approx(0, abs=1e-12)


def test_calibrated_uniform_confidences_have_a_known_area():
    # For c uniform on (0, 1) and P(correct | c) = c the risk above t is (1 - t) / 2, and its mean over t is 1/4.
    g = np.random.default_rng(0)
    confidence = g.random(400_000)
    curve = risk_coverage(confidence, g.random(400_000) < confidence)
    assert curve.aurc == pytest.approx(0.25, abs=2e-3)
    assert curve.risk_at(0.5) == pytest.approx(0.25, abs=5e-3)
    assert curve.coverage_at(0.1) == pytest.approx(0.2, abs=2e-2)


def test_equal_confidences_have_the_full_risk():
    curve = risk_coverage(np.full(5, 0.7), np.array([True, False, True, True, False]))
    assert curve.aurc == curve.full_risk == 0.4
    assert curve.coverage.tolist() == [1.0]


def test_risk_at_and_coverage_at():
    curve = risk_coverage(np.arange(10, 0, -1), np.array([True] * 6 + [False, True, False, False]))
    assert curve.risk_at(0.6) == 0.0
    assert curve.risk_at(0.7) == 1 / 7
    assert curve.risk_at(1.0) == curve.full_risk == 0.3
    assert curve.coverage_at(0.125) == 0.8
    assert curve.coverage_at(0.0) == 0.6
    assert risk_coverage(np.array([1.0]), np.array([False])).coverage_at(0.5) == 0.0


def test_empty_input_gives_nan():
    curve = risk_coverage(np.empty(0), np.empty(0, bool))
    assert curve.count == 0
    assert all(math.isnan(value) for value in (curve.aurc, curve.best_aurc, curve.excess_aurc, curve.full_risk))
    assert math.isnan(curve.risk_at(0.5))
    assert curve.coverage_at(0.5) == 0.0
    assert "count=0" in repr(curve)


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        (np.array([0.5, np.nan]), np.array([True, True]), "element 1 is NaN"),
        (np.array([0.5]), np.array([1]), "correct to hold booleans"),
        (np.array([0.5]), np.array([True, False]), r"shape \(elements,\)"),
        (np.array([[0.5]]), np.array([[True]]), r"shape \(elements,\)"),
        ({0.5}, np.array([True]), r"confidence to be an array.*but got set.*list\("),
    ],
)
def test_invalid_input_raises_value_error(confidence, correct, message):
    with pytest.raises(ValueError, match=message):
        risk_coverage(confidence, correct)
    with pytest.raises(ValueError, match="coverage to be a number above 0 and at most 1"):
        risk_coverage(np.array([0.5]), np.array([True])).risk_at(0.0)


@given(arrays.arrays(np.float64, 8, elements=st.floats(-4, 4)), st.integers(0, 2**32))
def test_selective_matches_a_loop_over_nodes_and_edges(numbers, seed):
    g = np.random.default_rng(seed)
    node = torch.from_numpy(g.normal(size=(8, 3)) + numbers[:, None] * [1, 0, 0]).softmax(-1)
    y, mask = torch.from_numpy(g.integers(0, 3, 8)), torch.from_numpy(g.random(8) < 0.8)
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 4), (5, 6), (6, 7), (7, 0), (1, 6)]
    both = torch.tensor([*pairs, *((j, i) for i, j in pairs), (3, 3)]).T
    curves = selective(node, y, both, mask=mask, events=("same", "any=1"))
    guess = node.argmax(1)
    inside = [pair for pair in pairs if mask[pair[0]] and mask[pair[1]]]
    expected = {
        "nodes": [(float(node[i].max()), bool(guess[i] == y[i])) for i in range(8) if mask[i]],
        "edges": [
            (float(node[i].max() * node[j].max()), bool(guess[i] == y[i] and guess[j] == y[j])) for i, j in inside
        ],
    }
    events = {
        "same": [(float(node[i] @ node[j]), bool(y[i] == y[j])) for i, j in inside],
        "any=1": [(1 - float((1 - node[i, 1]) * (1 - node[j, 1])), bool((y[[i, j]] == 1).any())) for i, j in inside],
    }
    for name, outcomes in events.items():
        expected[name] = [(max(p, 1 - p), (p >= 0.5) == occurred) for p, occurred in outcomes]
    assert list(curves.curves) == list(expected)
    for name, elements in expected.items():
        assert curves.curves[name].count == len(elements)
        if elements:
            assert curves.curves[name].aurc == pytest.approx(aurc_by_loop(elements), abs=1e-9), name


def test_edges_of_a_pairwise_posterior_use_its_joints():
    # Node marginals are uniform, so only the joints distinguish the edges.
    node = torch.full((4, 2), 0.5, dtype=torch.float64)
    joints = torch.tensor([[[0.49, 0.01], [0.01, 0.49]], [[0.26, 0.24], [0.24, 0.26]]], dtype=torch.float64)
    posterior = ew.PairwisePosterior.from_joints(node, torch.tensor([[0, 2], [1, 3]]), joints)
    y = torch.tensor([0, 0, 1, 1])
    curves = selective(posterior, y, torch.tensor([[0, 2], [1, 3]]))
    assert curves.edges.threshold.tolist() == pytest.approx([0.49, 0.26])
    assert curves.edges.risk.tolist() == [0.0, 0.5]
    assert curves.events["same"].threshold.tolist() == pytest.approx([0.98, 0.52])
    assert curves.events["same"].full_risk == 0.0
    with pytest.raises(ValueError, match=r"no edge \(0, 2\)"):
        selective(posterior, y, torch.tensor([[0], [2]]))
    assert "excess" in str(curves)
