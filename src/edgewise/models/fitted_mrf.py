"""Fitted models whose prediction is inference in a pairwise Markov random field, with known labels clamped."""

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import Convergence, PairwiseMRF, max_product, mean_field, sum_product
from edgewise.models.fitted import Fitted
from edgewise.posterior import Posterior
from edgewise.validation import check_flag, check_option

INFERENCES = {"sum_product": sum_product, "max_product": max_product, "mean_field": mean_field}

Inference = Literal["sum_product", "max_product", "mean_field"]


@dataclass(frozen=True, eq=False, repr=False)
class FittedMRF(Fitted):
    """A pairwise MRF, and the labels of the training nodes. Its model has the options ``inference`` and ``evidence``.

    Attributes
    ----------
    unary
        Unary potentials (N, C).
    edge_index
        Edges (2, E), each undirected edge once.
    known
        The training nodes.
    known_labels
        Labels of the training nodes.
    """

    unary: Float[Tensor, "nodes classes"]
    edge_index: Int[Tensor, "2 edges"]
    known: Int[Tensor, " train"]
    known_labels: Int[Tensor, " train"]

    @abstractmethod
    def mrf(self, evidence: bool = True) -> PairwiseMRF:
        """Return the MRF, with or without the training nodes clamped to their labels."""

    def infer(self, inference: Inference | None = None, evidence: bool | None = None) -> tuple[Posterior, Convergence]:
        """Return the posterior and its convergence. The arguments are those of `posterior`, which warns instead."""
        model: Any = self.model
        chosen = model.inference if inference is None else inference
        check_option("inference", chosen, tuple(INFERENCES))
        clamped = model.evidence if evidence is None else evidence
        check_flag("evidence", clamped)
        return INFERENCES[chosen](self.mrf(clamped))

    def posterior(self, inference: Inference | None = None, evidence: bool | None = None) -> Posterior:
        """Return the posterior of nodes and edges, and warn if inference did not converge.

        Inference stops at convergence or after 1000 sweeps. For other limits or damping call
        ``ew.sum_product(fitted.mrf(), max_sweeps=…, damping=…)``.

        Parameters
        ----------
        inference
            "sum_product", "max_product" or "mean_field". The default is the option of the model.
        evidence
            Whether training nodes are clamped to their labels. False is an ablation. The default is the option of the
            model.
        """
        posterior, convergence = self.infer(inference, evidence)
        if not convergence:
            warnings.warn(f"Inference of {self.model.name}: {convergence.advice}", stacklevel=2)
        return posterior

    def _evidence(self, evidence: bool) -> dict[int, int]:
        """Return the labels of the training nodes by node, or nothing."""
        return dict(zip(self.known.tolist(), self.known_labels.tolist(), strict=True)) if evidence else {}
