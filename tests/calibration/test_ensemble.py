"""EnsembleTemperatureScaling, and mixture weights against scipy's SLSQP on the simplex."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from edgewise import EnsembleTemperatureScaling, TemperatureScaling
from edgewise.calibration.calibration_input import nll, pseudo_count
from edgewise.calibration.scaling import fit_mixture_weights

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def minimize_on_simplex(label_probs):
    """Minimize -mean log w·p over weights w, for p (components, nodes)."""
    components = len(label_probs)
    found = minimize(
        lambda w: -np.log(w @ label_probs).mean(),
        np.full(components, 1 / components),
        jac=lambda w: -(label_probs / (w @ label_probs)).mean(1),
        method="SLSQP",
        bounds=[(1e-12, 1.0)] * components,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(components)},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x, found.fun


def random_components(seed, nodes=50, classes=4, spreads=(3.0, 1.0, 0.3)):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(nodes, classes, generator=g, dtype=torch.float64)
    logits = [s * (truth + torch.randn(nodes, classes, generator=g, dtype=torch.float64)) for s in spreads]
    labels = torch.multinomial(truth.softmax(-1), 1, generator=g).squeeze(1)
    return torch.stack(logits).log_softmax(-1), labels


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_weights_equal_slsqp(seed):
    log_components, labels = random_components(seed)
    label_probs = log_components[:, torch.arange(50), labels].exp().numpy()
    weights = fit_mixture_weights(log_components, labels).numpy()
    theirs, lowest = minimize_on_simplex(label_probs)
    assert weights.sum() == pytest.approx(1.0, abs=1e-9) and weights.min() >= 0
    assert -np.log(weights @ label_probs).mean() <= lowest + 1e-8
    np.testing.assert_allclose(weights, theirs, atol=1e-3)


@pytest.mark.parametrize("best", [0, 1, 2])
def test_component_that_is_best_everywhere_gets_weight_one(best):
    log_components, labels = random_components(0)
    log_components[best] = torch.nn.functional.one_hot(labels, 4).double().mul(0.01).sub(1.4)
    log_components[best][torch.arange(50), labels] = log_components[:, torch.arange(50), labels].amax(0) / 2
    assert fit_mixture_weights(log_components, labels)[best] == pytest.approx(1.0, abs=1e-6)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), signal_scale=st.floats(-2.0, 6.0))
def test_nll_is_at_most_that_of_temperature_scaling(make_case, seed, signal_scale):
    case = make_case(seed, signal_scale=signal_scale)
    val, y = case.split.val, case.data.y
    mixed = EnsembleTemperatureScaling().fit(case.logits, case.data, case.split)
    one = TemperatureScaling().fit(case.logits, case.data, case.split)
    count = pseudo_count(case.logits[val], y[val])
    ours, theirs = (float(nll(found.posterior().node[val].log(), y[val], count)) for found in (mixed, one))
    assert ours <= theirs + 1e-10
    t, w = mixed.parameters["temperature"], mixed.parameters["weights"]
    expected = w[0] * (case.logits / t).softmax(-1) + w[1] * case.logits.softmax(-1) + w[2] / 3
    torch.testing.assert_close(mixed.posterior().node, expected)
    assert torch.equal(mixed.posterior().node.argmax(1), case.logits.argmax(1)) or float(w[2]) > 1 - 1e-9


def test_pseudo_label_enters_the_mixture_weights(case):
    log_components = torch.stack([(scale * case.logits).log_softmax(-1) for scale in (5.0, 1.0, 0.0)])
    labels = case.logits.argmax(1)

    def loss(weights):
        mixed = np.log(np.einsum("k,knc->nc", weights, log_components.exp().numpy()))
        return -mixed[np.arange(len(labels)), labels].sum() - 0.5 * mixed.mean()

    found = loss(fit_mixture_weights(log_components, labels, pseudo_count=0.5).numpy())
    rng = np.random.default_rng(0)
    assert found <= min(loss(weights) for weights in rng.dirichlet(np.ones(3) / 2, size=2000)) + 1e-6
    alone = fit_mixture_weights(log_components, labels).numpy()
    assert loss(alone) > found + 0.1  # without the pseudo-label, the most confident component gets all weight
