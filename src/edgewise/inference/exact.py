"""Exact inference: on forests of any size, and on graphs with loops by enumeration or variable elimination."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import connected_components, forms_forest
from edgewise.inference.bethe import free_energy_from_messages
from edgewise.inference.fixed_point import (
    ELIMINATION,
    ENUMERATION,
    FOREST,
    MAX_ADJOINT_SWEEPS,
    attach_implicit_gradient,
)
from edgewise.inference.junction_tree import eliminate
from edgewise.inference.messages import Messages, log_sum, node_totals, posterior_from_messages, sweep, zero_messages
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.posterior import Convergence, MixturePosterior, Posterior

if TYPE_CHECKING:
    from edgewise.kernels.forest_passes import RootedForest

Array = NDArray[Any]

MAX_MIXTURE_ELEMENTS = 1 << 24  # of the mixture that enumeration allocates
MIN_ELIMINATION_ELEMENTS = 1 << 18  # for a larger mixture, elimination takes less time


def exact_marginals(mrf: PairwiseMRF) -> tuple[Posterior, Convergence]:
    """Compute exact marginals of a forest of any size, or of a graph with loops whose elimination width is small.

    Nodes with a single possible label cut the graph: loops through such a node do not count. There are three methods:

    - A forest takes two passes of sum-product.
    - On a small graph with loops, all C^k labelings of a vertex cover of k nodes are enumerated. Given the labels of
      the cover, all other nodes are independent. The posterior is then a mixture.
    - On other graphs, nodes are eliminated one after the other (a junction tree), in the cheapest of several orders.
      The cost is exponential in the width of the order, not in the number of nodes. Messages take up to 4 GiB: about
      width 24 with two labels. If all of them together would take more, some are computed twice.

    The posterior has the joint of any set of up to six nodes, and ``log_partition``. Gradients are available for the
    first two methods.

    Raises
    ------
    ValueError
        If a graph with loops takes too much memory or time. The message states the width and the memory.

    Examples
    --------
    >>> triangle = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2), evidence={0: 1})
    >>> posterior, _ = exact_marginals(triangle)
    >>> round(float(posterior.node[1, 1]), 4)
    0.8075
    """
    check_mrf(mrf)
    decided = mrf.decided
    if not is_forest(mrf, decided):
        cover = _vertex_cover(mrf, decided)
        limit = MAX_MIXTURE_ELEMENTS if mrf.requires_grad else MIN_ELIMINATION_ELEMENTS
        if mrf.num_classes ** len(cover) * mrf.unary.numel() <= limit:
            return _enumerate(mrf, decided, cover), ENUMERATION
        return eliminate(mrf), ELIMINATION
    with torch.no_grad():
        messages = forest_messages(mrf.detach(), decided)
    if mrf.requires_grad:
        # On a forest the adjoint converges in as many sweeps as the longest path has edges, for any couplings.
        max_sweeps = max(MAX_ADJOINT_SWEEPS, mrf.num_nodes)
        messages = attach_implicit_gradient(lambda old: sweep(mrf, old, log_sum), messages, max_sweeps=max_sweeps)
    posterior = posterior_from_messages(mrf, messages, FOREST)
    posterior.log_partition = -free_energy_from_messages(mrf, messages)
    return posterior, FOREST


def is_forest(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> bool:
    """Return whether the edges between undecided nodes form a forest."""
    return forms_forest(mrf.edge_index[:, undecided_edges(mrf, decided)], mrf.num_nodes)


def forest_messages(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> Messages:
    """Compute the messages at the fixed point of sum-product on a forest.

    The messages that a decided node sends do not depend on those it receives, so one sweep computes them. The edges
    between undecided nodes form a forest. A last sweep sends messages to the decided nodes.
    """
    first = sweep(mrf, zero_messages(mrf), log_sum)
    source_is_decided = decided[mrf.edge_index.flip(0)].unsqueeze(-1)
    messages = torch.where(source_is_decided, first, 0.0)
    edges = undecided_edges(mrf, decided)
    if len(edges):
        messages = messages + _messages_between_undecided(mrf, node_totals(mrf, messages), edges).to(messages)
    return sweep(mrf, messages, log_sum)


def _messages_between_undecided(
    mrf: PairwiseMRF, unary: Float[Tensor, "*batch nodes classes"], edges: Int[Tensor, " undecided"]
) -> Messages:
    """Compute the messages on the forest formed by ``edges``, for each MRF of a batch; zero on other edges."""
    from edgewise.kernels.forest_passes import pass_up_and_down

    forest = root_forest(mrf.num_nodes, mrf.edge_index[:, edges].cpu().numpy(), edges.cpu().numpy())
    unaries = unary.reshape(-1, mrf.num_nodes, mrf.num_classes)
    couplings = mrf.pairwise.reshape(len(unaries), -1, mrf.num_classes, mrf.num_classes)
    scale = torch.ones(1) if mrf.edge_scale is None else mrf.edge_scale
    scales = scale.expand(len(unaries), -1) if scale.ndim == 1 else scale
    messages = [
        pass_up_and_down(_float64(u), _float64(t), _float64(s), forest, mrf.num_edges)
        for u, t, s in zip(unaries, couplings, scales, strict=True)
    ]
    return torch.from_numpy(np.stack(messages)).reshape(*mrf.batch_shape, 2, mrf.num_edges, mrf.num_classes)


def _float64(tensor: Tensor) -> Array:
    array: Array = tensor.double().cpu().numpy()
    return array


def undecided_edges(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> Int[Tensor, " undecided"]:
    """Return the indices of the edges between undecided nodes."""
    return (~decided[mrf.edge_index].any(0)).nonzero().squeeze(1)


def root_forest(num_nodes: int, edge_index: Array, edge_ids: Array) -> "RootedForest":
    """Order the nodes of a forest from the roots to the leaves.

    The breadth-first search starts at an additional node that is a neighbor of all roots.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    from edgewise.kernels.forest_passes import RootedForest

    start, end = edge_index
    tree = connected_components(torch.from_numpy(edge_index), num_nodes).numpy()
    roots = np.unique(tree, return_index=True)[1]
    super_root = np.full(len(roots), num_nodes)
    ends = np.concatenate([start, super_root]), np.concatenate([end, roots])
    graph = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(num_nodes + 1, num_nodes + 1)).tocsr()
    order, parent = breadth_first_order(graph, num_nodes, directed=False)
    order, parent = order[1:].astype(np.int64), parent[:num_nodes].astype(np.int64)
    parent[parent == num_nodes] = -1
    edge, from_start = np.zeros(num_nodes, dtype=np.int64), np.zeros(num_nodes, dtype=np.bool_)
    start_is_child = parent[start] == end
    child = np.where(start_is_child, start, end)
    edge[child], from_start[child] = edge_ids, start_is_child
    return RootedForest(order, parent, edge, from_start)


