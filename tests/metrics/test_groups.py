"""Scores of groups of nodes and edges compared with loops, their sums, invariances, merging and input checks."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

import edgewise as ew
from edgewise.cli import evaluate as command
from edgewise.kernels import dispatch
from edgewise.metrics.node_groups import ON_OUTCOME, ORDERED, TRAITS
from helpers.random_predictions import cases, random_case, symmetric_joints
from helpers.reference import groups as reference
from helpers.reference import loops

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # random masks may be empty

SCORES = ("count", "accuracy", "nll", "brier", "ece")
PROBS = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
LABELS, PATH = torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]])


def natural_order(names):
    """Sort names of groups by their first number. "unreachable" comes last."""
    return sorted(set(names) - {None}, key=lambda name: math.inf if name == "unreachable" else float(name.split()[0]))


def as_text(ev):
    """Return the scores of all groups as text, in which NaN equals NaN."""
    return json.dumps(ev.to_dict()["groups"])


def assert_matches(groups, expected):
    for view in ("nodewise", "edgewise"):
        got = {group: {name: getattr(s, name) for name in SCORES} for group, s in getattr(groups, view).items()}
        assert got.keys() == expected[view].keys(), view
        for group, scores in got.items():
            assert scores == pytest.approx(expected[view][group], rel=1e-11, abs=1e-13, nan_ok=True), (view, group)


@given(
    case=cases(),
    trait=st.sampled_from(TRAITS),
    n_bins=st.integers(1, 20),
    norm=st.sampled_from(["l1", "l2", "max"]),
    choice=st.sampled_from(["both", "any", "all"]),
)
def test_traits_match_the_loops(case, trait, n_bins, norm, choice):
    probs, y, edge_index, mask = case
    y = torch.where(mask | (y > 0), y, -1)  # some unknown labels outside the mask
    train = ~mask & (torch.arange(len(y)) % 2 == 0)
    options = {"train": train} if trait == "train_distance" else {}
    ev = ew.evaluate(probs, y, edge_index, mask=mask, by=trait, n_bins=n_bins, norm=norm, edge_choice=choice, **options)
    lists = probs.double().tolist(), y.tolist(), list(zip(*edge_index.tolist(), strict=True))
    names = reference.trait(trait, *lists, train.tolist())
    expected = reference.evaluate(
        names,
        natural_order(names),
        *lists,
        mask.tolist(),
        choice=choice,
        n_bins=n_bins,
        norm=norm,
        is_ordered=trait in ORDERED,
    )
    found = ev.groups[trait]
    assert_matches(found, expected)
    assert (found.is_ordered, found.conditions_on_outcome) == (trait in ORDERED, trait in ON_OUTCOME)


@given(case=cases(), seed=st.integers(0, 1000), is_text=st.booleans())
def test_given_groups_match_the_loops(case, seed, is_text):
    probs, y, edge_index, mask = case
    numbers = np.random.default_rng(seed).choice([-1, 0, 3, 10**12], len(y))
    names = [None if k < 0 else str(k) for k in numbers.tolist()]
    predictions = torch.from_numpy(np.random.default_rng(seed).integers(0, probs.shape[1], len(y)))
    values = names if is_text and any(names) else numbers
    ev = ew.evaluate(probs, y, edge_index, mask=mask, groups={"place": values}, predictions=predictions)
    lists = probs.double().tolist(), y.tolist(), list(zip(*edge_index.tolist(), strict=True))
    options = {"n_bins": 15, "is_ordered": False, "given": predictions.tolist()}
    order = sorted(set(names) - {None}) if values is names else natural_order(names)
    expected = reference.evaluate(names, order, *lists, mask.tolist(), **options)
    assert_matches(ev.groups["place"], expected)


@given(case=cases(), trait=st.sampled_from(["predicted_class", "degree", "confidence", "true_class"]))
def test_tables_of_groups_add_up_to_the_view(case, trait):
    probs, y, edge_index, mask = case
    joints, _ = symmetric_joints(probs, edge_index)
    for options in ({}, {"edge_probs": joints}, {"binning": "mass"}):
        ev = ew.evaluate(probs, y, edge_index, mask=mask, by=trait, n_bins=5, **options)
        for view in ("nodewise", "edgewise"):
            parts = list(getattr(ev.groups[trait], view).values())
            assert sum(part.count for part in parts) == ev[view].count
            for name in ("count", "correct_sum", "confidence_sum"):
                total = sum((getattr(part.reliability, name) for part in parts), torch.zeros(5, dtype=torch.float64))
                expected = getattr(ev[view].reliability, name).double()
                torch.testing.assert_close(total, expected, rtol=0, atol=1e-12)
            for name in ("nll", "brier"):
                total = math.fsum(part.count * getattr(part, name) for part in parts if part.count)
                expected = ev[view].count * getattr(ev[view], name) if ev[view].count else 0.0
                assert total == pytest.approx(expected, abs=1e-11)


@settings(max_examples=8)
@given(case=cases(), seed=st.integers(0, 1000))
def test_groups_do_not_depend_on_the_order_of_nodes_and_edges(case, seed):
    probs, y, edge_index, mask = case
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=g)
    edges = edge_index[:, torch.randperm(edge_index.shape[1], generator=g)]
    place = torch.randint(-1, 3, (len(y),), generator=g)
    options = {"by": ORDERED, "train": ~mask, "groups": {"place": place}}
    expected = as_text(ew.evaluate(probs, y, edge_index, mask=mask, **options))
    options |= {"train": ~mask[order], "groups": {"place": place[order]}}
    permuted = ew.evaluate(probs[order], y[order], order.argsort()[edges], mask=mask[order], **options)
    assert as_text(permuted) == expected


@pytest.mark.parametrize(("num_edges", "choice"), [(0, "both"), (7, "any"), (3000, "both"), (3000, "all")])
def test_compiled_loops_and_tensors_give_the_same_bits(monkeypatch, num_edges, choice):
    probs, y, edge_index, mask = random_case(1, 200, num_edges, num_classes=5, sharpness=20.0)
    probs[:50] = torch.eye(5, dtype=probs.dtype)[y[:50] - 1]  # true labels of probability zero
    place = torch.randint(-1, 17, (200,), generator=torch.Generator().manual_seed(0))  # more than 127 pairs
    results, threads = [], torch.get_num_threads()
    try:
        for length, num_threads in ((0, 1), (0, 3), (1 << 62, 1)):
            monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", length)
            torch.set_num_threads(num_threads)
            options = {"by": TRAITS, "train": ~mask, "groups": {"place": place}, "edge_choice": choice}
            results.append(as_text(ew.evaluate(probs, y, edge_index, mask=mask, **options)))
    finally:
        torch.set_num_threads(threads)
    assert results[0] == results[1] == results[2]


@settings(max_examples=8)
@given(case=cases(), seed=st.integers(0, 1000))
def test_merged_groups_of_two_graphs_are_those_of_both_together(case, seed):
    probs, y, edge_index, mask = case
    num = len(y)
    names = [["a", "b", None][k] for k in np.random.default_rng(seed).integers(0, 3, 2 * num)]
    first = {"place": names[:num]}
    second = {"place": names[num:]}
    options = {"by": ["degree", "predicted_class"], "n_bins": 4}
    parts = [ew.evaluate(probs, y, edge_index, mask=mask, groups=part, **options) for part in (first, second)]
    edges = torch.cat((edge_index, edge_index + num), dim=1)
    twice = probs.repeat(2, 1), y.repeat(2), edges
    both = ew.evaluate(*twice, mask=mask.repeat(2), groups={"place": names}, **options)
    for merged in (sum(parts), parts[1] + parts[0]):
        assert as_text(merged) == as_text(both)


def test_module_accumulates_groups_of_batches():
    parts = [random_case(seed, 40, 80) for seed in range(2)]
    places = [torch.randint(-1, 4, (40,), generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    metric = ew.GraphCalibration(groups={"my place": 4})
    for (probs, y, edge_index, mask), place in zip(parts, places, strict=True):
        one = metric(probs, y, edge_index, mask, groups={"my place": place})
        alone = ew.evaluate(probs, y, edge_index, mask=mask, groups={"my place": place})
        assert as_text(one) == as_text(alone)
    expected = sum(
        ew.evaluate(probs, y, edge_index, mask=mask, groups={"my place": place})
        for (probs, y, edge_index, mask), place in zip(parts, places, strict=True)
    )
    assert as_text(metric.compute()) == as_text(expected)
    other = ew.GraphCalibration(groups={"my place": 4})
    last = other(probs, y, edge_index, mask, groups={"my place": place})
    other.merge_state(metric)
    assert as_text(other.compute()) == as_text(expected + last)
    with pytest.raises(ValueError, match="Expected sums with the same options"):
        ew.GraphCalibration(groups={"my place": 5}).merge_state(metric)


@pytest.mark.parametrize("groups", [None, {"other": [0, 1, 1]}, {"place": [0, 1, 2]}, {"place": ["a", "b", "b"]}])
def test_module_keeps_its_sums_if_the_groups_of_a_batch_are_wrong(groups):
    metric = ew.GraphCalibration(groups={"place": 2})
    metric.update(PROBS, LABELS, PATH, groups={"place": [0, 1, -1]})
    with pytest.raises(ValueError, match="Expected groups"):
        metric(PROBS, LABELS, PATH, groups=groups)
    assert metric.compute().groups["place"].nodewise["0"].count == 1


def test_modules_whose_names_of_groupings_differ_in_a_sign_have_different_states():
    names = ["a b", "a_b", "é", "è"]
    assert len({ew.GraphCalibration(groups={name: 2}).state_name for name in names}) == len(names)
    split, joined = ew.GraphCalibration(groups={"a": 1, "b": 2}), ew.GraphCalibration(groups={"a_1_b": 2})
    assert split.state_name != joined.state_name


@pytest.mark.parametrize(
    ("first", "second", "fact"),
    [
        ({"by": "degree"}, {}, "degree"),
        ({"by": "degree"}, {"groups": {"degree": [1, 2, 1]}}, "groups= in both"),
        ({"by": "true_class"}, {"groups": {"true_class": [0, 0, 1]}}, "groups= in both"),
        ({"groups": {"place": [0, 1, 1]}}, {"groups": {"place": ["0", "1", "1"]}}, "Pass text in both"),
        (
            {"by": "predicted_class", "class_names": ["cat", "dog"]},
            {"by": "predicted_class", "class_names": ["dog", "cat"]},
            "same class_names",
        ),
    ],
)
def test_evaluations_with_other_groups_cannot_be_added(first, second, fact):
    evaluations = [ew.evaluate(PROBS, LABELS, PATH, **options) for options in (first, second)]
    for one, other in (evaluations, evaluations[::-1]):
        with pytest.raises(ValueError, match="Expected") as error:
            one + other
        assert fact in str(error.value)


@pytest.mark.parametrize("name", TRAITS)
def test_the_name_of_given_groups_has_no_meaning(name):
    groups = ew.evaluate(PROBS, LABELS, PATH, groups={name: [0, 1, 2]}).groups[name]
    assert not groups.is_ordered and not groups.conditions_on_outcome
    assert set(groups.edgewise) == {"0 & 1", "1 & 2"}


def test_different_pairs_of_groups_have_different_names():
    names = ["a", "b & c", "a & b", "c", "a &", "& c", "&", "'a", "R&D"]
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1)]
    probs, y = PROBS[:1].repeat(len(names), 1), torch.zeros(len(names)).long()
    edges = torch.tensor([pair for pair in pairs if pair[0] != pair[1]]).T
    groups = ew.evaluate(probs, y, edges, groups={"place": names}).groups["place"]
    assert set(groups.nodewise) == set(names)
    assert [scores.count for scores in groups.edgewise.values()] == [1] * edges.shape[1]
    assert {"a & 'b & c'", "'a & b' & c", "R&D & a"} <= set(groups.edgewise)
    assert len(groups.edgewise) == edges.shape[1]


def test_class_names_of_groups_are_unique():
    with pytest.raises(ValueError, match="unique class_names"):
        ew.evaluate(PROBS, LABELS, PATH, by="predicted_class", class_names=["cat", "cat"])


def test_traits_in_the_help_of_the_command_are_those_of_evaluate():
    options = {parameter.name: parameter for parameter in get_command(command.app).params}
    assert ", ".join(TRAITS) in options["by"].help
    assert ew.evaluate(PROBS, LABELS, PATH, by=None).groups == {}


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_errors_by_chance_are_shown_only_with_l1(norm):
    ev = ew.evaluate(PROBS, LABELS, PATH, by=["degree", "true_class"], norm=norm)
    for groups in ev.groups.values():
        assert ("chance ece" in str(groups)) == (norm == "l1")
        assert ("l1" in str(groups)) == (norm != "l1")
    printed = [line for line in str(ev).splitlines() if line.startswith("by ")]
    assert len(printed) == 2 and all(("l1" in line) == (norm != "l1") for line in printed)


def test_a_small_worst_group_is_marked():
    probs, y = PROBS[:1].repeat(60, 1), torch.zeros(60).long()
    for num_groups in (2, 3):  # of 30 and 20 nodes
        ev = ew.evaluate(probs, y, groups={"place": torch.arange(60) % num_groups})
        assert ("few" in str(ev)) == ("few" in repr(ev.groups["place"].worst())) == (num_groups == 3)


def test_whole_numbers_with_nan_are_groups():
    pandas = pytest.importorskip("pandas")
    expected = as_text(ew.evaluate(PROBS, LABELS, PATH, groups={"place": [0, -1, 2]}))
    column = pandas.Series([0, None, 2])
    assert column.dtype == np.float64
    for values in (column, torch.tensor([0.0, math.nan, 2.0]), column.astype("Int64"), np.array([0.0, -1.0, 2.0])):
        assert as_text(ew.evaluate(PROBS, LABELS, PATH, groups={"place": values})) == expected


def test_the_advice_for_other_numbers_works():
    x, limits = np.array([0.5, math.nan, 2.5]), np.array([1.0])
    groups = {"place": np.where(np.isnan(x), -1, np.digitize(x, limits))}
    counts = ew.evaluate(PROBS, LABELS, PATH, groups=groups).groups["place"].nodewise
    assert {name: scores.count for name, scores in counts.items()} == {"0": 1, "1": 1}


def test_groups_of_a_path_by_hand():
    """Node 1 has two edges; both edges belong to the smaller degree, 1. Nodes 0 and 1 are predicted as class 0."""
    ev = ew.evaluate(PROBS, LABELS, PATH, by=("degree", "predicted_class"), n_bins=1)
    degree, classes = ev.groups["degree"], ev.groups["predicted_class"]
    assert {name: scores.count for name, scores in degree.nodewise.items()} == {"1": 2, "2 to 3": 1}
    assert {name: scores.count for name, scores in degree.edgewise.items()} == {"1": 2}
    assert {name: scores.count for name, scores in classes.edgewise.items()} == {"0 & 0": 1, "0 & 1": 1}
    assert classes.nodewise["0"].confidence == pytest.approx(0.85)
    assert classes.nodewise["0"].gap == pytest.approx(0.15)
    assert classes.edgewise["0 & 1"].ece == pytest.approx(1 - 0.8 * 0.7)


def test_class_names_name_the_groups():
    ev = ew.evaluate(PROBS, ["cat", "cat", "dog"], PATH, by="predicted_class", class_names=["cat", "dog"])
    assert set(ev.groups["predicted_class"].edgewise) == {"cat & cat", "cat & dog"}


def test_degree_counts_edges_outside_the_mask_once():
    edges = torch.tensor([[0, 1, 1, 1, 2], [1, 0, 1, 2, 1]])
    for choice in ("both", "any", "all"):
        mask = torch.tensor([False, True, False])
        ev = ew.evaluate(PROBS, LABELS, edges, mask=mask, by="degree", edge_choice=choice)
        counts = {name: scores.count for name, scores in ev.groups["degree"].nodewise.items()}
        assert counts == {"2 to 3": 1, "1": 0}
        assert math.isnan(ev.groups["degree"].nodewise["1"].ece)


def test_small_groups_come_last_and_noise_does_not_lead():
    """The error of the large group is real. The two smaller ones are calibrated, but their measured ECE is larger."""
    g = torch.Generator().manual_seed(0)
    sizes = torch.tensor([5000, 60, 10])
    place = torch.arange(3).repeat_interleave(sizes)
    p = torch.where(place == 0, 0.9, 0.6).double()
    y = (torch.rand(len(p), generator=g) >= torch.where(place == 0, 0.8, p)).long()
    y[-10:] = 1  # all wrong
    groups = ew.evaluate(torch.stack((p, 1 - p), dim=1), y, groups={"place": place}).groups["place"]
    assert list(groups.nodewise) == ["0", "1", "2"]
    assert groups.worst().group == "0" and groups.worst("edgewise") is None
    assert groups.nodewise["2"].is_small and groups.nodewise["2"].ece > groups.nodewise["0"].ece
    assert groups.nodewise["0"].excess_ece == pytest.approx(groups.nodewise["0"].ece - groups.nodewise["0"].chance_ece)


def test_chance_ece_is_the_mean_error_of_a_calibrated_model():
    g = torch.Generator().manual_seed(0)
    p = 0.5 + 0.5 * torch.rand(400, generator=g, dtype=torch.float64)
    probs, half = torch.stack((p, 1 - p), dim=1), torch.arange(400) % 2
    errors = []
    for _ in range(40):
        y = (torch.rand(400, generator=g) >= p).long()
        group = ew.evaluate(probs, y, groups={"half": half}).groups["half"].nodewise["1"]
        errors.append(group.ece)
    assert group.chance_ece == pytest.approx(np.mean(errors), rel=0.1)


def random_graph(kind, num_nodes, rng):
    """Draw a graph with hubs, or one with three edges per node, without parallel edges."""
    weights = np.minimum((1 - rng.random(num_nodes)) ** -0.8, 150) if kind == "hubs" else np.ones(num_nodes)
    num_edges = (4 if kind == "hubs" else 1.5) * num_nodes
    ends = rng.choice(num_nodes, (2, int(num_edges)), p=weights / weights.sum())
    return np.unique(np.sort(ends[:, ends[0] != ends[1]], axis=0), axis=1)


@pytest.mark.parametrize("sharpness", [1.5, 6.0])
@pytest.mark.parametrize("kind", ["hubs", "sparse"])
def test_chance_ece_of_edges_is_the_mean_error_of_a_calibrated_model(kind, sharpness):
    """Nodes are right independently, with their confidences. Edges share nodes."""
    rng = np.random.default_rng(0)
    edges = random_graph(kind, 3000, rng)
    logits = sharpness * rng.normal(size=(3000, 4))
    probs = torch.from_numpy(logits).softmax(1).numpy()
    errors, by_chance = {}, {}
    for _ in range(40):
        y = (probs.cumsum(1) > rng.random((3000, 1))).argmax(1)
        ev = ew.evaluate(probs, y, edges, by=("degree", "predicted_class"), same_label=False)
        for name, groups in ev.groups.items():
            for group, scores in groups.edgewise.items():
                if not scores.is_small:
                    errors.setdefault((name, group), []).append(scores.ece)
                    by_chance[name, group] = scores.chance_ece
    assert len(errors) >= 12
    for place, values in errors.items():
        assert by_chance[place] == pytest.approx(np.mean(values), rel=0.15), place


def test_covariances_of_edges_match_a_loop_over_pairs():
    probs, y, edge_index, _ = random_case(3, 30, 60)
    place = torch.arange(30) % 3
    ev = ew.evaluate(probs, y, edge_index, groups={"place": place}, n_bins=4)
    confidence = probs.double().amax(1).tolist()
    limits = ev.edgewise.reliability.boundaries.tolist()
    edges = loops.scored_edges(list(zip(*edge_index.tolist(), strict=True)), [True] * 30, "all")
    expected = dict.fromkeys(ev.groups["place"].edgewise, 0.0)

    def group_and_bin(i, j):
        name = " & ".join(sorted((str(int(place[i])), str(int(place[j])))))
        return name, sum(confidence[i] * confidence[j] > limit for limit in limits[1:-1])

    for a, b in itertools.permutations(edges, 2):
        if group_and_bin(*a) == group_and_bin(*b):
            for i, j in (a, a[::-1]):
                for k, m in (b, b[::-1]):
                    if i == k:
                        expected[group_and_bin(*a)[0]] += (
                            confidence[j] * confidence[m] * confidence[i] * (1 - confidence[i])
                        )
    found = {name: scores._covariance for name, scores in ev.groups["place"].edgewise.items()}
    assert found == pytest.approx(expected, rel=0.02, abs=0.01)


def test_given_groups_that_are_the_labels_are_marked():
    probs, y, edge_index, mask = random_case(0, 60, 100)
    y[~mask] = -1
    names = [f"class {label}" for label in y.tolist()]
    shifted = torch.where(mask, y + 5, -1)
    for values, is_marked in (
        (y, True),
        (names, True),
        (shifted, True),
        (y // 2, False),
        (torch.arange(60) % 3, False),
    ):
        ev = ew.evaluate(probs, y, edge_index, mask=mask, groups={"place": values})
        assert ev.groups["place"].conditions_on_outcome == is_marked
        assert ("true labels" in str(ev)) == is_marked
        assert (ev + ev).groups["place"].conditions_on_outcome == is_marked
    metric = ew.GraphCalibration(groups={"y": int(y.max()) + 1})
    metric.update(probs, y, edge_index, mask, groups={"y": y})
    assert metric.compute().groups["y"].conditions_on_outcome
    part = ew.evaluate(PROBS, LABELS, groups={"place": [0, 0, 1]}) + ew.evaluate(
        PROBS, LABELS, groups={"place": [1, 1, 0]}
    )
    assert not part.groups["place"].conditions_on_outcome  # labels in both parts, but not of one classification


def test_unknown_grouping_is_explained():
    groups = ew.evaluate(PROBS, LABELS, PATH, by="degree").groups
    with pytest.raises(KeyError, match=r"degree.*degre.*Did you mean"):
        groups["degre"]
    with pytest.raises(KeyError, match="by="):
        ew.evaluate(PROBS, LABELS, PATH).groups["degree"]


@pytest.mark.parametrize("groups", [["a"], {"": 2}, {3: 2}])
def test_bad_groups_of_the_module_are_explained(groups):
    with pytest.raises(ValueError, match=r"groups=\{'name'"):
        ew.GraphCalibration(groups=groups)


def test_the_advice_for_times_and_lists_of_training_nodes_works():
    x = np.array(["2020-01-01", "2021-05-01", "2021-06-01"], dtype="datetime64[D]")
    groups = {"year": np.datetime_as_string(x, unit="Y")}
    assert set(ew.evaluate(PROBS, LABELS, PATH, groups=groups).groups["year"].nodewise) == {"2020", "2021"}
    train = np.isin(np.arange(3), [0])
    ev = ew.evaluate(PROBS, LABELS, PATH, by=["train_distance"], train=train)
    assert set(ev.groups["train_distance"].nodewise) == {"0", "1", "2"}


def test_intervals_of_one_group_with_all_nodes_are_those_of_the_views():
    probs, y, edge_index, mask = random_case(0, 60, 100)
    options = {"n_resamples": 50, "groups": {"all": torch.zeros(60).long()}}
    ev = ew.evaluate(probs, y, edge_index, mask=mask, **options)
    assert ev.groups["all"].nodewise["0"].intervals == ev.intervals["nodewise"]
    assert ev.groups["all"].edgewise["0 & 0"].intervals == ev.intervals["edgewise"]
    frame = ev.groups["all"].to_frame()
    assert frame.loc[1, "ece_high"] == ev.intervals["edgewise"]["ece"].high
    assert (ev + ev).groups["all"].nodewise["0"].intervals == {}


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_intervals_of_groups_are_those_of_the_selected_elements(binning):
    probs, y, edge_index, _ = random_case(0, 80, 200)
    place = torch.arange(80) % 3 - 1
    ev = ew.evaluate(probs, y, edge_index, groups={"place": place}, n_resamples=60, binning=binning)
    for scores in (*ev.groups["place"].nodewise.values(), *ev.groups["place"].edgewise.values()):
        for metric in ("accuracy", "brier", "nll"):
            assert scores.intervals[metric].low <= scores[metric] <= scores.intervals[metric].high


def test_dict_frame_and_text_show_all_groups_and_mark_outcomes():
    probs, y, edge_index, mask = random_case(0, 60, 100)
    ev = ew.evaluate(probs, y, edge_index, mask=mask, by=["true_class", "degree"])
    out = ev.to_dict()["groups"]
    assert out["true_class"]["conditions_on_outcome"] and not out["degree"]["conditions_on_outcome"]
    assert [row["group"] for row in out["degree"]["nodewise"]] == list(ev.groups["degree"].nodewise)
    frame = ev.groups["true_class"].to_frame()
    assert frame["conditions_on_outcome"].all() and set(frame["view"]) == {"nodewise", "edgewise"}
    assert frame["count"].sum() == ev.nodewise.count + ev.edgewise.count
    printed = [line for line in str(ev).splitlines() if line.startswith("by ")]
    assert "true labels" in printed[0] and "true labels" not in printed[1]
    assert "true labels" in str(ev.groups["true_class"]) and "true labels" not in str(ev.groups["degree"])
    assert ew.evaluate(probs, y, edge_index, mask=mask).to_dict()["groups"] == {}


def test_groups_of_nothing():
    empty = ew.evaluate(torch.empty(0, 3), torch.empty(0).long(), by=TRAITS, train=torch.empty(0).bool())
    assert all(not groups.nodewise and groups.worst() is None for groups in empty.groups.values())
    ev = ew.evaluate(PROBS, LABELS, PATH, groups={"none": [-1, -1, -1]}, n_resamples=40)
    assert len(ev.groups["none"].nodewise) == len(ev.groups["none"].to_frame()) == 0
    assert "no groups" in str(ev)
    without_train = ew.evaluate(PROBS, LABELS, PATH, by="train_distance", train=[0, 0, 0])
    assert list(without_train.groups["train_distance"].nodewise) == ["unreachable"]


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"by": "degre"}, "Did you mean 'degree'"),
        ({"by": "train_distance"}, "train=split.train"),
        ({"by": "degree", "train": [1, 0, 0]}, "by=['degree', 'train_distance']"),
        ({"train": [1, 0, 0]}, "no by"),
        ({"by": 3}, "by='degree'"),
        ({"groups": {"": [0, 1, 1]}}, "groups={'name'"),
        ({"groups": {"day": np.array(["2020-01-01"] * 3, dtype="datetime64[D]")}}, "np.datetime_as_string"),
        ({"by": "train_distance", "train": [True]}, "np.isin(np.arange(3), nodes)"),
        ({"by": ["degree", "degree"]}, "twice"),
        ({"by": "degree", "groups": {"degree": [0, 1, 2]}}, "twice"),
        ({"by": "train_distance", "train": [1, 0]}, "train"),
        ({"groups": [0, 1, 1]}, "groups={'name': array}"),
        ({"groups": {"place": [0, 1]}}, "3 nodes"),
        ({"groups": {"place": ["a", "b"]}}, "3 nodes"),
        ({"groups": {"place": [0.5, 1.5, 2.5]}}, "np.digitize"),
        ({"groups": {"place": [0, math.inf, 1]}}, "inf"),
        ({"groups": {"place": [0, 1e300, math.nan]}}, "1e+300"),
        ({"groups": {"place": [0, -7, -1]}}, "-7"),
        ({"groups": {"place": [0, -7.0, math.nan]}}, "-7"),
        ({"by": "degree", "n_bins": 1_000_000, "groups": {"place": [0, 1, 2]}}, "n_bins of at most 833331"),
    ],
)
def test_bad_groups_are_explained(options, fact):
    with pytest.raises(ValueError, match="Expected") as error:
        ew.evaluate(PROBS, LABELS, PATH, **options)
    assert fact in str(error.value)


@pytest.mark.parametrize("as_text", [False, True])
def test_too_many_groups_and_the_way_out(as_text):
    probs, y, edge_index, _ = random_case(0, 300, 500)
    groups = np.arange(300) % 150
    groups = np.array([f"group {k}" for k in groups]) if as_text else groups
    with pytest.raises(ValueError, match=r"at most 100 groups.*np.unique\(groups"):
        ew.evaluate(probs, y, edge_index, groups={"place": groups})
    names, g, counts = np.unique(groups, return_inverse=True, return_counts=True)
    kept = np.where(np.isin(g, counts.argsort()[-100:]), names[g].astype(str), "")
    assert len(ew.evaluate(probs, y, edge_index, groups={"place": kept}).groups["place"].nodewise) == 100


@pytest.mark.parametrize("argument", ["groups", "train"])
def test_pandas_rows_in_another_order_are_refused(argument):
    pd = pytest.importorskip("pandas")
    probs = pd.DataFrame({"a": [0.9, 0.2, 0.6], "b": [0.1, 0.8, 0.4]}, index=["x", "y", "z"])
    column = pd.Series([1, 0, 0], index=["z", "x", "y"])
    options = {"groups": {"place": column}} if argument == "groups" else {"by": "train_distance", "train": column}
    with pytest.raises(ValueError, match=r"\.loc\[probs\.index\]"):
        ew.evaluate(probs, [0, 1, 0], [[0, 1], [1, 2]], **options)
    ordered = column.loc[probs.index]
    options = {"groups": {"place": ordered}} if argument == "groups" else {"by": "train_distance", "train": ordered}
    ew.evaluate(probs, [0, 1, 0], [[0, 1], [1, 2]], **options)
