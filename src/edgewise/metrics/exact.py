"""Exact sums of real numbers: fixed-point integers, so that the order of addition changes no bit.

A float64 sum depends on the order of its terms, hence on the number of threads, batches and processes. Here a term x is
rounded once to a multiple of 2^-50 (an error below 5·10^-16) and its two 30-bit limbs are summed as int64:

    x ≈ (high · 2^30 + low) / 2^50

Integers add exactly and in any order. Terms are confidences, Brier scores (at most 2) and negative logarithms of
probabilities (at most 1,490 for a pair of float64 numbers), so high · 2^30 fits int64. With a `carry` after every batch
of fewer than 2^33 terms, sums are exact up to 2^43.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

FRACTION_BITS = 50
LOW_BITS = 30
LOW_MASK = (1 << LOW_BITS) - 1


def to_limbs(x: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape 2"]:
    """Round to a multiple of 2^-50 and split: (high, low)."""
    fixed = torch.round(x.double() * 2.0**FRACTION_BITS).long()
    return torch.stack((fixed >> LOW_BITS, fixed & LOW_MASK), dim=-1)


def carry(limbs: Int[Tensor, "*shape 2"]) -> Int[Tensor, "*shape 2"]:
    """Bring the low limbs back below 2^30; equal sums have equal limbs afterwards.

    >>> carry(torch.tensor([1, (5 << 30) + 7]))
    tensor([6, 7])
    """
    high, low = limbs.unbind(-1)
    return torch.stack((high + (low >> LOW_BITS), low & LOW_MASK), dim=-1)


def to_floats(limbs: Int[Tensor, "*shape 2"]) -> Float[Tensor, "*shape"]:
    """Give the float64 nearest to each sum.

    >>> to_floats(to_limbs(torch.tensor([0.1, 0.2, 0.3]).double()).sum(0))
    tensor(0.6000, dtype=torch.float64)
    """
    pairs = limbs.reshape(-1, 2).tolist()
    # Python integers have no width, and their true division rounds correctly.
    floats = [((high << LOW_BITS) + low) / (1 << FRACTION_BITS) for high, low in pairs]
    return torch.tensor(floats, dtype=torch.float64).reshape(limbs.shape[:-1])
