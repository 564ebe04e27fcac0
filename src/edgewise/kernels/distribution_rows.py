"""Compiled search for a row that is not a probability distribution."""

from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]


def find_invalid_row(p: Float[Tensor, "rows classes"], tolerance: float) -> int | None:
    """Return the index of the first row with a negative or NaN entry or with a sum other than 1, or None."""
    rows = p.numpy()

    def search(lo: int, hi: int) -> int | None:
        row: int = _find_invalid_row(rows[lo:hi], tolerance)
        return lo + row if row < hi - lo else None

    return next((row for row in map_slices(search, len(rows)) if row is not None), None)


@compiled
def _find_invalid_row(p: Array, tolerance: float) -> int:
    for i in range(p.shape[0]):
        total, lowest = 0.0, 0.0
        for c in range(p.shape[1]):
            total += p[i, c]
            lowest = min(lowest, p[i, c])
        if not (abs(total - 1.0) <= tolerance and lowest >= 0.0):  # NaN fails every comparison
            return i
    return len(p)
