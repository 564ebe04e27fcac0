"""A pairwise Markov random field: log-potentials of nodes and of edges."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import check_unique_edges
from edgewise.validation import ArrayLike, as_tensor, check_edges, dense_tensor

MAX_POTENTIAL = 1e30  # sums of larger potentials could overflow float32


@dataclass(frozen=True, init=False, eq=False)
class PairwiseMRF:
    """P(y) ∝ exp( Σ_i U_i(y_i) + Σ_e s_e T_e(y_i, y_j) ), with edges e = (i, j).

    Parameters
    ----------
    unary
        U (N, C), float32 or float64, which is what inference computes in; -inf for an impossible label. With a batch,
        (B, N, C): several fields on one graph.
    edge_index
        Edges (2, E), each undirected edge once; isolated nodes are welcome.
    pairwise
        T (C, C) for all edges or (E, C, C), finite, oriented: rows are labels of the edge's start, columns of its end.
        With a batch also (B, 1, C, C) and (B, E, C, C).
    edge_scale
        s (E,), or (B, E); by default 1.
    evidence
        Labels of nodes that are known. Inference is exact about them: they have probability 1.

    Examples
    --------
    >>> mrf = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), torch.eye(2), evidence={0: 1})
    >>> mrf
    PairwiseMRF(nodes=3, edges=2, classes=2)
    """

    unary: Float[Tensor, "*batch nodes classes"]  # -inf where evidence says so
    edge_index: Int[Tensor, "2 edges"]
    pairwise: Float[Tensor, "*batch couplings classes classes"]  # couplings is 1 or E
    edge_scale: Float[Tensor, "*batch edges"] | None

    def __init__(
        self,
        unary: ArrayLike,
        edge_index: ArrayLike,
        pairwise: ArrayLike,
        *,
        edge_scale: ArrayLike | None = None,
        evidence: Mapping[int, int] | None = None,
    ):
        potentials = _check_unary(dense_tensor(unary, "unary"))
        *batch, nodes, classes = potentials.shape
        edges = _check_edge_list(as_tensor(edge_index, "edge_index").to(potentials.device), nodes)
        num_edges = edges.shape[1]
        couplings = _floating(dense_tensor(pairwise, "pairwise"), "pairwise").to(potentials)
        couplings = _check_pairwise(couplings, batch, num_edges, classes)
        scale = None
        if edge_scale is not None:
            scale = _check_scale(dense_tensor(edge_scale, "edge_scale").to(potentials), batch, num_edges)
        _check_size(potentials, couplings, scale)
        object.__setattr__(self, "unary", _clamp(potentials, {} if evidence is None else evidence))
        object.__setattr__(self, "edge_index", edges)
        object.__setattr__(self, "pairwise", couplings)
        object.__setattr__(self, "edge_scale", scale)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.unary.shape[-2]

    @property
    def num_classes(self) -> int:
        """How many labels a node may have."""
        return self.unary.shape[-1]

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.edge_index.shape[1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """() for one field, (B,) for several on one graph."""
        return tuple(self.unary.shape[:-2])

    @property
    def is_shared(self) -> bool:
        """Whether there is one ``pairwise`` for all edges, which ``edge_scale`` may still scale."""
        return self.pairwise.shape[-3] == 1

    @property
    def is_varied(self) -> bool:
        """Whether edges have couplings of their own."""
        return not self.is_shared or self.edge_scale is not None

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient with respect to the potentials may be asked for."""
        potentials = (self.unary, self.pairwise, self.edge_scale)
        return torch.is_grad_enabled() and any(p is not None and p.requires_grad for p in potentials)

    @property
    def decided(self) -> Bool[Tensor, " nodes"]:
        """Nodes with a single possible label, the same in every field of a batch."""
        possible = torch.isfinite(self.unary)
        if self.batch_shape:
            possible = possible.any(0)
        return possible.sum(-1) == 1

    def coupling(self, edges: Int[Tensor, " some"] | slice) -> Float[Tensor, "*batch some classes classes"]:
        """s_e T_e of some edges."""
        one_for_many = self.is_shared and self.num_edges != 1
        some = self.pairwise if one_for_many else self.pairwise[..., edges, :, :]
        return some if self.edge_scale is None else some * self.edge_scale[..., edges, None, None]

    def detach(self) -> "PairwiseMRF":
        """Return the same field without a gradient."""
        scale = None if self.edge_scale is None else self.edge_scale.detach()
        return _unchecked(self.unary.detach(), self.edge_index, self.pairwise.detach(), scale)

    def __repr__(self) -> str:
        batch = f"batch={self.batch_shape[0]}, " if self.batch_shape else ""
        return f"PairwiseMRF({batch}nodes={self.num_nodes}, edges={self.num_edges}, classes={self.num_classes})"


def _unchecked(unary: Tensor, edge_index: Tensor, pairwise: Tensor, edge_scale: Tensor | None) -> PairwiseMRF:
    mrf = object.__new__(PairwiseMRF)
    parts = {"unary": unary, "edge_index": edge_index, "pairwise": pairwise, "edge_scale": edge_scale}
    for name, part in parts.items():
        object.__setattr__(mrf, name, part)
    return mrf


def check_mrf(mrf: object) -> None:
    """Refuse what is no field."""
    if not isinstance(mrf, PairwiseMRF):
        raise ValueError(f"Expected a PairwiseMRF, but got {type(mrf).__name__}. Make one: ew.PairwiseMRF(unary, …).")


def _floating(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor is float32 or float64, which inference computes in."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"Expected {name} to hold float32 or float64 log-potentials, but got dtype {tensor.dtype}. "
            f"Pass {name}.float() (NumPy: {name}.astype(np.float32))."
        )
    return tensor


