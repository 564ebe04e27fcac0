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
    raise ImportError("The slope of compiled attention differs from that of tensors.")


class Attention(NamedTuple):
    """What the gradient needs to know of a pass."""

    heads: Array  # (speakers, heads, units)
    both: Tensor  # (heads · units, 2 heads) both vectors of attention, so that P · both is what ends say
    alpha: Tensor  # (pairs, heads) weights before any are dropped
    slope: Tensor  # (pairs, heads) of leaky_relu
    factor: Tensor | None  # (pairs, heads) what dropout multiplies the weights by


def attend(
    projected: Tensor, att_src: Tensor, att_dst: Tensor, listeners: Listeners, kept: Kept | None
) -> tuple[Tensor, Attention]:
    """Give what listeners hear."""
    first, speaker, itself = _arrays(listeners)
    heads, both = projected.view(-1, *att_src.shape).numpy(), _both(att_src, att_dst)
    alpha, slope = projected.new_empty(2, listeners.num_pairs, len(att_src))
    _scores((projected @ both).numpy(), first, speaker, itself, alpha.numpy(), slope.numpy())
    alpha.exp_()
    _normalise(alpha.numpy(), first)
    factor = None if kept is None else kept.entries.view(alpha.shape).to(alpha.dtype).mul_(kept.scale)
    weight = alpha if factor is None else alpha * factor
    out = projected.new_zeros(len(itself), projected.shape[1])
    _average(weight.numpy(), heads, first, speaker, out.view(-1, *att_src.shape).numpy())
    return out, Attention(heads, both, alpha, slope, factor)


def attend_gradient(grad: Tensor, saved: Attention, listeners: Listeners) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of the projection and of the two vectors of attention."""
    first, speaker, itself = _arrays(listeners)
    num_speakers, num_heads, units = saved.heads.shape
    weight = saved.alpha if saved.factor is None else saved.alpha * saved.factor
    projected_grad = grad.new_zeros(num_speakers, num_heads * units)
    pull, said_grad = torch.empty_like(saved.alpha), grad.new_zeros(num_speakers, 2 * num_heads)
    back, into = (part.view(-1, num_heads, units).numpy() for part in (grad, projected_grad))
    _listen_back(back, saved.heads, weight.numpy(), first, speaker, pull.numpy(), into)
    if saved.factor is not None:
        pull *= saved.factor
    _softmax_back(pull.numpy(), saved.alpha.numpy(), saved.slope.numpy(), first, speaker, itself, said_grad.numpy())
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
def _scores(said: Array, first: Array, speaker: Array, itself: Array, score: Array, slope: Array) -> None:
    """leaky_relu of the sum of what both ends say, less the largest that a listener hears."""
    num_heads, one, low = score.shape[1], score.dtype.type(1), score.dtype.type(0.2)
    top = np.empty(num_heads, dtype=score.dtype)
    for i in range(len(itself)):
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
def _normalise(alpha: Array, first: Array) -> None:
    """Divide by the sum over what a listener hears."""
    num_heads = alpha.shape[1]
    share = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(len(first) - 1):
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
def _average(weight: Array, heads: Array, first: Array, speaker: Array, out: Array) -> None:
    """Add up what speakers project."""
    num_heads, units = heads.shape[1], heads.shape[2]
    for i in range(len(first) - 1):
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
def _listen_back(
    grad: Array, heads: Array, weight: Array, first: Array, speaker: Array, pull: Array, heads_grad: Array
) -> None:
    """Give the gradients of weights and of what speakers project, from those of what listeners hear."""
    num_heads, units = heads.shape[1], heads.shape[2]
    for i in range(len(first) - 1):
        for pair in range(first[i], first[i + 1]):
            j = speaker[pair]
            for head in range(num_heads):
                total = grad.dtype.type(0)
                for chunk in range(units // 8):
                    for lane in range(8):
                        total += grad[i, head, chunk * 8 + lane] * heads[j, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    total += grad[i, head, unit] * heads[j, head, unit]
                pull[pair, head] = total
            for head in range(num_heads):
                factor = weight[pair, head]
                for chunk in range(units // 8):
                    for lane in range(8):
                        heads_grad[j, head, chunk * 8 + lane] += factor * grad[i, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    heads_grad[j, head, unit] += factor * grad[i, head, unit]


@vectorised
def _softmax_back(
    pull: Array, alpha: Array, slope: Array, first: Array, speaker: Array, itself: Array, said_grad: Array
) -> None:
    """Give the gradients of what both ends say, from those of softmax weights."""
    num_heads = alpha.shape[1]
    mean = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(len(itself)):
        for head in range(num_heads):
            mean[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                mean[head] += alpha[pair, head] * pull[pair, head]
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                change = alpha[pair, head] * (pull[pair, head] - mean[head]) * slope[pair, head]
                said_grad[speaker[pair], head] += change
                said_grad[itself[i], num_heads + head] += change
