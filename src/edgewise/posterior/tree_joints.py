"""Joint probabilities of any nodes of a tree, from the conditionals of its edges.

If the joints of edges have the marginals of the nodes, the distribution of a tree is
P(y) = b(y_root) Π_v P(y_v | y_parent(v)). For a set of k nodes, only its nodes and their lowest common ancestors
matter, at most 2k - 1 nodes. They form a smaller tree, whose edges are paths of the graph. The conditional along a path
is the matrix product of those of its edges. Products of 2, 4, 8, … edges are computed from each other, so a path of L
edges takes about log2 L products. Then messages are passed from the leaves to the root, for all sets at once. All
computations use logarithms, so that small probabilities do not underflow.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.depth_first import DepthFirstForest

IMPOSSIBLE = -1e300  # in place of log 0, so that gradients are finite; sums of thousands of them are too
CHUNK_ELEMENTS = 1 << 21  # of a product of conditionals
MAX_PATH_ENTRIES = 1 << 27  # of the conditionals of all edges on paths: 1 GiB

# Maps numbers (n,) of nodes to log P(y_v | y_parent(v)), (*batch, n, C, C) with the parent's label first.
EdgeConditionals = Callable[[Int[Tensor, " numbers"]], Float[Tensor, "*batch numbers classes classes"]]


class SmallTrees(NamedTuple):
    """The nodes of each set in a tree, and their lowest common ancestors, in the order of the search.

    A set has at most ``places`` nodes. Other places are not ``is_used``, and come last.
    """

    number: Int[Tensor, "sets places"]
    parent: Int[Tensor, "sets places"]  # place of the parent, or that of the node itself for a root
    is_used: Bool[Tensor, "sets places"]


def small_trees(
    forest: DepthFirstForest, numbers: Int[Tensor, "set sets"], in_tree: Bool[Tensor, "set sets"]
) -> SmallTrees:
    """Add the lowest common ancestors to sets of numbers. Those that are not ``in_tree`` are left out."""
    unused = len(forest.node)
    members = torch.where(in_tree, numbers, unused).T.sort(dim=1).values
    low, high = members[:, :-1], members[:, 1:]
    # Neighbors in the order of the search suffice: their lowest common ancestors are those of all pairs.
    ancestor = _common_ancestor(forest, low, high, unused)
    places = torch.cat([members, torch.where(ancestor <= low, ancestor, unused)], dim=1).sort(dim=1).values
    repeated = torch.zeros_like(places, dtype=torch.bool)
    repeated[:, 1:] = places[:, 1:] == places[:, :-1]
    places = places.masked_fill(repeated, unused).sort(dim=1).values
    before, after = places[:, :-1], places[:, 1:]
    above = _common_ancestor(forest, before, after, unused)
    above = torch.cat([places[:, :1], torch.where(above <= before, above, after)], dim=1)
    return SmallTrees(places, torch.searchsorted(places, above.contiguous()), places < unused)


def _common_ancestor(forest: DepthFirstForest, low: Tensor, high: Tensor, unused: int) -> Int[Tensor, "sets pairs"]:
    """Return the lowest common ancestor, or a larger number than ``low`` if there is none."""
    known = forest.lowest_common_ancestor(low.clamp(max=unused - 1), high.clamp(max=unused - 1))
    return torch.where(high < unused, known, unused + 1)


def tree_log_probs(
    forest: DepthFirstForest,
    log_node: Float[Tensor, "*batch nodes classes"],
    conditionals: EdgeConditionals,
    nodes: Int[Tensor, "set sets"],
    labels: Int[Tensor, "set sets"],
    in_tree: Bool[Tensor, "set sets"],
) -> Float[Tensor, "*batch sets"]:
    """Return log P of the labels of the nodes that are ``in_tree``, in float64, and 0 for a set without such nodes.

    Parameters
    ----------
    forest
        Search of the graph.
    log_node
        Log-marginals of the nodes, up to a constant per row.
    conditionals
        Conditionals of the edges from parents to children.
    nodes
        Node sets (k, M).
    labels
        Their labels (k, M).
    in_tree
        Which of the nodes to use (k, M). Their components are trees.
    """
    if not bool(in_tree.any()):
        return log_node.new_zeros(*log_node.shape[:-2], nodes.shape[1], dtype=torch.float64)
    numbers, num_nodes = forest.number[nodes], len(forest.node)
    number, parent, is_used = small_trees(forest, numbers, in_tree)
    num_sets, num_places = number.shape
    label = torch.full_like(number, -1)  # of nodes that are not in the set
    place_of_member = torch.searchsorted(number, torch.where(in_tree, numbers, num_nodes).T.contiguous())
    # A node that is not used has place num_places or the place of an unused one. Its label does not matter.
    label.scatter_(1, place_of_member.clamp(max=num_places - 1), torch.where(in_tree, labels, -1).T)
    is_root = parent == torch.arange(num_places, device=nodes.device)
    top = number.gather(1, parent).masked_fill(is_root, num_nodes)
    tables, table_of = _tables(forest, log_node, conditionals, number[is_used], top[is_used])
    index = torch.zeros_like(number)
    index[is_used] = table_of
    classes = log_node.shape[-1]
    batch = log_node.shape[:-2]
    received = torch.zeros(*batch, num_sets, num_places, classes, dtype=torch.float64, device=nodes.device)
    log_probs = received.new_zeros(*batch, num_sets)
    every_label = torch.arange(classes, device=nodes.device)
    for place in reversed(range(num_places)):
        is_other = (label[:, place, None] >= 0) & (label[:, place, None] != every_label)
        own = received[..., place, :].masked_fill(is_other, IMPOSSIBLE)
        message = (tables[..., index[:, place], :, :] + own.unsqueeze(-2)).logsumexp(-1)
        message = message.masked_fill(~is_used[:, place, None], 0.0)
        log_probs = log_probs + message[..., 0].masked_fill(~is_root[:, place], 0.0)
        message = message.masked_fill(is_root[:, place, None], 0.0)
        target = parent[:, place, None, None].expand(*batch, num_sets, 1, classes)
        received.scatter_add_(-2, target, message.unsqueeze(-2))
    return log_probs.clamp(max=0.0).masked_fill(log_probs < IMPOSSIBLE / 2, -torch.inf)


def _tables(
    forest: DepthFirstForest,
    log_node: Float[Tensor, "*batch nodes classes"],
    conditionals: EdgeConditionals,
    bottom: Int[Tensor, " used"],
    top: Int[Tensor, " used"],
) -> tuple[Float[Tensor, "*batch tables classes classes"], Int[Tensor, " used"]]:
    """Return log P(y_bottom | y_top) of the different pairs of numbers, and the table of each pair.

    A root has ``top`` N. All rows of its table are its marginal.
    """
    num_nodes, classes = len(forest.node), log_node.shape[-1]
    pairs, table_of = (bottom * (num_nodes + 1) + top).unique(return_inverse=True)
    bottom, top = pairs // (num_nodes + 1), pairs % (num_nodes + 1)
    is_root = top == num_nodes
    tables = log_node.new_empty(*log_node.shape[:-2], len(pairs), classes, classes, dtype=torch.float64)
    marginal = log_node[..., forest.node[bottom[is_root]], :].double().log_softmax(-1).clamp(min=IMPOSSIBLE)
    tables[..., is_root, :, :] = marginal.unsqueeze(-2).expand(*marginal.shape[:-1], classes, classes)
    bottom, top = bottom[~is_root], top[~is_root]
    if len(bottom):
        length = forest.depth[bottom] - forest.depth[top]
        tables[..., ~is_root, :, :] = path_conditionals(
            forest, conditionals, bottom, length, math.prod(log_node.shape[:-2]) * classes**2
        )
    return tables, table_of


def path_conditionals(
    forest: DepthFirstForest,
    conditionals: EdgeConditionals,
    bottom: Int[Tensor, " paths"],
    length: Int[Tensor, " paths"],
    num_entries: int,
) -> Float[Tensor, "*batch paths classes classes"]:
    """Return log P(y_bottom | y_top), where the top is ``length`` >= 1 edges above the bottom.

    A path consists of pieces whose lengths are different powers of 2, the shortest at the bottom. The conditional of an
    edge has ``num_entries`` entries.
    """
    ancestors = forest.ancestors[: int(length.max()).bit_length()]
    pieces, current = [], bottom
    for level, ancestor in enumerate(ancestors):
        paths = ((length >> level) & 1).nonzero().squeeze(1)
        pieces.append((paths, current[paths]))
        current = current.index_copy(0, paths, ancestor[current[paths]])
    # A piece of length 2 n consists of the piece of length n at the same number, and the one above it.
    needed = [pieces[-1][1].unique()]
    for (_, numbers), ancestor in zip(reversed(pieces[:-1]), reversed(ancestors[:-1]), strict=True):
        needed.insert(0, torch.cat([numbers, needed[0], ancestor[needed[0]]]).unique())
    _check_memory(needed[0], num_entries)
    tables = conditionals(needed[0]).clamp(min=IMPOSSIBLE)
    result = tables.new_empty(*tables.shape[:-3], len(bottom), *tables.shape[-2:])
    has_result = torch.zeros_like(bottom, dtype=torch.bool)
    for level, (paths, numbers) in enumerate(pieces):
        piece, is_later = tables[..., torch.searchsorted(needed[level], numbers), :, :], has_result[paths]
        first, later = paths[~is_later], paths[is_later]
        longer = log_matmul(piece[..., is_later, :, :], result[..., later, :, :])
        result = result.index_copy(-3, later, longer).index_copy(-3, first, piece[..., ~is_later, :, :])
        has_result[paths] = True
        if level + 1 < len(pieces):
            lower = torch.searchsorted(needed[level], needed[level + 1])
            upper = torch.searchsorted(needed[level], ancestors[level][needed[level + 1]])
            tables = log_matmul(tables[..., upper, :, :], tables[..., lower, :, :])
    return result


def _check_memory(edges: Int[Tensor, " edges"], num_entries: int) -> None:
    """Raise ValueError if the conditionals of the edges on all paths take too much memory."""
    if len(edges) * num_entries > MAX_PATH_ENTRIES:
        raise ValueError(
            f"Expected sets whose nodes are connected by at most {MAX_PATH_ENTRIES // num_entries:,} edges in total, "
            f"but got {len(edges):,} edges: their conditionals take too much memory. Pass fewer sets at a time, or "
            "nodes that are closer to each other."
        )


def log_matmul(
    left: Float[Tensor, "*batch n classes classes"], right: Float[Tensor, "*batch n classes classes"]
) -> Float[Tensor, "*batch n classes classes"]:
    """Return log(exp(left) @ exp(right)) without underflow, in chunks: the terms take C times the memory."""
    step = max(1, CHUNK_ELEMENTS * left.shape[-3] // max(1, left.numel() * left.shape[-1]))
    parts = zip(left.split(step, dim=-3), right.split(step, dim=-3), strict=True)
    return torch.cat([(a.unsqueeze(-1) + b.unsqueeze(-3)).logsumexp(-2) for a, b in parts], dim=-3)
