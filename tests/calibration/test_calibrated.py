"""`Calibrated`: application to other logits, parameters, saving and loading, and positive probabilities."""

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

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose

GRAPH_CALIBRATORS = [ew.LocalScaling(), ew.CaGCN(epochs=4), ew.GATS(epochs=4), ew.StructuredCalibrator()]
OTHER_CALIBRATORS = [
    ew.TemperatureScaling(),
    ew.VectorScaling(),
    ew.EnsembleTemperatureScaling(),
    ew.IsotonicCalibration(),
]


def add_isolated_nodes(case, num_added=5):
    """Return logits and a graph with added nodes that have no edges."""
    count = len(case.logits) + num_added
    extra = torch.linspace(-2, 3, 3 * num_added, dtype=torch.float64).view(num_added, 3)
    return torch.cat([case.logits, extra]), SimpleNamespace(edge_index=case.data.edge_index, num_nodes=count)


# Apply.


@every_calibrator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_apply_to_the_logits_of_fit_gives_the_same_bits(case, calibrator, dtype):
    logits = case.logits.to(dtype)
    calibrated = calibrator.fit(logits, case.data, case.split)
    assert_same_bits(calibrated.apply(logits, case.data), calibrated.posterior())
    graph = SimpleNamespace(edge_index=case.data.edge_index)  # neither labels nor features are needed
    assert_same_bits(calibrated.apply(logits, graph), calibrated.posterior())


@every_calibrator
def test_added_isolated_nodes_do_not_change_others(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, SimpleNamespace(val=case.split.val))
    logits, graph = add_isolated_nodes(case)
    found = calibrated.apply(logits, graph)
    assert found.num_nodes == 65
    torch.testing.assert_close(found.node[:60], calibrated.posterior().node, atol=1e-12, rtol=0.0)
    edges = case.data.edge_index
    torch.testing.assert_close(found.joint(edges), calibrated.posterior().joint(edges), atol=1e-9, rtol=0.0)


def test_apply_uses_the_fitted_temperature(case):
    calibrated = ew.TemperatureScaling().fit(case.logits, case.data, case.split)
    other = case.logits.flip(0)[:7]
    expected = (other / calibrated.parameters["temperature"]).softmax(-1)
    torch.testing.assert_close(calibrated.apply(other).node, expected)
    torch.testing.assert_close(calibrated.apply(IndependentPosterior(other.softmax(-1))).node, expected)
    torch.testing.assert_close(calibrated.apply(SimpleNamespace(logits=other)).node, expected)


def test_spread_and_degree_are_relative_to_the_graph_of_fit(case):
    """Compare with a loop: T_i = T (s_i / s)^b ((1 + d_i) / d)^c, with geometric means s and d of the graph of fit."""
    calibrated = ew.LocalScaling().fit(case.logits, case.data, case.split)
    logits, edges = 2 * case.logits[:3], torch.tensor([[0], [1]])
    found = calibrated.apply(logits, SimpleNamespace(edge_index=edges))
    degree = 1 + torch.bincount(case.data.edge_index[0], minlength=60).double()
    mean_spread, mean_degree = (x.log().mean().exp() for x in (case.logits.std(1, correction=0), degree))
    t, b, c = (calibrated.parameters[name] for name in ("temperature", "spread", "degree"))
    for i, neighbors in enumerate((1, 1, 0)):
        spread = logits[i].std(correction=0)
        own = t * (spread / mean_spread) ** b * ((1 + neighbors) / mean_degree) ** c
        torch.testing.assert_close(found.node[i], (logits[i] / own).softmax(-1))


def test_gats_uses_training_nodes_on_the_graph_of_fit_only(case):
    calibrated = ew.GATS(epochs=1).fit(case.logits, case.data, case.split)
    learned = {**calibrated.learned, "gamma": torch.tensor([0.5, 2.0], dtype=torch.float64)}
    calibrated = replace(calibrated, learned=learned)
    without_training = replace(calibrated, learned={**learned, "trained": torch.zeros(60, dtype=torch.bool)})
    logits, graph = add_isolated_nodes(case)
    here, elsewhere = calibrated.apply(case.logits, case.data), calibrated.apply(logits, graph)
    torch.testing.assert_close(elsewhere.node[:60], without_training.apply(case.logits, case.data).node)
    assert not torch.allclose(here.node, elsewhere.node[:60])


@pytest.mark.parametrize("calibrator", GRAPH_CALIBRATORS, ids=lambda calibrator: calibrator.name)
def test_graph_calibrators_need_data_in_apply(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, case.split)
    with pytest.raises(ValueError, match="edge_index"):
        calibrated.apply(case.logits)


