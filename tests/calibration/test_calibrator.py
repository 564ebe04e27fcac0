"""What all calibrators keep to: who is looked at, what goes in, what comes out, and what is refused."""

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
from edgewise.calibration.calibration_input import minimize
from edgewise.inference import PairwiseMRF, sum_product
from edgewise.metrics import evaluate
from edgewise.models.gcn import GCN
from edgewise.posterior import IndependentPosterior, MixturePosterior
from helpers.calibrators import CALIBRATOR_CLASSES, assert_same_bits, every_calibrator, parametrize_calibrators

# Who is held out is drawn for numbered nodes, and the weights of CaGCN for numbered classes.
without_draws = parametrize_calibrators(lambda calibrator: "epochs" not in repr(calibrator))
without_weights_of_classes = parametrize_calibrators(lambda calibrator: not isinstance(calibrator, CaGCN))


def with_labels(case, y):
    return SimpleNamespace(x=case.data.x, edge_index=case.data.edge_index, y=y)


# Who is looked at.


@every_calibrator
def test_labels_of_other_nodes_are_never_looked_at(case, calibrator):
    other = ~(case.split.train | case.split.val)
    y = case.data.y
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    for changed in ((y + 1) % 3, torch.full_like(y, -1), torch.full_like(y, 99)):
        data = with_labels(case, torch.where(other, changed, y))
        assert_same_bits(calibrator.fit(case.logits, data, case.split).posterior(), usual)


@every_calibrator
def test_labels_of_validation_nodes_are_looked_at(case, calibrator):
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    data = with_labels(case, torch.where(case.split.val, (case.data.y + 1) % 3, case.data.y))
    assert not torch.equal(calibrator.fit(case.logits, data, case.split).posterior().node, usual.node)


@without_weights_of_classes
def test_names_of_classes_do_not_matter(case, calibrator):
    order = torch.tensor([2, 0, 1])
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    place = order.argsort()
    renamed = calibrator.fit(case.logits[:, order], with_labels(case, place[case.data.y]), case.split).posterior()
    torch.testing.assert_close(renamed.node, usual.node[:, order], atol=1e-5, rtol=0.0)


@without_draws
def test_names_of_nodes_do_not_matter(case, calibrator):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    data = SimpleNamespace(x=case.data.x[order], y=case.data.y[order], edge_index=place[case.data.edge_index])
    split = SimpleNamespace(train=case.split.train[order], val=case.split.val[order])
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    renamed = calibrator.fit(case.logits[order], data, split).posterior()
    torch.testing.assert_close(renamed.node, usual.node[order], atol=1e-6, rtol=0.0)
    pairs = case.data.edge_index[:, ::7]
    torch.testing.assert_close(renamed.joint(place[pairs]), usual.joint(pairs), atol=1e-4, rtol=0.0)


# What goes in.


@every_calibrator
def test_arrays_are_as_good_as_tensors(case, calibrator):
    data = SimpleNamespace(**{name: getattr(case.data, name).numpy() for name in ("x", "edge_index", "y")})
    split = SimpleNamespace(train=case.split.train.numpy(), val=case.split.val.numpy())
    found = calibrator.fit(case.logits.numpy(), data, split).posterior()
    assert_same_bits(found, calibrator.fit(case.logits, case.data, case.split).posterior())


@every_calibrator
def test_edges_may_be_listed_in_any_way(case, calibrator):
    edges = case.data.edge_index
    once = edges[:, edges[0] > edges[1]].flip(1)
    loops = torch.arange(60).expand(2, -1)
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    for listed in (once, torch.cat([edges, loops, edges[:, :5]], dim=1)):
        data = SimpleNamespace(x=case.data.x, y=case.data.y, edge_index=listed)
        assert_same_bits(calibrator.fit(case.logits, data, case.split).posterior(), usual)


@every_calibrator
def test_a_posterior_counts_as_the_logarithms_of_its_marginals(case, calibrator):
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
def test_nodes_that_are_certain_stay_finite(case, calibrator):
    p = case.logits.softmax(-1)
    p[case.split.train] = torch.nn.functional.one_hot(case.data.y[case.split.train], 3).double()
    found = calibrator.fit(IndependentPosterior(p), case.data, case.split).posterior()
    assert all(bool(tensor.isfinite().all()) for tensor in found.tensors().values())
    torch.testing.assert_close(found.node.sum(1), torch.ones(60, dtype=torch.float64))


