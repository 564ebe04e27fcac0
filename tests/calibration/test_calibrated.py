"""What `fit` returns: applied to other logits, read, saved and loaded; from a split with validation nodes alone."""

import math
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import edgewise as ew
from edgewise.calibration import NodeCalibrator, known_calibrators
from edgewise.calibration.calibrator import defined_calibrators
from edgewise.posterior import IndependentPosterior
from helpers.calibrators import assert_same_bits, every_calibrator

LOOKING_AROUND = [ew.LocalScaling(), ew.CaGCN(epochs=4), ew.GATS(epochs=4), ew.StructuredCalibrator()]
SINGLE_NODES = [ew.TemperatureScaling(), ew.VectorScaling(), ew.EnsembleTemperatureScaling(), ew.IsotonicCalibration()]


def grown(case, more=5):
    """Add nodes without edges, and their logits."""
    count = len(case.logits) + more
    extra = torch.linspace(-2, 3, 3 * more, dtype=torch.float64).view(more, 3)
    return torch.cat([case.logits, extra]), SimpleNamespace(edge_index=case.data.edge_index, num_nodes=count)


# Applied.


@every_calibrator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_applied_to_the_logits_of_fit_it_gives_the_same_bits(case, calibrator, dtype):
    logits = case.logits.to(dtype)
    calibrated = calibrator.fit(logits, case.data, case.split)
    assert_same_bits(calibrated.apply(logits, case.data), calibrated.posterior())
    graph = SimpleNamespace(edge_index=case.data.edge_index)  # neither labels nor features are needed
    assert_same_bits(calibrated.apply(logits, graph), calibrated.posterior())


@every_calibrator
def test_nodes_that_are_added_leave_others_as_they_are(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, SimpleNamespace(val=case.split.val))
    logits, graph = grown(case)
    found = calibrated.apply(logits, graph)
    assert found.num_nodes == 65
    torch.testing.assert_close(found.node[:60], calibrated.posterior().node, atol=1e-12, rtol=0.0)
    edges = case.data.edge_index
    torch.testing.assert_close(found.joint(edges), calibrated.posterior().joint(edges), atol=1e-9, rtol=0.0)


def test_a_temperature_is_that_of_fit(case):
    calibrated = ew.TemperatureScaling().fit(case.logits, case.data, case.split)
    other = case.logits.flip(0)[:7]
    expected = (other / calibrated.parameters["temperature"]).softmax(-1)
    torch.testing.assert_close(calibrated.apply(other).node, expected)
    torch.testing.assert_close(calibrated.apply(IndependentPosterior(other.softmax(-1))).node, expected)
    torch.testing.assert_close(calibrated.apply(SimpleNamespace(logits=other)).node, expected)


def test_spread_and_degree_are_relative_to_the_graph_of_fit(case):
    """T_i = T (s_i / s)^b ((1 + d_i) / d)^c, with geometric means s and d of the graph of fit, by a loop."""
    calibrated = ew.LocalScaling().fit(case.logits, case.data, case.split)
    logits, edges = 2 * case.logits[:3], torch.tensor([[0], [1]])
    found = calibrated.apply(logits, SimpleNamespace(edge_index=edges))
    degree = 1 + torch.bincount(case.data.edge_index[0], minlength=60).double()
    usual_spread, usual_degree = (x.log().mean().exp() for x in (case.logits.std(1, correction=0), degree))
    t, b, c = (calibrated.parameters[name] for name in ("temperature", "spread", "degree"))
    for i, neighbors in enumerate((1, 1, 0)):
        spread = logits[i].std(correction=0)
        own = t * (spread / usual_spread) ** b * ((1 + neighbors) / usual_degree) ** c
        torch.testing.assert_close(found.node[i], (logits[i] / own).softmax(-1))


def test_gats_remembers_training_nodes_on_the_graph_of_fit_alone(case):
    calibrated = ew.GATS(epochs=1).fit(case.logits, case.data, case.split)
    learned = {**calibrated.learned, "gamma": torch.tensor([0.5, 2.0], dtype=torch.float64)}
    calibrated = replace(calibrated, learned=learned)
    of_none = replace(calibrated, learned={**learned, "trained": torch.zeros(60, dtype=torch.bool)})
    logits, graph = grown(case)
    here, elsewhere = calibrated.apply(case.logits, case.data), calibrated.apply(logits, graph)
    torch.testing.assert_close(elsewhere.node[:60], of_none.apply(case.logits, case.data).node)
    assert not torch.allclose(here.node, elsewhere.node[:60])


@pytest.mark.parametrize("calibrator", LOOKING_AROUND, ids=lambda calibrator: calibrator.name)
def test_where_the_graph_matters_it_is_asked_for(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, case.split)
    with pytest.raises(ValueError, match=re.escape("Pass the graph that the logits are on")):
        calibrated.apply(case.logits)


