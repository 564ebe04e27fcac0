"""Warnings about calibrators that rest on few validation nodes or few labeled edges."""

from types import SimpleNamespace

import pytest
import torch

import edgewise as ew
from helpers.calibrators import every_calibrator


@every_calibrator
def test_warns_below_the_number_of_nodes_that_the_calibrator_states(calibrator, make_case):
    least = calibrator.min_val_nodes(3)
    case = make_case(num_nodes=4 * least, num_edges=2000)
    calibrator.fit(case.logits, case.data, case.split)  # a warning would be an error
    fewer = case.split.val.clone()
    fewer[case.split.val.nonzero()[0]] = False
    with pytest.warns(ew.SmallSampleWarning, match=f"{least - 1} validation nodes") as caught:
        calibrator.fit(case.logits, case.data, SimpleNamespace(train=case.split.train, val=fewer))
    assert len(caught) == 1 and caught[0].filename == __file__


def test_calibrators_with_more_parameters_need_more_nodes():
    needed = [kind().min_val_nodes(7) for kind in (ew.TemperatureScaling, ew.LocalScaling, ew.CaGCN)]
    assert needed == sorted(set(needed))
    assert ew.VectorScaling().min_val_nodes(40) > ew.VectorScaling().min_val_nodes(7)
    assert ew.StructuredCalibrator(ew.TemperatureScaling()).min_val_nodes(7) == needed[0]


@pytest.mark.slow
def test_standard_error_of_a_temperature_of_fifty_nodes_is_a_fifth():
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    logits, nodes = ew.GCN().fit(data, split, seed=0).logits, split.test.nonzero().flatten()
    draws = torch.Generator().manual_seed(0)

    def temperature() -> float:
        val = torch.zeros_like(split.val)
        val[nodes[torch.randperm(len(nodes), generator=draws)[:50]]] = True
        return ew.TemperatureScaling().fit(logits, data, SimpleNamespace(val=val)).parameters["temperature"]

    temperatures = torch.tensor([temperature() for _ in range(200)])
    assert float(temperatures.log().std()) == pytest.approx(0.2, abs=0.05)


def test_advice_to_use_temperature_scaling_can_be_followed(make_case):
    case = make_case(num_nodes=200, num_edges=400)  # 50 validation nodes
    with pytest.warns(ew.SmallSampleWarning, match=r"ew\.TemperatureScaling\(\)"):
        ew.LocalScaling().fit(case.logits, case.data, case.split)
    ew.TemperatureScaling().fit(case.logits, case.data, case.split)


def test_coupling_without_features_rests_on_validation_edges(make_case):
    """Following the advice, features, ends the warning."""
    case = make_case(num_nodes=400, num_edges=1200)
    edges, val = case.data.edge_index, case.split.val
    num_edges = int(val[edges].all(0).sum()) // 2
    without = SimpleNamespace(y=case.data.y, edge_index=edges)
    with pytest.warns(ew.SmallSampleWarning, match=rf"\b{num_edges} edges between labeled nodes.*data.x") as caught:
        ew.StructuredCalibrator().fit(case.logits, without, case.split)
    assert len(caught) == 1 and num_edges < 100
    ew.StructuredCalibrator().fit(case.logits, case.data, case.split)


def test_no_warning_about_a_coupling_that_cannot_be_fitted(make_case, monkeypatch):
    def fail(*terms):
        raise ArithmeticError

    monkeypatch.setattr("edgewise.calibration.structured._fit_coupling", fail)
    case = make_case(num_nodes=400, num_edges=100)
    with pytest.raises(ArithmeticError):  # a warning would be raised instead
        ew.StructuredCalibrator().fit(case.logits, case.data, case.split)


def test_isotonic_map_of_few_pairs_warns():
    p = torch.linspace(0, 1, 60)
    with pytest.warns(ew.SmallSampleWarning, match="60 observations"):
        ew.isotonic_map(p, p > 0.5)
