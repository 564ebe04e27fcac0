"""Sparse products are those of dense matrices."""

import numpy as np
import pytest
import scipy.sparse
import torch

from edgewise.kernels import dispatch as compiled
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.sparse import ROWS_PER_BLOCK, DropoutMask, SparseMatrix, matmul_tensors, sparse_matmul
from helpers.small_graphs import generator

CPU = torch.device("cpu")
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(CLOSE)
SHAPES = {
    "wide": (7, 23),
    "square": (30, 30),
    "one row": (1, 9),
    "one column": (9, 1),
    "almost two blocks": (2 * ROWS_PER_BLOCK - 1, 11),
    "two blocks": (2 * ROWS_PER_BLOCK, 11),
    "three blocks, the last the longest": (4 * ROWS_PER_BLOCK - 3, 5),
}


def random_dense(shape, g, share=0.3, dtype=torch.float64):
    """Some rows and columns are empty, if there are several."""
    matrix = torch.randn(shape, generator=g, dtype=torch.float64) * (torch.rand(shape, generator=g) < share)
    matrix[1::5], matrix[:, 2::7] = 0.0, 0.0
    return matrix.to(dtype)


def sparse_of(matrix, **options):
    return SparseMatrix.from_scipy(scipy.sparse.csr_array(matrix.numpy()), matrix.dtype, CPU, **options)


def random_kept(matrix, g, scale=1.7):
    """What is kept, and the matrix that remains; entries are counted row by row."""
    entries = (torch.rand(int((matrix != 0).sum()), generator=g) < 0.6).to(torch.uint8)
    remaining = torch.zeros_like(matrix)
    remaining[matrix != 0] = matrix[matrix != 0] * entries * torch.tensor(scale, dtype=matrix.dtype)
    return DropoutMask(entries, scale), remaining


def product_and_gradient(matrix, dense, weight, kept=None):
    dense = dense.clone().requires_grad_()
    out = sparse_matmul(matrix, dense, kept) if isinstance(matrix, SparseMatrix) else matrix @ dense
    (out * weight).sum().backward()
    return out.detach(), dense.grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("drops", [False, True])
def test_product_and_gradient_are_dense_ones(dtype, shape, drops):
    g = generator(sum(shape))
    matrix = random_dense(shape, g, share=0.3 if shape[0] < ROWS_PER_BLOCK else 0.05, dtype=dtype)
    kept, remaining = random_kept(matrix, g) if drops else (None, matrix)
    for width in (1, 3, 7, 8, 64, 65):
        dense, weight = (torch.randn(rows, width, generator=g, dtype=dtype) for rows in shape[::-1])
        got = product_and_gradient(sparse_of(matrix), dense, weight, kept)
        expected = product_and_gradient(remaining, dense, weight)
        torch.testing.assert_close(got, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_tall_matrices_have_several_blocks_if_these_are_not_too_empty():
    for rows, blocks in (
        (ROWS_PER_BLOCK, 1),
        (2 * ROWS_PER_BLOCK - 1, 1),
        (2 * ROWS_PER_BLOCK, 2),
        (4 * ROWS_PER_BLOCK - 3, 3),
    ):
        for share, num in ((0.05, blocks), (0.005, 1)):
            columns = sparse_of(random_dense((rows, 11), generator(0), share=share)).columns
            assert len(columns.first) - 1 == 11 * num


def test_a_literal_product():
    matrix = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 4.0]])
    dense, kept = torch.tensor([[1.0], [3.0], [5.0]]), DropoutMask(torch.tensor([1, 0, 1], dtype=torch.uint8), 2.0)
    assert sparse_matmul(sparse_of(matrix), dense).tolist() == [[6.0], [0.0], [21.0]]
    assert sparse_matmul(sparse_of(matrix), dense, kept).tolist() == [[12.0], [0.0], [40.0]]


@pytest.mark.parametrize("drops", [False, True])
def test_gradcheck(drops):
    g = generator(1)
    matrix = random_dense((6, 9), g)
    kept = random_kept(matrix, g)[0] if drops else None
    dense = torch.randn(9, 3, generator=g, dtype=torch.float64, requires_grad=True)
    sparse = sparse_of(matrix)
    assert torch.autograd.gradcheck(lambda dense: sparse_matmul(sparse, dense, kept), (dense,))


