"""The sentences of a report: numbers against loops, the noise limits against draws, and advice that can be followed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.pages.next_steps import next_steps
from edgewise.pages.verdict import Finding, find, headline, percent, sentence
from edgewise.small_samples import MIN_SAMPLE

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # an empty mask is legal
JUDGED = ("nodewise", "edgewise", "same_label")


def random_graph(num_nodes: int, num_edges: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet([1, 1, 1], num_nodes), rng.integers(0, num_nodes, (2, num_edges)), rng


def draw_labels(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (probs.cumsum(1) > rng.random((len(probs), 1))).argmax(1)


def sharpen(probs: np.ndarray, power: float) -> np.ndarray:
    return probs**power / (probs**power).sum(1, keepdims=True)


def test_finding_has_the_means_of_a_loop():
    probs, edges, rng = random_graph(40, 60, 0)
    y = draw_labels(probs, rng)
    pairs = sorted({(min(i, j), max(i, j)) for i, j in edges.T.tolist() if i != j})
    ev = ew.evaluate(probs, y, np.array(pairs).T)
    same = [float(probs[i] @ probs[j]) for i, j in pairs]
    happened = [bool(y[i] == y[j]) for i, j in pairs]
    finding = find(ev, "same_label")
    assert finding.count == len(pairs)
    assert finding.predicted == pytest.approx(np.mean(same)) and finding.observed == pytest.approx(np.mean(happened))
    nodes = find(ev, "nodewise")
    assert nodes.predicted == pytest.approx(probs.max(1).mean())
    assert nodes.observed == pytest.approx((probs.argmax(1) == y).mean())
    variance = sum(p * (1 - p) for p in probs.max(1)) / len(probs) ** 2
    assert nodes.gap_by_chance == pytest.approx(2 * math.sqrt(variance), rel=0.05)  # bins round confidences


def test_limits_of_chance_are_those_of_drawn_labelings():
    probs, edges, rng = random_graph(300, 500, 0)
    ev = ew.evaluate(probs, draw_labels(probs, rng), edges, chance=40)
    for view, fraction in (("nodewise", "accuracy"), ("same_label", "frequency")):
        finding, drawn = find(ev, view), ev.chance[view]
        assert finding.ece_by_chance == drawn["ece"].high
        assert finding.gap_by_chance == max(
            abs(drawn[fraction].low - finding.predicted), abs(drawn[fraction].high - finding.predicted)
        )
        assert not finding.is_wrong
    sharp = ew.evaluate(sharpen(probs, 3.0), draw_labels(probs, rng), edges, chance=40)
    assert {find(sharp, view).kind for view in ("nodewise", "edgewise")} == {"overconfident"}


def attach_preferentially(num_nodes: int, num_links: int, rng: np.random.Generator) -> np.ndarray:
    """Each new node gets links to earlier nodes, chosen with probabilities in proportion to their degrees."""
    ends = [end for node in range(1, num_links + 1) for end in (node, 0)]
    for node in range(num_links + 1, num_nodes):
        targets = [ends[k] for k in rng.integers(0, len(ends), num_links)]
        ends += [end for target in targets for end in (node, target)]
    return np.array(ends).reshape(-1, 2).T


def judged_graph(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    num_nodes, graph = {
        "sparse": (1000, rng.integers(0, 1000, (2, 500))),
        "dense": (1000, rng.integers(0, 1000, (2, 3000))),
        "4-regular": (1000, np.array([(i, (i + k) % 1000) for i in range(1000) for k in (1, 2)]).T),
        "preferential": (3000, attach_preferentially(3000, 2, rng)),
        "stars": (4200, np.array([(i // 20, 200 + i) for i in range(4000)]).T),
        "hub": (3000, np.array([(i, i + 1) for i in range(2999)] + [(0, i) for i in range(2, 102)]).T),
    }[name]
    return rng.dirichlet([0.4, 0.4, 0.4], num_nodes), graph


GRAPHS = ("sparse", "dense", "4-regular", "preferential", "stars", "hub")


@pytest.mark.parametrize("graph", GRAPHS)
def test_labels_drawn_from_the_probabilities_are_within_chance(graph: str) -> None:
    (probs, edges), rng = judged_graph(graph), np.random.default_rng(1)
    kinds = {view: [] for view in JUDGED}
    for _ in range(50):
        ev = ew.evaluate(probs, draw_labels(probs, rng), edges)
        for view in JUDGED:
            kinds[view].append(find(ev, view).kind)
    for view in JUDGED:
        assert kinds[view].count("calibrated") >= 43, view  # at most 14% false alarms where about 5% are expected


@pytest.mark.parametrize("view", JUDGED)
@pytest.mark.parametrize("graph", GRAPHS)
def test_sharpened_probabilities_are_found_in_every_view(graph: str, view: str) -> None:
    (probs, edges), rng = judged_graph(graph), np.random.default_rng(1)
    found = [find(ew.evaluate(sharpen(probs, 3), draw_labels(probs, rng), edges), view).is_wrong for _ in range(10)]
    assert sum(found) >= 9


@pytest.mark.parametrize("mode", ["width", "mass"])
def test_edges_of_a_hub_and_of_a_clique_are_too_few_to_tell(mode: str) -> None:
    rng = np.random.default_rng(0)
    star = np.array([(0, leaf) for leaf in range(1, 400)]).T
    clique = np.array([(i, j) for j in range(20) for i in range(j)]).T
    for edges, num_independent in ((star, 2 * 399**2 / (399**2 + 399)), (clique, 190 / 19)):
        probs = rng.dirichlet([1, 1, 1], edges.max() + 1)
        for _ in range(20):
            ev = ew.evaluate(probs, draw_labels(probs, rng), edges, binning=mode)
            for view in ("edgewise", "same_label"):
                finding = find(ev, view)
                assert finding.kind == "few" and finding.independent == pytest.approx(num_independent)
                assert f"about {num_independent:.0f} independent" in sentence(finding)


def test_sums_without_degrees_get_no_verdict_on_edges():
    probs, edges = judged_graph("sparse")
    metric = ew.GraphCalibration()
    metric.update(probs, draw_labels(probs, np.random.default_rng(0)), edges)
    metric.tables[:, -1, 2] = 0  # as an earlier version stored them
    ev = metric.compute()
    assert find(ev, "edgewise").kind == "few" and "unknown" in sentence(find(ev, "edgewise"))
    assert find(ev, "nodewise").kind == "calibrated"


def test_gap_is_observed_minus_predicted():
    probs, edges = judged_graph("sparse")
    finding = find(ew.evaluate(sharpen(probs, 3), draw_labels(probs, np.random.default_rng(0)), edges), "nodewise")
    assert finding.kind == "overconfident" and finding.gap == finding.observed - finding.predicted < 0


@pytest.mark.parametrize(("power", "kind"), [(2.0, "overconfident"), (0.5, "underconfident")])
def test_sharpened_and_flattened_probabilities_are_found(power: float, kind: str) -> None:
    probs, edges, rng = random_graph(1000, 2000, 0)
    y = draw_labels(probs, rng)
    finding = find(ew.evaluate(sharpen(probs, power), y, edges), "nodewise")
    assert finding.kind == kind
    assert f"{100 * abs(finding.gap):.1f} points" in sentence(finding) and kind in sentence(finding).lower()


def test_errors_that_cancel_on_average_are_uneven():
    confidence = np.repeat([0.6, 0.9], 500)
    probs = np.stack((confidence, 1 - confidence), 1)
    y = np.concatenate((np.arange(500) % 10 == 9, np.arange(500) % 10 >= 6)).astype(int)  # accuracy 0.9 and 0.6
    finding = find(ew.evaluate(probs, y, np.empty((2, 0), int)), "nodewise")
    assert finding.kind == "uneven" and finding.gap == pytest.approx(0)
    assert "30.0 points" in sentence(finding) and "right" not in sentence(finding).lower()


def test_headline_compares_predicted_and_observed_neighbors():
    probs = np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2]])
    edges = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    said, y = 0.8 * 0.8 + 0.2 * 0.2, np.array([0, 0, 0, 0, 0, 1])
    ev = ew.evaluate(probs, y, edges)
    assert (f"{said:.0%} of neighbors share a label" in headline(ev)) and "80% do" in headline(ev)
    without = ew.evaluate(probs, y, edges, same_label=False)
    assert "both ends" in headline(without) and "80%" in headline(without)
    nodes_only = ew.evaluate(probs, y, np.empty((2, 0), int))
    assert "nodes" in headline(nodes_only) and "83%" in headline(nodes_only)


@pytest.mark.parametrize(("confidence", "leads"), [(0.9, "nodes"), (0.5, "share a label")])
def test_headline_is_the_largest_difference_beyond_chance(confidence, leads):
    probs = np.tile([confidence, 1 - confidence], (2000, 1))
    y = np.repeat([0, 1], 1000)  # half of the nodes are right
    edges = np.array([(i, i + 1) for i in range(0, 2000, 2)]).T  # ends always share a label
    ev = ew.evaluate(probs, y, edges)
    gaps = {view: abs(find(ev, view).gap) for view in JUDGED}
    assert max(gaps, key=gaps.__getitem__) == {"nodes": "nodewise", "share a label": "same_label"}[leads]
    assert leads in headline(ev)


def test_equal_percentages_are_shown_with_a_decimal():
    probs = np.full((1000, 2), 0.5) + np.array([0.301, -0.301])
    y = (np.arange(1000) >= 804).astype(int)
    assert "80.1%" in headline(ew.evaluate(probs, y, np.empty((2, 0), int)))


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0, "0%"), (0.001, "under 1%"), (0.5, "50%"), (0.999, "over 99%"), (1.0, "100%")]
)
def test_percentages_are_not_rounded_to_never_or_always(fraction: float, text: str) -> None:
    assert percent(fraction) == text
    assert percent(math.nan) == "–"


def test_empty_and_small_sets_get_no_verdict():
    probs, edges, rng = random_graph(50, 30, 0)
    y = draw_labels(probs, rng)
    small = ew.evaluate(sharpen(probs, 9), y, edges)
    assert find(small, "nodewise").kind == "few" and "50 nodes" in sentence(find(small, "nodewise"))
    assert str(MIN_SAMPLE) in next_steps(small)[0].title
    assert len(next_steps(small)) == 1  # no advice to calibrate or to decide
    assert f"{small.edgewise.count} edges are too few" in headline(small)
    nothing = ew.evaluate(probs, y, edges, mask=np.zeros(50, bool))
    assert find(nothing, "edgewise").kind == "empty" and "no node" in headline(nothing)
    (step,) = next_steps(nothing)
    assert "mask" in step.reason


def test_exact_draws_decide_about_few_elements_if_they_exclude_chance():
    probs = np.tile([0.95, 0.05], (30, 1))
    wrong, right = np.ones(30, int), np.zeros(30, int)
    for y, kind in ((wrong, "overconfident"), (right, "few")):
        assert find(ew.evaluate(probs, y), "nodewise").kind == "few"
        assert find(ew.evaluate(probs, y, chance=99), "nodewise").kind == kind


def test_calibrated_predictions_are_not_sent_to_a_calibrator():
    probs, edges, rng = random_graph(1000, 500, 3)
    ev = ew.evaluate(probs, draw_labels(probs, rng), edges)
    assert {find(ev, view).kind for view in JUDGED} == {"calibrated"}
    assert not any("calibrate " in step.command for step in next_steps(ev))
    assert any("predict --probs probs.npy" in step.command for step in next_steps(ev))


fractions = st.floats(0, 1)


@given(
    view=st.sampled_from(JUDGED), count=st.integers(0, 10**9), overlap=st.floats(1, 500),
    numbers=st.tuples(fractions, fractions, fractions), limits=st.tuples(fractions, fractions),
)  # fmt: skip
def test_sentences_state_the_direction_and_the_numbers(view, count, overlap, numbers, limits):
    finding = Finding(view, count, count / overlap, *numbers, *limits)
    text = sentence(finding)
    assert "nan" not in text
    match finding.kind:
        case "overconfident":
            assert finding.predicted > finding.observed and ("Overconfident" in text or "too high" in text)
        case "underconfident":
            assert finding.predicted < finding.observed and ("Underconfident" in text or "too low" in text)
        case "empty":
            assert count == 0
        case "few":
            assert 0 < count / overlap < MIN_SAMPLE and f"{count:,}" in text
        case "calibrated":
            assert f"{count:,}" in text
