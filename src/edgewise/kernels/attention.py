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
MAX_SCORE_RANGE = 60.0  # of a_src · P_j over j and heads, so that no exp(a_src · P_j - maximum) underflows in float32
ROWS_PER_BLOCK = 1024  # the gradients of attention vectors are summed per block, then over blocks

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
    layer = _Layer(projected.detach().contiguous(), torch.stack([att_src.detach(), att_dst.detach()]), neighborhoods)
    from_source, from_target = layer.scores()
    lowest, highest = from_source.aminmax()
    if not float(highest - lowest) <= MAX_SCORE_RANGE:  # also if a score is NaN
        return attend_tensors(projected, att_src, att_dst, neighborhoods, mask)
    factors = _Factors.from_scores(from_source, from_target[neighborhoods.own], highest)
    return _attend(projected, att_src, att_dst, layer, factors, mask)


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
        layer: "_Layer",
        factors: _Factors,
        mask: DropoutMask | None,
    ) -> Tensor:
        ctx.layer, ctx.factors, ctx.mask = layer, factors, mask
        out, ctx.normalizer = layer.forward(factors, mask)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        projected_grad, score_grads = ctx.layer.backward(grads[0].contiguous(), ctx.factors, ctx.normalizer, ctx.mask)
        src_grad, dst_grad = ctx.layer.scores_backward(score_grads, projected_grad)
        return projected_grad, src_grad, dst_grad, None, None, None


_attend: Callable[..., Tensor] = _Attend.apply


