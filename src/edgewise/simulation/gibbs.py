"""Marginals of a field by Gibbs chains: several of them, from different starts, that must agree."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.posterior import PairwisePosterior
from edgewise.simulation.field import LabelField, field_arrays

R_HAT_LIMIT = 1.1
MIN_VARIANCE = 1e-6  # of a probability; below, there is nothing to mix


@dataclass(frozen=True)
class TruthReport:
    """What the true joints are known by.

    ``error`` is the root mean square of the Monte Carlo standard errors of all entries of the joints, judged by how far
    the means of the chains lie apart; ``kl_error`` is how far the estimate lies from the truth by that error, in nats
    for each edge; ``r_hat`` compares the spread between chains with the spread in them (1 when they agree). Exact ones
    have 0, 0 and 1. ``advice`` says what to do where chains disagree.
    """

    exact: bool
    converged: bool
    chains: int = 0
    sweeps: int = 0
    error: float = 0.0
    kl_error: float = 0.0
    r_hat: float = 1.0
    advice: str = ""

    def __bool__(self) -> bool:
        return self.converged

    def __str__(self) -> str:
        if self.exact:
            return "exact"
        words = (
            f"{self.chains} Gibbs chains of {self.sweeps} sweeps: Monte Carlo error {self.error:.1e} of a joint's "
            f"entry ({self.kl_error:.1e} nats an edge), R-hat {self.r_hat:.3f}"
        )
        return f"{words}. {self.advice}" if self.advice else words


EXACT = TruthReport(exact=True, converged=True)


def judge_chains(
    nodes: Float[Tensor, "chains nodes classes"],
    variance: Float[Tensor, "chains nodes classes"],
    joints: Float[Tensor, "chains edges classes classes"],
    sweeps: int,
) -> TruthReport:
    """Judge chains by their means, and by the variances of node probabilities in them.

    R-hat is the largest of √(1 + B / W) over all entries: B is the variance of the chains' means, W that in chains.
    """
    chains = len(nodes)
    within, between = variance.mean(0), nodes.var(0)
    moving = (within > MIN_VARIANCE) | (between > MIN_VARIANCE)
    ratio = between[moving] / within[moving].clamp(min=MIN_VARIANCE)
    r_hat = float((1.0 + ratio.max()).sqrt()) if ratio.numel() else 1.0
    squared_error = joints.var(0) / chains
    error = float(squared_error.mean().sqrt()) if squared_error.numel() else 0.0
    per_edge = (squared_error / (2.0 * joints.mean(0).clamp(min=1e-12))).sum((1, 2))
    kl_error = float(per_edge.mean()) if per_edge.numel() else 0.0
    advice = ""
    if r_hat > R_HAT_LIMIT:
        advice = (
            f"The chains disagree (R-hat above {R_HAT_LIMIT}): raise sweeps, or take a weaker coupling, more evidence, "
            "or less feature noise."
        )
    return TruthReport(False, not advice, chains, sweeps, error, kl_error, r_hat, advice)


MAX_FITTING_ROUNDS = 100
SUM_SWEEPS = 200


def gibbs_marginals(
    field: LabelField,
    starts: Int[Tensor, "chains nodes"],
    *,
    burn_in: int,
    sweeps: int,
    seed: int,
) -> tuple[PairwisePosterior, TruthReport]:
    """Estimate the marginals of nodes and edges by Gibbs chains, one from each row of ``starts``.

    After each sweep beyond ``burn_in`` every edge adds the joint of its two ends given all other labels (and not the
    labels that happened to be drawn: Rao-Blackwell), so the error falls much quicker than that of counts. A node's
    marginal is the mean of those of its edges; the joints are then fitted to these marginals.
    """
    from edgewise.kernels.gibbs_chains import run_chain, sweep_labels

    arrays, ends, affinity = field_arrays(field), field.edge_index.numpy(), _affinity(field)
    num_chains = len(starts)
    node_sum = np.zeros((num_chains, field.num_nodes, field.num_classes))
    node_square = np.zeros_like(node_sum)
    joint_sum = np.zeros((num_chains, ends.shape[1], field.num_classes, field.num_classes))

    def run(chain: int) -> None:
        labels, rng = possible_start(field, starts[chain]), np.random.default_rng([seed, chain])
        sweep_labels(labels, arrays, burn_in, rng)
        run_chain(labels, arrays, ends, affinity, sweeps, rng, node_sum[chain], node_square[chain], joint_sum[chain])

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(run, range(num_chains)))
    nodes, joints = (torch.from_numpy(total) / sweeps for total in (node_sum, joint_sum))
    variance = torch.from_numpy(node_square) / sweeps - nodes.square()
    report = judge_chains(nodes, variance.clamp(min=0.0), joints, sweeps)
    node = _node_marginals(nodes.mean(0), joints.mean(0), field.edge_index)
    return PairwisePosterior.from_joints(
        node, field.edge_index, _fit_to_marginals(joints.mean(0), node, field.edge_index)
    ), report


def draw_labels(field: LabelField, num_sweeps: int, rng: np.random.Generator) -> Int[np.ndarray, " nodes"]:
    """Return the last labels of one long chain from a random start."""
    from edgewise.kernels.gibbs_chains import sweep_labels

    labels = rng.integers(field.num_classes, size=field.num_nodes)
    sweep_labels(labels, field_arrays(field), num_sweeps, rng)
    return labels


def expected_sums(field: LabelField) -> Float[Tensor, " classes"]:
    """Estimate Σ_i w_i P(y_i = l) by one chain that starts at the labels that the unaries say."""
    from edgewise.kernels.gibbs_chains import run_chain, sweep_labels

    arrays, rng = field_arrays(field), np.random.default_rng(0)
    labels = field.unary.argmax(1).numpy().copy()
    node_sum, no_edges = np.zeros(field.unary.shape), np.zeros((2, 0), dtype=np.int64)
    sweep_labels(labels, arrays, SUM_SWEEPS, rng)
    joint_sum = np.zeros((0, field.num_classes, field.num_classes))
    run_chain(labels, arrays, no_edges, _affinity(field), SUM_SWEEPS, rng, node_sum, np.zeros_like(node_sum), joint_sum)
    return field.weight @ torch.from_numpy(node_sum) / SUM_SWEEPS


def _affinity(field: LabelField) -> Float[np.ndarray, "couplings classes classes"]:
    """Compute exp(T_ij - w_i w_j R) of each edge, or one for all that share it, scaled to a largest entry of 1."""
    log_affinity = field.coupling
    if not field.is_sparse:
        log_affinity = log_affinity - field.weight[field.edge_index].prod(0)[:, None, None] * field.rate
    affinity: np.ndarray = (log_affinity - log_affinity.amax((1, 2), keepdim=True)).exp().numpy()
    return affinity


def possible_start(field: LabelField, labels: Int[Tensor, " nodes"]) -> Int[np.ndarray, " nodes"]:
    """Copy labels; a node that cannot have its label gets its likeliest one."""
    possible = field.unary.gather(1, labels[:, None]).squeeze(1).isfinite()
    start: Int[np.ndarray, " nodes"] = torch.where(possible, labels, field.unary.argmax(1)).numpy().copy()
    return start


def _node_marginals(
    alone: Float[Tensor, "nodes classes"], joints: Float[Tensor, "edges classes classes"], edge_index: Tensor
) -> Float[Tensor, "nodes classes"]:
    """Average the marginals that the joints of a node's edges have; a node without edges keeps its own."""
    total = torch.zeros_like(alone)
    total.index_add_(0, edge_index[0], joints.sum(2))
    total.index_add_(0, edge_index[1], joints.sum(1))
    marginals = torch.where(total.sum(1, keepdim=True) > 0, total, alone)
    return marginals / marginals.sum(1, keepdim=True)


def _fit_to_marginals(
    joints: Float[Tensor, "edges classes classes"], node: Float[Tensor, "nodes classes"], edge_index: Tensor
) -> Float[Tensor, "edges classes classes"]:
    """Scale rows and columns until the joints have the marginals of their ends; odds ratios stay as they were."""
    rows, columns = node[edge_index[0]], node[edge_index[1]]
    for _ in range(MAX_FITTING_ROUNDS):
        joints = joints * (rows / joints.sum(2).clamp(min=1e-300)).unsqueeze(2)
        joints = joints * (columns / joints.sum(1).clamp(min=1e-300)).unsqueeze(1)
        if not len(joints) or float((joints.sum(2) - rows).abs().max()) < 1e-12:
            break
    return joints / joints.sum((1, 2), keepdim=True)
