"""Posterior of a pairwise Markov random field: beliefs of nodes and edges from belief propagation."""

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, as_edges
from edgewise.data.edges import EdgeLookup, EdgeMatch, check_unique_edges, connected_components, forms_forest
from edgewise.posterior.belief import (
    CHUNK_ELEMENTS,
    ClampingCost,
    Convergence,
    Posterior,
    Sample,
    check_node_shape,
    check_not_batch,
)
from edgewise.posterior.set_elimination import Pair, elimination_scopes, log_partition
from edgewise.validation import ArrayLike, check_distributions, dense_tensor

MARGINAL_TOLERANCE = 1e-3
MAX_TABLE_ENTRIES = 1 << 24  # of elimination inside a set: 128 MiB


class PairwisePosterior(Posterior):
    """Node beliefs b_i, log-messages μ along edges and edge couplings T (log-potentials) of a pairwise MRF.

    The joint of an edge (i, j) is b_ij(l, m) ∝ exp(log b_i(l) - μ_{j→i}(l) + T(l, m) + log b_j(m) - μ_{i→j}(m)): the
    log-belief of each end without the message from the other end, plus the coupling. With one coupling for all edges
    this takes memory (E, C) instead of (E, C, C). Joints of larger connected sets are computed in the same way. They
    are exact on a tree. Otherwise cycles within the set are included exactly, so that the marginals of the set may
    differ from ``node``, and paths outside the set are ignored.

    `sum_product` returns this posterior. To build one from given marginals and joints, use `from_joints`.

    The joint of a pair (i, j) that is not an edge is computed by ``joint(pairs, clamp=True)``: one end is clamped to
    each of its labels, and belief propagation on the field gives P(y_i = l) P(y_j = m | y_i = l). Rows and columns are
    then scaled to the marginals of both nodes. This is exact on a forest, and an approximation otherwise, which can
    depend on the end that is clamped. The field is U_i = log b_i - Σ_j μ_{j→i} with the couplings T. If a solver
    computed the posterior, this is its field. Otherwise the posterior is a fixed point of sum-product on this field,
    and its exact marginals on a forest. There are no gradients. `clamping_cost` estimates the time, and a
    `SlowClampingWarning` states it before it is spent if it is above 10 seconds.

    Parameters
    ----------
    log_node
        log b (N, C), up to a constant per row, -inf for impossible labels. With a batch, all arguments but
        ``edge_index`` have the batch dimensions first.
    edge_index
        Edges (2, E), each undirected edge once.
    messages
        μ (2, E, C): messages into the start and into the end of each edge.
    pairwise
        T, (1, C, C) shared by all edges, or (E, C, C) oriented as ``edge_index``.
    edge_scale
        Factor (E,) of the coupling of each edge, 1 by default.
    edge_weight
        Weight ρ (E,) of each edge in `tree_reweighted`, whose couplings are T / ρ and whose log-beliefs are
        U_i + Σ_j ρ_ij μ_{j→i}. Default: 1.
    convergence
        Convergence of the solver that computed the beliefs, if any.

    Examples
    --------
    >>> node, edge = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0], [1]])
    >>> posterior = PairwisePosterior.from_joints(node, edge, torch.tensor([[[0.4, 0.1], [0.1, 0.4]]]))
    >>> posterior
    PairwisePosterior(nodes=2, classes=2, edges=1)
    >>> posterior.joint(edge)
    tensor([[[0.4000, 0.1000],
             [0.1000, 0.4000]]])
    """

    def __init__(
        self,
        log_node: ArrayLike,
        edge_index: EdgesLike,
        messages: ArrayLike,
        pairwise: ArrayLike,
        edge_scale: ArrayLike | None = None,
        *,
        edge_weight: ArrayLike | None = None,
        convergence: Convergence | None = None,
    ):
        super().__init__(convergence)
        self._log_node = dense_tensor(log_node, "log_node")
        check_node_shape(self._log_node, "log_node")
        *batch, nodes, classes = self._log_node.shape
        self._edge_index = as_edges(edge_index, nodes, self._log_node.device).long()
        edges = self._edge_index.shape[1]
        self._messages, self._pairwise = dense_tensor(messages, "messages"), dense_tensor(pairwise, "pairwise")
        _check_shape("messages", self._messages, (*batch, 2, edges, classes))
        if self._pairwise.shape != (*batch, 1, classes, classes):
            _check_shape("pairwise", self._pairwise, (*batch, edges, classes, classes))
        self._edge_scale, self._edge_weight = (
            None if factor is None else dense_tensor(factor, name)
            for name, factor in (("edge_scale", edge_scale), ("edge_weight", edge_weight))
        )
        factors = {"edge_scale": self._edge_scale, "edge_weight": self._edge_weight}
        self._factors = {name: factor for name, factor in factors.items() if factor is not None}
        for name, factor in self._factors.items():
            _check_shape(name, factor, (*batch, edges))
        finite = [self.node.sum(-1), self._messages, *self._factors.values()]
        if not (all(_is_finite(tensor) for tensor in finite) and _is_below_infinity(self._pairwise)):
            raise ValueError(
                "Expected finite messages and at least one possible label for each node, but got NaN or infinity."
            )

    @classmethod
    def from_joints(cls, node: ArrayLike, edge_index: EdgesLike, joints: ArrayLike) -> "PairwisePosterior":
        """Build the posterior from given marginals and edge joints.

        The joint of more than two nodes is then Π_edges b_ij Π_nodes b_i^(1 - degree), normalized.

        Parameters
        ----------
        node
            Marginals (N, C).
        edge_index
            Edges (2, E), each undirected edge once.
        joints
            Joints (E, C, C), oriented as ``edge_index``, whose marginals equal those of their ends.
        """
        marginals, pairs = dense_tensor(node, "node"), dense_tensor(joints, "joints")
        check_node_shape(marginals, "node")
        check_distributions(marginals.flatten(0, -2), "node", "row")
        edges = as_edges(edge_index, marginals.shape[-2]).long()
        *batch, _, classes = marginals.shape
        _check_shape("joints", pairs, (*batch, edges.shape[1], classes, classes))
        check_distributions(pairs.flatten(0, -3), "joints", "edge")
        check_unique_edges(edges, marginals.shape[-2])
        _check_marginals(marginals.detach(), edges, pairs.detach())
        # Labels that are impossible for a node have probability 0 in its joints too. The messages need only be finite.
        log_node = marginals.clamp(min=torch.finfo(marginals.dtype).tiny).log()
        return cls(marginals.log(), edges, log_node[..., edges, :], pairs.log())

    @cached_property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""
        return self._log_node.softmax(-1).to(self._messages.dtype)

    @property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """Edges of the Markov random field, each undirected edge once."""
        return self._edge_index

    @property
    def has_field(self) -> bool:
        """Whether a solver computed the posterior, so that its beliefs and messages determine the solver's field."""
        if self.convergence is None:
            return False
        return self.convergence.method != "tree-reweighted" or self._edge_weight is not None

    @property
    def messages(self) -> Float[Tensor, "*batch 2 edges classes"]:
        """Messages into the start and into the end of each edge."""
        return self._messages

    def _extra_repr(self) -> str:
        return f", edges={self._edge_index.shape[1]}"

    def tensors(self) -> dict[str, Tensor]:
        """Return log-beliefs, edges, messages, couplings and their factors."""
        tensors = {"log_node": self._log_node, "edge_index": self._edge_index, "messages": self._messages}
        return {**tensors, "pairwise": self._pairwise, **self._factors}

    def _select(self, index: int) -> Posterior:
        selected = {name: tensor[index] for name, tensor in self.tensors().items() if name != "edge_index"}
        return self._rebuild(edge_index=self._edge_index, **selected)

    @property
    def _num_copies(self) -> int:
        return 4  # sums are computed in float64

    @cached_property
    def _lookup(self) -> EdgeLookup:
        return EdgeLookup(self._edge_index, self.num_nodes)

    @cached_property
    def certain(self) -> Bool[Tensor, " nodes"]:
        """Nodes with a single possible label, in any posterior of a batch."""
        certain: Tensor = (self._log_node.detach() > -torch.inf).sum(-1) == 1
        return certain.flatten(0, -2).any(0) if self.batch_shape else certain

    @cached_property
    def component(self) -> Int[Tensor, " nodes"]:
        """Connected component of each node, in the graph without the edges of certain nodes."""
        return connected_components(self._edge_index[:, ~self.certain[self._edge_index].any(0)], self.num_nodes)

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        """Return softmax of Σ_i (b_i - messages from other nodes of the set) + Σ couplings within the set."""
        size = len(nodes)
        matches = self._find_edges(nodes)
        check_connected(nodes, matches)
        if size > 2 and bool(self.certain[nodes].any()):
            check_connected_without_certain(nodes, matches, self.certain[nodes], self.component[nodes])
        unaries, couplings = self._set_potentials(nodes, matches)
        total = torch.zeros((), dtype=torch.float64, device=nodes.device)
        for a, unary in enumerate(unaries):
            total = total + unary.reshape(*unary.shape[:-1], *(self.num_classes if k == a else 1 for k in range(size)))
        for (a, b), coupling in couplings.items():
            shape = (self.num_classes if k in (a, b) else 1 for k in range(size))
            total = total + coupling.reshape(*coupling.shape[:-2], *shape)
        log_joint = total.flatten(-size)
        return _clamp_underflow(log_joint.softmax(-1).to(self._messages.dtype), log_joint)

    def _find_edges(self, nodes: Int[Tensor, "set sets"]) -> dict[Pair, EdgeMatch]:
        """Return the edges between each two places of the sets."""
        return {pair: self._lookup.find(nodes[list(pair)]) for pair in combinations(range(len(nodes)), 2)}

    def _set_potentials(
        self, nodes: Int[Tensor, "set sets"], matches: dict[Pair, EdgeMatch]
    ) -> tuple[list[Float[Tensor, "*b sets c"]], dict[Pair, Float[Tensor, "*b couplings c c"]]]:
        """Return the log-belief of each node without messages from the set, up to a constant, and the couplings."""
        unaries = [self._log_node[..., node, :].double() for node in nodes]
        couplings = {}
        for (a, b), (edge, backward) in matches.items():
            into_a, into_b, couplings[a, b] = self._messages_and_coupling(edge, backward)
            unaries[a], unaries[b] = unaries[a] - into_a, unaries[b] - into_b
        return [unary - unary.amax(-1, keepdim=True) for unary in unaries], couplings

    @property
    def _num_numbers(self) -> int:
        return 4 * self.num_classes

    def _log_probs(self, nodes: Int[Tensor, "set sets"], labels: Int[Tensor, "set sets"]) -> Float[Tensor, "*b sets"]:
        """Return log-probabilities as in `_joints`. Parts of a set that its edges do not connect are independent.

        Sets with edges between the same places are computed together.
        """
        matches = self._find_edges(nodes)
        no_edge = torch.zeros_like(nodes[0], dtype=torch.bool)
        is_edge = torch.stack([no_edge, *(edge >= 0 for edge, _ in matches.values())])
        patterns, pattern_of_set, counts = is_edge.unique(dim=1, return_inverse=True, return_counts=True)
        log_probs = torch.empty(*self.batch_shape, nodes.shape[1], dtype=torch.float64, device=nodes.device)
        for pattern, sets in zip(patterns.T, pattern_of_set.argsort().split(counts.tolist()), strict=True):
            links = [pair for pair, linked in zip(matches, pattern[1:].tolist(), strict=True) if linked]
            scopes = elimination_scopes(len(nodes), links)
            entries = self.num_classes ** max(map(len, scopes))
            _check_entries(entries, nodes[:, sets])
            for part in sets.split(max(1, CHUNK_ELEMENTS // (entries * max(1, math.prod(self.batch_shape))))):
                edges = {pair: EdgeMatch(*(column[part] for column in matches[pair])) for pair in links}
                log_probs[..., part] = self._log_probs_of(nodes[:, part], labels[:, part], edges, scopes)
        return log_probs

    def _log_probs_of(
        self,
        nodes: Int[Tensor, "set sets"],
        labels: Int[Tensor, "set sets"],
        edges: dict[Pair, EdgeMatch],
        scopes: list[tuple[int, ...]],
    ) -> Float[Tensor, "*b sets"]:
        """Return the log-potentials of the labels, normalized, of sets with edges between the same places."""
        unaries, couplings = self._set_potentials(nodes, edges)
        score = -log_partition(unaries, couplings, scopes)
        for unary, row in zip(unaries, labels, strict=True):
            score = score + unary.gather(-1, row.expand(unary.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        each = torch.arange(nodes.shape[1], device=nodes.device)
        for (a, b), coupling in couplings.items():
            entries = coupling.expand(*coupling.shape[:-3], len(each), -1, -1)
            score = score + entries[..., each, labels[a], labels[b]]
        return score.clamp(max=0.0)

    def _describe_sets(self, nodes: Int[Tensor, "set sets"]) -> str:
        if len(nodes) == 1:
            return "marginals"
        unknown = connected_outside_only(nodes, self._find_edges(nodes), self.certain[nodes], self.component[nodes])
        number = int(unknown.sum())
        if number:
            parts = f"{number:,} of {nodes.shape[1]:,} sets have parts that these do not connect, taken as independent"
            return f"edges inside the set only; {parts}"
        between_uncertain = self._edge_index[:, ~self.certain[self._edge_index].any(0)]
        is_forest = forms_forest(between_uncertain, self.num_nodes)
        return "edges inside the set, exact on a forest" if is_forest else "edges inside the set only"

    def _sample(self, number: int, rng: np.random.Generator) -> Sample:
        from edgewise.inference.field_samples import sample_pairwise

        return sample_pairwise(self, number, rng)

    def _clamping_cost(self, pairs: Int[Tensor, "2 pairs"]) -> ClampingCost:
        from edgewise.inference.clamping import estimate_cost

        check_not_batch(self)
        return estimate_cost(self, pairs[:, self._lookup.find(pairs).edge < 0])

    def _clamped_joints(self, pairs: Int[Tensor, "2 pairs"]) -> Float[Tensor, "pairs classes classes"]:
        check_not_batch(self)
        is_edge = self._lookup.find(pairs).edge >= 0
        rest = (~is_edge).nonzero().squeeze(1)
        joints = self.node.detach().new_empty(pairs.shape[1], self.num_classes, self.num_classes)
        with torch.no_grad():
            joints[is_edge] = self._compute_joints(pairs[:, is_edge])
            for places, chunk in self.clamped_joints(pairs[:, rest]):
                joints[rest[places]] = chunk
        return joints

    def clamped_joints(self, pairs: Int[Tensor, "2 pairs"]) -> Iterator[tuple[Tensor, Tensor]]:
        """Compute joints of pairs that are not edges, by clamping.

        Yield chunks as the positions of some pairs and their joints (some, C, C), in the order of the clamped nodes.
        Before the first one, warn if this takes long.
        """
        from edgewise.inference.clamping import iterate_joints

        check_not_batch(self)
        return iterate_joints(self, pairs)

    def _messages_and_coupling(
        self, edge: Int[Tensor, " sets"], backward: Bool[Tensor, " sets"]
    ) -> tuple[Float[Tensor, "*b sets c"], Float[Tensor, "*b sets c"], Float[Tensor, "*b couplings c c"]]:
        """Return the messages into both nodes of each pair and their coupling, zero if they share no edge."""
        no_edge = edge < 0
        if self._edge_index.shape[1] == 0:
            zero = self._log_node.new_zeros(*self.batch_shape, len(edge), self.num_classes, dtype=torch.float64)
            return zero, zero, zero.new_zeros(1, self.num_classes, self.num_classes)
        direction = backward.long()
        into_a, into_b = self._messages[..., direction, edge, :], self._messages[..., 1 - direction, edge, :]
        coupling = self._pairwise if self._pairwise.shape[-3] == 1 else self._pairwise[..., edge, :, :]
        transposed = coupling.transpose(-1, -2)
        if not torch.equal(coupling, transposed):
            coupling = torch.where(backward[:, None, None], transposed, coupling)
        coupling = coupling.double()
        if self._edge_scale is not None:
            coupling = coupling * self._edge_scale[..., edge, None, None].double()
        if bool(no_edge.any()):
            into_a, into_b = (message.masked_fill(no_edge[:, None], 0.0) for message in (into_a, into_b))
            coupling = torch.where(no_edge[:, None, None], 0.0, coupling)
        return into_a, into_b, coupling


def _clamp_underflow(p: Float[Tensor, "*b sets entries"], log_p: Tensor) -> Float[Tensor, "*b sets entries"]:
    """Replace underflow by the smallest normal number, so that only impossible entries (log_p = -inf) are 0."""
    zero = p == 0
    if not bool(zero.any()):
        return p
    return torch.where(zero & (log_p > -torch.inf), torch.finfo(p.dtype).tiny, p)


def _check_marginals(node: Tensor, edge_index: Tensor, joints: Tensor) -> None:
    """Raise ValueError if joints do not sum to the marginals of their ends."""
    for side, (end, summed) in enumerate((("start", joints.sum(-1)), ("end", joints.sum(-2)))):
        gap = (summed - node[..., edge_index[side], :]).abs().amax(-1)
        if bool((gap > MARGINAL_TOLERANCE).any()):
            position = tuple((gap > MARGINAL_TOLERANCE).nonzero()[0].tolist())
            e = position[-1]
            raise ValueError(
                f"Expected joints that sum to the marginals of their ends, but edge {e} is {float(gap[position]):.2g} "
                f"off at its {end}, node {int(edge_index[side, e])}. To score inconsistent joints, pass edge_probs."
            )


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all entries are finite, without a mask of the size of the tensor."""
    return tensor.numel() == 0 or all(bool(end.isfinite()) for end in tensor.detach().aminmax())


def _is_below_infinity(tensor: Tensor) -> bool:
    return tensor.numel() == 0 or bool(tensor.detach().max() < torch.inf)  # the maximum is NaN if an entry is


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise ValueError(f"Expected {name} of shape {expected}, but got shape {tuple(tensor.shape)}.")


def check_connected(nodes: Int[Tensor, "set sets"], matches: dict[Pair, EdgeMatch]) -> None:
    """Raise ValueError for sets that edges do not connect: the dependence between their components is unknown."""
    disconnected = ~_reachable(nodes, {pair: edge >= 0 for pair, (edge, _) in matches.items()}).flatten(1).all(1)
    if bool(disconnected.any()):
        s = nodes[:, int(disconnected.nonzero()[0])].tolist()
        problem = f"the pair {tuple(s)} is not an edge" if len(nodes) == 2 else f"no edges connect the nodes {s}"
        raise ValueError(
            f"Expected nodes connected by edges, but {problem}. A pairwise posterior has joints of its edges and of "
            "connected sets only. For other pairs use posterior.joint(pairs, clamp=True), for other sets an "
            "IndependentPosterior or a MixturePosterior."
        )


def check_connected_without_certain(
    nodes: Int[Tensor, "set sets"],
    matches: dict[Pair, EdgeMatch],
    certain: Bool[Tensor, "set sets"],
    component: Int[Tensor, "set sets"],
) -> None:
    """Raise ValueError for sets connected only through a certain node whose parts depend on each other elsewhere."""
    unknown = connected_outside_only(nodes, matches, certain, component)
    if bool(unknown.any()):
        s = nodes[:, int(unknown.nonzero()[0])].tolist()
        raise ValueError(
            f"Expected nodes connected by edges, but the nodes {s} are connected only through a node whose label is "
            "certain, and depend on each other along other paths. Add the nodes between them to the set."
        )


def connected_outside_only(
    nodes: Int[Tensor, "set sets"],
    matches: dict[Pair, EdgeMatch],
    certain: Bool[Tensor, "set sets"],
    component: Int[Tensor, "set sets"],
) -> Bool[Tensor, " sets"]:
    """Return which sets have parts that depend on each other, but only along paths outside the set."""
    links = {(a, b): (edge >= 0) & ~certain[a] & ~certain[b] for (a, b), (edge, _) in matches.items()}
    fixed, components = certain.T, component.T
    independent = fixed[:, :, None] | fixed[:, None, :] | (components[:, :, None] != components[:, None, :])
    return ~(_reachable(nodes, links) | independent).flatten(1).all(1)


def _check_entries(entries: int, sets: Int[Tensor, "set sets"]) -> None:
    """Raise ValueError if elimination in sets with the same edges needs too large a table."""
    if entries > MAX_TABLE_ENTRIES:
        shown = sets[:, 0].tolist()
        raise ValueError(
            f"Expected sets whose elimination takes a table of at most {MAX_TABLE_ENTRIES} entries, but the edges "
            f"between the nodes {str(shown[:6])[1:-1]}{', …' if len(shown) > 6 else ''} need {entries:.2g}. Pass "
            "smaller sets, or sets with fewer edges between their nodes."
        )


def _reachable(
    nodes: Int[Tensor, "set sets"], links: dict[Pair, Bool[Tensor, " sets"]]
) -> Bool[Tensor, "sets set set"]:
    """Return which nodes of a set are connected by links within the set (Warshall's algorithm)."""
    size, num_sets = nodes.shape
    reachable = torch.eye(size, dtype=torch.bool, device=nodes.device).repeat(num_sets, 1, 1)
    for (a, b), linked in links.items():
        reachable[:, a, b] = reachable[:, b, a] = linked
    for through in range(size):
        reachable |= reachable[:, :, through, None] & reachable[:, None, through, :]
    return reachable
