"""`joint_nll`: samplers of node sets, scores against loops and against the known truth, intervals."""

import math
from itertools import combinations, pairwise, product

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import edgewise as ew
from edgewise.data.node_sets import NodeSetSampler
from edgewise.inference.junction_tree import eliminate
from edgewise.metrics.joint_nll import mean_interval
from helpers.random_fields import cycle, generator, random_graph, random_mrf_inputs, random_tree
from helpers.small_posteriors import random_probs

mpl.use("Agg")

SAMPLERS = ("neighborhood", "random", "path", "triangle")
ALL = torch.ones(30, dtype=torch.bool)


def random_mixture(num_nodes, num_classes=3, seed=0):
    return ew.MixturePosterior(random_probs(4, num_nodes, num_classes, seed=seed))


def random_task(seed=0, num_nodes=30, num_edges=90):
    """Edges in one direction or in both, with self-loops, and labels."""
    g = generator(seed)
    edges = random_graph(num_nodes, num_edges, g)
    loops = torch.arange(3).expand(2, 3)
    y = torch.randint(3, (num_nodes,), generator=g)
    return torch.cat([edges, edges[:, :40].flip(0), loops], dim=1), y


# Sets


def adjacency(edge_index):
    return {frozenset(edge) for edge in edge_index.T.tolist() if edge[0] != edge[1]}


def is_connected(nodes, edges):
    reached = {nodes[0]}
    for _ in nodes:
        reached |= {b for b in nodes if any(frozenset((a, b)) in edges for a in reached)}
    return reached == set(nodes)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sets_have_the_structure_of_their_sampler(sampler, size):
    edge_index, _ = random_task()
    mask = torch.arange(30) % 5 > 0
    sets = NodeSetSampler(edge_index, mask, sampler).draw(size, 40, seed=1).T.tolist()
    edges = adjacency(edge_index)
    assert len(sets) == (40 if size < 6 or sampler != "triangle" else 0)
    for nodes in sets:
        assert len(set(nodes)) == size and all(mask[nodes])
        if sampler == "path":
            assert all(frozenset(pair) in edges for pair in pairwise(nodes))
        if sampler == "triangle":
            assert all(frozenset(pair) in edges for pair in combinations(nodes, 2))
        if sampler == "neighborhood":
            assert is_connected(nodes, edges)


def grow(edges, nodes, size, adjacent_to):
    """Return the probability of each sequence of nodes, extended uniformly by nodes adjacent to some of them."""
    if len(nodes) == size:
        return {nodes: 1.0}
    around = [b for b in range(5) if b not in nodes and adjacent_to(edges, nodes, b)]
    grown = {}
    for node in around:
        grown |= {part: p / len(around) for part, p in grow(edges, (*nodes, node), size, adjacent_to).items()}
    return grown


RULES = {
    "neighborhood": lambda edges, nodes, b: any(frozenset((a, b)) in edges for a in nodes),
    "random": lambda edges, nodes, b: True,
    "path": lambda edges, nodes, b: frozenset((nodes[-1], b)) in edges,
    "triangle": lambda edges, nodes, b: all(frozenset((a, b)) in edges for a in nodes),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_frequencies_of_sets_are_those_of_the_rule(sampler):
    """A triangle 0, 1, 2 with a tail 2, 3, 4, and attempts that fail are repeated."""
    edge_index = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 3, 4]])
    edges = adjacency(edge_index)
    expected = {}
    for start in range(5):
        expected |= grow(edges, (start,), 3, RULES[sampler])
    sets = NodeSetSampler(edge_index, ALL[:5], sampler).draw(3, 3000, seed=0).T.tolist()
    total = sum(expected.values())
    assert set(map(tuple, sets)) == set(expected)
    for nodes, p in expected.items():
        frequency, p = sum(tuple(drawn) == nodes for drawn in sets) / len(sets), p / total
        assert frequency == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / len(sets)))


def test_sets_of_a_size_depend_on_neither_the_belief_nor_the_other_sizes():
    edge_index, y = random_task()
    options = {"num_sets": 50, "seed": 3}
    a = ew.joint_nll(random_mixture(30), y, edge_index, sizes=(3,), **options)
    b = ew.joint_nll(random_mixture(30), y, edge_index, sizes=(5, 3, 2), **options)
    assert a[3] == b[3]
    assert ew.joint_nll(random_mixture(30), y, edge_index, sizes=(3,), num_sets=50, seed=4)[3] != a[3]
    same_marginals = ew.joint_nll(random_mixture(30).node, y, edge_index, sizes=(3,), **options)
    assert same_marginals[3].nll_per_node == pytest.approx(a[3].nll_per_node + a[3].gain)


