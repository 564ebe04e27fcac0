"""Graph attention in compiled loops: what `edgewise.models.attention` does with tensors, listener by listener.

Numbers of a node or a pair lie head by head; matrices are flat, so that a loop over a head's units has no more to do
than to count.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import vectorised
from edgewise.models.attention import SLOPE, Listeners
from edgewise.models.sparse import Kept

Array = NDArray[Any]

if SLOPE != 0.2:  # the loops spell it out
    raise ImportError("The slope of compiled attention differs from that of tensors.")


def attend(
    projected: Tensor, att_src: Tensor, att_dst: Tensor, listeners: Listeners, kept: Kept | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Give what listeners hear, their weights before any are dropped, and the slopes of leaky_relu."""
    num_heads, first, speaker, itself = len(att_src), *_arrays(listeners)
    alpha, slope = projected.new_empty(2, listeners.num_pairs, num_heads)
    out = projected.new_zeros(len(itself), projected.shape[1])
    flat = projected.numpy().ravel()
    said = [_said(flat, att.numpy().ravel(), num_heads) for att in (att_src, att_dst)]
    _scores(said[0], said[1], first, speaker, itself, num_heads, alpha.numpy().ravel(), slope.numpy().ravel())
    alpha.exp_()
    entries, scale = _entries(kept, flat)
    _average(alpha.numpy().ravel(), flat, first, speaker, num_heads, entries, scale, out.numpy().ravel())
    return out, alpha, slope