def _enumerate(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"], cover: list[int]) -> MixturePosterior:
    """Compute the posterior as a mixture over all labelings of a vertex cover and the decided nodes."""
    num_samples = mrf.num_classes ** len(cover)
    ranges = [torch.arange(mrf.num_classes, device=mrf.unary.device)] * len(cover)
    choices = torch.cartesian_prod(*ranges).reshape(num_samples, len(cover)).T
    labels = dict(zip(cover, choices, strict=True))
    only_label = mrf.unary.detach().reshape(-1, mrf.num_nodes, mrf.num_classes)[0].argmax(-1)
    for node in decided.nonzero().squeeze(1).tolist():
        labels[node] = only_label[node].expand(num_samples)
    return _mixture(mrf, labels, num_samples)


def _vertex_cover(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> list[int]:
    """Find nodes that cover every edge between undecided nodes, greedily by the number of uncovered edges."""
    uncovered = mrf.edge_index[:, undecided_edges(mrf, decided)]
    cover: list[int] = []
    while uncovered.shape[1]:
        node = int(torch.bincount(uncovered.flatten()).argmax())
        cover.append(node)
        if mrf.num_classes ** len(cover) * mrf.unary.numel() > MAX_MIXTURE_ELEMENTS:
            return cover  # too many labelings already
        uncovered = uncovered[:, (uncovered != node).all(0)]
    return cover


def _mixture(mrf: PairwiseMRF, labels: dict[int, Int[Tensor, " samples"]], num_samples: int) -> MixturePosterior:
    """Compute the conditional of each node given each labeling, and the probability of each labeling.

    ``labels`` holds the labels of the cover and of decided nodes, one per sample.
    """
    shape = (*mrf.batch_shape, num_samples, mrf.num_nodes, mrf.num_classes)
    logits = list(mrf.unary.double().unsqueeze(-3).expand(shape).unbind(-2))
    log_weight = torch.zeros(shape[:-2], dtype=torch.float64, device=mrf.unary.device)
    for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
        coupling = mrf.coupling(torch.tensor([e], device=mrf.unary.device))
        coupling = coupling.squeeze(-3).double()
        if i in labels and j in labels:
            log_weight = log_weight + coupling[..., labels[i], labels[j]]
        elif i in labels:
            logits[j] = logits[j] + coupling[..., labels[i], :]
        else:
            logits[i] = logits[i] + coupling[..., :, labels[j]].transpose(-1, -2)
    conditionals = []
    for node, node_logits in enumerate(logits):
        if node in labels:
            chosen = torch.nn.functional.one_hot(labels[node], mrf.num_classes).double()
            log_weight = log_weight + (torch.where(chosen > 0, node_logits, 0.0)).sum(-1)
            conditionals.append(chosen.expand(shape[:-2] + shape[-1:]))
        else:
            log_weight = log_weight + node_logits.logsumexp(-1)
            conditionals.append(node_logits.softmax(-1))
    samples = torch.stack(conditionals, dim=-2)
    weights = log_weight.softmax(-1)
    posterior = MixturePosterior(samples.to(mrf.unary.dtype), weights.to(mrf.unary.dtype), convergence=ENUMERATION)
    posterior.log_partition = log_weight.logsumexp(-1)
    return posterior