# Scores


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_scores_equal_a_loop_over_sets(sampler):
    edge_index, y = random_task()
    posterior = random_mixture(30)
    result = ew.joint_nll(posterior, y, edge_index, sizes=(1, 2, 3), sampler=sampler, num_sets=60, seed=7)
    for size in (1, 2, 3):
        sets = NodeSetSampler(edge_index, ALL, sampler).draw(size, 60, seed=7)
        nll, gain = [], []
        for nodes in sets.T.tolist():
            joint = float(posterior.marginal(torch.tensor(nodes)[:, None])[(0, *y[nodes].tolist())])
            product = math.prod(float(posterior.node[node, y[node]]) for node in nodes)
            nll.append(-math.log(joint) / size)
            gain.append((math.log(joint) - math.log(product)) / size)
        row = result[size]
        assert (row.size, row.count) == (size, 60)
        assert row.nll_per_node == pytest.approx(np.mean(nll))
        assert row.gain == pytest.approx(np.mean(gain), abs=1e-12)
        assert row.nll_interval.low < row.nll_per_node < row.nll_interval.high


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gain_of_independent_nodes_is_exactly_zero(dtype):
    edge_index, y = random_task()
    result = ew.joint_nll(random_probs(30, 3, dtype=dtype), y, edge_index, sizes=(1, 2, 3, 5, 8, 13), num_sets=999)
    for row in result.rows:
        assert (row.gain, row.gain_interval.low, row.gain_interval.high) == (0.0, 0.0, 0.0)
        assert row.note == "product of marginals"


@pytest.mark.parametrize("solver", ["elimination", "enumeration", "pairwise"])
def test_expected_scores_of_the_truth_are_entropies(solver):
    """Σ_y p(y) NLL(y) over all labelings is the entropy of the sets, and Σ_y p(y) gain(y) their total correlation."""
    g = generator(5)
    edges = random_graph(6, 9, g) if solver != "pairwise" else torch.tensor([[0, 1, 1, 3, 3], [1, 2, 3, 4, 5]])
    inputs = random_mrf_inputs(edges, 6, 2, g)
    posterior = eliminate(inputs.mrf()) if solver == "elimination" else ew.exact_marginals(inputs.mrf())[0]
    true = inputs.enumeration()
    sizes = (1, 3)
    results = {
        labels: ew.joint_nll(posterior, torch.tensor(labels), edges, sizes=sizes, num_sets=5)
        for labels in product(range(2), repeat=6)
    }
    for size in sizes:
        sets = NodeSetSampler(edges, ALL[:6], "neighborhood").draw(size, 5, seed=0).T.tolist()
        entropy = np.mean([joint_entropy(true.joint(nodes)) for nodes in sets]) / size
        marginal = np.mean([sum(joint_entropy(true.joint([i])) for i in nodes) for nodes in sets]) / size
        nll = sum(p * results[labels][size].nll_per_node for labels, p in true.probability.items())
        gain = sum(p * results[labels][size].gain for labels, p in true.probability.items())
        assert nll == pytest.approx(entropy, abs=1e-9)
        assert gain == pytest.approx(marginal - entropy, abs=1e-9)
        assert gain >= -1e-12 and (size == 1) == (gain < 1e-6)


def joint_entropy(joint):
    p = joint[joint > 0]
    return -float((p * np.log(p)).sum())


def test_truth_of_a_synthetic_graph_beats_the_product_of_its_marginals():
    graph = ew.synthetic(60, 3, kind="mrf", homophily=0.6, average_degree=2, degree_law="regular", seed=0)
    posterior, report = graph.truth()
    assert report.exact
    drawn, _ = posterior.sample(12, seed=0)
    gains = [ew.joint_nll(posterior, y, graph.edge_index, sizes=(2, 5), num_sets=30) for y in drawn]
    for size in (2, 5):
        gain = np.array([result[size].gain for result in gains])
        assert gain.mean() > 2 * gain.std() / math.sqrt(len(gain))
    assert np.mean([result[5].gain for result in gains]) > np.mean([result[2].gain for result in gains])


