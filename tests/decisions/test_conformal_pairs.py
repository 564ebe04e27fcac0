"""Conformal sets of pairs: the matching, sets against plain loops, groups, coverage, selection, files."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

import edgewise as ew
from edgewise.data.edges import greedy_matching, undirected_edges
from edgewise.decisions import conformal_pairs, threshold_for_fdr
from edgewise.decisions.conformal_scores import uniform_numbers
from helpers.reference import conformal as loops
from helpers.scripts import load_script
from helpers.small_posteriors import EDGES, KINDS

NUM_NODES, NUM_CLASSES = 300, 3
SEEDS = st.integers(0, 2**32)


def draw(seed, num_nodes=NUM_NODES, num_classes=NUM_CLASSES):
    """Draw probabilities, a graph whose neighbors tend to agree, and masks of calibration and test nodes."""
    g = np.random.default_rng(seed)
    y = torch.from_numpy(g.integers(num_classes, size=num_nodes))
    edges = torch.from_numpy(g.integers(num_nodes, size=(2, 4 * num_nodes)))
    edges = edges[:, (y[edges[0]] == y[edges[1]]) | torch.from_numpy(g.random(edges.shape[1]) < 0.2)]
    logits = torch.from_numpy(g.normal(size=(num_nodes, num_classes)))
    logits[torch.arange(num_nodes), y] += 1.0
    calibration = torch.from_numpy(g.permutation(num_nodes) < num_nodes // 2)
    data = Data(y=y, edge_index=edges, num_nodes=num_nodes)
    return logits.softmax(-1), data, calibration, ~calibration


def fit(drawn, **options):
    probs, data, calibration, test = drawn
    return ew.ConformalPairs(**options).fit(probs, data, calibration=calibration, test=test)


# The matching


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda e: e[0] != e[1]), max_size=30), SEEDS)
def test_matching_equals_the_loop_and_is_maximal(edges, seed):
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    order = np.random.default_rng(seed).permutation(len(edges))
    rank = torch.from_numpy(order.argsort())
    matched = greedy_matching(edge_index, rank, 10)
    assert matched.nonzero().flatten().tolist() == loops.greedy_matching(edges, order.tolist())
    nodes = edge_index[:, matched].flatten()
    assert len(nodes.unique()) == len(nodes)
    busy = torch.zeros(10, dtype=torch.bool)
    busy[nodes] = True
    assert bool(busy[edge_index].any(0).all())


@given(SEEDS, SEEDS)
def test_matching_depends_neither_on_labels_nor_on_roles(seed, other):
    probs, data, calibration, test = draw(seed)
    sets = ew.ConformalPairs(alpha=0.3).fit(probs, data, calibration=calibration, test=test, seed=7)
    g = np.random.default_rng(other)
    dealt = torch.from_numpy(g.permutation(NUM_NODES) < 2 * NUM_NODES // 3)
    relabeled = Data(y=data.y[g.permutation(NUM_NODES)], edge_index=data.edge_index, num_nodes=NUM_NODES)
    again = ew.ConformalPairs(alpha=0.3).fit(probs, relabeled, calibration=dealt, test=~dealt, seed=7)
    assert torch.equal(sets.matching, again.matching)
    assert not calibration[sets.test_pairs].any()
    assert not test[sets.calibration_pairs].any()


def test_nodes_outside_of_both_masks_are_not_matched():
    probs, data, calibration, test = draw(0)
    neither = torch.arange(NUM_NODES) % 5 == 0
    sets = ew.ConformalPairs(alpha=0.3).fit(probs, data, calibration=calibration & ~neither, test=test & ~neither)
    assert not neither[sets.matching].any()


# Sets


@pytest.mark.parametrize("alpha", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize("score", ["thr", "aps"])
def test_sets_equal_the_loop(alpha, score):
    drawn = draw(1)
    probs, data, _, _ = drawn
    sets = fit(drawn, alpha=float(alpha), score=score)
    uniform = uniform_numbers(0, NUM_NODES).tolist()

    def scores_of(i, j):
        i, j = min(i, j), max(i, j)
        p = [float(probs[i, k] * probs[j, m]) for k in range(NUM_CLASSES) for m in range(NUM_CLASSES)]
        u = (uniform[i] + uniform[j]) % 1.0
        return [loops.node_score(p, entry, score, u) for entry in range(len(p))]

    true_scores = [
        scores_of(i, j)[int(data.y[i]) * NUM_CLASSES + int(data.y[j])] for i, j in sets.calibration_pairs.T.tolist()
    ]
    limit = loops.quantile(true_scores, alpha)
    for (i, j), found in zip(sets.test_pairs.T.tolist(), sets.pair_sets(sets.test_pairs), strict=True):
        expected = torch.tensor(scores_of(i, j)) <= limit + 1e-12
        assert torch.equal(found.flatten(), expected)


@pytest.mark.parametrize("score", ["thr", "aps"])
def test_contains_and_sizes_equal_those_of_the_sets(score, monkeypatch):
    monkeypatch.setattr(conformal_pairs, "CHUNK_ELEMENTS", 100)  # many chunks
    drawn = draw(2)
    pairs = torch.tensor([[0, 5, 9], [1, 2, 200]]).repeat(1, 20)
    pairs = torch.cat([pairs, pairs.flip(0), drawn[1].edge_index[:, :50]], 1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    sets = fit(drawn, alpha=0.3, score=score)
    all_sets = sets.pair_sets(pairs)
    assert all_sets.shape == (pairs.shape[1], NUM_CLASSES, NUM_CLASSES)
    assert torch.equal(torch.cat(list(sets.iter_pair_sets(pairs))), all_sets)
    assert torch.equal(sets.sizes(pairs), all_sets.sum((1, 2)))
    assert torch.equal(sets.pair_sets(pairs.flip(0)), all_sets.transpose(1, 2))
    labels = torch.from_numpy(np.random.default_rng(0).integers(NUM_CLASSES, size=tuple(pairs.shape)))
    expected = all_sets[torch.arange(pairs.shape[1]), labels[0], labels[1]]
    assert torch.equal(sets.contains(pairs, labels), expected)
    assert torch.equal(sets.contains(pairs.flip(0), labels.flip(0)), expected)


def test_no_pairs_have_no_sets():
    sets = fit(draw(2))
    none = torch.empty(2, 0, dtype=torch.long)
    assert sets.pair_sets(none).shape == (0, NUM_CLASSES, NUM_CLASSES)
    assert sets.same_label_sets(none).shape == (0, 2)
    assert len(sets.sizes(none)) == len(sets.contains(none, none)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_joints_of_all_posteriors_are_used(kind, tmp_path):
    posterior = KINDS[kind]()
    data = Data(y=torch.tensor([0, 1, 2, 0, 1]), edge_index=EDGES, num_nodes=5)
    calibration = torch.tensor([True, True, True, True, False])
    sets = ew.ConformalPairs(alpha=0.5).fit(posterior, data, calibration=calibration, test=~calibration, seed=1)
    joint = posterior.joint(sets.matching.sort(0).values)
    of_matching = joint[torch.arange(sets.matching.shape[1]), *data.y[sets.matching.sort(0).values]]
    limit = of_matching.min()  # ⌈(2 + 1) / 2⌉ = 2 of two pairs
    low_first = EDGES.sort(0).values
    expected = posterior.joint(low_first) >= limit
    assert torch.equal(sets.pair_sets(low_first), expected)
    no_edge = torch.tensor([[0], [4]])
    product = posterior.node[0][:, None] * posterior.node[4]
    joint = posterior.joint(no_edge)[0] if "mixture" in kind else product  # a mixture has joints of all pairs
    assert torch.equal(sets.pair_sets(no_edge)[0], joint >= limit)
    sets.save(tmp_path / "sets.safetensors")
    loaded = ew.PairPredictionSets.load(tmp_path / "sets.safetensors")
    assert repr(loaded) == repr(sets)
    assert torch.equal(loaded.pair_sets(EDGES), sets.pair_sets(EDGES))
    assert torch.equal(loaded.apply(posterior).same_label_sets(EDGES), sets.same_label_sets(EDGES))


@given(SEEDS, st.sampled_from(["thr", "aps"]))
def test_sets_grow_as_alpha_falls(seed, score):
    drawn = draw(seed)
    before = None
    for alpha in (0.5, 0.3, 0.2, 0.1):
        sets = fit(drawn, alpha=alpha, score=score)
        current = sets.pair_sets(sets.test_pairs), sets.same_label_sets(sets.test_pairs)
        for larger, smaller in zip(current, before or current, strict=True):
            assert bool((larger | ~smaller).all())
        before = current


@given(SEEDS, st.randoms(use_true_random=False))
def test_numbering_of_nodes_classes_and_pairs_does_not_matter(seed, random):
    """On a graph of disjoint edges, which is its own matching."""
    probs, data, _, _ = draw(seed)
    edges = torch.arange(NUM_NODES).view(2, -1)
    calibration = (torch.arange(NUM_NODES // 2) % 3 > 0).repeat(2)
    nodes, classes, pairs = (torch.tensor(random.sample(range(n), n)) for n in (NUM_NODES, NUM_CLASSES, NUM_NODES // 2))
    options, test = ew.ConformalPairs(alpha=0.2), ~calibration
    graph = Data(y=data.y, edge_index=edges, num_nodes=NUM_NODES)
    sets = options.fit(probs, graph, calibration=calibration, test=test)
    number = nodes.argsort()
    permuted = Data(y=classes.argsort()[data.y][nodes], edge_index=number[edges[:, pairs]], num_nodes=NUM_NODES)
    again = options.fit(probs[nodes][:, classes], permuted, calibration=calibration[nodes], test=test[nodes], seed=3)
    expected = sets.pair_sets(edges[:, pairs])[:, classes][:, :, classes]
    assert torch.equal(again.pair_sets(number[edges[:, pairs]]), expected)
    same = again.same_label_sets(number[edges[:, pairs]])
    assert torch.equal(same, sets.same_label_sets(edges[:, pairs]))


@given(SEEDS, st.sampled_from([0.1, 0.3, 0.6, 0.9]))
def test_thr_set_is_empty_or_holds_the_most_probable_pair(seed, alpha):
    drawn = draw(seed)
    sets = fit(drawn, alpha=alpha)
    pairs = sets.test_pairs
    found = sets.pair_sets(pairs).flatten(1)
    best = sets.posterior.joint(pairs).flatten(1).argmax(1)
    is_empty = ~found.any(1)
    assert bool((is_empty | found[torch.arange(len(found)), best]).all())
    assert bool(sets.same_label_sets(pairs).any(1).all())


def test_same_label_sets_equal_the_loop():
    drawn = draw(4)
    probs, y = drawn[0], drawn[1].y
    sets = fit(drawn, alpha=0.2)

    def probability_of(i, j, is_same):
        same = float((probs[i] * probs[j]).sum())
        return same if is_same else 1 - same

    scores = [1 - probability_of(i, j, y[i] == y[j]) for i, j in sets.calibration_pairs.T.tolist()]
    limit = loops.quantile(scores, "0.2")
    for (i, j), found in zip(sets.test_pairs.T.tolist(), sets.same_label_sets(sets.test_pairs).tolist(), strict=True):
        p = [probability_of(i, j, is_same) for is_same in (False, True)]
        assert found == [1 - q <= limit + 1e-12 or q == max(p) for q in p]


def test_equal_probabilities_give_full_sets():
    probs, data, calibration, test = draw(0)
    sets = ew.ConformalPairs().fit(torch.full_like(probs, 1 / NUM_CLASSES), data, calibration=calibration, test=test)
    assert bool(sets.pair_sets(data.edge_index[:, data.edge_index[0] != data.edge_index[1]]).all())


def test_one_class_is_always_in_the_set():
    _, data, calibration, test = draw(0)
    data.y = torch.zeros_like(data.y)
    sets = ew.ConformalPairs().fit(torch.ones(NUM_NODES, 1), data, calibration=calibration, test=test)
    assert sets.matching_coverage(data.y).fraction == sets.matching_coverage(data.y).mean_size == 1.0
    assert sets.same_label_sets(sets.test_pairs).tolist()[0] == [False, True]


# Groups and coverage


@pytest.mark.parametrize("by", ["agree", "predicted_class", "degree"])
def test_each_group_has_the_threshold_of_its_own_pairs(by):
    drawn = draw(5, num_nodes=2000)
    y, sets = drawn[1].y, fit(drawn, alpha=0.2, groups=by)
    pairs, calibration = sets.test_pairs, sets.calibration_pairs
    groups, of_calibration = sets._groups(by, pairs), sets._groups(by, calibration)
    joint = sets.posterior.joint(calibration)[torch.arange(calibration.shape[1]), *y[calibration]]
    for g in groups.unique():
        limit = -loops.quantile((-joint[of_calibration == g]).tolist(), "0.2")
        own = pairs[:, groups == g].sort(0).values
        assert torch.equal(sets.pair_sets(own), sets.posterior.joint(own) >= limit)
    coverage = sets.coverage_by(by, y)
    assert sum(c.count for c in coverage.values()) == pairs.shape[1] == sets.matching_coverage(y).count
    assert sum(c.covered for c in coverage.values()) == sets.matching_coverage(y).covered


def test_groups_by_predicted_labels_of_both_ends():
    drawn = draw(5, num_nodes=2000)
    predicted = drawn[0].argmax(1)
    sets = fit(drawn, alpha=0.2)
    same = predicted[sets.test_pairs[0]] == predicted[sets.test_pairs[1]]
    assert sets.coverage_by("agree", drawn[1].y)["agree"].count == int(same.sum())
    of_class = sets.coverage_by("predicted_class", drawn[1].y)
    assert of_class["different"].count == int((~same).sum())
    assert of_class["1"].count == int((same & (predicted[sets.test_pairs[0]] == 1)).sum())


def test_pairs_of_equal_and_of_different_labels_have_the_threshold_of_their_own_pairs():
    drawn = draw(5, num_nodes=2000)
    y, sets = drawn[1].y, fit(drawn, alpha=0.2, groups="same_label")
    known, pairs = sets.calibration_pairs, sets.test_pairs
    joint = sets.posterior.joint(known)[torch.arange(known.shape[1]), *y[known]]
    p_same = (drawn[0][known[0]] * drawn[0][known[1]]).sum(1)
    is_same = y[known[0]] == y[known[1]]
    limits = [-loops.quantile((-joint[is_same == same]).tolist(), "0.2") for same in (False, True)]
    equal = torch.eye(NUM_CLASSES, dtype=torch.bool)
    expected = sets.posterior.joint(pairs) >= torch.where(equal, limits[1], limits[0])
    assert torch.equal(sets.pair_sets(pairs), expected)
    limits = [loops.quantile(p_same[~is_same].tolist(), "0.2"), loops.quantile((1 - p_same[is_same]).tolist(), "0.2")]
    p_same = (drawn[0][pairs[0]] * drawn[0][pairs[1]]).sum(1)
    no, yes = sets.same_label_sets(pairs).T
    assert torch.equal(no, (p_same <= limits[0] + 1e-12) | (p_same <= 0.5))
    assert torch.equal(yes, (1 - p_same <= limits[1] + 1e-12) | (p_same >= 0.5))
    coverage = sets.coverage_by("same_label", y)
    of_same = y[pairs[0]] == y[pairs[1]]
    assert coverage["same"].count == int(of_same.sum())
    assert coverage["different"].covered == int(sets.contains(pairs, y[pairs])[~of_same].sum())
    one_class = Data(y=torch.zeros_like(y), edge_index=drawn[1].edge_index, num_nodes=2000)
    sets = fit((torch.ones(2000, 1), one_class, *drawn[2:]), groups="same_label")
    assert bool(sets.pair_sets(pairs).all())
    only_same = Data(y=torch.zeros_like(y), edge_index=drawn[1].edge_index, num_nodes=2000)
    with pytest.raises(ValueError, match=r"calibration pairs in the group 'different' .* got 0"):
        fit((drawn[0], only_same, *drawn[2:]), groups="same_label")


def test_coverage_of_other_edges_leaves_out_the_matching():
    drawn = draw(6)
    data, test = drawn[1], drawn[3]
    sets = fit(drawn, alpha=0.2)
    edges = undirected_edges(data.edge_index, NUM_NODES)
    matched = {tuple(sorted(pair)) for pair in sets.matching.T.tolist()}
    others = [(i, j) for i, j in edges.T.tolist() if test[i] and test[j] and (i, j) not in matched]
    both_ways = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
    coverage = sets.other_coverage(data.y, both_ways)
    index = torch.tensor(others).T
    assert coverage.count == len(others)
    assert coverage.covered == int(sets.contains(index, data.y[index]).sum())
    low, high = coverage.interval
    assert 0 <= low < coverage.fraction < high <= 1
    assert sets.other_coverage(data.y, sets.matching).interval == (0.0, 1.0)
    assert np.isnan(sets.other_coverage(data.y, sets.matching).fraction)


def test_interval_of_other_edges_is_wide_where_they_share_a_node():
    """All edges of a star are covered or not together, if its center is wrong: 100 edges are few observations."""
    from edgewise.metrics.intervals import resampled_fraction_interval

    stars = torch.stack([torch.arange(4).repeat_interleave(100), 4 + torch.arange(400)])
    covered = (stars[0] < 2) | (stars[1] % 7 == 0)
    low, high = resampled_fraction_interval(covered, stars, torch.ones(404, dtype=torch.bool), 400, 0.95, 0)
    assert low < 0.3
    assert high > 0.8
    one, population = torch.tensor([[0], [1]]), torch.ones(404, dtype=torch.bool)
    of_one = {resampled_fraction_interval(covered[:1], one, population, 1, 0.95, seed) for seed in range(20)}
    assert of_one == {(0.0, 1.0), (1.0, 1.0)}  # without the edge in the only resample, and with it


# Too few pairs, and other invalid input


def test_too_few_pairs_raise_and_say_how_many_are_needed():
    probs, data, calibration, test = draw(0)
    few = calibration & (torch.arange(NUM_NODES) < 60)
    with pytest.raises(ValueError, match=r"at least 19 calibration pairs for alpha=0.05.*but got \d\."):
        ew.ConformalPairs(alpha=0.05).fit(probs, data, calibration=few, test=test)
    none = torch.zeros_like(calibration)
    with pytest.raises(ValueError, match=r"at least 9 calibration pairs .* but got 0\."):
        ew.ConformalPairs().fit(probs, data, calibration=none, test=none)
    with pytest.raises(ValueError, match=r"calibration pairs in the group '.*agree'.*or groups=None\."):
        ew.ConformalPairs(alpha=0.01, groups="agree").fit(probs, data, calibration=calibration, test=test)


@pytest.mark.parametrize("by", ["agree", "predicted_class", "degree"])
def test_suggested_alpha_is_large_enough_for_all_groups(by):
    probs, data, calibration, test = draw(0, num_nodes=2000)
    masks = {"calibration": calibration, "test": test}
    with pytest.raises(ValueError, match="alpha of at least") as error:
        ew.ConformalPairs(alpha=0.001, groups=by).fit(probs, data, **masks)
    alpha = float(re.search(r"alpha of at least ([\d.]+),", str(error.value))[1])
    ew.ConformalPairs(alpha=alpha, groups=by).fit(probs, data, **masks)
    with pytest.raises(ValueError, match="alpha of at least"):
        ew.ConformalPairs(alpha=alpha - 1e-3, groups=by).fit(probs, data, **masks)


def test_thresholds_exist_from_exactly_the_required_number_of_pairs():
    probs, data, _, _ = draw(0)
    graph = Data(y=data.y, edge_index=torch.arange(NUM_NODES).view(2, -1), num_nodes=NUM_NODES)
    for count in (8, 9):
        calibration = (torch.arange(NUM_NODES // 2) < count).repeat(2)
        if count == 9:
            ew.ConformalPairs().fit(probs, graph, calibration=calibration, test=~calibration)
        else:
            with pytest.raises(ValueError, match=r"at least 9 calibration pairs .* but got 8\."):
                ew.ConformalPairs().fit(probs, graph, calibration=calibration, test=~calibration)


def test_invalid_input_raises(tmp_path):
    drawn = draw(0)
    probs, data, calibration, test = drawn
    with pytest.raises(ValueError, match="test & ~calibration"):
        ew.ConformalPairs().fit(probs, data, calibration=calibration, test=test | calibration)
    with pytest.raises(ValueError, match="Expected data with edge_index"):
        ew.ConformalPairs().fit(probs, Data(y=data.y), calibration=calibration, test=test)
    with pytest.warns(ew.ExchangeabilityWarning, match="calibration nodes are among the used nodes"):
        ew.ConformalPairs().fit(probs, data, calibration=calibration, test=test, used=calibration)
    first = int(test.nonzero()[0])
    with pytest.warns(ew.ExchangeabilityWarning, match="1 of 150 test nodes are among the used nodes"):
        ew.ConformalPairs().fit(probs, data, calibration=calibration, test=test, used=torch.arange(NUM_NODES) == first)
    sets = fit(drawn)
    with pytest.raises(ValueError, match=r"pass y\[pairs\]"):
        sets.contains([(0, 1)], data.y)
    with pytest.raises(ValueError, match="labels"):
        sets.contains([(0, 1)], [[0.5], [1.0]])
    with pytest.raises(ValueError, match="n_resamples"):
        sets.other_coverage(data.y, data.edge_index, n_resamples=0)
    with pytest.raises(ValueError, match="two different nodes"):
        sets.sizes([(1, 1)])
    with pytest.raises(ValueError, match="Expected a label from 0 to 2 for each test node"):
        sets.matching_coverage(torch.where(test, -1, data.y))
    with pytest.raises(ValueError, match=r"shape \(300, 3\), as in the fit"):
        sets.apply(probs[:10])
    with pytest.raises(ValueError, match="Expected by to be one of agree"):
        sets.coverage_by("confidence", data.y)
    for options in ({"alpha": 2}, {"score": "raps"}, {"groups": "confidence"}):
        with pytest.raises(ValueError, match=f"Expected {next(iter(options))} to be"):
            ew.ConformalPairs(**options)
    sets.posterior.save(tmp_path / "posterior.safetensors")
    with pytest.raises(ValueError, match=r"PairPredictionSets\.save"):
        ew.PairPredictionSets.load(tmp_path / "posterior.safetensors")


def test_warning_where_calibration_or_test_meets_the_nodes_that_a_fitted_model_remembers(tmp_path):
    _, data, calibration, test = draw(0)
    data.x = torch.nn.functional.one_hot(data.y).float()
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
    first, second, third = (test & (torch.arange(NUM_NODES) % 5 == k) for k in range(3))
    model = ew.GCN(max_epochs=2).fit(data, ew.Split(first, second, test), seed=0)
    assert torch.equal(model.used, first | second)
    assert model.apply(data).used is None  # perhaps other nodes
    with pytest.warns(ew.SmallSampleWarning):
        calibrated = ew.TemperatureScaling().fit(model, data, ew.Split(torch.zeros_like(test), third, test))
    assert torch.equal(calibrated.used, first | second | third)
    model.save(tmp_path / "model.safetensors")
    calibrated.save(tmp_path / "calibrated.safetensors")
    loaded = ew.Fitted.load(tmp_path / "model.safetensors"), ew.Calibrated.load(tmp_path / "calibrated.safetensors")
    unused = test & ~calibrated.used
    options = ew.ConformalPairs(alpha=0.4)
    for belief in (model, calibrated, *loaded):
        options.fit(belief, data, calibration=calibration, test=unused)
        for nodes in (first, second, third)[: 2 + isinstance(belief, ew.Calibrated)]:
            with pytest.warns(ew.ExchangeabilityWarning, match=f"{nodes.sum()} of .* test nodes are among"):
                options.fit(belief, data, calibration=calibration, test=unused | nodes)
            with pytest.warns(ew.ExchangeabilityWarning, match="calibration nodes are among the training"):
                ew.ConformalNodes(alpha=0.4).fit(belief, data, calibration=nodes)
        options.fit(belief, data, calibration=calibration, test=test, used=torch.zeros_like(test))


def test_labels_of_test_nodes_are_not_used():
    probs, data, calibration, test = draw(0)
    unknown = Data(y=torch.where(calibration, data.y, -1), edge_index=data.edge_index, num_nodes=NUM_NODES)
    sets = fit((probs, data, calibration, test))
    again = fit((probs, unknown, calibration, test))
    assert torch.equal(sets.thresholds, again.thresholds)
    assert torch.equal(sets.same_thresholds, again.same_thresholds)


# Selection


def test_p_values_and_selection_equal_the_loops():
    g = np.random.default_rng(0)
    for _ in range(20):
        p, happened, among = g.integers(0, 9, 60) / 8, g.random(60) < 0.6, g.integers(0, 9, 40) / 8
        calibration = list(zip(p.tolist(), happened.tolist(), strict=True))
        p_values = ew.conformal_p_values(p, happened, among)
        np.testing.assert_allclose(p_values, [loops.p_value(q, calibration) for q in among.tolist()])
        for fdr in (0.05, 0.1, 0.3, 1.0):
            selected = ew.benjamini_hochberg(p_values, fdr)
            assert selected.tolist() == loops.benjamini_hochberg(p_values.tolist(), fdr)


def test_benjamini_hochberg_matches_scipy():
    from scipy.stats import false_discovery_control

    p_values = np.random.default_rng(1).random(200) ** 3
    for fdr in (0.01, 0.1, 0.5):
        assert (ew.benjamini_hochberg(p_values, fdr) == (false_discovery_control(p_values) <= fdr)).all()
    assert len(ew.benjamini_hochberg([], 0.1)) == 0


@pytest.mark.parametrize("event", ["same", "both_correct", "both=1"])
@pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")
def test_selection_on_the_matching_equals_the_threshold_for_fdr(event):
    drawn = draw(7, num_nodes=2000)
    data = drawn[1]
    sets = fit(drawn)
    for fdr in (0.1, 0.2, 0.4):
        selection = sets.select(event, fdr)
        table = ew.predict_edges(drawn[0], sets.matching, [event])
        known = table.outcomes(event, data.y, sets.calibration)
        among = table.outcomes(event, data.y, sets.test)
        threshold = threshold_for_fdr(*known, fdr, among=among[0])
        assert (selection.selected == threshold.select(among[0])).all()
        assert selection.check(data.y).to_dict() == threshold.check(*among).to_dict()
    for bad in (-1, NUM_CLASSES):
        with pytest.raises(ValueError, match=rf"for each test node, but node \d+ has {bad}"):
            selection.check(torch.full_like(data.y, bad))


def test_scores_of_the_script_are_those_of_the_sets():
    probs, data, calibration, test = draw(9)
    split = ew.Split(torch.zeros_like(test), torch.zeros_like(test), test, calibration=calibration)
    with load_script("conformal_sizes") as script:
        scores = script.scores(probs, data, split)
        assert len(scores) == len(script.HEAD) - 2
    pairs = fit((probs, data, calibration, test), alpha=0.1)
    known, among = pairs.calibration_pairs.T.tolist(), pairs.test_pairs.T.tolist()
    limit = loops.quantile([max(1 - float(probs[i, data.y[i]]) for i in pair) for pair in known], "0.1")
    sets = [
        [{k for k in range(NUM_CLASSES) if 1 - float(probs[i, k]) <= limit + 1e-12} for i in pair] for pair in among
    ]
    covered = [all(int(data.y[i]) in s for i, s in zip(*each, strict=True)) for each in zip(among, sets, strict=True)]
    assert scores[4] == pytest.approx(np.mean(covered))
    assert scores[5] == pytest.approx(np.mean([len(a) * len(b) for a, b in sets]))
    assert scores[2] == pairs.matching_coverage(data.y).fraction


def test_script_does_not_repeat_finished_runs(tmp_path, monkeypatch):
    probs, data, calibration, test = draw(9)
    nobody = torch.zeros_like(test)
    splits = [ew.Split(nobody, nobody, test, 0, fold, calibration=calibration) for fold in range(2)]
    counts = dict.fromkeys(("GCN", "JointGCN"), 0)

    def count(name):
        counts[name] += 1
        return probs

    with load_script("conformal_sizes") as script:
        monkeypatch.setattr(script, "BELIEFS", {name: lambda *_, name=name: count(name) for name in counts})
        monkeypatch.setattr(ew.GCN, "fit", lambda *_, **__: None)
        file = tmp_path / "runs.csv"
        script.add_runs(script.read_runs(file), "a", data, splits[:1], file)
        runs = script.read_runs(file)
        script.add_runs(runs, "a", data, splits, file)
        assert counts == {"GCN": 2, "JointGCN": 2}
        assert script.read_runs(file) == runs
        assert len(runs) == 4
        rows = [*script.table_rows(runs, "a")]
        assert [row.split(" | ")[1] for row in rows] == ["GCN (2 runs)", "JointGCN (2 runs)"]
        assert rows[0].split(" | ")[2] == f"{runs['a', 'GCN', 0, 0][0]:.3f}"


def test_sets_of_a_pair_do_not_depend_on_the_other_pairs():
    """All nodes have equal probabilities, so that all scores of an answer are tied. Matrix products may round apart."""
    num_nodes, num_classes = 40, 7
    nodes = torch.arange(num_nodes)
    pairs, calibration = torch.combinations(nodes).T, nodes % 20 < 10
    data = Data(y=torch.zeros_like(nodes), edge_index=nodes.view(2, -1))
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        samples = torch.randn(8, 1, num_classes, generator=g).mul(2).softmax(-1).expand(8, num_nodes, num_classes)
        fitted = ew.ConformalPairs(alpha=0.5).fit(
            ew.MixturePosterior(samples.clone()), data, calibration=calibration, test=~calibration
        )
        of_all, same = fitted.pair_sets(pairs), fitted.same_label_sets(pairs)
        assert bool((of_all == of_all[0]).all())
        assert bool((same == same[0]).all())
        for count in (1, 2, 3, 5, 8, 17, 100):
            assert torch.equal(fitted.pair_sets(pairs[:, :count]), of_all[:count])
            assert torch.equal(fitted.same_label_sets(pairs[:, :count]), same[:count])
