"""Marginals by Gibbs sampling with several chains, and their convergence diagnostics."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference.coupled_marginals import fit_to_marginals
from edgewise.inference.field_samples import MAX_R_HAT
from edgewise.posterior import PairwisePosterior
from edgewise.simulation.field import LabelDistribution

MIN_VARIANCE = 1e-6  # of a probability, above which R-hat takes it into account


@dataclass(frozen=True)
class TruthReport:
    """Accuracy of the joints that `SyntheticGraph.truth` returns; true if they converged.

    Attributes
    ----------
    exact
        Whether the joints are exact. Then ``error`` and ``kl_error`` are 0 and ``r_hat`` is 1.
    converged
        Whether the joints are exact or ``r_hat`` is at most 1.1.
    chains
        Number of Gibbs chains.
    sweeps
        Number of sweeps per chain after burn-in. A Gibbs sweep draws each unobserved label once.
    error
        Root mean square of the Monte Carlo standard errors of all entries of the joints, estimated from the differences
        between chains.
    kl_error
        Expected KL divergence from the true joint due to ``error``, in nats per edge.
    r_hat
        Gelman-Rubin statistic: compares the variance between chains with the variance within chains. It is 1 if
        the chains agree.
    advice
        How to improve the convergence if the chains disagree, else empty.
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
        summary = (
            f"{self.chains} Gibbs chains of {self.sweeps} sweeps: Monte Carlo error {self.error:.1e} per joint entry "
            f"({self.kl_error:.1e} nats per edge), R-hat {self.r_hat:.3f}"
        )
        return f"{summary}. {self.advice}" if self.advice else summary


EXACT = TruthReport(exact=True, converged=True)


