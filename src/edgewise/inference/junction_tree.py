"""Exact inference by variable elimination: the order of elimination, its cost, and the passes over its buckets."""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.inference.mrf import PairwiseMRF

if TYPE_CHECKING:
    from edgewise.kernels.clique_tables import Buckets

Array = NDArray[Any]

MAX_TABLE_ENTRIES = 1 << 25  # of one clique: binary width 24
MAX_POOL_BYTES = 4 << 30
MAX_REPORTED_ENTRIES = 1 << 60  # an order with a larger table is abandoned, and its cost is reported as a lower bound
MAX_DEGREE = 64  # the fill-in of nodes with more neighbors is not counted: they are eliminated later


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
        Number of entries of the largest clique table.
    total
        Number of entries of all messages.
    is_complete
        Whether all nodes were eliminated. Otherwise the cost is a lower bound for this order.
    """

    nodes: Sequence[int]
    separators: Sequence[Sequence[int]]
    largest_table: int
    total: int
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
    left = [set(nodes) for nodes in neighbors]
    is_left = [True] * len(left)

    def fill_in(node: int) -> int:
        around = left[node]
        if len(around) > MAX_DEGREE:
            return len(around) ** 2
        return sum(len(around) - 1 - len(around & left[other]) for other in around) // 2

    cost = [fill_in(node) for node in range(len(left))]
    heap = [(cost[node], node) for node in range(len(left))]
    heapq.heapify(heap)
    nodes: list[int] = []
    separators: list[list[int]] = []
    largest = total = 0
    while heap:
        lowest, node = heapq.heappop(heap)
        if not is_left[node] or lowest != cost[node]:
            continue
        around = left[node]
        entries = math.prod(num_labels[other] for other in around)
        largest, total = max(largest, entries * num_labels[node]), total + entries
        nodes.append(node)
        separators.append(sorted(around))
        if largest > MAX_REPORTED_ENTRIES:
            return EliminationOrder(nodes, separators, largest, total, is_complete=False)
        is_left[node] = False
        changed = set(around)
        for other in around:
            left[other].discard(node)
        if lowest:
            changed |= _connect(left, separators[-1])
        for other in changed:
            if (new := fill_in(other)) != cost[other]:
                cost[other] = new
                heapq.heappush(heap, (new, other))
    return EliminationOrder(nodes, separators, largest, total)


def _connect(left: list[set[int]], nodes: Sequence[int]) -> set[int]:
    """Connect all pairs of nodes, and return the nodes that were neighbors of both ends of a new edge."""
    common: set[int] = set()
    for k, node in enumerate(nodes):
        for other in nodes[:k]:
            if other not in left[node]:
                common |= left[node] & left[other]
                left[node].add(other)
                left[other].add(node)
    return common


def follow_order(
    neighbors: Sequence[set[int]], num_labels: Sequence[int], nodes: Sequence[int]
) -> EliminationOrder:
    """Return separators and cost of a given order.

    The separator of a node is that of its earlier neighbors without itself, and its later neighbors.
    """
    position = [0] * len(nodes)
    for k, node in enumerate(nodes):
        position[node] = k
    children: list[list[int]] = [[] for _ in nodes]
    separators: list[list[int]] = []
    largest = total = 0
    for k, node in enumerate(nodes):
        around = {other for other in neighbors[node] if position[other] > k}
        for child in children[k]:
            around.update(separators[child])
        around.discard(node)
        entries = math.prod(num_labels[other] for other in around)
        largest, total = max(largest, entries * num_labels[node]), total + entries
        separators.append(sorted(around))
        if largest > MAX_REPORTED_ENTRIES:
            return EliminationOrder(nodes[: k + 1], separators, largest, total, is_complete=False)
        if around:
            children[min(position[other] for other in around)].append(k)
    return EliminationOrder(nodes, separators, largest, total)


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
        self.buckets, self._tables = _plan_buckets(mrf, unary, self.labels, order)
        self._pool_size = int(self.buckets.message[-1] + self.buckets.size[-1]) if len(order.nodes) else 0

    def messages(self, maximum: bool = False) -> Array:
        """Return the pool of potentials and messages after the pass up."""
        from edgewise.kernels.clique_tables import pass_up

        pool = np.empty(self._pool_size)
        pool[: len(self._tables)] = self._tables
        pass_up(pool, self.buckets, maximum)
        return pool

    def log_partition(self, pool: Array) -> float:
        """Return log Z, the sum of the messages of the roots, or the largest score of a labeling for a maximum."""
        roots = self.buckets.first_axis[1:] == self.buckets.first_axis[:-1]
        return float(pool[self.buckets.message[roots]].sum())

    def marginals(self, pool: Array) -> tuple[Array, Array]:
        """Return the marginals of nodes (N, C) and of edges (E, C, C). The messages in ``pool`` are overwritten."""
        from edgewise.kernels.clique_tables import pass_down

        sums = np.zeros(len(self._tables))
        pass_down(pool, self.buckets, sums)
        num_nodes, num_classes = self.mrf.num_nodes, self.mrf.num_classes
        node, joint = np.zeros((num_nodes, num_classes)), np.zeros((self.mrf.num_edges, num_classes, num_classes))
        place = 0
        for i, labels in enumerate(self.labels):
            node[i, labels] = sums[place : place + len(labels)]
            place += len(labels)
        position = np.empty(num_nodes, np.int64)
        position[np.asarray(self.order.nodes, np.int64)] = np.arange(num_nodes)
        for e, (i, j) in enumerate(self.mrf.edge_index.T.tolist()):
            first, second = (i, j) if position[i] < position[j] else (j, i)
            shape = len(self.labels[second]), len(self.labels[first])
            table = sums[place : place + math.prod(shape)].reshape(shape)
            place += math.prod(shape)
            joint[e][np.ix_(self.labels[i], self.labels[j])] = table.T if first == i else table
        return node, joint

    def draw(self, pool: Array, uniform: Array | None = None, num_samples: int = 1) -> Array:
        """Draw labels (samples, N) from the messages in ``pool``, or decode the best labeling without ``uniform``."""
        from edgewise.kernels.clique_tables import draw_labels

        drawn = np.zeros((num_samples, len(self.order.nodes)), np.int64)
        draw_labels(pool, self.buckets, np.empty((0, 0)) if uniform is None else uniform, drawn)
        labels = np.empty_like(drawn)
        for k, node in enumerate(self.order.nodes):
            labels[:, node] = self.labels[node][drawn[:, k]]
        return labels


class _Input(NamedTuple):
    """A table that enters a bucket."""

    offset: int
    child: int  # the bucket whose message it is, or -1
    strides: Mapping[int, int]  # by node, without the node of the bucket, whose stride is 1


def _plan_buckets(
    mrf: PairwiseMRF, unary: Array, labels: list[Array], order: EliminationOrder
) -> tuple["Buckets", Array]:
    """Return the buckets, and the potentials of all nodes, then of all edges, in one array."""
    from edgewise.kernels.clique_tables import MAX_FAST_SIZE, Buckets

    num_labels = [len(row) for row in labels]
    position = {node: k for k, node in enumerate(order.nodes)}
    first_label = np.concatenate([[0], np.cumsum(num_labels)])
    inputs = [[_Input(int(first_label[node]), -1, {})] for node in order.nodes]
    tables, place = [unary[i, row] for i, row in enumerate(labels)], int(first_label[-1])
    couplings = mrf.coupling(slice(None)).double().cpu().numpy()
    for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
        table = couplings[e if len(couplings) > 1 else 0][np.ix_(labels[i], labels[j])]
        first, second = (i, j) if position[i] < position[j] else (j, i)
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
