"""Coverage over independent draws of graphs, labels and splits, with one test pair of each draw."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import edgewise as ew

NUM_DRAWS = 1000
NUM_NODES, NUM_CLASSES = 160, 3


def draw(seed):
    """Draw a graph with hubs whose neighbors tend to agree, and probabilities that are overconfident."""
    g = np.random.default_rng([17, seed])
    y = g.integers(NUM_CLASSES, size=NUM_NODES)
    weight = g.pareto(2.0, NUM_NODES) + 0.2
    edges = g.choice(NUM_NODES, (2, 4 * NUM_NODES), p=weight / weight.sum())
    edges = edges[:, (y[edges[0]] == y[edges[1]]) | (g.random(edges.shape[1]) < 0.3)]
    logits = g.normal(size=(NUM_NODES, NUM_CLASSES))
    logits[np.arange(NUM_NODES), y] += 1.0
    calibration = torch.from_numpy(g.permutation(NUM_NODES) < 0.7 * NUM_NODES)
    graph = Data(y=torch.from_numpy(y), edge_index=torch.from_numpy(edges), num_nodes=NUM_NODES)
    return torch.from_numpy(3 * logits).softmax(-1), graph, calibration, g


def assert_within_band(covered, expected):
    """Compare the number of covered elements with a sum of Bernoulli variables: four standard deviations."""
    expected = np.array(expected)
    assert abs(sum(covered) - expected.sum()) <= 4 * np.sqrt((expected * (1 - expected)).sum())


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_pairs_of_the_matching_are_covered(alpha):
    """Without ties, the probability is ⌈(n + 1)(1 - α)⌉ / (n + 1) exactly, given the number n of calibration pairs."""
    covered, expected, same = [], [], []
    for seed in range(2 * NUM_DRAWS):
        probs, graph, calibration, g = draw(seed)
        try:
            sets = ew.ConformalPairs(alpha=alpha).fit(
                probs, graph, calibration=calibration, test=~calibration, seed=seed
            )
        except ValueError:  # too few calibration pairs: this depends on the roles only
            continue
        pairs, n = sets.test_pairs, sets.calibration_pairs.shape[1]
        if pairs.shape[1] == 0:
            continue
        pair = pairs[:, [g.integers(pairs.shape[1])]]
        covered.append(bool(sets.contains(pair, graph.y[pair])))
        is_same = int(graph.y[pair[0]] == graph.y[pair[1]])
        same.append(bool(sets.same_label_sets(pair)[0, is_same]))
        expected.append(int(np.ceil(round((n + 1) * (1 - alpha), 9))) / (n + 1))
        if len(covered) == NUM_DRAWS:
            break
    assert len(covered) == NUM_DRAWS
    assert min(expected) >= 1 - alpha
    assert_within_band(covered, expected)
    # The more probable answer is always in the set of "same", which can only raise its coverage.
    assert sum(same) >= sum(expected) - 4 * np.sqrt(NUM_DRAWS * alpha * (1 - alpha))


@pytest.mark.parametrize("options", [{}, {"score": "aps"}, {"diffusion": 0.5}, {"score": "raps"}], ids=str)
def test_nodes_are_covered(options):
    covered, n = [], int(np.ceil(0.7 * NUM_NODES))
    for seed in range(NUM_DRAWS):
        probs, graph, calibration, g = draw(seed)
        sets = ew.ConformalNodes(alpha=0.1, **options).fit(probs, graph, calibration=calibration, seed=seed)
        node = g.choice((~calibration).nonzero().flatten().numpy())
        covered.append(bool(sets.sets[node, graph.y[node]]))
    rank = int(np.ceil(round((n + 1) * 0.9, 9)))
    assert_within_band(covered, [rank / (n + 1)] * len(covered))


def test_false_discovery_rate_of_the_selection():
    proportions = []
    for seed in range(300):
        probs, graph, calibration, _ = draw(seed)
        sets = ew.ConformalPairs(alpha=0.3).fit(probs, graph, calibration=calibration, test=~calibration, seed=seed)
        selection = sets.select("same", 0.3)
        proportions.append(selection.check(graph.y).false_discoveries)
    assert np.mean(proportions) <= 0.3 + 4 * np.std(proportions) / np.sqrt(len(proportions))
    assert np.mean(proportions) > 0.02
