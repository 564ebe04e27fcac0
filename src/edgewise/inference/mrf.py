"""The pairwise Markov random field `PairwiseMRF` and the checks of its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.conversion import EdgesLike, as_edges
from edgewise.data.edges import check_unique_edges
from edgewise.validation import ArrayLike, dense_tensor

MAX_POTENTIAL = 1e30  # sums of larger potentials could overflow float32


@dataclass(frozen=True, init=False, eq=False)
class PairwiseMRF:
    """A pairwise Markov random field P(y) ∝ exp( Σ_i U_i(y_i) + Σ_e s_e T_e(y_i, y_j) ) with edges e = (i, j).

    Parameters
    ----------
    unary
        Log-potentials U of shape (N, C), or (B, N, C) for a batch of MRFs on one graph. Inference runs in their dtype,
        float32 or float64. An impossible label has -inf.
    edge_index
        Edges of shape (2, E), each undirected edge once. Nodes may be isolated.
    pairwise
        Finite log-potentials T of shape (C, C), shared by all edges, or (E, C, C). Rows are labels of the start of the
        edge, columns are labels of its end. A batch may also have (B, 1, C, C) or (B, E, C, C).
    edge_scale
        Factors s of shape (E,) or (B, E). Default: 1.
    evidence
        Observed labels as {node: label}. An observed label has probability 1.

    Examples
    --------
    >>> mrf = PairwiseMRF(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]), torch.eye(2), evidence={0: 1})
    >>> mrf
    PairwiseMRF(nodes=3, edges=2, classes=2)
    """

    unary: Float[Tensor, "*batch nodes classes"]  # -inf for labels that evidence excludes
    edge_index: Int[Tensor, "2 edges"]
    pairwise: Float[Tensor, "*batch couplings classes classes"]  # couplings is 1 or E
    edge_scale: Float[Tensor, "*batch edges"] | None

    def __init__(
        self,
        unary: ArrayLike,
        edge_index: EdgesLike,
        pairwise: ArrayLike,
        *,
        edge_scale: ArrayLike | None = None,
        evidence: Mapping[int, int] | None = None,
    ):
        potentials = _check_unary(dense_tensor(unary, "unary"))
        *batch, nodes, classes = potentials.shape
        edges = _check_edge_list(as_edges(edge_index, nodes, potentials.device).long(), nodes)
        num_edges = edges.shape[1]
        couplings = _check_dtype(dense_tensor(pairwise, "pairwise"), "pairwise").to(potentials)
        couplings = _check_pairwise(couplings, batch, num_edges, classes)
        scale = None
        if edge_scale is not None:
            scale = _check_scale(dense_tensor(edge_scale, "edge_scale").to(potentials), batch, num_edges)
        _check_magnitude(potentials, couplings, scale)
        object.__setattr__(self, "unary", _apply_evidence(potentials, {} if evidence is None else evidence))
        object.__setattr__(self, "edge_index", edges)
        object.__setattr__(self, "pairwise", couplings)
        object.__setattr__(self, "edge_scale", scale)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.unary.shape[-2]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.unary.shape[-1]

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.edge_index.shape[1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """() for a single MRF, (B,) for a batch."""
        return tuple(self.unary.shape[:-2])

    @property
    def is_shared(self) -> bool:
        """Whether all edges share one ``pairwise``; ``edge_scale`` may still scale it per edge."""
        return self.pairwise.shape[-3] == 1

    @property
    def is_varied(self) -> bool:
        """Whether couplings s_e T_e differ between edges."""
        return not self.is_shared or self.edge_scale is not None

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are enabled and a potential requires one."""
        potentials = (self.unary, self.pairwise, self.edge_scale)
        return torch.is_grad_enabled() and any(p is not None and p.requires_grad for p in potentials)

    @property
    def decided(self) -> Bool[Tensor, " nodes"]:
        """Mask of the nodes that have a single possible label, the same one in all MRFs of a batch."""
        possible = torch.isfinite(self.unary)
        if self.batch_shape:
            possible = possible.any(0)
        return possible.sum(-1) == 1

    def coupling(self, edges: Int[Tensor, " some"] | slice) -> Float[Tensor, "*batch some classes classes"]:
        """Return s_e T_e of the selected edges, with one entry for all of them if the edges share it."""
        one_for_many = self.is_shared and self.num_edges != 1
        pairwise = self.pairwise if one_for_many else self.pairwise[..., edges, :, :]
        return pairwise if self.edge_scale is None else pairwise * self.edge_scale[..., edges, None, None]

    def detach(self) -> "PairwiseMRF":
        """Return the MRF with all tensors detached."""
        scale = None if self.edge_scale is None else self.edge_scale.detach()
        return _unchecked(self.unary.detach(), self.edge_index, self.pairwise.detach(), scale)

    def __repr__(self) -> str:
        batch = f"batch={self.batch_shape[0]}, " if self.batch_shape else ""
        return f"PairwiseMRF({batch}nodes={self.num_nodes}, edges={self.num_edges}, classes={self.num_classes})"


