"""Exact inference, where it is possible: forests of any size, and small graphs with loops."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import connected_components
from edgewise.inference.fixed_point import EXACT, MAX_ADJOINT_SWEEPS, attach
from edgewise.inference.messages import Messages, log_sum, node_totals, posterior_from_messages, sweep, zero_messages
from edgewise.inference.mrf import PairwiseMRF, check_mrf
from edgewise.posterior import Convergence, MixturePosterior, Posterior

if TYPE_CHECKING:
    from edgewise.kernels.forest_passes import RootedForest

Array = NDArray[Any]

MAX_NUMBERS = 1 << 24  # in the mixture that enumeration makes


class TooManyLabelings(ValueError):
    """A graph with loops is too large to enumerate."""


def exact_marginals(mrf: PairwiseMRF) -> tuple[Posterior, Convergence]:
    """Infer true marginals: by two passes over a forest of any size, or by enumeration of a small graph with loops.

    A node whose label is known cuts the graph: what hangs together only through such nodes counts as a forest. Of a
    graph with loops a vertex cover of k nodes is enumerated, C^k labelings: given their labels all other nodes are
    independent, so the posterior is a mixture, which answers for any set of nodes. A graph that is too large for that
    is a ValueError.

    Examples
    --------
    >>> triangle = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1, 0], [1, 2, 2]]), torch.eye(2), evidence={0: 1})
    >>> posterior, _ = exact_marginals(triangle)
    >>> round(float(posterior.node[1, 1]), 4)
    0.8075
    """
    check_mrf(mrf)
    decided = mrf.decided
    if not _is_forest(mrf, decided):
        return _enumerate(mrf, decided), EXACT
    with torch.no_grad():
        messages = _forest_messages(mrf.detach(), decided)
    if mrf.requires_grad:
        # On a forest the adjoint is done after as many sweeps as the longest path has edges, however strong they are.
        longest = max(MAX_ADJOINT_SWEEPS, mrf.num_nodes)
        messages = attach(lambda old: sweep(mrf, old, log_sum), messages, max_sweeps=longest)
    return posterior_from_messages(mrf, messages, EXACT), EXACT


def _is_forest(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> bool:
    """Tell whether the edges between undecided nodes form no loop."""
    edges = _open_edges(mrf, decided)
    if mrf.num_nodes == 0:
        return True
    parts = int(connected_components(mrf.edge_index[:, edges], mrf.num_nodes).max()) + 1
    return len(edges) == mrf.num_nodes - parts


def _forest_messages(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> Messages:
    """Compute the messages at the fixed point of sum-product.

    The messages that a decided node sends do not depend on those it receives, so they are known after one sweep; the
    rest is a forest. A last sweep sends messages into the decided nodes.
    """
    first = sweep(mrf, zero_messages(mrf), log_sum)
    source_is_decided = decided[mrf.edge_index.flip(0)].unsqueeze(-1)
    messages = torch.where(source_is_decided, first, 0.0)
    edges = _open_edges(mrf, decided)
    if len(edges):
        messages = messages + _messages_between_undecided(mrf, node_totals(mrf, messages), edges).to(messages)
    return sweep(mrf, messages, log_sum)


def _messages_between_undecided(
    mrf: PairwiseMRF, unary: Float[Tensor, "*batch nodes classes"], edges: Int[Tensor, " open"]
) -> Messages:
    """Pass messages over the forest of some edges, in each field of a batch; other edges have zeros."""
    from edgewise.kernels.forest_passes import pass_up_and_down

    forest = _hang_on_roots(mrf.num_nodes, mrf.edge_index[:, edges].cpu().numpy(), edges.cpu().numpy())
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


def _open_edges(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> Int[Tensor, " open"]:
    """List the edges between undecided nodes."""
    return (~decided[mrf.edge_index].any(0)).nonzero().squeeze(1)


def _hang_on_roots(num_nodes: int, edge_index: Array, ids: Array) -> "RootedForest":
    """Order nodes from the roots on: all roots are neighbors of an additional node, from which the search starts."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    from edgewise.kernels.forest_passes import RootedForest

    start, end = edge_index
    tree = connected_components(torch.from_numpy(edge_index), num_nodes).numpy()
    roots = np.unique(tree, return_index=True)[1]
    above = np.full(len(roots), num_nodes)
    ends = np.concatenate([start, above]), np.concatenate([end, roots])
    graph = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(num_nodes + 1, num_nodes + 1)).tocsr()
    order, parent = breadth_first_order(graph, num_nodes, directed=False)
    order, parent = order[1:].astype(np.int64), parent[:num_nodes].astype(np.int64)
    parent[parent == num_nodes] = -1
    edge, from_start = np.zeros(num_nodes, dtype=np.int64), np.zeros(num_nodes, dtype=np.bool_)
    child_starts = parent[start] == end
    child = np.where(child_starts, start, end)
    edge[child], from_start[child] = ids, child_starts
    return RootedForest(order, parent, edge, from_start)


