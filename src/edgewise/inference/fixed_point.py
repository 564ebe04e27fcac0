"""Fixed-point iteration: when it stops, whether it converged, and the gradient of what it stopped at.

Sum-product, max-product and mean field repeat x ← f(x) until x no longer changes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.posterior import Convergence
from edgewise.validation import check_number, check_whole_number

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
MAX_FIXED_POINT_RESIDUAL = 1e-4  # above, x is no fixed point; the error of the implicit gradient is of this order
MAX_ADJOINT_SWEEPS = 10_000
ADJOINT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}

EXACT = Convergence(converged=True, sweeps=0, residual=0.0)

Update = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Stopping:
    """When an iteration stops, and how much of the old value each sweep keeps."""

    max_sweeps: int
    damping: float
    tolerance: float

    @classmethod
    def checked(cls, max_sweeps: int, damping: float, tolerance: float | None, dtype: torch.dtype) -> "Stopping":
        """Check the options of a solver; the default tolerance fits the dtype."""
        check_whole_number("max_sweeps", max_sweeps, 1, 2**31 - 1)
        check_number("damping", damping, least=0, below=1)
        if tolerance is None:
            return cls(max_sweeps, damping, TOLERANCE[dtype])
        check_number("tolerance", tolerance, least=0)
        return cls(max_sweeps, damping, float(tolerance))


def iterate(
    update: Update, start: Tensor, change: Callable[[Tensor, Tensor], float], stopping: Stopping
) -> tuple[Tensor, Convergence]:
    """Repeat x ← damping · x + (1 - damping) · update(x) until ``change(x, update(x))`` is within the tolerance."""
    x, residuals = start, list[float]()
    while len(residuals) < stopping.max_sweeps and (not residuals or residuals[-1] > stopping.tolerance):
        updated = update(x)
        residuals.append(change(x, updated))
        x = x.lerp(updated, 1.0 - stopping.damping)
    return x, judge(residuals, stopping)


def judge(residuals: list[float], stopping: Stopping) -> Convergence:
    """Tell from the residuals of all sweeps whether they converged, and if not what may help."""
    sweeps, last = len(residuals), residuals[-1] if residuals else 0.0
    if last <= stopping.tolerance:
        return Convergence(True, sweeps, last)
    problem = (
        f"Did not converge in {sweeps} sweeps: the residual is {last:.2g}, the tolerance {stopping.tolerance:.2g}."
    )
    if sweeps < 4 or last < 0.95 * min(residuals[: sweeps // 2]):
        return Convergence(False, sweeps, last, f"{problem} It may still fall: raise max_sweeps.")
    way_out = f"try damping={0.5 if stopping.damping < 0.5 else 0.9}, or weaker couplings"
    if stopping.damping >= 0.9:
        way_out = "use weaker couplings, mean_field, or exact_marginals if the graph is small"
    return Convergence(False, sweeps, last, f"{problem} It does not fall: {way_out}.")


def with_gradient(
    update: Update, start: Tensor, stopped_at: Tensor, convergence: Convergence, damping: float
) -> Tensor:
    """Return what an iteration stopped at, with a gradient: implicit at a fixed point, else through its sweeps."""
    if convergence.converged and convergence.residual <= MAX_FIXED_POINT_RESIDUAL:
        return attach(update, stopped_at, damping)
    x = start
    for _ in range(convergence.sweeps):
        x = x.lerp(update(x), 1.0 - damping)
    return x


def attach(update: Update, fixed: Tensor, damping: float = 0.0, max_sweeps: int = MAX_ADJOINT_SWEEPS) -> Tensor:
    """Return a fixed point of ``update`` with a gradient with respect to all that ``update`` depends on.

    For x = f(x, θ) the gradient g of x becomes λ ∂f/∂θ with λ = g + λ ∂f/∂x, which is solved by iterating: it takes
    about as many products with ∂f/∂x as f took sweeps, and the memory of one sweep. It converges where the sweeps do,
    with the same damping.
    """
    inside = fixed.detach().requires_grad_()
    with torch.enable_grad():
        again = update(inside)
    attached: Tensor = update(fixed.detach())

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
