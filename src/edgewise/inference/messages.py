"""One sweep of belief propagation with tensors: differentiable, on any device, for any couplings.

With log-potentials U and T, node i sends to each neighbor j the message

    μ_{i→j}(m) = log Σ_l exp( h_{i∖j}(l) + T_ij(l, m) ),    h_{i∖j} = U_i + Σ_{k≠j} μ_{k→i},

with max instead of log Σ exp in max-product. h is called the cavity: the log-belief of i without the message from j. In
tree-reweighted sum-product each edge has a weight ρ. The couplings are T / ρ, and h_{i∖j} = U_i + Σ_k ρ_ki μ_{k→i} -
μ_{j→i}, which is the same for ρ = 1.

Messages have shape (…, 2, E, C): into the start of each edge, then into its end. Each message is shifted so that its
largest entry is 0. Sums over the neighbors of a node are float64, because the cavity of a node of high degree is a
small difference of large numbers.

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

CHUNK_ELEMENTS = 1 << 22  # of the largest temporary tensor
FORBIDDEN = -1e4  # coupling of an impossible pair of labels: exp(-1e4) is 0

# Largest difference of couplings for which log Σ exp is computed as a shifted matrix product. The terms of the sum are
# then at least e^-range. Terms below e^-87 (float32) or e^-708 (float64) underflow, which is less than rounding errors.
MATRIX_RANGE = {torch.float32: 60.0, torch.float64: 600.0}

# `log_sum` or `log_max`: reduces a cavity (…, E, C) and couplings (…, E or 1, C, C) over the labels of the source.
Rule = Callable[[Tensor, Tensor], Tensor]
Messages = Float[Tensor, "*batch 2 edges classes"]
Weight = Float[Tensor, "edges 1"] | None  # ρ of each edge; None for 1


def sweep(mrf: PairwiseMRF, messages: Messages, rule: Rule, weight: Weight = None) -> Messages:
    """Update all messages once, in parallel: μ_{i→j} = rule(h_{i∖j}, T_ij)."""
    start_cavity, end_cavity = cavities(mrf, messages, weight).unbind(-3)
    into_end = _apply_in_chunks(mrf, rule, start_cavity, mrf.coupling)
    into_start = _apply_in_chunks(mrf, rule, end_cavity, lambda chunk: mrf.coupling(chunk).mT)
    updated = torch.stack([into_start, into_end], dim=-3)
    return updated - updated.amax(-1, keepdim=True)


def log_sum(cavity: Float[Tensor, "*batch edges classes"], coupling: Float[Tensor, "*batch e c c"]) -> Tensor:
    """Compute log Σ_l exp(h(l) + T(l, m)) up to a constant per row, for cavities whose largest entry is 0."""
    lowest, highest = coupling.detach().aminmax() if coupling.numel() else (torch.zeros(()), torch.zeros(()))
    if coupling.shape[-3] == 1 and float(highest - lowest) <= MATRIX_RANGE[cavity.dtype]:
        return (cavity.exp() @ (coupling.squeeze(-3) - highest).exp()).log()
    return torch.logsumexp(cavity.unsqueeze(-1) + coupling, dim=-2)


def log_max(cavity: Float[Tensor, "*batch edges classes"], coupling: Float[Tensor, "*batch e c c"]) -> Tensor:
    """Compute max_l h(l) + T(l, m)."""
    return (cavity.unsqueeze(-1) + coupling).amax(-2)


def zero_messages(mrf: PairwiseMRF) -> Messages:
    """Return the initial messages."""
    return mrf.unary.new_zeros(*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)


def node_totals(mrf: PairwiseMRF, messages: Messages, weight: Weight = None) -> Float[Tensor, "*batch nodes classes"]:
    """Compute U_i + Σ_k ρ_ki μ_{k→i} in float64."""
    totals = mrf.unary.double()
    for side in (0, 1):
        incoming = messages[..., side, :, :].double()
        totals = totals.index_add(-2, mrf.edge_index[side], incoming if weight is None else incoming * weight)
    return totals


def cavities(mrf: PairwiseMRF, messages: Messages, weight: Weight = None) -> Float[Tensor, "*batch 2 edges classes"]:
    """Compute h_{i∖j} for the start and the end of each edge, shifted to a largest entry of 0."""
    cavity = node_totals(mrf, messages, weight)[..., mrf.edge_index, :] - messages.double()
    return (cavity - cavity.detach().amax(-1, keepdim=True)).to(messages.dtype)


def largest_change(old: Messages, new: Messages) -> float:
    """Return the largest change of a message entry, relative to its magnitude if that is above 1."""
    if new.numel() == 0:
        return 0.0
    return float(((new - old).abs() / new.abs().clamp(min=1.0)).max())


def posterior_from_messages(
    mrf: PairwiseMRF,
    messages: Messages,
    convergence: Convergence | None = None,
    weight: Weight = None,
    totals: Float[Tensor, "*batch nodes classes"] | None = None,
) -> PairwisePosterior:
    """Return the posterior with log-beliefs b_i = U_i + Σ_k ρ_ki μ_{k→i}, which are ``totals`` if already known."""
    mrf = mrf if mrf.requires_grad else mrf.detach()
    beliefs, edge_weight = node_totals(mrf, messages, weight) if totals is None else totals, None
    if weight is not None:
        edge_weight = weight.squeeze(-1).expand(*mrf.batch_shape, mrf.num_edges)
    field = mrf.edge_index, messages, mrf.pairwise, mrf.edge_scale
    return PairwisePosterior(beliefs, *field, edge_weight=edge_weight, convergence=convergence)


def field_of(posterior: PairwisePosterior) -> PairwiseMRF:
    """Return the MRF with U_i = log b_i - Σ_k ρ_ki μ_{k→i} and couplings ρ s T, in float64.

    It is the inverse of `posterior_from_messages`. For beliefs and joints that no solver computed, it is the MRF of
    which they are a fixed point of sum-product.
    """
    parts = {name: tensor.detach() for name, tensor in posterior.tensors().items()}
    unary, edge_index, messages = parts["log_node"].double(), parts["edge_index"], parts["messages"].double()
    scale, weight = parts.get("edge_scale"), parts.get("edge_weight")
    if weight is not None:
        messages = messages * weight.double()[..., None, :, None]
        scale = weight.double() if scale is None else scale.double() * weight.double()
    for side in (0, 1):
        unary = unary.index_add(-2, edge_index[side], -messages[..., side, :, :])
    # Joints from elsewhere may have impossible pairs of labels, with couplings of -inf.
    pairwise = parts["pairwise"].double().nan_to_num(neginf=FORBIDDEN)
    return PairwiseMRF(unary, edge_index, pairwise, edge_scale=scale)


def _apply_in_chunks(
    mrf: PairwiseMRF,
    rule: Rule,
    cavity: Float[Tensor, "*batch edges classes"],
    coupling: Callable[[slice], Tensor],
) -> Float[Tensor, "*batch edges classes"]:
    """Apply the rule to all edges in chunks, because it may allocate (edges, classes, classes).

    The backward pass recomputes the chunks instead of storing them.
    """
    recompute = torch.is_grad_enabled() and (rule is not log_sum or mrf.is_varied)
    step = edges_per_chunk(mrf, mrf.num_classes**2)
    parts = []
    for lo in range(0, max(1, mrf.num_edges), step):
        chunk = slice(lo, lo + step)

        def apply(cavities: Tensor, chunk: slice = chunk) -> Tensor:
            return rule(cavities, coupling(chunk))

        part = cavity[..., chunk, :]
        parts.append(checkpoint(apply, part, use_reentrant=False) if recompute else apply(part))
    return torch.cat(parts, dim=-2)


def edges_per_chunk(mrf: PairwiseMRF, elements_per_edge: int) -> int:
    """Return how many edges fit into one chunk, given the elements that an edge needs in each MRF of a batch."""
    return max(1, CHUNK_ELEMENTS // (elements_per_edge * max(1, math.prod(mrf.batch_shape))))
