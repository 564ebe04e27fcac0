"""Products with sparse matrices against dense matrices."""

import pytest
import scipy.sparse
import torch

from edgewise.kernels import dispatch as compiled
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.sparse import ROWS_PER_BLOCK, DropoutMask, SparseMatrix, matmul_tensors, sparse_matmul
from helpers.small_graphs import generator

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)
SHAPES = {
    "wide": (7, 23),
    "square": (30, 30),
    "one row": (1, 9),
    "one column": (9, 1),
    "almost two blocks": (2 * ROWS_PER_BLOCK - 1, 11),
    "two blocks": (2 * ROWS_PER_BLOCK, 11),
    "three blocks, the last one longest": (4 * ROWS_PER_BLOCK - 3, 5),
}


def random_dense(shape, g, density=0.3, dtype=torch.float64):
    """Draw a matrix of which some rows and columns are empty, if there are several."""
    matrix = torch.randn(shape, generator=g, dtype=torch.float64) * (torch.rand(shape, generator=g) < density)
    matrix[1::5], matrix[:, 2::7] = 0.0, 0.0
    return matrix.to(dtype)


def make_sparse(matrix, **options):
    return SparseMatrix.from_scipy(scipy.sparse.csr_array(matrix.numpy()), matrix.dtype, CPU, **options)


def random_mask(matrix, g, scale=1.7):
    """Draw a dropout mask of the entries in row-major order; return it and the matrix after dropout."""
    entries = (torch.rand(int((matrix != 0).sum()), generator=g) < 0.6).to(torch.uint8)
    remaining = torch.zeros_like(matrix)
    remaining[matrix != 0] = matrix[matrix != 0] * entries * torch.tensor(scale, dtype=matrix.dtype)
    return DropoutMask(entries, scale), remaining


def product_and_gradient(matrix, dense, weight, mask=None):
    dense = dense.clone().requires_grad_()
    out = sparse_matmul(matrix, dense, mask) if isinstance(matrix, SparseMatrix) else matrix @ dense
    (out * weight).sum().backward()
    return out.detach(), dense.grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("drops", [False, True])
def test_product_and_gradient_equal_dense_matrices(dtype, shape, drops):
    g = generator(sum(shape))
    matrix = random_dense(shape, g, density=0.3 if shape[0] < ROWS_PER_BLOCK else 0.05, dtype=dtype)
    mask, remaining = random_mask(matrix, g) if drops else (None, matrix)
    for width in (1, 3, 7, 8, 64, 65):
        dense, weight = (torch.randn(rows, width, generator=g, dtype=dtype) for rows in shape[::-1])
        got = product_and_gradient(make_sparse(matrix), dense, weight, mask)
        expected = product_and_gradient(remaining, dense, weight)
        torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_tall_matrices_have_several_blocks_unless_they_are_too_sparse():
    for rows, blocks in (
        (ROWS_PER_BLOCK, 1),
        (2 * ROWS_PER_BLOCK - 1, 1),
        (2 * ROWS_PER_BLOCK, 2),
        (4 * ROWS_PER_BLOCK - 3, 3),
    ):
        for density, num in ((0.05, blocks), (0.005, 1)):
            columns = make_sparse(random_dense((rows, 11), generator(0), density=density)).columns
            assert len(columns.first) - 1 == 11 * num


def test_small_example():
    matrix = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 4.0]])
    dense, mask = torch.tensor([[1.0], [3.0], [5.0]]), DropoutMask(torch.tensor([1, 0, 1], dtype=torch.uint8), 2.0)
    assert sparse_matmul(make_sparse(matrix), dense).tolist() == [[6.0], [0.0], [21.0]]
    assert sparse_matmul(make_sparse(matrix), dense, mask).tolist() == [[12.0], [0.0], [40.0]]


@pytest.mark.parametrize("drops", [False, True])
def test_gradients_equal_finite_differences(drops):
    g = generator(1)
    matrix = random_dense((6, 9), g)
    mask = random_mask(matrix, g)[0] if drops else None
    dense = torch.randn(9, 3, generator=g, dtype=torch.float64, requires_grad=True)
    sparse = make_sparse(matrix)
    assert torch.autograd.gradcheck(lambda dense: sparse_matmul(sparse, dense, mask), (dense,))