@pytest.mark.parametrize("rows", [12, 2 * ROWS_PER_BLOCK + 100])
@pytest.mark.parametrize("drops", [False, True])
def test_gradients_come_from_learnt_rows_only(rows, drops):
    g = generator(2)
    matrix = random_dense((rows, 10), g, share=0.3 if rows < ROWS_PER_BLOCK else 0.05)
    kept, remaining = random_kept(matrix, g) if drops else (None, matrix)
    dense, weight = (torch.randn(num, 5, generator=g, dtype=torch.float64) for num in (10, rows))
    for learned in (0, 1, rows // 2, rows):
        out, grad = product_and_gradient(sparse_of(matrix, grad_rows=learned), dense, weight, kept)
        torch.testing.assert_close(out, remaining @ dense, rtol=0, atol=1e-12)
        torch.testing.assert_close(grad, remaining[:learned].T @ weight[:learned], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drops", [False, True])
def test_tensors_do_what_compiled_loops_do(dtype, drops):
    g = generator(3)
    matrix = random_dense((40, 25), g, dtype=dtype)
    kept = random_kept(matrix, g)[0] if drops else None
    sparse = sparse_of(matrix)
    ways = (sparse.matmul, sparse.rows, (40, 25)), (sparse.transpose_matmul, sparse.columns, (25, 40))
    for matmul, rows, (num, inner) in ways:
        for width in (1, 3, 7, 8, 64, 65):
            dense = torch.randn(inner, width, generator=g, dtype=dtype)
            expected = matmul_tensors(rows, dense, num, kept, Threads(1))
            torch.testing.assert_close(matmul(dense, kept), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drops", [False, True])
def test_threads_change_no_bit(dtype, drops, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 0)
    g = generator(4)
    matrix = random_dense((2 * ROWS_PER_BLOCK + 7, 33), g, share=0.05, dtype=dtype)
    kept = random_kept(matrix, g)[0] if drops else None
    dense, weight = (torch.randn(num, 9, generator=g, dtype=dtype) for num in (33, len(matrix)))
    alone = product_and_gradient(sparse_of(matrix), dense, weight, kept)
    for num in (2, 5, 40):
        shared = sparse_of(matrix, threads=Threads(num))
        for got, expected in zip(product_and_gradient(shared, dense, weight, kept), alone, strict=True):
            assert torch.equal(got, expected)


def test_a_crew_covers_all_rows_once():
    def slices(threads, length, work):
        got = []
        Threads(threads).run(lambda lo, hi: got.append((lo, hi)), length, work)
        return sorted(got)

    assert slices(3, 10, work=compiled.MIN_PARALLEL_OPERATIONS - 1) == [(0, 10)]
    assert slices(3, 10, work=compiled.MIN_PARALLEL_OPERATIONS) == [(0, 3), (3, 6), (6, 10)]
    assert slices(7, 2, work=compiled.MIN_PARALLEL_OPERATIONS) == [(0, 1), (1, 2)]
    assert slices(1, 10, work=compiled.MIN_PARALLEL_OPERATIONS) == [(0, 10)]
    with pytest.raises(ZeroDivisionError):  # of another thread
        Threads(2).run(lambda lo, hi: 1 // (1 - lo // 5), 10, compiled.MIN_PARALLEL_OPERATIONS)


def test_any_layout_of_the_dense_matrix_and_any_order_of_entries():
    g = generator(5)
    matrix = random_dense((8, 6), g)
    dense = torch.randn(4, 6, generator=g, dtype=torch.float64).T
    shuffled = scipy.sparse.coo_array(matrix.numpy())
    order = torch.randperm(shuffled.nnz, generator=g).numpy()
    places = tuple(part[order] for part in shuffled.coords)
    shuffled = scipy.sparse.coo_array((shuffled.data[order], places), shape=(8, 6))
    got = sparse_matmul(SparseMatrix.from_scipy(shuffled, torch.float64, CPU), dense)
    torch.testing.assert_close(got, matrix @ dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4), (4, 0), (0, 4), (0, 0)])
@pytest.mark.parametrize("drops", [False, True])
def test_empty_matrices(shape, drops):
    matrix = sparse_of(torch.zeros(shape))
    assert matrix.num_entries == 0 and matrix.shape == shape
    kept = DropoutMask(torch.zeros(0, dtype=torch.uint8), 2.0) if drops else None
    out, grad = product_and_gradient(matrix, torch.ones(shape[1], 2), torch.ones(shape[0], 2), kept)
    assert torch.equal(out, torch.zeros(shape[0], 2)) and torch.equal(grad, torch.zeros(shape[1], 2))


@pytest.mark.parametrize("drops", [False, True])
def test_a_dense_matrix_without_columns(drops):
    kept = DropoutMask(torch.ones(3, dtype=torch.uint8), 2.0) if drops else None
    out, grad = product_and_gradient(sparse_of(torch.eye(3)), torch.ones(3, 0), torch.ones(3, 0), kept)
    assert out.shape == (3, 0) and grad.shape == (3, 0)


def test_entries_that_are_dropped_may_meet_anything():
    """Dropped is not multiplied by zero: infinity matmul zero would be NaN."""
    matrix = sparse_of(torch.tensor([[1.0, 1.0]]))
    out = sparse_matmul(
        matrix, torch.tensor([[np.inf], [3.0]]), DropoutMask(torch.tensor([0, 1], dtype=torch.uint8), 2.0)
    )
    assert out.tolist() == [[6.0]]
