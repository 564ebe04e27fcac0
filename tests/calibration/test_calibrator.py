"""Behavior that all calibrators share: labels used, accepted inputs, outputs, and input checks."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from edgewise import (
    GATS,
    CaGCN,
    EnsembleTemperatureScaling,
    IsotonicCalibration,
    LocalScaling,
    StructuredCalibrator,
    TemperatureScaling,
    VectorScaling,
)
from edgewise.calibration.calibration_input import LBFGS_TOLERANCE
from edgewise.inference import PairwiseMRF, sum_product
from edgewise.metrics import evaluate
from edgewise.models.gcn import GCN
from edgewise.models.training import minimize_lbfgs
from edgewise.posterior import IndependentPosterior, MixturePosterior
from helpers.calibrators import CALIBRATOR_CLASSES, assert_same_bits, every_calibrator, parametrize_calibrators

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

# The choice of early-stopping nodes depends on the order of nodes, and the initial weights of CaGCN on that of classes.
order_invariant = parametrize_calibrators(lambda calibrator: "epochs" not in repr(calibrator))
class_order_invariant = parametrize_calibrators(lambda calibrator: not isinstance(calibrator, CaGCN))


def with_labels(case, y):
    return SimpleNamespace(x=case.data.x, edge_index=case.data.edge_index, y=y)


# Labels.


@every_calibrator
def test_labels_of_other_nodes_are_not_used(case, calibrator):
    other = ~(case.split.train | case.split.val)
    y = case.data.y
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    for changed in ((y + 1) % 3, torch.full_like(y, -1), torch.full_like(y, 99)):
        data = with_labels(case, torch.where(other, changed, y))
        assert_same_bits(calibrator.fit(case.logits, data, case.split).posterior(), usual)


@every_calibrator
def test_labels_of_validation_nodes_are_used(case, calibrator):
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    data = with_labels(case, torch.where(case.split.val, (case.data.y + 1) % 3, case.data.y))
    assert not torch.equal(calibrator.fit(case.logits, data, case.split).posterior().node, usual.node)


@class_order_invariant
def test_permuting_classes_permutes_the_result(case, calibrator):
    order = torch.tensor([2, 0, 1])
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    inverse = order.argsort()
    renamed = calibrator.fit(case.logits[:, order], with_labels(case, inverse[case.data.y]), case.split).posterior()
    torch.testing.assert_close(renamed.node, usual.node[:, order], atol=1e-5, rtol=0.0)


@order_invariant
def test_permuting_nodes_permutes_the_result(case, calibrator):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    inverse = order.argsort()
    data = SimpleNamespace(x=case.data.x[order], y=case.data.y[order], edge_index=inverse[case.data.edge_index])
    split = SimpleNamespace(train=case.split.train[order], val=case.split.val[order])
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    renamed = calibrator.fit(case.logits[order], data, split).posterior()
    torch.testing.assert_close(renamed.node, usual.node[order], atol=1e-6, rtol=0.0)
    pairs = case.data.edge_index[:, ::7]
    torch.testing.assert_close(renamed.joint(inverse[pairs]), usual.joint(pairs), atol=1e-4, rtol=0.0)


# Inputs.


@every_calibrator
def test_numpy_arrays_give_the_same_bits(case, calibrator):
    data = SimpleNamespace(**{name: getattr(case.data, name).numpy() for name in ("x", "edge_index", "y")})
    split = SimpleNamespace(train=case.split.train.numpy(), val=case.split.val.numpy())
    found = calibrator.fit(case.logits.numpy(), data, split).posterior()
    assert_same_bits(found, calibrator.fit(case.logits, case.data, case.split).posterior())


@every_calibrator
def test_direction_loops_and_repetition_of_edges_do_not_matter(case, calibrator):
    edges = case.data.edge_index
    once = edges[:, edges[0] > edges[1]].flip(1)
    loops = torch.arange(60).expand(2, -1)
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    for listed in (once, torch.cat([edges, loops, edges[:, :5]], dim=1)):
        data = SimpleNamespace(x=case.data.x, y=case.data.y, edge_index=listed)
        assert_same_bits(calibrator.fit(case.logits, data, case.split).posterior(), usual)


@every_calibrator
def test_posterior_is_calibrated_through_its_log_marginals(case, calibrator):
    first, second = case.logits.softmax(-1), case.logits.flip(0).softmax(-1)
    mean = 0.5 * first + 0.5 * second
    edges = case.data.edge_index[:, case.data.edge_index[0] < case.data.edge_index[1]]
    field, _ = sum_product(PairwiseMRF(case.logits, edges, 0.1 * torch.eye(3, dtype=torch.float64)))
    for posterior, marginals in (
        (IndependentPosterior(first), first),
        (MixturePosterior(torch.stack([first, second])), mean),
        (field, field.node),
    ):
        found = calibrator.fit(posterior, case.data, case.split).posterior()
        expected = calibrator.fit(marginals.log(), case.data, case.split).posterior()
        torch.testing.assert_close(found.node, expected.node, atol=1e-6, rtol=0.0)


@every_calibrator
def test_certain_nodes_give_finite_results(case, calibrator):
    p = case.logits.softmax(-1)
    p[case.split.train] = torch.nn.functional.one_hot(case.data.y[case.split.train], 3).double()
    found = calibrator.fit(IndependentPosterior(p), case.data, case.split).posterior()
    assert all(bool(tensor.isfinite().all()) for tensor in found.tensors().values())
    torch.testing.assert_close(found.node.sum(1), torch.ones(60, dtype=torch.float64))


@every_calibrator
@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e8])
def test_extreme_logits_give_finite_results(case, calibrator, scale):
    found = calibrator.fit(scale * case.logits, case.data, case.split).posterior()
    assert bool(found.node.isfinite().all()) and bool(found.joint(case.data.edge_index).isfinite().all())


@every_calibrator
def test_grad_and_inference_mode_do_not_matter(case, calibrator):
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    assert_same_bits(calibrator.fit(case.logits.clone().requires_grad_(), case.data, case.split).posterior(), usual)
    with torch.inference_mode():
        logits, val = case.logits.clone(), case.split.val.clone()
        within = calibrator.fit(logits, case.data, case.split).posterior()
    assert_same_bits(within, usual)
    split = SimpleNamespace(train=case.split.train, val=val)
    assert_same_bits(calibrator.fit(logits, case.data, split).posterior(), usual)
    with torch.no_grad():
        assert_same_bits(calibrator.fit(case.logits, case.data, case.split).posterior(), usual)


# Outputs.


@every_calibrator
def test_inputs_are_not_modified(case, calibrator):
    before = [part.clone() for part in (case.logits, case.data.y, case.data.x, case.data.edge_index, case.split.val)]
    calibrator.fit(case.logits, case.data, case.split).posterior()
    after = [case.logits, case.data.y, case.data.x, case.data.edge_index, case.split.val]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@every_calibrator
def test_dtype_and_device_are_preserved(case, calibrator):
    rounded = case.logits.float()
    single = calibrator.fit(rounded, case.data, case.split).posterior()
    double = calibrator.fit(rounded.double(), case.data, case.split).posterior()
    assert single.node.dtype == torch.float32 and double.node.dtype == torch.float64
    assert single.node.device == rounded.device
    torch.testing.assert_close(single.node.double(), double.node, atol=1e-6, rtol=0.0)
    edges = case.data.edge_index
    torch.testing.assert_close(single.joint(edges).double(), double.joint(edges), atol=1e-5, rtol=0.0)
    assert calibrator.fit(rounded.half(), case.data, case.split).posterior().node.dtype == torch.float32


@every_calibrator
def test_parameters_and_posterior_have_no_gradient(case, calibrator):
    found = calibrator.fit(case.logits, case.data, case.split)
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in found.parameters.values())
    assert not found.posterior().node.requires_grad


@every_calibrator
def test_calibrator_is_frozen_and_rebuilt_from_repr(calibrator):
    assert eval(repr(calibrator), dict(CALIBRATOR_CLASSES)) == calibrator
    with pytest.raises(AttributeError):
        calibrator.seed = 1


def test_minimize_lbfgs_solves_least_squares():
    g = torch.Generator().manual_seed(0)
    root, target = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((6, 4), (6,)))
    found = minimize_lbfgs(lambda x: (root @ x - target).square().sum(), [0.0] * 4, tol=LBFGS_TOLERANCE)
    np.testing.assert_allclose(found, np.linalg.lstsq(root.numpy(), target.numpy())[0], atol=1e-6)


# Input checks.

TEMPERATURE = TemperatureScaling()


def assert_fit_raises(match, case, logits=None, calibrator=TEMPERATURE, data=None, split=None):
    with pytest.raises(ValueError, match=re.escape(match)):
        calibrator.fit(case.logits if logits is None else logits, data or case.data, split or case.split).posterior()


def test_probabilities_instead_of_logits_raise(case):
    match = "ew.wrap(probs)"
    for p in (case.logits.softmax(-1), case.logits.float().softmax(-1), case.logits.softmax(-1).numpy()):
        assert_fit_raises(match, case, p)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_must_be_finite(case, value):
    case.logits[7, 1] = value
    assert_fit_raises("those of node 7", case)


@pytest.mark.parametrize(
    ("logits", "match"),
    [
        (torch.zeros(60), "shape (60,) and dtype torch.float32"),
        (torch.zeros(60, 1), "but got shape (60, 1)"),
        (torch.zeros(0, 3), "but got shape (0, 3)"),
        (torch.zeros(2, 60, 3), "but got shape (2, 60, 3)"),
        (torch.zeros(60, 3, dtype=torch.long), "torch.int64"),
        (
            torch.zeros(59, 3),
            "59 rows of the logits",
        ),
        (torch.zeros(60, 2), "labels below 2"),
        (torch.zeros(60, 3).to_sparse(), "dense tensor"),
        ([[0.0] * 3] * 59 + [[0.0]], "logits as nested lists of one length"),
        (torch.nn.Linear(2, 2), "ew.wrap(module, data)"),
        (IndependentPosterior(torch.full((4, 60, 3), 1 / 3)), "Expected one posterior, but got a batch of shape (4,)."),
    ],
)
def test_invalid_logits_raise(case, logits, match):
    assert_fit_raises(match, case, logits)


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (None, "SimpleNamespace has none"),
        (torch.zeros(59, dtype=torch.long), "for each of the 60 rows of the logits, but got shape (59,)."),
        (
            torch.zeros(60, 3, dtype=torch.long),
            "but got shape (60, 3). For one-hot labels pass y.argmax(-1).",
        ),
        (torch.zeros(60), "Expected y to hold integers, but got dtype torch.float32."),
        (torch.full((60,), -1), "label for each val node, but the label of node 1"),
        (torch.full((60,), -2), "node 0 has label -2"),
        (torch.full((60,), 3), "labels below 3"),
    ],
)
def test_invalid_labels_raise(case, y, match):
    assert_fit_raises(match, case, data=with_labels(case, y))


def test_data_without_labels_raises(case):
    assert_fit_raises("Tensor has none", case, data=torch.ones(1))


@pytest.mark.parametrize(
    ("masks", "match"),
    [
        ({"val": None}, "SimpleNamespace has no mask val"),
        (
            {"val": torch.zeros(60, dtype=torch.bool)},
            "the mask is empty",
        ),
        ({"val": torch.arange(60)}, "For node indices pass np.isin(np.arange(60), val)."),
        ({"val": torch.ones(59, dtype=torch.bool)}, "Expected val of shape (60,), one entry per node, but got (59,)."),
        ({"val": torch.ones(60, dtype=torch.bool)}, "node 0 is in both"),
    ],
)
def test_invalid_splits_raise(case, masks, match):
    assert_fit_raises(match, case, split=SimpleNamespace(**{"train": case.split.train, "val": case.split.val, **masks}))


GRAPH_CALIBRATORS = [LocalScaling(), CaGCN(), GATS(), StructuredCalibrator()]


@pytest.mark.parametrize("calibrator", GRAPH_CALIBRATORS, ids=lambda calibrator: type(calibrator).__name__)
def test_graph_calibrators_need_edges(case, calibrator):
    match = "edge_index"
    assert_fit_raises(match, case, calibrator=calibrator, data=SimpleNamespace(y=case.data.y))
    outside = SimpleNamespace(y=case.data.y, edge_index=torch.tensor([[0, 60], [1, 2]]))
    assert_fit_raises("hold nodes from 0 to 59, but edge 1 is [60, 2].", case, calibrator=calibrator, data=outside)


def test_other_calibrators_need_no_edges(case):
    for calibrator in (TemperatureScaling(), VectorScaling(), EnsembleTemperatureScaling(), IsotonicCalibration()):
        found = calibrator.fit(case.logits, SimpleNamespace(y=case.data.y), case.split).posterior()
        assert_same_bits(found, calibrator.fit(case.logits, case.data, case.split).posterior())


def test_fitted_model_is_calibrated(case):
    """A fitted model can be passed in place of its logits."""
    fitted = GCN(hidden=4, max_epochs=3).fit(case.data, case.split)
    found = StructuredCalibrator().fit(fitted, case.data, case.split).posterior()
    assert torch.equal(found.node.argmax(1), fitted.posterior().node.argmax(1))
    assert_same_bits(found, StructuredCalibrator().fit(fitted.logits, case.data, case.split).posterior())
    of_posterior = StructuredCalibrator().fit(fitted.posterior(), case.data, case.split).posterior()
    torch.testing.assert_close(of_posterior.node, found.node, atol=1e-4, rtol=0.0)


@every_calibrator
def test_correct_validation_labels_leave_all_probabilities_positive(calibrator, case):
    """Maximum likelihood alone would give probability 0 to other labels, for a model that is certain everywhere."""
    y, val = case.data.y, case.split.val
    sure = one_hot(case.logits.argmax(1), 3).double()
    sure[val] = one_hot(y[val], 3).double()
    posterior = calibrator.fit(IndependentPosterior(sure), case.data, case.split).posterior()
    test = ~(val | case.split.train)
    assert int((sure[test].argmax(1) != y[test]).sum()) > 3
    ev = evaluate(posterior, y, case.data.edge_index, mask=test)
    uncalibrated = -float(sure.clamp(min=torch.finfo(torch.float64).tiny).log()[test, y[test]].mean())
    assert ev.nodewise.nll < uncalibrated / 5
    assert math.isfinite(ev.edgewise.nll)
