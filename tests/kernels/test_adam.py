"""Adam against torch.optim.Adam."""

import pytest
import torch

from edgewise.kernels.adam import Adam


def nonlinear_loss(weights):
    """Compute a loss whose gradient differs between entries and steps."""
    return (weights["a"] ** 4).sum() / 4 + (weights["a"][0] * weights["b"]).sum() + weights["b"].sin().sum()


def initial_weights(dtype):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    b = torch.randn(5, generator=generator, dtype=torch.float64)
    return {"a": a.to(dtype).requires_grad_(), "b": b.to(dtype).requires_grad_()}


@pytest.mark.parametrize("decay", [0.0, 5e-4, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_steps_equal_torch_adam(dtype, tolerance, decay):
    theirs = initial_weights(dtype)
    optimizer = Adam(0.01, decay).optimizer(initial_weights(dtype))
    ours = optimizer.weights
    torch_optimizer = torch.optim.Adam(list(theirs.values()), lr=0.01, weight_decay=decay)
    for _ in range(100):
        optimizer.step(nonlinear_loss(ours))
        torch_optimizer.zero_grad()
        nonlinear_loss(theirs).backward()
        torch_optimizer.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=tolerance, atol=tolerance)


def test_steps_after_restore_are_repeated():
    optimizer = Adam(0.01, 5e-4).optimizer(initial_weights(torch.float32))
    ours = optimizer.weights
    for _ in range(3):
        optimizer.step(nonlinear_loss(ours))
    snapshot, curves = optimizer.snapshot(), []
    for _ in range(2):
        optimizer.restore(snapshot)
        curves.append([])
        for _ in range(4):
            loss = nonlinear_loss(ours)
            curves[-1].append(float(loss.detach()))
            optimizer.step(loss)
    assert curves[0] == curves[1]
    assert len(set(curves[0])) == 4


def test_weights_in_any_memory_order_are_updated_and_the_initial_ones_are_not():
    initial = {"a": torch.arange(6.0).view(2, 3).T}
    optimizer = Adam(0.01, 0.0).optimizer(initial)
    optimizer.step((optimizer.weights["a"] * torch.tensor([[1.0, -1.0], [1.0, -1.0], [1.0, 1.0]])).sum())
    expected = initial["a"] - 0.01 * torch.tensor([[1.0, -1.0], [1.0, -1.0], [1.0, 1.0]])
    torch.testing.assert_close(optimizer.weights["a"].detach(), expected)
    assert torch.equal(initial["a"], torch.arange(6.0).view(2, 3).T)