@dataclass(frozen=True, eq=False)
class _Layer:
    """The compiled loops of one attention layer."""

    projected: Float[Tensor, "sources width"]
    vectors: Float[Tensor, "2 heads units"]  # a_src, a_dst
    neighborhoods: Neighborhoods

    def scores(self) -> tuple[Float[Tensor, "sources heads"], Float[Tensor, "sources heads"]]:
        """Compute a_src · P and a_dst · P of all heads."""
        num_sources = len(self.projected)
        scores = self.projected.new_empty(2, num_sources, self._num_heads)
        vectors, projected, (src, dst) = self._rows.numpy(), self.projected.numpy(), scores.numpy()
        loop = self._loops.scores
        self._threads.run(
            lambda lo, hi: loop(lo, hi, vectors, projected, src, dst), num_sources, 2 * self.projected.numel()
        )
        return scores[0], scores[1]

    def forward(
        self, factors: _Factors, mask: DropoutMask | None
    ) -> tuple[Float[Tensor, "targets width"], Float[Tensor, "targets heads"]]:
        """Return the output, and for each target the sum of max(A_j C_i, B_j D_i) over its sources."""
        num_targets, (first, source, _) = len(self.neighborhoods.own), self._graph
        normalizer = self.projected.new_empty(num_targets, self._num_heads)
        out = self.projected.new_empty(num_targets, self.projected.shape[1])
        keep, scale = self._keep_and_scale(mask)
        arrays = [part.numpy() for part in (*factors, self.projected, normalizer, out)]
        loop, work = self._loops.forward, 4 * self._num_products  # 4 for memory access in random order
        self._threads.run(lambda lo, hi: loop(lo, hi, keep, scale, first, source, *arrays), num_targets, work)
        return out, normalizer

    def backward(
        self, grad: Tensor, factors: _Factors, normalizer: Tensor, mask: DropoutMask | None
    ) -> tuple[Float[Tensor, "sources width"], Float[Tensor, "2 sources heads"]]:
        """Return the gradients of the projected features for fixed scores, and of the scores a_src · P and a_dst · P.

        Gradients are added to sources in random order, so threads share the heads and not the targets.
        """
        projected_grad = torch.zeros_like(self.projected)
        score_grads = self.projected.new_zeros(2, len(self.projected), self._num_heads)
        keep, scale = self._keep_and_scale(mask)
        slope = self.projected.numpy().dtype.type(NEGATIVE_SLOPE)
        arrays = [part.numpy() for part in (*factors, self.projected, normalizer, grad, projected_grad, *score_grads)]
        loop, work, graph = self._loops.backward, 8 * self._num_products, self._graph
        num_steps = self._num_heads // self._loops.heads
        self._threads.run(lambda lo, hi: loop(lo, hi, slope, keep, scale, *graph, *arrays), num_steps, work)
        return projected_grad, score_grads

    def scores_backward(
        self, score_grads: Float[Tensor, "2 sources heads"], projected_grad: Float[Tensor, "sources width"]
    ) -> Float[Tensor, "2 heads units"]:
        """Add the gradient of the scores to that of the projected features, and return that of both vectors."""
        num_blocks = -(-len(self.projected) // ROWS_PER_BLOCK)
        grads = self.projected.new_zeros(2, num_blocks, self.projected.shape[1])
        arrays = [part.numpy() for part in (self._rows, self.projected, *score_grads, projected_grad, *grads)]
        loop, work = self._loops.scores_backward, 4 * self.projected.numel()
        self._threads.run(lambda lo, hi: loop(lo, hi, *arrays), num_blocks, work)
        return grads.sum(1).view(self.vectors.shape)

    def _keep_and_scale(self, mask: DropoutMask | None) -> tuple[Array, Any]:
        """Return the mask as an array, and the factor of kept attention weights."""
        shape, scalar = (self.neighborhoods.num_pairs, self._num_heads), self.projected.numpy().dtype.type
        if mask is None:
            return np.ones(shape, dtype=np.uint8), scalar(1)
        return mask.keep.view(shape).numpy(), scalar(mask.scale)

    @property
    def _num_heads(self) -> int:
        return self.vectors.shape[1]

    @property
    def _num_products(self) -> int:
        return self.neighborhoods.num_pairs * self.projected.shape[1]

    @property
    def _rows(self) -> Float[Tensor, "2 width"]:
        """Both vectors, with all heads in one row."""
        return self.vectors.view(2, -1)

    @property
    def _graph(self) -> tuple[Array, Array, Array]:
        return self.neighborhoods.first.numpy(), self.neighborhoods.source.numpy(), self.neighborhoods.own.numpy()

    @property
    def _threads(self) -> Threads:
        return self.neighborhoods.threads

    @property
    def _loops(self) -> "_Loops":
        """The loops for vectors of 8 heads with 8 units, of 8 units of one head, or of a single unit."""
        _, num_heads, num_units = self.vectors.shape
        if num_units == 8 and num_heads % 8 == 0:
            return _compile_loops(8, 8)
        return _compile_loops(1, 8 if num_units % 8 == 0 else 1)


class _Loops(NamedTuple):
    """Loops for vectors of some heads and some units of each of them."""

    heads: int
    scores: Callable[..., None]
    forward: Callable[..., None]
    backward: Callable[..., None]
    scores_backward: Callable[..., None]


@cache
def _compile_loops(heads: int, units: int) -> _Loops:
    """Compile all loops for vectors of some heads and some units of each of them."""
    size = heads * units

    @vectorized
    def scores(lo: int, hi: int, vectors: Array, projected: Array, src: Array, dst: Array) -> None:
        """Compute a_src · P and a_dst · P for the nodes lo … hi."""
        num_units, zeros = projected.shape[1] // src.shape[1], fill(projected.dtype.type(0), heads)
        for j in range(lo, hi):
            for head in range(0, src.shape[1], heads):
                from_source, from_target = zeros, zeros
                for k in range(head * num_units, (head + heads) * num_units, size):
                    p = load(projected, j, k, size)
                    from_source = from_source + sum_groups(p * load(vectors, 0, k, size), heads)
                    from_target = from_target + sum_groups(p * load(vectors, 1, k, size), heads)
                store(src, j, head, from_source)
                store(dst, j, head, from_target)

    @vectorized
    def forward(
        lo: int,
        hi: int,
        keep: Array,
        scale: float,
        first: Array,
        source: Array,
        sources: Array,
        targets: Array,
        projected: Array,
        normalizer: Array,
        out: Array,
    ) -> None:
        """Compute Σ_j α_ij P_j and the normalizers of α for the targets lo … hi."""
        num_heads, zero = keep.shape[1], projected.dtype.type(0)
        num_units = projected.shape[1] // num_heads
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
        slope: float,
        keep: Array,
        scale: float,
        first: Array,
        source: Array,
        own: Array,
        sources: Array,
        targets: Array,
        projected: Array,
        normalizer: Array,
        grad: Array,
        projected_grad: Array,
        src_grad: Array,
        dst_grad: Array,
    ) -> None:
        """Add the gradients of vectors of heads lo … hi."""
        num_heads, zero = keep.shape[1], projected.dtype.type(0)
        num_units, longest = projected.shape[1] // num_heads, 0
        for i in range(len(own)):
            longest = max(longest, first[i + 1] - first[i])
        alpha_grad, factor = np.empty((longest, heads), grad.dtype), np.empty((longest, heads), grad.dtype)
        slopes, ones = fill(slope, heads), fill(projected.dtype.type(1), heads)
        for i in range(len(own)):
            for head in range(lo * heads, hi * heads, heads):
                c, d = load(targets, i, head, heads), load(targets, i, num_heads + head, heads)
                total, mean = load(normalizer, i, head, heads), fill(zero, heads)
                for pair in range(first[i], first[i + 1]):
                    j, n = source[pair], pair - first[i]
                    a, b = load(sources, j, head, heads) * c, load(sources, j, num_heads + head, heads) * d
                    alpha = choose_greater(a, b, a, b) / total
                    kept = scale_integers(load(keep, pair, head, heads), scale)
                    weight, product = repeat(alpha * kept, units), fill(zero, heads)
                    for k in range(head * num_units, (head + heads) * num_units, size):
                        g = load(grad, i, k, size)
                        product = product + sum_groups(g * load(projected, j, k, size), heads)
                        store(projected_grad, j, k, load(projected_grad, j, k, size) + weight * g)
                    product = product * kept
                    mean = mean + alpha * product
                    store(alpha_grad, n, 0, product)
                    store(factor, n, 0, alpha * choose_greater(a, b, ones, slopes))
                total = fill(zero, heads)
                for pair in range(first[i], first[i + 1]):
                    j, n = source[pair], pair - first[i]
                    g = load(factor, n, 0, heads) * (load(alpha_grad, n, 0, heads) - mean)
                    store(src_grad, j, head, load(src_grad, j, head, heads) + g)
                    total = total + g
                store(dst_grad, own[i], head, total)

    @vectorized
    def scores_backward(
        lo: int,
        hi: int,
        vectors: Array,
        projected: Array,
        src_grad: Array,
        dst_grad: Array,
        projected_grad: Array,
        vector_src_grad: Array,
        vector_dst_grad: Array,
    ) -> None:
        """Add the gradients of a_src · P and a_dst · P for blocks of nodes."""
        num_heads = src_grad.shape[1]
        num_units = projected.shape[1] // num_heads
        for block in range(lo, hi):
            for j in range(block * ROWS_PER_BLOCK, min(len(projected), (block + 1) * ROWS_PER_BLOCK)):
                for head in range(0, num_heads, heads):
                    from_source = repeat(load(src_grad, j, head, heads), units)
                    from_target = repeat(load(dst_grad, j, head, heads), units)
                    for k in range(head * num_units, (head + heads) * num_units, size):
                        g = from_source * load(vectors, 0, k, size) + from_target * load(vectors, 1, k, size)
                        store(projected_grad, j, k, load(projected_grad, j, k, size) + g)
                        p = load(projected, j, k, size)
                        store(vector_src_grad, block, k, load(vector_src_grad, block, k, size) + from_source * p)
                        store(vector_dst_grad, block, k, load(vector_dst_grad, block, k, size) + from_target * p)

    return _Loops(heads, scores, forward, backward, scores_backward)
