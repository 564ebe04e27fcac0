"""Graph attention in compiled loops: what `edgewise.models.attention` does with tensors, listener by listener.

Arrays are (nodes, heads, units) and (pairs, heads). Units go eight at a time: a loop of known length becomes one
instruction.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import vectorised
from edgewise.models.attention import SLOPE, Listeners
from edgewise.models.sparse import Kept

Array = NDArray[Any]

if SLOPE != 0.2:  # the loops spell it out
    raise ImportError("Expected the slope of compiled_attention.py to be that of attention.py. Change both.")


class Attention(NamedTuple):
    """What the gradient needs to know of a pass."""

    heads: Array  # (speakers, heads, units)
    both: Tensor  # (heads · units, 2 heads) both vectors of attention, so that P · both is what ends say
    alpha: Tensor  # (pairs, heads) weights before any are dropped
    slope: Tensor  # (pairs, heads) of leaky_relu
    factor: Tensor | None  # (pairs, heads) what dropout multiplies the weights by
    weight: Tensor  # (pairs, heads) weights after that


def attend(
    projected: Tensor, att_src: Tensor, att_dst: Tensor, listeners: Listeners, kept: Kept | None
) -> tuple[Tensor, Attention]:
    """Give what listeners hear."""
    first, speaker, itself = _arrays(listeners)
    heads, both = projected.view(-1, *att_src.shape).numpy(), _both(att_src, att_dst)
    alpha, slope = projected.new_empty(2, listeners.num_pairs, len(att_src))
    said, scores, slopes = (projected @ both).numpy(), alpha.numpy(), slope.numpy()
    share, num, work = listeners.crew.share, len(itself), 4 * alpha.numel()  # pairs are all over the memory
    share(lambda lo, hi: _scores(lo, hi, said, first, speaker, itself, scores, slopes), num, 4 * work)
    alpha.exp_()
    share(lambda lo, hi: _normalise(lo, hi, scores, first), num, 2 * work)
    factor = None if kept is None else kept.entries.view(alpha.shape).to(alpha.dtype).mul_(kept.scale)
    weight = alpha if factor is None else alpha * factor
    out = projected.new_empty(num, projected.shape[1])
    weights, heard = weight.numpy(), out.view(-1, *att_src.shape).numpy()
    share(lambda lo, hi: _average(lo, hi, weights, heads, first, speaker, heard), num, work * att_src.shape[1])
    return out, Attention(heads, both, alpha, slope, factor, weight)


def attend_gradient(grad: Tensor, saved: Attention, listeners: Listeners) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of the projection and of the two vectors of attention."""
    first, speaker, itself = _arrays(listeners)
    num_speakers, num_heads, units = saved.heads.shape
    share, work = listeners.crew.share, 8 * saved.alpha.numel() * units
    factor = torch.ones_like(saved.alpha) if saved.factor is None else saved.factor
    projected_grad = grad.new_empty(num_speakers, num_heads * units)
    change, said_grad = torch.empty_like(saved.alpha), grad.new_zeros(num_speakers, 2 * num_heads)
    back, into = (part.view(-1, num_heads, units).numpy() for part in (grad, projected_grad))
    parts = saved.alpha.numpy(), saved.slope.numpy(), factor.numpy()
    changes, said = change.numpy(), said_grad.numpy()
    share(
        lambda lo, hi: _scores_back(lo, hi, back, saved.heads, *parts, first, speaker, itself, changes, said),
        len(itself),
        work,
    )
    weights, (start, pair, listener) = saved.weight.numpy(), (part.numpy() for part in listeners.by_speaker)
    share(
        lambda lo, hi: _speakers_back(lo, hi, back, weights, changes, start, pair, listener, into, said),
        num_speakers,
        work,
    )
    projected_grad.addmm_(said_grad, saved.both.T)
    projected = torch.from_numpy(saved.heads).view(num_speakers, -1)
    both_grad = (projected.T @ said_grad).view(num_heads, units, 2, num_heads)
    own = torch.arange(num_heads)
    return projected_grad, both_grad[own, :, 0, own], both_grad[own, :, 1, own]