def assess_chains(
    nodes: Float[Tensor, "chains nodes classes"],
    variance: Float[Tensor, "chains nodes classes"],
    joints: Float[Tensor, "chains edges classes classes"],
    sweeps: int,
) -> TruthReport:
    """Assess the convergence of chains from their means and from the variances of node probabilities within chains.

    R-hat is the maximum of √(1 + B / W) over all entries, where B is the variance of the means of the chains and W is
    the mean variance within chains.
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
    if r_hat > MAX_R_HAT:
        advice = (
            f"The chains disagree (R-hat above {MAX_R_HAT}): raise sweeps, or use a weaker coupling, more evidence, "
            "or less feature noise."
        )
    return TruthReport(False, not advice, chains, sweeps, error, kl_error, r_hat, advice)


CLASS_WEIGHT_SWEEPS = 200


def gibbs_marginals(
    distribution: LabelDistribution,
    starts: Int[Tensor, "chains nodes"],
    *,
    burn_in: int,
    sweeps: int,
    seed: int,
) -> tuple[PairwisePosterior, TruthReport]:
    """Estimate marginals of nodes and edges with Gibbs chains, one for each row of ``starts``.

    After each sweep beyond ``burn_in``, the joint of the two ends of every edge given all other labels is accumulated
    instead of the drawn labels (Rao-Blackwellization), which has a much smaller error than counts. The marginal of a
    node is the mean of the marginals of its edges. The joints are then fitted to these marginals.
    """
    from edgewise.kernels.gibbs_chains import run_chain, sweep_labels

    arrays, ends, affinity = distribution.gibbs_arrays(), distribution.edge_index.numpy(), _affinity(distribution)
    num_chains = len(starts)
    node_sum = np.zeros((num_chains, distribution.num_nodes, distribution.num_classes))
    node_square = np.zeros_like(node_sum)
    joint_sum = np.zeros((num_chains, ends.shape[1], distribution.num_classes, distribution.num_classes))

    def run(chain: int) -> None:
        labels, rng = feasible_start(distribution, starts[chain]), np.random.default_rng([seed, chain])
        sweep_labels(labels, arrays, burn_in, rng)
        run_chain(labels, arrays, ends, affinity, sweeps, rng, node_sum[chain], node_square[chain], joint_sum[chain])

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(run, range(num_chains)))
    nodes, joints = (torch.from_numpy(total) / sweeps for total in (node_sum, joint_sum))
    variance = torch.from_numpy(node_square) / sweeps - nodes.square()
    report = assess_chains(nodes, variance.clamp(min=0.0), joints, sweeps)
    node = _node_marginals(nodes.mean(0), joints.mean(0), distribution.edge_index)
    rows, columns = node[distribution.edge_index]
    fitted = fit_to_marginals(joints.mean(0), rows, columns)
    return PairwisePosterior.from_joints(node, distribution.edge_index, fitted), report


def gibbs_sample(
    distribution: LabelDistribution, num_sweeps: int, rng: np.random.Generator
) -> Int[np.ndarray, " nodes"]:
    """Return the last labels of one Gibbs chain from a random start."""
    from edgewise.kernels.gibbs_chains import sweep_labels

    labels = rng.integers(distribution.num_classes, size=distribution.num_nodes)
    sweep_labels(labels, distribution.gibbs_arrays(), num_sweeps, rng)
    return labels


def expected_class_weights(distribution: LabelDistribution) -> Float[Tensor, " classes"]:
    """Estimate Σ_i w_i P(y_i = l) with one Gibbs chain that starts at the argmax of the unary potentials."""
    from edgewise.kernels.gibbs_chains import run_chain, sweep_labels

    arrays, rng = distribution.gibbs_arrays(), np.random.default_rng(0)
    labels = distribution.unary.argmax(1).numpy().copy()
    node_sum, no_edges = np.zeros(distribution.unary.shape), np.zeros((2, 0), dtype=np.int64)
    sweep_labels(labels, arrays, CLASS_WEIGHT_SWEEPS, rng)
    joint_sum = np.zeros((0, distribution.num_classes, distribution.num_classes))
    run_chain(
        labels,
        arrays,
        no_edges,
        _affinity(distribution),
        CLASS_WEIGHT_SWEEPS,
        rng,
        node_sum,
        np.zeros_like(node_sum),
        joint_sum,
    )
    return distribution.weight @ torch.from_numpy(node_sum) / CLASS_WEIGHT_SWEEPS


def _affinity(distribution: LabelDistribution) -> Float[np.ndarray, "couplings classes classes"]:
    """Compute exp(T_ij - w_i w_j R) per edge, or once if edges share it, scaled to a largest entry of 1."""
    log_affinity = distribution.coupling
    if not distribution.couples_edges_only:
        log_affinity = (
            log_affinity - distribution.weight[distribution.edge_index].prod(0)[:, None, None] * distribution.rate
        )
    affinity: np.ndarray = (log_affinity - log_affinity.amax((1, 2), keepdim=True)).exp().numpy()
    return affinity


def feasible_start(distribution: LabelDistribution, labels: Int[Tensor, " nodes"]) -> Int[np.ndarray, " nodes"]:
    """Copy labels, and replace impossible labels by the argmax of the unary potentials."""
    possible = distribution.unary.gather(1, labels[:, None]).squeeze(1).isfinite()
    start: Int[np.ndarray, " nodes"] = torch.where(possible, labels, distribution.unary.argmax(1)).numpy().copy()
    return start


def _node_marginals(
    node: Float[Tensor, "nodes classes"], joints: Float[Tensor, "edges classes classes"], edge_index: Tensor
) -> Float[Tensor, "nodes classes"]:
    """Average the marginals of the joints of each node's edges; a node without edges keeps its own marginal."""
    total = torch.zeros_like(node)
    total.index_add_(0, edge_index[0], joints.sum(2))
    total.index_add_(0, edge_index[1], joints.sum(1))
    marginals = torch.where(total.sum(1, keepdim=True) > 0, total, node)
    return marginals / marginals.sum(1, keepdim=True)
