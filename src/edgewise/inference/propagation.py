"""Loopy belief propagation: sum-product for marginals, max-product for the most likely labels."""

import torch

from edgewise.inference.fixed_point import SETTLED, attach
from edgewise.inference.messages import Messages, Rule, largest_change, log_max, log_sum, node_totals, silent, sweep
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.solver import check_field, check_options, checked_tolerance, verdict
from edgewise.kernels.dispatch import runs_compiled
from edgewise.posterior import Convergence, PairwisePosterior

COMPILED_WORK = 1 << 22  # numbers times sweeps from which on it pays to load compiled loops


def sum_product(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float = 0.0, tolerance: float | None = None
) -> tuple[PairwisePosterior, Convergence]:
    """Infer marginals of nodes and edges by belief propagation: exact on trees, an approximation where there are loops.

    In each sweep every node tells each neighbour μ_{i→j}(m) = log Σ_l exp(T(l, m) + U_i(l) + Σ_{k≠j} μ_{k→i}(l)).

    Parameters
    ----------
    mrf
        The field.
    max_sweeps
        Stop after so many sweeps, converged or not.
    damping
        Keep this share of each old message, from 0 to below 1; it calms messages that oscillate.
    tolerance
        Stop when no message changes by more, in nats, relative to its size where that is more than one nat; by default
        1e-5 in float32 and 1e-12 in float64.

    Returns
    -------
    PairwisePosterior
        The marginals of nodes and the joints of edges. Gradients flow to the potentials: at a fixed point by the
        implicit function theorem, else through the sweeps.
    Convergence
        Whether it converged, after how many sweeps, and what to do if it did not.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = sum_product(chain)
    >>> [round(p, 4) for p in posterior.node[:, 1].tolist()], convergence.converged
    ([1.0, 0.8808, 0.79], True)
    """
    return _propagated(mrf, log_sum, max_sweeps, damping, tolerance)


def max_product(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float = 0.0, tolerance: float | None = None
) -> tuple[PairwisePosterior, Convergence]:
    """Infer max-marginals: on a tree, b_i(l) ∝ the probability of the most likely labelling in which i has label l.

    They are not marginals: the argmax of each node is the most likely labelling of a tree if that is unique, and a good
    guess elsewhere. Arguments and answer as in `sum_product`.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = max_product(chain)
    >>> posterior.node.argmax(1).tolist()
    [1, 1, 1]
    """
    return _propagated(mrf, log_max, max_sweeps, damping, tolerance)


def _propagated(
    mrf: PairwiseMRF, rule: Rule, max_sweeps: int, damping: float, tolerance: float | None
) -> tuple[PairwisePosterior, Convergence]:
    check_field(mrf)
    check_options(max_sweeps, damping)
    with torch.no_grad():
        small_enough = checked_tolerance(tolerance, mrf.unary.dtype)
        messages, convergence = _run(mrf.detach(), rule, max_sweeps, damping, small_enough)
    if mrf.requires_grad and convergence.converged and convergence.residual <= SETTLED:
        messages = attach(lambda told: sweep(mrf, told, rule), messages, damping)
    elif mrf.requires_grad:
        messages = silent(mrf)
        for _ in range(convergence.sweeps):
            messages = messages.lerp(sweep(mrf, messages, rule), 1.0 - damping)
    return as_posterior(mrf, messages, convergence), convergence


def as_posterior(mrf: PairwiseMRF, messages: Messages, convergence: Convergence) -> PairwisePosterior:
    """Give the beliefs that messages leave behind."""
    field = mrf if mrf.requires_grad else mrf.detach()
    return PairwisePosterior(
        node_totals(field, messages),
        field.edge_index,
        messages,
        field.pairwise,
        field.edge_scale,
        convergence=convergence,
    )


def _run(
    mrf: PairwiseMRF, rule: Rule, max_sweeps: int, damping: float, tolerance: float
) -> tuple[Messages, Convergence]:
    messages = silent(mrf)
    work = 2 * mrf.num_edges * mrf.num_classes * min(max_sweeps, 100)  # of each field
    if runs_compiled(mrf.unary.device) and work >= COMPILED_WORK:
        from edgewise.kernels.message_loops import run_compiled

        return run_compiled(mrf, "max" if rule is log_max else "sum", max_sweeps, damping, tolerance)
    residuals: list[float] = []
    while len(residuals) < max_sweeps and (not residuals or residuals[-1] > tolerance):
        told = sweep(mrf, messages, rule)
        residuals.append(largest_change(messages, told))
        messages = messages.lerp(told, 1.0 - damping)
    return messages, verdict(residuals, tolerance, damping)
