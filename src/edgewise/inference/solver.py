"""What a solver says about its answer."""

import torch

from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import Convergence
from edgewise.validation import check_number, check_whole_number

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
