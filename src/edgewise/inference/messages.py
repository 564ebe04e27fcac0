"""One sweep of belief propagation with tensors: differentiable, on any device, for any couplings.

With log-potentials U and T, every node i sends to each neighbor j

    μ_{i→j}(m) = log Σ_l exp( h_{i∖j}(l) + T_ij(l, m) ),    h_{i∖j} = U_i + Σ_{k≠j} μ_{k→i},

with max in place of log Σ exp in max-product. h is called the cavity: the belief of i without what j sent it. Messages
are stored as (…, 2, E, C), into the start of each edge and into its end, shifted to a largest entry of 0. Sums over the
neighbors of a node are float64: at a hub a cavity is the small difference of two large numbers.

`edgewise.kernels.message_loops` computes the same sweeps in compiled loops.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import Convergence, PairwisePosterior

CHUNK_ELEMENTS = 1 << 22

# How far couplings may be apart for log Σ exp as a shifted matrix product. Its terms are at least e^-range, and what
# underflows is below e^-87 or e^-708: lost terms are then smaller than rounding.
MATRIX_RANGE = {torch.float32: 60.0, torch.float64: 600.0}

# Combine a cavity (…, E, C) and couplings (…, E or 1, C, C) over the labels of the source: `log_sum` or `log_max`.
Rule = Callable[[Tensor, Tensor], Tensor]
Messages = Float[Tensor, "*batch 2 edges classes"]


def sweep(mrf: PairwiseMRF, messages: Messages, rule: Rule) -> Messages:
    """Update all messages at once: μ_{i→j} = rule(h_{i∖j}, T_ij)."""
    cavity_of_start, cavity_of_end = cavities(mrf, messages).unbind(-3)
    into_end = _along_edges(mrf, rule, cavity_of_start, mrf.coupling)
    into_start = _along_edges(mrf, rule, cavity_of_end, lambda some: mrf.coupling(some).mT)
    updated = torch.stack([into_start, into_end], dim=-3)
    return updated - updated.amax(-1, keepdim=True)


def log_sum(cavity: Float[Tensor, "*batch edges classes"], coupling: Float[Tensor, "*batch e c c"]) -> Tensor:
    """Log Σ_l exp(h(l) + T(l, m)) up to a constant in each row, for cavities whose largest entry is 0."""
    lowest, highest = coupling.detach().aminmax() if coupling.numel() else (torch.zeros(()), torch.zeros(()))
    if coupling.shape[-3] == 1 and float(highest - lowest) <= MATRIX_RANGE[cavity.dtype]:
        return (cavity.exp() @ (coupling.squeeze(-3) - highest).exp()).log()
    return torch.logsumexp(cavity.unsqueeze(-1) + coupling, dim=-2)


def log_max(cavity: Float[Tensor, "*batch edges classes"], coupling: Float[Tensor, "*batch e c c"]) -> Tensor:
    """max_l h(l) + T(l, m)."""
    return (cavity.unsqueeze(-1) + coupling).amax(-2)


def zero_messages(mrf: PairwiseMRF) -> Messages:
    """Return the messages that a run starts from."""
    return mrf.unary.new_zeros(*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)


def node_totals(mrf: PairwiseMRF, messages: Messages) -> Float[Tensor, "*batch nodes classes"]:
    """U_i + Σ_k μ_{k→i}, in float64."""
    totals = mrf.unary.double()
    for side in (0, 1):
        totals = totals.index_add(-2, mrf.edge_index[side], messages[..., side, :, :].double())
    return totals


def cavities(mrf: PairwiseMRF, messages: Messages) -> Float[Tensor, "*batch 2 edges classes"]:
    """U_i + Σ_{k≠j} μ_{k→i} for the start and for the end of each edge, shifted to a largest entry of 0."""
    cavity = node_totals(mrf, messages)[..., mrf.edge_index, :] - messages.double()
    return (cavity - cavity.detach().amax(-1, keepdim=True)).to(messages.dtype)


def largest_change(old: Messages, new: Messages) -> float:
    """Return the largest change of a message, relative to its size where that is more than 1."""
    if new.numel() == 0:
        return 0.0
    return float(((new - old).abs() / new.abs().clamp(min=1.0)).max())


def posterior_from_messages(
    mrf: PairwiseMRF, messages: Messages, convergence: Convergence | None = None
) -> PairwisePosterior:
    """Return the beliefs b_i = U_i + Σ_k μ_{k→i}, with what the joints of edges need."""
    kept = mrf if mrf.requires_grad else mrf.detach()
    totals = node_totals(kept, messages)
    return PairwisePosterior(totals, kept.edge_index, messages, kept.pairwise, kept.edge_scale, convergence=convergence)


def _along_edges(
    mrf: PairwiseMRF,
    rule: Rule,
    cavity: Float[Tensor, "*batch edges classes"],
    coupling: Callable[[slice], Tensor],
) -> Float[Tensor, "*batch edges classes"]:
    """Apply the rule to all edges, in chunks: it may need (edges, classes, classes) on the way.

    For a gradient chunks are computed again on the way back, instead of being kept.
    """
    recompute = torch.is_grad_enabled() and (rule is not log_sum or mrf.is_varied)
    step = edges_at_once(mrf, mrf.num_classes**2)
    parts = []
    for lo in range(0, max(1, mrf.num_edges), step):
        some = slice(lo, lo + step)

        def apply(chunk: Tensor, some: slice = some) -> Tensor:
            return rule(chunk, coupling(some))

        chunk = cavity[..., some, :]
        parts.append(checkpoint(apply, chunk, use_reentrant=False) if recompute else apply(chunk))
    return torch.cat(parts, dim=-2)


def edges_at_once(mrf: PairwiseMRF, numbers: int) -> int:
    """Return how many edges fit into memory together, when each needs so many numbers in each field of a batch."""
    return max(1, CHUNK_ELEMENTS // (numbers * max(1, math.prod(mrf.batch_shape))))
