"""The law of the labels of a synthetic graph: a field in which pairs without an edge may be coupled too."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import PairwiseMRF

if TYPE_CHECKING:
    from edgewise.kernels.gibbs_chains import FieldArrays


@dataclass(frozen=True, eq=False)
class LabelField:
    """P(y) ∝ exp( Σ_i U_i(y_i) + Σ_{edges} T_ij(y_i, y_j) - Σ_{pairs i<j} w_i w_j R(y_i, y_j) ).

    The last sum is over *all* pairs. It depends on the labels through the sums S_l = Σ_{i: y_i = l} w_i only, so a
    field with N²/2 couplings costs no more than one with E. T and R are symmetric in the labels.
    """

    unary: Float[Tensor, "nodes classes"]  # -inf where evidence says so
    edge_index: Int[Tensor, "2 edges"]  # each undirected edge once
    coupling: Float[Tensor, "couplings classes classes"]  # couplings is 1 or E
    weight: Float[Tensor, " nodes"]
    rate: Float[Tensor, "classes classes"]

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.unary.shape[0]

    @property
    def num_classes(self) -> int:
        """How many labels a node may have."""
        return self.unary.shape[1]

    @property
    def is_sparse(self) -> bool:
        """Whether only edges couple their ends."""
        return not bool(self.rate.any())

    def given(self, evidence: Mapping[int, int]) -> "LabelField":
        """Forbid all labels of a known node but its own."""
        mrf = PairwiseMRF(self.unary, self.edge_index, self.coupling, evidence=evidence)
        return replace(self, unary=mrf.unary)

    def sparse_mrf(self, sums: Float[Tensor, " classes"]) -> PairwiseMRF:
        """Return the field as an MRF on its edges, where all pairs act through given sums S_l.

        It is the field itself where only edges couple their ends.
        """
        outside = self.weight[:, None] * (self.rate @ sums)
        return PairwiseMRF(self.unary - outside, self.edge_index, self.coupling)

    def dense_mrf(self) -> PairwiseMRF:
        """Return the field as an MRF that couples each pair of nodes, N²/2 of them: for small graphs."""
        if self.is_sparse:
            return PairwiseMRF(self.unary, self.edge_index, self.coupling)
        pairs = torch.triu_indices(self.num_nodes, self.num_nodes, 1)
        pairwise = -self.weight[pairs].prod(0)[:, None, None] * self.rate
        low, high = self.edge_index.amin(0), self.edge_index.amax(0)
        place = low * (2 * self.num_nodes - low - 1) // 2 + high - low - 1
        pairwise[place] += self.coupling
        return PairwiseMRF(self.unary, pairs, pairwise)


def known_labels(known: Tensor, labels: Tensor) -> dict[int, int]:
    """Return {node: label} of the nodes in a mask."""
    nodes = np.flatnonzero(known.numpy())
    return dict(zip(nodes.tolist(), labels[nodes].tolist(), strict=True))


def field_arrays(field: LabelField) -> "FieldArrays":
    """List the neighbors of each node, and the nodes that have a choice, for compiled loops."""
    from edgewise.kernels.gibbs_chains import FieldArrays

    low, high = field.edge_index.numpy()
    start, end = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.argsort(start, kind="stable")
    begin = np.zeros(field.num_nodes + 1, dtype=np.int64)
    begin[1:] = np.bincount(start, minlength=field.num_nodes).cumsum()
    free = (field.unary.isfinite().sum(1) > 1).numpy().nonzero()[0]
    parts = (field.unary, field.coupling, field.weight, field.rate)
    unary, coupling, weight, rate = (np.ascontiguousarray(part.double().numpy()) for part in parts)
    return FieldArrays(free, unary, begin, end[order], order % max(1, len(low)), coupling, weight, rate)
