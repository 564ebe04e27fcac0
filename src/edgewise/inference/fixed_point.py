"""The gradient of a fixed point, without the sweeps that led to it."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

SETTLED = 1e-4  # the residual below which messages count as a fixed point; the error of the gradient is of its order
ADJOINT_SWEEPS = 10_000
ADJOINT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}


def attach(
    step: Callable[[Tensor], Tensor], fixed: Tensor, damping: float = 0.0, max_sweeps: int = ADJOINT_SWEEPS
) -> Tensor:
    """Give a fixed point of ``step`` a gradient with respect to all that ``step`` depends on.

    For x = f(x, θ) the gradient g of x becomes λ ∂f/∂θ with λ = g + λ ∂f/∂x, which is solved by iterating: it takes
    about as many products with ∂f/∂x as f took sweeps, and the memory of one sweep. It converges where the sweeps do,
    with the same damping.
    """
    inside = fixed.detach().requires_grad_()
    with torch.enable_grad():
        again = step(inside)
    attached: Tensor = step(fixed.detach())

    def solve(gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Expected a first derivative, but a second one of a fixed point is not available. Ask for fewer sweeps "
                "than it takes to converge: then the derivatives are those of the sweeps."
            )
        adjoint = gradient
        for _ in range(max_sweeps):
            (pulled,) = torch.autograd.grad(again, inside, adjoint, retain_graph=True, allow_unused=True)
            following = adjoint.lerp(gradient if pulled is None else gradient + pulled, 1.0 - damping)
            change = float((following - adjoint).abs().max())
            adjoint = following
            if not math.isfinite(change):
                break
            if change <= ADJOINT_TOLERANCE[gradient.dtype] * float(adjoint.abs().max()):
                return adjoint
        raise RuntimeError(
            "Expected a stable fixed point to differentiate, but its gradient does not converge. Try more damping or "
            "weaker couplings, or ask for fewer sweeps than it takes to converge: then the gradient is that of the "
            "sweeps."
        )

    if attached.requires_grad and attached.numel():
        attached.register_hook(solve)
    return attached
