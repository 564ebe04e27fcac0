"""Depth-first search of a graph: which of its components are trees, paths between their nodes, and its blocks.

Nodes are numbered in the order of the search, in which the descendants of a node follow it directly. So the lowest
common ancestor of two nodes a < b is the first ancestor of b with a number of at most a.

A block is a bridge, or a largest set of nodes in which any two nodes lie on a common cycle (Hopcroft and Tarjan 1973).
"""

from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class DepthFirstForest:
    """The trees of a depth-first search, one for each component of the graph, and the blocks of the graph.

    Parameters
    ----------
    edge_index
        Edges (2, E), each undirected edge once.
    num_nodes
        Number of nodes.

    Attributes
    ----------
    number
        Number (N,) of each node in the order of the search.
    node
        Node (N,) of each number.
    parent
        Number (N,) of the parent of each number, that of a root itself.
    depth
        Number (N,) of edges to the root, by number.
    block
        Smallest number (N,) in the block of the edge to the parent, without the top of the block. A root is a block of
        its own. By number.

    Examples
    --------
    A triangle 0, 1, 2 with node 3 attached to node 2, and an edge between 4 and 5:

    >>> forest = DepthFirstForest(torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 2, 5]]), 6)
    >>> forest.parent.tolist(), forest.block.tolist(), forest.in_tree.tolist()
    ([0, 0, 1, 2, 4, 4], [0, 1, 1, 3, 4, 5], [False, False, False, False, True, True])
    """

    def __init__(self, edge_index: Int[Tensor, "2 edges"], num_nodes: int):
        order, parent, low = _search(edge_index, num_nodes)
        depth, block = [0] * num_nodes, list(range(num_nodes))
        for v, above in enumerate(parent):
            if above != v:
                depth[v] = depth[above] + 1
                if low[v] < above:  # a cycle leads from below v to above its parent, so both edges are in one block
                    block[v] = block[above]
        device = edge_index.device
        self.node, self.parent, self.depth, self.block = (
            torch.tensor(numbers, dtype=torch.long, device=device) for numbers in (order, parent, depth, block)
        )
        self.number = torch.empty_like(self.node)
        self.number[self.node] = torch.arange(num_nodes, device=device)

    @cached_property
    def block_size(self) -> Int[Tensor, " nodes"]:
        """Number of nodes in the block of each number, with the top of the block."""
        counts = torch.bincount(self.block, minlength=len(self.block))[self.block]
        return counts + (self.depth > 0)

    @cached_property
    def in_tree(self) -> Bool[Tensor, " nodes"]:
        """Whether the component of each node (not number) has no cycle."""
        tree = (self.depth == 0).cumsum(0) - 1
        on_cycle = torch.zeros_like(tree).index_add_(0, tree, (self.block_size > 2).long())
        return (on_cycle[tree] == 0)[self.number]

    @cached_property
    def ancestors(self) -> list[Int[Tensor, " nodes"]]:
        """The ancestor of each number that is 1, 2, 4, … edges above it, or its root."""
        ancestors = [self.parent]
        for _ in range(1, int(self.depth.max()).bit_length() if len(self.depth) else 0):
            ancestors.append(ancestors[-1][ancestors[-1]])
        return ancestors

    def lowest_common_ancestor(self, low: Int[Tensor, "*shape"], high: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return the lowest common ancestor of numbers low <= high, or a number above ``low`` in different trees."""
        for ancestor in reversed(self.ancestors):
            high = torch.where(ancestor[high] > low, ancestor[high], high)
        return torch.where(high > low, self.parent[high], high)

    def has_path_around(self, nodes: Int[Tensor, "set sets"]) -> Bool[Tensor, " sets"]:
        """Return which sets have two nodes of a block, but not all its nodes.

        Then a path outside the set connects two nodes of the block: any other node of a block has paths to two of them
        that share no node (Menger 1927).
        """
        numbers = self.number[nodes]
        block, top = self.block[numbers], self.parent[self.block[numbers]]
        around = torch.zeros_like(nodes[0], dtype=torch.bool)
        for number, own_block, own_top in zip(numbers, block, top, strict=True):
            in_set = (block == own_block).sum(0) + ((numbers == own_top) & (own_top != own_block)).sum(0)
            around |= (in_set >= 2) & (in_set < self.block_size[number])
        return around


def _search(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> tuple[list[int], list[int], list[int]]:
    """Return the nodes in the order of the search, and by number their parents and lowest reachable numbers.

    The lowest reachable number is that of a neighbor of a descendant, without the edges to the parents.
    """
    start, end = torch.cat([edge_index, edge_index.flip(0)], dim=1).cpu()
    neighbors = end[start.argsort(stable=True)].tolist()
    last = torch.bincount(start, minlength=num_nodes).cumsum(0).tolist()
    place = [0, *last[:-1]]  # of the next neighbor of each node
    number, order, parent, low = [-1] * num_nodes, list[int](), list[int](), list[int]()
    for root in range(num_nodes):
        path = [root] if number[root] < 0 else []  # from the root to the current node
        if path:
            number[root] = len(order)
            parent.append(len(order))
            low.append(len(order))
            order.append(root)
        while path:
            node = path[-1]
            v = number[node]
            if place[node] == last[node]:
                path.pop()
                low[parent[v]] = min(low[parent[v]], low[v])
                continue
            other = neighbors[place[node]]
            place[node] += 1
            if number[other] < 0:
                number[other] = len(order)
                parent.append(v)
                low.append(len(order))
                order.append(other)
                path.append(other)
            elif number[other] != parent[v]:
                low[v] = min(low[v], number[other])
    return order, parent, low
