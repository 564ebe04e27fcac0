"""Fused ReLU, dropout and matrix product against torch."""

import pytest
import torch

from edgewise.kernels import dispatch as compiled
from edgewise.kernels.dispatch import Threads
from edgewise.kernels.dropout import NO_DROPOUT, Dropout
from edgewise.kernels.projection import ROWS_PER_BLOCK, relu_dropout_matmul, relu_dropout_matmul_tensors
from helpers.small_graphs import generator

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SHAPES = [
    (5, 7, 3),
    (1, 1, 1),
    (40, 64, 7),
    (3, 65, 6),
    (9, 16, 1),
    (0, 4, 2),
    (ROWS_PER_BLOCK, 3, 2),
    (2 * ROWS_PER_BLOCK + 5, 8, 3),
]


def random_parts(rows, hidden, classes, dtype=torch.float64):
    g = generator(rows + hidden)
    shapes = (rows, hidden), (hidden,), (hidden, classes)
    drawn = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    return drawn, torch.randn(rows, classes, generator=g, dtype=torch.float64).to(dtype)


def with_gradients(out, parts, weight):
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), parts)]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_result_and_gradients_equal_torch(dtype, rate, shape):
    parts, weight = random_parts(*shape, dtype)
    dropout = Dropout(rate, 11)
    keep = dropout.keep(shape[0] * shape[1], 2, CPU).view(shape[:2])
    active = torch.where(keep.bool(), torch.relu(parts[0] + parts[1]) * dropout.scale, 0.0)
    expected = with_gradients(active @ parts[2], parts, weight)
    got = with_gradients(relu_dropout_matmul(*parts, dropout, 2, Threads(1)), parts, weight)
    # Gradients of bias and weight are sums over rows.
    atol = TOLERANCE[dtype] * max(1.0, shape[0] ** 0.5 / 10)
    torch.testing.assert_close(got, expected, rtol=atol, atol=atol)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5])
def test_compiled_loops_equal_tensors(dtype, rate):
    parts, weight = random_parts(30, 9, 4, dtype)
    got = with_gradients(relu_dropout_matmul(*parts, Dropout(rate, 5), 4, Threads(1)), parts, weight)
    expected = with_gradients(relu_dropout_matmul_tensors(*parts, Dropout(rate, 5), 4, Threads(1)), parts, weight)
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_gradients_equal_finite_differences(rate):
    parts, _ = random_parts(6, 5, 3)
    assert float((parts[0] + parts[1]).detach().abs().min()) > 1e-3  # where ReLU is differentiable
    assert torch.autograd.gradcheck(lambda *parts: relu_dropout_matmul(*parts, Dropout(rate, 1), 0, Threads(1)), parts)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_results_do_not_depend_on_the_number_of_threads(dtype, rate, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 0)
    parts, weight = random_parts(3 * ROWS_PER_BLOCK + 7, 17, 5, dtype)
    results = [
        with_gradients(relu_dropout_matmul(*parts, Dropout(rate, 3), 0, Threads(threads)), parts, weight)
        for threads in (1, 2, 3, 9)
    ]
    for others in results[1:]:
        assert all(torch.equal(got, expected) for got, expected in zip(others, results[0], strict=True))


def test_small_example():
    x, bias = torch.tensor([[1.0, -1.0], [0.0, 3.0]]), torch.tensor([0.5, -0.5])
    weight = torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    assert relu_dropout_matmul(x, bias, weight, NO_DROPOUT, 0, Threads(1)).tolist() == [[1.5, 15.0], [5.5, 55.0]]


def test_draws_are_reproducible_and_different():
    parts, _ = random_parts(20, 8, 2)
    first, again, other = (relu_dropout_matmul(*parts, Dropout(0.5, 3), draw, Threads(1)) for draw in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("dropout", [NO_DROPOUT, Dropout(0.5, 3)])
def test_nan_is_propagated(dropout):
    """So that a diverging fit is noticed."""
    x = torch.tensor([[1.0, torch.nan], [1.0, 1.0]])
    out = relu_dropout_matmul(x, torch.zeros(2), torch.ones(2, 3), dropout, 0, Threads(1))
    assert out[0].isnan().all() and out[1].isfinite().all()
