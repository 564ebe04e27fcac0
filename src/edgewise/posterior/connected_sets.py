"""Which sets of nodes a pairwise field can join: those that hang together by its edges."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.pairs import Found


def check_connected(nodes: Int[Tensor, "set sets"], found: dict[tuple[int, int], Found]) -> None:
    """Refuse sets that do not hang together: a field says nothing about how far parts depend on each other."""
    apart = ~_connections(nodes, {pair: edge >= 0 for pair, (edge, _) in found.items()}).flatten(1).all(1)
    if bool(apart.any()):
        lonely = nodes[:, int(apart.nonzero()[0])].tolist()
        what = f"the pair {tuple(lonely)} is no edge" if len(nodes) == 2 else f"no edges connect the nodes {lonely}"
        raise ValueError(
            f"Expected nodes that the field's edges connect, but {what}. A pairwise field knows the joints of its "
            "edges and of connected sets; a mixture or independent nodes know any."
        )


def check_joined(
    nodes: Int[Tensor, "set sets"],
    found: dict[tuple[int, int], Found],
    decided: Bool[Tensor, "set sets"],
    part: Int[Tensor, "set sets"],
) -> None:
    """Refuse sets that hang together only through a node whose label is certain, but depend on each other elsewhere."""
    links = {(a, b): (edge >= 0) & ~decided[a] & ~decided[b] for (a, b), (edge, _) in found.items()}
    certain, parts = decided.T, part.T
    independent = certain[:, :, None] | certain[:, None, :] | (parts[:, :, None] != parts[:, None, :])
    unknown = ~(_connections(nodes, links) | independent).flatten(1).all(1)
    if bool(unknown.any()):
        lonely = nodes[:, int(unknown.nonzero()[0])].tolist()
        raise ValueError(
            f"Expected nodes that edges connect, but the nodes {lonely} are connected only through one whose "
            "label is certain, and depend on each other along other ways. Add the nodes between them to the set."
        )


def _connections(
    nodes: Int[Tensor, "set sets"], links: dict[tuple[int, int], Bool[Tensor, " sets"]]
) -> Bool[Tensor, "sets set set"]:
    """Tell which nodes of a set are connected by links between nodes of the set (Warshall)."""
    size, num_sets = nodes.shape
    reached = torch.eye(size, dtype=torch.bool, device=nodes.device).repeat(num_sets, 1, 1)
    for (a, b), linked in links.items():
        reached[:, a, b] = reached[:, b, a] = linked
    for through in range(size):
        reached |= reached[:, :, through, None] & reached[:, None, through, :]
    return reached
