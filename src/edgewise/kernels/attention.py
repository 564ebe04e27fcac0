"""Multi-head graph attention (Veličković et al. 2018).

s_ij = leaky_relu(a_src · P_j + a_dst · P_i), α_ij = softmax over j, out_i = Σ_j α_ij P_j, where P are the projected
features and j runs over i and its neighbors.
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

NEGATIVE_SLOPE = 0.2  # of leaky_relu

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Neighborhoods:
    """The sources, that is the neighbors, of each target node in CSR format."""

    first: Int[Tensor, " targets_and_one"]  # index of the first source of each target
    source: Int[Tensor, " pairs"]
    own: Int[Tensor, " targets"]  # index of each target among the sources
    num_sources: int
    threads: Threads

    @classmethod
    def from_arrays(
        cls, first: Array, source: Array, own: Array, num_sources: int, device: torch.device, threads: Threads
    ) -> "Neighborhoods":
        """Create neighborhoods from NumPy arrays on a device."""
        tensors = [torch.from_numpy(part.astype(np.int64)).to(device) for part in (first, source, own)]
        return cls(tensors[0], tensors[1], tensors[2], num_sources, threads)

    @cached_property
    def by_source(self) -> tuple[Int[Tensor, " sources_and_one"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """The transpose: index of the first pair of each source, the pairs sorted by source, and their targets."""
        pair = self.source.argsort(stable=True)
        target = torch.repeat_interleave(self.first.diff())[pair]
        counts = torch.bincount(self.source, minlength=self.num_sources)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), pair, target

    @property
    def num_pairs(self) -> int:
        """Number of pairs of target and source."""
        return len(self.source)


def attend(
    projected: Float[Tensor, "sources width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    neighborhoods: Neighborhoods,
    mask: DropoutMask | None = None,
) -> Float[Tensor, "targets width"]:
    """Compute out_i for each target and head; ``mask`` drops attention weights, in the order (pairs, heads)."""
    operation = choose_implementation(projected.device, _attend, attend_tensors)
    return operation(projected, att_src, att_dst, neighborhoods, mask)


def attend_tensors(
    projected: Float[Tensor, "sources width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    neighborhoods: Neighborhoods,
    mask: DropoutMask | None = None,
) -> Float[Tensor, "targets width"]:
    """Compute `attend` with tensors."""
    from torch_geometric.utils import softmax  # takes seconds to import

    num, source = len(neighborhoods.own), neighborhoods.source
    target = torch.repeat_interleave(neighborhoods.first.diff())
    heads = projected.view(len(projected), *att_src.shape)
    from_source, from_target = (heads * att_src).sum(-1), (heads * att_dst).sum(-1)[neighborhoods.own]
    alpha = softmax(leaky_relu(from_source[source] + from_target[target], NEGATIVE_SLOPE), target, num_nodes=num)
    if mask is not None:
        alpha = alpha * (mask.keep.view(alpha.shape).to(alpha.dtype) * mask.scale)
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
        mask: DropoutMask | None,
    ) -> Tensor:
        detached = projected.detach().contiguous(), att_src.detach(), att_dst.detach()
        out, ctx.saved = _forward(*detached, neighborhoods, mask)
        ctx.neighborhoods = neighborhoods
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        return (*_backward(grads[0].contiguous(), ctx.saved, ctx.neighborhoods), None, None)


_attend: Callable[..., Tensor] = _Attend.apply


class _Saved(NamedTuple):
    """Results of the forward pass that the backward pass needs."""

    heads: Array  # (sources, heads, units)
    both: Tensor  # (heads · units, 2 heads) both attention vectors: P · both are the scores of sources and targets
    alpha: Tensor  # (pairs, heads) attention weights before dropout
    slope: Tensor  # (pairs, heads) derivative of leaky_relu
    factor: Tensor | None  # (pairs, heads) factors of dropout
    weight: Tensor  # (pairs, heads) attention weights after dropout


def _forward(
    projected: Tensor, att_src: Tensor, att_dst: Tensor, neighborhoods: Neighborhoods, mask: DropoutMask | None
) -> tuple[Tensor, _Saved]:
    first, source, own = _arrays(neighborhoods)
    heads, both = projected.view(-1, *att_src.shape).numpy(), _stack_vectors(att_src, att_dst)
    alpha, slope = projected.new_empty(2, neighborhoods.num_pairs, len(att_src))
    end_scores, scores, slopes = (projected @ both).numpy(), alpha.numpy(), slope.numpy()
    run, num, work = neighborhoods.threads.run, len(own), 4 * alpha.numel()  # 4 for memory access in random order
    run(lambda lo, hi: _scores(lo, hi, end_scores, first, source, own, scores, slopes), num, 4 * work)
    alpha.exp_()
    run(lambda lo, hi: _normalize(lo, hi, scores, first), num, 2 * work)
    factor = None if mask is None else mask.keep.view(alpha.shape).to(alpha.dtype).mul_(mask.scale)
    weight = alpha if factor is None else alpha * factor
    out = projected.new_empty(num, projected.shape[1])
    weights, result = weight.numpy(), out.view(-1, *att_src.shape).numpy()
    run(lambda lo, hi: _weighted_sum(lo, hi, weights, heads, first, source, result), num, work * att_src.shape[1])
    return out, _Saved(heads, both, alpha, slope, factor, weight)


def _backward(grad: Tensor, saved: _Saved, neighborhoods: Neighborhoods) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the projected features and of both attention vectors."""
    first, source, own = _arrays(neighborhoods)
    num_sources, num_heads, units = saved.heads.shape
    run, work = neighborhoods.threads.run, 8 * saved.alpha.numel() * units
    factor = torch.ones_like(saved.alpha) if saved.factor is None else saved.factor
    projected_grad = grad.new_empty(num_sources, num_heads * units)
    score_grad, end_grad = torch.empty_like(saved.alpha), grad.new_zeros(num_sources, 2 * num_heads)
    out_grads, projected_grads = (part.view(-1, num_heads, units).numpy() for part in (grad, projected_grad))
    parts = saved.alpha.numpy(), saved.slope.numpy(), factor.numpy()
    score_grads, end_grads = score_grad.numpy(), end_grad.numpy()
    run(
        lambda lo, hi: _scores_backward(
            lo, hi, out_grads, saved.heads, *parts, first, source, own, score_grads, end_grads
        ),
        len(own),
        work,
    )
    weights, (start, pair, target) = saved.weight.numpy(), (part.numpy() for part in neighborhoods.by_source)
    run(
        lambda lo, hi: _sources_backward(
            lo, hi, out_grads, weights, score_grads, start, pair, target, projected_grads, end_grads
        ),
        num_sources,
        work,
    )
    projected_grad.addmm_(end_grad, saved.both.T)
    projected = torch.from_numpy(saved.heads).view(num_sources, -1)
    both_grad = (projected.T @ end_grad).view(num_heads, units, 2, num_heads)
    diagonal = torch.arange(num_heads)
    return projected_grad, both_grad[diagonal, :, 0, diagonal], both_grad[diagonal, :, 1, diagonal]


