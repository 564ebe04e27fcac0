"""Fixed-point iteration with damping, a convergence report and implicit gradients.

Sum-product, max-product and mean field repeat x ← f(x) until x no longer changes. One evaluation of f is called a
sweep: it updates all messages, or all node marginals, once and in parallel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.posterior import Convergence
from edgewise.validation import check_number, check_whole_number

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
MAX_FIXED_POINT_RESIDUAL = 1e-4  # up to which x counts as a fixed point; the implicit gradient's error is of this order
MAX_ADJOINT_SWEEPS = 10_000
ADJOINT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}

FOREST, ENUMERATION, ELIMINATION = (
    Convergence(converged=True, sweeps=0, residual=0.0, method=method)
    for method in ("forest", "enumeration", "elimination")
)

Update = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StoppingRule:
    """Options of a fixed-point iteration: when it stops, and the fraction of the old value that each sweep keeps."""

    max_sweeps: int
    damping: float
    tolerance: float
    method: str = ""

    @classmethod
    def from_options(
        cls, method: str, max_sweeps: int, damping: float, tolerance: float | None, dtype: torch.dtype
    ) -> "StoppingRule":
        """Check the options of a solver and fill in the default tolerance of the dtype."""
        check_whole_number("max_sweeps", max_sweeps, 1, 2**31 - 1)
        check_number("damping", damping, least=0, below=1)
        if tolerance is None:
            return cls(max_sweeps, damping, TOLERANCE[dtype], method)
        check_number("tolerance", tolerance, least=0)
        return cls(max_sweeps, damping, float(tolerance), method)


def iterate(
    update: Update, start: Tensor, change: Callable[[Tensor, Tensor], float], stopping: StoppingRule
) -> tuple[Tensor, Convergence]:
    """Repeat x ← damping · x + (1 - damping) · update(x) until ``change(x, update(x))`` is within the tolerance."""
    x, residuals = start, list[float]()
    while len(residuals) < stopping.max_sweeps and (not residuals or residuals[-1] > stopping.tolerance):
        updated = update(x)
        residuals.append(change(x, updated))
        x = x.lerp(updated, 1.0 - stopping.damping)
    return x, assess_convergence(residuals, stopping)


def assess_convergence(residuals: list[float], stopping: StoppingRule) -> Convergence:
    """Return whether the residuals of all sweeps converged, with advice if they did not."""
    sweeps, last = len(residuals), residuals[-1] if residuals else 0.0
    if last <= stopping.tolerance:
        return Convergence(True, sweeps, last, method=stopping.method)
    advice = f"The residual does not decrease: {_advice_if_stalled(stopping.damping)}."
    if sweeps < 4 or last < 0.95 * min(residuals[: sweeps // 2]):
        advice = "The residual may still decrease: raise max_sweeps."
    problem = (
        f"Did not converge in {sweeps} sweeps: the residual is {last:.2g}, the tolerance is {stopping.tolerance:.2g}."
    )
    return Convergence(False, sweeps, last, f"{problem} {advice}", stopping.method)


def _advice_if_stalled(damping: float) -> str:
    if damping >= 0.9:
        return "use infer, which tries exact inference and tree_reweighted"
    return f"try damping={0.5 if damping < 0.5 else 0.9}, or infer"


def attach_gradient(update: Update, start: Tensor, result: Tensor, convergence: Convergence, damping: float) -> Tensor:
    """Return the result of an iteration with a gradient: implicit at a fixed point, else through the sweeps."""
    if convergence.converged and convergence.residual <= MAX_FIXED_POINT_RESIDUAL:
        return attach_implicit_gradient(update, result, damping)
    x = start
    for _ in range(convergence.sweeps):
        x = x.lerp(update(x), 1.0 - damping)
    return x


def attach_implicit_gradient(
    update: Update, fixed: Tensor, damping: float = 0.0, max_sweeps: int = MAX_ADJOINT_SWEEPS
) -> Tensor:
    """Return a fixed point of ``update`` with a gradient with respect to everything that ``update`` depends on.

    By the implicit function theorem, for x = f(x, θ) the gradient g of x becomes λ ∂f/∂θ, where λ = g + λ ∂f/∂x. The
    equation for λ is solved by iteration. This takes about as many products with ∂f/∂x as there were sweeps, and the
    memory of one sweep. It converges where the sweeps converge, with the same damping.
    """
    inputs = fixed.detach().requires_grad_()
    with torch.enable_grad():
        outputs = update(inputs)
    attached: Tensor = update(fixed.detach())

    def solve(gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Expected a first derivative, but second derivatives of a fixed point are not available. Set "
                "max_sweeps lower than it takes to converge, to differentiate through the sweeps."
            )
        adjoint = gradient
        for _ in range(max_sweeps):
            (product,) = torch.autograd.grad(outputs, inputs, adjoint, retain_graph=True, allow_unused=True)
            updated = adjoint.lerp(gradient if product is None else gradient + product, 1.0 - damping)
            change = float((updated - adjoint).abs().max())
            adjoint = updated
            if not math.isfinite(change):
                break
            if change <= ADJOINT_TOLERANCE[gradient.dtype] * float(adjoint.abs().max()):
                return adjoint
        raise RuntimeError(
            "Expected a stable fixed point to differentiate, but its gradient does not converge. Use more damping or "
            "weaker couplings, or set max_sweeps lower than it takes to converge, to differentiate through the sweeps."
        )

    if attached.requires_grad and attached.numel():
        attached.register_hook(solve)
    return attached
