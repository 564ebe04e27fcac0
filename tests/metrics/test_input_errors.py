"""Invalid inputs of `evaluate` and `GraphCalibration` raise ValueError; all valid dtypes and layouts are accepted."""

import numpy as np
import pytest
import torch

import edgewise as ew
from edgewise.kernels import dispatch
from helpers.random_predictions import random_case


def valid_inputs():
    probs, y, edge_index, mask = random_case(0)
    return {"probs": probs, "y": y, "edge_index": edge_index, "mask": mask}


def joints_of(case):
    start, end = case["edge_index"]
    return case["probs"][start][:, :, None] * case["probs"][end][:, None, :]


def change(tensor, index, value):
    out = tensor.clone()
    out[index] = value
    return out


INVALID = {
    "NaN": (lambda c: {"probs": change(c["probs"], (7, 1), float("nan"))}, "row 7 of probs holds NaN"),
    "infinity": (lambda c: {"probs": change(c["probs"], (7, 1), float("inf"))}, "row 7 of probs sums to inf"),
    "negative": (lambda c: {"probs": change(c["probs"], (3, 0), -0.25)}, r"row 3 of probs holds -0.25.*softmax"),
    "wrong sum": (lambda c: {"probs": change(c["probs"], 5, 0.5)}, r"row 5 of probs sums to 1.5.*softmax"),
    "zero row": (lambda c: {"probs": change(c["probs"], 5, 0.0)}, "row 5 of probs sums to 0"),
    "integers": (lambda c: {"probs": torch.ones(12, 1, dtype=torch.long)}, "floating-point.*int64"),
    "1-D probs": (lambda c: {"probs": c["probs"][:, 0]}, r"shape \(nodes, classes\).*\(12,\)"),
    "3-D probs": (lambda c: {"probs": c["probs"][None]}, r"shape \(nodes, classes\)"),
    "no classes": (lambda c: {"probs": c["probs"][:, :0]}, r"shape \(nodes, classes\)"),
    "ragged lists": (lambda c: {"probs": [[0.5, 0.5]] * 11 + [[1.0]]}, "probs as nested lists of one length"),
    "strings": (lambda c: {"y": np.array(["a"] * 12)}, "y to hold numbers.*but got 'a'.*class_names=.*classes_"),
    "objects": (lambda c: {"y": np.array([1.5, None] * 6)}, "y to hold numbers.*but got 1.5"),
    "missing": (lambda c: {"y": [None] * 12}, r"node \d+ has label -1.*np.isin\(y, range\(3\)\)"),
    "label high": (lambda c: {"y": change(c["y"], 4, 3)}, "labels from 0 to 2.*node 4 has label 3"),
    "label low": (lambda c: {"y": change(c["y"], 4, -2)}, "node 4 has label -2.*clamp"),
    "unknown": (lambda c: {"y": change(c["y"], 4, -1), "mask": None}, "node 4 has label -1.*mask="),
    "float labels": (lambda c: {"y": c["y"].double()}, "y to hold integers.*float64"),
    "few labels": (lambda c: {"y": c["y"][:-1]}, r"for each of the 12 rows of probs, but got shape \(11,\)"),
    "one-hot": (lambda c: {"y": torch.eye(12, 3).long()}, r"\(12, 3\).*y.argmax"),
    "prediction high": (
        lambda c: {"predictions": change(c["y"], 4, 3)},
        "predictions to hold labels from 0 to 2.*node 4 has label 3",
    ),
    "prediction low": (lambda c: {"predictions": change(c["y"], 4, -2)}, r"node 4 has label -2.*predictions.clamp"),
    "predictions from 1": (lambda c: {"predictions": c["y"] + 1}, r"np.maximum\(np.asarray\(predictions\), 0\) - 1"),
    "no prediction": (
        lambda c: {"predictions": change(c["y"], 4, -1), "mask": None},
        r"predictions to hold .*node 4 has label -1.*mask=np.isin\(predictions, range\(3\)\)",
    ),
    "no prediction of a neighbor": (
        lambda c: {"predictions": torch.where(c["mask"], c["y"], -1), "edge_choice": "any"},
        "predictions .*edge_choice='any' .* has label -1.*edge_choice='both'",
    ),
    "few predictions": (lambda c: {"predictions": c["y"][:-1]}, r"predictions .*12 rows of probs, .*\(11,\)"),
    "scores as predictions": (lambda c: {"predictions": c["probs"]}, r"\(12, 3\).*predictions.argmax"),
    "float predictions": (lambda c: {"predictions": c["y"].double()}, "predictions to hold integers.*float64"),
    "text predictions": (lambda c: {"predictions": ["a"] * 12}, "predictions to hold numbers.*'a'.*class_names="),
    "result of map_labels": (
        lambda c: {"predictions": ew.map_labels(ew.PairwiseMRF(c["probs"], [[0], [1]], torch.eye(3).double()))},
        r"labels, convergence = ew.map_labels",
    ),
    "edge high": (lambda c: {"edge_index": change(c["edge_index"], (1, 2), 12)}, "nodes from 0 to 11, but edge 2 is"),
    "edge low": (lambda c: {"edge_index": change(c["edge_index"], (0, 2), -1)}, r"edge 2 is \[-1, "),
    "edges transposed": (lambda c: {"edge_index": c["edge_index"].T}, r"shape \(2, edges\).*edge_index.T"),
    "edges flat": (lambda c: {"edge_index": c["edge_index"][0]}, r"shape \(2, edges\)"),
    "float edges": (lambda c: {"edge_index": c["edge_index"].double()}, "edge_index to hold integers"),
    "bool edges": (lambda c: {"edge_index": c["edge_index"] > 3}, "edge_index to hold integers.*bool"),
    "short mask": (lambda c: {"mask": c["mask"][:-1]}, r"mask of shape \(12,\).*\(11,\)"),
    "index mask": (lambda c: {"mask": torch.tensor([0, 3])}, r"one boolean.*np.isin\(np.arange\(12\), mask\)"),
    "joint shape": (lambda c: {"edge_probs": joints_of(c)[1:]}, r"edge_probs of shape \(edges, classes, classes\)"),
    "joint sum": (lambda c: {"edge_probs": joints_of(c) * 2}, "edge 0 of edge_probs sums to 2"),
    "joint NaN": (lambda c: {"edge_probs": change(joints_of(c), (9, 0, 1), float("nan"))}, "edge 9 of edge_probs"),
    "joint negative": (lambda c: {"edge_probs": change(joints_of(c), (9, 0, 1), -1.0)}, "edge 9 .* holds -1"),
    "n_bins 0": (lambda c: {"n_bins": 0}, "n_bins .* from 1 to 1000000, but got 0"),
    "rounded": (
        lambda c: {"probs": c["probs"] * 1.0003},
        r"row 0 of probs sums to 1.0003.*normalize=True",
    ),
    "percent": (lambda c: {"probs": c["probs"] * 100}, r"sums to 100.*/ 100"),
    "one column": (lambda c: {"probs": c["probs"][:, :1]}, r"row 0 of probs.*column_stack"),
    "sparse": (lambda c: {"probs": c["probs"].to_sparse()}, "dense tensor.*to_dense"),
    "from 1": (lambda c: {"edge_index": c["edge_index"].clamp(min=0) + 1}, "pass edge_index - 1"),
    "huge label": (lambda c: {"y": np.full(12, 2**64 - 1, dtype=np.uint64)}, "y to hold numbers below 2"),
    "many masks": (lambda c: {"mask": c["mask"][:, None].repeat(1, 3)}, r"mask\[:, k\]"),
    "longdouble": (lambda c: {"probs": c["probs"].numpy().astype(np.longdouble)}, "at most 64 bits"),
    "n_bins huge": (lambda c: {"n_bins": 10**14}, "n_bins .* but got 1000"),
    "seed": (lambda c: {"seed": -1}, "seed .* but got -1"),
    "seed None": (lambda c: {"seed": None}, "seed .* but got None"),
    "level": (lambda c: {"confidence_level": "high"}, "a number above 0 and below 1, but got 'high'"),
    "n_bins 1.5": (lambda c: {"n_bins": 1.5}, "n_bins .* but got 1.5"),
    "n_bins True": (lambda c: {"n_bins": True}, "n_bins .* but got True"),
    "binning": (lambda c: {"binning": "depth"}, "binning .* width, mass, but got 'depth'"),
    "norm": (lambda c: {"norm": "l3"}, "norm .* l1, l2, max, but got 'l3'"),
    "closed": (lambda c: {"closed": "both"}, "closed .* right, left, but got 'both'"),
    "edge_choice": (lambda c: {"edge_choice": "some"}, "edge_choice .* both, any, all, but got 'some'"),
    "n_resamples": (lambda c: {"n_resamples": -1}, "n_resamples .* but got -1"),
    "confidence_level": (
        lambda c: {"n_resamples": 5, "confidence_level": 95},
        "a number above 0 and below 1, but got 95",
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["tensors", "compiled"])
@pytest.mark.parametrize("name", INVALID)
def test_evaluate_rejects_invalid_input(name, compiled, monkeypatch):
    monkeypatch.setattr(dispatch, "MIN_COMPILED_LENGTH", 0 if compiled else 1 << 62)
    changes, message = INVALID[name]
    case = valid_inputs()
    case |= changes(case)
    with pytest.raises(ValueError, match=message):
        ew.evaluate(**case)


@pytest.mark.parametrize("name", ["NaN", "label high", "prediction high", "edge high", "short mask", "joint sum"])
def test_module_rejects_invalid_input_and_keeps_its_sums(name):
    changes, message = INVALID[name]
    metric = ew.GraphCalibration()
    metric.update(**valid_inputs())
    before = metric.tables.clone()
    case = valid_inputs()
    with pytest.raises(ValueError, match=message):
        metric.update(**case | changes(case))
    assert torch.equal(metric.tables, before)


def test_module_rejects_invalid_options():
    for options, message in [
        ({"n_bins": 0}, "n_bins"),
        ({"norm": "l3"}, "norm"),
        ({"closed": "x"}, "closed"),
        ({"edge_choice": "some"}, "edge_choice"),
    ]:
        with pytest.raises(ValueError, match=message):
            ew.GraphCalibration(**options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_probabilities_rounded_to_a_dtype_are_valid(dtype):
    g = torch.Generator().manual_seed(0)
    for num_classes in (2, 40, 1000):
        probs = torch.randn(200, num_classes, generator=g).softmax(-1).to(dtype)
        y = torch.randint(num_classes, (200,), generator=g)
        ew.evaluate(probs, y, torch.randint(200, (2, 100), generator=g))


@pytest.mark.parametrize("as_type", [np.int8, np.int32, np.uint8, np.uint16, np.uint32, ">i8"])
def test_any_integer_dtype_is_valid(as_type):
    case = valid_inputs()
    expected = ew.evaluate(**case).to_dict()
    arrays = {name: value.numpy() for name, value in case.items()}
    arrays["y"], arrays["edge_index"] = arrays["y"].astype(as_type), arrays["edge_index"].astype(as_type)
    np.testing.assert_equal(ew.evaluate(**arrays).to_dict(), expected)


def test_arrays_of_any_layout_and_read_only_arrays():
    case = valid_inputs()
    expected = ew.evaluate(**case).to_dict()
    probs = np.asfortranarray(case["probs"].numpy())[:, ::1]
    probs.flags.writeable = False
    edge_index = case["edge_index"].numpy()[:, ::-1][:, ::-1]
    np.testing.assert_equal(ew.evaluate(probs, case["y"], edge_index, mask=case["mask"].numpy()).to_dict(), expected)
    with_gradient = case["probs"].clone().requires_grad_()
    np.testing.assert_equal(ew.evaluate(**case | {"probs": with_gradient}).to_dict(), expected)
