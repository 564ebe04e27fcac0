"""`evaluate` with given predictions: compared with loops, with the default, and on pairs of known frequency."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.kernels import dispatch
from helpers.random_predictions import cases, random_case, symmetric_joints
from helpers.reference import loops

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # random masks may be empty

SCORES = ("count", "accuracy", "nll", "brier", "ece")
CHOICES = ["both", "any", "all"]


def random_labeling(probs, y, seed=0):
    """Return labels that are right at about half of the nodes."""
    generator = torch.Generator().manual_seed(seed)
    other = torch.randint(probs.shape[1], y.shape, generator=generator)
    return torch.where(torch.rand(len(y), generator=generator) < 0.5, y, other)


def with_unknown_labels(y, mask, seed=0):
    """Make some labels outside the mask unknown."""
    hidden = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < 0.5
    return torch.where(hidden & ~mask, -1, y)


def reference(probs, y, edge_index, mask, **options):
    edges = list(zip(*edge_index.tolist(), strict=True))
    return loops.evaluate(probs.double().tolist(), y.tolist(), edges, mask.tolist(), **options)


def assert_matches(ev, expected, abs=1e-13):
    for view in ew.VIEWS:
        got = {name: getattr(ev[view], name) for name in SCORES}
        assert got == pytest.approx(expected[view], rel=1e-11, abs=abs, nan_ok=True), view


@given(
    case=cases(),
    seed=st.integers(0, 1000),
    n_bins=st.integers(1, 30),
    norm=st.sampled_from(["l1", "l2", "max"]),
    closed=st.sampled_from(["right", "left"]),
    choice=st.sampled_from(CHOICES),
)
def test_products_match_the_loops(case, seed, n_bins, norm, closed, choice):
    probs, y, edge_index, mask = case
    labels, y = random_labeling(probs, y, seed), with_unknown_labels(y, mask, seed)
    options = {"n_bins": n_bins, "norm": norm, "closed": closed}
    ev = ew.evaluate(probs, y, edge_index, mask=mask, predictions=labels, edge_choice=choice, **options)
    assert_matches(ev, reference(probs, y, edge_index, mask, choice=choice, given=labels.tolist(), **options))


@given(case=cases(), seed=st.integers(0, 1000), n_bins=st.integers(1, 30), choice=st.sampled_from(CHOICES))
def test_joints_of_edges_match_the_loops(case, seed, n_bins, choice):
    probs, y, edge_index, mask = case
    labels, y = random_labeling(probs, y, seed), with_unknown_labels(y, mask, seed)
    joints, table = symmetric_joints(probs, edge_index)
    by_pair = {(i, j): table[i, j].tolist() for i in range(len(y)) for j in range(len(y))}
    options = {"mask": mask, "edge_probs": joints, "edge_choice": choice, "n_bins": n_bins}
    ev = ew.evaluate(probs, y, edge_index, predictions=labels, **options)
    expected = reference(
        probs, y, edge_index, mask, joints=by_pair, n_bins=n_bins, choice=choice, given=labels.tolist()
    )
    assert_matches(ev, expected)


def posteriors():
    """Return a mixture and a pairwise posterior of 30 nodes, and labels, edges and a mask."""
    probs, y, edge_index, mask = random_case(0, num_nodes=30, num_edges=60)
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(6, 30, 3, generator=generator, dtype=torch.float64).softmax(-1)
    once = edge_index.sort(0).values.unique(dim=1)
    coupling = -torch.eye(3, dtype=torch.float64)  # neighbors with the same most probable label are unlikely
    mrf = ew.PairwiseMRF(probs.log() / 4, once[:, once[0] != once[1]], coupling)
    return {"mixture": ew.MixturePosterior(samples), "pairwise": ew.sum_product(mrf)[0]}, y, edge_index, mask


@pytest.mark.parametrize("kind", ["mixture", "pairwise"])
@pytest.mark.parametrize("choice", CHOICES)
def test_posteriors_match_the_loops(kind, choice):
    by_kind, y, edge_index, mask = posteriors()
    posterior, y = by_kind[kind], with_unknown_labels(y, mask)
    labels = random_labeling(posterior.node, y.clamp(min=0))
    ev = ew.evaluate(posterior, y, edge_index, mask=mask, predictions=labels, edge_choice=choice)
    pairs = {tuple(sorted(pair)) for pair in edge_index.T.tolist() if pair[0] != pair[1]}
    joints = {pair: posterior.joint(torch.tensor(pair)[:, None])[0].tolist() for pair in pairs}
    expected = reference(posterior.node, y, edge_index, mask, joints=joints, choice=choice, given=labels.tolist())
    assert expected["edgewise"]["count"] > 20
    assert_matches(ev, expected, abs=1e-9)


def equal_mass_error(confidences, corrects, n_bins):
    """Sum the gaps of consecutive runs of the sorted confidences, which are distinct."""
    ordered = sorted(zip(confidences, corrects, strict=True))
    ends = [math.ceil(k * len(ordered) / n_bins) for k in range(n_bins + 1)]
    runs = [ordered[start:end] for start, end in itertools.pairwise(ends)]
    return sum(abs(sum(correct - confidence for confidence, correct in run)) for run in runs) / len(ordered)


@pytest.mark.parametrize("use_joints", [False, True], ids=["products", "joints"])
def test_bins_of_equal_mass_hold_the_probabilities_of_the_predictions(use_joints):
    probs, y, edge_index, mask = random_case(3, num_nodes=40, num_edges=150)
    edge_index = edge_index.sort(0).values.unique(dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    labels = random_labeling(probs, y)
    i, j = edge_index[:, mask[edge_index].all(0)]
    joints, table = symmetric_joints(probs, edge_index)
    options = {"edge_probs": joints} if use_joints else {}
    ev = ew.evaluate(probs, y, edge_index, mask=mask, predictions=labels, binning="mass", n_bins=7, **options)
    p, right = probs[torch.arange(40), labels], (labels == y).double()
    q = table[i, j, labels[i], labels[j]] if use_joints else p[i] * p[j]
    for view, confidence, correct in (("nodewise", p[mask], right[mask]), ("edgewise", q, right[i] * right[j])):
        expected = equal_mass_error(confidence.tolist(), correct.tolist(), 7)
        assert ev[view].ece == pytest.approx(expected, abs=1e-12), view


@given(case=cases(), choice=st.sampled_from(CHOICES), binning=st.sampled_from(["width", "mass"]))
def test_most_probable_labels_of_products_give_the_default(case, choice, binning):
    probs, y, edge_index, mask = case
    options = {"mask": mask, "edge_choice": choice, "binning": binning, "node_sets": edge_index[:, :0]}
    default = ew.evaluate(probs, y, edge_index, **options)
    same = ew.evaluate(probs, y, edge_index, predictions=probs.argmax(1), **options)
    np.testing.assert_equal(same.to_dict(), default.to_dict())
    assert (default.settings.predictions, same.settings.predictions) == (False, True)


def test_most_probable_labels_of_products_give_the_same_intervals():
    probs, y, edge_index, mask = random_case(0, num_nodes=60, num_edges=200)
    options = {"mask": mask, "n_resamples": 40}
    default = ew.evaluate(probs, y, edge_index, **options)
    same = ew.evaluate(probs, y, edge_index, predictions=probs.argmax(1), **options)
    other = ew.evaluate(probs, y, edge_index, predictions=y, **options)
    assert same.intervals == default.intervals
    assert other.intervals["edgewise"]["ece"] != default.intervals["edgewise"]["ece"]
    for name in ("nll", "brier"):
        assert other.intervals["edgewise"][name] == default.intervals["edgewise"][name]
    assert other.intervals["same_label"] == default.intervals["same_label"]


@pytest.mark.parametrize("kind", ["mixture", "pairwise"])
def test_most_probable_labels_of_joints_change_only_the_confidence_of_edges(kind):
    by_kind, y, edge_index, mask = posteriors()
    posterior = by_kind[kind]
    default = ew.evaluate(posterior, y, edge_index, mask=mask)
    ev = ew.evaluate(posterior, y, edge_index, mask=mask, predictions=posterior.node.argmax(-1))
    assert ev.nodewise.to_dict() == default.nodewise.to_dict()
    assert ev.same_label.to_dict() == default.same_label.to_dict()
    for view in ew.VIEWS[1:]:
        for metric in ("accuracy", "nll", "brier"):
            assert ev[view][metric] == default[view][metric]
    sums = (part.edgewise.reliability.confidence_sum.sum() for part in (ev, default))
    assert next(sums) < next(sums)  # q(ŷ_i, ŷ_j) < max q on some edge


@given(case=cases(), seed=st.integers(0, 1000))
def test_nll_brier_and_same_label_do_not_depend_on_predictions(case, seed):
    probs, y, edge_index, mask = case
    default = ew.evaluate(probs, y, edge_index, mask=mask)
    ev = ew.evaluate(probs, y, edge_index, mask=mask, predictions=random_labeling(probs, y, seed))
    np.testing.assert_equal(ev.same_label.to_dict(), default.same_label.to_dict())
    for view in ew.VIEWS:
        np.testing.assert_equal([ev[view].nll, ev[view].brier], [default[view].nll, default[view].brier])


@given(case=cases(), seed=st.integers(0, 1000))
def test_order_of_nodes_and_classes_does_not_matter(case, seed):
    probs, y, edge_index, mask = case
    labels, generator = random_labeling(probs, y, seed), torch.Generator().manual_seed(seed)
    expected = ew.evaluate(probs, y, edge_index, mask=mask, predictions=labels, same_label=False)
    order = torch.randperm(len(y), generator=generator)
    options = {"mask": mask[order], "predictions": labels[order], "same_label": False}
    ev = ew.evaluate(probs[order], y[order], order.argsort()[edge_index], **options)
    np.testing.assert_equal(ev.to_dict(), expected.to_dict())
    order = torch.randperm(probs.shape[1], generator=generator)
    new = order.argsort()
    ev = ew.evaluate(probs[:, order], new[y], edge_index, mask=mask, predictions=new[labels], same_label=False)
    np.testing.assert_equal(ev.to_dict(), expected.to_dict())


def test_direction_of_edges_does_not_matter_for_joints():
    probs, y, edge_index, mask = random_case(2)
    once = edge_index[:, edge_index[0] < edge_index[1]]
    joints, _ = symmetric_joints(probs, once)
    options = {"mask": mask, "predictions": random_labeling(probs, y)}
    ev = ew.evaluate(probs, y, once, edge_probs=joints, **options)
    flipped = ew.evaluate(probs, y, once.flip(0), edge_probs=joints.transpose(1, 2), **options)
    assert ev.edgewise.count > 0
    assert ev.edgewise.to_dict() == flipped.edgewise.to_dict()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("choice", CHOICES)
def test_compiled_loops_give_the_same_bits(dtype, choice, monkeypatch):
    probs, y, edge_index, mask = random_case(0, 3000, 20_000, num_classes=5, dtype=dtype)
    labels, y = random_labeling(probs, y), with_unknown_labels(y, mask)
    labels = torch.where(y < 0, -1, labels)
    results = []
    for length in (1, 1 << 62):
        monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", length)
        ev = ew.evaluate(probs, y, edge_index, mask=mask, predictions=labels, edge_choice=choice)
        results.append(ev.to_dict())
    np.testing.assert_equal(*results)


def pairs_of_known_frequency():
    """Return 100 pairs whose labels have exactly the frequencies of their joint, and that joint."""
    frequency = np.array([[0.20, 0.35], [0.35, 0.10]])
    labels = np.repeat([(0, 0), (0, 1), (1, 0), (1, 1)], (100 * frequency.ravel()).round().astype(int), axis=0)
    nodes = np.arange(200).reshape(100, 2)
    return np.tile([0.55, 0.45], (200, 1)), labels.ravel(), nodes.T, np.tile(frequency, (100, 1, 1))


def test_any_labeling_of_pairs_with_known_frequencies_is_calibrated():
    """The joint is the truth. By default, its confidence 0.35 belongs to another pair than the prediction (0, 0)."""
    probs, y, edges, joints = pairs_of_known_frequency()
    default = ew.evaluate(probs, y, edges, edge_probs=joints)
    assert (default.edgewise.accuracy, round(default.edgewise.ece, 12)) == (0.2, 0.15)
    for pair, frequency in {(0, 0): 0.2, (0, 1): 0.35, (1, 0): 0.35, (1, 1): 0.1}.items():
        ev = ew.evaluate(probs, y, edges, edge_probs=joints, predictions=np.tile(pair, 100))
        assert ev.edgewise.accuracy == frequency
        assert ev.edgewise.ece == pytest.approx(0, abs=1e-12)
        assert ev.nodewise.accuracy == [0.55, 0.5, 0.45][sum(pair)]
        assert ev.nodewise.ece == pytest.approx(0, abs=1e-12)


def test_map_labels_maximize_the_confidence_of_the_whole_graph():
    """A set of all nodes of a small graph has the probability of the labeling as its confidence."""
    generator = torch.Generator().manual_seed(0)
    mrf = ew.PairwiseMRF(torch.randn(4, 2, generator=generator), [[0, 1, 2, 3], [1, 2, 3, 0]], torch.eye(2))
    posterior, _ = ew.exact_marginals(mrf)
    labels, _ = ew.map_labels(mrf)
    everything = torch.arange(4)[:, None]
    ev = ew.evaluate(posterior, labels, mrf.edge_index, predictions=labels, node_sets=everything)
    confidence = float(ev.node_sets.reliability.confidence_sum.sum())
    assert confidence == pytest.approx(float(posterior.marginal(everything).max()))


def test_any_form_of_labels():
    probs, y, edge_index, mask = random_case(1)
    labels = random_labeling(probs, y)
    options = {"mask": mask, "class_names": None}
    expected = ew.evaluate(probs, y, edge_index, predictions=labels, **options).to_dict()
    names = np.array(["ant", "bee", "cat"])
    forms = [labels.numpy(), labels.tolist(), labels.to(torch.int8), labels[:, None], pd.Series(labels.tolist())]
    forms.append([label if known else None for label, known in zip(labels.tolist(), mask, strict=True)])
    for form in forms:
        np.testing.assert_equal(ew.evaluate(probs, y, edge_index, predictions=form, **options).to_dict(), expected)
    options["class_names"] = names
    for form in (names[labels], list(names[labels]), pd.Series(names[labels]), labels):
        ev = ew.evaluate(probs, names[y], edge_index, predictions=form, **options)
        np.testing.assert_equal(ev.to_dict(), expected)
    with pytest.raises(ValueError, match=r"predictions among the class names ant, bee, cat, .* is 'cow'.*predictions"):
        ew.evaluate(probs, names[y], edge_index, predictions=["cow"] * 12, **options)
    rows = pd.Series(labels.tolist(), index=[f"n{k}" for k in range(12)])
    with pytest.raises(ValueError, match=r"predictions in the order of y"):
        ew.evaluate(probs, rows, edge_index, predictions=rows[::-1])


@pytest.mark.parametrize("choice", ["any", "all"])
def test_predictions_may_be_unknown_where_labels_are(choice):
    probs, y, edge_index, mask = random_case(1)
    y = torch.where(mask, y, -1)
    labels = random_labeling(probs, y.clamp(min=0))
    options = {"mask": mask, "edge_choice": choice}
    known = ew.evaluate(probs, y, edge_index, predictions=labels, **options)
    unknown = ew.evaluate(probs, y, edge_index, predictions=torch.where(mask, labels, -1), **options)
    np.testing.assert_equal(known.to_dict(), unknown.to_dict())


def test_module_adds_batches_with_predictions():
    probs, y, edge_index, mask = random_case(1)
    labels = random_labeling(probs, y)
    metric = ew.GraphCalibration()
    batch = metric(probs, y, edge_index, mask, predictions=labels)
    metric.update(probs, y, edge_index, mask, predictions=y)
    first, second = (ew.evaluate(probs, y, edge_index, mask=mask, predictions=given) for given in (labels, y))
    assert batch.scalars() == first.scalars()
    assert metric.compute().scalars() == (first + second).scalars() != first.scalars()
    strict = ew.GraphCalibration(edge_choice="all")
    strict.update(probs, y, edge_index, mask)
    before = strict.tables.clone()
    with pytest.raises(ValueError, match="edge_choice='all'"):
        strict(probs, y, edge_index, mask, predictions=torch.where(mask, y, -1))
    assert torch.equal(strict.tables, before)
