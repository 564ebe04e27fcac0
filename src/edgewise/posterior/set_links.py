"""How the nodes of a set depend on each other: along edges inside the set, or along paths outside of it."""

from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.edges import EdgeMatch
from edgewise.posterior.set_elimination import Pair


class SetLinks:
    """Edges inside node sets of one size, and the parts that they connect.

    Parameters
    ----------
    nodes
        Node sets (k, M).
    matches
        The edges between each two places of the sets.
    certain
        Which nodes (k, M) have a single possible label. They are independent of all others.
    component
        Connected component (k, M) of each node, in the graph without certain nodes.
    """

    def __init__(
        self,
        nodes: Int[Tensor, "set sets"],
        matches: dict[Pair, EdgeMatch],
        certain: Bool[Tensor, "set sets"],
        component: Int[Tensor, "set sets"],
    ):
        self._nodes, self._matches = nodes, matches
        self._certain, self._component = certain, component

    @cached_property
    def is_connected(self) -> Bool[Tensor, " sets"]:
        """Whether the edges inside a set connect all its nodes."""
        return self._reachable({pair: edge >= 0 for pair, (edge, _) in self._matches.items()}).flatten(1).all(1)

    @cached_property
    def outside_only(self) -> Bool[Tensor, "sets set set"]:
        """The pairs of nodes that depend on each other, but only along paths that leave the set."""
        certain, component = self._certain.T, self._component.T
        matches = self._matches.items()
        links = {(a, b): (edge >= 0) & ~certain[:, a] & ~certain[:, b] for (a, b), (edge, _) in matches}
        depends = (component[:, :, None] == component[:, None, :]) & ~certain[:, :, None] & ~certain[:, None, :]
        return depends & ~self._reachable(links)

    def _reachable(self, links: dict[Pair, Bool[Tensor, " sets"]]) -> Bool[Tensor, "sets set set"]:
        """Return which nodes of a set are connected by links within the set (Warshall's algorithm)."""
        size, num_sets = self._nodes.shape
        reachable = torch.eye(size, dtype=torch.bool, device=self._nodes.device).repeat(num_sets, 1, 1)
        for (a, b), linked in links.items():
            reachable[:, a, b] = reachable[:, b, a] = linked
        for through in range(size):
            reachable |= reachable[:, :, through, None] & reachable[:, None, through, :]
        return reachable

    def check_known(self, in_tree: Bool[Tensor, "set sets"], advice: str) -> None:
        """Raise ValueError for sets with nodes that depend on each other outside the set, unless they are in a tree."""
        unknown = (self.outside_only & ~in_tree.T[:, :, None]).flatten(1).any(1)
        if not bool(unknown.any()):
            return
        s = int(unknown.nonzero()[0])
        nodes = self._nodes[:, s].tolist()
        if bool(self.is_connected[s]):
            raise ValueError(
                f"Expected nodes connected by edges, but the nodes {nodes} are connected only through a node whose "
                "label is certain, and depend on each other along other paths. Add the nodes between them to the set."
            )
        problem = (
            f"the pair {tuple(nodes)} is not an edge" if len(nodes) == 2 else f"no edges connect the nodes {nodes}"
        )
        raise ValueError(f"Expected nodes connected by edges, but {problem}. {advice}")
