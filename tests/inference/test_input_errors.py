"""Invalid inputs of PairwiseMRF and the solvers raise ValueError."""

import inspect
import re

import numpy as np
import pytest
import torch

from edgewise.inference import PairwiseMRF, bethe_free_energy, exact_marginals, max_product, mean_field, sum_product

EDGES = torch.tensor([[0, 1], [1, 2]])


def make_mrf(unary=None, edge_index=EDGES, pairwise=None, **options):
    unary = torch.zeros(3, 2) if unary is None else unary
    pairwise = torch.eye(2) if pairwise is None else pairwise
    return PairwiseMRF(unary, edge_index, pairwise, **options)


def zeros_except(index, value, shape=(3, 2)):
    tensor = torch.zeros(shape)
    tensor[index] = value
    return tensor


IMPOSSIBLE = zeros_except((1, 1), -torch.inf)

INVALID_INPUTS = [
    # unary
    ({"unary": [[0.0, 1.0], [0.0]]}, "nested lists of one length"),
    ({"unary": torch.zeros(3)}, "(batch, nodes, classes), but got shape (3,)"),
    ({"unary": torch.zeros(1, 1, 3, 2)}, "but got shape (1, 1, 3, 2)"),
    ({"unary": torch.zeros(3, 0)}, "but got shape (3, 0)"),
    ({"unary": torch.zeros(3, 2).half()}, "float32 or float64 log-potentials, but got dtype torch.float16"),
    ({"unary": torch.zeros(3, 2, dtype=torch.long)}, "but got dtype torch.int64. Pass unary.float()"),
    ({"unary": np.zeros((3, 2), dtype=np.complex64)}, "Expected unary to hold numbers"),
    ({"unary": torch.zeros(3, 2).to_sparse()}, "Expected unary to be a dense tensor"),
    ({"unary": zeros_except((1, 0), torch.nan)}, "node 1 holds NaN or +inf. Convert probabilities p with p.log()"),
    ({"unary": zeros_except((2, 1), torch.inf)}, "node 2 holds NaN or +inf"),
    ({"unary": zeros_except(2, -torch.inf)}, "node 2 has no possible label"),
    ({"unary": zeros_except((1, 2), -torch.inf, (2, 3, 2))}, "node 2 of batch item 1 has no possible label"),
    ({"unary": zeros_except((1, 0, 1), torch.nan, (2, 3, 2))}, "node 0 of batch item 1 holds NaN or +inf"),
    # edge_index
    ({"edge_index": [[0, 1], [1, 2], [2, 0]]}, "edge_index = np.array(edge_index)"),
    ({"edge_index": torch.zeros(3, 2, dtype=torch.long)}, "but got shape (3, 2). Pass edge_index.T"),
    ({"edge_index": EDGES.float()}, "but got dtype torch.float32"),
    ({"edge_index": EDGES + 1}, "from 0 to 2, but edge 1 is [2, 3]"),
    ({"edge_index": EDGES - 1}, "from 0 to 2, but edge 0 is [-1, 0]"),
    ({"edge_index": torch.tensor([[0, 2], [1, 2]])}, "edge 1 is a self-loop of node 2"),
    ({"edge_index": torch.tensor([[0, 1, 2], [1, 2, 1]])}, "edges 1 and 2 both connect (2, 1)"),
    ({"edge_index": torch.tensor([[0, 1, 0], [1, 2, 1]])}, "edges 0 and 2 both connect (0, 1)"),
    # pairwise
    ({"pairwise": torch.eye(3)}, "(2, 2) or (2, 2, 2), but got shape (3, 3)"),
    ({"pairwise": torch.zeros(3, 2, 2)}, "but got shape (3, 2, 2)"),
    ({"pairwise": torch.zeros(2)}, "but got shape (2,)"),
    ({"pairwise": torch.eye(2).long()}, "Expected pairwise to hold float32 or float64"),
    (
        {"unary": torch.zeros(5, 3, 2), "pairwise": torch.zeros(4, 2, 2, 2)},
        "(2, 2) or (2, 2, 2), or (5, 1, 2, 2), but got shape (4, 2, 2, 2)",
    ),
    ({"pairwise": zeros_except((0, 1), torch.nan, (2, 2))}, "the largest pairwise nan"),
    ({"pairwise": zeros_except((0, 1), -torch.inf, (2, 2))}, "coupling of -1e4"),
    ({"pairwise": 1e31 * torch.eye(2)}, "up to 1e+30, but the largest unary is 0, the largest pairwise 1e+31"),
    ({"pairwise": torch.eye(2, dtype=torch.float64) * 1e300}, "the largest pairwise inf"),
    ({"unary": torch.full((3, 2), -2e30)}, "but the largest unary is 2e+30"),
    # edge_scale
    ({"edge_scale": torch.ones(3)}, "Expected edge_scale of shape (2,), one factor per edge, but got shape (3,)"),
    ({"edge_scale": torch.ones(2, 1)}, "but got shape (2, 1)"),
    ({"edge_scale": torch.tensor([1.0, torch.nan])}, "the largest edge_scale nan"),
    ({"edge_scale": torch.tensor([1.0, torch.inf])}, "the largest edge_scale inf"),
    ({"edge_scale": torch.tensor([1.0, -1e20]), "pairwise": 1e20 * torch.eye(2)}, "the largest edge_scale 1e+20"),
    ({"edge_scale": 2.0}, "but got float"),
    # evidence
    ({"evidence": [(0, 1)]}, "a dict of node: label, but got list"),
    ({"evidence": {3: 0}}, "from 0 to 2, but got 3 for node 3"),
    ({"evidence": {-1: 0}}, "but got -1 for node -1"),
    ({"evidence": {0: 2}}, "from 0 to 1, but got 2 for node 0"),
    ({"evidence": {1: -1}}, "but got -1 for node 1"),
    ({"evidence": {1: True}}, "but got True for node 1"),
    ({"evidence": {1: 0.0}}, "but got 0.0 for node 1"),
    ({"evidence": {"a": 0}}, "but got 'a' for node 'a'"),
    ({"unary": IMPOSSIBLE, "evidence": {0: 1, 1: 1}}, "node 1 has the label 1, whose unary is -inf"),
    (
        {"unary": torch.stack([torch.zeros(3, 2), IMPOSSIBLE]), "evidence": {2: 0, 1: 1}},
        "node 1 has the label 1, whose unary is -inf",
    ),
]


