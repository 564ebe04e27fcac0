"""Mixtures of opinions against scipy's SLSQP on the simplex."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from edgewise import EnsembleTemperatureScaling, TemperatureScaling
from edgewise.calibration.calibration_input import nll, pseudo_count
from edgewise.calibration.scaling import mixture_weights


def lowest_on_the_simplex(of_labels):
    """Minimize -mean log w·p over weights w, for p (opinions, nodes)."""
    opinions = len(of_labels)
    found = minimize(
        lambda w: -np.log(w @ of_labels).mean(),
        np.full(opinions, 1 / opinions),
        jac=lambda w: -(of_labels / (w @ of_labels)).mean(1),
        method="SLSQP",
        bounds=[(1e-12, 1.0)] * opinions,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(opinions)},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x, found.fun


def opinions_of(seed, nodes=50, classes=4, spreads=(3.0, 1.0, 0.3)):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(nodes, classes, generator=g, dtype=torch.float64)
    drawn = [s * (truth + torch.randn(nodes, classes, generator=g, dtype=torch.float64)) for s in spreads]
    labels = torch.multinomial(truth.softmax(-1), 1, generator=g).squeeze(1)
    return torch.stack(drawn).log_softmax(-1), labels


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_weights_are_those_of_slsqp(seed):
    log_opinions, labels = opinions_of(seed)
    of_labels = log_opinions[:, torch.arange(50), labels].exp().numpy()
    weights = mixture_weights(log_opinions, labels).numpy()
    theirs, lowest = lowest_on_the_simplex(of_labels)
    assert weights.sum() == pytest.approx(1.0, abs=1e-9) and weights.min() >= 0
    assert -np.log(weights @ of_labels).mean() <= lowest + 1e-8
    np.testing.assert_allclose(weights, theirs, atol=1e-3)


@pytest.mark.parametrize("best", [0, 1, 2])
def test_an_opinion_that_is_better_everywhere_is_taken_alone(best):
    log_opinions, labels = opinions_of(0)
    log_opinions[best] = torch.nn.functional.one_hot(labels, 4).double().mul(0.01).sub(1.4)
    log_opinions[best][torch.arange(50), labels] = log_opinions[:, torch.arange(50), labels].amax(0) / 2
    assert mixture_weights(log_opinions, labels)[best] == pytest.approx(1.0, abs=1e-6)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), strength=st.floats(-2.0, 6.0))
def test_nll_is_never_above_that_of_temperature_scaling(make_case, seed, strength):
    case = make_case(seed, strength=strength)
    val, y = case.split.val, case.data.y
    mixed = EnsembleTemperatureScaling().fit(case.logits, case.data, case.split)
    one = TemperatureScaling().fit(case.logits, case.data, case.split)
    added = pseudo_count(case.logits[val], y[val])
    ours, theirs = (float(nll(found.posterior().node[val].log(), y[val], added)) for found in (mixed, one))
    assert ours <= theirs + 1e-10
    t, w = mixed.parameters["temperature"], mixed.parameters["weights"]
    expected = w[0] * (case.logits / t).softmax(-1) + w[1] * case.logits.softmax(-1) + w[2] / 3
    torch.testing.assert_close(mixed.posterior().node, expected)
    assert torch.equal(mixed.posterior().node.argmax(1), case.logits.argmax(1)) or float(w[2]) > 1 - 1e-9


def test_half_a_label_that_any_node_and_class_may_have_is_mixed_by_too(case):
    log_opinions = torch.stack([(scale * case.logits).log_softmax(-1) for scale in (5.0, 1.0, 0.0)])
    labels = case.logits.argmax(1)

    def loss(weights):
        mixed = np.log(np.einsum("k,knc->nc", weights, log_opinions.exp().numpy()))
        return -mixed[np.arange(len(labels)), labels].sum() - 0.5 * mixed.mean()

    found = loss(mixture_weights(log_opinions, labels, added=0.5).numpy())
    rng = np.random.default_rng(0)
    assert found <= min(loss(weights) for weights in rng.dirichlet(np.ones(3) / 2, size=2000)) + 1e-6
    alone = mixture_weights(log_opinions, labels).numpy()
    assert loss(alone) > found + 0.1  # the surest part alone, which the labels by themselves ask for
