"""Posterior of independent nodes, and conversion of arguments to a posterior."""

from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.posterior.belief import Posterior, check_node_shape, check_not_batch
from edgewise.posterior.diagnostics import Convergence, Sample, Sampling
from edgewise.validation import ArrayLike, check_distributions, dense_tensor, normalize_distributions


class HasPosterior(Protocol):
    """Object with a ``posterior`` method, such as a fitted model."""

    def posterior(self) -> Posterior:
        """Return the posterior."""


CHUNK_ELEMENTS = 1 << 21  # labels that are drawn at once

Belief = Posterior | HasPosterior | ArrayLike


class IndependentPosterior(Posterior):
    """Posterior of independent nodes, P(y) = Π_i p_i(y_i). The joint of a pair is the product of its marginals.

    Parameters
    ----------
    node
        Probabilities (N, C) with rows that sum to 1. With a batch, (B, N, C).
    convergence
        Convergence of the solver that computed the probabilities, if any.

    Examples
    --------
    >>> import torch
    >>> IndependentPosterior(torch.tensor([[0.9, 0.1], [0.5, 0.5]])).joint(torch.tensor([[0], [1]])).tolist()
    [[[0.449..., 0.449...], [0.05..., 0.05...]]]
    """

    def __init__(self, node: ArrayLike, *, convergence: Convergence | None = None):
        super().__init__(convergence)
        self._node = dense_tensor(node, "probs")
        check_node_shape(self._node, "probs")
        check_distributions(self._node.flatten(0, -2), "probs", "row")

    @property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""
        return self._node

    def tensors(self) -> dict[str, Tensor]:
        """Return the node marginals."""
        return {"node": self._node}

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        joint = self._node[..., nodes[0], :]
        for other in nodes[1:]:
            joint = (joint.unsqueeze(-1) * self._node[..., other, :].unsqueeze(-2)).flatten(-2)
        return joint

    def _log_probs(self, nodes: Int[Tensor, "set sets"], labels: Int[Tensor, "set sets"]) -> Float[Tensor, "*b sets"]:
        # Added in order, so that the sum equals that of single nodes to the last bit: the gain of `joint_nll` is 0.
        return sum_rows(self._node[..., nodes, labels].double().log().movedim(-2, 0))

    def _describe_sets(self, nodes: Int[Tensor, "set sets"]) -> str:
        return "product of marginals"

    def _sample(self, number: int, rng: np.random.Generator) -> Sample:
        return Sample(draw_labels(self._node, number, rng), Sampling("independent", is_exact=True))


def sum_rows(rows: Float[Tensor, "rows *b sets"]) -> Float[Tensor, "*b sets"]:
    """Add rows one after the other. ``sum`` adds in an order that depends on the layout in memory."""
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def draw_labels(probs: Float[Tensor, "nodes classes"], number: int, rng: np.random.Generator) -> Int[Tensor, "n nodes"]:
    """Draw labels of independent nodes on the CPU, by inversion of the cumulative probabilities in float64.

    A label of probability 0 is never drawn: its interval is empty, and a number that is rounded up to the sum of all
    probabilities belongs to the last possible label.
    """
    p = probs.detach().cpu().double()
    cumulative = p.cumsum(1)
    last_possible = p.shape[1] - 1 - (p > 0).flip(1).int().argmax(1)
    labels = torch.empty(number, len(p), dtype=torch.long)
    step = max(1, CHUNK_ELEMENTS // max(1, len(p)))
    for lo in range(0, number, step):
        chunk = labels[lo : lo + step]
        uniform = torch.from_numpy(rng.random(chunk.shape)).T.contiguous()
        found = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
        chunk.copy_(torch.minimum(found, last_possible[:, None]).T)
    return labels


def as_posterior(belief: Belief, *, normalize: bool = False) -> Posterior:
    """Convert probabilities (nodes, classes), or an object with ``posterior()``, to a `Posterior`.

    A `Posterior` is returned as is. Logits raise ValueError. All functions that accept predictions use this conversion.
    With ``normalize``, rows that sum to 1 within 2% are divided by their sum.

    Examples
    --------
    >>> import torch
    >>> as_posterior(torch.tensor([[0.9, 0.1], [0.5, 0.5]]))
    IndependentPosterior(nodes=2, classes=2)
    """
    if not isinstance(belief, Posterior) and callable(getattr(belief, "posterior", None)):
        belief = belief.posterior()  # type: ignore[union-attr]  # mypy does not narrow by getattr
    if isinstance(belief, tuple):
        raise ValueError("Expected a posterior, but got a tuple. Unpack it: posterior, convergence = …")
    if not isinstance(belief, Posterior):
        probs = dense_tensor(belief, "probs")  # type: ignore[arg-type]
        if probs.ndim != 2:
            raise ValueError(
                f"Expected probs of shape (nodes, classes), but got shape {tuple(probs.shape)}."
                f"{_shape_hint(probs.ndim, probs.is_floating_point())}"
            )
        return IndependentPosterior(normalize_distributions(probs, "probs", "row") if normalize else probs)
    check_not_batch(belief)
    return belief


def _shape_hint(ndim: int, is_floating_point: bool) -> str:
    if ndim == 1 and is_floating_point:
        return " For probabilities of class 1 pass both columns: np.column_stack([1 - p, p])."
    if ndim == 1:
        return " Instead of predicted labels pass their probabilities, such as model.predict_proba(x)."
    return " For several samples pass ew.MixturePosterior(samples)." if ndim == 3 else ""
