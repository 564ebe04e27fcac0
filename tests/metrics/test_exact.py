"""Exact fixed-point sums."""

import math
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.metrics.sums import FRACTION_BITS, carry, from_fixed_point, to_fixed_point

TERMS = st.lists(st.floats(-2.0, 1490.0), max_size=30)


@given(TERMS, st.randoms())
def test_sum_is_exact_and_independent_of_the_order(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    sums = [to_fixed_point(torch.tensor(v, dtype=torch.float64)).sum(0) for v in (values, shuffled)]
    limbs = to_fixed_point(torch.tensor(values, dtype=torch.float64))
    sums.append(carry(limbs[::2].sum(0)) + carry(limbs[1::2].sum(0)))
    assert len({tuple(carry(limbs).tolist()) for limbs in sums}) == 1
    truth = sum(Fraction(value) for value in values)
    assert abs(Fraction(float(from_fixed_point(sums[0]))) - truth) <= Fraction(len(values), 2 << FRACTION_BITS) + abs(
        truth
    ) * Fraction(1, 1 << 52)


def test_sum_of_a_million_terms_is_exact():
    """With float32 sums, an ECE is 2% off at 10^6 elements."""
    terms = torch.full((1 << 20,), 0.7, dtype=torch.float64)
    assert abs(float(from_fixed_point(to_fixed_point(terms).sum(0))) - 0.7 * (1 << 20)) < 1e-9


def test_largest_term_does_not_overflow():
    largest = -2 * math.log(5e-324)
    assert float(from_fixed_point(to_fixed_point(torch.tensor(largest, dtype=torch.float64)))) == largest
