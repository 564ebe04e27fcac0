"""Exact inference by variable elimination: the order of elimination, its cost, and the passes over its buckets."""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import EdgeLookup
from edgewise.inference.fixed_point import ELIMINATION
from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import Convergence, Posterior
from edgewise.validation import ArrayLike, check_distributions, dense_tensor

if TYPE_CHECKING:
    from edgewise.kernels.clique_tables import Buckets

Array = NDArray[Any]

MAX_MESSAGE_BYTES = 4 << 30
MAX_CLIQUE_ENTRIES = 1 << 34  # of all buckets together: some minutes
MAX_REPORTED_ENTRIES = 1 << 60  # an order with a larger table is abandoned, and its cost is reported as a lower bound
MAX_DEGREE = 64  # the fill-in of nodes with more neighbors is not counted: they are eliminated later


class NoExactInference(ValueError):
    """Raised if exact inference takes too much memory or time, or lacks the gradient that is asked for.

    ``reason`` states the problem in one sentence.
    """

    def __init__(self, reason: str, expected: str, advice: str):
        super().__init__(f"Expected {expected}. {reason} {advice}")
        self.reason = reason


@dataclass(frozen=True)
class EliminationOrder:
    """An order of elimination, the separator of each node, and the cost.

    Attributes
    ----------
    nodes
        All nodes, in the order of elimination.
    separators
        For each node, its neighbors when it is eliminated.
    largest_table
        Number of label combinations of the largest bucket.
    total
        Number of entries of all messages.
    work
        Number of label combinations of all buckets.
    is_complete
        Whether all nodes were eliminated. Otherwise the cost is a lower bound for this order.
    """

    nodes: Sequence[int]
    separators: Sequence[Sequence[int]]
    largest_table: int
    total: int
    work: int
    is_complete: bool = True

    @property
    def width(self) -> int:
        """Size of the largest separator."""
        return max(map(len, self.separators), default=0)


