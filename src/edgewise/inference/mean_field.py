"""Mean field: independent nodes that are near a field (a stationary point of the divergence from it)."""

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.inference.fixed_point import Stopping, iterate, with_gradient
from edgewise.inference.messages import edges_at_once
from edgewise.inference.mrf import PairwiseMRF, check_mrf
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
    check_mrf(mrf)
    stopping = Stopping.checked(max_sweeps, damping, tolerance, mrf.unary.dtype)
    with torch.no_grad():
        constant = mrf.detach()
        q, convergence = iterate(
            lambda old: mean_field_sweep(constant, old), constant.unary.softmax(-1), _largest_change, stopping
        )
    if mrf.requires_grad:
        q = with_gradient(lambda old: mean_field_sweep(mrf, old), mrf.unary.softmax(-1), q, convergence, damping)
    return IndependentPosterior(q, convergence=convergence), convergence


def _largest_change(old: Tensor, new: Tensor) -> float:
    return float((new - old).abs().max()) if new.numel() else 0.0


def mean_field_sweep(
    mrf: PairwiseMRF, q: Float[Tensor, "*batch nodes classes"]
) -> Float[Tensor, "*batch nodes classes"]:
    """q_i ← softmax(U_i + Σ_j T_ij q_j) for all nodes at once; sums over neighbors are float64."""
    fields = mrf.unary.double()
    start, end = mrf.edge_index
    step = edges_at_once(mrf, mrf.num_classes if mrf.is_shared else mrf.num_classes**2)
    for lo in range(0, mrf.num_edges, step):
        some = slice(lo, lo + step)
        # T has a row for each label of the start and a column for each label of the end.
        fields = fields.index_add(-2, start[some], _expected(mrf, mrf.pairwise.mT, q[..., end[some], :], some))
        fields = fields.index_add(-2, end[some], _expected(mrf, mrf.pairwise, q[..., start[some], :], some))
    return fields.softmax(-1).to(q.dtype)


def _expected(
    mrf: PairwiseMRF, pairwise: Float[Tensor, "*batch couplings classes classes"], q: Tensor, some: slice
) -> Float[Tensor, "*batch some classes"]:
    """Σ_l q(l) s T(l, m) of some edges in float64."""
    coupling, q = (pairwise if mrf.is_shared else pairwise[..., some, :, :]).double(), q.double()
    expected = q @ coupling.squeeze(-3) if mrf.is_shared else (q.unsqueeze(-2) @ coupling).squeeze(-2)
    return expected if mrf.edge_scale is None else expected * mrf.edge_scale[..., some, None].double()
