"""Adam against torch.optim.Adam."""

import pytest
import torch

from edgewise.kernels.adam import Adam, step_compiled, step_tensors


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
    ours, theirs = initial_weights(dtype), initial_weights(dtype)
    optimizer = Adam(0.01, decay).optimizer(ours)
    torch_optimizer = torch.optim.Adam(list(theirs.values()), lr=0.01, weight_decay=decay)
    for _ in range(100):
        optimizer.step(nonlinear_loss(ours))
        torch_optimizer.zero_grad()
        nonlinear_loss(theirs).backward()
        torch_optimizer.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=tolerance, atol=tolerance)


def test_compiled_step_equals_tensors():
    generator = torch.Generator().manual_seed(1)
    parts = [torch.rand(7, 3, generator=generator, dtype=torch.float64) for _ in range(4)]
    compiled, tensors = ([part.clone() for part in parts] for _ in range(2))
    step_compiled(*compiled, 0.02, 0.5, 1e-3)
    step_tensors(*tensors, 0.02, 0.5, 1e-3)
    for one, other in zip(compiled, tensors, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0)
    assert not torch.equal(compiled[0], parts[0])


def test_steps_after_restore_are_repeated():
    ours = initial_weights(torch.float32)
    optimizer = Adam(0.01, 5e-4).optimizer(ours)
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