def test_field_says_that_it_ignores_ways_around_a_set():
    inputs = random_mrf_inputs(cycle(8), 8, 2, generator(0))
    posterior, y = ew.sum_product(inputs.mrf())[0], torch.zeros(8, dtype=torch.long)
    result = ew.joint_nll(posterior, y, cycle(8), sizes=(1, 3, 8), num_sets=20)
    assert result[1].note == "marginals"
    assert "20 of 20 sets have paths around" in result[3].note and "0 of 20 sets have paths around" in result[8].note
    assert "taken as independent" in ew.joint_nll(posterior, y, cycle(8), sizes=(2,), sampler="random")[2].note


def test_impossible_labels_have_infinite_nll():
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    samples = torch.tensor([[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3])  # all labels are equal
    path, y = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1, 0])
    row = ew.joint_nll(certain, y, path, sizes=(2,), num_sets=30)[2]
    assert row.nll_per_node == row.nll_interval.low == math.inf and row.gain == 0.0
    row = ew.joint_nll(ew.MixturePosterior(samples), y, path, sizes=(2,), num_sets=30)[2]
    assert row.nll_per_node == math.inf and row.gain == -math.inf


# Sizes that cannot be drawn, and few sets


@pytest.mark.parametrize("sampler", ["neighborhood", "path", "triangle"])
def test_size_that_cannot_be_drawn_has_count_0_and_nan_scores(sampler):
    edge_index, y = torch.tensor([[0, 1, 3], [1, 2, 4]]), torch.zeros(6, dtype=torch.long)
    with pytest.warns(ew.SmallSampleWarning, match="No set of 4 nodes"):
        result = ew.joint_nll(random_probs(6, 3), y, edge_index, sizes=(1, 2, 4), sampler=sampler, num_sets=10)
    assert [row.count for row in result.rows] == [10, 10, 0]
    row = result[4]
    assert all(
        math.isnan(value) for value in (row.nll_per_node, row.gain, row.nll_interval.low, row.gain_interval.high)
    )
    assert "nan" in str(result) and "no sets" in str(result)


@pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")
def test_no_nodes_and_no_edges():
    y, no_edges = torch.zeros(6, dtype=torch.long), torch.empty(2, 0, dtype=torch.long)
    counts = {
        sampler: [row.count for row in ew.joint_nll(random_probs(6, 3), y, no_edges, sampler=sampler).rows]
        for sampler in SAMPLERS
    }
    assert counts.pop("random") == [1000, 1000, 1000, 1000, 0]
    assert all(count == [1000, 0, 0, 0, 0] for count in counts.values())
    result = ew.joint_nll(random_probs(6, 3), y, no_edges, mask=torch.zeros(6, dtype=torch.bool))
    assert [row.count for row in result.rows] == [0] * 5
    assert [row.count for row in ew.joint_nll(torch.empty(0, 3), y[:0], no_edges).rows] == [0] * 5


def test_fewer_sets_than_requested_warn(monkeypatch):
    """A star with a path of three nodes: nearly all attempts to draw a path of four nodes end early."""
    monkeypatch.setattr("edgewise.data.node_sets.MAX_ATTEMPTS", 2)
    star = torch.stack([torch.zeros(40, dtype=torch.long), torch.arange(1, 41)])
    edge_index = torch.cat([star, torch.tensor([[40], [41]])], dim=1)
    with pytest.warns(ew.SmallSampleWarning, match="of 500 sets of 4 nodes"):
        result = ew.joint_nll(random_probs(42, 3), [0] * 42, edge_index, sizes=(4,), sampler="path", num_sets=500)
    assert 0 < result[4].count < 500


def test_attempts_end_after_the_limit_if_the_attempt_at_the_limit_succeeded(monkeypatch):
    """Two sets may take two attempts: one fails, one succeeds, and the third ends the search."""
    monkeypatch.setattr("edgewise.data.node_sets.MAX_ATTEMPTS", 1)
    attempts = iter([[0], [0, 1], [0], [0, 1]])
    monkeypatch.setattr(NodeSetSampler, "_draw_one", lambda *_: next(attempts))
    assert NodeSetSampler(cycle(4), ALL[:4], "path").draw(2, 2, seed=0).tolist() == [[0], [1]]


# Intervals


def test_interval_equals_a_loop_over_nodes():
    sets = NodeSetSampler(random_task()[0], ALL, "neighborhood").draw(4, 50, seed=0)
    scores = torch.randn(50, generator=generator(2), dtype=torch.float64)
    mean, interval = mean_interval(scores, sets, 30, 0.9)
    drawn = set(sets.flatten().tolist())
    influences = [sum(float(scores[s]) - mean for s in range(50) if node in sets[:, s].tolist()) / 50 for node in drawn]
    variance = sum(value**2 for value in influences) * len(drawn) / (len(drawn) - 1)
    assert mean == pytest.approx(float(scores.mean()))
    assert interval.high - mean == pytest.approx(mean - interval.low) == pytest.approx(1.644854 * math.sqrt(variance))


