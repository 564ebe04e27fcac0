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
from edgewise.data.depth_first import DepthFirstForest
from edgewise.data.edges import EdgeLookup, EdgeMatch, check_unique_edges, connected_components
from edgewise.posterior.belief import CHUNK_ELEMENTS, Posterior, check_node_shape, check_not_batch
from edgewise.posterior.diagnostics import ClampingCost, Convergence, Sample
from edgewise.posterior.set_elimination import Pair, check_entries, elimination_scopes, log_partition
from edgewise.posterior.set_links import SetLinks
from edgewise.posterior.tree_joints import IMPOSSIBLE, tree_log_probs
from edgewise.validation import ArrayLike, check_distributions, dense_tensor

MARGINAL_TOLERANCE = 1e-3
CHUNK_PAIRS = 1 << 26  # of nodes in sets that are described at once


class PairwisePosterior(Posterior):
    """Node beliefs b_i, log-messages μ along edges and edge couplings T (log-potentials) of a pairwise MRF.

    The joint of an edge (i, j) is b_ij(l, m) ∝ exp(log b_i(l) - μ_{j→i}(l) + T(l, m) + log b_j(m) - μ_{i→j}(m)): the
    log-belief of each end without the message from the other end, plus the coupling. With one coupling for all edges
    this takes memory (E, C) instead of (E, C, C).

    Joints of other sets depend on the graph without the edges of nodes whose label is certain:

    - In a component without loops, the joints of edges determine the distribution of all nodes, which is
      Π_edges b_ij Π_nodes b_i^(1 - degree). Joints of any nodes are computed from it, along the paths between them. If
      a solver computed the posterior and converged, they are exact. The max-marginals of `max_product`, and beliefs
      that have not converged, have no such distribution.
    - In a component with loops, sets connected by edges have joints like those of edges. Cycles within the set are
      included exactly, so that the marginals of the set may differ from ``node``. Paths outside the set are ignored.
      `marginal` raises ValueError for other sets. `log_prob` takes parts without an edge between them as independent.
    - Nodes of different components are independent.

    `sum_product` returns this posterior. To build one from given marginals and joints, use `from_joints`.

    With loops, ``joint(pairs, clamp=True)`` approximates the joint of a pair (i, j) that is not an edge: one end is
    clamped to each of its labels, and belief propagation on the field gives P(y_i = l) P(y_j = m | y_i = l). Rows and
    columns are then scaled to the marginals of both nodes. The result can depend on the end that is clamped. The field
    is U_i = log b_i - Σ_j μ_{j→i} with the couplings T. If a solver computed the posterior, this is its field.
    Otherwise the posterior is a fixed point of sum-product on this field, and its exact marginals on a forest. There
    are no gradients. `clamping_cost` estimates the time, and a `SlowClampingWarning` states it before it is spent if
    it is above 10 seconds.

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

        The joint of more than two nodes is then Π_edges b_ij Π_nodes b_i^(1 - degree), normalized. In a component
        without loops this product over all nodes is a distribution with these joints, and joints of any nodes are its
        marginals. In a component with loops the product is over the nodes of the set and the edges between them.

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
        """Nodes with a single possible label, in all posteriors of a batch."""
        certain: Tensor = (self._log_node.detach() > -torch.inf).sum(-1) == 1
        return certain.flatten(0, -2).all(0) if self.batch_shape else certain

    @cached_property
    def component(self) -> Int[Tensor, " nodes"]:
        """Connected component of each node, in the graph without the edges of certain nodes."""
        return connected_components(self._edges_between_uncertain, self.num_nodes)

    @property
    def _edges_between_uncertain(self) -> Int[Tensor, "2 edges"]:
        return self._edge_index[:, ~self.certain[self._edge_index].any(0)]

    @property
    def has_marginals(self) -> bool:
        """Whether the joints of edges have the node marginals. Max-marginals and unconverged ones do not."""
        return self.convergence is None or (self.convergence.converged and not self._is_max_product)

    @property
    def _is_max_product(self) -> bool:
        return self.convergence is not None and self.convergence.method == "max-product"

    @cached_property
    def _search(self) -> DepthFirstForest:
        return DepthFirstForest(self._edges_between_uncertain, self.num_nodes)

    @cached_property
    def _in_tree(self) -> Bool[Tensor, " nodes"]:
        """The nodes whose joints are those of a tree: they are not certain, and their component has no cycle."""
        return self._search.in_tree & ~self.certain if self.has_marginals else torch.zeros_like(self.certain)

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        matches = self._find_edges(nodes)
        if len(nodes) == 1 or (len(nodes) == 2 and bool((matches[0, 1].edge >= 0).all())):
            return self._joints_inside(nodes, matches)
        links = SetLinks(nodes, matches, self.certain[nodes], self.component[nodes])
        is_direct = links.is_connected
        if bool(self.certain[nodes].any()):
            is_direct = is_direct & ~links.outside_only.flatten(1).any(1)
        if bool(is_direct.all()):
            return self._joints_inside(nodes, matches)
        links.check_known(self._in_tree[nodes], self._advice_for_sets)
        inside = {pair: EdgeMatch(*(column[is_direct] for column in match)) for pair, match in matches.items()}
        joints = torch.empty(
            *self.batch_shape,
            nodes.shape[1],
            self.num_classes ** len(nodes),
            dtype=self._messages.dtype,
            device=nodes.device,
        )
        joints[..., is_direct, :] = self._joints_inside(nodes[:, is_direct], inside)
        joints[..., ~is_direct, :] = self._joints_of_parts(nodes[:, ~is_direct])
        return joints

    @property
    def _advice_for_sets(self) -> str:
        limit = "On a graph with loops, a pairwise posterior"
        if not self.has_marginals:
            limit = f"A pairwise posterior with {self._why_not_marginals}"
        limit += " has joints of its edges and of connected sets only."
        if self._is_max_product:
            return f"{limit} Use sum_product or infer."
        return (
            f"{limit} For other pairs use posterior.joint(pairs, clamp=True), for other sets exact_marginals, an "
            "IndependentPosterior or a MixturePosterior."
        )

    def _joints_inside(
        self, nodes: Int[Tensor, "set sets"], matches: dict[Pair, EdgeMatch]
    ) -> Float[Tensor, "*batch sets entries"]:
        """Return softmax of Σ_i (b_i - messages from other nodes of the set) + Σ couplings within the set."""
        size = len(nodes)
        unaries, couplings = self._set_potentials(nodes, matches)
        total = torch.zeros((), dtype=torch.float64, device=nodes.device)
        for a, unary in enumerate(unaries):
            total = total + unary.reshape(*unary.shape[:-1], *(self.num_classes if k == a else 1 for k in range(size)))
        for (a, b), coupling in couplings.items():
            shape = (self.num_classes if k in (a, b) else 1 for k in range(size))
            total = total + coupling.reshape(*coupling.shape[:-2], *shape)
        log_joint = total.flatten(-size)
        return _clamp_underflow(log_joint.softmax(-1).to(self._messages.dtype), log_joint)

    def _joints_of_parts(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        """Return joints of sets that their edges do not connect, from the log-probability of each entry."""
        size, num_sets = nodes.shape
        labels = torch.cartesian_prod(*[torch.arange(self.num_classes, device=nodes.device)] * size).T
        num_entries = labels.shape[1]
        log_joint = self._log_probs_in_chunks(nodes.repeat_interleave(num_entries, 1), labels.repeat(1, num_sets))
        log_joint = log_joint.unflatten(-1, (num_sets, num_entries))
        return _clamp_underflow(log_joint.exp().to(self._messages.dtype), log_joint)

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
        """Return log-probabilities. Nodes in trees use the paths between them, all others the edges inside the set.

        Of the others, parts of a set that its edges do not connect are independent. Sets with edges between the same
        places are computed together.
        """
        in_tree = self._in_tree[nodes]
        log_probs = torch.zeros(*self.batch_shape, nodes.shape[1], dtype=torch.float64, device=nodes.device)
        if bool(in_tree.any()):
            entries = len(nodes) * self.num_classes**2 * max(1, math.prod(self.batch_shape))
            chunks = (part.split(max(1, CHUNK_ELEMENTS // entries), dim=1) for part in (nodes, labels, in_tree))
            tree = self._search, self._log_node, self._tree_conditionals
            log_probs = torch.cat([tree_log_probs(*tree, *part) for part in zip(*chunks, strict=True)], dim=-1)
        if bool(in_tree.all()):
            return log_probs
        matches = self._find_edges(nodes)
        is_edge = [(edge >= 0) & ~in_tree[a] & ~in_tree[b] for (a, b), (edge, _) in matches.items()]
        patterns, pattern_of_set, counts = torch.stack([*in_tree, *is_edge]).unique(
            dim=1, return_inverse=True, return_counts=True
        )
        for pattern, sets in zip(patterns.T, pattern_of_set.argsort().split(counts.tolist()), strict=True):
            places = (~pattern[: len(nodes)]).nonzero().squeeze(1)
            if not len(places):
                continue
            place_of = {place: k for k, place in enumerate(places.tolist())}
            is_linked = zip(matches.items(), pattern[len(nodes) :].tolist(), strict=True)
            links = {(place_of[a], place_of[b]): match for ((a, b), match), linked in is_linked if linked}
            scopes = elimination_scopes(len(places), list(links))
            entries = self.num_classes ** max(map(len, scopes))
            check_entries(entries, nodes[:, sets])
            for part in sets.split(max(1, CHUNK_ELEMENTS // (entries * max(1, math.prod(self.batch_shape))))):
                edges = {pair: EdgeMatch(*(column[part] for column in match)) for pair, match in links.items()}
                rest = nodes[places][:, part], labels[places][:, part]
                log_probs[..., part] = log_probs[..., part] + self._log_probs_of(*rest, edges, scopes)
        return log_probs

    def _tree_conditionals(self, numbers: Int[Tensor, " numbers"]) -> Float[Tensor, "*b numbers c c"]:
        """Return log P(y_v | y_parent(v)), from the belief of v without the message of its parent, and the coupling."""
        search = self._search
        pairs = search.node[torch.stack([search.parent[numbers], numbers])]
        _, into_child, coupling = self._messages_and_coupling(*self._lookup.find(pairs))
        cavity = (self._log_node[..., pairs[1], :].double() - into_child).clamp(min=IMPOSSIBLE)
        return (cavity.unsqueeze(-2) + coupling.clamp(min=IMPOSSIBLE)).log_softmax(-1)

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
        size, num_sets = nodes.shape
        if size == 1:
            return "marginals"
        in_tree = (self._in_tree | (self.certain & self.has_marginals))[nodes].all(0)
        num_in_tree, around, apart = int(in_tree.sum()), 0, 0
        for part in nodes[:, ~in_tree].split(max(1, CHUNK_PAIRS // size**2), dim=1):
            links = SetLinks(part, self._find_edges(part), self.certain[part], self.component[part])
            is_apart = (links.outside_only & ~self._in_tree[part].T[:, :, None]).flatten(1).any(1)
            apart += int(is_apart.sum())
            around += int((is_apart | self._search.has_path_around(part)).sum())
        on_trees = "tree distribution of the joints" if self.convergence is None else "exact on trees"
        if num_in_tree == num_sets:
            return on_trees
        total = f"of {num_sets:,} sets"
        notes = [] if self.has_marginals else [self._why_not_marginals]
        if num_in_tree:
            notes.append(f"{on_trees} for {num_in_tree:,} {total}")
        which = " for the others" if num_in_tree else ""
        notes += [f"edges inside the set only{which}", f"{around:,} {total} have paths around them"]
        if apart:
            notes.append(f"{apart:,} {total} have parts that only such paths connect, taken as independent")
        return "; ".join(notes)

    @property
    def _why_not_marginals(self) -> str:
        return "max-marginals" if self._is_max_product else "marginals that have not converged"

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
