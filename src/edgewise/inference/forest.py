"""Belief propagation on a forest: from the leaves to the roots and back, after which every message is exact."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import connected_parts
from edgewise.inference.messages import Messages, log_sum, node_totals, silent, sweep
from edgewise.inference.mrf import PairwiseMRF
from edgewise.kernels.dispatch import compiled

Array = NDArray[Any]


class Rooted(NamedTuple):
    """A forest from its roots on: nodes in an order in which parents come first, with the edges to their parents."""

    order: Array
    parent: Array  # -1 at a root
    edge: Array
    from_start: Array  # whether the node is the start of the edge to its parent


def is_forest(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> bool:
    """Tell whether the edges between undecided nodes form no loop."""
    edges = _open_edges(mrf, decided)
    if mrf.num_nodes == 0:
        return True
    parts = int(connected_parts(mrf.edge_index[:, edges], mrf.num_nodes).max()) + 1
    return len(edges) == mrf.num_nodes - parts


def forest_messages(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> Messages:
    """Give the messages at the fixed point of sum-product.

    What a decided node tells its neighbours does not depend on what it hears, so it is known after one sweep; then the
    rest is a forest. A last sweep tells the decided nodes.
    """
    told = sweep(mrf, silent(mrf), log_sum)
    speaks = decided[mrf.edge_index.flip(0)].unsqueeze(-1)  # whether the sender of each message is decided
    messages = torch.where(speaks, told, 0.0)
    edges = _open_edges(mrf, decided)
    if len(edges):
        rooted = _rooted(mrf.num_nodes, mrf.edge_index[:, edges].cpu().numpy(), edges.cpu().numpy())
        fields = node_totals(mrf, messages)
        fields = fields.flatten(0, -3) if mrf.batch_shape else fields.unsqueeze(0)
        pairwise = mrf.pairwise.reshape(len(fields), -1, mrf.num_classes, mrf.num_classes)
        scale = None if mrf.edge_scale is None else mrf.edge_scale.reshape(len(fields), -1)
        passed = [
            _two_passes(field, part, None if scale is None else scale[b], rooted, mrf.num_edges)
            for b, (field, part) in enumerate(zip(fields, pairwise, strict=True))
        ]
        messages = messages + torch.stack(passed).reshape(messages.shape).to(messages)
    return sweep(mrf, messages, log_sum)


def _open_edges(mrf: PairwiseMRF, decided: Bool[Tensor, " nodes"]) -> Tensor:
    return (~decided[mrf.edge_index].any(0)).nonzero().squeeze(1)


def _rooted(num_nodes: int, edge_index: Array, ids: Array) -> Rooted:
    """Hang every tree on a root: all roots are neighbours of an additional node, from which the search starts."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    start, end = edge_index
    tree = connected_parts(torch.from_numpy(edge_index), num_nodes).numpy()
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
    return Rooted(order, parent, edge, from_start)


def _two_passes(fields: Tensor, pairwise: Tensor, scale: Tensor | None, rooted: Rooted, num_edges: int) -> Tensor:
    """Give messages (2, E, C), zero on edges that are not of the forest."""
    messages = np.zeros((2, num_edges, fields.shape[1]))
    factors = np.ones(1) if scale is None else scale.double().cpu().numpy()
    couplings = pairwise.double().cpu().numpy()
    _pass_up_and_down(fields.double().cpu().numpy().copy(), couplings, factors, *rooted, messages)
    return torch.from_numpy(messages)


@compiled
def _pass_up_and_down(
    fields: Array,
    couplings: Array,
    factors: Array,
    order: Array,
    parent: Array,
    edge: Array,
    from_start: Array,
    messages: Array,
) -> None:
    """Add to ``fields`` what nodes hear, first from their children, then from their parents."""
    classes = fields.shape[1]
    cavity, told = np.empty(classes), np.empty(classes)
    for k in range(len(order) - 1, -1, -1):
        node = order[k]
        above = parent[node]
        if above < 0:
            continue
        for c in range(classes):
            cavity[c] = fields[node, c]
        e = edge[node]
        _tell(cavity, couplings, factors, e, from_start[node], told)
        for c in range(classes):
            messages[1 if from_start[node] else 0, e, c] = told[c]
            fields[above, c] += told[c]
    for k in range(len(order)):
        node = order[k]
        above = parent[node]
        if above < 0:
            continue
        e = edge[node]
        for c in range(classes):
            cavity[c] = fields[above, c] - messages[1 if from_start[node] else 0, e, c]
        _tell(cavity, couplings, factors, e, not from_start[node], told)
        for c in range(classes):
            messages[0 if from_start[node] else 1, e, c] = told[c]
            fields[node, c] += told[c]


@compiled
def _tell(cavity: Array, couplings: Array, factors: Array, edge: int, forward: bool, told: Array) -> None:
    """Log Σ_l exp(cavity(l) + s T(l, m)), with a largest entry of 0."""
    classes = len(cavity)
    t = edge if len(couplings) > 1 else 0
    s = factors[edge] if len(factors) > 1 else factors[0]
    highest = -np.inf
    for m in range(classes):
        largest = -np.inf
        for c in range(classes):
            largest = max(largest, cavity[c] + s * (couplings[t, c, m] if forward else couplings[t, m, c]))
        total = 0.0
        for c in range(classes):
            total += np.exp(cavity[c] + s * (couplings[t, c, m] if forward else couplings[t, m, c]) - largest)
        told[m] = largest + np.log(total)
        highest = max(highest, told[m])
    for m in range(classes):
        told[m] -= highest
