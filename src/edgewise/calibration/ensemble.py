"""Ensemble temperature scaling: three opinions, mixed (Zhang, Kailkhura, Han 2020)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.seen import Seen
from edgewise.calibration.temperature import best_temperature

LEAST_WEIGHT = 1e-12  # weights are above while they are searched for, so that no label is impossible


@dataclass(frozen=True)
class EnsembleTemperatureScaling(NodeCalibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / C, with T and then the weights of the lowest NLL on validation nodes.

    The most likely label of a node stays as it is. `learn` gives the "temperature" and the "weights".

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> EnsembleTemperatureScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give the logarithms of the mixture."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        nodes, classes = seen.logits.shape
        uniform = torch.full((nodes, classes), -math.log(classes), dtype=seen.logits.dtype)
        opinions = torch.stack([(seen.logits / temperature).log_softmax(-1), seen.logits.log_softmax(-1), uniform])
        weights = mixture_weights(opinions[:, seen.val], seen.val_labels, seen.doubt)
        log_marginals = (opinions + weights.log()[:, None, None]).logsumexp(0)
        return log_marginals, {"temperature": temperature, "weights": weights}


def mixture_weights(
    log_opinions: Float[Tensor, "opinions nodes classes"], labels: Int[Tensor, " nodes"], doubt: float = 0.0
) -> Float[Tensor, " opinions"]:
    """Find the weights w ≥ 0 of the lowest -mean_i log Σ_k w_k p_k(y_i) + Σ_k w_k: there they sum to 1.

    It is convex, and the last digits of small weights do not matter to it, so single opinions are tried too. With a
    doubt the mean is also over all labels of all nodes, which have that weight together (`doubt_about`).
    """
    from scipy.optimize import minimize

    of_labels = log_opinions[:, torch.arange(len(labels)), labels]
    shares = torch.ones(len(labels), dtype=of_labels.dtype)
    if doubt:
        others = log_opinions.flatten(1)
        shares = torch.cat([shares, torch.full_like(others[0], doubt / others.shape[1])])
        of_labels = torch.cat([of_labels, others], dim=1)
    shares = shares / shares.sum()
    p, share = (of_labels - of_labels.amax(0)).exp().numpy(), shares.numpy()
    count = len(p)

    def loss_and_gradient(weights: Any) -> tuple[float, Any]:
        mixed = weights @ p
        return float(weights.sum() - share @ np.log(mixed)), 1 - (p / mixed) @ share

    found = minimize(
        loss_and_gradient,
        [1 / count] * count,
        jac=True,
        method="L-BFGS-B",
        bounds=[(LEAST_WEIGHT, 1.0)] * count,
        tol=1e-14,
    )
    tried = torch.from_numpy(np.vstack([found.x / found.x.sum(), np.eye(count)]))
    nll = -(tried.log().unsqueeze(2) + of_labels).logsumexp(1) @ shares
    return tried[int(nll.argmin())]