@pytest.mark.parametrize("calibrator", OTHER_CALIBRATORS, ids=lambda calibrator: calibrator.name)
def test_other_calibrators_apply_to_logits_alone(case, calibrator):
    calibrated = calibrator.fit(case.logits, SimpleNamespace(y=case.data.y), case.split)
    assert_same_bits(calibrated.apply(case.logits), calibrated.posterior())


@every_calibrator
def test_invalid_logits_raise_in_apply(case, calibrator):
    calibrated = calibrator.fit(case.logits, case.data, case.split)
    with pytest.raises(ValueError, match="Expected logits of 3 classes"):
        calibrated.apply(torch.randn(60, 4), case.data)
    with pytest.raises(ValueError, match=re.escape("ew.wrap(probs)")):
        calibrated.apply(case.logits.softmax(-1), case.data)


# Parameters and files.


@every_calibrator
def test_save_and_load_round_trip(case, calibrator, tmp_path):
    calibrated = calibrator.fit(case.logits.float(), case.data, case.split)
    calibrated.save(tmp_path / "calibrated.safetensors")
    again = ew.Calibrated.load(tmp_path / "calibrated.safetensors")
    assert again.calibrator == calibrator and repr(again) == repr(calibrated)
    assert_same_bits(again.posterior(), calibrated.posterior())
    logits, graph = add_isolated_nodes(case)
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


def test_repr_shows_calibrator_parameters_and_posterior(case):
    calibrated = ew.VectorScaling(prior=2.0).fit(case.logits, case.data, case.split)
    t = calibrated.parameters["temperature"]
    assert repr(calibrated) == (
        f"Calibrated(VectorScaling(prior=2.0), temperature={t:.4g}, factor=[3], shift=[3], "
        "IndependentPosterior(nodes=60, classes=3))"
    )


def test_calibrated_is_accepted_as_posterior(case):
    calibrated = ew.StructuredCalibrator().fit(case.logits, case.data, case.split)
    mask = case.split.val
    y, edges = case.data.y, case.data.edge_index
    found, expected = (ew.evaluate(p, y, edges, mask=mask) for p in (calibrated, calibrated.posterior()))
    assert found.edgewise.nll == expected.edgewise.nll
    twice = ew.TemperatureScaling().fit(calibrated, case.data, case.split)
    assert twice.parameters["temperature"] == pytest.approx(1.0, rel=0.5)


def rewrite_metadata(path, **metadata):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        saved = file.metadata()
    save_file(load_file(path), path, metadata={**saved, **metadata})


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"calibrator": '{"name": "warmth", "options": {}}'}, "Import the module that defines it"),
        ({"calibrator": '{"name": "vector", "options": {"prior": -1.0}}'}, "Expected prior to be a number above 0"),
        ({"calibrator": "[1"}, "Expected a complete fitted calibrator in"),
        ({"posterior": "MixturePosterior"}, "Expected a complete fitted calibrator in"),
        ({"tensors": "{}"}, "its tensors do not have the saved shapes"),
        ({"format": "edgewise calibrated 0"}, "Expected a file that Calibrated.save wrote"),
    ],
)
def test_damaged_files_raise(case, tmp_path, metadata, match):
    path = tmp_path / "calibrated.safetensors"
    ew.VectorScaling().fit(case.logits, case.data, case.split).save(path)
    rewrite_metadata(path, **metadata)
    with pytest.raises(ValueError, match=re.escape(match)):
        ew.Calibrated.load(path)


def test_loading_another_file_raises(case, tmp_path):
    IndependentPosterior(case.logits.softmax(-1)).save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match=re.escape("Expected a file that Calibrated.save wrote")):
        ew.Calibrated.load(tmp_path / "p.safetensors")
    with pytest.raises(FileNotFoundError):
        ew.Calibrated.load(tmp_path / "none.safetensors")


# Names.


def test_known_calibrators_are_exported_by_name():
    names = {"temperature", "vector", "ensemble", "isotonic", "local", "bayesian", "cagcn", "gats", "structured"}
    known = known_calibrators()
    assert list(known) == sorted(names)
    assert all(known[name].name == name and getattr(ew, known[name].__name__) is known[name] for name in names)