@pytest.mark.parametrize("calibrator", SINGLE_NODES, ids=lambda calibrator: calibrator.name)
def test_where_it_does_not_matter_logits_are_enough(case, calibrator):
    calibrated = calibrator.fit(case.logits, SimpleNamespace(y=case.data.y), case.split)
    assert_same_bits(calibrated.apply(case.logits), calibrated.posterior())


@every_calibrator
def test_what_are_no_logits_is_refused(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, case.split)
    with pytest.raises(ValueError, match="Expected logits of 3 classes"):
        calibrated.apply(torch.randn(60, 4), case.data)
    with pytest.raises(ValueError, match="these are probabilities"):
        calibrated.apply(case.logits.softmax(-1), case.data)


# Saved and read.


@every_calibrator
def test_it_is_saved_and_loaded(case, calibrator, tmp_path):
    calibrated = calibrator.fit(case.logits.float(), case.data, case.split)
    calibrated.save(tmp_path / "calibrated.safetensors")
    again = ew.Calibrated.load(tmp_path / "calibrated.safetensors")
    assert again.calibrator == calibrator and repr(again) == repr(calibrated)
    assert_same_bits(again.posterior(), calibrated.posterior())
    logits, graph = grown(case)
    assert_same_bits(again.apply(logits, graph), calibrated.apply(logits, graph))
    assert again.parameters.keys() == calibrated.parameters.keys()
    for name, value in calibrated.parameters.items():
        assert type(again.parameters[name]) is type(value)
        assert torch.equal(torch.as_tensor(again.parameters[name]), torch.as_tensor(value))


@every_calibrator
def test_parameters_are_numbers_and_tensors_by_name(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, case.split)
    assert calibrated.parameters
    for name, value in calibrated.parameters.items():
        assert isinstance(name, str) and isinstance(value, float | torch.Tensor)
        assert bool(torch.as_tensor(value).isfinite().all())


def test_it_shows_calibrator_parameters_and_posterior(case):
    calibrated = ew.VectorScaling().fit(case.logits, case.data, case.split)
    t = calibrated.parameters["temperature"]
    assert repr(calibrated) == (
        f"Calibrated(VectorScaling(prior=1.0), temperature={t:.4g}, factor=[3], shift=[3], "
        "IndependentPosterior(nodes=60, classes=3))"
    )


def test_whatever_takes_a_belief_takes_it(case):
    calibrated = ew.StructuredCalibrator().fit(case.logits, case.data, case.split)
    mask = case.split.val
    y, edges = case.data.y, case.data.edge_index
    found, expected = (ew.evaluate(p, y, edges, mask=mask) for p in (calibrated, calibrated.posterior()))
    assert found.edgewise.nll == expected.edgewise.nll
    twice = ew.TemperatureScaling().fit(calibrated, case.data, case.split)
    assert twice.parameters["temperature"] == pytest.approx(1.0, rel=0.5)


def spoilt(path, **metadata):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        words = file.metadata()
    save_file(load_file(path), path, metadata={**words, **metadata})


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"calibrator": '{"name": "warmth", "options": {}}'}, "Import the module that defines it before you load it"),
        ({"calibrator": '{"name": "vector", "options": {"prior": -1.0}}'}, "Expected prior to be a number above 0"),
        ({"calibrator": "[1"}, "Expected a whole fitted calibrator in"),
        ({"posterior": "MixturePosterior"}, "Expected a whole fitted calibrator in"),
        ({"tensors": "{}"}, "its tensors are not as they were saved"),
        ({"format": "edgewise calibrated 0"}, "Expected a file that Calibrated.save wrote"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(case, tmp_path, metadata, words):
    path = tmp_path / "calibrated.safetensors"
    ew.VectorScaling().fit(case.logits, case.data, case.split).save(path)
    spoilt(path, **metadata)
    with pytest.raises(ValueError, match=re.escape(words)):
        ew.Calibrated.load(path)


def test_a_posterior_is_no_fitted_calibrator(case, tmp_path):
    IndependentPosterior(case.logits.softmax(-1)).save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match=re.escape("Expected a file that Calibrated.save wrote")):
        ew.Calibrated.load(tmp_path / "p.safetensors")
    with pytest.raises(FileNotFoundError):
        ew.Calibrated.load(tmp_path / "none.safetensors")


# Known by name.


def test_calibrators_are_known_by_their_names():
    names = {"temperature", "vector", "ensemble", "isotonic", "local", "cagcn", "gats", "structured"}
    known = known_calibrators()
    assert list(known) == sorted(names)
    assert all(known[name].name == name and getattr(ew, known[name].__name__) is known[name] for name in names)


