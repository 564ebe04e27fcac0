"""What a solver says about its answer."""

from dataclasses import dataclass

import torch

from edgewise.inference.mrf import PairwiseMRF
from edgewise.validation import check_number, check_whole_number


@dataclass(frozen=True)
class Convergence:
    """Whether an iteration came to rest.

    It is true where ``converged`` is, so ``if not convergence: print(convergence.advice)`` works.

    Attributes
    ----------
    converged
        Whether the residual fell to the tolerance.
    sweeps
        How many sweeps it took; 0 for exact inference.
    residual
        The largest change in the last sweep: of a log-message, relative to its size where that is more than 1, or of a
        probability (mean field).
    advice
        What to do about an iteration that did not converge; empty where there is nothing to say.

    Examples
    --------
    >>> import torch, edgewise as ew
    >>> triangle = ew.PairwiseMRF(torch.eye(3)[:, :2], torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = ew.sum_product(triangle, max_sweeps=2, tolerance=0.0)
    >>> convergence.converged, convergence.advice
    (False, 'Did not converge in 2 sweeps: the residual is ..., the tolerance 0. It may still fall: raise max_sweeps.')
    """

    converged: bool
    sweeps: int
    residual: float
    advice: str = ""

    def __bool__(self) -> bool:
        return self.converged


EXACT = Convergence(converged=True, sweeps=0, residual=0.0)


def verdict(residuals: list[float], tolerance: float, damping: float) -> Convergence:
    """Judge an iteration by the residuals of its sweeps."""
    last = residuals[-1] if residuals else 0.0
    if last <= tolerance:
        return Convergence(True, len(residuals), last)
    words = f"Did not converge in {len(residuals)} sweeps: the residual is {last:.2g}, the tolerance {tolerance:.2g}."
    if len(residuals) < 4 or last < 0.95 * min(residuals[: len(residuals) // 2]):
        return Convergence(False, len(residuals), last, f"{words} It may still fall: raise max_sweeps.")
    way_out = f"try damping={0.5 if damping < 0.5 else 0.9}, or weaker couplings"
    if damping >= 0.9:
        way_out = "use weaker couplings, mean_field, or exact_marginals if the graph is small"
    return Convergence(False, len(residuals), last, f"{words} It does not fall: {way_out}.")


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def check_field(mrf: object) -> None:
    """Refuse what is no field."""
    if not isinstance(mrf, PairwiseMRF):
        raise ValueError(f"Expected a PairwiseMRF, but got {type(mrf).__name__}. Make one: ew.PairwiseMRF(unary, …).")


def check_options(max_sweeps: object, damping: object) -> None:
    """Refuse options that make no sense."""
    check_whole_number("max_sweeps", max_sweeps, 1, 2**31 - 1)
    check_number("damping", damping, least=0, below=1)


def checked_tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    """Give the tolerance, by default one that fits the dtype."""
    if tolerance is None:
        return TOLERANCE[dtype]
    check_number("tolerance", tolerance, least=0)
    return float(tolerance)