def _enumerate(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> MixturePosterior:
    """Mix over all labelings of a vertex cover; nodes that are decided belong to it with their one label."""
    cover = _vertex_cover(mrf, decided)
    num_samples = mrf.num_classes ** len(cover)
    ranges = [torch.arange(mrf.num_classes, device=mrf.unary.device)] * len(cover)
    choices = torch.cartesian_prod(*ranges).reshape(num_samples, len(cover)).T
    labels = dict(zip(cover, choices, strict=True))
    only_label = mrf.unary.detach().reshape(-1, mrf.num_nodes, mrf.num_classes)[0].argmax(-1)
    for node in decided.nonzero().squeeze(1).tolist():
        labels[node] = only_label[node].expand(num_samples)
    return _mixture(mrf, labels, num_samples)


def _vertex_cover(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> list[int]:
    """Choose nodes so that every edge between undecided nodes has one; greedily, that with the most edges first."""
    open_edges = mrf.edge_index[:, _open_edges(mrf, decided)]
    cover: list[int] = []
    while open_edges.shape[1]:
        node = int(torch.bincount(open_edges.flatten()).argmax())
        cover.append(node)
        if mrf.num_classes ** len(cover) * mrf.unary.numel() > MAX_NUMBERS:
            raise TooManyLabelings(
                f"Expected a forest, or a graph with loops that is small enough to enumerate, but {len(cover)} nodes "
                f"or more of {mrf.num_classes} classes, with {mrf.num_nodes} nodes in all, are too many. "
                "Use sum_product."
            )
        open_edges = open_edges[:, (open_edges != node).all(0)]
    return cover


def _mixture(mrf: PairwiseMRF, labels: dict[int, Int[Tensor, " samples"]], num_samples: int) -> MixturePosterior:
    """Compute, given the labels of the cover, the conditional of each other node, and the weight of each sample."""
    shape = (*mrf.batch_shape, num_samples, mrf.num_nodes, mrf.num_classes)
    fields = list(mrf.unary.double().unsqueeze(-3).expand(shape).unbind(-2))
    log_weight = torch.zeros(shape[:-2], dtype=torch.float64, device=mrf.unary.device)
    for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
        coupling = mrf.coupling(torch.tensor([e], device=mrf.unary.device))
        coupling = coupling.squeeze(-3).double()
        if i in labels and j in labels:
            log_weight = log_weight + coupling[..., labels[i], labels[j]]
        elif i in labels:
            fields[j] = fields[j] + coupling[..., labels[i], :]
        else:
            fields[i] = fields[i] + coupling[..., :, labels[j]].transpose(-1, -2)
    conditionals = []
    for node, field in enumerate(fields):
        if node in labels:
            chosen = torch.nn.functional.one_hot(labels[node], mrf.num_classes).double()
            log_weight = log_weight + (torch.where(chosen > 0, field, 0.0)).sum(-1)
            conditionals.append(chosen.expand(shape[:-2] + shape[-1:]))
        else:
            log_weight = log_weight + field.logsumexp(-1)
            conditionals.append(field.softmax(-1))
    samples = torch.stack(conditionals, dim=-2)
    weights = log_weight.softmax(-1)
    return MixturePosterior(samples.to(mrf.unary.dtype), weights.to(mrf.unary.dtype), convergence=EXACT)
