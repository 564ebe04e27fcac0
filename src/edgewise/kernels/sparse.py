"""Sparse matrices times dense ones, with a gradient for the dense one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels import dispatch
from edgewise.kernels.dispatch import Threads, choose_implementation, vectorized

Matrix = Any  # of scipy, which ships no types


ROWS_PER_BLOCK = 1024  # of a dense matrix, which stay in the cache
MIN_ENTRIES_PER_ROW = 16  # of a block on average, or blocks do not pay


class RowEntries(NamedTuple):
    """The entries of a matrix: block of columns by block of columns, row by row in each; often there is one block."""

    first: Int[Tensor, " segments_and_one"]  # where each row of each block begins
    column: Int[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    place: Int[Tensor, " entries"]  # which entry of the matrix it is, row by row: its own place, unless transposed


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A matrix arranged by rows, to multiply by, and, when first asked for, by columns, for the gradient."""

    rows: RowEntries
    shape: tuple[int, int]
    grad_rows: int  # a gradient never comes from other rows than the first of them
    threads: Threads

    @classmethod
    def from_scipy(
        cls,
        matrix: Matrix,
        dtype: torch.dtype,
        device: torch.device,
        *,
        grad_rows: int | None = None,
        threads: Threads | None = None,
    ) -> "SparseMatrix":
        """Arrange a scipy matrix."""
        by_row = matrix.tocsr()
        by_row.sort_indices()
        rows = _rows(by_row.indptr, by_row.indices, by_row.data, np.arange(by_row.nnz), dtype, device)
        num = by_row.shape[0] if grad_rows is None else grad_rows
        return cls(rows, tuple(by_row.shape), num, threads or Threads(1))

    @cached_property
    def columns(self) -> RowEntries:
        """The transpose of the rows that a gradient comes from."""
        from scipy.sparse import csr_array

        first, column = self.rows.first[: self.grad_rows + 1].cpu().numpy(), self.rows.column.cpu().numpy()
        num, device = int(first[-1]), self.rows.value.device
        numbered = csr_array((np.arange(num), column[:num], first), shape=(self.grad_rows, self.shape[1]))
        filled = num >= MIN_ENTRIES_PER_ROW * self.shape[1] * (self.grad_rows // ROWS_PER_BLOCK)
        blocks_pay = filled and dispatch.runs_compiled(device)
        first, index, place = _transposed(numbered, ROWS_PER_BLOCK if blocks_pay else self.grad_rows)
        value = self.rows.value.cpu().numpy()[place]
        return _rows(first, index, value, place, self.rows.value.dtype, device)

    def matmul(
        self, dense: Float[Tensor, "columns width"], kept: "DropoutMask | None" = None
    ) -> Float[Tensor, "rows width"]:
        """Multiply without a gradient."""
        return _multiply(self.rows, dense, self.shape[0], kept, self.threads)

    def transpose_matmul(
        self, dense: Float[Tensor, "rows width"], kept: "DropoutMask | None" = None
    ) -> Float[Tensor, "columns width"]:
        """Multiply the transpose, without a gradient; rows from which none ever comes count as zero."""
        return _multiply(self.columns, dense, self.shape[1], kept, self.threads)

    @property
    def num_entries(self) -> int:
        """How many entries are stored."""
        return len(self.rows.column)


def _transposed(numbered: Matrix, block: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Arrange a matrix by columns, block of rows by block of rows; a short last block joins the one before."""
    num_blocks = max(1, numbered.shape[0] // max(1, block))
    bounds = [block * k for k in range(num_blocks)] + [numbered.shape[0]]
    parts = [numbered[lo:hi].T.tocsr() for lo, hi in pairwise(bounds)]  # in each column, rows are in order
    counts = np.concatenate([np.zeros(1, dtype=np.int64), *(np.diff(part.indptr) for part in parts)])
    index = np.concatenate([part.indices + lo for part, lo in zip(parts, bounds, strict=False)])
    return counts.cumsum(), index, np.concatenate([part.data for part in parts])


def _rows(
    first: NDArray[Any],
    index: NDArray[Any],
    value: NDArray[Any],
    place: NDArray[Any],
    dtype: torch.dtype,
    device: torch.device,
) -> RowEntries:
    narrow = np.int32 if len(index) < 1 << 31 else np.int64
    whole = [torch.from_numpy(part.astype(narrow)).to(device) for part in (first, index, place)]
    return RowEntries(whole[0], whole[1], torch.from_numpy(value).to(device, dtype), whole[2])


class DropoutMask(NamedTuple):
    """Which entries of a matrix count this time, and the factor that makes up for those that do not."""

    entries: UInt8[Tensor, " entries"]
    scale: float


def sparse_matmul(
    matrix: SparseMatrix, dense: Float[Tensor, "columns width"], kept: DropoutMask | None = None
) -> Float[Tensor, "rows width"]:
    """Multiply a sparse matrix, or what is kept of it, by a dense one.

    >>> from scipy.sparse import csr_array
    >>> matrix = SparseMatrix.from_scipy(csr_array([[0.0, 2.0], [1.0, 0.0]]), torch.float32, torch.device("cpu"))
    >>> sparse_matmul(matrix, torch.tensor([[1.0], [3.0]])).tolist()
    [[6.0], [1.0]]
    """
    return _sparse_matmul(dense, matrix, kept)


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, kept: DropoutMask | None) -> Tensor:
        ctx.matrix, ctx.kept = matrix, kept
        return matrix.matmul(dense, kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.matrix.transpose_matmul(grads[0], ctx.kept), None, None


_sparse_matmul: Callable[..., Tensor] = _SparseMatmul.apply


def _multiply(rows: RowEntries, dense: Tensor, num_rows: int, kept: DropoutMask | None, threads: Threads) -> Tensor:
    """Multiply; the sums of a row go entry by entry, so they do not depend on threads."""
    dense = dense.detach().contiguous()
    return choose_implementation(dense.device, matmul_compiled, matmul_tensors)(rows, dense, num_rows, kept, threads)


def matmul_tensors(
    rows: RowEntries, dense: Float[Tensor, "columns width"], num_rows: int, kept: DropoutMask | None, threads: Threads
) -> Tensor:
    """Do with torch's own sparse product, for one block of columns, what the compiled loops do."""
    value = rows.value
    if kept is not None:
        value = value * kept.entries[rows.place.long()].to(value.dtype) * kept.scale
    index = torch.stack([torch.repeat_interleave(rows.first.diff()), rows.column])
    shape = (num_rows, dense.shape[0])
    result: Tensor = torch.sparse_coo_tensor(index, value, shape, is_coalesced=True, check_invariants=False) @ dense
    return result


Array = NDArray[Any]


def matmul_compiled(
    rows: RowEntries, dense: Tensor, num_rows: int, kept: DropoutMask | None, threads: Threads
) -> Tensor:
    """Multiply on the CPU, in slices of rows."""
    if num_rows == 0 or len(rows.column) == 0:
        return dense.new_zeros(num_rows, dense.shape[1])
    out = dense.new_empty(num_rows, dense.shape[1])
    first, column, value, place = (part.numpy() for part in rows)
    right, result = dense.numpy(), out.numpy()
    work = len(column) * dense.shape[1]
    if kept is None:
        threads.run(lambda lo, hi: _multiply_rows(lo, hi, first, column, value, right, result), num_rows, work)
        return out
    entries, scale = kept.entries.numpy(), right.dtype.type(kept.scale)
    threads.run(
        lambda lo, hi: _multiply_kept(lo, hi, first, column, value, place, entries, scale, right, result),
        num_rows,
        work,
    )
    return out


@vectorized
def _multiply_rows(lo: int, hi: int, first: Array, index: Array, value: Array, dense: Array, out: Array) -> None:
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


@vectorized
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
    """Gather what is kept of a row, then add as `_multiply_rows` does."""
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
