"""Passes over the buckets of variable elimination, in compiled loops.

Bucket b belongs to one node v. Its scope is v and its separator: the nodes that are eliminated later and that v is
connected to when it is eliminated. Its inputs are the potentials of v, those of the edges from v to nodes of the
separator, and the messages of earlier buckets whose separator ends in v. All tables hold log-potentials, and they are
slices of one array, the pool. The label of v is their last dimension, so labels of v are contiguous in every input.

    up:    m_b(s) = log Σ_v exp( Σ_k input_k(v, s) ) - shift_b, or the maximum over v in place of log Σ exp
    down:  P_b(v, s) = exp( Σ_k input_k(v, s) - m_b(s) - shift_b ) P(s), where P(s) is a marginal of the bucket that m_b
           enters

The shift makes the largest entry of a message 0. So log Z is the sum of all shifts, and messages stay accurate on
graphs of any size.

The dimensions of a separator are divided into slow and fast ones. Inputs that depend on slow dimensions only are added
once for all entries of the fast dimensions, and inputs that depend on fast dimensions only are added to one small table
first. So the inner loop reads this table and the few inputs that depend on both. A clique table is never allocated.

The reference implementation is the enumeration of all labelings in the tests.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.kernels.dispatch import compiled, map_slices

Array = NDArray[Any]

MIN_THREADED_SIZE = 1 << 16  # entries of a message; a shorter one is not divided among threads
MAX_FAST_SIZE = 1 << 10  # entries of the fast dimensions, so that their table stays in the cache


class Buckets(NamedTuple):
    """The buckets of an elimination order, in that order, as flat arrays of integers."""

    num_labels: Array  # (B,) labels of the node of each bucket
    first_axis: Array  # (B + 1,) range of the separator's dimensions in ``dims`` and ``axis_bucket``, slowest first
    dims: Array  # number of labels of each dimension
    axis_bucket: Array  # bucket of the node of each dimension
    num_slow: Array  # (B,) number of slow dimensions
    first_input: Array  # (B + 1,) range of a bucket's inputs: those of slow dimensions, then of fast ones, then of both
    first_fast: Array  # (B,)
    first_mixed: Array  # (B,)
    offset: Array  # position of an input's table in the pool
    child: Array  # the bucket whose message is the input, or -1 for a potential
    first_stride: Array  # (inputs + 1,) range of an input's strides, one for each dimension of the bucket's separator
    strides: Array
    message: Array  # (B,) position of the bucket's message in the pool
    size: Array  # (B,) entries of the message


def pass_up(pool: Array, buckets: Buckets, chosen: Array, maximum: bool, shifts: Array) -> None:
    """Fill in the messages of the chosen buckets, which are in the order of elimination, and their shifts."""
    start = 0
    for k in np.flatnonzero(buckets.size[chosen] >= MIN_THREADED_SIZE).tolist():
        _pass_up(pool, buckets, chosen[start:k], maximum, shifts)
        b = int(chosen[k])
        num_slow = int(_num_entries(buckets, b, 0, buckets.num_slow[b]))
        map_slices(partial(_fill_message, pool, buckets, b, maximum), num_slow)
        shifts[b] = _shift_to_zero(pool, buckets.message[b], buckets.size[b])
        start = k + 1
    _pass_up(pool, buckets, chosen[start:], maximum, shifts)


@compiled
def _pass_up(pool: Array, buckets: Buckets, chosen: Array, maximum: bool, shifts: Array) -> None:
    for b in chosen:
        _fill_message(pool, buckets, b, maximum, 0, _num_entries(buckets, b, 0, buckets.num_slow[b]))
        shifts[b] = _shift_to_zero(pool, buckets.message[b], buckets.size[b])


@compiled
def _shift_to_zero(pool: Array, start: int, size: int) -> float:
    """Subtract the largest entry of a message, and return it."""
    highest = -np.inf
    for place in range(start, start + size):
        highest = max(highest, pool[place])
    for place in range(start, start + size):
        pool[place] -= highest
    return highest


@compiled
def _num_entries(buckets: Buckets, b: int, first: int, last: int) -> int:
    """Return the number of entries of dimensions first to last - 1 of a separator."""
    number = 1
    for a in range(first, last):
        number *= buckets.dims[buckets.first_axis[b] + a]
    return number


@compiled
def _fill_message(pool: Array, buckets: Buckets, b: int, maximum: bool, lo: int, hi: int) -> None:
    """Compute the message of bucket b for entries lo to hi - 1 of the slow dimensions."""
    num_labels, slow_axes = buckets.num_labels[b], buckets.num_slow[b]
    axes = buckets.first_axis[b + 1] - buckets.first_axis[b]
    fast_table = _add_fast_inputs(pool, buckets, b)
    fast_size = len(fast_table)
    slow, mixed = (buckets.first_input[b], buckets.first_fast[b]), (buckets.first_mixed[b], buckets.first_input[b + 1])
    slow_digits, slow_offsets = _start_at(buckets, b, slow, slow_axes, lo)
    mixed_digits, offsets = _start_at(buckets, b, mixed, slow_axes, lo)
    fast_digits = np.zeros(axes - slow_axes, np.int64)
    base, terms = np.empty(num_labels), np.empty(num_labels)
    place = buckets.message[b] + lo * fast_size
    for _ in range(lo, hi):
        for label in range(num_labels):
            base[label] = 0.0
            for k in range(len(slow_offsets)):
                base[label] += pool[slow_offsets[k] + label]
        for fast in range(fast_size):
            highest = -np.inf
            for label in range(num_labels):
                total = base[label] + fast_table[fast, label]
                for k in range(len(offsets)):
                    total += pool[offsets[k] + label]
                terms[label] = total
                highest = max(highest, total)
            value = highest
            if not maximum and highest > -np.inf:
                exp_sum = 0.0
                for label in range(num_labels):
                    exp_sum += np.exp(terms[label] - highest)
                value += np.log(exp_sum)
            pool[place] = value
            place += 1
            _advance(buckets, b, mixed[0], slow_axes, fast_digits, offsets)
        _advance(buckets, b, slow[0], 0, slow_digits, slow_offsets)
        _advance(buckets, b, mixed[0], 0, mixed_digits, offsets)


@compiled
def _add_fast_inputs(pool: Array, buckets: Buckets, b: int) -> Array:
    """Return the sum of the inputs that depend on fast dimensions only, (entries, labels)."""
    slow_axes = buckets.num_slow[b]
    axes = buckets.first_axis[b + 1] - buckets.first_axis[b]
    inputs = buckets.first_fast[b], buckets.first_mixed[b]
    table = np.zeros((_num_entries(buckets, b, slow_axes, axes), buckets.num_labels[b]))
    offsets = buckets.offset[inputs[0] : inputs[1]].copy()
    digits = np.zeros(axes - slow_axes, np.int64)
    for entry in range(len(table)):
        for k in range(len(offsets)):
            for label in range(table.shape[1]):
                table[entry, label] += pool[offsets[k] + label]
        _advance(buckets, b, inputs[0], slow_axes, digits, offsets)
    return table


@compiled
def _start_at(buckets: Buckets, b: int, inputs: tuple[int, int], slow_axes: int, entry: int) -> tuple[Array, Array]:
    """Return the labels of the slow dimensions at an entry of their table, and the position of each input there."""
    axis = buckets.first_axis[b]
    digits = np.empty(slow_axes, np.int64)
    for a in range(slow_axes - 1, -1, -1):
        digits[a] = entry % buckets.dims[axis + a]
        entry //= buckets.dims[axis + a]
    offsets = buckets.offset[inputs[0] : inputs[1]].copy()
    for k in range(len(offsets)):
        for a in range(slow_axes):
            offsets[k] += digits[a] * buckets.strides[buckets.first_stride[inputs[0] + k] + a]
    return digits, offsets


@compiled
def _advance(buckets: Buckets, b: int, first_input: int, first_axis: int, digits: Array, offsets: Array) -> None:
    """Move inputs to the next entry of the dimensions from ``first_axis``, after the last entry to the first."""
    for a in range(len(digits) - 1, -1, -1):
        step = 1
        digits[a] += 1
        if digits[a] == buckets.dims[buckets.first_axis[b] + first_axis + a]:
            step -= digits[a]
            digits[a] = 0
        for k in range(len(offsets)):
            offsets[k] += step * buckets.strides[buckets.first_stride[first_input + k] + first_axis + a]
        if step == 1:
            return


@compiled
def pass_down(pool: Array, buckets: Buckets, start: int, stop: int, shifts: Array, marginals: Array) -> None:
    """Add the marginal of each potential's variables to ``marginals``, at the positions of the potentials.

    Buckets are processed from ``stop`` - 1 down to ``start``, after all later ones. When the bucket that a message m(s)
    enters has been processed, the message is replaced by log P(s) - m(s). The message of a root is 0, and so is log P
    of its empty separator.
    """
    for b in range(stop - 1, start - 1, -1):
        first, last = buckets.first_input[b], buckets.first_input[b + 1]
        first_sum = np.zeros(last - first + 1, np.int64)
        for k in range(last - first):
            c = buckets.child[first + k]
            first_sum[k + 1] = first_sum[k] + (buckets.size[c] if c >= 0 else 0)
        sums = np.zeros(first_sum[-1])
        _add_marginals(pool, buckets, b, shifts[b], marginals, sums, first_sum)
        for k in range(last - first):
            c = buckets.child[first + k]
            if c >= 0:
                for entry in range(buckets.size[c]):
                    p, place = sums[first_sum[k] + entry], buckets.message[c] + entry
                    pool[place] = np.log(p) - pool[place] if p > 0.0 else -np.inf


@compiled
def _add_marginals(
    pool: Array, buckets: Buckets, b: int, shift: float, marginals: Array, sums: Array, first_sum: Array
) -> None:
    """Add P_b(v, s) to the marginals of all inputs: of potentials in ``marginals``, of messages in ``sums``."""
    num_labels, slow_axes = buckets.num_labels[b], buckets.num_slow[b]
    axes = buckets.first_axis[b + 1] - buckets.first_axis[b]
    first, first_mixed = buckets.first_input[b], buckets.first_mixed[b]
    fast_table = _add_fast_inputs(pool, buckets, b)
    fast_size = len(fast_table)
    fast_sums = np.zeros((fast_size, num_labels))
    slow, fast, mixed = (first, buckets.first_fast[b]), (buckets.first_fast[b], first_mixed), first_mixed
    slow_digits, slow_offsets = _start_at(buckets, b, slow, slow_axes, 0)
    mixed_digits, offsets = _start_at(buckets, b, (mixed, buckets.first_input[b + 1]), slow_axes, 0)
    fast_digits = np.zeros(axes - slow_axes, np.int64)
    base, slow_sums = np.empty(num_labels), np.empty(num_labels)
    place = buckets.message[b]
    for _ in range(_num_entries(buckets, b, 0, slow_axes)):
        for label in range(num_labels):
            slow_sums[label] = 0.0
            base[label] = 0.0
            for k in range(len(slow_offsets)):
                base[label] += pool[slow_offsets[k] + label]
        for entry in range(fast_size):
            log_ratio = pool[place] - shift
            place += 1
            if log_ratio > -np.inf:
                for label in range(num_labels):
                    total = log_ratio + base[label] + fast_table[entry, label]
                    for k in range(len(offsets)):
                        total += pool[offsets[k] + label]
                    p = np.exp(total)
                    slow_sums[label] += p
                    fast_sums[entry, label] += p
                    for k in range(len(offsets)):
                        position = offsets[k] + label - buckets.offset[mixed + k]
                        sums[first_sum[mixed - first + k] + position] += p
            _advance(buckets, b, mixed, slow_axes, fast_digits, offsets)
        _add_to_inputs(buckets, slow, slow_offsets, slow_sums, marginals, sums, first_sum[: slow[1] - first])
        _advance(buckets, b, slow[0], 0, slow_digits, slow_offsets)
        _advance(buckets, b, mixed, 0, mixed_digits, offsets)
    fast_offsets = buckets.offset[fast[0] : fast[1]].copy()
    for entry in range(fast_size):
        _add_to_inputs(buckets, fast, fast_offsets, fast_sums[entry], marginals, sums, first_sum[fast[0] - first :])
        _advance(buckets, b, fast[0], slow_axes, fast_digits, fast_offsets)


@compiled
def _add_to_inputs(
    buckets: Buckets,
    inputs: tuple[int, int],
    offsets: Array,
    values: Array,
    marginals: Array,
    sums: Array,
    first_sum: Array,
) -> None:
    """Add one value per label to the marginal of each input, at the current entry."""
    for k in range(inputs[1] - inputs[0]):
        is_message = buckets.child[inputs[0] + k] >= 0
        place = first_sum[k] + offsets[k] - buckets.offset[inputs[0] + k] if is_message else offsets[k]
        target = sums if is_message else marginals
        for label in range(len(values)):
            target[place + label] += values[label]


@compiled
def draw_labels(pool: Array, buckets: Buckets, start: int, stop: int, uniform: Array, labels: Array) -> None:
    """Draw labels (samples, buckets) from bucket ``stop`` - 1 down to ``start``, with one uniform number each.

    Without uniform numbers, take the label with the largest conditional, the first one if there are several.
    """
    for sample in range(len(labels)):
        for b in range(stop - 1, start - 1, -1):
            axis, axes = buckets.first_axis[b], buckets.first_axis[b + 1] - buckets.first_axis[b]
            terms = np.zeros(buckets.num_labels[b])
            for k in range(buckets.first_input[b], buckets.first_input[b + 1]):
                place = buckets.offset[k]
                for a in range(axes):
                    label = labels[sample, buckets.axis_bucket[axis + a]]
                    place += label * buckets.strides[buckets.first_stride[k] + a]
                for label in range(len(terms)):
                    terms[label] += pool[place + label]
            chosen = int(np.argmax(terms))
            if len(uniform):
                probs = np.exp(terms - terms[chosen])
                rest = uniform[sample, b] * probs.sum()
                chosen = 0
                while chosen < len(probs) - 1 and rest >= probs[chosen]:
                    rest -= probs[chosen]
                    chosen += 1
                while probs[chosen] == 0.0:  # rounding must not choose an impossible label
                    chosen -= 1
            labels[sample, b] = chosen