def test_a_calibrator_of_ones_own_is_known_saved_and_loaded(case, tmp_path):
    @dataclass(frozen=True)
    class Cautious(NodeCalibrator):
        """Believe nothing."""

        name = "cautious"

        def learn_parameters(self, given):
            return {"share": 1 / given.val_logits.shape[1]}

        def log_marginals(self, learned, predictions):
            return learned["share"].log().expand(predictions.logits.shape)

    assert defined_calibrators()["cautious"] is Cautious and "cautious" not in known_calibrators()
    Cautious().fit(case.logits, case.data, case.split).save(tmp_path / "cautious")
    again = ew.Calibrated.load(tmp_path / "cautious")
    torch.testing.assert_close(again.apply(case.logits).node, torch.full((60, 3), 1 / 3, dtype=torch.float64))

    @dataclass(frozen=True)
    class Bold(Cautious):
        name = "cautious"

    with pytest.raises(ValueError, match="Expected one calibrator named 'cautious'"):
        defined_calibrators()
    Bold.name = "bold"


# Validation nodes alone.


@every_calibrator
def test_a_split_with_validation_nodes_alone_is_enough(case, calibrator):
    alone, empty = SimpleNamespace(val=case.split.val), torch.zeros(60, dtype=torch.bool)
    found = calibrator.fit(case.logits, case.data, alone).posterior()
    assert_same_bits(
        calibrator.fit(case.logits, case.data, SimpleNamespace(val=alone.val, train=empty)).posterior(), found
    )
    assert bool((found.node > 0).all())


@every_calibrator
def test_training_labels_are_looked_at_only_by_those_that_say_so(case, calibrator):
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    y = torch.where(case.split.train, -1, case.data.y)
    data = SimpleNamespace(x=case.data.x, edge_index=case.data.edge_index, y=y)
    if calibrator.uses_training_labels:
        with pytest.raises(ValueError, match="Expected a label for each train node, but that of node 0 is unknown"):
            calibrator.fit(case.logits, data, case.split)
    else:
        assert_same_bits(calibrator.fit(case.logits, data, case.split).posterior(), usual)


def test_without_training_nodes_edges_between_validation_nodes_tell_the_coupling(case):
    alone = SimpleNamespace(val=case.split.val)
    found = ew.StructuredCalibrator().fit(case.logits, case.data, alone).parameters
    within = case.split.val[case.data.edge_index].all(0)
    data = SimpleNamespace(x=case.data.x, y=case.data.y, edge_index=case.data.edge_index[:, within])
    assert within.any() and found["coupling"] != 0.0
    expected = ew.StructuredCalibrator(ew.TemperatureScaling()).fit(case.logits, data, alone).parameters
    again = ew.StructuredCalibrator(ew.TemperatureScaling()).fit(case.logits, case.data, alone).parameters
    assert (again["coupling"], again["surplus"]) == (expected["coupling"], expected["surplus"])


# No label is impossible.


def assert_nothing_impossible(posterior, data, mask):
    assert bool((posterior.node > 0).all())
    torch.testing.assert_close(posterior.node.sum(1), torch.ones(len(data.y), dtype=posterior.node.dtype))
    ev = ew.evaluate(posterior, data.y, data.edge_index, mask=mask, same_label=True)
    # In float64 two probabilities of 1e-308 have no product, of which P(same) is the sum.
    views = [ev.nodewise, ev.edgewise] + [ev.same_label] * (posterior.node.dtype == torch.float32)
    assert all(math.isfinite(view.nll) for view in views)


def test_gats_gives_no_true_label_probability_zero_where_nodes_are_far_surer_than_validation_nodes(case):
    """A temperature of about 1 from validation nodes, and others whose logits differ by hundreds."""
    logits = torch.where(case.split.val[:, None], 0.2 * case.logits, 50 * case.logits).float()
    calibrated = ew.GATS().fit(logits, case.data, case.split)
    spread = (logits.amax(1) - logits.amin(1)) / calibrated.parameters["temperatures"]
    assert float(spread.max()) > 110  # so that exp(-spread) is 0 in float32
    assert_nothing_impossible(calibrated.posterior(), case.data, ~(case.split.train | case.split.val))


@every_calibrator
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10_000),
    size=st.floats(-3, 12),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_no_label_gets_probability_zero(make_case, calibrator, seed, size, dtype):
    """Logits of any size; the more they are, the surer of many wrong labels."""
    case = make_case(seed)
    logits = (10.0**size * case.logits).clamp(min=-6e4, max=6e4) if dtype == torch.float16 else 10.0**size * case.logits
    posterior = calibrator.fit(logits.to(dtype), case.data, case.split).posterior()
    assert_nothing_impossible(posterior, case.data, case.data.y >= 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nodes", [ew.GATS(), ew.TemperatureScaling(), ew.LocalScaling()], ids=lambda nodes: nodes.name)
def test_no_label_of_predictions_surer_than_those_of_fit_gets_probability_zero(case, nodes, dtype):
    for calibrator in (nodes, ew.StructuredCalibrator(nodes)):
        calibrated = calibrator.fit(case.logits.to(dtype), case.data, case.split)
        for scale in (30, 1e3, 1e5):
            posterior = calibrated.apply(scale * case.logits.to(dtype), case.data)
            assert_nothing_impossible(posterior, case.data, case.data.y >= 0)