def _stack_vectors(att_src: Tensor, att_dst: Tensor) -> Tensor:
    """Arrange both attention vectors so that one matrix product computes a_src · P and a_dst · P of all heads."""
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
    """Compute leaky_relu of the sum of source and target scores, minus the maximum over the neighborhood."""
    num_heads, one, negative = score.shape[1], score.dtype.type(1), score.dtype.type(NEGATIVE_SLOPE)
    highest = np.empty(num_heads, dtype=score.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            highest[head] = -np.inf
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                raw = end_scores[source[pair], head] + end_scores[own[i], num_heads + head]
                derivative = one if raw > 0 else negative
                slope[pair, head] = derivative
                score[pair, head] = raw * derivative
                highest[head] = max(highest[head], raw * derivative)
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                score[pair, head] -= highest[head]


@vectorized
def _normalize(lo: int, hi: int, alpha: Array, first: Array) -> None:
    """Divide by the sum over each neighborhood."""
    num_heads = alpha.shape[1]
    normalizer = np.empty(num_heads, dtype=alpha.dtype)
    for i in range(lo, hi):
        for head in range(num_heads):
            normalizer[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                normalizer[head] += alpha[pair, head]
        for head in range(num_heads):
            normalizer[head] = 1.0 / normalizer[head]
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                alpha[pair, head] *= normalizer[head]


@vectorized
def _weighted_sum(lo: int, hi: int, weight: Array, heads: Array, first: Array, source: Array, out: Array) -> None:
    """Compute Σ_j α_ij P_j."""
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
def _scores_backward(
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
    score_grad: Array,
    end_grad: Array,
) -> None:
    """Compute the gradients of the scores before leaky_relu, and of the scores of targets."""
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
                score_grad[pair, head] = total
            for head in range(num_heads):
                score_grad[pair, head] *= factor[pair, head]
                mean[head] += alpha[pair, head] * score_grad[pair, head]
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                score_grad[pair, head] = alpha[pair, head] * (score_grad[pair, head] - mean[head]) * slope[pair, head]
        for head in range(num_heads):
            mean[head] = 0.0
        for pair in range(first[i], first[i + 1]):
            for head in range(num_heads):
                mean[head] += score_grad[pair, head]
        for head in range(num_heads):
            end_grad[own[i], num_heads + head] = mean[head]


@vectorized
def _sources_backward(
    lo: int,
    hi: int,
    grad: Array,
    weight: Array,
    score_grad: Array,
    first: Array,
    pairs: Array,
    target: Array,
    heads_grad: Array,
    end_grad: Array,
) -> None:
    """Compute the gradients of the projected features and of the scores of sources, summed over their targets."""
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
                end_grad[j, head] += score_grad[pair, head]
