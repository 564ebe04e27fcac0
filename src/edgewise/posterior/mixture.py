"""Posterior as a mixture of samples with independent nodes."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.posterior.belief import Posterior
from edgewise.posterior.diagnostics import Convergence, Sample, Sampling
from edgewise.posterior.independent import draw_labels
from edgewise.validation import ArrayLike, check_distributions, dense_tensor


class MixturePosterior(Posterior):
    """Mixture of samples of the node probabilities, P(y) = Σ_s w_s Π_i p_s(y_i).

    The samples come from an ensemble, dropout at test time, or sampled neighbors. Nodes are independent within a sample
    but dependent in the mixture: the joint of a pair is Σ_s w_s p_s(y_i) p_s(y_j), and its marginals are the node
    marginals.

    Parameters
    ----------
    samples
        Probabilities (S, N, C) with rows that sum to 1. With a batch, (B, S, N, C).
    weights
        w (S,) with sum 1, uniform by default. With a batch, (B, S).
    convergence
        Convergence of the solver that computed the samples, if any.

    Examples
    --------
    Two samples are certain and disagree:

    >>> posterior = MixturePosterior(torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]]))
    >>> posterior.node.tolist(), posterior.joint(torch.tensor([[0], [1]])).tolist()
    ([[0.5, 0.5], [0.5, 0.5]], [[[0.5, 0.0], [0.0, 0.5]]])
    """

    def __init__(self, samples: ArrayLike, weights: ArrayLike | None = None, *, convergence: Convergence | None = None):
        super().__init__(convergence)
        self._samples = dense_tensor(samples, "samples")
        shape = tuple(self._samples.shape)
        if len(shape) < 3 or 0 in (shape[-3], shape[-1]):
            raise ValueError(f"Expected samples of shape (samples, nodes, classes), but got shape {shape}.")
        check_distributions(self._samples.flatten(0, -2), "samples", "row")
        if weights is None:
            self._weights = self._samples.new_full(shape[:-2], 1.0 / shape[-3])
        else:
            self._weights = dense_tensor(weights, "weights").to(self._samples)
        if self._weights.shape != shape[:-2]:
            raise ValueError(
                f"Expected weights of shape {shape[:-2]}, one per sample, but got shape {tuple(self._weights.shape)}."
            )
        check_distributions(self._weights.reshape(-1, shape[-3]), "weights", "row")

    @cached_property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node, Σ_s w_s p_s(y_i)."""
        return _normalize(torch.einsum("...s,...snc->...nc", self._weights, self._samples))

    def tensors(self) -> dict[str, Tensor]:
        """Return samples and weights."""
        return {"samples": self._samples, "weights": self._weights}

    @property
    def _num_copies(self) -> int:
        return max(1, self._samples.shape[-3] // self.num_classes)

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        # A matrix product with the last node sums over samples without a tensor (samples, sets, entries).
        first = self._samples[..., nodes[0], :] * self._weights[..., None, None]
        if len(nodes) == 1:
            return _normalize(first.sum(-3))
        for other in nodes[1:-1]:
            first = (first.unsqueeze(-1) * self._samples[..., other, :].unsqueeze(-2)).flatten(-2)
        last = self._samples[..., nodes[-1], :]
        return _normalize((first.movedim(-3, -1) @ last.transpose(-3, -2)).flatten(-2))

    @property
    def _num_numbers(self) -> int:
        return 2 * self._samples.shape[-3]

    def _log_probs(self, nodes: Int[Tensor, "set sets"], labels: Int[Tensor, "set sets"]) -> Float[Tensor, "*b sets"]:
        """Return log Σ_s w_s Π_i p_s(y_i), normalized: rounding moves the sum over all labels from 1."""
        log_weights = self._weights.double().log().unsqueeze(-1)
        chosen = self._samples[..., nodes, labels].double().log().sum(-2)
        return (log_weights + chosen).logsumexp(-2) - (log_weights + self._log_row_sums[..., nodes].sum(-2)).logsumexp(
            -2
        )

    @cached_property
    def _log_row_sums(self) -> Float[Tensor, "*batch samples nodes"]:
        return self._samples.sum(-1, dtype=torch.float64).log()

    def _describe_sets(self, nodes: Int[Tensor, "set sets"]) -> str:
        return f"mixture of {self._samples.shape[-3]:,} samples"

    def _sample(self, number: int, rng: np.random.Generator) -> Sample:
        """Draw a component of the mixture for each labeling, then its labels."""
        component = draw_labels(self._weights[None], number, rng).squeeze(1)
        labels = torch.empty(number, self.num_nodes, dtype=torch.long)
        chosen, counts = component.unique(return_counts=True)
        rows_of_chosen = component.argsort(stable=True).split(counts.tolist())
        for s, rows in zip(chosen.tolist(), rows_of_chosen, strict=True):
            labels[rows] = draw_labels(self._samples[s], len(rows), rng)
        return Sample(labels, Sampling("mixture", is_exact=True))


def _normalize(p: Float[Tensor, "*shape entries"]) -> Float[Tensor, "*shape entries"]:
    """Divide rows by their sums, so that a label that is certain in all samples has probability exactly 1."""
    return p / p.sum(-1, keepdim=True)
