"""Vectors in compiled loops against NumPy."""

import numpy as np
import pytest

from edgewise.kernels.dispatch import vectorized
from edgewise.kernels.simd import choose_greater, fill, load, repeat, scale_integers, store, sum_groups

DTYPES = [np.float32, np.float64]


def draw(rows, columns, dtype, seed=0):
    """Small integers, whose sums and products have no rounding errors."""
    return np.random.default_rng(seed).integers(-9, 10, (rows, columns)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num", [1, 2, 8, 64])
def test_load_store_and_operators(dtype, num):
    @vectorized
    def compute(x, out):
        a, b, two = load(x, 1, 3, num), load(x, 2, 0, num), fill(x.dtype.type(2), num)
        store(out, 0, 1, (a + b) * a - b / two)

    x, out = draw(3, num + 3, dtype), np.full((2, num + 2), 99, dtype=dtype)
    compute(x, out)
    a, b = x[1, 3:], x[2, :num]
    assert np.array_equal(out[0, 1 : num + 1], (a + b) * a - b / 2)
    out[0, 1 : num + 1] = 99
    assert (out == 99).all()  # nothing else is written


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "size"), [(1, 1), (1, 8), (8, 8), (2, 4), (8, 1)])
def test_repeat_and_sum_groups(dtype, groups, size):
    total = groups * size

    @vectorized
    def compute(x, repeated, sums):
        store(repeated, 0, 0, repeat(load(x, 0, 0, groups), size))
        store(sums, 0, 0, sum_groups(load(x, 1, 0, total), groups))

    x, repeated, sums = draw(2, total, dtype), np.empty((1, total), dtype), np.empty((1, groups), dtype)
    compute(x, repeated, sums)
    assert np.array_equal(repeated[0], np.repeat(x[0, :groups], size))
    assert np.array_equal(sums[0], x[1].reshape(groups, size).sum(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_choose_greater_and_scale_integers(dtype):
    @vectorized
    def compute(x, keep, scale, out):
        store(out, 0, 0, choose_greater(load(x, 0, 0, 8), load(x, 1, 0, 8), load(x, 2, 0, 8), load(x, 3, 0, 8)))
        store(out, 1, 0, scale_integers(load(keep, 0, 0, 8), scale))

    x, keep = draw(4, 8, dtype, seed=1), np.array([[0, 1, 1, 0, 255, 1, 0, 1]], dtype=np.uint8)
    x[0, 0], x[0, 1] = x[1, 0], np.nan  # neither is greater
    out = np.empty((2, 8), dtype)
    compute(x, keep, dtype(1.5), out)
    assert np.array_equal(out, [np.where(x[0] > x[1], x[2], x[3]), keep[0] * dtype(1.5)])
