"""What cannot be is refused, with what was expected, what came, where, and the way out."""

import inspect
import re

import numpy as np
import pytest
import torch

from edgewise.inference import PairwiseMRF, bethe_free_energy, exact_marginals, max_product, mean_field, sum_product

EDGES = torch.tensor([[0, 1], [1, 2]])


def make(unary=None, edge_index=EDGES, pairwise=None, **options):
    unary = torch.zeros(3, 2) if unary is None else unary
    pairwise = torch.eye(2) if pairwise is None else pairwise
    return PairwiseMRF(unary, edge_index, pairwise, **options)


def changed(place, value, shape=(3, 2)):
    tensor = torch.zeros(shape)
    tensor[place] = value
    return tensor


IMPOSSIBLE = changed((1, 1), -torch.inf)

REFUSALS = [
    # what unary must be
    ({"unary": [[0.0, 1.0]]}, "Expected unary to be a tensor or a NumPy array, but got list."),
    (
        {"unary": torch.zeros(3)},
        "Expected unary of shape (nodes, classes), or (batch, nodes, classes), but got shape (3,)",
    ),
    ({"unary": torch.zeros(1, 1, 3, 2)}, "but got shape (1, 1, 3, 2)"),
    ({"unary": torch.zeros(3, 0)}, "but got shape (3, 0)"),
    ({"unary": torch.zeros(3, 2).half()}, "Expected unary to hold float32 or float64 log-potentials, but got dtype"),
    ({"unary": torch.zeros(3, 2, dtype=torch.long)}, "but got dtype torch.int64. Pass unary.float()"),
    ({"unary": np.zeros((3, 2), dtype=np.complex64)}, "Expected unary to hold numbers"),
    (
        {"unary": torch.zeros(3, 2).to_sparse()},
        "Expected unary to be a dense tensor with values, but got",
    ),
    ({"unary": changed((1, 0), torch.nan)}, "but node 1 holds NaN or +inf. Of probabilities p pass p.log()."),
    ({"unary": changed((2, 1), torch.inf)}, "but node 2 holds NaN or +inf."),
    ({"unary": changed(2, -torch.inf)}, "but node 2 has no possible label: all are -inf."),
    ({"unary": changed((1, 2), -torch.inf, (2, 3, 2))}, "but node 2 of field 1 has no possible label"),
    ({"unary": changed((1, 0, 1), torch.nan, (2, 3, 2))}, "but node 0 of field 1 holds NaN or +inf"),
    # what edges must be
    ({"edge_index": [[0], [1]]}, "Expected edge_index to be a tensor or a NumPy array, but got list"),
    (
        {"edge_index": torch.zeros(3, 2, dtype=torch.long)},
        "of shape (2, edges), but got shape (3, 2). Pass edge_index.T.",
    ),
    ({"edge_index": EDGES.float()}, "Expected edge_index to hold integers, but got dtype torch.float32"),
    (
        {"edge_index": EDGES + 1},
        "nodes from 0 to 2, but edge 1 is [2, 3]. If nodes are numbered from 1, pass edge_index - 1.",
    ),
    ({"edge_index": EDGES - 1}, "nodes from 0 to 2, but edge 0 is [-1, 0]."),
    (
        {"edge_index": torch.tensor([[0, 2], [1, 2]])},
        "but edge 1 is a self-loop of node 2. Leave them out: edge_index[:,",
    ),
    (
        {"edge_index": torch.tensor([[0, 1, 2], [1, 2, 1]])},
        "Expected each undirected edge once, but edges 1 and 2 both connect (2, 1). If both directions",
    ),
    ({"edge_index": torch.tensor([[0, 1, 0], [1, 2, 1]])}, "but edges 0 and 2 both connect (0, 1)."),
    # what couplings must be
    ({"pairwise": torch.eye(3)}, "that is (2, 2) or (2, 2, 2), but got shape (3, 3)."),
    ({"pairwise": torch.zeros(3, 2, 2)}, "Expected pairwise of shape (classes, classes) or (edges, classes, classes)"),
    ({"pairwise": torch.zeros(2)}, "but got shape (2,)."),
    ({"pairwise": torch.eye(2).long()}, "Expected pairwise to hold float32 or float64 log-potentials, but got dtype"),
    (
        {"unary": torch.zeros(5, 3, 2), "pairwise": torch.zeros(4, 2, 2, 2)},
        "(2, 2) or (2, 2, 2), or either after the batch (5,), but got shape (4, 2, 2, 2).",
    ),
    ({"pairwise": changed((0, 1), torch.nan, (2, 2))}, "Expected finite couplings and scales"),
    ({"pairwise": changed((0, 1), -torch.inf, (2, 2))}, "To forbid a pair of labels a coupling of -1e4 is enough."),
    (
        {"pairwise": 1e31 * torch.eye(2)},
        "potentials up to 1e+30, but the largest unary is 0, the largest pairwise 1e+31",
    ),
    ({"pairwise": torch.eye(2, dtype=torch.float64) * 1e300}, "the largest pairwise inf"),
    ({"unary": torch.full((3, 2), -2e30)}, "but the largest unary is 2e+30"),
    # what scales must be
    ({"edge_scale": torch.ones(3)}, "Expected edge_scale of shape (2,), one factor per edge, but got shape (3,)."),
    ({"edge_scale": torch.ones(2, 1)}, "but got shape (2, 1)."),
    ({"edge_scale": torch.tensor([1.0, torch.nan])}, "the largest edge_scale nan"),
    ({"edge_scale": torch.tensor([1.0, torch.inf])}, "the largest edge_scale inf"),
    ({"edge_scale": torch.tensor([1.0, -1e20]), "pairwise": 1e20 * torch.eye(2)}, "the largest edge_scale 1e+20"),
    ({"edge_scale": 2.0}, "Expected edge_scale to be a tensor or a NumPy array, but got float"),
    # what evidence must be
    ({"evidence": [(0, 1)]}, "Expected evidence as a dict of node: label, but got list."),
    ({"evidence": {3: 0}}, "Expected evidence with a node from 0 to 2, as whole numbers, but got 3 for node 3."),
    ({"evidence": {-1: 0}}, "but got -1 for node -1."),
    ({"evidence": {0: 2}}, "Expected evidence with a label from 0 to 1, as whole numbers, but got 2 for node 0."),
    ({"evidence": {1: -1}}, "but got -1 for node 1."),
    ({"evidence": {1: True}}, "but got True for node 1."),
    ({"evidence": {1: 0.0}}, "but got 0.0 for node 1."),
    ({"evidence": {"a": 0}}, "but got 'a' for node 'a'."),
    (
        {"unary": IMPOSSIBLE, "evidence": {0: 1, 1: 1}},
        "Expected evidence that is possible, but node 1 is said to have label 1, whose unary is -inf.",
    ),
    (
        {"unary": torch.stack([torch.zeros(3, 2), IMPOSSIBLE]), "evidence": {2: 0, 1: 1}},
        "but node 1 is said to have label 1",
    ),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSALS, ids=[words[:60] for _, words in REFUSALS])
