"""Mean field: independent nodes that are near a field (a stationary point of the divergence from it)."""

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.inference.fixed_point import SETTLED, attach
from edgewise.inference.messages import edges_at_once
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.solver import check_field, check_options, checked_tolerance, verdict
from edgewise.posterior import Convergence, IndependentPosterior


def mean_field(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float = 0.0, tolerance: float | None = None
) -> tuple[IndependentPosterior, Convergence]:
    """Infer independent nodes by parallel sweeps q_i ← softmax(U_i + Σ_j T_ij q_j), from q_i = softmax(U_i).

    At rest they are a stationary point of the divergence from the field, if not the nearest one. The joint of an edge
    is the product of its ends, by definition. Arguments as in `sum_product`; the residual is the largest change of a
    probability.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = mean_field(chain)
    >>> posterior.node[0].tolist(), convergence.converged
    ([0.0, 1.0], True)
    """
    check_field(mrf)
    check_options(max_sweeps, damping)
    small_enough = checked_tolerance(tolerance, mrf.unary.dtype)
    residuals: list[float] = []
    with torch.no_grad():
        field = mrf.detach()
        q = field.unary.softmax(-1)
        while len(residuals) < max_sweeps and (not residuals or residuals[-1] > small_enough):
            following = mean_field_sweep(field, q)
            residuals.append(float((following - q).abs().max()) if q.numel() else 0.0)
            q = q.lerp(following, 1.0 - damping)
    convergence = verdict(residuals, small_enough, damping)
    if mrf.requires_grad and convergence.converged and convergence.residual <= SETTLED:
        q = attach(lambda marginals: mean_field_sweep(mrf, marginals), q, damping)
    elif mrf.requires_grad:
        q = mrf.unary.softmax(-1)
        for _ in residuals:
            q = q.lerp(mean_field_sweep(mrf, q), 1.0 - damping)
    return IndependentPosterior(q, convergence=convergence), convergence


def mean_field_sweep(
    mrf: PairwiseMRF, q: Float[Tensor, "*batch nodes classes"]
) -> Float[Tensor, "*batch nodes classes"]:
    """Update all nodes at once; sums over neighbours are float64."""
    fields = mrf.unary.double()
    start, end = mrf.edge_index
    step = edges_at_once(mrf, mrf.num_classes if mrf.is_shared else mrf.num_classes**2)
    for lo in range(0, mrf.num_edges, step):
        part = slice(lo, lo + step)
        fields = fields.index_add(-2, start[part], _pull(mrf, q[..., end[part], :], part, backward=True))
        fields = fields.index_add(-2, end[part], _pull(mrf, q[..., start[part], :], part, backward=False))
    return fields.softmax(-1).to(q.dtype)


def _pull(mrf: PairwiseMRF, q: Float[Tensor, "*batch some classes"], part: slice, backward: bool) -> Tensor:
    """Σ_l q(l) s T(l, m) in float64, with T turned round for messages that run against the edge."""
    coupling = (mrf.pairwise if mrf.is_shared else mrf.pairwise[..., part, :, :]).double()
    coupling = coupling.transpose(-1, -2) if backward else coupling
    pulled = q.double() @ coupling.squeeze(-3) if mrf.is_shared else (q.double().unsqueeze(-2) @ coupling).squeeze(-2)
    return pulled if mrf.edge_scale is None else pulled * mrf.edge_scale[..., part, None].double()
