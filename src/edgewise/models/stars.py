"""The piecewise likelihood of a pairwise field: one piece a node, the star of the node and its neighbours.

A node k with d_k - 1 neighbours is in d_k stars and gives each U_k / d_k; an edge is in two stars and gives each half
of its coupling. So the energies of the pieces add up to the energy of the field, and as a star is a tree, each piece
has an exact partition function: log Z_i = LSE_{y_i}( U_i/d_i + Σ_j LSE_{y_j}( U_j/d_j + r_ij B(y_i, y_j)/2 ) ).
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.data.compiled import runs_compiled

SAFE_RANGE = 60.0  # nats that couplings of one edge may differ by, for products of exponentials not to vanish
CHUNK_ELEMENTS = 1 << 20


class Field:
    """The edges of a graph, each once, and in how many stars each node is."""

    def __init__(self, edge_index: Int[Tensor, "2 edges"], num_nodes: int):
        self.start, self.end = edge_index
        self.stars = torch.bincount(edge_index.flatten(), minlength=num_nodes) + 1


def piecewise_loss(
    unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    coupling: Float[Tensor, "classes classes"],
    q: Float[Tensor, "nodes classes"],
    field: Field,
) -> Float[Tensor, ""]:
    """Minus the mean over stars of the expected log-likelihood under q; the coupling is symmetric."""
    pieces = log_partitions(unary, scale, coupling, field)
    return (pieces.sum() - expected_energy(unary, scale, coupling, q, field)) / len(unary)


def expected_energy(
    unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    coupling: Float[Tensor, "classes classes"],
    q: Float[Tensor, "nodes classes"],
    field: Field,
) -> Float[Tensor, ""]:
    """Σ_i q_i · U_i + Σ_ij r_ij q_i · B q_j: what the expected energies of all stars add up to."""
    pairs = ((q[field.start] @ coupling) * q[field.end]).sum(1)
    return (q * unary).sum() + (scale * pairs).sum()


def log_partitions(
    unary: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    coupling: Float[Tensor, "classes classes"],
    field: Field,
) -> Float[Tensor, " nodes"]:
    """Compute log Z of each star."""
    share = unary / field.stars.unsqueeze(1)
    half = coupling / 2
    with torch.no_grad():
        spread = float(scale.abs().max() * (half.max() - half.min())) if len(scale) else 0.0
    if runs_compiled(unary.device) and spread <= SAFE_RANGE:
        return _log_partitions(share, scale, half, field)
    return log_partitions_by_tensors(share, scale, half, field)


def largest(scale: Float[Tensor, " edges"], half: Float[Tensor, "classes classes"]) -> Float[Tensor, " edges"]:
    """Give the largest entry of r B / 2 for each edge."""
    return torch.maximum(scale * half.max(), scale * half.min())


def log_partitions_by_tensors(
    share: Float[Tensor, "nodes classes"],
    scale: Float[Tensor, " edges"],
    half: Float[Tensor, "classes classes"],
    field: Field,
) -> Float[Tensor, " nodes"]:
    """Do in logarithms, right for couplings of any size, what the compiled loops do by products."""
    total = share.double()  # hubs add up many messages that differ little
    step = max(1, CHUNK_ELEMENTS // half.numel())
    for lo in range(0, len(scale), step):
        part = slice(lo, lo + step)
        start, end = field.start[part], field.end[part]
        told = share[start], share[end], scale[part], half
        to_start, to_end = _told(*told) if len(scale) <= step else checkpoint(_told, *told, use_reentrant=False)
        total = total.index_add(0, start, to_start.double()).index_add(0, end, to_end.double())
    return torch.logsumexp(total, 1).to(share.dtype)


def _told(start: Tensor, end: Tensor, scale: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Compute messages to both ends of some edges; (edges, classes, classes) is computed again, not kept."""
    coupled = scale[:, None, None] * half
    return torch.logsumexp(end.unsqueeze(1) + coupled, 2), torch.logsumexp(start.unsqueeze(2) + coupled, 1)


class _LogPartitions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, scale: Tensor, half: Tensor, field: Field) -> Tensor:
        from edgewise.models.compiled_stars import collected, messages

        top = share.amax(1)
        raised = (share - top.unsqueeze(1)).exp()
        to_start, to_end = messages(raised, scale, half, field)
        total, common = collected(share, to_start, to_end, largest(scale, half), top, field)
        ctx.save_for_backward(raised, scale, half, to_start, to_end, total.softmax(1).to(share.dtype))
        ctx.field = field
        return (torch.logsumexp(total, 1) + common).to(share.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from edgewise.models.compiled_stars import messages_gradient

        raised, scale, half, to_start, to_end, belief = ctx.saved_tensors
        belief = belief * grads[0].unsqueeze(1)
        return (*messages_gradient(belief, to_start, to_end, raised, scale, half, ctx.field), None)


_log_partitions: Callable[..., Tensor] = _LogPartitions.apply
