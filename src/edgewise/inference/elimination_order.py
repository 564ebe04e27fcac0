"""The order in which variable elimination removes the nodes of an MRF, its cost, and the memory of its messages."""

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import MAX_SET

MAX_MESSAGE_BYTES = 4 << 30  # of the messages in memory at a time
MAX_CLIQUE_ENTRIES = 1 << 34  # of all buckets together: some minutes
MAX_REPORTED_ENTRIES = 1 << 60  # an order with a larger table is abandoned, and its cost is reported as a lower bound
NUM_SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # into which buckets are divided to save memory
NUM_STARTS = 16  # of frontier orders
MAX_FRONTIER = 40  # nodes; with two labels each, 8 TiB
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


def plan_storage(order: EliminationOrder, max_entries: int | None = None) -> Storage:
    """Divide the buckets into as few segments as the memory allows, or so that the memory is smallest."""
    if max_entries is None:
        max_entries = MAX_MESSAGE_BYTES // 8
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


def feasible_order(mrf: PairwiseMRF) -> EliminationOrder:
    """Return an elimination order, or raise NoExactInference if its messages would take too much memory or time."""
    order = elimination_order(neighbors_in_mrf(mrf), num_possible_labels(mrf))
    check_cost(order)
    return order


def check_cost(order: EliminationOrder) -> None:
    """Raise NoExactInference, with the cost, if the messages would take too much memory or time."""
    cost = f"at least width {order.width}: more than {format_bytes(8 * MAX_REPORTED_ENTRIES)} of messages"
    if order.is_complete:
        size = 8 * plan_storage(order).size
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


def neighbors_in_mrf(mrf: PairwiseMRF) -> list[set[int]]:
    """Return the neighbors of each node. Edges of nodes with a single possible label do not count."""
    edges = mrf.edge_index[:, ~mrf.decided[mrf.edge_index].any(0)]
    return neighbor_sets(mrf.num_nodes, edges.T.tolist())


def num_possible_labels(mrf: PairwiseMRF) -> list[int]:
    """Return the number of possible labels of each node, in any MRF of a batch."""
    possible = (mrf.unary > -torch.inf).reshape(-1, mrf.num_nodes, mrf.num_classes).any(0)
    return possible.sum(1).tolist()
