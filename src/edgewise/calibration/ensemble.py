"""Ensemble temperature scaling: three opinions, mixed (Zhang, Kailkhura, Han 2020)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibrator import Learnt, NodeCalibrator, Seen
from edgewise.calibration.temperature import best_temperature

TOLERANCE = 1e-9  # nats
MOST_STEPS = 2000


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
    """Find the weights of the lowest NLL, by expectation maximisation: w_k ← w_k mean_i p_k(y_i) / Σ_l w_l p_l(y_i).

    The NLL is convex in the weights, no step raises it, and the logarithm of the largest mean is how far it may still
    fall. It may fall slowly where the lowest is a single opinion, so these are tried too.
    """
    of_labels = log_opinions[:, torch.arange(len(labels)), labels]
    single = torch.eye(len(log_opinions), dtype=log_opinions.dtype)
    weights = single.mean(0)
    for _ in range(MOST_STEPS):
        ratios = (of_labels - _log_mixed(of_labels, weights)).exp().mean(1)
        if float(ratios.max()) < 1 + TOLERANCE:
            break
        weights = weights * ratios
    tried = [weights, *single.unbind()]
    return max(tried, key=lambda weights: float(_log_mixed(of_labels, weights).sum()))


def _log_mixed(
    log_opinions: Float[Tensor, "opinions nodes"], weights: Float[Tensor, " opinions"]
) -> Float[Tensor, " nodes"]:
    return (log_opinions + weights.log().unsqueeze(1)).logsumexp(0)
