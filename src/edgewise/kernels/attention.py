"""Graph attention: each node listens to its neighbours with weights of its own, in several heads.

s_ij = leaky_relu(a_src · P_j + a_dst · P_i), α_ij = softmax over j, out_i = Σ_j α_ij P_j, where P are the projected
features and j runs over the neighbours of i and i itself (Veličković et al. 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import leaky_relu

from edgewise.kernels.dispatch import Crew, runs_compiled, vectorised
from edgewise.kernels.sparse import Kept

SLOPE = 0.2


@dataclass(frozen=True, eq=False)
class Listeners:
    """Who listens to whom: the neighbours of each listener, one after the other."""

    first: Int[Tensor, " listeners_and_one"]
    speaker: Int[Tensor, " pairs"]
    itself: Int[Tensor, " listeners"]  # the listener's own place among the speakers
    num_speakers: int
    crew: Crew

    @classmethod
    def of(cls, task: Any, listeners: Any, speakers: Any) -> "Listeners":
        """Give the neighbours of listeners numbers: their places among the speakers, which are in order."""
        heard = task.neighbours[listeners]
        first, speaker, itself = (
            torch.from_numpy(part.astype(np.int64)).to(task.device)
            for part in (heard.indptr, np.searchsorted(speakers, heard.indices), np.searchsorted(speakers, listeners))
        )
        return cls(first, speaker, itself, len(speakers), task.crew)

    @cached_property
    def by_speaker(self) -> tuple[Int[Tensor, " speakers_and_one"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """Where each speaker's pairs begin, which pairs they are, and who listens in them."""
        pair = self.speaker.argsort(stable=True)
        listener = torch.repeat_interleave(self.first.diff())[pair]
        counts = torch.bincount(self.speaker, minlength=self.num_speakers)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), pair, listener

    @property
    def num_pairs(self) -> int:
        """How many pairs of listener and speaker there are."""
        return len(self.speaker)


def attended(
    projected: Float[Tensor, "speakers width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    listeners: Listeners,
    kept: Kept | None = None,
) -> Float[Tensor, "listeners width"]:
    """Let listeners average what speakers project, head by head; ``kept`` drops some of the weights (pairs · heads)."""
    if not runs_compiled(projected.device):
        return attended_by_tensors(projected, att_src, att_dst, listeners, kept)
    return _attended(projected, att_src, att_dst, listeners, kept)


def attended_by_tensors(
    projected: Float[Tensor, "speakers width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    listeners: Listeners,
    kept: Kept | None = None,
) -> Float[Tensor, "listeners width"]:
    """Do with tensors what the compiled loops do."""
    num = len(listeners.itself)
    heads = projected.view(len(projected), *att_src.shape)
    listener = torch.repeat_interleave(torch.arange(num, device=projected.device), listeners.first.diff())
    source, target = (heads * att_src).sum(-1), (heads * att_dst).sum(-1)[listeners.itself]
    score = leaky_relu(source[listeners.speaker] + target[listener], SLOPE)
    top = score.detach().new_full((num, len(att_src)), -torch.inf)
    top = top.scatter_reduce(0, listener.unsqueeze(1).expand_as(score), score.detach(), "amax")
    raised = (score - top[listener]).exp()
    alpha = raised / raised.new_zeros(num, len(att_src)).index_add(0, listener, raised)[listener]
    if kept is not None:
        alpha = alpha * (kept.entries.view(alpha.shape).to(alpha.dtype) * kept.scale)
    told = alpha.unsqueeze(-1) * heads[listeners.speaker]
    return heads.new_zeros(num, *att_src.shape).index_add(0, listener, told).flatten(1)


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, att_src: Tensor, att_dst: Tensor, listeners: Listeners, kept: Kept | None
    ) -> Tensor:

        own = projected.detach().contiguous()
        out, ctx.saved = attend(own, att_src.detach(), att_dst.detach(), listeners, kept)
        ctx.listeners = listeners
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:

        return (*attend_gradient(grads[0].contiguous(), ctx.saved, ctx.listeners), None, None)


_attended: Callable[..., Tensor] = _Attended.apply


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
