"""Decompositions and isotonic curves: compared with the min-max formula, by properties, and with model-diagnostics."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.kernels import dispatch
from edgewise.metrics import collect
from edgewise.metrics.decomposition import decompose_views
from edgewise.metrics.forecasts import fit_isotonic, pack, unpack
from edgewise.metrics.intervals import draw_weights
from helpers.random_predictions import cases, random_case, symmetric_joints
from helpers.reference import isotonic, loops

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # random masks may be empty

PARTS = ("miscalibration", "discrimination", "uncertainty")
forecasts_with_ties = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0.0, 1.0))
events = st.lists(st.tuples(forecasts_with_ties, st.booleans()), min_size=0, max_size=14)
nonempty_events = st.lists(st.tuples(forecasts_with_ties, st.booleans()), min_size=1, max_size=14)


@pytest.fixture(params=["plain", "compiled"])
def implementation(request, monkeypatch):
    """Run a test with both implementations, whatever the number of elements."""
    monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", 0 if request.param == "compiled" else math.inf)
    return request.param


@contextmanager
def set_implementation(compiled):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "MIN_COMPILED_LENGTH", 0 if compiled else math.inf)
        yield


def decompose(forecasts, outcomes):
    keys = pack(torch.tensor(forecasts, dtype=torch.float64), torch.tensor(outcomes, dtype=torch.bool))
    return decompose_views({"event": keys})["event"]


def parts_of(decomposition):
    return tuple(getattr(decomposition, name) for name in PARTS)


@given(events=events, compiled=st.booleans())
def test_parts_equal_the_definition(events, compiled):
    forecasts, outcomes = [f for f, _ in events], [y for _, y in events]
    with set_implementation(compiled):
        got = decompose(forecasts, outcomes)
    expected = isotonic.decompose(forecasts, outcomes)
    assert parts_of(got.decomposition) == pytest.approx(expected, abs=1e-14, nan_ok=True)
    of_log = isotonic.decompose(forecasts, outcomes, isotonic.log_loss)
    if math.isfinite(of_log[0]):
        assert parts_of(got.log_decomposition) == pytest.approx(of_log, rel=1e-12, abs=1e-13)
        assert got.log_decomposition_reason is None
    else:
        assert got.log_decomposition is None and got.log_decomposition_reason


@given(events=nonempty_events, compiled=st.booleans())
def test_parts_are_not_negative_and_add_up_to_the_score(events, compiled):
    forecasts, outcomes = np.array([f for f, _ in events]), np.array([y for _, y in events])
    with set_implementation(compiled):
        got = decompose(forecasts, outcomes)
    score = np.square(forecasts - outcomes).mean()
    assert min(parts_of(got.decomposition)) >= 0
    assert got.decomposition.score == pytest.approx(score, abs=1e-12)
    assert got.decomposition.discrimination <= got.decomposition.uncertainty + 1e-15
    if got.log_decomposition is not None:
        assert min(parts_of(got.log_decomposition)) >= 0


@given(
    events=nonempty_events,
    # Forecasts are rounded, so that different forecasts remain different.
    transform=st.sampled_from([lambda f: f / 4, lambda f: 0.5 + f / 2, lambda f: f**0.125]),
)
def test_increasing_transforms_change_only_the_miscalibration(events, transform):
    forecasts = np.array([f for f, _ in events]).round(3)
    before, after = (decompose(f, [y for _, y in events]) for f in (forecasts, transform(forecasts)))
    first, second = before.decomposition, after.decomposition
    assert (first.discrimination, first.uncertainty) == (second.discrimination, second.uncertainty)


@given(events=nonempty_events)
def test_recalibrated_forecasts_have_no_miscalibration(events):
    forecasts, outcomes = [f for f, _ in events], [y for _, y in events]
    recalibrated = isotonic.isotonic_fit(forecasts, outcomes)
    got, before = decompose(recalibrated, outcomes), decompose(forecasts, outcomes)
    assert got.decomposition.miscalibration == pytest.approx(0, abs=1e-15)
    assert got.log_decomposition.miscalibration == pytest.approx(0, abs=1e-14)
    assert got.decomposition.discrimination == pytest.approx(before.decomposition.discrimination, abs=1e-15)


def test_order_of_elements_does_not_change_a_bit(implementation):
    rng = np.random.default_rng(0)
    forecasts = rng.integers(0, 50, 1000) / 50
    outcomes = rng.random(1000) < forecasts
    order = rng.permutation(1000)
    before, after = decompose(forecasts, outcomes), decompose(forecasts[order], outcomes[order])
    assert before.decomposition == after.decomposition
    assert before.log_decomposition == after.log_decomposition


@pytest.mark.parametrize(
    ("forecasts", "outcomes", "expected"),
    [
        ([0.3], [True], (0.49, 0.0, 0.0)),
        ([0.5, 1.0], [True, True], (0.125, 0.0, 0.0)),  # all right
        ([0.5, 1.0], [False, False], (0.625, 0.0, 0.0)),  # all wrong
        ([0.0, 1.0], [False, True], (0.0, 0.25, 0.25)),  # perfect
        ([0.2, 0.4], [True, False], (0.15, 0.0, 0.25)),  # wrong order
        ([0.5, 0.5, 0.5], [True, False, True], (1 / 36, 0.0, 2 / 9)),  # a tie
    ],
)
def test_small_cases(forecasts, outcomes, expected, implementation):
    assert parts_of(decompose(forecasts, outcomes).decomposition) == pytest.approx(expected, abs=1e-15)


def test_impossible_outcomes_are_the_reason_for_no_log_decomposition(implementation):
    got = decompose([0.0, 1.0, 0.0, 0.5], [True, False, False, True])
    assert got.log_decomposition is None
    assert "2 of 4" in got.log_decomposition_reason


def test_tiny_probabilities_do_not_underflow(implementation):
    forecasts = np.full(300, 5e-324)
    got = decompose(forecasts, np.ones(300, dtype=bool))
    assert got.log_decomposition.score == pytest.approx(1074 * math.log(2))


@pytest.mark.parametrize("calibrated", [True, False])
def test_long_inputs_give_the_same_blocks_with_both_implementations(calibrated, monkeypatch):
    rng = np.random.default_rng(0)
    forecasts = np.concatenate([rng.random(20_000), rng.integers(0, 100, 20_000) / 100])
    occurred = rng.random(40_000) < (forecasts if calibrated else 0.3)
    keys = pack(torch.from_numpy(forecasts), torch.from_numpy(occurred))
    keys |= rng.integers(0, 2, 40_000, dtype=np.uint64)
    keys.sort()
    fits = []
    for length in (0, math.inf):
        monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", length)
        fits.append(fit_isotonic(keys, [(0, 1), (1,), (0,)]))
    for ours, plain in zip(*fits, strict=True):
        for name in ("count", "events", "first", "last"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(plain, name))


def test_the_number_of_blocks_is_bounded_even_for_all_small_fractions(implementation):
    """Blocks are different fractions. All fractions with denominators up to 30, in order, stay apart."""
    fractions = sorted({(a / b, a, b) for b in range(1, 31) for a in range(b + 1) if math.gcd(a, b) == 1})
    forecast = np.repeat([f for f, _, _ in fractions], [b for _, _, b in fractions])
    occurred = np.concatenate([np.arange(b) < a for _, a, b in fractions])
    keys = pack(torch.from_numpy(forecast), torch.from_numpy(occurred))
    keys.sort()
    assert len(fit_isotonic(keys)[0].count) == len(fractions)


def test_packed_forecasts_keep_all_bits():
    forecast = torch.tensor([0.0, 5e-324, 1 / 3, 1.0, 1.0 + 1e-7], dtype=torch.float64)
    occurred = torch.tensor([True, False, True, False, True])
    back, happened = unpack(pack(forecast, occurred))
    assert back.tolist() == forecast.clamp(max=1).tolist()
    assert happened.tolist() == occurred.tolist()


# ---- evaluate --------------------------------------------------------------------------------------------------------


def events_by_view(probs, y, edge_index, mask, joint=None, predicted=None, choice="both"):
    """Return (forecasts, outcomes) of each view by loops, where the forecast is the probability of the prediction."""
    p, labels = probs.double().tolist(), y.tolist()
    predicted = probs.argmax(1).tolist() if predicted is None else predicted.tolist()
    views = {view: ([], []) for view in (*ew.VIEWS, "same_label")}

    def add(view, forecast, outcome):
        views[view][0].append(forecast)
        views[view][1].append(outcome)

    for i in range(len(p)):
        if mask[i]:
            add("nodewise", p[i][predicted[i]], predicted[i] == labels[i])
    for i, j in loops.scored_edges(list(zip(*edge_index.tolist(), strict=True)), mask.tolist(), choice):
        q = loops.product(p[i], p[j]) if joint is None else joint[i, j].tolist()
        correct = predicted[i] == labels[i] and predicted[j] == labels[j]
        for view in ("edgewise", "agree" if labels[i] == labels[j] else "disagree"):
            add(view, q[predicted[i]][predicted[j]], correct)
        p_same = min(1.0, math.fsum(q[c][c] for c in range(len(q))))
        add("same_label", round(p_same * 2**52) / 2**52, labels[i] == labels[j])  # sums are multiples of 2^-52
    return views


def assert_decompositions(ev, views):
    for view, (forecasts, outcomes) in views.items():
        scores = ev.same_label if view == "same_label" else ev[view]
        expected = isotonic.decompose(forecasts, outcomes)
        assert parts_of(scores.decomposition) == pytest.approx(expected, abs=1e-12, nan_ok=True), view


@given(case=cases(), compiled=st.booleans(), choice=st.sampled_from(["both", "any", "all"]))
def test_evaluate_decomposes_all_views(case, compiled, choice):
    with set_implementation(compiled):
        ev = ew.evaluate(*case[:3], mask=case[3], decompose=True, edge_choice=choice)
    assert_decompositions(ev, events_by_view(*case, choice=choice))


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_the_forecast_of_a_joint_is_the_probability_of_the_predictions(binning):
    """It may be below the confidence of the ECE, the largest entry of the joint."""
    probs, y, edge_index, mask = random_case(0, num_nodes=30, num_edges=60)
    listed, table = symmetric_joints(probs, edge_index)
    options = {"mask": mask, "edge_probs": listed, "binning": binning}
    ev = ew.evaluate(probs, y, edge_index, **options, decompose=True)
    views = events_by_view(probs, y, edge_index, mask, table)
    assert_decompositions(ev, views)
    given = ew.evaluate(probs, y, edge_index, **options, decompose=True, predictions=probs.argmax(1))
    assert given.edgewise.decomposition == ev.edgewise.decomposition
    assert given.edgewise.reliability.confidence_sum.sum() < ev.edgewise.reliability.confidence_sum.sum()
    banded = ew.evaluate(probs, y, edge_index, **options, decompose=True, n_resamples=40)
    assert banded.edgewise.decomposition == ev.edgewise.decomposition


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_predictions_are_the_event(binning):
    probs, y, edge_index, mask = random_case(1, num_nodes=30, num_edges=60)
    labels = (probs.argmax(1) + 1) % 3
    ev = ew.evaluate(probs, y, edge_index, mask=mask, predictions=labels, decompose=True, binning=binning)
    assert_decompositions(ev, events_by_view(probs, y, edge_index, mask, predicted=labels))


def test_compiled_loops_give_the_same_decomposition_in_parts(monkeypatch):
    probs, y, edge_index, mask = random_case(3, num_nodes=300, num_edges=5000)
    plain = ew.evaluate(probs, y, edge_index, mask=mask, decompose=True, smooth=True)
    monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", 0)
    monkeypatch.setattr(collect, "EDGES_PER_REPORT", 700)
    fast = ew.evaluate(probs, y, edge_index, mask=mask, decompose=True, smooth=True)
    assert fast.edgewise.count < len(edge_index[0])  # the mask leaves edges out
    for view in (*ew.VIEWS, "same_label"):
        ours, theirs = (getattr(ev, view) for ev in (fast, plain))
        for kind in ("decomposition", "log_decomposition"):
            assert parts_of(getattr(ours, kind)) == pytest.approx(parts_of(getattr(theirs, kind)), abs=1e-14)
        assert ours.curve.forecast.tolist() == theirs.curve.forecast.tolist()
        assert ours.smooth_ece == pytest.approx(theirs.smooth_ece, abs=1e-14)


def test_score_of_same_label_is_half_its_brier_score():
    probs, y, edge_index, mask = random_case(2, num_nodes=50, num_edges=200)
    same = ew.evaluate(probs, y, edge_index, mask=mask, decompose=True).same_label
    assert same.decomposition.score == pytest.approx(same.brier / 2)
    assert same.log_decomposition.score == pytest.approx(same.nll)


# ---- Curves ----------------------------------------------------------------------------------------------------------


@given(case=cases())
def test_curves_are_isotonic_fits(case):
    ev = ew.evaluate(*case[:3], mask=case[3], decompose=True)
    for view, (forecasts, outcomes) in events_by_view(*case).items():
        if view in ew.VIEWS:
            curve = ev[view].curve
            fitted = np.interp(forecasts, curve.forecast, curve.frequency) if forecasts else []
            assert fitted == pytest.approx(isotonic.isotonic_fit(forecasts, outcomes), abs=1e-12)
            assert curve.low is None and curve.high is None


def test_bands_are_quantiles_of_the_curves_of_resampled_nodes():
    """An edge of nodes drawn w_i and w_j times is repeated w_i w_j times."""
    probs, y, edge_index, _ = random_case(5, num_nodes=15, num_edges=12)
    mask = torch.ones(15, dtype=torch.bool)
    ev = ew.evaluate(probs, y, edge_index, decompose=True, n_resamples=40, confidence_level=0.8, seed=3)
    weights = torch.cat(list(draw_weights(mask, 40, 3)))
    pairs = loops.scored_edges(list(zip(*edge_index.tolist(), strict=True)), mask.tolist())
    forecasts, outcomes = events_by_view(probs, y, edge_index, mask)["edgewise"]
    curve, fits = ev.edgewise.curve, []
    for w in weights:
        drawn = [
            (f, o) for f, o, (i, j) in zip(forecasts, outcomes, pairs, strict=True) for _ in range(int(w[i] * w[j]))
        ]
        if drawn:
            at, happened = [f for f, _ in drawn], [o for _, o in drawn]
            order = np.argsort(at)
            fits.append(
                np.interp(curve.forecast, np.array(at)[order], np.array(isotonic.isotonic_fit(at, happened))[order])
            )
    np.testing.assert_allclose(curve.low, np.quantile(fits, 0.1, axis=0), atol=1e-12)
    np.testing.assert_allclose(curve.high, np.quantile(fits, 0.9, axis=0), atol=1e-12)


def test_bands_of_a_calibrated_model_contain_the_diagonal():
    g = torch.Generator().manual_seed(0)
    p = 0.5 + 0.5 * torch.rand(2000, 1, generator=g, dtype=torch.float64)
    y = (torch.rand(2000, generator=g) >= p[:, 0]).long()
    ring = torch.stack([torch.arange(2000), (torch.arange(2000) + 1) % 2000])
    ev = ew.evaluate(torch.cat([p, 1 - p], dim=1), y, ring, decompose=True, n_resamples=60)
    for view in ("nodewise", "edgewise"):
        curve = ev[view].curve
        inside = (curve.low <= curve.forecast + 0.02) & (curve.forecast <= curve.high + 0.02)
        assert inside.double().mean() > 0.8


# ---- Output ----------------------------------------------------------------------------------------------------------


def test_results_are_in_all_outputs_and_only_on_request():
    probs, y, edge_index, mask = random_case(0, num_nodes=40, num_edges=100)
    plain = ew.evaluate(probs, y, edge_index, mask=mask)
    assert plain.edgewise.decomposition is plain.edgewise.curve is plain.edgewise.smooth_ece is None
    assert plain.nodewise.classwise_ece is plain.nodewise.class_ece is None
    ev = ew.evaluate(probs, y, edge_index, mask=mask, decompose=True, smooth=True, classwise=True)
    assert ev.edgewise.ece == plain.edgewise.ece
    parts = ev.edgewise.decomposition
    assert ev.to_dict()["edgewise"]["decomposition"]["miscalibration"] == parts.miscalibration
    assert ev.to_dict()["edgewise"]["smooth_ece"] == ev.scalars()["edgewise/smooth_ece"] == ev.edgewise.smooth_ece
    frame = ev.to_frame()
    assert frame.loc["edgewise", "discrimination"] == parts.discrimination
    assert frame.loc["same_label", "log_uncertainty"] == ev.same_label.log_decomposition.uncertainty
    assert frame.loc["nodewise", "classwise_ece"] == ev.nodewise.classwise_ece
    for number in (parts.miscalibration, ev.agree.smooth_ece, ev.nodewise.classwise_ece):
        assert f"{number:.4f}" in str(ev)
    assert (ev + ev).edgewise.decomposition is None


def test_empty_views_have_no_parts():
    ev = ew.evaluate([[0.5, 0.5]], [0], decompose=True, smooth=True, classwise=True, n_resamples=40)
    assert all(map(math.isnan, parts_of(ev.edgewise.decomposition)))
    assert ev.edgewise.log_decomposition is None and ev.edgewise.log_decomposition_reason
    assert len(ev.edgewise.curve.forecast) == len(ev.edgewise.curve.low) == 0
    assert math.isnan(ev.edgewise.smooth_ece)
    assert parts_of(ev.nodewise.decomposition) == (0.25, 0.0, 0.0)
    assert "nodewise" in str(ev)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
def test_parts_equal_model_diagnostics(ties):
    scoring = pytest.importorskip("model_diagnostics.scoring")
    probs, y, edge_index, mask = random_case(0, num_nodes=2000, num_edges=9000, num_classes=4)
    if ties:  # sixteenths, whose products are exact: model-diagnostics also pools forecasts that differ by rounding
        choices = torch.tensor([[10, 3, 2, 1], [7, 4, 3, 2], [13, 1, 1, 1], [4, 4, 5, 3]]) / 16
        probs = choices.double()[torch.arange(len(probs)) % 4]
    ev = ew.evaluate(probs, y, edge_index, mask=mask, decompose=True)
    for view, (forecasts, outcomes) in events_by_view(probs, y, edge_index, mask).items():
        scores = ev.same_label if view == "same_label" else ev[view]
        for score, ours in (
            (scoring.SquaredError(), scores.decomposition),
            (scoring.LogLoss(), scores.log_decomposition),
        ):
            theirs = scoring.decompose(np.array(outcomes, dtype=float), np.array(forecasts), scoring_function=score)
            expected = [theirs[name].item() for name in (*PARTS, "score")]
            assert [*parts_of(ours), ours.score] == pytest.approx(expected, abs=1e-9), view
