"""Products of sparse and dense matrices, with a gradient for the dense matrix."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels import dispatch
from edgewise.kernels.dispatch import Threads, choose_implementation, vectorized
from edgewise.kernels.simd import fill, load, store

Matrix = Any  # a scipy sparse matrix; scipy has no type hints

ROWS_PER_BLOCK = 1024  # rows of a dense matrix that fit into the cache
MIN_ENTRIES_PER_ROW = 16  # mean number of entries per row of a block; with fewer, blocks are slower
MIN_VECTOR_SIZE, MAX_VECTOR_SIZE = 8, 64  # columns of a dense matrix that are processed at a time


class RowEntries(NamedTuple):
    """The entries of a matrix in CSR format, for one block of columns after the other; usually there is one block."""

    first: Int[Tensor, " segments_and_one"]  # index of the first entry of each row of each block
    column: Int[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    entry: Int[Tensor, " entries"]  # index of the entry in the row-major order of the matrix


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A sparse matrix, stored by rows for products and, from its first use on, by columns for gradients."""

    rows: RowEntries
    shape: tuple[int, int]
    grad_rows: int  # only the first grad_rows rows of a product ever have a gradient
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
        """Convert a scipy sparse matrix."""
        by_row = matrix.tocsr()
        by_row.sort_indices()
        rows = _row_entries(by_row.indptr, by_row.indices, by_row.data, np.arange(by_row.nnz), dtype, device)
        num = by_row.shape[0] if grad_rows is None else grad_rows
        return cls(rows, tuple(by_row.shape), num, threads or Threads(1))

    @cached_property
    def columns(self) -> RowEntries:
        """The transpose of the first ``grad_rows`` rows."""
        from scipy.sparse import csr_array

        first, column = self.rows.first[: self.grad_rows + 1].cpu().numpy(), self.rows.column.cpu().numpy()
        num, device = int(first[-1]), self.rows.value.device
        numbered = csr_array((np.arange(num), column[:num], first), shape=(self.grad_rows, self.shape[1]))
        enough_entries = num >= MIN_ENTRIES_PER_ROW * self.shape[1] * (self.grad_rows // ROWS_PER_BLOCK)
        use_blocks = enough_entries and dispatch.runs_compiled(device)
        first, index, entry = _transpose(numbered, ROWS_PER_BLOCK if use_blocks else self.grad_rows)
        value = self.rows.value.cpu().numpy()[entry]
        return _row_entries(first, index, value, entry, self.rows.value.dtype, device)

    def matmul(
        self, dense: Float[Tensor, "columns width"], mask: "DropoutMask | None" = None
    ) -> Float[Tensor, "rows width"]:
        """Compute the product with a dense matrix, without a gradient."""
        return _multiply(self.rows, dense, self.shape[0], mask, self.threads)

    def transpose_matmul(
        self, dense: Float[Tensor, "rows width"], mask: "DropoutMask | None" = None
    ) -> Float[Tensor, "columns width"]:
        """Compute the product of the transpose with a dense matrix; rows from ``grad_rows`` on count as zero."""
        return _multiply(self.columns, dense, self.shape[1], mask, self.threads)

    @property
    def num_entries(self) -> int:
        """Number of stored entries."""
        return len(self.rows.column)


def _transpose(numbered: Matrix, block: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Convert a matrix to CSC format per block of rows; the last rows, if fewer than a block, join the block before."""
    num_blocks = max(1, numbered.shape[0] // max(1, block))
    bounds = [block * k for k in range(num_blocks)] + [numbered.shape[0]]
    parts = [numbered[lo:hi].T.tocsr() for lo, hi in pairwise(bounds)]  # rows are sorted within each column
    counts = np.concatenate([np.zeros(1, dtype=np.int64), *(np.diff(part.indptr) for part in parts)])
    index = np.concatenate([part.indices + lo for part, lo in zip(parts, bounds, strict=False)])
    return counts.cumsum(), index, np.concatenate([part.data for part in parts])


def _row_entries(
    first: NDArray[Any],
    index: NDArray[Any],
    value: NDArray[Any],
    entry: NDArray[Any],
    dtype: torch.dtype,
    device: torch.device,
) -> RowEntries:
    integer = np.int32 if len(index) < 1 << 31 else np.int64
    indices = [torch.from_numpy(part.astype(integer)).to(device) for part in (first, index, entry)]
    return RowEntries(indices[0], indices[1], torch.from_numpy(value).to(device, dtype), indices[2])


class DropoutMask(NamedTuple):
    """A mask of the entries of a matrix that dropout keeps, and the factor by which they are scaled."""

    keep: UInt8[Tensor, " entries"]
    scale: float


def sparse_matmul(
    matrix: SparseMatrix, dense: Float[Tensor, "columns width"], mask: DropoutMask | None = None
) -> Float[Tensor, "rows width"]:
    """Multiply a sparse matrix by a dense one; ``mask`` applies dropout to the entries of the sparse matrix.

    >>> from scipy.sparse import csr_array
    >>> matrix = SparseMatrix.from_scipy(csr_array([[0.0, 2.0], [1.0, 0.0]]), torch.float32, torch.device("cpu"))
    >>> sparse_matmul(matrix, torch.tensor([[1.0], [3.0]])).tolist()
    [[6.0], [1.0]]
    """
    return _sparse_matmul(dense, matrix, mask)


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, mask: DropoutMask | None) -> Tensor:
        ctx.matrix, ctx.mask = matrix, mask
        return matrix.matmul(dense, mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.matrix.transpose_matmul(grads[0], ctx.mask), None, None


_sparse_matmul: Callable[..., Tensor] = _SparseMatmul.apply


def _multiply(rows: RowEntries, dense: Tensor, num_rows: int, mask: DropoutMask | None, threads: Threads) -> Tensor:
    """Multiply without a gradient. Each row is summed by one thread, so sums do not depend on the number of threads."""
    dense = dense.detach().contiguous()
    return choose_implementation(dense.device, matmul_compiled, matmul_tensors)(rows, dense, num_rows, mask, threads)


def matmul_tensors(
    rows: RowEntries, dense: Float[Tensor, "columns width"], num_rows: int, mask: DropoutMask | None, threads: Threads
) -> Tensor:
    """Multiply a matrix of a single block with torch.sparse."""
    value = rows.value
    if mask is not None:
        value = value * mask.keep[rows.entry.long()].to(value.dtype) * mask.scale
    index = torch.stack([torch.repeat_interleave(rows.first.diff()), rows.column])
    shape = (num_rows, dense.shape[0])
    result: Tensor = torch.sparse_coo_tensor(index, value, shape, is_coalesced=True, check_invariants=False) @ dense
    return result


Array = NDArray[Any]


def matmul_compiled(
    rows: RowEntries, dense: Tensor, num_rows: int, mask: DropoutMask | None, threads: Threads
) -> Tensor:
    """Multiply with compiled loops over slices of rows."""
    if num_rows == 0 or len(rows.column) == 0:
        return dense.new_zeros(num_rows, dense.shape[1])
    out, value = dense.new_empty(num_rows, dense.shape[1]), rows.value
    if mask is not None:
        value = torch.empty_like(value)
        entries = mask.keep.numpy(), rows.entry.numpy(), rows.value.numpy(), value.numpy()
        _apply_mask(entries[2].dtype.type(mask.scale), *entries)
    arrays = [part.numpy() for part in (rows.first, rows.column, value, dense, out)]
    size = gcd(dense.shape[1], MAX_VECTOR_SIZE)
    multiply = _multiply_narrow_rows if size < MIN_VECTOR_SIZE else _multiply_rows(size)
    threads.run(lambda lo, hi: multiply(lo, hi, *arrays), num_rows, len(rows.column) * dense.shape[1])
    return out


@vectorized
def _apply_mask(scale: float, keep: Array, entry: Array, value: Array, masked: Array) -> None:
    for e in range(len(value)):
        masked[e] = value[e] * (scale * keep[entry[e]])


@cache
def _multiply_rows(size: int) -> Callable[..., None]:
    """Compile the product with a dense matrix whose width is a multiple of ``size``."""

    @vectorized
    def multiply(lo: int, hi: int, first: Array, index: Array, value: Array, dense: Array, out: Array) -> None:
        zeros = fill(dense.dtype.type(0), size)
        for block in range(0, len(first) - 1, len(out)):
            for row in range(lo, hi):
                for k in range(0, out.shape[1], size):
                    total = zeros if block == 0 else load(out, row, k, size)
                    for e in range(first[block + row], first[block + row + 1]):
                        total = total + fill(value[e], size) * load(dense, index[e], k, size)
                    store(out, row, k, total)

    return multiply


@vectorized
def _multiply_narrow_rows(lo: int, hi: int, first: Array, index: Array, value: Array, dense: Array, out: Array) -> None:
    """Add rows of ``dense`` four at a time, so that each sum is loaded and stored once per four rows."""
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