def attend_gradient(
    grad: Tensor,
    projected: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    alpha: Tensor,
    slope: Tensor,
    listeners: Listeners,
    kept: Kept | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of the projection and of the two vectors of attention."""
    num_heads, first, speaker, itself = len(att_src), *_arrays(listeners)
    flat = projected.numpy().ravel()
    projected_grad = projected.new_zeros(projected.shape)
    src_grad, dst_grad = att_src.new_zeros(att_src.shape), att_dst.new_zeros(att_dst.shape)
    source_grad = projected.new_zeros(len(projected), num_heads)
    target_grad = projected.new_zeros(len(itself), num_heads)
    entries, scale = _entries(kept, flat)
    into = projected_grad.numpy().ravel()
    _listen_back(
        grad.numpy().ravel(),
        flat,
        alpha.numpy().ravel(),
        slope.numpy().ravel(),
        first,
        speaker,
        num_heads,
        entries,
        scale,
        into,
        source_grad.numpy().ravel(),
        target_grad.numpy().ravel(),
    )
    everyone = np.arange(len(projected))
    for spread, nodes, att, att_grad in (
        (source_grad, everyone, att_src, src_grad),
        (target_grad, itself, att_dst, dst_grad),
    ):
        _said_back(spread.numpy().ravel(), nodes, att.numpy().ravel(), flat, num_heads, into, att_grad.numpy().ravel())
    return projected_grad, src_grad, dst_grad


def _arrays(listeners: Listeners) -> tuple[Array, Array, Array]:
    return listeners.first.numpy(), listeners.speaker.numpy(), listeners.itself.numpy()


def _entries(kept: Kept | None, like: Array) -> tuple[Array, Any]:
    """Give what is kept of the weights, and the scale; nothing at all if all are."""
    if kept is None:
        return np.empty(0, dtype=np.uint8), like.dtype.type(1)
    return kept.entries.numpy(), like.dtype.type(kept.scale)


def _said(projected: Array, att: Array, num_heads: int) -> Array:
    said = np.empty(len(projected) // len(att) * num_heads, dtype=projected.dtype)
    _dots(projected, att, num_heads, said)
    return said


@vectorised
def _add(to: Array, at: int, factor: float, x: Array, start: int, num: int) -> None:
    """Add factor · x to some entries; eight at once is one instruction."""
    k = 0
    while k + 8 <= num:
        for lane in range(8):
            to[at + k + lane] += factor * x[start + k + lane]
        k += 8
    while k < num:
        to[at + k] += factor * x[start + k]
        k += 1


@vectorised
def _dot(x: Array, at: int, y: Array, start: int, num: int) -> float:
    """Σ x y of some entries."""
    total = x[at] * y[start]
    for k in range(1, num):
        total += x[at + k] * y[start + k]
    return total


@vectorised
def _dots(projected: Array, att: Array, num_heads: int, said: Array) -> None:
    """a · P_j of each node and head."""
    units = len(att) // num_heads
    for node in range(len(projected) // len(att)):
        for head in range(num_heads):
            said[node * num_heads + head] = _dot(projected, node * len(att) + head * units, att, head * units, units)


@vectorised
def _scores(
    source: Array,
    target: Array,
    first: Array,
    speaker: Array,
    itself: Array,
    num_heads: int,
    score: Array,
    slope: Array,
) -> None:
    """leaky_relu of the sum of what both ends say, less the largest that a listener hears."""
    top = np.empty(num_heads, dtype=score.dtype)
    for i in range(len(itself)):
        for head in range(num_heads):
            top[head] = -np.inf
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                raw = source[speaker[pair] * num_heads + head] + target[itself[i] * num_heads + head]
                falls = score.dtype.type(1) if raw > 0 else score.dtype.type(0.2)
                slope[pair * num_heads + head] = falls
                score[pair * num_heads + head] = raw * falls
                top[head] = max(top[head], raw * falls)
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                score[pair * num_heads + head] -= top[head]


@vectorised
def _average(
    alpha: Array,
    projected: Array,
    first: Array,
    speaker: Array,
    num_heads: int,
    entries: Array,
    scale: float,
    out: Array,
) -> None:
    """Divide exp(score) by its sum, in place, and add up what speakers project."""
    width = len(out) // (len(first) - 1)
    units = width // num_heads
    share = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(len(first) - 1):
        for head in range(num_heads):
            share[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                share[head] += alpha[pair * num_heads + head]
        for head in range(num_heads):
            share[head] = 1.0 / share[head]
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                at = pair * num_heads + head
                alpha[at] *= share[head]
                weight = alpha[at]
                if len(entries) > 0:
                    weight *= scale * entries[at]
                _add(out, i * width + head * units, weight, projected, speaker[pair] * width + head * units, units)


@vectorised
def _listen_back(
    grad: Array,
    projected: Array,
    alpha: Array,
    slope: Array,
    first: Array,
    speaker: Array,
    num_heads: int,
    entries: Array,
    scale: float,
    projected_grad: Array,
    source_grad: Array,
    target_grad: Array,
) -> None:
    """Give the gradients of what speakers project and of what both ends say, from those of what listeners hear."""
    width = len(grad) // (len(first) - 1)
    units = width // num_heads
    most = 0
    for i in range(len(first) - 1):
        most = max(most, first[i + 1] - first[i])
    pull = np.empty(most * num_heads, dtype=grad.dtype)
    mean = np.empty(num_heads, dtype=grad.dtype)
    for i in range(len(first) - 1):
        start = first[i] * num_heads
        for head in range(num_heads):
            mean[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                at = pair * num_heads + head
                kept = scale * entries[at] if len(entries) > 0 else scale
                there, here = speaker[pair] * width + head * units, i * width + head * units
                pull[at - start] = kept * _dot(grad, here, projected, there, units)
                mean[head] += alpha[at] * pull[at - start]
                _add(projected_grad, there, alpha[at] * kept, grad, here, units)
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                at = pair * num_heads + head
                change = alpha[at] * (pull[at - start] - mean[head]) * slope[at]
                source_grad[speaker[pair] * num_heads + head] += change
                target_grad[i * num_heads + head] += change


@vectorised
def _said_back(
    said_grad: Array, nodes: Array, att: Array, projected: Array, num_heads: int, projected_grad: Array, att_grad: Array
) -> None:
    """Give the gradients of P and a from those of a · P."""
    width, units = len(att), len(att) // num_heads
    for k in range(len(nodes)):
        for head in range(num_heads):
            change = said_grad[k * num_heads + head]
            at, of = nodes[k] * width + head * units, head * units
            _add(projected_grad, at, change, att, of, units)
            _add(att_grad, of, change, projected, at, units)