def test_fields(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make(**arguments)


@pytest.mark.parametrize("evidence", [torch.tensor([0, 1]), np.array([0, 1])])
def test_evidence_in_an_array(evidence):
    with pytest.raises(ValueError, match="Expected evidence as a dict of node: label"):
        make(evidence=evidence)


def test_what_is_at_the_limit_is_accepted():
    make(unary=torch.full((3, 2), -0.99e30))
    make(pairwise=0.99e30 * torch.eye(2))
    make(edge_scale=torch.tensor([1e4, 0.0]), pairwise=1e4 * torch.eye(2))
    make(unary=IMPOSSIBLE, evidence={1: 0})
    make(edge_index=torch.empty(2, 0, dtype=torch.int32))
    make(unary=torch.zeros(5, 3, 2), pairwise=torch.zeros(5, 1, 2, 2), edge_scale=torch.ones(5, 2))


def test_a_field_cannot_be_changed():
    mrf = make()
    with pytest.raises(AttributeError):
        mrf.unary = torch.ones(3, 2)


def test_evidence_leaves_the_users_unaries_alone():
    unary = torch.zeros(3, 2)
    make(unary=unary, evidence={0: 1})
    assert (unary == 0).all()


def test_a_field_says_what_it_is():
    assert repr(make()) == "PairwiseMRF(nodes=3, edges=2, classes=2)"
    assert repr(make(unary=torch.zeros(5, 3, 2))) == "PairwiseMRF(batch=5, nodes=3, edges=2, classes=2)"


OPTIONS = [
    ({"max_sweeps": 0}, "Expected max_sweeps to be a whole number from 1 to 2147483647, but got 0."),
    ({"max_sweeps": 2.0}, "but got 2.0."),
    ({"max_sweeps": True}, "but got True."),
    ({"max_sweeps": None}, "but got None."),
    ({"damping": 1.0}, "Expected damping to be a number of at least 0 and below 1, but got 1.0."),
    ({"damping": -0.1}, "but got -0.1."),
    ({"damping": float("nan")}, "but got nan."),
    ({"damping": False}, "but got False."),
    ({"damping": "0.5"}, "but got '0.5'."),
    ({"tolerance": -1e-9}, "Expected tolerance to be a number of at least 0, but got -1e-09."),
    ({"tolerance": float("inf")}, "but got inf."),
    ({"tolerance": float("nan")}, "but got nan."),
    ({"tolerance": True}, "but got True."),
    ({"tolerance": "small"}, "but got 'small'."),
]


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=[words for _, words in OPTIONS])
def test_options(infer, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        inspect.unwrap(infer)(make(), **options)  # as without the checks of types in tests


def free_energy_of_a_chain(mrf):
    return inspect.unwrap(bethe_free_energy)(mrf, sum_product(make())[0])


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field, exact_marginals, free_energy_of_a_chain])
def test_what_is_no_field(infer):
    with pytest.raises(ValueError, match=r"Expected a PairwiseMRF, but got Tensor\. Make one: ew\.PairwiseMRF\(unary"):
        inspect.unwrap(infer)(torch.zeros(3, 2))


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
def test_whole_numbers_of_any_kind_are_welcome(infer):
    _, convergence = inspect.unwrap(infer)(make(), max_sweeps=np.int64(3), damping=0, tolerance=0)
    assert convergence.sweeps == 1
