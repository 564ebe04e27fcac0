"""Joints with given marginals and a given coupling: closed forms, maximum entropy by scipy, and both limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from edgewise.calibration.coupling import coupled

STRENGTHS = [-300.0, -20.0, -7.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 3.0, 9.0, 20.0, 300.0]


def log_marginals(seed, pairs, classes, spread=1.5):
    g = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(2, pairs, classes, generator=g, dtype=torch.float64)).log_softmax(-1)


def joints(log_p, log_r, strength):
    return coupled(log_p, log_r, strength).log_joints().exp()


def log_odds_ratios(log_q):
    """log q(l, l) q(m, m) / q(l, m) q(m, l) for all l and m."""
    diagonal = log_q.diagonal(dim1=1, dim2=2)
    return diagonal[:, :, None] + diagonal[:, None, :] - log_q - log_q.transpose(1, 2)


def assert_is_coupled(log_p, log_r, strength):
    log_q = coupled(log_p, log_r, strength).log_joints()
    torch.testing.assert_close(log_q.exp().sum(2), log_p.exp(), atol=1e-11, rtol=0.0)
    torch.testing.assert_close(log_q.exp().sum(1), log_r.exp(), atol=1e-11, rtol=0.0)
    different = ~torch.eye(log_p.shape[1], dtype=torch.bool)
    expected = torch.full_like(log_q, 2 * strength)
    torch.testing.assert_close(log_odds_ratios(log_q)[:, different], expected[:, different], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_marginals_are_kept_and_odds_are_those_of_the_coupling(strength, classes):
    assert_is_coupled(*log_marginals(0, 20, classes), strength)
    p, _ = log_marginals(1, 20, classes, spread=4.0)
    assert_is_coupled(p, p, strength)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    strength=st.floats(-30.0, 30.0),
    classes=st.integers(2, 8),
    spread=st.floats(0.0, 200.0),
)
def test_any_marginals_and_any_coupling(seed, strength, classes, spread):
    assert_is_coupled(*log_marginals(seed, 4, classes, spread), strength)


@pytest.mark.parametrize("strength", [-8.0, -0.7, 0.3, 2.0, 8.0])
def test_two_classes_have_a_closed_form(strength):
    """q(0, 0) = x solves x (1 - p - r + x) = e^2w (p - x) (r - x)."""
    log_p, log_r = log_marginals(2, 30, 2)
    p, r, k = log_p[:, 0].exp().numpy(), log_r[:, 0].exp().numpy(), math.exp(2 * strength)
    expected = []
    for a, b in zip(p, r, strict=True):
        roots = np.roots([1 - k, 1 - a - b + k * (a + b), -k * a * b]).real
        expected += [x for x in roots if max(0.0, a + b - 1) <= x <= min(a, b)]
    np.testing.assert_allclose(joints(log_p, log_r, strength)[:, 0, 0], expected, atol=1e-9)


@pytest.mark.parametrize("strength", [-2.5, 1.0, 3.0])
def test_of_all_joints_with_these_marginals_it_is_the_one_of_most_entropy(strength):
    """Maximise entropy + w P(equal labels) over 3 x 3 tables, by a solver that knows nothing of a and b."""
    log_p, log_r = log_marginals(3, 1, 3, spread=0.8)
    p, r, equal = log_p.exp().numpy()[0], log_r.exp().numpy()[0], np.eye(3).ravel()
    sums = np.vstack([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])[:-1]
    found = minimize(
        lambda q: (q * np.log(q)).sum() - strength * q @ equal,
        np.outer(p, r).ravel(),
        jac=lambda q: np.log(q) + 1 - strength * equal,
        method="SLSQP",
        bounds=[(1e-9, 1.0)] * 9,
        constraints={"type": "eq", "fun": lambda q: sums @ q - np.concatenate([p, r])[:-1], "jac": lambda q: sums},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(joints(log_p, log_r, strength)[0], found.x.reshape(3, 3), atol=1e-5)


def test_without_a_coupling_it_is_the_product():
    log_p, log_r = log_marginals(4, 10, 4)
    torch.testing.assert_close(joints(log_p, log_r, 0.0), log_p.exp()[:, :, None] * log_r.exp()[:, None, :])
    near = joints(log_p, log_r, 1e-12)
    torch.testing.assert_close(near, joints(log_p, log_r, 0.0), atol=1e-12, rtol=0.0)


def test_the_strongest_attraction_agrees_as_often_as_can_be():
    log_p, log_r = log_marginals(5, 20, 5)
    p, r = log_p.exp(), log_r.exp()
    q = joints(log_p, log_r, 40.0)
    torch.testing.assert_close(q.diagonal(dim1=1, dim2=2), torch.minimum(p, r), atol=1e-12, rtol=0.0)
    left, right = p - torch.minimum(p, r), r - torch.minimum(p, r)
    apart = left[:, :, None] * right[:, None, :] / left.sum(1)[:, None, None]
    different = ~torch.eye(5, dtype=torch.bool)
    torch.testing.assert_close(q[:, different], apart[:, different], atol=1e-12, rtol=0.0)


def test_the_strongest_repulsion_agrees_only_where_it_must():
    log_p, log_r = log_marginals(6, 40, 3, spread=2.0)
    q = joints(log_p, log_r, -40.0)
    needed = (log_p.exp() + log_r.exp() - 1).clamp(min=0)  # all that is left for others is too little
    torch.testing.assert_close(q.diagonal(dim1=1, dim2=2), needed, atol=1e-9, rtol=0.0)
    assert bool((needed > 0.1).any()) and bool((needed.sum(1) == 0).any())


@pytest.mark.parametrize("strength", [-20.0, -2.0, 2.0, 20.0])
@pytest.mark.parametrize(
    ("log_p", "log_r"),
    [
        ([0.0, math.log(1e-300)], [math.log(1e-300), 0.0]),
        ([0.0, math.log(1e-300)], [0.0, math.log(1e-300)]),
        ([0.0, -1e4, -1e4], [-1e4, 0.0, -2e4]),
        ([0.0, -1e4, -2e4], [0.0, -2e4, -1e4]),
        ([math.log(0.5), math.log(0.5), -700.0], [0.0, -800.0, -1e4]),
    ],
)
def test_labels_that_are_next_to_impossible(log_p, log_r, strength):
    log_p, log_r = (torch.tensor([row], dtype=torch.float64) for row in (log_p, log_r))
    found = coupled(log_p, log_r, strength)
    assert bool(found.log_a.isfinite().all()) and bool(found.log_b.isfinite().all())
    log_q = found.log_joints()
    torch.testing.assert_close(log_q.logsumexp(2), log_p, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(log_q.logsumexp(1), log_r, atol=1e-9, rtol=1e-9)


def test_no_pairs():
    nothing = torch.zeros(0, 3, dtype=torch.float64)
    for strength in (-1.0, 0.0, 1.0):
        assert coupled(nothing, nothing, strength).log_joints().shape == (0, 3, 3)


@pytest.mark.parametrize("strength", [301.0, -301.0, math.nan])
def test_a_coupling_that_no_number_holds_is_refused(strength):
    with pytest.raises(ValueError, match="Expected a coupling of at most 300 nats, but got"):
        coupled(*log_marginals(0, 1, 2), strength)