def _both(att_src: Tensor, att_dst: Tensor) -> Tensor:
    """Arrange both vectors so that one matrix product gives a_src · P and a_dst · P of all heads."""
    num_heads, units = att_src.shape
    both, own = att_src.new_zeros(num_heads, units, 2, num_heads), torch.arange(num_heads)
    both[own, :, 0, own], both[own, :, 1, own] = att_src, att_dst
    return both.view(num_heads * units, 2 * num_heads)


def _arrays(listeners: Listeners) -> tuple[Array, Array, Array]:
    return listeners.first.numpy(), listeners.speaker.numpy(), listeners.itself.numpy()


@vectorised
def _scores(
    lo: int, hi: int, said: Array, first: Array, speaker: Array, itself: Array, score: Array, slope: Array
) -> None:
    """leaky_relu of the sum of what both ends say, less the largest that a listener hears."""
    num_heads, one, low = score.shape[1], score.dtype.type(1), score.dtype.type(0.2)
    top = np.empty(num_heads, dtype=score.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            top[head] = -np.inf
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                raw = said[speaker[pair], head] + said[itself[i], num_heads + head]
                falls = one if raw > 0 else low
                slope[pair, head] = falls
                score[pair, head] = raw * falls
                top[head] = max(top[head], raw * falls)
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                score[pair, head] -= top[head]


@vectorised
def _normalise(lo: int, hi: int, alpha: Array, first: Array) -> None:
    """Divide by the sum over what a listener hears."""
    num_heads = alpha.shape[1]
    share = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            share[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                share[head] += alpha[pair, head]
        for head in range(num_heads):
            share[head] = 1.0 / share[head]
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                alpha[pair, head] *= share[head]


@vectorised
def _average(lo: int, hi: int, weight: Array, heads: Array, first: Array, speaker: Array, out: Array) -> None:
    """Add up what speakers project."""
    num_heads, units = heads.shape[1], heads.shape[2]
    out[lo:hi] = 0.0
    for i in range(lo, hi):
        for pair in range(first[i], first[i + 1]):
            j = speaker[pair]
            for head in range(num_heads):
                factor = weight[pair, head]
                for chunk in range(units // 8):
                    for lane in range(8):
                        out[i, head, chunk * 8 + lane] += factor * heads[j, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    out[i, head, unit] += factor * heads[j, head, unit]


@vectorised
def _scores_back(
    lo: int,
    hi: int,
    grad: Array,
    heads: Array,
    alpha: Array,
    slope: Array,
    factor: Array,
    first: Array,
    speaker: Array,
    itself: Array,
    change: Array,
    said_grad: Array,
) -> None:
    """Give the gradients of scores, before leaky_relu, and of what listeners say, from those of what they hear."""
    num_heads, units = heads.shape[1], heads.shape[2]
    mean = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            mean[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            j = speaker[pair]
            for head in range(num_heads):
                total = grad.dtype.type(0)
                for chunk in range(units // 8):
                    for lane in range(8):
                        total += grad[i, head, chunk * 8 + lane] * heads[j, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    total += grad[i, head, unit] * heads[j, head, unit]
                change[pair, head] = total
            for head in range(num_heads):
                change[pair, head] *= factor[pair, head]
                mean[head] += alpha[pair, head] * change[pair, head]
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                change[pair, head] = alpha[pair, head] * (change[pair, head] - mean[head]) * slope[pair, head]
        for head in range(num_heads):
            mean[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                mean[head] += change[pair, head]
        for head in range(num_heads):
            said_grad[itself[i], num_heads + head] = mean[head]


@vectorised
def _speakers_back(
    lo: int,
    hi: int,
    grad: Array,
    weight: Array,
    change: Array,
    first: Array,
    pairs: Array,
    listener: Array,
    heads_grad: Array,
    said_grad: Array,
) -> None:
    """Gather the gradients of what speakers project and say, from all who listen to them."""
    num_heads, units = heads_grad.shape[1], heads_grad.shape[2]
    heads_grad[lo:hi] = 0.0
    for j in range(lo, hi):
        for k in range(first[j], first[j + 1]):
            pair, i = pairs[k], listener[k]
            for head in range(num_heads):
                factor = weight[pair, head]
                for chunk in range(units // 8):
                    for lane in range(8):
                        heads_grad[j, head, chunk * 8 + lane] += factor * grad[i, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    heads_grad[j, head, unit] += factor * grad[i, head, unit]
            for head in range(num_heads):
                said_grad[j, head] += change[pair, head]
