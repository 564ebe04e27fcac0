"""Ensemble temperature scaling: three opinions, mixed (Zhang, Kailkhura, Han 2020)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibrator import Learnt, NodeCalibrator, Seen
from edgewise.calibration.temperature import best_temperature

TOLERANCE = 1e-10
MOST_STEPS = 10_000


@dataclass(frozen=True)
class EnsembleTemperatureScaling(NodeCalibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / C, with T and then the weights of the lowest NLL on validation nodes."""

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give the logarithms of the mixture."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        nodes, classes = seen.logits.shape
        uniform = torch.full((nodes, classes), -math.log(classes), dtype=seen.logits.dtype)
        opinions = torch.stack([(seen.logits / temperature).log_softmax(-1), seen.logits.log_softmax(-1), uniform])
        weights = mixture_weights(opinions[:, seen.val], seen.val_labels)
        log_marginals = (opinions + weights.log()[:, None, None]).logsumexp(0)
        return log_marginals, {"temperature": temperature, "weights": weights}


def mixture_weights(
    log_opinions: Float[Tensor, "opinions nodes classes"], labels: Int[Tensor, " nodes"]
) -> Float[Tensor, " opinions"]:
    """Find the weights of the lowest NLL, by expectation maximisation: w_k ← mean_i w_k p_k(y_i) / Σ_l w_l p_l(y_i).

    The NLL is convex in the weights and no step raises it.
    """
    of_labels = log_opinions[:, torch.arange(len(labels)), labels]
    weights = torch.full((len(log_opinions),), 1 / len(log_opinions), dtype=log_opinions.dtype)
    for _ in range(MOST_STEPS):
        shares = (of_labels + weights.log()[:, None]).softmax(0).mean(1)
        moved = float((shares - weights).abs().max())
        weights = shares
        if moved < TOLERANCE:
            break
    return weights