def test_custom_calibrator_is_saved_and_loaded(case, tmp_path):
    @dataclass(frozen=True)
    class Uniform(NodeCalibrator):
        """Predict the uniform distribution."""

        name = "uniform"

        def learn_parameters(self, inputs):
            return {"probability": 1 / inputs.val_logits.shape[1]}

        def log_marginals(self, learned, predictions):
            return learned["probability"].log().expand(predictions.logits.shape)

    assert defined_calibrators()["uniform"] is Uniform and "uniform" not in known_calibrators()
    Uniform().fit(case.logits, case.data, case.split).save(tmp_path / "uniform")
    again = ew.Calibrated.load(tmp_path / "uniform")
    torch.testing.assert_close(again.apply(case.logits).node, torch.full((60, 3), 1 / 3, dtype=torch.float64))

    @dataclass(frozen=True)
    class Other(Uniform):
        name = "uniform"

    with pytest.raises(ValueError, match="Expected one calibrator named 'uniform'"):
        defined_calibrators()
    Other.name = "other"


# Splits without training nodes.


@every_calibrator
def test_split_without_training_nodes(case, calibrator):
    alone, empty = SimpleNamespace(val=case.split.val), torch.zeros(60, dtype=torch.bool)
    found = calibrator.fit(case.logits, case.data, alone).posterior()
    assert_same_bits(
        calibrator.fit(case.logits, case.data, SimpleNamespace(val=alone.val, train=empty)).posterior(), found
    )
    assert bool((found.node > 0).all())


@every_calibrator
def test_training_labels_are_used_only_if_declared(case, calibrator):
    usual = calibrator.fit(case.logits, case.data, case.split).posterior()
    y = torch.where(case.split.train, -1, case.data.y)
    data = SimpleNamespace(x=case.data.x, edge_index=case.data.edge_index, y=y)
    if calibrator.uses_training_labels:
        with pytest.raises(ValueError, match="label for each train node, but the label of node 0"):
            calibrator.fit(case.logits, data, case.split)
    else:
        assert_same_bits(calibrator.fit(case.logits, data, case.split).posterior(), usual)


def test_without_training_nodes_coupling_is_fitted_to_validation_edges(case):
    alone = SimpleNamespace(val=case.split.val)
    found = ew.StructuredCalibrator().fit(case.logits, case.data, alone).parameters
    case.data.x = None  # features are used for edges of training nodes only
    assert case.split.val[case.data.edge_index].all(0).any() and found["coupling"] != 0.0
    assert ew.StructuredCalibrator().fit(case.logits, case.data, alone).parameters == found


# Positive probabilities.


def assert_all_labels_possible(posterior, data, mask):
    assert bool((posterior.node > 0).all())
    torch.testing.assert_close(posterior.node.sum(1), torch.ones(len(data.y), dtype=posterior.node.dtype))
    ev = ew.evaluate(posterior, data.y, data.edge_index, mask=mask)
    # In float64 the product of two probabilities of 1e-308, a term of P(same label), underflows.
    views = [ev.nodewise, ev.edgewise] + [ev.same_label] * (posterior.node.dtype == torch.float32)
    assert all(math.isfinite(view.nll) for view in views)


def test_gats_keeps_probabilities_positive_for_nodes_with_large_logits(case):
    """The temperature, fitted to validation nodes, is about 1. The logits of other nodes differ by hundreds."""
    logits = torch.where(case.split.val[:, None], 0.2 * case.logits, 50 * case.logits).float()
    calibrated = ew.GATS().fit(logits, case.data, case.split)
    spread = (logits.amax(1) - logits.amin(1)) / calibrated.parameters["temperatures"]
    assert float(spread.max()) > 110  # exp(-spread) is 0 in float32
    assert_all_labels_possible(calibrated.posterior(), case.data, ~(case.split.train | case.split.val))


@every_calibrator
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10_000),
    size=st.floats(-3, 12),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_all_probabilities_are_positive(make_case, calibrator, seed, size, dtype):
    """Logits of any scale. Large logits make many wrong predictions with high confidence."""
    case = make_case(seed)
    logits = (10.0**size * case.logits).clamp(min=-6e4, max=6e4) if dtype == torch.float16 else 10.0**size * case.logits
    posterior = calibrator.fit(logits.to(dtype), case.data, case.split).posterior()
    assert_all_labels_possible(posterior, case.data, case.data.y >= 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nodes", [ew.GATS(), ew.TemperatureScaling(), ew.LocalScaling()], ids=lambda nodes: nodes.name)
def test_all_probabilities_are_positive_for_larger_logits_than_in_fit(case, nodes, dtype):
    for calibrator in (nodes, ew.StructuredCalibrator(nodes)):
        calibrated = calibrator.fit(case.logits.to(dtype), case.data, case.split)
        for scale in (30, 1e3, 1e5):
            posterior = calibrated.apply(scale * case.logits.to(dtype), case.data)
            assert_all_labels_possible(posterior, case.data, case.data.y >= 0)
