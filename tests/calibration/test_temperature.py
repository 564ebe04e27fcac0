"""Temperature scaling against netcal and a grid, and its invariances."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from edgewise import TemperatureScaling
from edgewise.calibration.scaling import MAX_TEMPERATURE, fit_temperature

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def random_logits_and_labels(seed, num_nodes=200, num_classes=4, true_temperature=2.0):
    """Draw logits z, and labels from softmax(z / T)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.0, size=(num_nodes, num_classes))
    p = np.exp(logits / true_temperature)
    labels = [rng.choice(num_classes, p=row / row.sum()) for row in p]
    return torch.from_numpy(logits), torch.tensor(labels)


def nll(logits, labels, temperature):
    return float(cross_entropy(logits / temperature, labels))


@pytest.mark.slow
@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 3.0])
def test_probabilities_equal_netcal(true_temperature):
    logits, labels = random_logits_and_labels(0, true_temperature=true_temperature)
    p = logits.softmax(-1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyro warns about its own functions
        from netcal.scaling import TemperatureScaling as NetcalTemperatureScaling

        theirs = NetcalTemperatureScaling().fit(p, labels.numpy(), random_state=0).transform(p)
    ours = (logits / fit_temperature(logits, labels)).softmax(-1)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def nll_with_pseudo_label(logits, labels, temperature):
    """Mean NLL; if all labels have the largest logit, plus half a pseudo-label spread over all nodes and classes."""
    log_p = (logits / temperature).log_softmax(-1)
    mean = nll(logits, labels, temperature)
    if any(float(logits[node].max()) > float(logits[node, label]) for node, label in enumerate(labels)):
        return mean
    return mean + 0.5 * float(-log_p.mean()) / len(labels)


@given(seed=st.integers(0, 10_000), true_temperature=st.floats(0.3, 5.0), num_classes=st.integers(2, 6))
def test_no_temperature_on_a_grid_is_better(seed, true_temperature, num_classes):
    logits, labels = random_logits_and_labels(seed, 40, num_classes, true_temperature)
    found = fit_temperature(logits, labels)
    grid = np.geomspace(1 / MAX_TEMPERATURE, MAX_TEMPERATURE, 201)
    lowest = min(nll_with_pseudo_label(logits, labels, temperature) for temperature in grid)
    assert nll_with_pseudo_label(logits, labels, found) <= lowest + 1e-12
    if 1e-2 < found < 1e2:
        neighbors = [nll_with_pseudo_label(logits, labels, found * factor) for factor in (0.999, 1.001)]
        assert nll_with_pseudo_label(logits, labels, found) < min(neighbors)


@pytest.mark.parametrize("num_nodes", [1, 5, 50])
def test_all_predictions_correct_gives_finite_temperature(num_nodes):
    logits, _ = random_logits_and_labels(1, num_nodes)
    labels = logits.argmax(1)
    found = fit_temperature(logits, labels)
    grid = [nll_with_pseudo_label(logits, labels, t) for t in np.geomspace(1e-2, 1e2, 201)]
    assert nll_with_pseudo_label(logits, labels, found) <= min(grid) + 1e-9
    assert nll(logits, labels, found) < nll(logits, labels, 2.0)  # more confident than at the true temperature
    assert fit_temperature(10 * logits, labels) == pytest.approx(10 * found, rel=1e-9)


def test_ties_for_the_largest_logit_get_a_pseudo_label():
    tied = torch.tensor([[0.1, 0.1, 0.1], [0.7, 0.7, 0.3]], dtype=torch.float64)
    found = fit_temperature(tied, torch.tensor([1, 0]))
    assert (1 - (tied / found).softmax(-1)[1, :2].sum()) > 0.01


def test_labels_below_the_mean_logit_give_the_maximum_temperature():
    logits, _ = random_logits_and_labels(1)
    assert fit_temperature(logits, logits.argmin(1)) == 1e4
    one_above = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    assert fit_temperature(one_above, torch.tensor([0, 0])) == 1e4  # 2/3 above the mean, and 1 below it


def test_equal_logits_give_temperature_one():
    assert fit_temperature(torch.full((5, 3), 7.0, dtype=torch.float64), torch.arange(5) % 3) == 1.0


@given(seed=st.integers(0, 10_000), factor=st.floats(0.02, 50.0), shift=st.floats(-1e6, 1e6))
def test_temperature_scales_with_logits_and_ignores_shifts(seed, factor, shift):
    logits, labels = random_logits_and_labels(seed)
    found = fit_temperature(logits, labels)
    assert fit_temperature(factor * logits, labels) == pytest.approx(factor * found, rel=1e-9)
    assert fit_temperature(logits + shift, labels) == pytest.approx(found, rel=1e-6)


def test_predicted_labels_do_not_change_and_fit_is_idempotent(case):
    first = TemperatureScaling().fit(case.logits, case.data, case.split)
    again = TemperatureScaling().fit(first.posterior(), case.data, case.split)
    assert torch.equal(first.posterior().node.argmax(1), case.logits.argmax(1))
    assert first.parameters["temperature"] != pytest.approx(1.0, rel=0.1)
    assert again.parameters["temperature"] == pytest.approx(1.0, rel=1e-9)
    torch.testing.assert_close(again.posterior().node, first.posterior().node)


def test_temperature_is_fitted_to_validation_nodes(case):
    found = TemperatureScaling().fit(case.logits, case.data, case.split)
    val = case.split.val
    grid = np.geomspace(0.1, 10, 1001)
    best = min(grid, key=lambda t: nll(case.logits[val], case.data.y[val], t))
    assert found.parameters["temperature"] == pytest.approx(best, rel=5e-3)
    torch.testing.assert_close(found.posterior().node, (case.logits / found.parameters["temperature"]).softmax(-1))
