"""The options that all iterations share."""

from numbers import Real
from typing import TypeGuard

import torch

from edgewise.data.arrays import check_whole_number
from edgewise.inference.mrf import PairwiseMRF

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def check_field(mrf: object) -> None:
    """Refuse what is no field."""
    if not isinstance(mrf, PairwiseMRF):
        raise ValueError(f"Expected a PairwiseMRF, but got {type(mrf).__name__}. Make one: ew.PairwiseMRF(unary, …).")


def check_options(max_sweeps: object, damping: object) -> None:
    """Refuse options that make no sense."""
    check_whole_number("max_sweeps", max_sweeps, 1, 2**31 - 1)
    if not _is_number(damping) or not 0.0 <= float(damping) < 1.0:
        raise ValueError(f"Expected damping from 0 to below 1, but got {damping!r}.")


def checked_tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    """Give the tolerance, by default one that fits the dtype."""
    if tolerance is None:
        return TOLERANCE[dtype]
    if not _is_number(tolerance) or not 0.0 <= float(tolerance) < float("inf"):
        raise ValueError(f"Expected a tolerance of 0 or more, but got {tolerance!r}.")
    return float(tolerance)


def _is_number(value: object) -> TypeGuard[Real]:
    return isinstance(value, Real) and not isinstance(value, bool)
