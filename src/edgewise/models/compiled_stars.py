"""Sums over the labels of both ends of edges, in compiled loops; exponentials of couplings come a chunk at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import vectorised, vectorised_sums
from edgewise.models.stars import CHUNK_ELEMENTS, Field, largest

Array = NDArray[Any]


def messages(raised: Tensor, scale: Tensor, half: Tensor, field: Field) -> tuple[Tensor, Tensor]:
    """Σ_m exp(U_m + r B(l, m)/2 - largest) over the labels m of the end, for each l of the start; and vice versa."""
    to_start, to_end = raised.new_empty(2, len(scale), len(half))
    ends = field.start.numpy(), field.end.numpy()
    for lo, factors in _chunks(scale, half):
        _messages(lo, factors, *ends, raised.numpy(), to_start.numpy(), to_end.numpy())
    return to_start, to_end


def collected(
    share: Tensor, to_start: Tensor, to_end: Tensor, offset: Tensor, top: Tensor, field: Field
) -> tuple[Tensor, Tensor]:
    """Add the logarithms of what all neighbours tell a node to its share; and what they have in common, apart.

    Both in float64: a hub adds up many numbers of which only the small part that differs between labels matters.
    """
    total, common = share.detach().double(), torch.zeros(len(share), dtype=torch.float64)
    total = total.clone() if share.dtype == torch.float64 else total
    ends, logs = (field.start.numpy(), field.end.numpy()), (to_start.log().numpy(), to_end.log().numpy())
    _collect(*ends, *logs, offset.numpy(), top.numpy(), total.numpy(), common.numpy())
    return total, common


def messages_gradient(
    belief: Tensor, to_start: Tensor, to_end: Tensor, raised: Tensor, scale: Tensor, half: Tensor, field: Field
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of unaries, scales and half the coupling."""
    share_grad, scale_grad = belief.clone(), torch.empty_like(scale)
    half_grad = torch.zeros(half.shape, dtype=torch.float64)  # a sum over all edges
    ends = field.start.numpy(), field.end.numpy()
    parts = belief.numpy(), to_start.numpy(), to_end.numpy(), raised.numpy(), scale.numpy(), half.numpy()
    into = share_grad.numpy(), scale_grad.numpy(), half_grad.numpy()
    for lo, factors in _chunks(scale, half):
        _gradient(lo, factors, *ends, *parts, *into)
    return share_grad, scale_grad, half_grad.to(half.dtype)


def _chunks(scale: Tensor, half: Tensor) -> Iterator[tuple[int, Array]]:
    """Give exp(r B / 2) of some edges after others, less what is `largest` of each."""
    step = max(1, CHUNK_ELEMENTS // half.numel())
    for lo in range(0, len(scale), step):
        part = scale[lo : lo + step]
        yield lo, (part[:, None, None] * half - largest(part, half)[:, None, None]).exp_().numpy()


@vectorised_sums
def _messages(lo: int, factors: Array, start: Array, end: Array, raised: Array, to_start: Array, to_end: Array) -> None:
    classes = raised.shape[1]
    for e in range(len(factors)):
        i, j = start[lo + e], end[lo + e]
        for label in range(classes):
            here, there = raised.dtype.type(0), raised.dtype.type(0)
            for other in range(classes):
                here += factors[e, label, other] * raised[j, other]
                there += factors[e, label, other] * raised[i, other]  # the coupling is symmetric
            to_start[lo + e, label] = here
            to_end[lo + e, label] = there


@vectorised
def _collect(
    start: Array,
    end: Array,
    log_start: Array,
    log_end: Array,
    offset: Array,
    top: Array,
    total: Array,
    common: Array,
) -> None:
    for e in range(len(start)):
        i, j = start[e], end[e]
        common[i] += offset[e] + top[j]
        common[j] += offset[e] + top[i]
        for label in range(total.shape[1]):
            total[i, label] += log_start[e, label]
            total[j, label] += log_end[e, label]


@vectorised_sums
def _gradient(
    lo: int,
    factors: Array,
    start: Array,
    end: Array,
    belief: Array,
    to_start: Array,
    to_end: Array,
    raised: Array,
    scale: Array,
    half: Array,
    share_grad: Array,
    scale_grad: Array,
    half_grad: Array,
) -> None:
    """Add up beliefs of pairs: b_i(l)/m(l) · K(l, m) · exp(U_j(m)) in the star of i, and likewise in that of j."""
    classes = raised.shape[1]
    at_end, both = np.empty(classes, dtype=raised.dtype), np.empty(classes, dtype=raised.dtype)
    for e in range(len(factors)):
        i, j = start[lo + e], end[lo + e]
        change = raised.dtype.type(0)
        for label in range(classes):
            at_end[label] = belief[j, label] / to_end[lo + e, label]
        for label in range(classes):
            at_start = belief[i, label] / to_start[lo + e, label]
            told = raised.dtype.type(0)
            for other in range(classes):
                in_start = at_start * factors[e, label, other] * raised[j, other]
                in_end = raised[i, label] * factors[e, label, other] * at_end[other]
                share_grad[j, other] += in_start
                told += in_end
                both[other] = in_start + in_end
            share_grad[i, label] += told
            for other in range(classes):
                change += both[other] * half[label, other]
                half_grad[label, other] += both[other] * scale[lo + e]
        scale_grad[lo + e] = change
