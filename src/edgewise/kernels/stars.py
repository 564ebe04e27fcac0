"""The piecewise likelihood of a pairwise MRF, with one piece per node: the star of the node and its neighbors.

A node k with d_k - 1 neighbors is in d_k stars and contributes U_k / d_k to each. An edge is in two stars and
contributes half of its coupling to each. So the energies of the pieces sum to the energy of the MRF. A star is a tree,
so the partition function of each piece is exact:
log Z_i = LSE_{y_i}( U_i/d_i + Σ_j LSE_{y_j}( U_j/d_j + r_ij B(y_i, y_j)/2 ) ).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.kernels.dispatch import choose_implementation, vectorized, vectorized_sums

MAX_COUPLING_RANGE = 60.0  # nats, of the couplings of one edge; above, products of exponentials may underflow
CHUNK_ELEMENTS = 1 << 20  # of the largest temporary tensor

Array = NDArray[Any]


class Stars:
    """The edges of a graph, each once, and the number of stars that contain each node."""

    def __init__(self, edge_index: Int[Tensor, "2 edges"], num_nodes: int):
        self.start, self.end = edge_index
        self.count = torch.bincount(edge_index.flatten(), minlength=num_nodes) + 1


def piecewise_loss(
    unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    coupling: Float[Tensor, "classes classes"],
    q: Float[Tensor, "nodes classes"],
    stars: Stars,
) -> Float[Tensor, ""]:
    """Compute minus the mean over stars of the expected log-likelihood under q, for a symmetric coupling."""
    pieces = log_partitions(unary, scale, coupling, stars)
    return (pieces.sum() - expected_energy(unary, scale, coupling, q, stars)) / len(unary)


def expected_energy(
    unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    coupling: Float[Tensor, "classes classes"],
    q: Float[Tensor, "nodes classes"],
    stars: Stars,
) -> Float[Tensor, ""]:
    """Compute Σ_i q_i · U_i + Σ_ij r_ij q_i · B q_j, the sum of the expected energies of all stars."""
    pairs = ((q[stars.start] @ coupling) * q[stars.end]).sum(1)
    return (q * unary).sum() + (scale * pairs).sum()


def log_partitions(
    unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    coupling: Float[Tensor, "classes classes"],
    stars: Stars,
) -> Float[Tensor, " nodes"]:
    """Compute log Z of each star."""
    scaled_unary = unary / stars.count.unsqueeze(1)
    half = coupling / 2
    with torch.no_grad():
        spread = float(scale.abs().max() * (half.max() - half.min())) if len(scale) else 0.0
    compiled = _log_partitions if spread <= MAX_COUPLING_RANGE else log_partitions_tensors
    return choose_implementation(unary.device, compiled, log_partitions_tensors)(scaled_unary, scale, half, stars)


def max_exponent(scale: Float[Tensor, " edges"], half: Float[Tensor, "classes classes"]) -> Float[Tensor, " edges"]:
    """Return the largest entry of r B / 2 for each edge."""
    return torch.maximum(scale * half.max(), scale * half.min())


def log_partitions_tensors(
    scaled_unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    half: Float[Tensor, "classes classes"],
    stars: Stars,
) -> Float[Tensor, " nodes"]:
    """Compute log Z of each star with tensors, in the log domain, for couplings of any magnitude."""
    total = scaled_unary.double()  # nodes of high degree sum many messages that differ little
    step = max(1, CHUNK_ELEMENTS // half.numel())
    for lo in range(0, len(scale), step):
        part = slice(lo, lo + step)
        start, end = stars.start[part], stars.end[part]
        parts = scaled_unary[start], scaled_unary[end], scale[part], half
        if len(scale) <= step:
            to_start, to_end = _messages_tensors(*parts)
        else:
            to_start, to_end = checkpoint(_messages_tensors, *parts, use_reentrant=False)
        total = total.index_add(0, start, to_start.double()).index_add(0, end, to_end.double())
    return torch.logsumexp(total, 1).to(scaled_unary.dtype)


def _messages_tensors(start: Tensor, end: Tensor, scale: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Compute messages to both ends of edges; checkpointed, because it allocates (edges, classes, classes)."""
    coupled = scale[:, None, None] * half
    return torch.logsumexp(end.unsqueeze(1) + coupled, 2), torch.logsumexp(start.unsqueeze(2) + coupled, 1)


