"""Graph attention: each node averages its neighbors with weights of its own, in several heads.

s_ij = leaky_relu(a_src · P_j + a_dst · P_i), α_ij = softmax over j, out_i = Σ_j α_ij P_j, where P are the projected
features and j runs over the neighbors of i and i itself (Veličković et al. 2018).
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

from edgewise.kernels.dispatch import Threads, choose_implementation, vectorized
from edgewise.kernels.sparse import DropoutMask

SLOPE = 0.2  # of leaky_relu below zero

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Neighborhoods:
    """The neighbors, or sources, of each target node, one neighborhood after the other."""

    first: Int[Tensor, " targets_and_one"]  # where each neighborhood begins
    source: Int[Tensor, " pairs"]
    own: Int[Tensor, " targets"]  # the target's own place among the sources
    num_sources: int
    threads: Threads

    @classmethod
    def from_arrays(
        cls, first: Array, source: Array, own: Array, num_sources: int, device: torch.device, threads: Threads
    ) -> "Neighborhoods":
        """Move arrays to a device."""
        begin, sources, targets = (torch.from_numpy(part.astype(np.int64)).to(device) for part in (first, source, own))
        return cls(begin, sources, targets, num_sources, threads)

    @cached_property
    def by_source(self) -> tuple[Int[Tensor, " sources_and_one"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """Where each source's pairs begin, which pairs they are, and their targets."""
        pair = self.source.argsort(stable=True)
        target = torch.repeat_interleave(self.first.diff())[pair]
        counts = torch.bincount(self.source, minlength=self.num_sources)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), pair, target

    @property
    def num_pairs(self) -> int:
        """How many pairs of target and source there are."""
        return len(self.source)


