"""Joints with given marginals: against enumeration, a plain loop, exact inference on trees, and finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import edgewise as ew
from edgewise.inference.coupled_marginals import (
    bethe_log_likelihood,
    pointwise_mutual_information,
    sinkhorn_messages,
    unary_potentials,
)
from edgewise.inference.messages import log_sum, sweep
from helpers.sinkhorn import joints_from_messages, sinkhorn_loop

CLASSES = 3
TREE = torch.tensor([[0, 1, 1, 5, 4], [1, 2, 3, 3, 5]])  # 0 - 1 - 2, 1 - 3 - 5 - 4


def log_marginals(*shape, seed=0, spread=1.5):
    draws = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, generator=draws, dtype=torch.float64)).log_softmax(-1)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("strength", [-4.0, -1.0, 0.0, 0.5, 2.0, 4.0])
def test_joints_are_those_of_a_loop(strength):
    log_p = log_marginals(2, 5, CLASSES)
    found = joints_from_messages(log_p, strength).numpy()
    for e, (p, r) in enumerate(zip(*log_p.exp().numpy(), strict=True)):
        np.testing.assert_allclose(found[e], sinkhorn_loop(p, r, strength), atol=1e-8)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000), strength=st.floats(-4, 4), num_classes=st.integers(2, 6), spread=st.floats(0.0, 8.0)
)
def test_marginals_are_kept_and_the_odds_are_those_of_the_coupling(seed, strength, num_classes, spread):
    log_p = log_marginals(2, 4, num_classes, seed=seed, spread=spread)
    q = joints_from_messages(log_p, strength)
    torch.testing.assert_close(q.sum(2), log_p[0].exp(), atol=1e-7, rtol=0.0)
    torch.testing.assert_close(q.sum(1), log_p[1].exp(), atol=1e-7, rtol=0.0)
    odds = q[:, 0, 0].log() + q[:, 1, 1].log() - q[:, 0, 1].log() - q[:, 1, 0].log()
    torch.testing.assert_close(odds, torch.full_like(odds, 2 * strength), atol=1e-6, rtol=0.0)


def test_two_classes_have_a_closed_form():
    """With p = r = ½ the joint is ½ σ(w) for equal labels and ½ σ(-w) for others."""
    q = joints_from_messages(torch.full((2, 1, 2), -np.log(2.0), dtype=torch.float64), 1.3)[0]
    equal, other = 0.5 / (1 + np.exp(-1.3)), 0.5 / (1 + np.exp(1.3))
    np.testing.assert_allclose(q, [[equal, other], [other, equal]])


def test_without_strength_joints_are_products():
    log_p = log_marginals(2, 5, CLASSES)
    torch.testing.assert_close(
        joints_from_messages(log_p, 0.0), log_p.exp()[0].unsqueeze(2) * log_p.exp()[1].unsqueeze(1)
    )


def test_extreme_marginals_have_finite_messages():
    log_p = (1000 * log_marginals(2, 6, CLASSES)).log_softmax(-1)
    for strength in (-3.0, 3.0):
        messages = sinkhorn_messages(log_p, number(strength))
        assert (messages.abs() <= abs(strength)).all()


def test_turning_edges_around_turns_messages_around():
    log_p = log_marginals(2, 7, CLASSES)
    there, back = sinkhorn_messages(log_p, number(1.2)), sinkhorn_messages(log_p.flip(0), number(1.2))
    torch.testing.assert_close(back, there.flip(0), atol=1e-8, rtol=0.0)


def test_relabeling_edges_and_classes_relabels_messages():
    log_p = log_marginals(2, 7, CLASSES)
    edges, classes = torch.tensor([3, 1, 0, 6, 5, 2, 4]), torch.tensor([2, 0, 1])
    expected = sinkhorn_messages(log_p, number(-0.7))[:, edges][..., classes]
    torch.testing.assert_close(sinkhorn_messages(log_p[:, edges][..., classes], number(-0.7)), expected)


def test_no_edges():
    empty = torch.zeros(2, 0, CLASSES, dtype=torch.float64)
    assert sinkhorn_messages(empty, number(1.0)).shape == (2, 0, CLASSES)
    assert pointwise_mutual_information(empty, number(1.0), torch.zeros(2, 0, dtype=torch.long)).shape == (0,)


# The field.


@pytest.mark.parametrize("strength", [-2.0, 0.7, 3.0])
def test_on_a_tree_they_are_the_true_marginals_of_the_field(strength):
    log_p = log_marginals(6, CLASSES)
    messages = sinkhorn_messages(log_p[TREE], number(strength))
    mrf = ew.PairwiseMRF(unary_potentials(log_p, TREE, messages), TREE, strength * torch.eye(CLASSES))
    exact = ew.exact_marginals(mrf)[0]
    torch.testing.assert_close(exact.node, log_p.exp(), atol=1e-8, rtol=0.0)
    torch.testing.assert_close(exact.joint(TREE), joints_from_messages(log_p[TREE], strength), atol=1e-8, rtol=0.0)


def test_on_loops_sum_product_rests_there():
    loop = torch.tensor([[0, 0, 1, 2, 0], [1, 2, 2, 3, 3]])
    log_p = log_marginals(4, CLASSES)
    messages = sinkhorn_messages(log_p[loop], number(1.0))
    mrf = ew.PairwiseMRF(unary_potentials(log_p, loop, messages), loop, torch.eye(CLASSES))
    again = sweep(mrf, messages, log_sum)
    torch.testing.assert_close(again, messages - messages.amax(-1, keepdim=True), atol=1e-8, rtol=0.0)


# The likelihood.


@pytest.mark.parametrize("strength", [-1.5, 0.0, 2.0])
def test_on_a_tree_the_likelihood_is_that_of_enumeration(strength):
    """log P(y) = energy - log Z, with Z summed over all 3⁶ labelings."""
    log_p = log_marginals(6, CLASSES)
    field = unary_potentials(log_p, TREE, sinkhorn_messages(log_p[TREE], number(strength)))
    labelings = torch.cartesian_prod(*[torch.arange(CLASSES)] * 6)
    energy = field[torch.arange(6), labelings].sum(1)
    energy = energy + strength * (labelings[:, TREE[0]] == labelings[:, TREE[1]]).sum(1)
    for row in (0, 100, 728):
        y = labelings[row]
        found = bethe_log_likelihood(log_p, y, TREE, number(strength))
        assert float(found) == pytest.approx(float(energy[row] - energy.logsumexp(0)), abs=1e-7)


def test_the_information_of_pairs_is_that_of_a_loop():
    log_p, y = log_marginals(2, 9, CLASSES), torch.randint(CLASSES, (2, 9), generator=torch.Generator().manual_seed(1))
    found = pointwise_mutual_information(log_p, number(1.7), y).tolist()
    for e, (p, r) in enumerate(zip(*log_p.exp().numpy(), strict=True)):
        l, m = y[:, e].tolist()  # noqa: E741 (a label)
        assert found[e] == pytest.approx(np.log(sinkhorn_loop(p, r, 1.7)[l, m] / (p[l] * r[m])), abs=1e-7)


@pytest.mark.parametrize("strength", [-1.0, 0.3, 1.5])
def test_gradients(strength):
    logits = log_marginals(2, 4, CLASSES, spread=1.0).requires_grad_()
    y = torch.tensor([[0, 1, 2, 0], [0, 2, 2, 1]])

    def information(logits, strength):
        return pointwise_mutual_information(logits.log_softmax(-1), strength, y)

    assert torch.autograd.gradcheck(information, (logits, number(strength).requires_grad_()), atol=1e-6)


def messages_by_turns(log_p, strength, turns=2000):
    """Scale rows and columns by turns, with a gradient through all of them."""
    (at_start, at_end), factor = log_p, torch.expm1(strength)
    into_end = torch.zeros_like(at_end)
    for _ in range(turns):
        into_start = torch.log1p(factor * (at_end - into_end).softmax(-1))
        before, into_end = into_end, torch.log1p(factor * (at_start - into_start).softmax(-1))
        if float((into_end - before).detach().abs().max()) < 1e-10:
            break
    return torch.stack([torch.log1p(factor * (at_end - into_end).softmax(-1)), into_end])


@pytest.mark.parametrize("strength", [-4.0, -1.0, 0.0, 0.3, 1.5, 5.0])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_messages_are_those_of_the_turns_to_the_bit_and_the_gradient_agrees_to_eight_digits(strength, spread):
    logits, w = log_marginals(2, 20, CLASSES, spread=spread).requires_grad_(), number(strength).requires_grad_()
    ours, turns = (messages(logits.log_softmax(-1), w) for messages in (sinkhorn_messages, messages_by_turns))
    assert torch.equal(ours, turns)
    assert torch.equal(sinkhorn_messages(logits.detach().log_softmax(-1), w.detach()), turns)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, expected = (torch.autograd.grad((weights * m).sum(), (logits, w)) for m in (ours, turns))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("strength", [-6.0, 6.0])
def test_extreme_marginals_have_finite_gradients(strength):
    log_p = (1000 * log_marginals(2, 6, CLASSES)).log_softmax(-1).requires_grad_()
    w = number(strength).requires_grad_()
    labels = torch.zeros(2, 6, dtype=torch.long)
    gradients = torch.autograd.grad(pointwise_mutual_information(log_p, w, labels).sum(), (log_p, w))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_a_second_derivative_is_refused():
    w = number(1.0).requires_grad_()
    (first,) = torch.autograd.grad(sinkhorn_messages(log_marginals(2, 4, CLASSES), w.exp()).sum(), w)
    assert float(first) != 0.0
    with pytest.raises(RuntimeError, match="Expected a first derivative"):
        torch.autograd.grad(sinkhorn_messages(log_marginals(2, 4, CLASSES), w.exp()).sum(), w, create_graph=True)
