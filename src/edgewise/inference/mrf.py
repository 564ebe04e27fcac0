"""A pairwise Markov random field: log-potentials of nodes and of edges."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.arrays import ArrayLike, as_tensor, dense_tensor
from edgewise.inference.checks import (
    check_size,
    checked_edge_list,
    checked_pairwise,
    checked_scale,
    checked_unary,
    clamped,
    floating,
)


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
        potentials = checked_unary(dense_tensor(unary, "unary"))
        *batch, nodes, classes = potentials.shape
        edges = checked_edge_list(as_tensor(edge_index, "edge_index").to(potentials.device), nodes)
        num_edges = edges.shape[1]
        couplings = floating(dense_tensor(pairwise, "pairwise"), "pairwise").to(potentials)
        couplings = checked_pairwise(couplings, batch, num_edges, classes)
        scale = None
        if edge_scale is not None:
            scale = checked_scale(dense_tensor(edge_scale, "edge_scale").to(potentials), batch, num_edges)
        check_size(potentials, couplings, scale)
        object.__setattr__(self, "unary", clamped(potentials, {} if evidence is None else evidence))
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
        """Give s_e T_e of some edges."""
        one_for_many = self.is_shared and self.num_edges != 1
        some = self.pairwise if one_for_many else self.pairwise[..., edges, :, :]
        return some if self.edge_scale is None else some * self.edge_scale[..., edges, None, None]

    def detach(self) -> "PairwiseMRF":
        """Give the same field without a gradient."""
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
