"""Fixed-point iteration with damping, a convergence report and implicit gradients.

Sum-product, max-product and mean field repeat x ← f(x) until x no longer changes. One evaluation of f is called a
sweep: it updates all messages, or all node marginals, once and in parallel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.posterior import Convergence
from edgewise.validation import check_number, check_whole_number

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
MAX_FIXED_POINT_RESIDUAL = 1e-4  # up to which x counts as a fixed point; the implicit gradient's error is of this order
MAX_ADJOINT_SWEEPS = 10_000

DAMPINGS = (0.0, 0.5, 0.9)  # a damping that adapts takes these values in turn
MIN_SWEEPS_PER_DAMPING = 64  # divided by 1 - damping, before progress is judged
MIN_PROGRESS = 0.01  # decrease of the residual, as a fraction, that counts as progress

ADJOINT_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}

FOREST, ENUMERATION, ELIMINATION = (
    Convergence(converged=True, sweeps=0, residual=0.0, method=method)
    for method in ("forest", "enumeration", "elimination")
)

Update = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StoppingRule:
    """Options of a fixed-point iteration: when it stops, and the fraction of the old value that each sweep keeps.

    If ``damping`` is None, the fraction adapts.
    """

    max_sweeps: int
    damping: float | None
    tolerance: float
    method: str = ""

    @classmethod
    def from_options(
        cls, method: str, max_sweeps: int, damping: float | None, tolerance: float | None, dtype: torch.dtype
    ) -> "StoppingRule":
        """Check the options of a solver and fill in the default tolerance of the dtype."""
        check_whole_number("max_sweeps", max_sweeps, 1, 2**31 - 1)
        if damping is not None:
            check_number("damping", damping, least=0, below=1)
        if tolerance is None:
            return cls(max_sweeps, damping, TOLERANCE[dtype], method)
        check_number("tolerance", tolerance, least=0)
        return cls(max_sweeps, damping, float(tolerance), method)


class Damping:
    """The damping of each sweep: constant, or raised whenever the residual stops decreasing.

    Progress is judged over the sweeps since the last change. Their number doubles each time, so that slow progress is
    recognized too.

    >>> damping = Damping(None)
    >>> damping.next([]), damping.next([1.0] * 64), damping.next([1.0] * 192)
    (0.0, 0.5, 0.9)
    """

    def __init__(self, constant: float | None):
        self._values = DAMPINGS if constant is None else (constant,)
        self._is_constant = constant is not None
        self._level = self._first = 0  # the index of the current value, and its first sweep
        self._set_window()

    @property
    def value(self) -> float:
        """The damping of the last sweep."""
        return self._values[self._level]

    def _set_window(self) -> None:
        self._window = round(MIN_SWEEPS_PER_DAMPING / (1.0 - self.value))

    def next(self, residuals: Sequence[float]) -> float | None:
        """Return the damping of the next sweep, or None if the residual does not decrease with the largest damping."""
        if self._is_constant or len(residuals) < self._first + self._window:
            return self.value
        if _is_decreasing(residuals[self._first :]):
            self._window *= 2
        elif self._level + 1 == len(self._values):
            return None
        else:
            self._level, self._first = self._level + 1, len(residuals)
            self._set_window()
        return self.value


def _is_decreasing(residuals: Sequence[float]) -> bool:
    """Return whether the smallest residual of the second half is below that of the first half."""
    half = len(residuals) // 2
    return min(residuals[half:]) < (1.0 - MIN_PROGRESS) * min(residuals[:half])


def iterate(
    update: Update, start: Tensor, change: Callable[[Tensor, Tensor], float], stopping: StoppingRule
) -> tuple[Tensor, Convergence]:
    """Repeat x ← damping · x + (1 - damping) · update(x) until ``change(x, update(x))`` is within the tolerance."""
    x, residuals, damping = start, list[float](), Damping(stopping.damping)
    while not is_finished(residuals, stopping) and (keep := damping.next(residuals)) is not None:
        updated = update(x)
        residuals.append(change(x, updated))
        x = x.lerp(updated, 1.0 - keep)
    return x, assess_convergence(residuals, stopping, damping.value)


def is_finished(residuals: Sequence[float], stopping: StoppingRule) -> bool:
    """Return whether the last residual is within the tolerance, or the number of sweeps is at its maximum."""
    return len(residuals) == stopping.max_sweeps or (len(residuals) > 0 and residuals[-1] <= stopping.tolerance)


def assess_convergence(residuals: Sequence[float], stopping: StoppingRule, damping: float) -> Convergence:
    """Return whether the residuals of all sweeps converged, with advice if they did not."""
    sweeps, last = len(residuals), residuals[-1] if residuals else 0.0
    if last <= stopping.tolerance:
        return Convergence(True, sweeps, last, method=stopping.method, damping=damping)
    advice = f"The residual does not decrease: {_advice_if_stalled(stopping)}."
    if sweeps < 4 or _is_decreasing(residuals):
        advice = "The residual may still decrease: raise max_sweeps."
    problem = (
        f"Did not converge in {sweeps} sweeps: the residual is {last:.2g}, the tolerance is {stopping.tolerance:.2g}."
    )
    return Convergence(False, sweeps, last, f"{problem} {advice}", stopping.method, damping=damping)


def _advice_if_stalled(stopping: StoppingRule) -> str:
    if stopping.damping is not None and stopping.damping < 0.9:
        return "try damping=None, which adapts"
    if stopping.method == "max-product":
        return "use map_labels, which finds the most likely labeling exactly or improves this one"
    return "use infer, which tries exact inference and tree_reweighted"


def fix_damping(stopping: StoppingRule, convergence: Convergence) -> StoppingRule | None:
    """Return options that repeat a run without convergence with its last damping, or None if that would change nothing.

    A gradient through the sweeps needs the same damping in all of them.
    """
    if convergence or stopping.damping is not None or convergence.damping == 0:
        return None
    return StoppingRule(convergence.sweeps, convergence.damping, stopping.tolerance, stopping.method)


def attach_gradient(update: Update, start: Tensor, result: Tensor, convergence: Convergence) -> Tensor:
    """Return the result of an iteration with a gradient: implicit at a fixed point, else through the sweeps.

    The sweeps are repeated from the start, with the damping of the last one.
    """
    if convergence.converged and convergence.residual <= MAX_FIXED_POINT_RESIDUAL:
        return attach_implicit_gradient(update, result, convergence.damping)
    x = start
    for _ in range(convergence.sweeps):
        x = x.lerp(update(x), 1.0 - convergence.damping)
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
