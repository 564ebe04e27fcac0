"""Mean-field inference: an approximation by independent nodes."""

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.inference.fixed_point import StoppingRule, attach_gradient, fix_damping, iterate
from edgewise.inference.messages import edges_per_chunk
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.posterior import Convergence, IndependentPosterior


def mean_field(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float | None = None, tolerance: float | None = None
) -> tuple[IndependentPosterior, Convergence]:
    """Approximate an MRF by independent nodes with parallel updates q_i ← softmax(U_i + Σ_j T_ij q_j).

    The updates start at q_i = softmax(U_i). A sweep updates all nodes once. A fixed point is a stationary point of
    KL(q ‖ P), not necessarily its minimum. The joint of an edge is the product of the marginals of its ends.
    Parameters are those of `sum_product`; the residual is the largest change of a probability.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = mean_field(chain)
    >>> posterior.node[0].tolist(), convergence.converged
    ([0.0, 1.0], True)
    """
    check_mrf(mrf)
    stopping = StoppingRule.from_options("mean field", max_sweeps, damping, tolerance, mrf.unary.dtype)
    constant = mrf.detach()

    def solve(stopping: StoppingRule) -> tuple[Tensor, Convergence]:
        with torch.no_grad():
            start = constant.unary.softmax(-1)
            return iterate(lambda old: mean_field_sweep(constant, old), start, _largest_change, stopping)

    q, convergence = solve(stopping)
    if mrf.requires_grad:
        if (fixed := fix_damping(stopping, convergence)) is not None:
            q, convergence = solve(fixed)
        q = attach_gradient(lambda old: mean_field_sweep(mrf, old), mrf.unary.softmax(-1), q, convergence)
    return IndependentPosterior(q, convergence=convergence), convergence


def _largest_change(old: Tensor, new: Tensor) -> float:
    return float((new - old).abs().max()) if new.numel() else 0.0


def mean_field_sweep(
    mrf: PairwiseMRF, q: Float[Tensor, "*batch nodes classes"]
) -> Float[Tensor, "*batch nodes classes"]:
    """Compute softmax(U_i + Σ_j T_ij q_j) for all nodes, with sums over neighbors in float64."""
    logits = mrf.unary.double()
    start, end = mrf.edge_index
    step = edges_per_chunk(mrf, mrf.num_classes if mrf.is_shared else mrf.num_classes**2)
    for lo in range(0, mrf.num_edges, step):
        chunk = slice(lo, lo + step)
        # T has a row for each label of the start and a column for each label of the end.
        to_start = _expected_coupling(mrf, mrf.pairwise.mT, q[..., end[chunk], :], chunk)
        to_end = _expected_coupling(mrf, mrf.pairwise, q[..., start[chunk], :], chunk)
        logits = logits.index_add(-2, start[chunk], to_start).index_add(-2, end[chunk], to_end)
    return logits.softmax(-1).to(q.dtype)


def _expected_coupling(
    mrf: PairwiseMRF, pairwise: Float[Tensor, "*batch couplings classes classes"], q: Tensor, chunk: slice
) -> Float[Tensor, "*batch chunk classes"]:
    """Compute Σ_l q(l) s T(l, m) for a chunk of edges in float64."""
    coupling, q = (pairwise if mrf.is_shared else pairwise[..., chunk, :, :]).double(), q.double()
    expected = q @ coupling.squeeze(-3) if mrf.is_shared else (q.unsqueeze(-2) @ coupling).squeeze(-2)
    return expected if mrf.edge_scale is None else expected * mrf.edge_scale[..., chunk, None].double()
