"""Adam against torch's."""

import pytest
import torch

from edgewise.kernels.adam import Adam, step_compiled, step_tensors


def bowl(weights):
    """A loss whose gradient differs from entry to entry and from step to step."""
    return (weights["a"] ** 4).sum() / 4 + (weights["a"][0] * weights["b"]).sum() + weights["b"].sin().sum()


def weights(dtype):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    b = torch.randn(5, generator=generator, dtype=torch.float64)
    return {"a": a.to(dtype).requires_grad_(), "b": b.to(dtype).requires_grad_()}


@pytest.mark.parametrize("decay", [0.0, 5e-4, 0.3])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_as_torch_does(dtype, near, decay):
    ours, theirs = weights(dtype), weights(dtype)
    steps = Adam(0.01, decay).optimizer(ours)
    optimizer = torch.optim.Adam(list(theirs.values()), lr=0.01, weight_decay=decay)
    for _ in range(100):
        steps.step(bowl(ours))
        optimizer.zero_grad()
        bowl(theirs).backward()
        optimizer.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=near, atol=near)


def test_tensors_do_what_the_compiled_loop_does():
    generator = torch.Generator().manual_seed(1)
    parts = [torch.rand(7, 3, generator=generator, dtype=torch.float64) for _ in range(4)]
    loop, tensors = ([part.clone() for part in parts] for _ in range(2))
    step_compiled(*loop, 0.02, 0.5, 1e-3)
    step_tensors(*tensors, 0.02, 0.5, 1e-3)
    for one, other in zip(loop, tensors, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0)
    assert not torch.equal(loop[0], parts[0])


def test_what_comes_after_a_return_is_what_came_before():
    ours = weights(torch.float32)
    steps = Adam(0.01, 5e-4).optimizer(ours)
    for _ in range(3):
        steps.step(bowl(ours))
    snapshot, curves = steps.snapshot(), []
    for _ in range(2):
        steps.restore(snapshot)
        curves.append([])
        for _ in range(4):
            loss = bowl(ours)
            curves[-1].append(float(loss.detach()))
            steps.step(loss)
    assert curves[0] == curves[1]
    assert len(set(curves[0])) == 4
