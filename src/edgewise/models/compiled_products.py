"""Sparse products in compiled loops: rows are sums over a few rows of a dense matrix that lies in the cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import Crew, vectorised
from edgewise.models.sparse import Kept, Rows

Array = NDArray[Any]


def run_compiled(rows: Rows, dense: Tensor, num_rows: int, kept: Kept | None, crew: Crew) -> Tensor:
    """Multiply on the CPU, in slices of rows."""
    if num_rows == 0 or len(rows.column) == 0:
        return dense.new_zeros(num_rows, dense.shape[1])
    out = dense.new_empty(num_rows, dense.shape[1])
    first, column, value, place = (part.numpy() for part in rows)
    right, result = dense.numpy(), out.numpy()
    work = len(column) * dense.shape[1]
    if kept is None:
        crew.share(lambda lo, hi: _multiply(lo, hi, first, column, value, right, result), num_rows, work)
        return out
    entries, scale = kept.entries.numpy(), right.dtype.type(kept.scale)
    crew.share(
        lambda lo, hi: _multiply_kept(lo, hi, first, column, value, place, entries, scale, right, result),
        num_rows,
        work,
    )
    return out


@vectorised
def _multiply(lo: int, hi: int, first: Array, index: Array, value: Array, dense: Array, out: Array) -> None:
    """Add rows of ``dense``, four at a time, so that the sum is loaded and stored once for four."""
    width = dense.shape[1]
    out[lo:hi] = 0.0
    for block in range(0, len(first) - 1, len(out)):
        for row in range(lo, hi):
            e, end = first[block + row], first[block + row + 1]
            while e + 3 < end:
                a, b, c, d = index[e], index[e + 1], index[e + 2], index[e + 3]
                u, v, w, x = value[e], value[e + 1], value[e + 2], value[e + 3]
                for k in range(width):
                    out[row, k] += (u * dense[a, k] + v * dense[b, k]) + (w * dense[c, k] + x * dense[d, k])
                e += 4
            while e < end:
                a, u = index[e], value[e]
                for k in range(width):
                    out[row, k] += u * dense[a, k]
                e += 1


@vectorised
def _multiply_kept(
    lo: int,
    hi: int,
    first: Array,
    index: Array,
    value: Array,
    place: Array,
    entries: Array,
    scale: float,
    dense: Array,
    out: Array,
) -> None:
    """Gather what is kept of a row, then add as `_multiply` does."""
    width, longest = dense.shape[1], 0
    for segment in range(len(first) - 1):
        longest = max(longest, first[segment + 1] - first[segment])
    chosen, weight = np.empty(longest + 1, dtype=index.dtype), np.empty(longest + 1, dtype=dense.dtype)
    out[lo:hi] = 0.0
    for block in range(0, len(first) - 1, len(out)):
        for row in range(lo, hi):
            num = 0
            for e in range(first[block + row], first[block + row + 1]):
                chosen[num] = index[e]
                weight[num] = value[e] * scale
                num += entries[place[e]]  # without a branch, which would be mispredicted half of the time
            e = 0
            while e + 3 < num:
                a, b, c, d = chosen[e], chosen[e + 1], chosen[e + 2], chosen[e + 3]
                u, v, w, x = weight[e], weight[e + 1], weight[e + 2], weight[e + 3]
                for k in range(width):
                    out[row, k] += (u * dense[a, k] + v * dense[b, k]) + (w * dense[c, k] + x * dense[d, k])
                e += 4
            while e < num:
                a, u = chosen[e], weight[e]
                for k in range(width):
                    out[row, k] += u * dense[a, k]
                e += 1