def neighbor_sets(num_nodes: int, edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    """Return the set of neighbors of each node."""
    neighbors: list[set[int]] = [set() for _ in range(num_nodes)]
    for i, j in edges:
        neighbors[i].add(j)
        neighbors[j].add(i)
    return neighbors


def min_fill_order(neighbors: Sequence[set[int]], num_labels: Sequence[int]) -> EliminationOrder:
    """Eliminate next a node whose neighbors lack the fewest edges between them.

    >>> square = neighbor_sets(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> min_fill_order(square, [2] * 4).width
    2
    """
    remaining = [set(nodes) for nodes in neighbors]
    is_remaining = [True] * len(remaining)

    def fill_in(node: int) -> int:
        around = remaining[node]
        if len(around) > MAX_DEGREE:
            return len(around) ** 2
        return sum(len(around) - 1 - len(around & remaining[other]) for other in around) // 2

    cost = [fill_in(node) for node in range(len(remaining))]
    heap = [(cost[node], node) for node in range(len(remaining))]
    heapq.heapify(heap)
    nodes: list[int] = []
    separators: list[list[int]] = []
    largest = total = work = 0
    while heap:
        lowest, node = heapq.heappop(heap)
        if not is_remaining[node] or lowest != cost[node]:
            continue
        around = remaining[node]
        entries = math.prod(num_labels[other] for other in around)
        largest = max(largest, entries * num_labels[node])
        total, work = total + entries, work + entries * num_labels[node]
        nodes.append(node)
        separators.append(sorted(around))
        if largest > MAX_REPORTED_ENTRIES:
            return EliminationOrder(nodes, separators, largest, total, work, is_complete=False)
        is_remaining[node] = False
        changed = set(around)
        for other in around:
            remaining[other].discard(node)
        if lowest:
            changed |= _connect(remaining, separators[-1])
        for other in changed:
            if (new := fill_in(other)) != cost[other]:
                cost[other] = new
                heapq.heappush(heap, (new, other))
    return EliminationOrder(nodes, separators, largest, total, work)


def _connect(remaining: list[set[int]], nodes: Sequence[int]) -> set[int]:
    """Connect all pairs of nodes, and return the nodes that were neighbors of both ends of a new edge."""
    common: set[int] = set()
    for k, node in enumerate(nodes):
        for other in nodes[:k]:
            if other not in remaining[node]:
                common |= remaining[node] & remaining[other]
                remaining[node].add(other)
                remaining[other].add(node)
    return common


def follow_order(neighbors: Sequence[set[int]], num_labels: Sequence[int], nodes: Sequence[int]) -> EliminationOrder:
    """Return separators and cost of a given order.

    The separator of a node is that of its earlier neighbors without itself, and its later neighbors.
    """
    position = [0] * len(nodes)
    for k, node in enumerate(nodes):
        position[node] = k
    children: list[list[int]] = [[] for _ in nodes]
    separators: list[list[int]] = []
    largest = total = work = 0
    for k, node in enumerate(nodes):
        around = {other for other in neighbors[node] if position[other] > k}
        for child in children[k]:
            around.update(separators[child])
        around.discard(node)
        entries = math.prod(num_labels[other] for other in around)
        largest = max(largest, entries * num_labels[node])
        total, work = total + entries, work + entries * num_labels[node]
        separators.append(sorted(around))
        if largest > MAX_REPORTED_ENTRIES:
            return EliminationOrder(nodes[: k + 1], separators, largest, total, work, is_complete=False)
        if around:
            children[min(position[other] for other in around)].append(k)
    return EliminationOrder(nodes, separators, largest, total, work)


def elimination_order(neighbors: Sequence[set[int]], num_labels: Sequence[int]) -> EliminationOrder:
    """Return the cheaper of the min-fill order and the reverse Cuthill-McKee order, which is better on grids."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    first = min_fill_order(neighbors, num_labels)
    if first.total <= 2 * len(neighbors) * max(num_labels, default=1) ** 2:  # a forest, nearly
        return first
    degrees = [len(nodes) for nodes in neighbors]
    columns = np.fromiter((other for nodes in neighbors for other in sorted(nodes)), np.int32, sum(degrees))
    pointers = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    graph = csr_array((np.ones(len(columns), np.int8), columns, pointers), shape=(len(neighbors),) * 2)
    second = follow_order(neighbors, num_labels, reverse_cuthill_mckee(graph, symmetric_mode=True).tolist())
    return min(first, second, key=lambda order: (not order.is_complete, order.total))


class _Input(NamedTuple):
    """A table that enters a bucket."""

    offset: int
    child: int  # the bucket whose message it is, or -1
    strides: Mapping[int, int]  # by node, without the node of the bucket, whose stride is 1


class JunctionTree:
    """The buckets of a single MRF, with only the labels that are possible at each node.

    Parameters
    ----------
    mrf
        A single MRF without gradients.
    order
        An order of elimination of its graph.
    """

    def __init__(self, mrf: PairwiseMRF, order: EliminationOrder):
        self.mrf, self.order = mrf, order
        unary = mrf.unary.double().cpu().numpy()
        self.labels = [np.flatnonzero(row > -np.inf) for row in unary]
        self._position = {node: k for k, node in enumerate(order.nodes)}
        self.buckets, self._tables = self._plan_buckets(unary)
        self._pool_size = len(self._tables) + int(self.buckets.size.sum())

    def _sort_ends(self, i: int, j: int) -> tuple[int, int]:
        """Return the ends of an edge, first the one whose bucket the edge's potentials enter.

        It is the end that is eliminated first. If the other end has a single label, the edge restricts no order.
        """
        if len(self.labels[i]) == 1 or len(self.labels[j]) == 1:
            return (j, i) if len(self.labels[i]) == 1 else (i, j)
        return (i, j) if self._position[i] < self._position[j] else (j, i)

    def _plan_buckets(self, unary: Array) -> tuple["Buckets", Array]:
        """Return the buckets, and the potentials of all nodes, then of all edges, in one array."""
        from edgewise.kernels.clique_tables import MAX_FAST_SIZE, Buckets

        mrf, order, labels, position = self.mrf, self.order, self.labels, self._position
        num_labels = [len(row) for row in labels]
        first_label = np.concatenate([[0], np.cumsum(num_labels)])
        inputs = [[_Input(int(first_label[node]), -1, {})] for node in order.nodes]
        tables, place = [unary[i, row] for i, row in enumerate(labels)], int(first_label[-1])
        couplings = mrf.coupling(slice(None)).double().cpu().numpy()
        for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
            table = couplings[e if len(couplings) > 1 else 0][np.ix_(labels[i], labels[j])]
            first, second = self._sort_ends(i, j)
            tables.append((table.T if first == i else table).ravel())
            inputs[position[first]].append(_Input(place, -1, {second: num_labels[first]}))
            place += table.size
        parts: dict[str, list[int]] = {name: [] for name in Buckets._fields}
        for k, node in enumerate(order.nodes):
            # The node that is eliminated next is last: the message enters its bucket.
            separator = sorted(order.separators[k], key=position.__getitem__, reverse=True)
            dims = [num_labels[other] for other in separator]
            num_slow, fast_size = len(dims), 1
            while num_slow and fast_size * dims[num_slow - 1] <= MAX_FAST_SIZE:
                num_slow -= 1
                fast_size *= dims[num_slow]
            slow_nodes = set(separator[:num_slow])
            is_slow = [input_.strides.keys() <= slow_nodes for input_ in inputs[k]]
            is_fast = [bool(input_.strides) and input_.strides.keys().isdisjoint(slow_nodes) for input_ in inputs[k]]
            ordered = sorted(zip(is_slow, is_fast, inputs[k], strict=True), key=lambda item: (not item[0], not item[1]))
            parts["num_labels"].append(num_labels[node])
            parts["first_axis"].append(len(parts["dims"]))
            parts["dims"] += dims
            parts["axis_bucket"] += [position[other] for other in separator]
            parts["num_slow"].append(num_slow)
            parts["first_input"].append(len(parts["offset"]))
            parts["first_fast"].append(len(parts["offset"]) + sum(is_slow))
            parts["first_mixed"].append(parts["first_fast"][-1] + sum(is_fast))
            for _, _, input_ in ordered:
                parts["offset"].append(input_.offset)
                parts["child"].append(input_.child)
                parts["first_stride"].append(len(parts["strides"]))
                parts["strides"] += [input_.strides.get(other, 0) for other in separator]
            strides, size = dict[int, int](), 1
            for other, dim in zip(reversed(separator), reversed(dims), strict=True):
                strides[other] = size
                size *= dim
            parts["message"].append(place)
            parts["size"].append(size)
            if separator:
                parent = separator[-1]
                del strides[parent]
                inputs[position[parent]].append(_Input(place, k, strides))
            place += size
        for name, end in (("first_axis", "dims"), ("first_input", "offset"), ("first_stride", "strides")):
            parts[name].append(len(parts[end]))
        buckets = Buckets(*(np.asarray(parts[name], np.int64) for name in Buckets._fields))
        return buckets, np.concatenate(tables) if tables else np.empty(0)

    def messages(self, maximum: bool = False) -> tuple[Array, Array]:
        """Return the pool of potentials and messages after the pass up, and the shift of each message.

        The sum of the shifts is log Z, or with ``maximum`` the largest score of a labeling.
        """
        from edgewise.kernels.clique_tables import pass_up

        pool = np.empty(len(self._tables) + int(self.buckets.size.sum()))
        pool[: len(self._tables)] = self._tables
        return pool, pass_up(pool, self.buckets, maximum)

    def marginals(self) -> tuple[Array, Array, float]:
        """Return the marginals of nodes (N, C) and of edges (E, C, C), and log Z."""
        from edgewise.kernels.clique_tables import pass_down

        pool, shifts = self.messages()
        sums = np.zeros(len(self._tables))
        pass_down(pool, self.buckets, shifts, sums)
        num_nodes, num_classes = self.mrf.num_nodes, self.mrf.num_classes
        node, joint = np.zeros((num_nodes, num_classes)), np.zeros((self.mrf.num_edges, num_classes, num_classes))
        place = 0
        for i, labels in enumerate(self.labels):
            node[i, labels] = sums[place : place + len(labels)]
            place += len(labels)
        for e, (i, j) in enumerate(self.mrf.edge_index.T.tolist()):
            first, second = self._sort_ends(i, j)
            shape = len(self.labels[second]), len(self.labels[first])
            table = sums[place : place + math.prod(shape)].reshape(shape)
            place += math.prod(shape)
            joint[e][np.ix_(self.labels[i], self.labels[j])] = table.T if first == i else table
        return node, joint, math.fsum(shifts)

    def joint_of_last(self, pool: Array, number: int) -> Array:
        """Return the joint (C, …, C) of the nodes that are eliminated last, in the order of elimination."""
        buckets, last = self.buckets, range(len(self.order.nodes) - number, len(self.order.nodes))
        labels = [self.labels[self.order.nodes[b]] for b in last]
        log_joint = np.zeros([len(row) for row in labels])
        for axis, b in enumerate(last):
            scope = buckets.axis_bucket[buckets.first_axis[b] : buckets.first_axis[b + 1]] - last.start
            for k in range(buckets.first_input[b], buckets.first_input[b + 1]):
                if buckets.child[k] >= last.start:
                    continue
                strides = [0] * number
                strides[axis] = 1
                for other, stride in zip(scope, buckets.strides[buckets.first_stride[k] :], strict=False):
                    strides[other] = int(stride)
                table = pool[buckets.offset[k] :]
                log_joint += as_strided(table, log_joint.shape, [8 * stride for stride in strides])
        joint = np.zeros([self.mrf.num_classes] * number)
        joint[np.ix_(*labels)] = np.exp(log_joint - log_joint.max())
        normalized: Array = joint / joint.sum()
        return normalized

    def draw(self, pool: Array, uniform: Array | None = None) -> Array:
        """Draw labels (samples, N) with uniform numbers (samples, N), or without these decode the best labeling."""
        from edgewise.kernels.clique_tables import draw_labels

        drawn = np.zeros((1 if uniform is None else len(uniform), len(self.order.nodes)), np.int64)
        draw_labels(pool, self.buckets, np.empty((0, 0)) if uniform is None else uniform, drawn)
        labels = np.empty_like(drawn)
        for k, node in enumerate(self.order.nodes):
            labels[:, node] = self.labels[node][drawn[:, k]]
        return labels


class ExactPosterior(Posterior):
    """Exact posterior of an MRF with loops, by variable elimination. Returned by `exact_marginals`.

    Marginals of nodes and joints of edges are stored. The joint of another set takes an elimination of its own, in
    which the nodes of the set come last.

    Parameters
    ----------
    unary
        Unary potentials of the MRF, as in `PairwiseMRF`.
    edge_index
        Edges (2, E), each undirected edge once.
    pairwise
        Pairwise potentials.
    node
        Marginals (N, C). With a batch, (B, N, C).
    joints
        Joints of edges (E, C, C). With a batch, (B, E, C, C).
    edge_scale
        Factors of the pairwise potentials, 1 by default.
    convergence
        As `exact_marginals` returns it.
    """

    def __init__(
        self,
        unary: ArrayLike,
        edge_index: ArrayLike,
        pairwise: ArrayLike,
        node: ArrayLike,
        joints: ArrayLike,
        edge_scale: ArrayLike | None = None,
        *,
        convergence: Convergence | None = ELIMINATION,
    ):
        super().__init__(convergence)
        self._mrf = PairwiseMRF(unary, edge_index, pairwise, edge_scale=edge_scale)
        self._node, self._edge_joints = dense_tensor(node, "node"), dense_tensor(joints, "joints")
        check_distributions(self._node.flatten(0, -2), "node", "row")
        check_distributions(self._edge_joints.flatten(0, -3), "joints", "edge")

    @property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""
        return self._node

    def tensors(self) -> dict[str, Tensor]:
        """Return the MRF, the marginals and the joints."""
        mrf = self._mrf
        tensors = {"unary": mrf.unary, "edge_index": mrf.edge_index, "pairwise": mrf.pairwise.contiguous()}
        scale = {} if mrf.edge_scale is None else {"edge_scale": mrf.edge_scale.contiguous()}
        return {**tensors, **scale, "node": self._node, "joints": self._edge_joints}

    def _select(self, index: int) -> Posterior:
        selected = {name: tensor[index] for name, tensor in self.tensors().items() if name != "edge_index"}
        return self._rebuild(edge_index=self._mrf.edge_index, **selected)

    @cached_property
    def _lookup(self) -> EdgeLookup:
        return EdgeLookup(self._mrf.edge_index, self.num_nodes)

    @cached_property
    def _order(self) -> EliminationOrder:
        return feasible_order(self._mrf)

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        if len(nodes) == 1:
            return self._node[..., nodes[0], :]
        joints = self._node.new_empty(*self.batch_shape, nodes.shape[1], self.num_classes ** len(nodes))
        rest = torch.ones(nodes.shape[1], dtype=torch.bool, device=nodes.device)
        if len(nodes) == 2:
            edge, backward = self._lookup.find(nodes)
            rest = edge < 0
            known = self._edge_joints[..., edge[~rest], :, :]
            known = torch.where(backward[~rest, None, None], known.mT, known)
            joints[..., ~rest, :] = known.flatten(-2)
        for s in rest.nonzero().squeeze(1).tolist():
            joints[..., s, :] = self._joint_of(nodes[:, s].tolist())
        return joints

    def _joint_of(self, nodes: list[int]) -> Float[Tensor, "*batch entries"]:
        """Compute the joint of one set, eliminating its nodes last."""
        first = [node for node in self._order.nodes if node not in nodes]
        order = follow_order(_graph(self._mrf), _num_labels(self._mrf), [*first, *nodes])
        _check_cost(order)
        tables = []
        for item in batch_items(self._mrf):
            tree = JunctionTree(item, order)
            tables.append(tree.joint_of_last(tree.messages()[0], len(nodes)))
        return torch.from_numpy(np.stack(tables)).to(self._node).reshape(*self.batch_shape, -1)


def eliminate(mrf: PairwiseMRF) -> ExactPosterior:
    """Compute exact marginals by variable elimination, for each MRF of a batch."""
    constant = mrf.detach()
    order = feasible_order(constant)
    if mrf.requires_grad:
        raise NoExactInference(
            "Variable elimination has no gradient.",
            "potentials without gradients",
            "Pass detached potentials, or use sum_product.",
        )
    results = [JunctionTree(item, order).marginals() for item in batch_items(constant)]
    nodes, joints, log_partitions = zip(*results, strict=True)
    node, joint = (
        torch.from_numpy(np.stack(parts)).to(constant.unary).reshape((*mrf.batch_shape, *parts[0].shape))
        for parts in (nodes, joints)
    )
    field = constant.unary, constant.edge_index, constant.pairwise
    posterior = ExactPosterior(*field, node, joint, edge_scale=constant.edge_scale)
    posterior.log_partition = torch.tensor(log_partitions, dtype=torch.float64).reshape(mrf.batch_shape)
    return posterior


def feasible_order(mrf: PairwiseMRF) -> EliminationOrder:
    """Return an elimination order, or raise NoExactInference if its messages would take too much memory or time."""
    order = elimination_order(_graph(mrf), _num_labels(mrf))
    _check_cost(order)
    return order


def _check_cost(order: EliminationOrder) -> None:
    if 8 * order.total <= MAX_MESSAGE_BYTES and order.work <= MAX_CLIQUE_ENTRIES:
        return
    cost = f"at least width {order.width}: more than {format_bytes(8 * MAX_REPORTED_ENTRIES)} of messages"
    if order.is_complete:
        messages = format_bytes(8 * order.total)
        cost = f"width {order.width}: {messages} of messages and {order.work:.1g} label combinations"
    limits = f"{format_bytes(MAX_MESSAGE_BYTES)} of messages and {MAX_CLIQUE_ENTRIES:.1g} label combinations"
    raise NoExactInference(
        f"Exact inference needs {cost}.", f"a graph of small width, with {limits} at most", "Use infer or sum_product."
    )


def format_bytes(number: int) -> str:
    """Format a number of bytes with a decimal unit.

    >>> format_bytes(2_200_000_000_000)
    '2.2 TB'
    """
    units = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
    power = min(len(units) - 1, int(math.log10(max(1, number)) // 3))
    return f"{number / 1000**power:.3g} {units[power]}"


def _graph(mrf: PairwiseMRF) -> list[set[int]]:
    """Return the neighbors of each node. Edges of nodes with a single possible label do not count."""
    edges = mrf.edge_index[:, ~mrf.decided[mrf.edge_index].any(0)]
    return neighbor_sets(mrf.num_nodes, edges.T.tolist())


def _num_labels(mrf: PairwiseMRF) -> list[int]:
    """Return the number of possible labels of each node, in any MRF of a batch."""
    possible = (mrf.unary > -torch.inf).reshape(-1, mrf.num_nodes, mrf.num_classes).any(0)
    return possible.sum(1).tolist()


def batch_items(mrf: PairwiseMRF) -> list[PairwiseMRF]:
    """Return the MRFs of a batch."""
    if not mrf.batch_shape:
        return [mrf]
    scales = [None] * len(mrf.unary) if mrf.edge_scale is None else mrf.edge_scale
    parts = zip(mrf.unary, mrf.pairwise, scales, strict=True)
    return [PairwiseMRF(u, mrf.edge_index, t, edge_scale=s) for u, t, s in parts]
