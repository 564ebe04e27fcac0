"""Which edges are scored: each undirected edge once, no self-loops, chosen by a mask of nodes."""

from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.compiled import worth_compiling
from edgewise.data.pairs import pair_keys

EdgeChoice = Literal["both", "any", "all"]


def scored_edges(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], choice: EdgeChoice = "both"
) -> Bool[Tensor, " edges"]:
    """Tell for each listed edge whether it is scored.

    An edge qualifies when it is no self-loop and ``"both"`` its ends lie in the mask, or ``"any"`` of them does;
    ``"all"`` edges qualify whatever the mask says. Of a pair listed f times as (i, j) and b times as (j, i), max(f, b)
    edges are scored: an undirected graph with both directions listed counts each edge once, parallel edges count as
    often as they are there.

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]])
    >>> scored_edges(edge_index, torch.tensor([True, True, True])).tolist()
    [True, False, True, False]
    """
    if worth_compiling(edge_index):
        from edgewise.data.long_edge_list import scored_edges_of_long_list

        return scored_edges_of_long_list(edge_index, mask, choice)
    qualifies = ends_qualify(edge_index, mask, choice)
    positions = qualifies.nonzero().squeeze(1)
    qualifies[positions[~listed_once(edge_index[:, positions], mask.shape[0])]] = False
    return qualifies


def ends_qualify(
    edge_index: Int[Tensor, "2 edges"], mask: Bool[Tensor, " nodes"], choice: EdgeChoice
) -> Bool[Tensor, " edges"]:
    """Tell for each listed edge whether its ends differ and satisfy the choice."""
    start, end = edge_index.long()
    no_loop: Tensor = start != end
    if choice == "both":
        return no_loop.logical_and(mask[start]).logical_and(mask[end])
    if choice == "any":
        return no_loop.logical_and(mask[start] | mask[end])
    return no_loop


def listed_once(edge_index: Int[Tensor, "2 edges"], num_nodes: int) -> Bool[Tensor, " edges"]:
    """Choose one direction of every pair of nodes, the one that is listed more often; (low, high) when equal."""
    start, end = edge_index.long()
    forward: Tensor = start < end
    if bool(forward.all()) or not bool(forward.any()):
        return torch.ones_like(forward)
    _, index = pair_keys(edge_index, num_nodes).unique(return_inverse=True)
    # Forward minus backward mentions of each pair: integers, so the order of addition does not matter.
    surplus = torch.zeros(int(index.max()) + 1, dtype=torch.long, device=index.device)
    surplus.index_add_(0, index, torch.where(forward, 1, -1))
    mostly_forward: Tensor = surplus[index] >= 0
    return torch.eq(forward, mostly_forward)
