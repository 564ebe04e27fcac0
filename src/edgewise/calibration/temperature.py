"""Temperature scaling: one number for all nodes (Guo et al. 2017)."""

import math
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.likelihood import doubt_about
from edgewise.calibration.seen import Seen

LARGEST_TEMPERATURE = 1e4  # the smallest is its inverse


@dataclass(frozen=True)
class TemperatureScaling(NodeCalibrator):
    """softmax(z / T), with the T of the lowest NLL on validation nodes.

    The most likely label of a node stays as it is. `learn` gives the "temperature".

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> TemperatureScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(z / T)."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        return (seen.logits / temperature).log_softmax(-1), {"temperature": temperature}


def best_temperature(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Find the T of the lowest NLL: it is convex in 1 / T, so the sign of its slope tells where T is.

    d NLL / d(1/T) = Σ_i E_{softmax(z_i / T)}[z_i - z_i(y_i)]. Where every label has the largest logit there is no
    lowest, until some doubt is added (`doubt_about`). Where labels have on average no more than the mean of their
    node's logits, T is 1e4, the largest that we take. Where no logit differs from another any T is as good: it is 1.
    """
    from scipy.optimize import brentq

    ahead = logits - logits.gather(1, labels[:, None])
    if not bool(ahead.any()):
        return 1.0
    doubt = doubt_about(logits, labels) / len(labels)

    def slope(log_inverse: float) -> float:
        expected = ((ahead * math.exp(log_inverse)).softmax(-1) * ahead).sum(-1)
        return float((expected + doubt * (expected - ahead.mean(-1))).sum())

    widest = math.log(LARGEST_TEMPERATURE)
    if slope(widest) <= 0:
        return 1 / LARGEST_TEMPERATURE
    if slope(-widest) >= 0:
        return LARGEST_TEMPERATURE
    return math.exp(-float(brentq(slope, -widest, widest, xtol=1e-12)))
