"""Temperatures that follow the spread: gradients of a loss that is written here, and nodes of one spread."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from edgewise.calibration import SpreadScaling


def penalised_nll(case, log_temperature, power, prior_log_temperature, prior_power):
    spread = np.log(case.logits.numpy().std(1))
    z = case.logits.numpy() / np.exp(log_temperature + power * (spread - spread.mean()))[:, None]
    val = case.split.val.numpy()
    nll = (np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), case.data.y.numpy()])[val].sum()
    return nll + (log_temperature / prior_log_temperature) ** 2 / 2 + (power / prior_power) ** 2 / 2


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), priors=st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)))
def test_the_loss_is_flat_where_it_ends(make_case, seed, priors):
    case = make_case(seed)
    posterior, learnt = SpreadScaling(*priors).learn(case.logits, case.data, case.split)
    t, b = np.log(learnt["temperature"]), learnt["power"]

    def loss(dt, db):
        return penalised_nll(case, t + dt, b + db, *priors)

    assert loss(1e-5, 0) - loss(-1e-5, 0) == pytest.approx(0.0, abs=2e-9)
    assert loss(0, 1e-5) - loss(0, -1e-5) == pytest.approx(0.0, abs=2e-9)
    assert min(loss(1e-2, 0), loss(-1e-2, 0), loss(0, 1e-2), loss(0, -1e-2)) > loss(0, 0)
    assert torch.equal(posterior.node.argmax(1), case.logits.argmax(1))


def test_nodes_of_one_spread_have_one_temperature(case):
    case.logits = (case.logits - case.logits.mean(1, keepdim=True)) / case.logits.std(1, keepdim=True)
    posterior, learnt = SpreadScaling(0.7).learn(case.logits, case.data, case.split)
    best = minimize_scalar(lambda t: penalised_nll(case, t, 0.0, 0.7, 1.0), bounds=(-5, 5)).x
    assert learnt["power"] == pytest.approx(0.0, abs=1e-9)
    assert learnt["temperature"] == pytest.approx(np.exp(best), rel=1e-4)
    torch.testing.assert_close(posterior.node, (case.logits / np.exp(best)).softmax(-1), atol=1e-4, rtol=0.0)


def test_a_shift_of_a_node_changes_nothing(case):
    shift = torch.linspace(-50, 50, 60, dtype=torch.float64)[:, None]
    plain, shifted = (SpreadScaling().fit(z, case.data, case.split) for z in (case.logits, case.logits + shift))
    torch.testing.assert_close(shifted.node, plain.node, atol=1e-7, rtol=0.0)


@pytest.mark.parametrize("name", ["prior_log_temperature", "prior_power"])
def test_priors_must_be_positive(name):
    with pytest.raises(ValueError, match=f"Expected {name} to be a number above 0, but got 0"):
        SpreadScaling(**{name: 0})
