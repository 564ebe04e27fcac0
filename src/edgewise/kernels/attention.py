"""Multi-head graph attention (Veličković et al. 2018).

s_ij = leaky_relu(a_src · P_j + a_dst · P_i), α_ij = softmax over j, out_i = Σ_j α_ij P_j, where P are the projected
features and j runs over i and its neighbors.

The compiled loops compute exponentials of nodes only, not of pairs. With x = a_src · P_j, y = a_dst · P_i and the slope
λ = 0.2 of leaky_relu, exp(s_ij) = max(exp(x) exp(y), exp(λx) exp(λy)), because leaky_relu(z) = max(z, λz). So
nothing is stored per pair: the backward pass computes the attention weights again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import leaky_relu

from edgewise.kernels.dispatch import Threads, choose_implementation, vectorized
from edgewise.kernels.simd import choose_greater, fill, load, repeat, scale_integers, store, sum_groups
from edgewise.kernels.sparse import DropoutMask

NEGATIVE_SLOPE = 0.2  # of leaky_relu
MAX_SCORE_RANGE = 60.0  # of a_src · P_j over all j, so that no exp(a_src · P_j - maximum) underflows in float32

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
    operation = choose_implementation(projected.device, attend_compiled, attend_tensors)
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


def attend_compiled(
    projected: Float[Tensor, "sources width"],
    att_src: Float[Tensor, "heads units"],
    att_dst: Float[Tensor, "heads units"],
    neighborhoods: Neighborhoods,
    mask: DropoutMask | None = None,
) -> Float[Tensor, "targets width"]:
    """Compute `attend` with compiled loops, or with tensors if the scores of sources differ too much."""
    both = _stack_vectors(att_src.detach(), att_dst.detach())
    from_source, from_target = (projected.detach() @ both).split(len(att_src), dim=1)
    lowest, highest = from_source.aminmax(dim=0)
    if not bool((highest - lowest <= MAX_SCORE_RANGE).all()):  # also if a score is NaN
        return attend_tensors(projected, att_src, att_dst, neighborhoods, mask)
    factors = _Factors.from_scores(from_source, from_target[neighborhoods.own], highest)
    return _attend(projected, att_src, att_dst, both, factors, neighborhoods, mask)


def _stack_vectors(att_src: Tensor, att_dst: Tensor) -> Tensor:
    """Arrange both attention vectors so that one matrix product computes a_src · P and a_dst · P of all heads."""
    num_heads, units = att_src.shape
    both, diagonal = att_src.new_zeros(num_heads, units, 2, num_heads), torch.arange(num_heads)
    both[diagonal, :, 0, diagonal], both[diagonal, :, 1, diagonal] = att_src, att_dst
    return both.view(num_heads * units, 2 * num_heads)


class _Factors(NamedTuple):
    """Factors of sources and targets: up to a factor of i, exp(s_ij) = max(A_j C_i, B_j D_i)."""

    source: Float[Tensor, "sources two_heads"]  # A, B
    target: Float[Tensor, "targets two_heads"]  # C, D

    @classmethod
    def from_scores(cls, from_source: Tensor, from_target: Tensor, highest: Tensor) -> "_Factors":
        """Shift the scores of sources to a maximum of 0, and scale the factors of each target to a maximum of 1."""
        shifted, scores = from_source - highest, (1.0 - NEGATIVE_SLOPE) * (from_target + highest)
        source = torch.cat([shifted, NEGATIVE_SLOPE * shifted], dim=1).exp_()
        return cls(source, torch.cat([scores, -scores], dim=1).clamp_(max=0.0).exp_())


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        att_src: Tensor,
        att_dst: Tensor,
        both: Tensor,
        factors: _Factors,
        neighborhoods: Neighborhoods,
        mask: DropoutMask | None,
    ) -> Tensor:
        projected, (num_heads, units) = projected.detach().contiguous(), att_src.shape
        ctx.saved = projected, both, factors, neighborhoods, mask
        out, ctx.normalizer = _forward(projected, num_heads, factors, neighborhoods, mask)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
        projected, both, factors, neighborhoods, mask = ctx.saved
        num_heads = both.shape[1] // 2
        projected_grad, score_grad = _backward(
            grads[0].contiguous(), projected, num_heads, factors, ctx.normalizer, neighborhoods, mask
        )
        projected_grad.addmm_(score_grad, both.T)
        both_grad, diagonal = (projected.T @ score_grad).view(num_heads, -1, 2, num_heads), torch.arange(num_heads)
        return projected_grad, both_grad[diagonal, :, 0, diagonal], both_grad[diagonal, :, 1, diagonal], *[None] * 4


_attend: Callable[..., Tensor] = _Attend.apply


def _forward(
    projected: Tensor, num_heads: int, factors: _Factors, neighborhoods: Neighborhoods, mask: DropoutMask | None
) -> tuple[Tensor, Tensor]:
    """Return the output, and for each target the sum of max(A_j C_i, B_j D_i) over its sources."""
    num_targets, width = len(neighborhoods.own), projected.shape[1]
    out, normalizer = projected.new_empty(num_targets, width), projected.new_empty(num_targets, num_heads)
    arrays = [part.numpy() for part in (*factors, projected, neighborhoods.first, neighborhoods.source, normalizer, out)]
    keep, scale = _keep_and_scale(mask, neighborhoods.num_pairs, arrays[2].dtype, num_heads)
    loop, _, _ = _loops(*_vector_shape(num_heads, width // num_heads))
    work = 4 * neighborhoods.num_pairs * width  # 4 for memory access in random order
    neighborhoods.threads.run(lambda lo, hi: loop(lo, hi, num_heads, keep, scale, *arrays), num_targets, work)
    return out, normalizer


def _backward(
    grad: Tensor,
    projected: Tensor,
    num_heads: int,
    factors: _Factors,
    normalizer: Tensor,
    neighborhoods: Neighborhoods,
    mask: DropoutMask | None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the projected features in Σ_j α_ij P_j for fixed α, and of the scores of nodes."""
    width = projected.shape[1]
    projected_grad, score_grad = torch.zeros_like(projected), projected.new_zeros(len(projected), 2 * num_heads)
    graph = neighborhoods.first, neighborhoods.source, neighborhoods.own
    parts = *factors, projected, *graph, normalizer, grad, projected_grad, score_grad
    arrays = [part.numpy() for part in parts]
    keep, scale = _keep_and_scale(mask, neighborhoods.num_pairs, arrays[2].dtype, num_heads)
    _, loop, heads_per_vector = _loops(*_vector_shape(num_heads, width // num_heads))
    slope, work = arrays[2].dtype.type(NEGATIVE_SLOPE), 8 * neighborhoods.num_pairs * width
    # Gradients are added to sources in random order, so threads share the heads and not the targets.
    neighborhoods.threads.run(
        lambda lo, hi: loop(lo * heads_per_vector, hi * heads_per_vector, num_heads, slope, keep, scale, *arrays),
        num_heads // heads_per_vector,
        work,
    )
    return projected_grad, score_grad


def _keep_and_scale(mask: DropoutMask | None, num_pairs: int, dtype: Any, num_heads: int) -> tuple[Array, Any]:
    """Return the mask as an array, and the factor of kept attention weights."""
    if mask is None:
        return np.ones((num_pairs, num_heads), dtype=np.uint8), dtype.type(1)
    return mask.keep.view(num_pairs, num_heads).numpy(), dtype.type(mask.scale)


def _vector_shape(num_heads: int, units: int) -> tuple[int, int]:
    """Return how many heads and how many units of each head a vector holds."""
    if units == 8 and num_heads % 8 == 0:
        return 8, 8
    return 1, 8 if units % 8 == 0 else 1


@cache
def _loops(heads: int, units: int) -> tuple[Callable[..., None], Callable[..., None], int]:
    """Compile both loops for vectors of some heads and some units of each, and return them and the number of heads."""
    size = heads * units

    @vectorized
    def forward(
        lo: int,
        hi: int,
        num_heads: int,
        keep: Array,
        scale: float,
        sources: Array,
        targets: Array,
        projected: Array,
        first: Array,
        source: Array,
        normalizer: Array,
        out: Array,
    ) -> None:
        """Compute Σ_j α_ij P_j and the normalizers of α for the targets lo … hi."""
        num_units, zero = projected.shape[1] // num_heads, projected.dtype.type(0)
        for i in range(lo, hi):
            for head in range(0, num_heads, heads):
                c, d = load(targets, i, head, heads), load(targets, i, num_heads + head, heads)
                total = fill(zero, heads)
                for pair in range(first[i], first[i + 1]):
                    j = source[pair]
                    a, b = load(sources, j, head, heads) * c, load(sources, j, num_heads + head, heads) * d
                    total = total + choose_greater(a, b, a, b)
                store(normalizer, i, head, total)
                for k in range(head * num_units, (head + heads) * num_units, size):
                    mean = fill(zero, size)
                    for pair in range(first[i], first[i + 1]):
                        j = source[pair]
                        a, b = load(sources, j, head, heads) * c, load(sources, j, num_heads + head, heads) * d
                        alpha = choose_greater(a, b, a, b) / total
                        weight = alpha * scale_integers(load(keep, pair, head, heads), scale)
                        mean = mean + repeat(weight, units) * load(projected, j, k, size)
                    store(out, i, k, mean)

    @vectorized
    def backward(
        lo: int,
        hi: int,
        num_heads: int,
        slope: float,
        keep: Array,
        scale: float,
        sources: Array,
        targets: Array,
        projected: Array,
        first: Array,
        source: Array,
        own: Array,
        normalizer: Array,
        grad: Array,
        projected_grad: Array,
        score_grad: Array,
    ) -> None:
        """Add the gradients of the heads lo … hi."""
        num_units, zero = projected.shape[1] // num_heads, projected.dtype.type(0)
        slopes, ones, longest = fill(slope, heads), fill(projected.dtype.type(1), heads), 0
        for i in range(len(own)):
            longest = max(longest, first[i + 1] - first[i])
        alpha_grad, factor = np.empty((longest, heads), grad.dtype), np.empty((longest, heads), grad.dtype)
        for i in range(len(own)):
            for head in range(lo, hi, heads):
                c, d = load(targets, i, head, heads), load(targets, i, num_heads + head, heads)
                total, mean = load(normalizer, i, head, heads), fill(zero, heads)
                for pair in range(first[i], first[i + 1]):
                    j = source[pair]
                    a, b = load(sources, j, head, heads) * c, load(sources, j, num_heads + head, heads) * d
                    alpha = choose_greater(a, b, a, b) / total
                    kept = scale_integers(load(keep, pair, head, heads), scale)
                    weight, product = repeat(alpha * kept, units), fill(zero, heads)
                    for k in range(head * num_units, (head + heads) * num_units, size):
                        g = load(grad, i, k, size)
                        product = product + sum_groups(g * load(projected, j, k, size), heads)
                        store(projected_grad, j, k, load(projected_grad, j, k, size) + weight * g)
                    mean = mean + alpha * (product * kept)
                    store(alpha_grad, pair - first[i], 0, product * kept)
                    store(factor, pair - first[i], 0, alpha * choose_greater(a, b, ones, slopes))
                total = fill(zero, heads)
                for pair in range(first[i], first[i + 1]):
                    j, n = source[pair], pair - first[i]
                    g = load(factor, n, 0, heads) * (load(alpha_grad, n, 0, heads) - mean)
                    store(score_grad, j, head, load(score_grad, j, head, heads) + g)
                    total = total + g
                store(score_grad, own[i], num_heads + head, total)

    return forward, backward, heads
