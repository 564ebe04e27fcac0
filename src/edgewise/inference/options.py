"""The options that all iterations share."""

import torch

from edgewise.data.options import check_number, check_whole_number
from edgewise.inference.mrf import PairwiseMRF

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
