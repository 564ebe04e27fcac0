"""The guarantees of conformal sets as exact averages: all deals of calibration nodes of one small graph."""

from collections import defaultdict
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import edgewise as ew
from edgewise.decisions.conformal_scores import conformal_rank

NUM_NODES, NUM_CALIBRATION, NUM_CLASSES = 11, 6, 3
# The last node is neither for calibration nor for test. The graph has a hub, and more edges than any matching.
EDGES = torch.tensor([[0, 0, 0, 0, 0, 1, 2, 3, 5, 6, 6, 7, 8], [1, 2, 3, 4, 10, 2, 4, 5, 6, 7, 8, 9, 9]])
Y = torch.tensor([0, 0, 1, 2, 0, 1, 1, 2, 2, 0, 1])
DATA = Data(y=Y, edge_index=EDGES, num_nodes=NUM_NODES)


def draw_probs(*, has_ties):
    g = np.random.default_rng(5)
    if has_ties:
        return torch.from_numpy(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])[g.integers(2, size=NUM_NODES)])
    return torch.from_numpy(g.dirichlet(np.ones(NUM_CLASSES), NUM_NODES))


def deals():
    """Yield the masks of all deals."""
    for chosen in combinations(range(NUM_NODES - 1), NUM_CALIBRATION):
        calibration = torch.zeros(NUM_NODES, dtype=torch.bool)
        calibration[[*chosen]] = True
        test = ~calibration
        test[-1] = False
        yield calibration, test


def fit_all(probs, options, seed):
    """Yield the sets of all deals with enough calibration pairs, and what the proof conditions on.

    That is which pairs of the matching have one end in calibration and one in test, and the number of calibration pairs
    of each group.
    """
    for calibration, test in deals():
        try:
            sets = options.fit(probs, DATA, calibration=calibration, test=test, seed=seed)
        except ValueError as error:
            assert "calibration pairs" in str(error)
            continue
        is_mixed = calibration[sets.matching[0]] != calibration[sets.matching[1]]
        groups = sets._groups(options.groups, sets.calibration_pairs, Y[sets.calibration_pairs])
        yield sets, (*is_mixed.tolist(), *torch.bincount(groups, minlength=NUM_CLASSES + 1).tolist())


OPTIONS = [{"alpha": 0.5}, {"alpha": 0.35, "score": "aps"}, {"alpha": 0.35}]
OPTIONS += [{"alpha": 0.5, "groups": by} for by in ("agree", "degree", "predicted_class", "same_label")]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("has_ties", [False, True])
def test_coverage_of_pairs_is_that_of_the_proof(options, has_ties):
    probs, alpha = draw_probs(has_ties=has_ties), options["alpha"]
    outcomes, same = defaultdict(list), defaultdict(list)
    for sets, condition in fit_all(probs, ew.ConformalPairs(**options), seed=4):
        pairs = sets.test_pairs
        labels = Y[pairs]
        groups, of_calibration = (
            sets._groups(sets.options.groups, p, Y[p]).tolist() for p in (pairs, sets.calibration_pairs)
        )
        answers = sets.same_label_sets(pairs)[torch.arange(len(groups)), (labels[0] == labels[1]).long()]
        for group, covered, answer in zip(groups, sets.contains(pairs, labels).tolist(), answers.tolist(), strict=True):
            count = of_calibration.count(group)
            key = condition, group, Fraction(conformal_rank(alpha, count), count + 1)
            outcomes[key].append(covered)
            same[key].append(answer)
    assert len(outcomes) > 2
    is_exact = not has_ties or options.get("score") == "aps"
    for key, covered in outcomes.items():
        expected = key[2]
        assert expected >= 1 - Fraction(str(alpha))
        assert Fraction(sum(covered), len(covered)) >= expected
        assert not is_exact or Fraction(sum(covered), len(covered)) == expected
        assert Fraction(sum(same[key]), len(same[key])) >= expected


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("options", [{}, {"score": "aps"}, {"score": "aps", "diffusion": 0.5}], ids=str)
def test_coverage_of_nodes_is_that_of_the_proof(options, has_ties):
    probs, alpha = draw_probs(has_ties=has_ties), 0.2
    covered = []
    for calibration, test in deals():
        sets = ew.ConformalNodes(alpha=alpha, **options).fit(probs, DATA, calibration=calibration)
        covered += sets.sets[test, Y[test]].tolist()
    found = Fraction(sum(covered), len(covered))
    expected = Fraction(conformal_rank(alpha, NUM_CALIBRATION), NUM_CALIBRATION + 1)
    assert found >= expected
    assert has_ties or found == expected


@pytest.mark.parametrize("has_ties", [False, True])
def test_false_discovery_rate_over_all_deals(has_ties):
    probs = draw_probs(has_ties=has_ties)
    proportions = defaultdict(list)
    for sets, condition in fit_all(probs, ew.ConformalPairs(alpha=0.5), seed=4):
        for event, fdr in product(("same", "both_correct"), (0.3, 0.5, 0.7)):
            chosen = sets.select(event, fdr).check(Y)
            proportions[event, fdr, condition].append(Fraction(chosen.selected - chosen.hits, max(1, chosen.selected)))
    means = {key: sum(found) / len(found) for key, found in proportions.items()}
    for (_, fdr, _), mean in means.items():
        assert mean <= Fraction(str(fdr))
    assert max(means.values()) > Fraction(1, 4)