def test_sets_without_shared_nodes_have_at_most_root_k_times_the_plain_interval():
    scores = torch.randn(200, generator=generator(2), dtype=torch.float64)
    mean, interval = mean_interval(scores, torch.arange(800).reshape(4, 200), 800, 0.95)
    plain = 1.959964 * float(scores.std(correction=0)) / math.sqrt(200)
    assert interval.high - mean == pytest.approx(2 * plain, rel=1e-2)


def test_interval_of_always_the_same_nodes_is_nan():
    result = ew.joint_nll(random_probs(3, 2), [0, 1, 1], torch.tensor([[0, 1], [1, 2]]), sizes=(3,), num_sets=20)
    assert math.isfinite(result[3].nll_per_node) and math.isnan(result[3].nll_interval.high)


@pytest.mark.slow
def test_intervals_cover_the_expected_scores():
    """Trees, beliefs and labels are drawn anew. The expected NLL of a set is its entropy, from its exact joint.

    Labels are strongly coupled. Single nodes share nothing, so that the dependence between neighbors remains. In 150
    draws, 89% of the intervals contain the entropy of single nodes, 98% that of 5 nodes, and 100% their total
    correlation. Intervals from the variance between sets contain them in 61%, 37% and 41%.
    """
    g, num_draws, num_sets = generator(0), 150, 150
    covered, covered_by_plain = {}, {}
    for seed in range(num_draws):
        edges = random_tree(60, g)
        unary = torch.randn(60, 3, generator=g, dtype=torch.float64)
        posterior, _ = ew.exact_marginals(ew.PairwiseMRF(unary, edges, 1.5 * torch.eye(3).double()))
        y = posterior.sample(1, seed=seed).labels[0]
        result = ew.joint_nll(posterior, y, edges, sizes=(1, 5), num_sets=num_sets, seed=seed)
        node_entropy = torch.special.entr(posterior.node).sum(1)
        for row in result.rows:
            sampler = NodeSetSampler(edges, torch.ones(60, dtype=torch.bool), "neighborhood")
            sets = sampler.draw(row.size, num_sets, seed=seed)
            entropy = torch.special.entr(posterior.marginal(sets).flatten(1)).sum(1)
            nll = -posterior.log_prob(sets, y[sets])
            gain = -posterior.node[sets, y[sets]].log().sum(0) - nll
            for name, value, interval, expected, scores in (
                ("nll", row.nll_per_node, row.nll_interval, entropy, nll),
                ("gain", row.gain, row.gain_interval, node_entropy[sets].sum(0) - entropy, gain),
            ):
                error = abs(value - float(expected.mean()) / row.size)
                plain = 1.96 * float(scores.std()) / row.size / math.sqrt(num_sets)
                covered.setdefault((row.size, name), []).append(error <= interval.high - value)
                covered_by_plain.setdefault((row.size, name), []).append(error <= plain)
    # The standard error of a share of 0.95 in 150 draws is 0.018.
    assert np.mean(covered[5, "nll"]) >= 0.93 and np.mean(covered[5, "gain"]) >= 0.93
    assert np.mean(covered[1, "nll"]) >= 0.8
    assert max(np.mean(covered_by_plain[key]) for key in ((1, "nll"), (5, "nll"), (5, "gain"))) < 0.75


# The result, and input checks


@pytest.fixture
def result():
    edge_index, y = random_task()
    return ew.joint_nll(random_mixture(30), y, edge_index, sizes=(1, 2, 9), num_sets=40, seed=2)


def test_graph_and_arrays_give_the_same(result):
    edge_index, y = random_task()
    data = Data(edge_index=edge_index, y=y, num_nodes=30)
    assert ew.joint_nll(random_mixture(30), data, sizes=(1, 2, 9), num_sets=40, seed=2) == result

    class Model:
        def posterior(self):
            return random_mixture(30)

    assert ew.joint_nll(Model(), data, mask=ALL.numpy(), sizes=[1, 2, 9], num_sets=40, seed=2) == result