class _LogPartitions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scaled_unary: Tensor, scale: Tensor, half: Tensor, stars: Stars) -> Tensor:
        top = scaled_unary.amax(1)
        exp_unary = (scaled_unary - top.unsqueeze(1)).exp()
        to_start, to_end = _messages(exp_unary, scale, half, stars)
        total, common = _collect_messages(scaled_unary, to_start, to_end, max_exponent(scale, half), top, stars)
        ctx.save_for_backward(exp_unary, scale, half, to_start, to_end, total.softmax(1).to(scaled_unary.dtype))
        ctx.stars = stars
        return (torch.logsumexp(total, 1) + common).to(scaled_unary.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        exp_unary, scale, half, to_start, to_end, belief = ctx.saved_tensors
        belief = belief * grads[0].unsqueeze(1)
        return (*_backward(belief, to_start, to_end, exp_unary, scale, half, ctx.stars), None)


_log_partitions: Callable[..., Tensor] = _LogPartitions.apply


def _messages(exp_unary: Tensor, scale: Tensor, half: Tensor, stars: Stars) -> tuple[Tensor, Tensor]:
    """Compute Σ_m exp(U(m) + r B(l, m)/2 - max_exponent) over labels m of one end for each label l of the other end."""
    to_start, to_end = exp_unary.new_empty(2, len(scale), len(half))
    ends = stars.start.numpy(), stars.end.numpy()
    for lo, factors in _chunks(scale, half):
        _messages_loop(lo, factors, *ends, exp_unary.numpy(), to_start.numpy(), to_end.numpy())
    return to_start, to_end


def _collect_messages(
    scaled_unary: Tensor, to_start: Tensor, to_end: Tensor, offset: Tensor, top: Tensor, stars: Stars
) -> tuple[Tensor, Tensor]:
    """Sum the log-messages to each node and its scaled unary, and separately the terms that are equal for all labels.

    Both are float64, because a node of high degree sums many numbers that differ little between labels.
    """
    total, common = scaled_unary.detach().double(), torch.zeros(len(scaled_unary), dtype=torch.float64)
    total = total.clone() if scaled_unary.dtype == torch.float64 else total
    ends, logs = (stars.start.numpy(), stars.end.numpy()), (to_start.log().numpy(), to_end.log().numpy())
    _collect_loop(*ends, *logs, offset.numpy(), top.numpy(), total.numpy(), common.numpy())
    return total, common


def _backward(
    belief: Tensor, to_start: Tensor, to_end: Tensor, exp_unary: Tensor, scale: Tensor, half: Tensor, stars: Stars
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the scaled unaries, scales and half the coupling."""
    scaled_unary_grad, scale_grad = belief.clone(), torch.empty_like(scale)
    half_grad = torch.zeros(half.shape, dtype=torch.float64)  # a sum over all edges
    ends = stars.start.numpy(), stars.end.numpy()
    parts = belief.numpy(), to_start.numpy(), to_end.numpy(), exp_unary.numpy(), scale.numpy(), half.numpy()
    into = scaled_unary_grad.numpy(), scale_grad.numpy(), half_grad.numpy()
    for lo, factors in _chunks(scale, half):
        _gradient_loop(lo, factors, *ends, *parts, *into)
    return scaled_unary_grad, scale_grad, half_grad.to(half.dtype)


def _chunks(scale: Tensor, half: Tensor) -> Iterator[tuple[int, Array]]:
    """Yield exp(r B / 2 - max_exponent) for chunks of edges, with the index of the first edge."""
    step = max(1, CHUNK_ELEMENTS // half.numel())
    for lo in range(0, len(scale), step):
        part = scale[lo : lo + step]
        yield lo, (part[:, None, None] * half - max_exponent(part, half)[:, None, None]).exp_().numpy()


@vectorized_sums
def _messages_loop(
    lo: int, factors: Array, start: Array, end: Array, exp_unary: Array, to_start: Array, to_end: Array
) -> None:
    classes = exp_unary.shape[1]
    for e in range(len(factors)):
        i, j = start[lo + e], end[lo + e]
        for label in range(classes):
            here, there = exp_unary.dtype.type(0), exp_unary.dtype.type(0)
            for other in range(classes):
                here += factors[e, label, other] * exp_unary[j, other]
                there += factors[e, label, other] * exp_unary[i, other]  # the coupling is symmetric
            to_start[lo + e, label] = here
            to_end[lo + e, label] = there


@vectorized
def _collect_loop(
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


@vectorized_sums
def _gradient_loop(
    lo: int,
    factors: Array,
    start: Array,
    end: Array,
    belief: Array,
    to_start: Array,
    to_end: Array,
    exp_unary: Array,
    scale: Array,
    half: Array,
    scaled_unary_grad: Array,
    scale_grad: Array,
    half_grad: Array,
) -> None:
    """Sum pair marginals: b_i(l)/m(l) · K(l, m) · exp(U_j(m)) in the star of i, and likewise in the star of j."""
    classes = exp_unary.shape[1]
    at_end, both = np.empty(classes, dtype=exp_unary.dtype), np.empty(classes, dtype=exp_unary.dtype)
    for e in range(len(factors)):
        i, j = start[lo + e], end[lo + e]
        scale_sum = exp_unary.dtype.type(0)
        for label in range(classes):
            at_end[label] = belief[j, label] / to_end[lo + e, label]
        for label in range(classes):
            at_start = belief[i, label] / to_start[lo + e, label]
            at_label = exp_unary.dtype.type(0)
            for other in range(classes):
                in_start = at_start * factors[e, label, other] * exp_unary[j, other]
                in_end = exp_unary[i, label] * factors[e, label, other] * at_end[other]
                scaled_unary_grad[j, other] += in_start
                at_label += in_end
                both[other] = in_start + in_end
            scaled_unary_grad[i, label] += at_label
            for other in range(classes):
                scale_sum += both[other] * half[label, other]
                half_grad[label, other] += both[other] * scale[lo + e]
        scale_grad[lo + e] = scale_sum
