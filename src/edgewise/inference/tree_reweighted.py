"""Tree-reweighted sum-product (Wainwright, Jaakkola, Willsky 2005).

An MRF is written as a convex combination Σ_T λ_T θ_T of the potentials of spanning forests. By convexity of log Z,

    log Z(θ) ≤ Σ_T λ_T log Z(θ_T).

An edge appears in a forest with probability ρ. The messages of `edgewise.inference.messages` with the weights ρ and the
couplings T / ρ define such potentials: each node has U_i + Σ_k ρ_ki μ_{k→i}, and each edge of a forest has
T / ρ - μ_{j→i} - μ_{i→j}. Their mean over the forests is the MRF, whatever the messages are. So the bound holds even
if the messages have not converged. The messages at the fixed point give the smallest bound for these ρ.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.data.edges import spanning_forest
from edgewise.inference.bethe import free_energy_from_messages
from edgewise.inference.exact import forest_messages
from edgewise.inference.fixed_point import StoppingRule, attach_gradient, iterate
from edgewise.inference.messages import (
    Messages,
    largest_change,
    log_sum,
    node_totals,
    posterior_from_messages,
    sweep,
    zero_messages,
)
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.posterior import Convergence, PairwisePosterior
from edgewise.validation import check_seed, check_whole_number


def tree_reweighted(
    mrf: PairwiseMRF,
    *,
    max_sweeps: int = 2000,
    damping: float | None = 0.5,
    tolerance: float | None = None,
    num_trees: int = 20,
    seed: int = 0,
) -> tuple[PairwisePosterior, Convergence]:
    """Approximate marginals by tree-reweighted sum-product, with an upper bound on log Z.

    Unlike `sum_product`, it minimizes a convex function, so its marginals do not depend on the initial messages. They
    tend to be less certain than the true marginals. ``posterior.log_partition`` is an upper bound on log Z, also if the
    messages have not converged.

    Parameters
    ----------
    mrf
        The Markov random field.
    max_sweeps
        Maximum number of sweeps.
    damping
        Fraction of the old message to keep in each update, in [0, 1), or None to adapt it as `sum_product` does.
    tolerance
        Stop when no message entry changes by more than this. Default: 1e-5 in float32 and 1e-8 in float64.
    num_trees
        Number of random spanning forests. More are drawn until each edge is in one of them.
    seed
        Random seed of the forests.

    Examples
    --------
    >>> triangle = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2))
    >>> posterior, convergence = tree_reweighted(triangle)
    >>> round(float(posterior.log_partition), 3), convergence.converged  # log Z is 4.034
    (4.096, True)
    """
    check_mrf(mrf)
    check_whole_number("num_trees", num_trees, 1, 10**6)
    check_seed(seed)
    tolerance = DEFAULT_TOLERANCE[mrf.unary.dtype] if tolerance is None else tolerance
    stopping = StoppingRule.from_options("tree-reweighted", max_sweeps, damping, tolerance, mrf.unary.dtype)
    forests = _spanning_forests(mrf, num_trees, np.random.default_rng(seed))
    rho = torch.stack(forests).double().mean(0).to(mrf.unary)
    scale = (1.0 if mrf.edge_scale is None else mrf.edge_scale) / rho
    scaled = PairwiseMRF(mrf.unary, mrf.edge_index, mrf.pairwise, edge_scale=scale)
    weight = rho.unsqueeze(-1).double()
    with torch.no_grad():
        constant = scaled.detach()
        messages, convergence = iterate(
            lambda old: sweep(constant, old, log_sum, weight), zero_messages(constant), largest_change, stopping
        )
        bound = _upper_bound(constant, messages, weight, forests)
    if mrf.requires_grad:
        messages = attach_gradient(
            lambda old: sweep(scaled, old, log_sum, weight), zero_messages(scaled), messages, convergence
        )
    posterior = posterior_from_messages(scaled, messages, convergence, weight)
    posterior.log_partition = bound
    return posterior, convergence


DEFAULT_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}  # the last digits take many sweeps


def _spanning_forests(mrf: PairwiseMRF, number: int, rng: np.random.Generator) -> list[Tensor]:
    """Draw spanning forests as masks of edges, until there are ``number`` and each edge is in one of them.

    Edges that were in few forests so far are preferred. Edges of nodes with a single possible label are in all forests:
    such nodes cut the graph.
    """
    is_free = ~mrf.decided[mrf.edge_index].any(0).cpu().numpy()
    edges = mrf.edge_index.cpu()[:, torch.from_numpy(is_free)]
    count, forests = np.zeros(edges.shape[1], np.int64), list[Tensor]()
    while len(forests) < number or (len(count) and count.min() == 0):
        # The rank of an edge in a random order, edges of few forests first.
        rank = np.empty(len(count), np.int64)
        rank[np.lexsort((rng.random(len(count)), count))] = np.arange(len(count))
        chosen = spanning_forest(edges, torch.from_numpy(rank), mrf.num_nodes).numpy()
        count += chosen
        mask = np.ones(mrf.num_edges, dtype=np.bool_)
        mask[is_free] = chosen
        forests.append(torch.from_numpy(mask).to(mrf.unary.device))
    return forests


def _upper_bound(
    scaled: PairwiseMRF, messages: Messages, weight: Float[Tensor, "edges 1"], forests: list[Tensor]
) -> Float[Tensor, "*batch"]:
    """Return the mean of log Z over the forests. ``scaled`` has the couplings T / ρ."""
    unary, into_start, into_end = node_totals(scaled, messages, weight), *messages.double().unbind(-3)
    total = torch.zeros(scaled.batch_shape, dtype=torch.float64, device=unary.device)
    for forest in forests:
        edges = forest.nonzero().squeeze(1)
        coupling = scaled.coupling(edges).double()
        pairwise = coupling - into_start[..., edges, :, None] - into_end[..., edges, None, :]
        tree = PairwiseMRF(unary, scaled.edge_index[:, edges], pairwise)
        total = total - free_energy_from_messages(tree, forest_messages(tree, tree.decided))
    return total / len(forests)
