"""Labelings drawn from pairwise posteriors: on a forest, by variable elimination, or with Gibbs chains.

If a solver computed the posterior, its field is recovered and labelings are drawn from the field. Otherwise the joints
of edges are all that is known. On a forest Π_ij q_ij / Π_i p_i^(d_i - 1) is the distribution with these joints. On a
graph with loops there may be none, and labelings are drawn on the spanning forest whose edges have the largest mutual
information (Chow and Liu 1968): it keeps the marginals of all nodes, and the joints of its edges.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import forms_forest, spanning_forest
from edgewise.inference.elimination_order import NoExactInference, feasible_order
from edgewise.inference.exact import forest_messages, is_forest, root_forest, undecided_edges
from edgewise.inference.junction_tree import sample_by_elimination
from edgewise.inference.messages import field_of, posterior_from_messages
from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import PairwisePosterior, Sample, Sampling

Array = NDArray[Any]

CHUNK_ELEMENTS = 1 << 21  # labels, or entries of joints, that are computed at once

# Gibbs chains. A sweep draws the label of each node once.
NUM_CHAINS = 8
BURN_IN_SWEEPS = 500
SWEEPS_PER_STATE = 5  # between the states that are kept
MIN_STATES = 100  # per chain, for the diagnostics
MAX_R_HAT = 1.1
MIN_EFFECTIVE_SIZE = 100.0


def sample_pairwise(posterior: PairwisePosterior, number: int, rng: np.random.Generator) -> Sample:
    """Draw labelings from the field of a posterior, or from its joints if no solver computed it."""
    if posterior.has_field:
        labels, sampling = sample_field(field_of(posterior), number, rng)
        # Only on a forest are the marginals of sum-product those of the field.
        keeps_marginals = sampling.method == "forest" and posterior.has_marginals
        return Sample(labels, replace(sampling, keeps_marginals=keeps_marginals))
    is_free = ~posterior.certain[posterior.edge_index].any(0)
    edges = is_free.nonzero().squeeze(1)
    if forms_forest(posterior.edge_index[:, edges], posterior.num_nodes):
        return Sample(_draw_on_forest(posterior, edges, number, rng), Sampling("forest", is_exact=True))
    rank = _mutual_information(posterior, edges).argsort(descending=True, stable=True).argsort()
    edges = edges[spanning_forest(posterior.edge_index[:, edges], rank, posterior.num_nodes)]
    num_edges = len(is_free)
    num_kept = len(edges) + num_edges - int(is_free.sum())
    advice = (
        f"The joints are not those of a known field, so labelings were drawn on a spanning forest: {num_kept:,} of "
        f"{num_edges:,} edges keep their joint, and all nodes their marginal. The labels of the other edges depend on "
        "each other through the forest only. To draw from a field, use the posterior of a solver, such as sum_product."
    )
    return Sample(_draw_on_forest(posterior, edges, number, rng), Sampling("spanning forest", False, advice=advice))


def sample_field(mrf: PairwiseMRF, number: int, rng: np.random.Generator) -> Sample:
    """Draw labelings from a single MRF: exactly on a forest or if its width is small, otherwise with Gibbs chains."""
    decided = mrf.decided
    if is_forest(mrf, decided):
        exact = posterior_from_messages(mrf, forest_messages(mrf, decided))
        labels = _draw_on_forest(exact, undecided_edges(mrf, decided), number, rng)
        return Sample(labels, Sampling("forest", is_exact=True))
    try:
        order = feasible_order(mrf)
    except NoExactInference:
        return _sample_chains(mrf, number, rng)
    return sample_by_elimination(mrf, order, number, rng)


def _draw_on_forest(
    posterior: PairwisePosterior, edges: Int[Tensor, " forest"], number: int, rng: np.random.Generator
) -> Int[Tensor, "n nodes"]:
    """Draw labels along a forest of edges: roots from their marginals, other nodes given their parents."""
    from edgewise.kernels.forest_passes import draw_on_forest

    parts = {name: tensor.detach().cpu().numpy() for name, tensor in posterior.tensors().items()}
    edge_index, log_node = parts["edge_index"], parts["log_node"].astype(np.float64)
    forest = root_forest(posterior.num_nodes, edge_index[:, edges.cpu().numpy()], edges.cpu().numpy())
    child = np.flatnonzero(forest.parent >= 0)
    cavity = log_node.copy()
    cavity[child] -= parts["messages"][np.where(forest.from_start[child], 0, 1), forest.edge[child]]
    couplings, scale = (part.astype(np.float64) for part in (parts["pairwise"], parts.get("edge_scale", np.ones(1))))
    labels = torch.empty(number, posterior.num_nodes, dtype=torch.long)
    step = max(1, CHUNK_ELEMENTS // max(1, posterior.num_nodes))
    for lo in range(0, number, step):
        chunk = labels[lo : lo + step]
        uniform = rng.random(tuple(chunk.shape))
        chunk.copy_(torch.from_numpy(draw_on_forest(log_node, cavity, couplings, scale, forest, uniform)))
    return labels


def _mutual_information(posterior: PairwisePosterior, edges: Int[Tensor, " some"]) -> Float[Tensor, " some"]:
    """Compute the mutual information of the labels of some edges, Σ q log q / (p_i p_j), in nats."""
    information = torch.empty(len(edges), dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // posterior.num_classes**2)
    for lo in range(0, len(edges), step):
        joint = posterior.joint(posterior.edge_index[:, edges[lo : lo + step]]).double().cpu()
        product = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True)
        information[lo : lo + step] = (torch.xlogy(joint, joint) - torch.xlogy(joint, product)).sum((1, 2))
    return information.to(edges.device)


class _Diagnostics(NamedTuple):
    """Split R-hat of each node, and the effective size of all states of all chains, averaged over nodes."""

    r_hat: Float[Tensor, " nodes"]
    effective_size: float


def _sample_chains(mrf: PairwiseMRF, number: int, rng: np.random.Generator) -> Sample:
    """Draw labelings as states of several Gibbs chains, which start far from each other.

    Half of the chains start at random labels, the others at equal labels: a field whose labels attract each other has
    modes near these. The labelings are taken from the chains in turn.
    """
    from edgewise.kernels.gibbs_chains import gibbs_arrays, sweep_labels

    unary, edge_index, pairwise = (part.cpu().numpy() for part in (mrf.unary, mrf.edge_index, mrf.pairwise))
    scale = None if mrf.edge_scale is None else mrf.edge_scale.cpu().numpy()
    arrays = gibbs_arrays(unary, edge_index, pairwise, scale)
    possible = np.isfinite(unary)
    per_chain = -(-number // NUM_CHAINS)
    num_states = max(MIN_STATES, per_chain + per_chain % 2)
    kept = (np.arange(1, per_chain + 1) * num_states) // per_chain - 1
    labels = np.empty((NUM_CHAINS * per_chain, mrf.num_nodes), np.int64)
    counts = np.zeros((NUM_CHAINS, 2, mrf.num_nodes, mrf.num_classes), np.int32)
    nodes = np.arange(mrf.num_nodes)

    def run(chain: int, chain_rng: np.random.Generator) -> None:
        state = _start_labels(possible, None if chain % 2 == 0 else chain // 2 % mrf.num_classes, chain_rng)
        sweep_labels(state, arrays, BURN_IN_SWEEPS, chain_rng)
        row = 0
        for k in range(num_states):
            sweep_labels(state, arrays, SWEEPS_PER_STATE, chain_rng)
            counts[chain, 2 * k // num_states, nodes, state] += 1
            if k == kept[row]:
                labels[chain + NUM_CHAINS * row] = state
                row += 1

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(run, range(NUM_CHAINS), rng.spawn(NUM_CHAINS)))
    diagnostics = _diagnose(torch.from_numpy(counts).flatten(0, 1), num_states // 2)
    return Sample(torch.from_numpy(labels[:number]), _describe_chains(diagnostics, NUM_CHAINS * num_states, number))


def _start_labels(possible: Bool[np.ndarray, "nodes classes"], label: int | None, rng: np.random.Generator) -> Array:
    """Return one label for all nodes for which it is possible, and random possible labels for all others."""
    random: Array = np.where(possible, rng.random(possible.shape), -1.0).argmax(1)
    return random if label is None else np.where(possible[:, label], label, random)


def _diagnose(counts: Int[Tensor, "halves nodes classes"], length: int) -> _Diagnostics:
    """Compare half-chains of a length by how often each node has each label.

    With the variance within half-chains W, the variance of their means B, and V = W (n - 1) / n + B, split R-hat is the
    largest √(V / W) of a node's labels (Gelman et al. 2013, section 11.4), and the effective size is
    Σ V / (Σ B / halves): the number of independent draws whose mean varies as much. Its sums over all nodes and labels
    make it insensitive to noise in B.
    """
    num_halves, num_nodes, num_classes = counts.shape
    r_hat, v_sum, b_sum = torch.ones(num_nodes, dtype=torch.float64), 0.0, 0.0
    step = max(1, CHUNK_ELEMENTS // (num_halves * num_classes))
    for lo in range(0, num_nodes, step):
        mean = counts[:, lo : lo + step].double() / length
        within = (mean * (1 - mean)).mean(0) * length / (length - 1)
        between = mean.var(0)
        variance = within * (length - 1) / length + between
        # A label that never changes has 0 / 0; one that differs between chains only has an infinite ratio.
        ratio = (variance / within).nan_to_num(nan=1.0, posinf=torch.inf)
        r_hat[lo : lo + step] = ratio.amax(1).sqrt().clamp(min=1.0)
        v_sum, b_sum = v_sum + float(variance.sum()), b_sum + float(between.sum())
    total = num_halves * length
    return _Diagnostics(r_hat, min(total, num_halves * v_sum / b_sum) if b_sum > 0 else total)


def _describe_chains(diagnostics: _Diagnostics, num_states: int, number: int) -> Sampling:
    r_hat = float(diagnostics.r_hat.max()) if len(diagnostics.r_hat) else 1.0
    advice = ""
    if r_hat > MAX_R_HAT:
        disagreeing = int((diagnostics.r_hat > MAX_R_HAT).sum())
        advice = (
            f"The Gibbs chains disagree: R-hat is up to {r_hat:.3g}, and above {MAX_R_HAT} for {disagreeing:,} of "
            f"{len(diagnostics.r_hat):,} nodes. Likely labelings may be missing or have wrong frequencies. Draw more "
            "labelings, which makes the chains longer. If R-hat stays as large, the chains do not reach all of them."
        )
    elif diagnostics.effective_size < MIN_EFFECTIVE_SIZE:
        advice = (
            f"The Gibbs chains change slowly: the effective size of their {num_states:,} states is "
            f"{diagnostics.effective_size:.0f}. Draw more labelings, which makes the chains longer."
        )
    return Sampling("gibbs", False, r_hat, min(float(number), diagnostics.effective_size), advice)