@pytest.mark.parametrize(("arguments", "fact"), INVALID_INPUTS, ids=[fact for _, fact in INVALID_INPUTS])
def test_invalid_potentials_edges_and_evidence_raise(arguments, fact):
    with pytest.raises(ValueError, match=re.escape(fact)):
        make_mrf(**arguments)


@pytest.mark.parametrize("evidence", [torch.tensor([0, 1]), np.array([0, 1])])
def test_evidence_as_array_raises(evidence):
    with pytest.raises(ValueError, match="a dict of node: label"):
        make_mrf(evidence=evidence)


def test_potentials_at_the_limits_are_accepted():
    make_mrf(unary=torch.full((3, 2), -0.99e30))
    make_mrf(pairwise=0.99e30 * torch.eye(2))
    make_mrf(edge_scale=torch.tensor([1e4, 0.0]), pairwise=1e4 * torch.eye(2))
    make_mrf(unary=IMPOSSIBLE, evidence={1: 0})
    make_mrf(edge_index=torch.empty(2, 0, dtype=torch.int32))
    make_mrf(unary=torch.zeros(5, 3, 2), pairwise=torch.zeros(5, 1, 2, 2), edge_scale=torch.ones(5, 2))


def test_mrf_is_immutable():
    mrf = make_mrf()
    with pytest.raises(AttributeError):
        mrf.unary = torch.ones(3, 2)


def test_evidence_does_not_modify_the_unary_argument():
    unary = torch.zeros(3, 2)
    make_mrf(unary=unary, evidence={0: 1})
    assert (unary == 0).all()


def test_repr_shows_sizes():
    assert repr(make_mrf()) == "PairwiseMRF(nodes=3, edges=2, classes=2)"
    assert repr(make_mrf(unary=torch.zeros(5, 3, 2))) == "PairwiseMRF(batch=5, nodes=3, edges=2, classes=2)"


INVALID_OPTIONS = [
    ({"max_sweeps": 0}, "from 1 to 2147483647, but got 0"),
    ({"max_sweeps": 2.0}, "but got 2.0"),
    ({"max_sweeps": True}, "but got True"),
    ({"max_sweeps": None}, "but got None"),
    ({"damping": 1.0}, "but got 1.0"),
    ({"damping": -0.1}, "but got -0.1"),
    ({"damping": float("nan")}, "but got nan"),
    ({"damping": False}, "but got False"),
    ({"damping": "0.5"}, "but got '0.5'"),
    ({"tolerance": -1e-9}, "but got -1e-09"),
    ({"tolerance": float("inf")}, "but got inf"),
    ({"tolerance": float("nan")}, "but got nan"),
    ({"tolerance": True}, "but got True"),
    ({"tolerance": "small"}, "but got 'small'"),
]


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
@pytest.mark.parametrize(("options", "fact"), INVALID_OPTIONS, ids=[str(options) for options, _ in INVALID_OPTIONS])
def test_invalid_solver_options_raise(infer, options, fact):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}.*{re.escape(fact)}"):
        inspect.unwrap(infer)(make_mrf(), **options)  # without the type checks of the test suite


def free_energy_of_chain(mrf):
    return inspect.unwrap(bethe_free_energy)(mrf, sum_product(make_mrf())[0])


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field, exact_marginals, free_energy_of_chain])
def test_argument_that_is_not_an_mrf_raises(infer):
    with pytest.raises(ValueError, match="Expected a PairwiseMRF, but got Tensor"):
        inspect.unwrap(infer)(torch.zeros(3, 2))


@pytest.mark.parametrize("infer", [sum_product, max_product, mean_field])
def test_numpy_and_python_integers_are_accepted(infer):
    _, convergence = inspect.unwrap(infer)(make_mrf(), max_sweeps=np.int64(3), damping=0, tolerance=0)
    assert convergence.sweeps == 1