@every_calibrator
@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e8])
def test_logits_of_any_size_stay_finite(case, calibrator, scale):
    found = calibrator.fit(scale * case.logits, case.data, case.split).posterior()
    assert bool(found.node.isfinite().all()) and bool(found.joint(case.data.edge_index).isfinite().all())


@every_calibrator
def test_gradients_and_inference_mode_do_not_matter(case, calibrator):
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


# What comes out.


@every_calibrator
def test_nothing_that_goes_in_is_changed(case, calibrator):
    before = [part.clone() for part in (case.logits, case.data.y, case.data.x, case.data.edge_index, case.split.val)]
    calibrator.fit(case.logits, case.data, case.split).posterior()
    after = [case.logits, case.data.y, case.data.x, case.data.edge_index, case.split.val]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@every_calibrator
def test_dtype_and_device_are_kept(case, calibrator):
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
def test_a_calibrator_is_its_options(calibrator):
    assert eval(repr(calibrator), dict(CALIBRATOR_CLASSES)) == calibrator
    with pytest.raises(AttributeError):
        calibrator.seed = 1


def test_a_quadratic_form_has_its_minimum_where_linear_algebra_says():
    g = torch.Generator().manual_seed(0)
    root, target = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((6, 4), (6,)))
    found = minimize(lambda at: (root @ at - target).square().sum(), [0.0] * 4)
    np.testing.assert_allclose(found, np.linalg.lstsq(root.numpy(), target.numpy())[0], atol=1e-6)


# What is refused.


TEMPERATURE = TemperatureScaling()


def refused(words, case, logits=None, calibrator=TEMPERATURE, data=None, split=None):
    with pytest.raises(ValueError, match=re.escape(words)):
        calibrator.fit(case.logits if logits is None else logits, data or case.data, split or case.split).posterior()


def test_probabilities_are_no_logits(case):
    words = "Expected logits, but these are probabilities: each row sums to 1. Pass a posterior of them: ew.wrap(probs)"
    for p in (case.logits.softmax(-1), case.logits.float().softmax(-1), case.logits.softmax(-1).numpy()):
        refused(words, case, p)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_must_be_finite(case, value):
    case.logits[7, 1] = value
    refused("Expected finite logits, but those of node 7 hold NaN or infinity. If they are logarithms of prob", case)


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (torch.zeros(60), "of two classes at least, but got shape (60,) and dtype torch.float32."),
        (torch.zeros(60, 1), "but got shape (60, 1)"),
        (torch.zeros(0, 3), "but got shape (0, 3)"),
        (torch.zeros(2, 60, 3), "but got shape (2, 60, 3)"),
        (torch.zeros(60, 3, dtype=torch.long), "Expected floating-point logits of shape (nodes, classes)"),
        (
            torch.zeros(59, 3),
            "one label for each of the 59 rows of the logits, but got shape (60,). Both have an en",
        ),
        (torch.zeros(60, 2), "Expected labels below 2, the number of columns of the logits, but got 2."),
        (torch.zeros(60, 3).to_sparse(), "Expected logits to be a dense tensor with values."),
        ([[0.0] * 3] * 60, "Expected logits to be a tensor or a NumPy array, but got list."),
        (torch.nn.Linear(2, 2), "ew.wrap(module, data)"),
        (IndependentPosterior(torch.full((4, 60, 3), 1 / 3)), "Expected one posterior, but got a batch of shape (4,)."),
    ],
)
def test_what_are_no_logits_is_refused(case, logits, words):
    refused(words, case, logits)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (None, "Expected data with labels y, but SimpleNamespace has none."),
        (torch.zeros(59, dtype=torch.long), "for each of the 60 rows of the logits, but got shape (59,)."),
        (
            torch.zeros(60, 3, dtype=torch.long),
            "but got shape (60, 3). For one-hot labels pass y.argmax(-1).",
        ),
        (torch.zeros(60), "Expected y to hold integers, but got dtype torch.float32."),
        (torch.full((60,), -1), "Expected a label for each val node, but that of node 1 is unknown (-1)."),
        (torch.full((60,), -2), "node 0 has label -2"),
        (torch.full((60,), 3), "Expected labels below 3, the number of columns of the logits, but got 3."),
    ],
)
def test_what_are_no_labels_is_refused(case, y, words):
    refused(words, case, data=with_labels(case, y))


