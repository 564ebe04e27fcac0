"""One sweep of belief propagation with tensors: differentiable, on any device, for any couplings.

Messages are logarithms (…, 2, E, C), into the start of each edge and into its end, with a largest entry of 0. Sums over
the neighbours of a node are float64: at a hub a cavity is the small difference of two large numbers.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.inference.mrf import PairwiseMRF

CHUNK_ELEMENTS = 1 << 22

# How far couplings may be apart for log Σ exp as a shifted matrix product. Its terms are at least e^-range, and what
# underflows is below e^-87 or e^-708: lost terms are then smaller than rounding.
MATRIX_RANGE = {torch.float32: 60.0, torch.float64: 600.0}

# What a node with cavity field h tells its neighbour across couplings T: out of (…, E, C) and (…, E or 1, C, C).
Rule = Callable[[Tensor, Tensor], Tensor]
Messages = Float[Tensor, "*batch 2 edges classes"]


def silent(mrf: PairwiseMRF) -> Messages:
    """Give the messages of nodes that have nothing to say yet."""
    return mrf.unary.new_zeros(*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)


def node_totals(mrf: PairwiseMRF, messages: Messages) -> Float[Tensor, "*batch nodes classes"]:
    """U_i + Σ_k μ_{k→i}, in float64."""
    totals = mrf.unary.double()
    for side in (0, 1):
        totals = totals.index_add(-2, mrf.edge_index[side], messages[..., side, :, :].double())
    return totals


def cavities(mrf: PairwiseMRF, messages: Messages) -> Float[Tensor, "*batch 2 edges classes"]:
    """Give what the start and the end of each edge believe without what the other told it."""
    fields = node_totals(mrf, messages)[..., mrf.edge_index, :] - messages.double()
    return (fields - fields.detach().amax(-1, keepdim=True)).to(messages.dtype)


def sweep(mrf: PairwiseMRF, messages: Messages, rule: Rule) -> Messages:
    """Update all messages at once."""
    at_start, at_end = cavities(mrf, messages).unbind(-3)
    into_end = _tell(mrf, at_start, rule, backward=False)
    into_start = _tell(mrf, at_end, rule, backward=True)
    told = torch.stack([into_start, into_end], dim=-3)
    return told - told.amax(-1, keepdim=True)


def _tell(mrf: PairwiseMRF, fields: Float[Tensor, "*batch edges classes"], rule: Rule, backward: bool) -> Tensor:
    """Apply the rule to all edges, in chunks: it may need (edges, classes, classes) on the way.

    For a gradient chunks are computed again on the way back, instead of being kept.
    """
    step = edges_at_once(mrf, mrf.num_classes**2)
    parts = []
    for lo in range(0, max(1, mrf.num_edges), step):
        told = partial(_tell_part, mrf, rule, slice(lo, lo + step), backward)
        chunk = fields[..., lo : lo + step, :]
        again = torch.is_grad_enabled() and (rule is not log_sum or mrf.is_varied)
        parts.append(checkpoint(told, chunk, use_reentrant=False) if again else told(chunk))
    return torch.cat(parts, dim=-2)


def _tell_part(mrf: PairwiseMRF, rule: Rule, part: slice, backward: bool, fields: Tensor) -> Tensor:
    coupling = mrf.coupling(part)
    return rule(fields, coupling.transpose(-1, -2) if backward else coupling)


def log_sum(fields: Float[Tensor, "*batch edges classes"], coupling: Float[Tensor, "*batch e c c"]) -> Tensor:
    """Log Σ_l exp(h(l) + T(l, m)) up to a constant in each row, for fields whose largest entry is 0."""
    lowest, highest = coupling.detach().aminmax() if coupling.numel() else (torch.zeros(()), torch.zeros(()))
    if coupling.shape[-3] == 1 and float(highest - lowest) <= MATRIX_RANGE[fields.dtype]:
        return (fields.exp() @ (coupling.squeeze(-3) - highest).exp()).log()
    return torch.logsumexp(fields.unsqueeze(-1) + coupling, dim=-2)


def log_max(fields: Float[Tensor, "*batch edges classes"], coupling: Float[Tensor, "*batch e c c"]) -> Tensor:
    """max_l h(l) + T(l, m)."""
    return (fields.unsqueeze(-1) + coupling).amax(-2)


def edges_at_once(mrf: PairwiseMRF, numbers: int) -> int:
    """Give how many edges to look at together, when each needs so many numbers in each field of a batch."""
    return max(1, CHUNK_ELEMENTS // (numbers * max(1, math.prod(mrf.batch_shape))))


def largest_change(old: Tensor, new: Tensor) -> float:
    """Give the largest change of a message, relative to its size where that is more than 1."""
    if new.numel() == 0:
        return 0.0
    return float(((new - old).abs() / new.abs().clamp(min=1.0)).max())
