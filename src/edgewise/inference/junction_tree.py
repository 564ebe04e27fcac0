"""Exact inference by variable elimination: the order of elimination, its cost, and the passes over its buckets."""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from edgewise.posterior import MAX_SET, Convergence, Posterior, Sample, Sampling
from edgewise.validation import ArrayLike, check_distributions, dense_tensor

if TYPE_CHECKING:
    from edgewise.kernels.clique_tables import Buckets

Array = NDArray[Any]

MAX_MESSAGE_BYTES = 4 << 30  # of the messages in memory at a time
MAX_CLIQUE_ENTRIES = 1 << 34  # of all buckets together: some minutes
MAX_REPORTED_ENTRIES = 1 << 60  # an order with a larger table is abandoned, and its cost is reported as a lower bound
NUM_SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # into which buckets are divided to save memory
NUM_STARTS = 16  # of frontier orders
MAX_FRONTIER = 40  # nodes; with two labels each, 8 TiB
CHUNK_ELEMENTS = 1 << 21  # labels that are drawn at once
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
    sizes
        Number of entries of each message, one for each node.
    work
        Number of label combinations of all buckets.
    is_complete
        Whether all nodes were eliminated. Otherwise the cost is a lower bound for this order.
    """

    nodes: Sequence[int]
    separators: Sequence[Sequence[int]]
    sizes: Sequence[int]
    work: int
    is_complete: bool = True

    @property
    def total(self) -> int:
        """Number of entries of all messages."""
        return sum(self.sizes)

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
    sizes: list[int] = []
    work = 0
    while heap:
        lowest, node = heapq.heappop(heap)
        if not is_remaining[node] or lowest != cost[node]:
            continue
        around = remaining[node]
        sizes.append(math.prod(num_labels[other] for other in around))
        work += sizes[-1] * num_labels[node]
        nodes.append(node)
        separators.append(sorted(around))
        if sizes[-1] * num_labels[node] > MAX_REPORTED_ENTRIES:
            return EliminationOrder(nodes, separators, sizes, work, is_complete=False)
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
    return EliminationOrder(nodes, separators, sizes, work)


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
    sizes: list[int] = []
    work = 0
    for k, node in enumerate(nodes):
        around = {other for other in neighbors[node] if position[other] > k}
        for child in children[k]:
            around.update(separators[child])
        around.discard(node)
        sizes.append(math.prod(num_labels[other] for other in around))
        work += sizes[-1] * num_labels[node]
        separators.append(sorted(around))
        if sizes[-1] * num_labels[node] > MAX_REPORTED_ENTRIES:
            return EliminationOrder(nodes[: k + 1], separators, sizes, work, is_complete=False)
        if around:
            children[min(position[other] for other in around)].append(k)
    return EliminationOrder(nodes, separators, sizes, work)


def frontier_order(neighbors: Sequence[set[int]], start: int, max_frontier: int) -> list[int] | None:
    """Eliminate from a start node outwards, next a node of the frontier with the fewest neighbors outside of it.

    The frontier consists of the neighbors of the eliminated nodes, and separators are subsets of it. On a grid, it
    moves from one side to the other. Return None if it has more than ``max_frontier`` nodes.

    >>> square = neighbor_sets(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    >>> frontier_order(square, 0, max_frontier=2)
    [0, 1, 3, 2]
    """
    num_outside = [len(nodes) for nodes in neighbors]
    is_reached = [False] * len(neighbors)
    heap: list[tuple[int, int, int]] = []  # neighbors outside, the time when the node was reached, node
    reached_at: dict[int, int] = {}  # of the frontier
    order: list[int] = []
    for root in [start, *range(len(neighbors))]:
        new = [root] * (not is_reached[root])
        while new or reached_at:
            for node in new:
                is_reached[node], reached_at[node] = True, len(order)
            for node in new:
                for other in neighbors[node]:
                    num_outside[other] -= 1
                    if other in reached_at:
                        heapq.heappush(heap, (num_outside[other], reached_at[other], other))
                heapq.heappush(heap, (num_outside[node], reached_at[node], node))
            while True:
                count, _, node = heapq.heappop(heap)
                if node in reached_at and count == num_outside[node]:
                    break
            order.append(node)
            del reached_at[node]
            new = sorted(other for other in neighbors[node] if not is_reached[other])
            if len(reached_at) + len(new) > max_frontier:
                return None
    return order


def elimination_order(neighbors: Sequence[set[int]], num_labels: Sequence[int]) -> EliminationOrder:
    """Return the cheapest of several orders: min-fill, reverse Cuthill-McKee, and frontier orders from several starts.

    The last two are better on grids.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    first = min_fill_order(neighbors, num_labels)
    if first.total <= 2 * len(neighbors) * max(num_labels, default=1) ** 2:  # a forest, nearly
        return first
    degrees = [len(nodes) for nodes in neighbors]
    columns = np.fromiter((other for nodes in neighbors for other in sorted(nodes)), np.int32, sum(degrees))
    pointers = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    graph = csr_array((np.ones(len(columns), np.int8), columns, pointers), shape=(len(neighbors),) * 2)
    candidates = [reverse_cuthill_mckee(graph, symmetric_mode=True).tolist()]
    by_degree = sorted(np.flatnonzero(degrees).tolist(), key=degrees.__getitem__)
    starts = {*by_degree[: NUM_STARTS // 2], *by_degree[:: 1 + 2 * len(by_degree) // NUM_STARTS]}
    found = (frontier_order(neighbors, start, MAX_FRONTIER) for start in sorted(starts))
    candidates += [nodes for nodes in found if nodes is not None]
    orders = [first, *(follow_order(neighbors, num_labels, nodes) for nodes in candidates)]
    return min(orders, key=lambda order: (not order.is_complete, order.total))


@dataclass(frozen=True)
class Storage:
    """Where the messages of an order are in memory, so that not all of them are there at the same time.

    Buckets are divided into segments of consecutive buckets. A message that enters a later segment is kept. All other
    messages share the same memory, which holds those of one segment at a time: the pass down computes them again.

    Attributes
    ----------
    segments
        First bucket of each segment, and the number of buckets.
    is_kept
        Whether a message enters a later segment.
    offsets
        Position of each message. Kept messages come first.
    size
        Number of entries.
    """

    segments: Sequence[int]
    is_kept: Sequence[bool]
    offsets: Sequence[int]
    size: int


def plan_storage(order: EliminationOrder, max_entries: int) -> Storage:
    """Divide the buckets into as few segments as the memory allows, or so that the memory is smallest."""
    position = {node: k for k, node in enumerate(order.nodes)}
    parents = [min((position[other] for other in around), default=k) for k, around in enumerate(order.separators)]
    best: Storage | None = None
    for number in NUM_SEGMENTS:
        storage = _divide_buckets(order.sizes, parents, -(-order.total // number))
        if best is None or storage.size < best.size:
            best = storage
        if best.size <= max_entries:
            break
    assert best is not None
    return best


def _divide_buckets(sizes: Sequence[int], parents: Sequence[int], max_entries: int) -> Storage:
    """Start a new segment where the messages of the current one would have more than ``max_entries`` entries."""
    segments, in_segment = [0], 0
    segment = [0] * len(sizes)
    for k, size in enumerate(sizes):
        # The last buckets stay together: the joint of the last nodes reads the messages that enter these.
        if in_segment + size > max_entries and segments[-1] < k <= len(sizes) - MAX_SET:
            segments.append(k)
            in_segment = 0
        in_segment += size
        segment[k] = len(segments) - 1
    is_kept = [segment[parent] > segment[k] for k, parent in enumerate(parents)]
    offsets, kept, largest = [0] * len(sizes), 0, 0
    for k, size in enumerate(sizes):
        if is_kept[k]:
            offsets[k] = kept
            kept += size
    for start, stop in itertools.pairwise([*segments, len(sizes)]):
        place = kept
        for k in range(start, stop):
            if not is_kept[k]:
                offsets[k] = place
                place += sizes[k]
        largest = max(largest, place)
    return Storage([*segments, len(sizes)], is_kept, offsets, largest)


def _shift_to_zero(tables: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """Subtract the largest entry of each table, and return it too."""
    highest = tables.max(axis=axis, keepdims=True)
    return tables - highest, highest.ravel()


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
        # Potentials are shifted to a largest entry of 0, so that huge ones do not hide the others in sums.
        unary, highest = _shift_to_zero(mrf.unary.double().cpu().numpy(), axis=1)
        self._couplings, highest_coupling = _shift_to_zero(
            mrf.coupling(slice(None)).double().cpu().numpy(), axis=(1, 2)
        )
        self._constants = [*highest, *np.broadcast_to(highest_coupling, mrf.num_edges)]
        self.labels = [np.flatnonzero(row > -np.inf) for row in unary]
        self._position = {node: k for k, node in enumerate(order.nodes)}
        self._storage = plan_storage(order, MAX_MESSAGE_BYTES // 8)
        self.buckets, self._tables = self._plan_buckets(unary)

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
        for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
            table = self._couplings[e if len(self._couplings) > 1 else 0][np.ix_(labels[i], labels[j])]
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
            message = place + self._storage.offsets[k]
            parts["message"].append(message)
            parts["size"].append(size)
            if separator:
                parent = separator[-1]
                del strides[parent]
                inputs[position[parent]].append(_Input(message, k, strides))
        for name, end in (("first_axis", "dims"), ("first_input", "offset"), ("first_stride", "strides")):
            parts[name].append(len(parts[end]))
        buckets = Buckets(*(np.asarray(parts[name], np.int64) for name in Buckets._fields))
        return buckets, np.concatenate(tables) if tables else np.empty(0)

    def messages(self, maximum: bool = False) -> tuple[Array, Array]:
        """Return the pool of potentials and messages after the pass up, and the shift of each message.

        The pool holds the messages that are kept and those of the last segment. The sum of the shifts is log Z
        of the shifted potentials, or with ``maximum`` their largest score of a labeling.
        """
        from edgewise.kernels.clique_tables import pass_up

        pool, shifts = np.empty(len(self._tables) + self._storage.size), np.empty(len(self.order.nodes))
        pool[: len(self._tables)] = self._tables
        for start, stop in itertools.pairwise(self._storage.segments):
            pass_up(pool, self.buckets, np.arange(start, stop), maximum, shifts)
        return pool, shifts

    def _segments_backward(self, pool: Array, maximum: bool) -> Iterator[tuple[int, int]]:
        """Return the range of buckets of each segment, from the last to the first, with its messages in the pool."""
        from edgewise.kernels.clique_tables import pass_up

        segments, is_kept = self._storage.segments, np.array(self._storage.is_kept, dtype=np.bool_)
        for start, stop in reversed(list(itertools.pairwise(segments))):
            if len(segments) > 2:  # later segments, or an earlier call, have used the memory of this one
                discarded = start + np.flatnonzero(~is_kept[start:stop])
                pass_up(pool, self.buckets, discarded, maximum, np.empty(len(self.order.nodes)))
            yield start, stop

    def marginals(self) -> tuple[Array, Array, float]:
        """Return the marginals of nodes (N, C) and of edges (E, C, C), and log Z."""
        from edgewise.kernels.clique_tables import pass_down

        pool, shifts = self.messages()
        sums = np.zeros(len(self._tables))
        for start, stop in self._segments_backward(pool, maximum=False):
            pass_down(pool, self.buckets, start, stop, shifts, sums)
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
        # Rounding of huge potentials can leave sums that differ from 1.
        node /= node.sum(1, keepdims=True)
        joint /= joint.sum((1, 2), keepdims=True)
        return node, joint, math.fsum([*shifts, *self._constants])

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
        """Draw labels (samples, N) with uniform numbers (samples, N), or without these decode the best labeling.

        The pool must be that of `messages`, without uniform numbers that of ``messages(maximum=True)``.
        """
        from edgewise.kernels.clique_tables import draw_labels

        drawn = np.zeros((1 if uniform is None else len(uniform), len(self.order.nodes)), np.int64)
        numbers = np.empty((0, 0)) if uniform is None else uniform
        for start, stop in self._segments_backward(pool, maximum=uniform is None):
            draw_labels(pool, self.buckets, start, stop, numbers, drawn)
        labels = np.empty_like(drawn)
        labels[:, self.order.nodes] = self._label_of_bucket[np.arange(drawn.shape[1]), drawn]
        return labels

    @cached_property
    def _label_of_bucket(self) -> Array:
        """The possible labels of the node of each bucket, (buckets, C), padded by 0."""
        padded = np.zeros((len(self.order.nodes), self.mrf.num_classes), np.int64)
        for k, node in enumerate(self.order.nodes):
            padded[k, : len(self.labels[node])] = self.labels[node]
        return padded


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

    def _sample(self, number: int, rng: np.random.Generator) -> Sample:
        return sample_by_elimination(self._mrf.detach(), self._order, number, rng)

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


def sample_by_elimination(mrf: PairwiseMRF, order: EliminationOrder, number: int, rng: np.random.Generator) -> Sample:
    """Draw labelings from the last node of the order to the first, each given those that are eliminated after it."""
    tree = JunctionTree(mrf, order)
    pool, labels = tree.messages()[0], torch.empty(number, mrf.num_nodes, dtype=torch.long)
    step = max(1, CHUNK_ELEMENTS // max(1, mrf.num_nodes))
    for lo in range(0, number, step):
        chunk = labels[lo : lo + step]
        chunk.copy_(torch.from_numpy(tree.draw(pool, rng.random(chunk.shape))))
    return Sample(labels, Sampling("elimination", is_exact=True))


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
    cost = f"at least width {order.width}: more than {format_bytes(8 * MAX_REPORTED_ENTRIES)} of messages"
    if order.is_complete:
        size = 8 * plan_storage(order, MAX_MESSAGE_BYTES // 8).size
        if size <= MAX_MESSAGE_BYTES and order.work <= MAX_CLIQUE_ENTRIES:
            return
        cost = f"width {order.width}: {format_bytes(size)} of messages and {order.work:.1g} label combinations"
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
