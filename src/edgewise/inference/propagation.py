"""Loopy belief propagation: sum-product for marginals, max-product for the most likely labels."""

from collections.abc import Sequence

import torch

from edgewise.inference.fixed_point import Stopping, iterate, judge, with_gradient
from edgewise.inference.messages import (
    MATRIX_RANGE,
    Messages,
    Rule,
    largest_change,
    log_max,
    log_sum,
    posterior_from_messages,
    sweep,
    zero_messages,
)
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.kernels.dispatch import runs_compiled
from edgewise.posterior import Convergence, PairwisePosterior

MIN_COMPILED_WORK = 1 << 22  # numbers times sweeps from which on it pays to load compiled loops


def sum_product(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float = 0.0, tolerance: float | None = None
) -> tuple[PairwisePosterior, Convergence]:
    """Infer marginals of nodes and edges by belief propagation: exact on trees, an approximation where there are loops.

    In each sweep every node i sends to each neighbor j the message
    μ_{i→j}(m) = log Σ_l exp(T(l, m) + U_i(l) + Σ_{k≠j} μ_{k→i}(l)).

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
        Whether it converged, after how many sweeps, and what to do if it did not; also ``posterior.convergence``.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = sum_product(chain)
    >>> [round(p, 4) for p in posterior.node[:, 1].tolist()], convergence.converged
    ([1.0, 0.8808, 0.79], True)
    """
    check_mrf(mrf)
    return _propagate(mrf, log_sum, Stopping.checked(max_sweeps, damping, tolerance, mrf.unary.dtype))


def max_product(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float = 0.0, tolerance: float | None = None
) -> tuple[PairwisePosterior, Convergence]:
    """Infer max-marginals: on a tree, b_i(l) ∝ the probability of the most likely labeling in which i has label l.

    They are not marginals: the argmax of each node is the most likely labeling of a tree if that is unique, and a good
    guess elsewhere. Arguments and answer as in `sum_product`.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = max_product(chain)
    >>> posterior.node.argmax(1).tolist()
    [1, 1, 1]
    """
    check_mrf(mrf)
    return _propagate(mrf, log_max, Stopping.checked(max_sweeps, damping, tolerance, mrf.unary.dtype))


def _propagate(mrf: PairwiseMRF, rule: Rule, stopping: Stopping) -> tuple[PairwisePosterior, Convergence]:
    with torch.no_grad():
        run = run_compiled if _pays_to_compile(mrf, stopping) else run_tensors
        messages, convergence = run(mrf.detach(), rule, stopping)
    if mrf.requires_grad:
        messages = with_gradient(
            lambda old: sweep(mrf, old, rule), zero_messages(mrf), messages, convergence, stopping.damping
        )
    return posterior_from_messages(mrf, messages, convergence), convergence


def _pays_to_compile(mrf: PairwiseMRF, stopping: Stopping) -> bool:
    work = 2 * mrf.num_edges * mrf.num_classes * min(stopping.max_sweeps, 100)  # of each field
    return runs_compiled(mrf.unary.device) and work >= MIN_COMPILED_WORK


def run_tensors(mrf: PairwiseMRF, rule: Rule, stopping: Stopping) -> tuple[Messages, Convergence]:
    """Sweep with tensors until all fields of a batch converge."""
    return iterate(lambda old: sweep(mrf, old, rule), zero_messages(mrf), largest_change, stopping)


def run_compiled(mrf: PairwiseMRF, rule: Rule, stopping: Stopping) -> tuple[Messages, Convergence]:
    """Sweep in compiled loops until each field of a batch converges by itself."""
    from edgewise.kernels.message_loops import LOG_MAX, log_sum_method, run_sweeps, sort_by_target

    slots = sort_by_target(mrf.edge_index.numpy(), mrf.num_nodes)
    unary = mrf.unary.reshape(-1, mrf.num_nodes, mrf.num_classes).contiguous().numpy()
    couplings = mrf.pairwise.reshape(len(unary), -1, mrf.num_classes, mrf.num_classes).contiguous().numpy()
    scale = mrf.unary.new_ones(len(unary), 1) if mrf.edge_scale is None else mrf.edge_scale
    scales = scale.reshape(len(unary), -1).numpy()
    messages = mrf.unary.new_empty(len(unary), 2 * mrf.num_edges, mrf.num_classes)
    verdicts = []
    for b, field in enumerate(zip(unary, couplings, scales, strict=True)):
        method = LOG_MAX if rule is log_max else log_sum_method(*field[1:], MATRIX_RANGE[mrf.unary.dtype])
        sorted_messages, residuals = run_sweeps(
            *field, slots, method, stopping.max_sweeps, stopping.damping, stopping.tolerance
        )
        messages[b, torch.from_numpy(slots.order)] = torch.from_numpy(sorted_messages)
        verdicts.append(judge(residuals, stopping))
    return messages.reshape(*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes), _worst(verdicts)


def _worst(verdicts: Sequence[Convergence]) -> Convergence:
    """Judge a batch by the field that is furthest from converging."""
    worst = max(verdicts, key=lambda one: (not one.converged, one.residual))
    return Convergence(worst.converged, max(one.sweeps for one in verdicts), worst.residual, worst.advice)