def test_what_is_no_data_is_refused(case):
    refused("Expected data with labels y, but Tensor has none.", case, data=torch.ones(1))


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ({"val": None}, "Expected a split with at least one val node, but a SimpleNamespace has none."),
        (
            {"val": torch.zeros(60, dtype=torch.bool)},
            "Expected a split with at least one val node, but the mask is",
        ),
        ({"val": torch.arange(60)}, "Expected val to hold booleans, one per node, but got dtype torch.int64"),
        ({"val": torch.ones(59, dtype=torch.bool)}, "Expected val of shape (60,), one entry per node, but got (59,)."),
        ({"val": torch.ones(60, dtype=torch.bool)}, "validation nodes to differ, but node 0 is in both. A model is s"),
    ],
)
def test_what_is_no_split_is_refused(case, masks, words):
    refused(words, case, split=SimpleNamespace(**{"train": case.split.train, "val": case.split.val, **masks}))


LOOKING_AROUND = [LocalScaling(), CaGCN(), GATS(), StructuredCalibrator()]


@pytest.mark.parametrize("calibrator", LOOKING_AROUND, ids=lambda calibrator: type(calibrator).__name__)
def test_a_graph_is_needed_to_look_around(case, calibrator):
    words = "Expected data with an edge_index, for this calibrator looks at neighbors, but got none."
    refused(words, case, calibrator=calibrator, data=SimpleNamespace(y=case.data.y))
    outside = SimpleNamespace(y=case.data.y, edge_index=torch.tensor([[0, 60], [1, 2]]))
    refused("hold nodes from 0 to 59, but edge 1 is [60, 2].", case, calibrator=calibrator, data=outside)


def test_no_graph_is_needed_to_look_at_single_nodes(case):
    for calibrator in (TemperatureScaling(), VectorScaling(), EnsembleTemperatureScaling(), IsotonicCalibration()):
        found = calibrator.fit(case.logits, SimpleNamespace(y=case.data.y), case.split).posterior()
        assert_same_bits(found, calibrator.fit(case.logits, case.data, case.split).posterior())


def test_a_trained_model_is_calibrated(case):
    """From fit to a calibrated posterior, with nothing in between."""
    fitted = GCN(hidden=4, max_epochs=3).fit(case.data, case.split)
    found = StructuredCalibrator().fit(fitted, case.data, case.split).posterior()
    assert torch.equal(found.node.argmax(1), fitted.posterior().node.argmax(1))
    assert_same_bits(found, StructuredCalibrator().fit(fitted.logits, case.data, case.split).posterior())
    of_posterior = StructuredCalibrator().fit(fitted.posterior(), case.data, case.split).posterior()
    torch.testing.assert_close(of_posterior.node, found.node, atol=1e-4, rtol=0.0)


@every_calibrator
def test_validation_labels_that_are_all_right_make_no_label_impossible(calibrator, case):
    """Where a likelihood alone would be certain; of a model that is as sure as one can be."""
    y, val = case.data.y, case.split.val
    sure = one_hot(case.logits.argmax(1), 3).double()
    sure[val] = one_hot(y[val], 3).double()
    posterior = calibrator.fit(IndependentPosterior(sure), case.data, case.split).posterior()
    test = ~(val | case.split.train)
    assert int((sure[test].argmax(1) != y[test]).sum()) > 3
    ev = evaluate(posterior, y, case.data.edge_index, mask=test)
    as_given = -float(sure.clamp(min=torch.finfo(torch.float64).tiny).log()[test, y[test]].mean())
    assert ev.nodewise.nll < as_given / 5
    assert math.isfinite(ev.edgewise.nll)
