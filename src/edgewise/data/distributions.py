"""Rows that must be distributions: what is wrong with one is said once, with the way out."""

import torch
from torch import Tensor

from edgewise.data.compiled import worth_compiling

# How far a row may be from 1: rounding to the dtype; and float64 often holds float32 numbers, or decimals.
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
CHECK_ELEMENTS = 1 << 22


def check_distributions(p: Tensor, name: str, row: str) -> None:
    """Check that p[i] is not negative and sums to 1, for each i; ``row`` is what a message calls p[i]."""
    if p.dtype not in SUM_TOLERANCE:
        raise ValueError(f"Expected {name} to hold floating-point probabilities, but got dtype {p.dtype}.")
    bad = first_bad_row(p.detach().flatten(1), SUM_TOLERANCE[p.dtype])
    if bad is not None:
        _refuse_row(p[bad].flatten().double(), f"{row} {bad} of {name}", row)


def first_bad_row(p: Tensor, tolerance: float) -> int | None:
    """Find a row that is no distribution; a chunk at a time, so that nothing large is made."""
    if worth_compiling(p):
        from edgewise.data.many_distributions import first_bad_row_of_many

        return first_bad_row_of_many(p, tolerance)
    step = max(1, CHECK_ELEMENTS // max(1, p.shape[1]))
    for lo in range(0, len(p), step):
        part = p[lo : lo + step]
        # A comparison with NaN is false, so a NaN anywhere in a row fails it.
        good = ((part.sum(1, dtype=torch.float64) - 1.0).abs() <= tolerance) & (part.amin(1) >= 0)
        if not bool(good.all()):
            return lo + int((~good).nonzero()[0])
    return None


def _refuse_row(values: Tensor, place: str, row: str) -> None:
    if bool(values.isnan().any()):
        raise ValueError(
            f"Expected probabilities, but {place} holds NaN. Train again if the model diverged; predict every {row} if "
            "some were left out."
        )
    if float(values.min()) < 0:
        raise ValueError(
            f"Expected probabilities, but {place} holds {float(values.min()):.6g}. For logits pass logits.softmax(-1)."
        )
    total = float(values.sum())
    raise ValueError(
        f"Expected probabilities that sum to 1 in each {row}, but {place} sums to {total:.6g}. "
        f"{_way_to_sum_to_one(total, len(values))}"
    )


def _way_to_sum_to_one(total: float, num_values: int) -> str:
    if num_values == 1:
        return "If it is the probability of class 1, pass both columns: np.column_stack([1 - p, p])."
    if abs(total - 1.0) < 0.02:
        return "If they are rounded, divide each row by its sum: p / p.sum(1, keepdims=True)."
    if abs(total - 100.0) < 2.0:
        return "For percentages pass p / 100."
    return "For logits pass logits.softmax(-1); a column that is no class, such as an id, must be left out."
