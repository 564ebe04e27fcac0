"""A pairwise field: beliefs of nodes and edges, as belief propagation leaves them."""

from functools import cached_property
from itertools import combinations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import EdgeLookup, EdgeMatch, check_unique_edges, connected_components
from edgewise.posterior.belief import Convergence, Posterior, check_node_shape
from edgewise.validation import ArrayLike, as_tensor, check_distributions, check_edges, dense_tensor

MARGINAL_TOLERANCE = 1e-3


class PairwisePosterior(Posterior):
    """Beliefs b_i of nodes, messages between the ends of edges, and couplings T of edges; all in logarithms.

    The joint of an edge (i, j) is b_ij(l, m) ∝ exp(b_i(l) - μ_{j→i}(l) + T(l, m) + b_j(m) - μ_{i→j}(m)): each end's
    belief without the message from the other end, and their coupling. So a coupling that edges share costs (E, C), not
    (E, C, C). Larger sets of nodes that hang together are joined in the same way: exact on a tree; elsewhere loops in
    the set count in full, so its marginals may differ from ``node``, and ways around outside the set do not count.

    `sum_product` gives one; of marginals and joints that are known already make one by `from_joints`.

    Parameters
    ----------
    log_node
        b (N, C), up to a constant in each row; -inf where a label is impossible. With a batch, this and all else but
        ``edge_index`` have the dimensions of the batch first.
    edge_index
        Edges (2, E), each undirected edge once.
    messages
        μ (2, E, C): into the start of each edge, and into its end.
    pairwise
        T (1, C, C) for all edges, or (E, C, C), oriented as ``edge_index``.
    edge_scale
        A factor (E,) of the coupling of each edge; by default 1.
    convergence
        Whether the solver that inferred the beliefs converged, if there was one.

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
        edge_index: ArrayLike,
        messages: ArrayLike,
        pairwise: ArrayLike,
        edge_scale: ArrayLike | None = None,
        *,
        convergence: Convergence | None = None,
    ):
        super().__init__(convergence)
        self._log_node = dense_tensor(log_node, "log_node")
        check_node_shape(self._log_node, "log_node")
        *batch, nodes, classes = self._log_node.shape
        self._edge_index = check_edges(as_tensor(edge_index, "edge_index").to(self._log_node.device), nodes).long()
        edges = self._edge_index.shape[1]
        self._messages, self._pairwise = dense_tensor(messages, "messages"), dense_tensor(pairwise, "pairwise")
        _check_shape("messages", self._messages, (*batch, 2, edges, classes))
        if self._pairwise.shape != (*batch, 1, classes, classes):
            _check_shape("pairwise", self._pairwise, (*batch, edges, classes, classes))
        self._edge_scale = None
        if edge_scale is not None:
            self._edge_scale = dense_tensor(edge_scale, "edge_scale")
            _check_shape("edge_scale", self._edge_scale, (*batch, edges))
        finite = self.node.sum(-1).isfinite().all() & self._messages.isfinite().all()
        finite &= (self._pairwise < torch.inf).all()
        if self._edge_scale is not None:
            finite &= self._edge_scale.isfinite().all()
        if not bool(finite):
            raise ValueError("Expected finite messages and a possible label for each node, but got NaN or infinity.")

    @classmethod
    def from_joints(cls, node: ArrayLike, edge_index: ArrayLike, joints: ArrayLike) -> "PairwisePosterior":
        """Make a field of marginals and joints that are known already.

        Sets of more than two nodes are then joined by Π_edges b_ij Π_nodes b_i^(1 - degree), normalized.

        Parameters
        ----------
        node
            Marginals (N, C).
        edge_index
            Edges (2, E), each undirected edge once.
        joints
            Joints (E, C, C), oriented as ``edge_index``, which sum to the marginals of their ends.
        """
        marginals, pairs = dense_tensor(node, "node"), dense_tensor(joints, "joints")
        check_node_shape(marginals, "node")
        check_distributions(marginals.flatten(0, -2), "node", "row")
        edges = check_edges(as_tensor(edge_index, "edge_index"), marginals.shape[-2]).long()
        *batch, _, classes = marginals.shape
        _check_shape("joints", pairs, (*batch, edges.shape[1], classes, classes))
        check_distributions(pairs.flatten(0, -3), "joints", "edge")
        check_unique_edges(edges, marginals.shape[-2])
        _check_marginals(marginals.detach(), edges, pairs.detach())
        # What is impossible for a node is impossible in its joints, which say so; here it must only be finite.
        log_node = marginals.clamp(min=torch.finfo(marginals.dtype).tiny).log()
        return cls(marginals.log(), edges, log_node[..., edges, :], pairs.log())

    @cached_property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""
        return self._log_node.softmax(-1).to(self._messages.dtype)

    @property
    def edge_index(self) -> Int[Tensor, "2 edges"]:
        """The edges whose joints are known, each once."""
        return self._edge_index

    @property
    def messages(self) -> Float[Tensor, "*batch 2 edges classes"]:
        """The messages along each edge: into its start, and into its end."""
        return self._messages

    def _more(self) -> str:
        return f", edges={self._edge_index.shape[1]}"

    def tensors(self) -> dict[str, Tensor]:
        """Return beliefs, edges, messages and couplings."""
        tensors = {"log_node": self._log_node, "edge_index": self._edge_index, "messages": self._messages}
        scale = {} if self._edge_scale is None else {"edge_scale": self._edge_scale}
        return {**tensors, "pairwise": self._pairwise, **scale}

    def _chosen(self, index: int) -> Posterior:
        chosen = {name: tensor[index] for name, tensor in self.tensors().items() if name != "edge_index"}
        return self._remade(edge_index=self._edge_index, **chosen)

    @property
    def _copies(self) -> int:
        return 4  # sums are made in float64

    @cached_property
    def _lookup(self) -> EdgeLookup:
        return EdgeLookup(self._edge_index, self.num_nodes)

    @cached_property
    def _decided(self) -> Bool[Tensor, " nodes"]:
        """Nodes that have a single possible label, in any field of a batch."""
        certain: Tensor = (self._log_node.detach() > -torch.inf).sum(-1) == 1
        return certain.flatten(0, -2).any(0) if self.batch_shape else certain

    @cached_property
    def _part(self) -> Int[Tensor, " nodes"]:
        """Which part of the graph each node is in, when nodes whose label is certain are taken out."""
        return connected_components(self._edge_index[:, ~self._decided[self._edge_index].any(0)], self.num_nodes)

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        """Join the sets: Σ_i (b_i - messages from other nodes of the set) + the couplings among them."""
        size = len(nodes)
        fields = [self._log_node[..., node, :].double() for node in nodes]
        found = {pair: self._lookup.find(nodes[list(pair)]) for pair in combinations(range(size), 2)}
        check_connected(nodes, found)
        if size > 2 and bool(self._decided[nodes].any()):
            check_joined(nodes, found, self._decided[nodes], self._part[nodes])
        couplings = {}
        for (a, b), (edge, backward) in found.items():
            into_a, into_b, coupling = self._between(edge, backward)
            fields[a], fields[b] = fields[a] - into_a, fields[b] - into_b
            couplings[a, b] = coupling
        total = torch.zeros((), dtype=torch.float64, device=nodes.device)
        for a, field in enumerate(fields):
            field = field - field.amax(-1, keepdim=True)
            total = total + field.reshape(*field.shape[:-1], *(self.num_classes if k == a else 1 for k in range(size)))
        for (a, b), coupling in couplings.items():
            sides = (self.num_classes if k in (a, b) else 1 for k in range(size))
            total = total + coupling.reshape(*coupling.shape[:-2], *sides)
        log_joint = total.flatten(-size)
        return _kept_possible(log_joint.softmax(-1).to(self._messages.dtype), log_joint)

    def _between(
        self, edge: Int[Tensor, " sets"], backward: Bool[Tensor, " sets"]
    ) -> tuple[Float[Tensor, "*b sets c"], Float[Tensor, "*b sets c"], Float[Tensor, "*b couplings c c"]]:
        """Return the messages into both nodes of a pair and their coupling; zero where they share no edge."""
        unknown = edge < 0
        if self._edge_index.shape[1] == 0:
            zero = self._log_node.new_zeros(*self.batch_shape, len(edge), self.num_classes, dtype=torch.float64)
            return zero, zero, zero.new_zeros(1, self.num_classes, self.num_classes)
        direction = backward.long()
        into_a, into_b = self._messages[..., direction, edge, :], self._messages[..., 1 - direction, edge, :]
        coupling = self._pairwise if self._pairwise.shape[-3] == 1 else self._pairwise[..., edge, :, :]
        turned = coupling.transpose(-1, -2)
        if not torch.equal(coupling, turned):
            coupling = torch.where(backward[:, None, None], turned, coupling)
        coupling = coupling.double()
        if self._edge_scale is not None:
            coupling = coupling * self._edge_scale[..., edge, None, None].double()
        if bool(unknown.any()):
            into_a, into_b = (message.masked_fill(unknown[:, None], 0.0) for message in (into_a, into_b))
            coupling = torch.where(unknown[:, None, None], 0.0, coupling)
        return into_a, into_b, coupling


def _kept_possible(p: Float[Tensor, "*b sets entries"], log_p: Tensor) -> Float[Tensor, "*b sets entries"]:
    """Replace what underflows by the smallest normal number: 0 is for what is impossible, with a logarithm of -inf."""
    lost = p == 0
    if not bool(lost.any()):
        return p
    return torch.where(lost & (log_p > -torch.inf), torch.finfo(p.dtype).tiny, p)


def _check_marginals(node: Tensor, edge_index: Tensor, joints: Tensor) -> None:
    """Refuse joints that do not sum to the marginals of their ends."""
    for side, (end, summed) in enumerate((("start", joints.sum(-1)), ("end", joints.sum(-2)))):
        gap = (summed - node[..., edge_index[side], :]).abs().amax(-1)
        if bool((gap > MARGINAL_TOLERANCE).any()):
            place = tuple((gap > MARGINAL_TOLERANCE).nonzero()[0].tolist())
            e = place[-1]
            raise ValueError(
                f"Expected joints that sum to the marginals of their ends, but edge {e} is {float(gap[place]):.2g} off "
                f"at its {end}, node {int(edge_index[side, e])}. To score joints as they are pass them as edge_probs."
            )


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise ValueError(f"Expected {name} of shape {expected}, but got shape {tuple(tensor.shape)}.")


def check_connected(nodes: Int[Tensor, "set sets"], found: dict[tuple[int, int], EdgeMatch]) -> None:
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
    found: dict[tuple[int, int], EdgeMatch],
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
