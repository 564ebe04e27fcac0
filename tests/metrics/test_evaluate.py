"""`evaluate` compared with loops, its invariances, and edge cases."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from helpers.random_predictions import cases, random_case, symmetric_joints
from helpers.reference import loops

pytestmark = pytest.mark.filterwarnings("ignore:The mask selects none")  # random masks may be empty

SCORES = ("count", "accuracy", "nll", "brier", "ece")


def assert_matches(ev, expected, rel=1e-11):
    for view in ew.VIEWS:
        got = {name: getattr(ev[view], name) for name in SCORES}
        assert got == pytest.approx(expected[view], rel=rel, abs=1e-13, nan_ok=True), view
    assert ev.homophily == pytest.approx(expected["homophily"], nan_ok=True)
    got = {view: ev.k_index[view] for view in ew.VIEWS[1:]}
    assert got == pytest.approx(expected["k_index"], nan_ok=True)


@pytest.mark.parametrize("num_edges", [60, 40_000])  # with tensors, and in compiled loops
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_independent_edges_follow_from_the_degrees_of_scored_edges(num_edges, binning):
    probs, y, _, mask = random_case(0, num_nodes=300)
    edge_index = torch.randint(0, 300, (2, num_edges), generator=torch.Generator().manual_seed(0))
    edge_index = edge_index[:, (edge_index[0] < edge_index[1]) & (edge_index[0] % 7 > 0)]
    degree = [0] * 300
    for i, j in edge_index.T.tolist():
        if mask[i] and mask[j]:
            degree[i], degree[j] = degree[i] + 1, degree[j] + 1
    mean_degree_of_an_end = sum(d * d for d in degree) / sum(degree)
    ev = ew.evaluate(probs, y, edge_index, mask=mask, binning=binning)
    assert ev.edgewise.count == sum(degree) / 2
    assert ev.independent_edges == pytest.approx(ev.edgewise.count / mean_degree_of_an_end)
    assert ew.evaluate(probs, y).independent_edges == 0


def test_independent_edges_of_disjoint_graphs_add_up_in_the_sums():
    star, pair = torch.tensor([[0, 0, 0], [1, 2, 3]]), torch.tensor([[0], [1]])
    probs, y = torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.long)
    added = ew.evaluate(probs, y, star) + ew.evaluate(probs, y, pair)
    both = ew.evaluate(probs.repeat(2, 1), y.repeat(2), torch.cat((star, pair + 4), dim=1))
    assert added.independent_edges == both.independent_edges == 4 * 8 / (9 + 1 + 1 + 1 + 1 + 1)


def reference_scores(probs, y, edge_index, mask, **options):
    edges = list(zip(*edge_index.tolist(), strict=True))
    return loops.evaluate(probs.double().tolist(), y.tolist(), edges, mask.tolist(), **options)


@given(
    case=cases(),
    n_bins=st.integers(1, 30),
    norm=st.sampled_from(["l1", "l2", "max"]),
    closed=st.sampled_from(["right", "left"]),
    choice=st.sampled_from(["both", "any", "all"]),
)
def test_product_joints_match_the_loops(case, n_bins, norm, closed, choice):
    probs, y, edge_index, mask = case
    ev = ew.evaluate(probs, y, edge_index, mask=mask, n_bins=n_bins, norm=norm, closed=closed, edge_choice=choice)
    assert_matches(ev, reference_scores(*case, n_bins=n_bins, norm=norm, closed=closed, choice=choice))


@given(case=cases(), n_bins=st.integers(1, 30))
def test_explicit_joints_match_the_loops(case, n_bins):
    probs, y, edge_index, mask = case
    joints, table = symmetric_joints(probs, edge_index)
    ev = ew.evaluate(probs, y, edge_index, mask=mask, edge_probs=joints, n_bins=n_bins)
    by_pair = {(i, j): table[i, j].tolist() for i in range(len(y)) for j in range(len(y))}
    assert_matches(ev, reference_scores(*case, joints=by_pair, n_bins=n_bins))


@given(case=cases())
def test_explicit_products_match_the_factorized_computation(case):
    probs, y, edge_index, mask = case
    start, end = edge_index
    joints = probs[start].double()[:, :, None] * probs[end].double()[:, None, :]
    factorized = ew.evaluate(probs, y, edge_index, mask=mask)
    explicit = ew.evaluate(probs, y, edge_index, mask=mask, edge_probs=joints)
    for view in ew.VIEWS:
        for metric in ("accuracy", "brier", "ece"):
            assert factorized[view][metric] == pytest.approx(explicit[view][metric], abs=1e-12, nan_ok=True)
        if math.isfinite(explicit[view].nll):  # a product may underflow where a sum of logarithms does not
            assert factorized[view].nll == pytest.approx(explicit[view].nll, rel=1e-9)
    assert factorized.same_label.ece == pytest.approx(explicit.same_label.ece, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("p", "nodewise", "chain", "cycle"),
    [
        ((0.0, 1.0, 1.0), 0, 0, 0),
        ((2 / 3, 2 / 3, 2 / 3), 0, 1 / 18, 1 / 9),
        ((0.55, 0.8, 0.7), 1 / 60, 0, 0.385 / 3),
    ],
)
def test_worked_example_of_the_paper(p, nodewise, chain, cycle):
    """Three nodes with labels (w, b, b) = (0, 1, 1); p_i is the probability of b; one bin."""
    probs = torch.tensor([[1 - value, value] for value in p], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    on_chain = ew.evaluate(probs, y, torch.tensor([[0, 1], [1, 2]]), n_bins=1)
    on_cycle = ew.evaluate(probs, y, torch.tensor([[0, 0, 1], [1, 2, 2]]), n_bins=1)
    assert on_chain.nodewise.ece == pytest.approx(nodewise, abs=1e-15)
    assert on_chain.edgewise.ece == pytest.approx(chain, abs=1e-15)
    assert on_cycle.edgewise.ece == pytest.approx(cycle, abs=1e-15)


@given(case=cases(), seed=st.integers(0, 1000))
def test_scores_do_not_depend_on_order_and_direction_of_edges(case, seed):
    probs, y, edge_index, mask = case
    g = torch.Generator().manual_seed(seed)
    once = edge_index[:, edge_index[0] < edge_index[1]]
    shuffled = once[:, torch.randperm(once.shape[1], generator=g)]
    reversed_some = torch.where(torch.rand(once.shape[1], generator=g) < 0.5, once, once.flip(0))
    both = torch.cat([once, once.flip(0)], dim=1)
    loops_added = torch.cat([once, torch.arange(len(y)).repeat(2, 1)], dim=1)
    expected = ew.evaluate(probs, y, once, mask=mask).to_dict()
    # Reversing one of two parallel edges changes the count, so single edges are reversed only in simple graphs.
    simple = once.unique(dim=1).shape[1] == once.shape[1]
    for edges in [shuffled, both, loops_added, *([reversed_some] if simple else [])]:
        np.testing.assert_equal(ew.evaluate(probs, y, edges, mask=mask).to_dict(), expected)


@given(case=cases(), seed=st.integers(0, 1000))
def test_scores_do_not_depend_on_node_order(case, seed):
    probs, y, edge_index, mask = case
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    new_index = order.argsort()
    permuted = ew.evaluate(probs[order], y[order], new_index[edge_index], mask=mask[order])
    np.testing.assert_equal(permuted.to_dict(), ew.evaluate(probs, y, edge_index, mask=mask).to_dict())


@given(case=cases(), seed=st.integers(0, 1000))
def test_scores_do_not_depend_on_class_order(case, seed):
    probs, y, edge_index, mask = case
    order = torch.randperm(probs.shape[1], generator=torch.Generator().manual_seed(seed))
    permuted = ew.evaluate(probs[:, order], order.argsort()[y], edge_index, mask=mask)
    ev = ew.evaluate(probs, y, edge_index, mask=mask)
    for view in ew.VIEWS:
        for metric in ew.METRICS:
            assert permuted[view][metric] == pytest.approx(ev[view][metric], rel=1e-12, abs=1e-12, nan_ok=True)


@given(case=cases(), n_bins=st.integers(1, 20), kind=st.sampled_from(["width", "mass"]))
def test_scores_stay_in_their_ranges(case, n_bins, kind):
    probs, y, edge_index, mask = case
    l1, l2, largest = (
        ew.evaluate(probs, y, edge_index, mask=mask, n_bins=n_bins, binning=kind, norm=norm)
        for norm in ("l1", "l2", "max")
    )
    for view in ew.VIEWS:
        scores = l1[view]
        assert int(scores.reliability.count.sum()) == scores.count
        assert scores.reliability.confidence_sum.dtype == torch.float64
        assert scores.reliability.count.dtype == scores.reliability.correct_sum.dtype == torch.int64
        if scores.count == 0:
            assert all(math.isnan(scores[metric]) for metric in ew.METRICS)
            continue
        assert 0 <= scores.accuracy <= 1 and scores.nll >= 0 and -1e-12 <= scores.brier <= 2 + 1e-6
        assert -1e-12 <= scores.ece <= l2[view].ece + 1e-12 <= largest[view].ece + 2e-12 <= 1 + 3e-12
        assert scores.ece == pytest.approx(scores.overconfidence + scores.underconfidence, abs=1e-12)
        assert 0 <= scores.debiased_l2 <= l2[view].ece + 1e-12
    assert l1.edgewise.count == l1.agree.count + l1.disagree.count == l1.same_label.count
    if kind == "width":
        for name in ("count", "correct_sum"):
            parts = getattr(l1.agree.reliability, name) + getattr(l1.disagree.reliability, name)
            assert torch.equal(parts, getattr(l1.edgewise.reliability, name))


def test_count_of_reversed_and_parallel_edges():
    probs, y, _, _ = random_case(0, num_nodes=3)
    for edges, count in [
        ([(0, 1), (1, 0)], 1),
        ([(0, 1), (0, 1)], 2),
        ([(1, 0), (1, 0)], 2),
        ([(0, 1), (0, 1), (1, 0), (1, 0)], 2),
        ([(0, 1), (1, 0), (1, 0)], 2),
        ([(0, 0), (0, 1), (2, 2)], 1),
        ([(0, 1), (1, 0), (1, 2)], 2),
    ]:
        assert ew.evaluate(probs, y, torch.tensor(edges).T).edgewise.count == count, edges


def test_joint_of_low_to_high_is_scored_when_both_directions_are_listed():
    probs = torch.full((2, 2), 0.5)
    forward = torch.tensor([[0.4, 0.3], [0.2, 0.1]])
    for edges, joints in [
        ([[0, 1], [1, 0]], torch.stack([forward, torch.full((2, 2), 0.25)])),
        ([[1, 0], [0, 1]], torch.stack([torch.full((2, 2), 0.25), forward])),
    ]:
        ev = ew.evaluate(probs, torch.tensor([0, 1]), torch.tensor(edges), edge_probs=joints)
        assert ev.edgewise.nll == pytest.approx(-math.log(0.3), rel=1e-6)


def test_unknown_labels_outside_the_mask():
    probs, _, _, _ = random_case(1, num_nodes=4)
    y, mask = torch.tensor([0, 1, -1, 2]), torch.tensor([True, True, False, False])
    path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    assert ew.evaluate(probs, y, path, mask=mask).edgewise.count == 1
    assert ew.evaluate(probs, y, path, mask=mask, edge_choice="any").edgewise.count == 1
    assert ew.evaluate(probs, y, torch.tensor([[0, 1], [3, 3]]), mask=mask, edge_choice="any").edgewise.count == 2
    assert ew.evaluate(probs, y, torch.tensor([[0, 2], [3, 3]]), mask=mask, edge_choice="all").edgewise.count == 1


def test_scores_of_empty_sets_are_nan():
    probs, y, edge_index, _ = random_case(2)
    nothing = ew.evaluate(probs, y, edge_index, mask=torch.zeros(len(y), dtype=torch.bool))
    no_edges = ew.evaluate(probs, y, torch.empty(2, 0, dtype=torch.long), n_resamples=40)
    no_graph = ew.evaluate(torch.empty(0, 3), torch.empty(0, dtype=torch.long), torch.empty(2, 0, dtype=torch.long))
    by_mass = ew.evaluate(probs, y, torch.empty(2, 0, dtype=torch.long), binning="mass")
    for ev in (nothing, no_edges, no_graph, by_mass):
        assert ev.edgewise.count == 0 and math.isnan(ev.edgewise.ece) and math.isnan(ev.homophily)
        assert "no edges scored" in str(ev) and "disagree" not in str(ev)
    assert nothing.nodewise.count == 0 and math.isnan(nothing.k_index.edgewise)
    assert no_edges.nodewise.count == 12 and no_edges.k_index.edgewise == 0


def test_true_label_of_probability_zero_makes_the_nll_infinite():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    ev = ew.evaluate(probs, torch.tensor([1, 0]), torch.tensor([[0], [1]]))
    assert ev.nodewise.nll == math.inf and ev.nodewise.zero_probability == 1
    assert ev.edgewise.nll == math.inf and ev.agree.count == 0 and math.isnan(ev.agree.nll)
    assert ev.same_label.nll == pytest.approx(math.log(2))


def test_same_label_scores():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    same = ew.evaluate(probs, y, torch.tensor([[0, 1], [1, 2]]), n_bins=1).same_label
    p = [0.9 * 0.6 + 0.1 * 0.4, 0.6 * 0.2 + 0.4 * 0.8]
    assert same.count == 2 and same.frequency == 0.5
    assert same.probability == pytest.approx(sum(p) / 2)
    assert same.ece == pytest.approx(abs(0.5 - sum(p) / 2))
    assert same.nll == pytest.approx(-(math.log(p[0]) + math.log(1 - p[1])) / 2)
    assert same.brier == pytest.approx((2 * (1 - p[0]) ** 2 + 2 * p[1] ** 2) / 2)
    assert ew.evaluate(probs, y, torch.tensor([[0], [1]]), same_label=False).same_label is None


@given(case=cases())
def test_same_label_outcome_is_at_least_as_probable_as_the_labels(case):
    probs, y, edge_index, mask = case
    joints, _ = symmetric_joints(probs, edge_index)
    for edge_probs in (None, joints):
        ev = ew.evaluate(probs, y, edge_index, mask=mask, edge_probs=edge_probs)
        if ev.edgewise.count:
            assert ev.same_label.nll <= ev.edgewise.nll + 1e-9
            assert ev.same_label.zero_probability <= ev.edgewise.zero_probability
            assert 0 <= ev.same_label.probability <= 1


@pytest.mark.parametrize(
    ("start", "end", "y", "p_outcome"),
    [
        ([1.0, 1e-12], [1.0, 1e-12], [0, 1], 1e-12),
        ([1.0, 1e-30], [1e-30, 1.0], [0, 0], 1e-30),
        ([1.0, 1e-3], [1.0, 1e-3], [0, 1], 2e-3),
    ],
)
def test_small_probabilities_of_an_event_are_not_zero(start, end, y, p_outcome):
    probs = torch.tensor([start, end], dtype=torch.float64)
    probs /= probs.sum(1, keepdim=True)
    same = ew.evaluate(probs, torch.tensor(y), torch.tensor([[0], [1]])).same_label
    assert same.zero_probability == 0
    assert same.nll == pytest.approx(-math.log(p_outcome), abs=0.75)


def test_same_label_in_bins_of_equal_mass():
    probs, y, edge_index, _ = random_case(0, num_nodes=40, num_edges=60)
    once = edge_index[:, edge_index[0] < edge_index[1]].unique(dim=1)
    same = ew.evaluate(probs, y, once, binning="mass", n_bins=4).same_label
    p = (probs[once[0]] * probs[once[1]]).sum(1)
    outcome = (y[once[0]] == y[once[1]]).double()
    order = p.argsort()
    limits = [math.ceil(k * len(p) / 4) for k in range(5)]
    gaps = [abs(float((outcome - p)[order[a:b]].sum())) for a, b in itertools.pairwise(limits)]
    assert same.ece == pytest.approx(sum(gaps) / len(p), abs=1e-12)


def test_true_model_is_calibrated_on_edges_but_not_given_agreement():
    """The views agree and disagree condition on the true labels, so even the true model has errors there."""
    g = torch.Generator().manual_seed(0)
    n = 200_000
    shared_logits = 1.5 * torch.randn(n // 2, 3, generator=g, dtype=torch.float64).repeat(2, 1)
    probs = (shared_logits + 0.3 * torch.randn(n, 3, generator=g, dtype=torch.float64)).softmax(-1)
    y = torch.multinomial(probs, 1, generator=g).squeeze(1)
    ev = ew.evaluate(probs, y, torch.arange(n).view(2, -1))
    assert ev.nodewise.ece < 0.005 and ev.edgewise.ece < 0.005 and ev.same_label.ece < 0.01
    assert ev.agree.ece > 0.05 and ev.disagree.ece > 0.05


def test_printed_table_and_lookup_by_name():
    probs, y, edge_index, mask = random_case(3)
    ev = ew.evaluate(probs, y, edge_index, mask=mask, n_resamples=40)
    text = str(ev)
    for word in (*ew.VIEWS, *ew.METRICS, "count", "homophily", "K index", "same label", "interval"):
        assert word in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert repr(ev) == f"Evaluation(nodes={ev.nodewise.count}, edges={ev.edgewise.count})"
    assert f"{ev.edgewise.ece:.4f}" in repr(ev.edgewise)
    assert ev.scalars()["agree/nll"] == ev.agree.nll
    with pytest.raises(KeyError, match="nodewise"):
        ev["nodes"]
    with pytest.raises(KeyError, match="accuracy"):
        ev.agree["acc"]


def test_sum_of_evaluations_equals_evaluation_of_all_parts():
    first_probs, first_y, first_edges, _ = random_case(4)
    probs, y, edges, _ = random_case(5)
    together = ew.evaluate(
        torch.cat([first_probs, probs]), torch.cat([first_y, y]), torch.cat([first_edges, edges + len(first_y)], dim=1)
    )
    added = ew.evaluate(first_probs, first_y, first_edges) + ew.evaluate(probs, y, edges)
    assert added.to_dict() == together.to_dict()
    assert sum([ew.evaluate(probs, y, edges)] * 2).edgewise.count == 2 * ew.evaluate(probs, y, edges).edgewise.count
    for other in ({"n_bins": 3}, {"norm": "l2"}, {"closed": "left"}, {"edge_choice": "all"}, {"same_label": False}):
        with pytest.raises(ValueError, match="same options"):
            ew.evaluate(probs, y, edges, **other) + ew.evaluate(probs, y, edges)
    with pytest.raises(TypeError):
        ew.evaluate(probs, y, edges) + 3
    by_mass = ew.evaluate(probs, y, edges, binning="mass")
    with pytest.raises(ValueError, match=r"equal mass.*binning='width'"):
        by_mass + by_mass


@pytest.mark.parametrize(("same_label", "passes"), [(False, 1), (True, 2)])
def test_progress_reports_processed_edges(same_label, passes):
    probs, y, edge_index, mask = random_case(6)
    calls = []
    ew.evaluate(
        probs,
        y,
        edge_index,
        mask=mask,
        same_label=same_label,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(edge_index.shape[1], edge_index.shape[1])] * passes


def test_empty_mask_warns_at_the_line_of_the_caller_but_not_in_batches():
    probs, y, edge_index, mask = random_case(0)
    with pytest.warns(UserWarning, match=f"none of the {len(y)} nodes") as caught:
        ev = ew.evaluate(probs, y, edge_index, mask=torch.zeros_like(mask))
    assert caught[0].filename == __file__
    assert ev.nodewise.count == 0 and math.isnan(ev.nodewise.ece)
    metric = ew.GraphCalibration()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(probs, y, edge_index, mask=torch.zeros_like(mask))  # a batch may have no test node
        metric.update(probs, y, edge_index, mask=mask)
        ew.evaluate(probs[:0], y[:0], edge_index[:, :0])  # an empty graph


@pytest.mark.parametrize("scale", [1e-10, 1e-22, 1e-120])
def test_tiny_probability_of_the_same_label_has_an_exact_nll(scale):
    """P(same) = 2 · scale + scale², far above the probability scale² of the two labels."""
    probs = torch.tensor([[1.0, scale, scale], [scale, 1.0, scale]], dtype=torch.float64)
    ev = ew.evaluate(probs, torch.tensor([2, 2]), torch.tensor([[0], [1]]))
    assert ev.same_label.nll == pytest.approx(-math.log(2 * scale + scale**2), rel=1e-12)
