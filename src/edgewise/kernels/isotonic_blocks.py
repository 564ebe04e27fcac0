"""Isotonic regression of binary outcomes on many forecasts, and sums of their scores, in compiled loops.

Forecasts and outcomes are packed into sorted keys (see `edgewise.metrics.forecasts`). Their last bit is the group of an
element, and the bit before it is 1 if the event did not occur. Sorted keys have the elements of a tie in decreasing
order of the outcome, so pooling adjacent violators pools ties too.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]

KEYS_PER_SUM = 1 << 12  # keys whose terms are added before their sum is, which keeps rounding errors small
TINY = 0.5**500


def split_groups(keys: Array) -> tuple[Array, Array]:
    """Return the keys of group 0 and of group 1, in the same order."""
    num_ones = int(_count_ones(keys))
    zeros, ones = (np.empty(num + 1, dtype=np.uint64) for num in (len(keys) - num_ones, num_ones))
    _split_groups(keys, zeros, ones)
    return zeros[:-1], ones[:-1]


@compiled
def _count_ones(keys: Array) -> np.int64:
    num = np.int64(0)
    for key in keys:
        num += np.int64(key & np.uint64(1))
    return num


@compiled
def _split_groups(keys: Array, zeros: Array, ones: Array) -> None:
    """Write each key to both parts, which have room for one more, and advance in one: no branch to be mispredicted."""
    num_zeros, num_ones = np.int64(0), np.int64(0)
    for key in keys:
        zeros[num_zeros] = ones[num_ones] = key
        is_one = np.int64(key & np.uint64(1))
        num_zeros, num_ones = num_zeros + (1 - is_one), num_ones + is_one


def pool_violators(keys: Array) -> tuple[Array, Array]:
    """Return the number of elements and of events of each block with a constant fit, in order of the forecasts.

    Fits of blocks are different fractions. Few fractions have small denominators, so n elements have at most
    (3n)^(2/3) + 4 blocks: denominators of m different fractions have a sum of at least about m^(3/2).
    """
    max_blocks = int((3 * len(keys)) ** (2 / 3)) + 4
    count, events = np.empty(max_blocks, dtype=np.int64), np.empty(max_blocks, dtype=np.int64)
    num = _pool_violators(keys, count, events)
    return count[:num].copy(), events[:num].copy()


@compiled
def _pool_violators(keys: Array, counts: Array, events: Array) -> int:
    """Pool adjacent violators with integers, so that comparisons are exact.

    Events followed by non-events always end in one block. So they are pooled first.
    """
    top, k, missed = -1, 0, np.uint64(2)
    while k < len(keys):
        first = k
        while k < len(keys) and not keys[k] & missed:
            k += 1
        event = k - first
        while k < len(keys) and keys[k] & missed:
            k += 1
        count = k - first
        while top >= 0 and events[top] * count >= event * counts[top]:
            event, count, top = event + events[top], count + counts[top], top - 1
        top += 1
        events[top], counts[top] = event, count
    return top + 1


@compiled
def sum_scores(keys: Array) -> tuple[float, float, int]:
    """Return Σ (forecast - outcome)², -Σ log P(outcome) without outcomes of probability zero, and their number.

    Probabilities are multiplied until the product is tiny, so that few logarithms are computed.
    """
    squares, logs, zeros = 0.0, 0.0, 0
    for start in range(0, len(keys), KEYS_PER_SUM):
        square, product = 0.0, 1.0
        for key in keys[start : start + KEYS_PER_SUM]:
            forecast = np.uint64(key >> np.uint64(2)).view(np.float64)
            p = 1.0 - forecast if key & np.uint64(2) else forecast
            square += (1.0 - p) * (1.0 - p)
            if p < TINY:
                zeros += p == 0.0
                logs -= np.log(p) if p > 0.0 else 0.0
            else:
                product *= p
                if product < TINY:
                    logs -= np.log(product)
                    product = 1.0
        squares += square
        logs -= np.log(product)
    return squares, logs, zeros
