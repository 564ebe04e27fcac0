"""Loopy belief propagation: sum-product for marginals, max-product for max-marginals."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgewise.inference.double_loop import DOUBLE_LOOP_TOLERANCE, minimize_bethe
from edgewise.inference.fixed_point import (
    Damping,
    StoppingRule,
    assess_convergence,
    attach_gradient,
    fix_damping,
    is_finished,
    iterate,
)
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
from edgewise.inference.tree_reweighted import tree_reweighted
from edgewise.kernels.dispatch import runs_compiled
from edgewise.posterior import Convergence, PairwisePosterior

# Check of a fixed point: number of random initial messages, their standard deviation in nats, sweeps from each, and the
# difference of marginals above which a warning is given.
CHECK_STARTS = 4
CHECK_STANDARD_DEVIATION = 3.0
CHECK_SWEEPS = 500
MAX_DISAGREEMENT = 0.1

SEQUENTIAL_SWEEPS = 10  # of the double loop, for each parallel sweep that is allowed
MIN_COMPILED_WORK = 1 << 22  # message entries times sweeps; for less, loading compiled loops costs more than it saves


def sum_product(
    mrf: PairwiseMRF,
    *,
    max_sweeps: int = 1000,
    damping: float | None = None,
    tolerance: float | None = None,
    check: bool = False,
) -> tuple[PairwisePosterior, Convergence]:
    """Compute marginals of nodes and edges by belief propagation: exact on trees, approximate on graphs with loops.

    A sweep (an iteration, in much of the literature) updates all messages once, in parallel: every node i sends to each
    neighbor j the message μ_{i→j}(m) = log Σ_l exp(T(l, m) + U_i(l) + Σ_{k≠j} μ_{k→i}(l)).

    Parallel sweeps may not converge. By default their damping is then raised. If this does not help either, a double
    loop of sequential sweeps follows, which is made to converge to a fixed point of the same equations (Heskes 2006).

    Parameters
    ----------
    mrf
        The Markov random field.
    max_sweeps
        Maximum number of parallel sweeps. The double loop may take ten times as many.
    damping
        Fraction of the old message to keep in each update, in [0, 1). Larger values reduce oscillations. By default it
        starts at 0, and is raised to 0.5 and 0.9 when the residual stops decreasing. The double loop follows if damping
        was raised and was not enough. It does not follow if the residual still decreases without damping after
        ``max_sweeps``, nor a given damping, nor if a potential requires a gradient.
    tolerance
        Stop when no message entry changes by more than this, in nats; the change is relative for entries above one nat
        in magnitude. Default: 1e-5 in float32 and 1e-12 in float64. The double loop stops when no probability, times
        the degree of its node, changes by more than 1e-6.
    check
        Check the marginals, which can be wrong even if the messages converged. Sum-product is repeated from random
        initial messages, and `tree_reweighted` is run. ``convergence.disagreement`` is the largest difference between
        these marginals. If it is above 0.1, ``convergence.advice`` says what to do.

    Returns
    -------
    PairwisePosterior
        The marginals of nodes and the joints of edges. They are differentiable with respect to the potentials: by the
        implicit function theorem at a fixed point, else through the sweeps.
    Convergence
        Whether the messages converged, the number of sweeps, the damping of the last one, and advice if they did not
        converge. ``method`` is "double loop" if parallel sweeps did not converge. Also available as
        ``posterior.convergence``.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = sum_product(chain)
    >>> [round(p, 4) for p in posterior.node[:, 1].tolist()], convergence.converged
    ([1.0, 0.8808, 0.79], True)
    """
    check_mrf(mrf)
    stopping = StoppingRule.from_options("sum-product", max_sweeps, damping, tolerance, mrf.unary.dtype)
    posterior, convergence = _propagate(mrf, log_sum, stopping)
    return posterior, check_marginals(mrf, posterior, convergence) if check else convergence


def max_product(
    mrf: PairwiseMRF, *, max_sweeps: int = 1000, damping: float | None = None, tolerance: float | None = None
) -> tuple[PairwisePosterior, Convergence]:
    """Compute max-marginals: on a tree, b_i(l) ∝ the probability of the most likely labeling in which i has label l.

    Max-marginals are not marginals. On a tree with a unique most likely labeling, the argmax of each node gives that
    labeling. On graphs with loops it is a heuristic. Parameters and return values are those of `sum_product`. There is
    no double loop: the sweeps stop when the residual does not decrease with the largest damping.

    Examples
    --------
    >>> chain = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), 2 * torch.eye(2), evidence={0: 1})
    >>> posterior, convergence = max_product(chain)
    >>> posterior.node.argmax(1).tolist()
    [1, 1, 1]
    """
    check_mrf(mrf)
    stopping = StoppingRule.from_options("max-product", max_sweeps, damping, tolerance, mrf.unary.dtype)
    return _propagate(mrf, log_max, stopping)


def _propagate(mrf: PairwiseMRF, rule: Rule, stopping: StoppingRule) -> tuple[PairwisePosterior, Convergence]:
    constant, totals = mrf.detach(), None
    with torch.no_grad():
        if _is_worth_compiling(mrf, stopping):
            messages, totals, convergence = run_compiled(constant, rule, stopping)
        else:
            messages, convergence = run_tensors(constant, rule, stopping)
    if mrf.requires_grad:
        totals = None
        if (fixed := fix_damping(stopping, convergence)) is not None:
            messages, convergence = run_tensors(constant, rule, fixed)
        messages = attach_gradient(lambda old: sweep(mrf, old, rule), zero_messages(mrf), messages, convergence)
    elif rule is log_sum and stopping.damping is None and convergence.damping > 0 and not convergence:
        totals = None
        messages, convergence = _continue_in_double_loop(constant, messages, convergence, stopping)
    return posterior_from_messages(mrf, messages, convergence, totals=totals), convergence


def _continue_in_double_loop(
    mrf: PairwiseMRF, messages: Messages, parallel: Convergence, stopping: StoppingRule
) -> tuple[Messages, Convergence]:
    """Run the double loop, starting at the last messages of parallel sweeps."""
    limits = StoppingRule(SEQUENTIAL_SWEEPS * stopping.max_sweeps, 0.0, DOUBLE_LOOP_TOLERANCE, "double loop")
    messages, convergence = minimize_bethe(mrf, messages, limits)
    reason = f"{parallel.sweeps} parallel sweeps did not converge, with damping up to {parallel.damping:g}."
    return messages, replace(convergence, sweeps=convergence.sweeps + parallel.sweeps, reason=reason)


def check_marginals(mrf: PairwiseMRF, posterior: PairwisePosterior, convergence: Convergence) -> Convergence:
    """Compare the node marginals with those from random messages and of `tree_reweighted`.

    Return the convergence with the largest difference, and store it in the posterior.
    """
    constant, node = mrf.detach(), posterior.node.detach()
    others = [] if convergence.method == "tree-reweighted" else [tree_reweighted(constant)[0].node]
    stopping = StoppingRule.from_options("sum-product", CHECK_SWEEPS, 0.5, 1e-4, mrf.unary.dtype)
    for seed in range(CHECK_STARTS):
        random = torch.randn(zero_messages(mrf).shape, generator=torch.Generator().manual_seed(seed)).to(mrf.unary)
        messages, _ = iterate(
            lambda old: sweep(constant, old, log_sum), CHECK_STANDARD_DEVIATION * random, largest_change, stopping
        )
        others.append(posterior_from_messages(constant, messages).node)
    disagreement = max(float((other - node).abs().max()) if node.numel() else 0.0 for other in others)
    advice = convergence.advice
    if convergence.converged and disagreement > MAX_DISAGREEMENT:
        advice = (
            "The messages converged, but the marginals may be wrong: those from other initial messages or of another "
            f"method differ by up to {disagreement:.2g}. Use exact_marginals if the width of the graph allows it. "
            "Otherwise compare them with tree_reweighted, and with labelings drawn by posterior.sample."
        )
    checked = posterior.convergence = replace(convergence, disagreement=disagreement, advice=advice)
    return checked


def _is_worth_compiling(mrf: PairwiseMRF, stopping: StoppingRule) -> bool:
    work = 2 * mrf.num_edges * mrf.num_classes * min(stopping.max_sweeps, 100)  # per MRF of a batch
    return runs_compiled(mrf.unary.device) and work >= MIN_COMPILED_WORK


def run_tensors(mrf: PairwiseMRF, rule: Rule, stopping: StoppingRule) -> tuple[Messages, Convergence]:
    """Run sweeps with tensors until all MRFs of a batch converge."""
    return iterate(lambda old: sweep(mrf, old, rule), zero_messages(mrf), largest_change, stopping)


def run_compiled(mrf: PairwiseMRF, rule: Rule, stopping: StoppingRule) -> tuple[Messages, Tensor, Convergence]:
    """Run sweeps in compiled loops until each MRF of a batch converges, independently of the others.

    Return the messages, the totals U_i + Σ_k μ_{k→i} of nodes in float64, and the convergence.
    """
    from edgewise.kernels.message_loops import LOG_MAX, in_edge_order, log_sum_method, run_sweeps, sort_edges

    blocks = sort_edges(mrf.edge_index.numpy(), mrf.num_nodes)
    unary = mrf.unary.reshape(-1, mrf.num_nodes, mrf.num_classes).contiguous().numpy()
    couplings = mrf.pairwise.reshape(len(unary), -1, mrf.num_classes, mrf.num_classes).contiguous().numpy()
    scale = mrf.unary.new_ones(len(unary), 1) if mrf.edge_scale is None else mrf.edge_scale
    scales = scale.reshape(len(unary), -1).numpy()
    matrix_range = MATRIX_RANGE[mrf.unary.dtype]
    messages, totals, convergences = [], [], []
    for potentials in zip(unary, couplings, scales, strict=True):
        method = LOG_MAX if rule is log_max else log_sum_method(*potentials[1:], matrix_range)
        damping, residuals = Damping(stopping.damping), list[float]()

        def next_damping(damping: Damping = damping, residuals: list[float] = residuals) -> float | None:
            return None if is_finished(residuals, stopping) else damping.next(residuals)

        in_blocks, total = run_sweeps(*potentials, blocks, method, matrix_range, next_damping, residuals)
        messages.append(in_edge_order(blocks, in_blocks))
        totals.append(torch.from_numpy(total))
        convergences.append(assess_convergence(residuals, stopping, damping.value))
    if not mrf.batch_shape:
        return messages[0], totals[0], convergences[0]
    return torch.stack(messages), torch.stack(totals), _worst(convergences)


def _worst(convergences: Sequence[Convergence]) -> Convergence:
    """Return the convergence of the MRF with the largest residual, with the most sweeps and damping of the batch."""
    worst = max(convergences, key=lambda one: (not one.converged, one.residual))
    sweeps, damping = max(one.sweeps for one in convergences), max(one.damping for one in convergences)
    return replace(worst, sweeps=sweeps, damping=damping)
