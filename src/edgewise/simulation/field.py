"""The distribution of the labels of a synthetic graph, in which all pairs of nodes may be coupled."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import PairwiseMRF

if TYPE_CHECKING:
    from edgewise.kernels.gibbs_chains import GibbsArrays


@dataclass(frozen=True, eq=False)
class LabelDistribution:
    """P(y) ∝ exp( Σ_i U_i(y_i) + Σ_{edges} T_ij(y_i, y_j) - Σ_{pairs i<j} w_i w_j R(y_i, y_j) ).

    The last sum is over *all* pairs of nodes. It depends on the labels only through the class weights
    S_l = Σ_{i: y_i = l} w_i, so a Gibbs sweep costs O(E) instead of O(N²). T and R are symmetric in the labels.
    """

    unary: Float[Tensor, "nodes classes"]  # U, -inf for labels that evidence excludes
    edge_index: Int[Tensor, "2 edges"]  # each undirected edge once
    coupling: Float[Tensor, "couplings classes classes"]  # T, one for all edges or one per edge
    weight: Float[Tensor, " nodes"]  # w
    rate: Float[Tensor, "classes classes"]  # R

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.unary.shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.unary.shape[1]

    @property
    def couples_edges_only(self) -> bool:
        """Whether R is zero, so that pairs without an edge are not coupled."""
        return not bool(self.rate.any())

    def gibbs_arrays(self) -> "GibbsArrays":
        """Return the arrays that compiled Gibbs chains need."""
        from edgewise.kernels.gibbs_chains import gibbs_arrays

        parts = (self.unary, self.edge_index, self.coupling, self.weight, self.rate)
        unary, edge_index, coupling, weight, rate = (part.numpy() for part in parts)
        return gibbs_arrays(unary, edge_index, coupling, weight=weight, rate=rate)

    def condition(self, evidence: Mapping[int, int]) -> "LabelDistribution":
        """Return the distribution given the observed labels {node: label}."""
        mrf = PairwiseMRF(self.unary, self.edge_index, self.coupling, evidence=evidence)
        return replace(self, unary=mrf.unary)

    def approximate_mrf(self, class_weights: Float[Tensor, " classes"]) -> PairwiseMRF:
        """Return an MRF on the edges, in which the sum over all pairs is replaced by its value at fixed class weights.

        It is exact if only edges couple nodes.
        """
        all_pairs = self.weight[:, None] * (self.rate @ class_weights)
        return PairwiseMRF(self.unary - all_pairs, self.edge_index, self.coupling)

    def exact_mrf(self) -> PairwiseMRF:
        """Return the distribution as an MRF.

        It has the edges of the graph if only edges couple nodes. Otherwise it has all N (N - 1) / 2 pairs, which is
        feasible for small graphs only.
        """
        if self.couples_edges_only:
            return PairwiseMRF(self.unary, self.edge_index, self.coupling)
        pairs = torch.triu_indices(self.num_nodes, self.num_nodes, 1)
        pairwise = -self.weight[pairs].prod(0)[:, None, None] * self.rate
        low, high = self.edge_index.amin(0), self.edge_index.amax(0)
        pair = low * (2 * self.num_nodes - low - 1) // 2 + high - low - 1
        pairwise[pair] += self.coupling
        return PairwiseMRF(self.unary, pairs, pairwise)


def observed_labels(mask: Tensor, labels: Tensor) -> dict[int, int]:
    """Return {node: label} for the nodes in a mask."""
    nodes = np.flatnonzero(mask.numpy())
    return dict(zip(nodes.tolist(), labels[nodes].tolist(), strict=True))