def test_labels_outside_the_mask_may_be_unknown():
    edge_index, y = random_task()
    mask = torch.arange(30) < 20
    expected = ew.joint_nll(random_mixture(30), y, edge_index, mask=mask, num_sets=30)
    assert ew.joint_nll(random_mixture(30), torch.where(mask, y, -1), edge_index, mask=mask, num_sets=30) == expected


def test_class_names_and_normalize_are_those_of_evaluate():
    edge_index, y = random_task()
    probs, names = random_probs(30, 3), ["c", "a", "b"]
    options = {"sizes": (1, 3), "num_sets": 20}
    expected, text = ew.joint_nll(probs, y, edge_index, **options), [names[label] for label in y]
    table = pd.DataFrame(probs.numpy(), columns=names)
    assert ew.joint_nll(table, text, edge_index, **options) == expected
    assert ew.joint_nll(probs, text, edge_index, class_names=names, **options) == expected
    normalized = ew.joint_nll(1.01 * probs, y, edge_index, normalize=True, **options)
    assert normalized[3].nll_per_node == pytest.approx(expected[3].nll_per_node)
    with pytest.raises(ValueError, match="sum"):
        ew.joint_nll(1.01 * probs, y, edge_index, **options)


def test_dict_frame_and_text(result):
    as_dict, frame = result.to_dict(), result.to_frame()
    assert as_dict["options"] == {"sampler": "neighborhood", "num_sets": 40, "seed": 2, "confidence_level": 0.95}
    assert frame["size"].tolist() == [1, 2, 9] == list(result.sizes)
    for k, row in enumerate(result.rows):
        for values in (as_dict["rows"][k], frame.iloc[k]):
            assert values["gain"] == row.gain and values["nll_per_node_low"] == row.nll_interval.low
            assert values["gain_high"] == row.gain_interval.high and values["note"] == "mixture of 4 samples"
        assert f"{row.gain:.4f} [{row.gain_interval.low:.4f}" in str(result)
        assert f"{row.nll_per_node:.4f}" in result._repr_html_()
    assert len(repr(result)) < 200 and "\n" not in repr(result)
    with pytest.raises(KeyError, match="1, 2, 9"):
        result[3]


def test_plot_shows_joint_and_product(result):
    other = ew.joint_nll(random_mixture(30, seed=1), random_task()[1], random_task()[0], sizes=(2, 1), num_sets=40)
    _, ax = ew.plot_joint_nll({"a": result, "b": other}, title="Two models")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b", "product of the marginals"]
    drawn = [line.get_ydata() for line in ax.get_lines() if len(line.get_ydata()) == 3]
    nll = [row.nll_per_node for row in result.rows]
    product_nll = [row.nll_per_node + row.gain for row in result.rows]
    assert any(np.allclose(y, nll) for y in drawn) and any(np.allclose(y, product_nll) for y in drawn)
    _, ax = ew.plot_joint_nll(result, quantity="gain")
    assert any(np.allclose(line.get_ydata(), [row.gain for row in result.rows]) for line in ax.get_lines()[:1])
    own_fig, own_ax = plt.subplots()
    assert result.plot(ax=own_ax) == (own_fig, own_ax)
    with pytest.raises(ValueError, match="result of joint_nll"):
        ew.plot_joint_nll({"a": 1})
    plt.close("all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 3}, r"sizes=\[3\]"),
        ({"sizes": ()}, "one or more different sizes"),
        ({"sizes": (2, 2)}, "each size once"),
        ({"sizes": (0,)}, "sizes of at least 1"),
        ({"sizes": (2, 1.5)}, "whole numbers, but got 1.5"),
        ({"sizes": 2.5}, r"sizes=\[3\]"),
        ({"sizes": torch.tensor(4)}, r"sizes=\[4\]"),
        ({"seed": -1}, "seed to be a whole number from 0"),
        ({"sampler": "neighbourhood"}, "Did you mean 'neighborhood'"),
        ({"num_sets": 0}, "num_sets to be a whole number from 1"),
        ({"confidence_level": 95}, "confidence_level to be a number above 0 and below 1"),
        ({"mask": [True]}, "mask"),
    ],
)
def test_bad_options_raise(options, message):
    edge_index, y = random_task()
    with pytest.raises(ValueError, match=message):
        ew.joint_nll(random_probs(30, 3), y, edge_index, **options)


def test_misspelled_keyword_gets_a_suggestion():
    with pytest.raises(TypeError, match="num_sets"):
        ew.joint_nll(random_probs(30, 3), *random_task()[::-1], num_set=3)