@pytest.mark.parametrize("rows", [12, 2 * ROWS_PER_BLOCK + 100])
@pytest.mark.parametrize("drops", [False, True])
def test_gradient_ignores_rows_beyond_grad_rows(rows, drops):
    g = generator(2)
    matrix = random_dense((rows, 10), g, density=0.3 if rows < ROWS_PER_BLOCK else 0.05)
    mask, remaining = random_mask(matrix, g) if drops else (None, matrix)
    dense, weight = (torch.randn(num, 5, generator=g, dtype=torch.float64) for num in (10, rows))
    for grad_rows in (0, 1, rows // 2, rows):
        out, grad = product_and_gradient(make_sparse(matrix, grad_rows=grad_rows), dense, weight, mask)
        torch.testing.assert_close(out, remaining @ dense, rtol=0, atol=1e-12)
        torch.testing.assert_close(grad, remaining[:grad_rows].T @ weight[:grad_rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drops", [False, True])
def test_compiled_loops_equal_tensors(dtype, drops):
    g = generator(3)
    matrix = random_dense((40, 25), g, dtype=dtype)
    mask = random_mask(matrix, g)[0] if drops else None
    sparse = make_sparse(matrix)
    cases = (sparse.matmul, sparse.rows, (40, 25)), (sparse.transpose_matmul, sparse.columns, (25, 40))
    for matmul, rows, (num, inner) in cases:
        for width in (1, 3, 7, 8, 64, 65):
            dense = torch.randn(inner, width, generator=g, dtype=dtype)
            expected = matmul_tensors(rows, dense, num, mask, Threads(1))
            torch.testing.assert_close(matmul(dense, mask), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drops", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(dtype, drops, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 0)
    g = generator(4)
    matrix = random_dense((2 * ROWS_PER_BLOCK + 7, 33), g, density=0.05, dtype=dtype)
    mask = random_mask(matrix, g)[0] if drops else None
    dense, weight = (torch.randn(num, 9, generator=g, dtype=dtype) for num in (33, len(matrix)))
    expected_results = product_and_gradient(make_sparse(matrix), dense, weight, mask)
    for num in (2, 5, 40):
        parallel = make_sparse(matrix, threads=Threads(num))
        for got, expected in zip(product_and_gradient(parallel, dense, weight, mask), expected_results, strict=True):
            assert torch.equal(got, expected)


def test_threads_cover_all_rows_once():
    def slices(threads, length, work):
        got = []
        Threads(threads).run(lambda lo, hi: got.append((lo, hi)), length, work)
        return sorted(got)

    assert slices(3, 10, work=compiled.MIN_PARALLEL_OPERATIONS - 1) == [(0, 10)]
    assert slices(3, 10, work=compiled.MIN_PARALLEL_OPERATIONS) == [(0, 3), (3, 6), (6, 10)]
    assert slices(7, 2, work=compiled.MIN_PARALLEL_OPERATIONS) == [(0, 1), (1, 2)]
    assert slices(1, 10, work=compiled.MIN_PARALLEL_OPERATIONS) == [(0, 10)]
    with pytest.raises(ZeroDivisionError):  # raised in another thread
        Threads(2).run(lambda lo, hi: 1 // (1 - lo // 5), 10, compiled.MIN_PARALLEL_OPERATIONS)


def test_memory_layout_and_order_of_entries_do_not_matter():
    g = generator(5)
    matrix = random_dense((8, 6), g)
    dense = torch.randn(4, 6, generator=g, dtype=torch.float64).T
    shuffled = scipy.sparse.coo_array(matrix.numpy())
    order = torch.randperm(shuffled.nnz, generator=g).numpy()
    coords = tuple(part[order] for part in shuffled.coords)
    shuffled = scipy.sparse.coo_array((shuffled.data[order], coords), shape=(8, 6))
    got = sparse_matmul(SparseMatrix.from_scipy(shuffled, torch.float64, CPU), dense)
    torch.testing.assert_close(got, matrix @ dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4), (4, 0), (0, 4), (0, 0)])
@pytest.mark.parametrize("drops", [False, True])
def test_empty_matrices(shape, drops):
    matrix = make_sparse(torch.zeros(shape))
    assert matrix.num_entries == 0 and matrix.shape == shape
    mask = DropoutMask(torch.zeros(0, dtype=torch.uint8), 2.0) if drops else None
    out, grad = product_and_gradient(matrix, torch.ones(shape[1], 2), torch.ones(shape[0], 2), mask)
    assert torch.equal(out, torch.zeros(shape[0], 2)) and torch.equal(grad, torch.zeros(shape[1], 2))


@pytest.mark.parametrize("drops", [False, True])
def test_dense_matrix_without_columns(drops):
    mask = DropoutMask(torch.ones(3, dtype=torch.uint8), 2.0) if drops else None
    out, grad = product_and_gradient(make_sparse(torch.eye(3)), torch.ones(3, 0), torch.ones(3, 0), mask)
    assert out.shape == (3, 0) and grad.shape == (3, 0)
