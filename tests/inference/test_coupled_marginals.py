"""Joints with given marginals against enumeration, a reference loop, exact inference on trees, finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import edgewise as ew
from edgewise.inference.coupled_marginals import (
    bethe_log_likelihood,
    coupled_messages,
    pointwise_mutual_information,
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


@pytest.mark.parametrize("coupling", [-4.0, -1.0, 0.0, 0.5, 2.0, 4.0])
def test_joints_equal_reference_loop(coupling):
    log_p = log_marginals(2, 5, CLASSES)
    result = joints_from_messages(log_p, coupling).numpy()
    for e, (p, r) in enumerate(zip(*log_p.exp().numpy(), strict=True)):
        np.testing.assert_allclose(result[e], sinkhorn_loop(p, r, coupling), atol=1e-8)


@given(
    seed=st.integers(0, 10_000), coupling=st.floats(-4, 4), num_classes=st.integers(2, 6), spread=st.floats(0.0, 8.0)
)
def test_joints_have_the_given_marginals_and_odds_ratios(seed, coupling, num_classes, spread):
    log_p = log_marginals(2, 4, num_classes, seed=seed, spread=spread)
    q = joints_from_messages(log_p, coupling)
    torch.testing.assert_close(q.sum(2), log_p[0].exp(), atol=1e-7, rtol=0.0)
    torch.testing.assert_close(q.sum(1), log_p[1].exp(), atol=1e-7, rtol=0.0)
    odds = q[:, 0, 0].log() + q[:, 1, 1].log() - q[:, 0, 1].log() - q[:, 1, 0].log()
    torch.testing.assert_close(odds, torch.full_like(odds, 2 * coupling), atol=1e-6, rtol=0.0)


def test_joint_of_two_uniform_binary_labels():
    """With p = r = ½ each joint entry is ½ σ(w) for equal labels and ½ σ(-w) for different labels."""
    q = joints_from_messages(torch.full((2, 1, 2), -np.log(2.0), dtype=torch.float64), 1.3)[0]
    equal, other = 0.5 / (1 + np.exp(-1.3)), 0.5 / (1 + np.exp(1.3))
    np.testing.assert_allclose(q, [[equal, other], [other, equal]])


def test_joints_without_coupling_are_products():
    log_p = log_marginals(2, 5, CLASSES)
    torch.testing.assert_close(
        joints_from_messages(log_p, 0.0), log_p.exp()[0].unsqueeze(2) * log_p.exp()[1].unsqueeze(1)
    )


def test_extreme_marginals_have_finite_messages():
    log_p = (1000 * log_marginals(2, 6, CLASSES)).log_softmax(-1)
    for coupling in (-3.0, 3.0):
        messages = coupled_messages(log_p, number(coupling))
        assert (messages.abs() <= abs(coupling) + 1e-12).all()


def test_reversing_edges_swaps_messages():
    log_p = log_marginals(2, 7, CLASSES)
    forward, backward = coupled_messages(log_p, number(1.2)), coupled_messages(log_p.flip(0), number(1.2))
    torch.testing.assert_close(backward, forward.flip(0), atol=1e-8, rtol=0.0)


def test_permuting_edges_and_classes_permutes_messages():
    log_p = log_marginals(2, 7, CLASSES)
    edges, classes = torch.tensor([3, 1, 0, 6, 5, 2, 4]), torch.tensor([2, 0, 1])
    expected = coupled_messages(log_p, number(-0.7))[:, edges][..., classes]
    torch.testing.assert_close(coupled_messages(log_p[:, edges][..., classes], number(-0.7)), expected)


def test_no_edges():
    empty = torch.zeros(2, 0, CLASSES, dtype=torch.float64)
    assert coupled_messages(empty, number(1.0)).shape == (2, 0, CLASSES)
    assert pointwise_mutual_information(empty, number(1.0), torch.zeros(2, 0, dtype=torch.long)).shape == (0,)


# The Markov random field.


@pytest.mark.parametrize("coupling", [-2.0, 0.7, 3.0])
def test_joints_are_exact_marginals_of_the_mrf_on_a_tree(coupling):
    log_p = log_marginals(6, CLASSES)
    messages = coupled_messages(log_p[TREE], number(coupling))
    mrf = ew.PairwiseMRF(unary_potentials(log_p, TREE, messages), TREE, coupling * torch.eye(CLASSES))
    exact = ew.exact_marginals(mrf)[0]
    torch.testing.assert_close(exact.node, log_p.exp(), atol=1e-8, rtol=0.0)
    torch.testing.assert_close(exact.joint(TREE), joints_from_messages(log_p[TREE], coupling), atol=1e-8, rtol=0.0)


def test_messages_are_a_fixed_point_of_sum_product_on_loops():
    loop = torch.tensor([[0, 0, 1, 2, 0], [1, 2, 2, 3, 3]])
    log_p = log_marginals(4, CLASSES)
    messages = coupled_messages(log_p[loop], number(1.0))
    mrf = ew.PairwiseMRF(unary_potentials(log_p, loop, messages), loop, torch.eye(CLASSES))
    again = sweep(mrf, messages, log_sum)
    torch.testing.assert_close(again, messages - messages.amax(-1, keepdim=True), atol=1e-8, rtol=0.0)


# The likelihood.


@pytest.mark.parametrize("coupling", [-1.5, 0.0, 2.0])
def test_bethe_log_likelihood_is_exact_on_a_tree(coupling):
    """log P(y) = energy - log Z, with Z summed over all 3⁶ labelings."""
    log_p = log_marginals(6, CLASSES)
    unary = unary_potentials(log_p, TREE, coupled_messages(log_p[TREE], number(coupling)))
    labelings = torch.cartesian_prod(*[torch.arange(CLASSES)] * 6)
    energy = unary[torch.arange(6), labelings].sum(1)
    energy = energy + coupling * (labelings[:, TREE[0]] == labelings[:, TREE[1]]).sum(1)
    for row in (0, 100, 728):
        y = labelings[row]
        result = bethe_log_likelihood(log_p, y, TREE, number(coupling))
        assert float(result) == pytest.approx(float(energy[row] - energy.logsumexp(0)), abs=1e-7)


def test_pointwise_mutual_information_equals_reference_loop():
    log_p, y = log_marginals(2, 9, CLASSES), torch.randint(CLASSES, (2, 9), generator=torch.Generator().manual_seed(1))
    result = pointwise_mutual_information(log_p, number(1.7), y).tolist()
    for e, (p, r) in enumerate(zip(*log_p.exp().numpy(), strict=True)):
        l, m = y[:, e].tolist()  # noqa: E741 (a label)
        assert result[e] == pytest.approx(np.log(sinkhorn_loop(p, r, 1.7)[l, m] / (p[l] * r[m])), abs=1e-7)


@pytest.mark.parametrize("coupling", [-1.0, 0.3, 1.5])
def test_gradients_of_pointwise_mutual_information(coupling):
    logits = log_marginals(2, 4, CLASSES, spread=1.0).requires_grad_()
    y = torch.tensor([[0, 1, 2, 0], [0, 2, 2, 1]])

    def information(logits, coupling):
        return pointwise_mutual_information(logits.log_softmax(-1), coupling, y)

    assert torch.autograd.gradcheck(information, (logits, number(coupling).requires_grad_()), atol=1e-6)


def unrolled_messages(log_p, coupling, max_iterations=2000):
    """Scale rows and columns alternately, with a gradient through all iterations."""
    (at_start, at_end), factor = log_p, torch.expm1(coupling)
    into_end = torch.zeros_like(at_end)
    for _ in range(max_iterations):
        into_start = torch.log1p(factor * (at_end - into_end).softmax(-1))
        previous, into_end = into_end, torch.log1p(factor * (at_start - into_start).softmax(-1))
        if float((into_end - previous).detach().abs().max()) < 1e-10:
            break
    return torch.stack([torch.log1p(factor * (at_end - into_end).softmax(-1)), into_end])


@pytest.mark.parametrize("coupling", [-4.0, -1.0, 0.0, 0.3, 1.5, 5.0])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_messages_and_gradients_equal_unrolled_iterations(coupling, spread):
    logits, w = log_marginals(2, 20, CLASSES, spread=spread).requires_grad_(), number(coupling).requires_grad_()
    ours, unrolled = (messages(logits.log_softmax(-1), w) for messages in (coupled_messages, unrolled_messages))
    torch.testing.assert_close(ours, unrolled, atol=1e-7, rtol=0.0)
    without_gradient = coupled_messages(logits.detach().log_softmax(-1), w.detach())
    torch.testing.assert_close(ours, without_gradient, atol=1e-12, rtol=0.0)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result, expected = (torch.autograd.grad((weights * m).sum(), (logits, w)) for m in (ours, unrolled))
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("coupling", [-6.0, 6.0])
def test_extreme_marginals_have_finite_gradients(coupling):
    log_p = (1000 * log_marginals(2, 6, CLASSES)).log_softmax(-1).requires_grad_()
    w = number(coupling).requires_grad_()
    labels = torch.zeros(2, 6, dtype=torch.long)
    gradients = torch.autograd.grad(pointwise_mutual_information(log_p, w, labels).sum(), (log_p, w))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("coupling", [-2.0, 0.0, 1.5])
def test_second_derivatives(coupling):
    logits, w = log_marginals(2, 3, CLASSES).requires_grad_(), number(coupling).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z, w: coupled_messages(z.log_softmax(-1), w), (logits, w), atol=1e-6)


@given(
    seed=st.integers(0, 10_000),
    couplings=st.lists(st.floats(-6, 300), min_size=4, max_size=4),
    num_classes=st.integers(1, 6),
    spread=st.floats(0.0, 8.0),
)
def test_marginals_are_exact_for_large_couplings(seed, couplings, num_classes, spread):
    """One coupling per edge. Alternate scaling of rows and columns would not converge."""
    log_p, w = log_marginals(2, 4, num_classes, seed=seed, spread=spread), number(couplings)
    start, end = log_p - coupled_messages(log_p, w)
    q = (start.unsqueeze(2) + end.unsqueeze(1) + w[:, None, None] * torch.eye(num_classes)).flatten(1).softmax(1)
    q = q.view(4, num_classes, num_classes)
    torch.testing.assert_close(q.sum(2), log_p[0].exp(), atol=1e-9, rtol=0.0)
    torch.testing.assert_close(q.sum(1), log_p[1].exp(), atol=1e-9, rtol=0.0)


def test_messages_in_single_precision():
    log_p, w = log_marginals(2, 50, CLASSES), number(3.0)
    torch.testing.assert_close(coupled_messages(log_p.float(), w.float()), coupled_messages(log_p, w).float())
