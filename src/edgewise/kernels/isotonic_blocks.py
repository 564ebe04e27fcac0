"""Isotonic regression of binary outcomes on many forecasts, and sums of their scores, in compiled loops.

Forecasts and outcomes are packed into sorted keys (see `edgewise.metrics.forecasts`). Their last bit is the group of an
element, and the bit before it is 1 if the event did not occur. Sorted keys have the elements of a tie in decreasing
order of the outcome, so pooling adjacent violators pools ties too.

Pooling looks at single elements only where a block may begin or end. Draw the number of events against the number of
elements, in order of the forecasts: the blocks are the edges of the convex hull below this path. First the hull of the
path at the ends of chunks is computed. In a chunk with n elements and k events, the path is lowest if the n - k other
elements come first. If even this path stays above the hull, the chunk is inside a block, and the order of its elements
does not matter. That holds for most chunks, and saves a mispredicted branch for most elements.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled, vectorized

Array = NDArray[Any]
Blocks = tuple[Array, Array, Array, Array]  # numbers of elements and of events, and the first and the last key

KEYS_PER_CHUNK = 64
KEYS_PER_SUM = 1 << 12  # keys whose terms are added before their sum is, which keeps rounding errors small
TINY = 0.5**500


def fit_isotonic(keys: Array, selections: Sequence[tuple[int, ...]]) -> list[Blocks]:
    """Fit the elements of each selection of groups."""
    counts = np.empty((-(-len(keys) // KEYS_PER_CHUNK), 4), dtype=np.int64)
    _count_chunks(keys, counts)
    return [_fit_selection(keys, counts, groups) for groups in selections]


def _fit_selection(keys: Array, counts: Array, groups: tuple[int, ...]) -> Blocks:
    is_selected, touches = np.isin(range(2), groups), np.zeros(len(counts), dtype=np.bool_)
    events, others = counts[:, :2][:, is_selected].sum(1), counts[:, 2:][:, is_selected].sum(1)
    count = events + others
    hull_count, hull_events, _, _ = _pool(keys, is_selected, count, events, touches)
    _mark_touching(count, events, hull_count, hull_events, touches)
    return _pool(keys, is_selected, count, events, touches)


@vectorized
def _count_chunks(keys: Array, counts: Array) -> None:
    """Count the keys of each chunk by their two flags. Chunks have a constant length, for SIMD instructions."""
    for chunk in range(len(keys) // KEYS_PER_CHUNK):
        missed, ones, both = np.int64(0), np.int64(0), np.int64(0)
        for k in range(KEYS_PER_CHUNK):
            flags = np.int64(keys[chunk * KEYS_PER_CHUNK + k] & np.uint64(3))
            missed, ones, both = missed + (flags >> 1), ones + (flags & 1), both + (flags & (flags >> 1))
        counts[chunk, 0] = KEYS_PER_CHUNK - missed - ones + both
        counts[chunk, 1], counts[chunk, 2], counts[chunk, 3] = ones - both, missed - both, both
    if len(keys) % KEYS_PER_CHUNK:
        counts[-1] = 0
        for key in keys[len(keys) // KEYS_PER_CHUNK * KEYS_PER_CHUNK :]:
            counts[-1, key & np.uint64(3)] += 1


@compiled
def _mark_touching(count: Array, events: Array, hull_count: Array, hull_events: Array, touches: Array) -> None:
    """Mark chunks whose lowest possible path is not above the edge of the hull over the chunk."""
    edge, x, y = -1, np.int64(0), np.int64(0)  # elements and events since the beginning of the edge
    for chunk in range(len(count)):
        if count[chunk]:
            if edge < 0 or x == hull_count[edge]:
                edge, x, y = edge + 1, np.int64(0), np.int64(0)
            lowest_x = x + count[chunk] - events[chunk]
            touches[chunk] = y * hull_count[edge] <= lowest_x * hull_events[edge]
            x, y = x + count[chunk], y + events[chunk]


def _pool(keys: Array, is_selected: Array, count: Array, events: Array, in_steps: Array) -> Blocks:
    """Pool adjacent violators: elements of the chunks ``in_steps``, and other chunks as a whole.

    Fits of blocks are different fractions. Few fractions have small denominators, so n elements have at most
    (3n)^(2/3) + 4 blocks: denominators of m different fractions have a sum of at least about m^(3/2).
    """
    max_blocks = int((3 * len(keys)) ** (2 / 3)) + 4
    block_count, block_events = (np.empty(max_blocks, dtype=np.int64) for _ in range(2))
    first, last = (np.empty(max_blocks, dtype=np.uint64) for _ in range(2))
    num = _pool_violators(keys, is_selected, count, events, in_steps, block_count, block_events, first, last)
    return block_count[:num].copy(), block_events[:num].copy(), first[:num].copy(), last[:num].copy()


@compiled
def _pool_violators(
    keys: Array,
    is_selected: Array,
    chunk_count: Array,
    chunk_events: Array,
    in_steps: Array,
    count: Array,
    events: Array,
    first: Array,
    last: Array,
) -> int:
    """Fill count, events, first and last of the blocks, and return their number. Integers make comparisons exact.

    Events followed by other elements always end in one block. So they are pooled first.
    """
    top, missed, selected = -1, np.uint64(2), np.empty(KEYS_PER_CHUNK + 1, dtype=np.uint64)
    for chunk in range(len(chunk_count)):
        num = chunk_count[chunk]
        if num and not in_steps[chunk]:
            unknown = np.uint64(0)  # such a chunk is not at the end of a block
            top = _push(top, num, chunk_events[chunk], unknown, unknown, count, events, first, last)
        elif num:
            k = np.int64(0)
            for key in keys[chunk * KEYS_PER_CHUNK : (chunk + 1) * KEYS_PER_CHUNK]:
                selected[k] = key
                k += is_selected[key & np.uint64(1)]
            k = np.int64(0)
            while k < num:
                begin = k
                while k < num and not selected[k] & missed:
                    k += 1
                num_events = k - begin
                while k < num and selected[k] & missed:
                    k += 1
                ends = selected[begin], selected[k - 1]
                top = _push(top, k - begin, num_events, *ends, count, events, first, last)
    return top + 1


@compiled
def _push(
    top: int,
    num: np.int64,
    num_events: np.int64,
    first_key: np.uint64,
    last_key: np.uint64,
    count: Array,
    events: Array,
    first: Array,
    last: Array,
) -> int:
    """Add a block after block ``top``, pool it with blocks whose fractions are not smaller, and return its index."""
    while top >= 0 and events[top] * num >= num_events * count[top]:
        num, num_events, first_key, top = num + count[top], num_events + events[top], first[top], top - 1
    top += 1
    count[top], events[top], first[top], last[top] = num, num_events, first_key, last_key
    return top


def sum_scores(keys: Array) -> list[tuple[float, float, int]]:
    """Return the sums of both groups: Σ (forecast - outcome)², -Σ log P(outcome), and outcomes of probability zero.

    The sum of logarithms is without these outcomes.
    """
    sums = np.zeros((2, 3))
    _sum_scores(keys, sums)
    return [(squares, logs, int(zeros)) for squares, logs, zeros in sums.tolist()]


@compiled
def _sum_scores(keys: Array, sums: Array) -> None:
    """Add the scores of each group. Probabilities are multiplied until the product is tiny: few logarithms."""
    for start in range(0, len(keys), KEYS_PER_SUM):
        zero_squares, one_squares, zero_product, one_product = 0.0, 0.0, 1.0, 1.0
        for key in keys[start : start + KEYS_PER_SUM]:
            forecast, group = np.uint64(key >> np.uint64(2)).view(np.float64), np.int64(key & np.uint64(1))
            p = 1.0 - forecast if key & np.uint64(2) else forecast
            square = (1.0 - p) * (1.0 - p)
            zero_squares, one_squares = zero_squares + square * (1 - group), one_squares + square * group
            if p < TINY:
                sums[group, 2] += p == 0.0
                sums[group, 1] -= np.log(p) if p > 0.0 else 0.0
                continue
            zero_product, one_product = zero_product * (1.0 if group else p), one_product * (p if group else 1.0)
            if min(zero_product, one_product) < TINY:
                sums[0, 1] -= np.log(zero_product)
                sums[1, 1] -= np.log(one_product)
                zero_product = one_product = 1.0
        sums[0, 0] += zero_squares
        sums[1, 0] += one_squares
        sums[0, 1] -= np.log(zero_product)
        sums[1, 1] -= np.log(one_product)
