"""The options that all iterations share."""

from numbers import Real

import torch

from edgewise.data.arrays import check_whole_number
from edgewise.inference.mrf import PairwiseMRF

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def check_options(mrf: object, max_sweeps: object, damping: object, tolerance: float | None) -> float:
    """Refuse options that make no sense, and give the tolerance."""
    if not isinstance(mrf, PairwiseMRF):
        raise ValueError(f"Expected a PairwiseMRF, but got {type(mrf).__name__}. Make one: ew.PairwiseMRF(unary, …).")
    check_whole_number("max_sweeps", max_sweeps, 1, 2**31 - 1)
    if isinstance(damping, bool) or not isinstance(damping, Real) or not 0.0 <= float(damping) < 1.0:
        raise ValueError(f"Expected damping from 0 to below 1, but got {damping!r}.")
    if tolerance is None:
        return TOLERANCE[mrf.unary.dtype]
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0.0 <= float(tolerance) < float("inf"):
        raise ValueError(f"Expected a tolerance of 0 or more, but got {tolerance!r}.")
    return float(tolerance)