def attend(
    projected: Float[Tensor, "sources width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    neighborhoods: Neighborhoods,
    kept: DropoutMask | None = None,
) -> Float[Tensor, "targets width"]:
    """Average projected sources for each target, head by head; ``kept`` drops some of the weights (pairs · heads)."""
    operation = choose_implementation(projected.device, _attend, attend_tensors)
    return operation(projected, att_src, att_dst, neighborhoods, kept)


def attend_tensors(
    projected: Float[Tensor, "sources width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    neighborhoods: Neighborhoods,
    kept: DropoutMask | None = None,
) -> Float[Tensor, "targets width"]:
    """Do with tensors what the compiled loops do."""
    from torch_geometric.utils import softmax  # takes seconds to load

    num, source = len(neighborhoods.own), neighborhoods.source
    target = torch.repeat_interleave(neighborhoods.first.diff())
    heads = projected.view(len(projected), *att_src.shape)
    from_source, from_target = (heads * att_src).sum(-1), (heads * att_dst).sum(-1)[neighborhoods.own]
    alpha = softmax(leaky_relu(from_source[source] + from_target[target], SLOPE), target, num_nodes=num)
    if kept is not None:
        alpha = alpha * (kept.entries.view(alpha.shape).to(alpha.dtype) * kept.scale)
    messages = alpha.unsqueeze(-1) * heads[source]
    return heads.new_zeros(num, *att_src.shape).index_add(0, target, messages).flatten(1)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        att_src: Tensor,
        att_dst: Tensor,
        neighborhoods: Neighborhoods,
        kept: DropoutMask | None,
    ) -> Tensor:
        plain = projected.detach().contiguous()
        out, ctx.saved = _forward(plain, att_src.detach(), att_dst.detach(), neighborhoods, kept)
        ctx.neighborhoods = neighborhoods
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        return (*_backward(grads[0].contiguous(), ctx.saved, ctx.neighborhoods), None, None)


_attend: Callable[..., Tensor] = _Attend.apply


class _Saved(NamedTuple):
    """What the gradient needs to know of a pass."""

    heads: Array  # (sources, heads, units)
    both: Tensor  # (heads · units, 2 heads) both vectors of attention, so that P · both are the scores of both ends
    alpha: Tensor  # (pairs, heads) weights before any are dropped
    slope: Tensor  # (pairs, heads) of leaky_relu
    factor: Tensor | None  # (pairs, heads) what dropout multiplies the weights by
    weight: Tensor  # (pairs, heads) weights after that


def _forward(
    projected: Tensor, att_src: Tensor, att_dst: Tensor, neighborhoods: Neighborhoods, kept: DropoutMask | None
) -> tuple[Tensor, _Saved]:
    first, source, own = _arrays(neighborhoods)
    heads, both = projected.view(-1, *att_src.shape).numpy(), _both(att_src, att_dst)
    alpha, slope = projected.new_empty(2, neighborhoods.num_pairs, len(att_src))
    end_scores, scores, slopes = (projected @ both).numpy(), alpha.numpy(), slope.numpy()
    run, num, work = neighborhoods.threads.run, len(own), 4 * alpha.numel()  # pairs are all over the memory
    run(lambda lo, hi: _scores(lo, hi, end_scores, first, source, own, scores, slopes), num, 4 * work)
    alpha.exp_()
    run(lambda lo, hi: _normalize(lo, hi, scores, first), num, 2 * work)
    factor = None if kept is None else kept.entries.view(alpha.shape).to(alpha.dtype).mul_(kept.scale)
    weight = alpha if factor is None else alpha * factor
    out = projected.new_empty(num, projected.shape[1])
    weights, result = weight.numpy(), out.view(-1, *att_src.shape).numpy()
    run(lambda lo, hi: _average(lo, hi, weights, heads, first, source, result), num, work * att_src.shape[1])
    return out, _Saved(heads, both, alpha, slope, factor, weight)


def _backward(grad: Tensor, saved: _Saved, neighborhoods: Neighborhoods) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the projection and of the two vectors of attention."""
    first, source, own = _arrays(neighborhoods)
    num_sources, num_heads, units = saved.heads.shape
    run, work = neighborhoods.threads.run, 8 * saved.alpha.numel() * units
    factor = torch.ones_like(saved.alpha) if saved.factor is None else saved.factor
    projected_grad = grad.new_empty(num_sources, num_heads * units)
    change, end_grad = torch.empty_like(saved.alpha), grad.new_zeros(num_sources, 2 * num_heads)
    back, into = (part.view(-1, num_heads, units).numpy() for part in (grad, projected_grad))
    parts = saved.alpha.numpy(), saved.slope.numpy(), factor.numpy()
    changes, ends = change.numpy(), end_grad.numpy()
    run(
        lambda lo, hi: _scores_back(lo, hi, back, saved.heads, *parts, first, source, own, changes, ends),
        len(own),
        work,
    )
    weights, (start, pair, target) = saved.weight.numpy(), (part.numpy() for part in neighborhoods.by_source)
    run(
        lambda lo, hi: _sources_back(lo, hi, back, weights, changes, start, pair, target, into, ends),
        num_sources,
        work,
    )
    projected_grad.addmm_(end_grad, saved.both.T)
    projected = torch.from_numpy(saved.heads).view(num_sources, -1)
    both_grad = (projected.T @ end_grad).view(num_heads, units, 2, num_heads)
    diagonal = torch.arange(num_heads)
    return projected_grad, both_grad[diagonal, :, 0, diagonal], both_grad[diagonal, :, 1, diagonal]


def _both(att_src: Tensor, att_dst: Tensor) -> Tensor:
    """Arrange both vectors so that one matrix product gives a_src · P and a_dst · P of all heads."""
    num_heads, units = att_src.shape
    both, diagonal = att_src.new_zeros(num_heads, units, 2, num_heads), torch.arange(num_heads)
    both[diagonal, :, 0, diagonal], both[diagonal, :, 1, diagonal] = att_src, att_dst
    return both.view(num_heads * units, 2 * num_heads)


def _arrays(neighborhoods: Neighborhoods) -> tuple[Array, Array, Array]:
    return neighborhoods.first.numpy(), neighborhoods.source.numpy(), neighborhoods.own.numpy()


@vectorized
def _scores(
    lo: int, hi: int, end_scores: Array, first: Array, source: Array, own: Array, score: Array, slope: Array
) -> None:
    """leaky_relu of the sum of both ends' scores, less the largest of the neighborhood."""
    num_heads, one, low = score.shape[1], score.dtype.type(1), score.dtype.type(SLOPE)
    top = np.empty(num_heads, dtype=score.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            top[head] = -np.inf
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                raw = end_scores[source[pair], head] + end_scores[own[i], num_heads + head]
                falls = one if raw > 0 else low
                slope[pair, head] = falls
                score[pair, head] = raw * falls
                top[head] = max(top[head], raw * falls)
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                score[pair, head] -= top[head]


@vectorized
def _normalize(lo: int, hi: int, alpha: Array, first: Array) -> None:
    """Divide by the sum over a neighborhood."""
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


@vectorized
def _average(lo: int, hi: int, weight: Array, heads: Array, first: Array, source: Array, out: Array) -> None:
    """Σ_j α_ij P_j."""
    num_heads, units = heads.shape[1], heads.shape[2]
    out[lo:hi] = 0.0
    for i in range(lo, hi):
        for pair in range(first[i], first[i + 1]):
            j = source[pair]
            for head in range(num_heads):
                factor = weight[pair, head]
                for chunk in range(units // 8):
                    for lane in range(8):
                        out[i, head, chunk * 8 + lane] += factor * heads[j, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    out[i, head, unit] += factor * heads[j, head, unit]


@vectorized
def _scores_back(
    lo: int,
    hi: int,
    grad: Array,
    heads: Array,
    alpha: Array,
    slope: Array,
    factor: Array,
    first: Array,
    source: Array,
    own: Array,
    change: Array,
    end_grad: Array,
) -> None:
    """Compute the gradients of scores, before leaky_relu, and of the targets' part of them."""
    num_heads, units = heads.shape[1], heads.shape[2]
    mean = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            mean[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            j = source[pair]
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
            end_grad[own[i], num_heads + head] = mean[head]


@vectorized
def _sources_back(
    lo: int,
    hi: int,
    grad: Array,
    weight: Array,
    change: Array,
    first: Array,
    pairs: Array,
    target: Array,
    heads_grad: Array,
    end_grad: Array,
) -> None:
    """Compute the gradients of the sources' projection and scores, from all targets that they have."""
    num_heads, units = heads_grad.shape[1], heads_grad.shape[2]
    heads_grad[lo:hi] = 0.0
    for j in range(lo, hi):
        for k in range(first[j], first[j + 1]):
            pair, i = pairs[k], target[k]
            for head in range(num_heads):
                factor = weight[pair, head]
                for chunk in range(units // 8):
                    for lane in range(8):
                        heads_grad[j, head, chunk * 8 + lane] += factor * grad[i, head, chunk * 8 + lane]
                for unit in range(units // 8 * 8, units):
                    heads_grad[j, head, unit] += factor * grad[i, head, unit]
            for head in range(num_heads):
                end_grad[j, head] += change[pair, head]