def _unchecked(unary: Tensor, edge_index: Tensor, pairwise: Tensor, edge_scale: Tensor | None) -> PairwiseMRF:
    """Create an MRF without checking its inputs again."""
    mrf = object.__new__(PairwiseMRF)
    parts = {"unary": unary, "edge_index": edge_index, "pairwise": pairwise, "edge_scale": edge_scale}
    for name, part in parts.items():
        object.__setattr__(mrf, name, part)
    return mrf


def check_mrf(mrf: object) -> None:
    """Raise ValueError unless the argument is a PairwiseMRF."""
    if not isinstance(mrf, PairwiseMRF):
        raise ValueError(
            f"Expected a PairwiseMRF, but got {type(mrf).__name__}. Create one with ew.PairwiseMRF(unary, …)."
        )


def _check_dtype(tensor: Tensor, name: str) -> Tensor:
    """Raise ValueError unless a tensor is float32 or float64."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"Expected {name} to hold float32 or float64 log-potentials, but got dtype {tensor.dtype}. "
            f"Pass {name}.float() (NumPy: {name}.astype(np.float32))."
        )
    return tensor


def _check_unary(unary: Tensor) -> Float[Tensor, "*batch nodes classes"]:
    """Check that no potential is NaN or +inf, and that each node has a possible label."""
    if unary.ndim not in (2, 3) or unary.shape[-1] == 0 or (unary.ndim == 3 and len(unary) == 0):
        raise ValueError(
            f"Expected unary of shape (nodes, classes) or (batch, nodes, classes), but got shape {tuple(unary.shape)}."
        )
    values = _check_dtype(unary, "unary").detach()
    # NaN fails every comparison.
    bad = ~((values < torch.inf).all(-1) & (values > -torch.inf).any(-1))
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        row = values[tuple(place)]
        where = f"node {place[-1]}" + (f" of batch item {place[0]}" if len(place) == 2 else "")
        problem = "has no possible label: all are -inf" if bool((row == -torch.inf).all()) else "holds NaN or +inf"
        raise ValueError(
            f"Expected finite log-potentials, or -inf for an impossible label, but {where} {problem}. "
            "Convert probabilities p with p.log()."
        )
    return unary


def _check_edge_list(edges: Int[Tensor, "2 edges"], num_nodes: int) -> Int[Tensor, "2 edges"]:
    """Check that there are no self-loops and that each edge is listed once."""
    loop = edges[0] == edges[1]
    if bool(loop.any()):
        e = int(loop.nonzero()[0])
        raise ValueError(
            f"Expected edges between two nodes, but edge {e} is a self-loop of node {int(edges[0, e])}. "
            "Remove self-loops with edge_index[:, edge_index[0] != edge_index[1]], and add their potentials to unary."
        )
    check_unique_edges(edges, num_nodes)
    return edges


def _check_pairwise(
    pairwise: Tensor, batch: list[int], num_edges: int, num_classes: int
) -> Float[Tensor, "*batch couplings classes classes"]:
    """Check the shape of pairwise potentials, one for all edges or one per edge, and expand them to the batch."""
    square = (num_classes, num_classes)
    allowed = {square: (1, *square), (1, *square): (1, *square), (num_edges, *square): (num_edges, *square)}
    allowed |= {(*batch, 1, *square): (1, *square), (*batch, num_edges, *square): (num_edges, *square)}
    shape = tuple(pairwise.shape)
    if shape not in allowed:
        names = f"{square} or {(num_edges, *square)}" + (f", or {(*batch, 1, *square)}" if batch else "")
        raise ValueError(
            f"Expected pairwise of shape (classes, classes) or (edges, classes, classes), that is {names}, but got "
            f"shape {shape}. Pass one coupling per batch item as (batch, 1, classes, classes)."
        )
    return pairwise.reshape(*(batch if pairwise.ndim == 4 else ()), *allowed[shape]).expand(*batch, *allowed[shape])


def _check_scale(edge_scale: Tensor, batch: list[int], num_edges: int) -> Float[Tensor, "*batch edges"]:
    """Check that there is one factor per edge, and expand the factors to the batch."""
    if tuple(edge_scale.shape) not in ((num_edges,), (*batch, num_edges)):
        raise ValueError(
            f"Expected edge_scale of shape ({num_edges},), one factor per edge, but got shape "
            f"{tuple(edge_scale.shape)}."
        )
    return edge_scale.expand(*batch, num_edges)


def _check_magnitude(unary: Tensor, pairwise: Tensor, edge_scale: Tensor | None) -> None:
    """Raise ValueError for couplings or scales that are not finite, and for potentials whose sums may overflow."""
    scale = torch.ones(1) if edge_scale is None else edge_scale.detach()
    finite = unary.detach()[unary.detach() > -torch.inf]
    largest = [float(part.abs().max()) if part.numel() else 0.0 for part in (finite, pairwise.detach(), scale)]
    if not np.isfinite(largest).all() or max(largest[0], largest[1] * max(1.0, largest[2])) > 1.001 * MAX_POTENTIAL:
        raise ValueError(
            f"Expected finite couplings and scales, and potentials up to {MAX_POTENTIAL:.0e}, but the largest unary is "
            f"{largest[0]:.3g}, the largest pairwise {largest[1]:.3g} and the largest edge_scale {largest[2]:.3g}. "
            "Use a coupling of -1e4 to forbid a pair of labels."
        )


def _apply_evidence(unary: Float[Tensor, "*batch nodes classes"], evidence: Mapping[int, int]) -> Tensor:
    """Set the unary potentials of all labels that the evidence excludes to -inf."""
    if not isinstance(evidence, Mapping):
        raise ValueError(
            f"Expected evidence as a dict of node: label, but got {type(evidence).__name__}. Convert labels y of "
            "observed nodes with dict(zip(nodes.tolist(), y[nodes].tolist()))."
        )
    if not evidence:
        return unary
    nodes, classes = unary.shape[-2:]
    for node, label in evidence.items():
        _check_evidence_item("node", node, nodes, node)
        _check_evidence_item("label", label, classes, node)
    observed = torch.tensor([index(node) for node in evidence], device=unary.device)
    labels = torch.tensor([index(label) for label in evidence.values()], device=unary.device)
    impossible = unary.detach()[..., observed, labels] == -torch.inf
    if bool(impossible.any()):
        k = int(impossible.nonzero()[0, -1])
        raise ValueError(
            f"Expected evidence that is possible, but node {int(observed[k])} has the label {int(labels[k])}, whose "
            "unary is -inf. Remove the node from evidence, or pass a finite unary for this label."
        )
    allowed = torch.ones(nodes, classes, dtype=torch.bool, device=unary.device)
    allowed[observed] = torch.nn.functional.one_hot(labels, classes).bool()
    return torch.where(allowed, unary, -torch.inf)


def _check_evidence_item(what: str, value: object, limit: int, node: object) -> None:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__") or not 0 <= index(value) < limit:
        raise ValueError(
            f"Expected evidence with a {what} that is an integer from 0 to {limit - 1}, but got {value!r} for node "
            f"{node!r}. Use the indices of nodes and classes."
        )