def _check_unary(unary: Tensor) -> Float[Tensor, "*batch nodes classes"]:
    """Check that each node has a possible label, and no potential that is NaN or too good."""
    if unary.ndim not in (2, 3) or unary.shape[-1] == 0 or (unary.ndim == 3 and len(unary) == 0):
        raise ValueError(
            f"Expected unary of shape (nodes, classes), or (batch, nodes, classes), but got shape {tuple(unary.shape)}."
        )
    values = _floating(unary, "unary").detach()
    # NaN fails every comparison.
    bad = ~((values < torch.inf).all(-1) & (values > -torch.inf).any(-1))
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        row = values[tuple(place)]
        where = f"node {place[-1]}" + (f" of field {place[0]}" if len(place) == 2 else "")
        problem = "has no possible label: all are -inf" if bool((row == -torch.inf).all()) else "holds NaN or +inf"
        raise ValueError(
            f"Expected finite log-potentials, or -inf for an impossible label, but {where} {problem}. "
            "Of probabilities p pass p.log()."
        )
    return unary


def _check_edge_list(edge_index: Tensor, num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that each edge connects two nodes, and is listed once."""
    edges = check_edges(edge_index, num_nodes).long()
    loop = edges[0] == edges[1]
    if bool(loop.any()):
        e = int(loop.nonzero()[0])
        raise ValueError(
            f"Expected edges between two nodes, but edge {e} is a self-loop of node {int(edges[0, e])}. "
            "Leave them out: edge_index[:, edge_index[0] != edge_index[1]]; what they say belongs into unary."
        )
    check_unique_edges(edges, num_nodes)
    return edges


def _check_pairwise(
    pairwise: Tensor, batch: list[int], num_edges: int, num_classes: int
) -> Float[Tensor, "*batch couplings classes classes"]:
    """Check the shape of couplings, and expand them to the batch: one coupling, or one per edge."""
    square = (num_classes, num_classes)
    allowed = {square: (1, *square), (1, *square): (1, *square), (num_edges, *square): (num_edges, *square)}
    allowed |= {(*batch, 1, *square): (1, *square), (*batch, num_edges, *square): (num_edges, *square)}
    shape = tuple(pairwise.shape)
    if shape not in allowed:
        names = f"{square} or {(num_edges, *square)}" + (f", or either after the batch {tuple(batch)}" if batch else "")
        raise ValueError(
            f"Expected pairwise of shape (classes, classes) or (edges, classes, classes), that is {names}, but got "
            f"shape {shape}. One coupling for each field of a batch is (batch, 1, classes, classes)."
        )
    return pairwise.reshape(*(batch if pairwise.ndim == 4 else ()), *allowed[shape]).expand(*batch, *allowed[shape])


def _check_scale(edge_scale: Tensor, batch: list[int], num_edges: int) -> Float[Tensor, "*batch edges"]:
    """Check that there is a factor for each edge, and expand them to the batch."""
    if tuple(edge_scale.shape) not in ((num_edges,), (*batch, num_edges)):
        raise ValueError(
            f"Expected edge_scale of shape ({num_edges},), one factor per edge, but got shape "
            f"{tuple(edge_scale.shape)}."
        )
    return edge_scale.expand(*batch, num_edges)


def _check_size(unary: Tensor, pairwise: Tensor, edge_scale: Tensor | None) -> None:
    """Refuse what is not finite, or so large that a sum might not be."""
    scale = torch.ones(1) if edge_scale is None else edge_scale.detach()
    finite = unary.detach()[unary.detach() > -torch.inf]
    largest = [float(part.abs().max()) if part.numel() else 0.0 for part in (finite, pairwise.detach(), scale)]
    if not np.isfinite(largest).all() or max(largest[0], largest[1] * max(1.0, largest[2])) > 1.001 * MAX_POTENTIAL:
        raise ValueError(
            f"Expected finite couplings and scales, and potentials up to {MAX_POTENTIAL:.0e}, but the largest unary is "
            f"{largest[0]:.3g}, the largest pairwise {largest[1]:.3g} and the largest edge_scale {largest[2]:.3g}. "
            "To forbid a pair of labels a coupling of -1e4 is enough."
        )


def _clamp(unary: Float[Tensor, "*batch nodes classes"], evidence: Mapping[int, int]) -> Tensor:
    """Forbid all labels of a node but the one that it is known to have."""
    if not isinstance(evidence, Mapping):
        raise ValueError(
            f"Expected evidence as a dict of node: label, but got {type(evidence).__name__}. Of labels y of the nodes "
            "that are known make one: dict(zip(nodes.tolist(), y[nodes].tolist()))."
        )
    if not evidence:
        return unary
    nodes, classes = unary.shape[-2:]
    for node, label in evidence.items():
        _check_evidence("node", node, nodes, node)
        _check_evidence("label", label, classes, node)
    known = torch.tensor([index(node) for node in evidence], device=unary.device)
    labels = torch.tensor([index(label) for label in evidence.values()], device=unary.device)
    impossible = unary.detach()[..., known, labels] == -torch.inf
    if bool(impossible.any()):
        k = int(impossible.nonzero()[0, -1])
        raise ValueError(
            f"Expected evidence that is possible, but node {int(known[k])} is said to have label {int(labels[k])}, "
            "whose unary is -inf."
        )
    allowed = torch.ones(nodes, classes, dtype=torch.bool, device=unary.device)
    allowed[known] = torch.nn.functional.one_hot(labels, classes).bool()
    return torch.where(allowed, unary, -torch.inf)


def _check_evidence(what: str, value: object, limit: int, node: object) -> None:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__") or not 0 <= index(value) < limit:
        raise ValueError(
            f"Expected evidence with a {what} from 0 to {limit - 1}, as whole numbers, but got {value!r} for node "
            f"{node!r}."
        )
