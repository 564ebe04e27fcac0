"""Sum-product that converges: a double loop which minimizes the Bethe free energy (Yuille 2002, Heskes 2006).

Fixed points of sum-product are stationary points of the Bethe free energy

    F(b) = Σ_ij KL(b_ij ‖ exp(T_ij)) - Σ_i ⟨U_i⟩ + Σ_i (d_i - 1) H(b_i),    d_i the degree of node i,

over marginals that agree with each other. The last term is concave. It is bounded from above by its tangent at
marginals a, which makes the rest convex:

    H(b_i) ≤ -Σ_l b_i(l) log a_i(l).

Minimizing the bound, and then moving a to its minimum, decreases F in every round. Visiting node by node minimizes the
bound: a visit is that of sum-product, but with the belief

    log b_i = ( U_i + Σ_k μ_{k→i} + (d_i - 1) log a_i ) / d_i.

At a = b this is the belief of sum-product, so the fixed points are the same.
"""

import numpy as np
import torch

from edgewise.inference.fixed_point import StoppingRule
from edgewise.inference.junction_tree import batch_items
from edgewise.inference.messages import Messages, node_totals
from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import Convergence

# Visits of all nodes in a round. Heskes shows that F decreases if the bound is minimized completely. Three sweeps were
# enough for convergence on all MRFs of the tests and benchmarks, and took the fewest sweeps in total.
SWEEPS_PER_ROUND = 3
# Change of a probability in a round, times the degree of the node: its marginal by the messages is off by about this
# much. The last digits take many rounds if couplings are strong.
DOUBLE_LOOP_TOLERANCE = 1e-6


def minimize_bethe(mrf: PairwiseMRF, messages: Messages, stopping: StoppingRule) -> tuple[Messages, Convergence]:
    """Run rounds from given messages until no node marginal changes by more than the tolerance.

    The residual is the largest change of a probability in the last round, times the degree of the node.
    """
    starts = messages if mrf.batch_shape else messages.unsqueeze(0)
    results = [_minimize(item, start, stopping) for item, start in zip(batch_items(mrf), starts, strict=True)]
    minimized = torch.stack([result[0] for result in results]).reshape(messages.shape).to(messages)
    sweeps, residual = max(result[1] for result in results), max(result[2] for result in results)
    if residual <= stopping.tolerance:
        return minimized, Convergence(True, sweeps, residual, method=stopping.method)
    advice = (
        f"Did not converge in {sweeps} sweeps of the double loop: the residual is {residual:.2g}, the tolerance is "
        f"{stopping.tolerance:.2g}. Raise max_sweeps, or use infer."
    )
    return minimized, Convergence(False, sweeps, residual, advice, stopping.method)


def _minimize(mrf: PairwiseMRF, start: Messages, stopping: StoppingRule) -> tuple[Messages, int, float]:
    """Return the messages, the number of sweeps and the residual of a single MRF."""
    from edgewise.kernels.sequential_sweeps import Potentials, run_round, sort_by_target

    scale = torch.ones(1) if mrf.edge_scale is None else mrf.edge_scale
    parts = (part.double().cpu().contiguous().numpy() for part in (mrf.unary, mrf.pairwise, scale))
    potentials, slots = Potentials(*parts), sort_by_target(mrf.edge_index.cpu().numpy(), mrf.num_nodes)
    order = torch.from_numpy(slots.order)
    messages = start.double().cpu().flatten(0, 1)[order].numpy()
    anchor = node_totals(mrf, start).cpu().numpy()
    log_belief, sweeps, residual = np.empty_like(anchor), 0, np.inf
    while sweeps < stopping.max_sweeps and residual > stopping.tolerance:
        num_sweeps = min(SWEEPS_PER_ROUND, stopping.max_sweeps - sweeps)
        residual = run_round(potentials, slots, messages, anchor, log_belief, num_sweeps)
        anchor, log_belief = log_belief, anchor
        sweeps += num_sweeps
    in_order = torch.empty(messages.shape, dtype=torch.float64)
    in_order[order] = torch.from_numpy(messages)
    return in_order.reshape(start.shape), sweeps, residual
