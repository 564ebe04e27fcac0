"""Temperature scaling with a temperature that grows with the spread of a node's logits."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.calibration.calibrator import Learnt, NodeCalibrator, Seen, minimised
from edgewise.calibration.options import check_positive


@dataclass(frozen=True)
class SpreadScaling(NodeCalibrator):
    """softmax(z_i / (T s_i^b)), s_i the spread of the logits of node i: their standard deviation over classes.

    Graph networks give some nodes, often hubs, logits many times as large as others, and one temperature cannot mend
    both. b = 0 is temperature scaling, b = 1 gives all nodes the same spread; no node's most likely label changes. s is
    relative to its geometric mean over the graph, so T is the temperature of a usual node. T and b have the lowest
    NLL on validation nodes plus log(T)² / 2σ_T² + b² / 2σ_b².

    Parameters
    ----------
    prior_log_temperature, prior_power
        σ_T and σ_b: how far from plain softmax one expects to end before having seen a label.
    """

    prior_log_temperature: float = 1.0
    prior_power: float = 0.5

    def __post_init__(self) -> None:
        check_positive(self, "prior_log_temperature", "prior_power")

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(z_i / (T s_i^b))."""
        log_spread = spread(seen.logits)

        def scaled(parameters: Float[Tensor, " 2"]) -> Float[Tensor, "nodes classes"]:
            log_temperature, power = parameters
            temperature: Tensor = (log_temperature + power * log_spread).exp()
            return seen.logits / temperature.unsqueeze(1)

        def loss(parameters: Float[Tensor, " 2"]) -> Tensor:
            log_temperature, power = parameters
            nll = cross_entropy(scaled(parameters)[seen.val], seen.val_labels, reduction="sum")
            prior = (log_temperature / self.prior_log_temperature) ** 2 + (power / self.prior_power) ** 2
            total: Tensor = nll + prior / 2
            return total

        found = minimised(loss, [0.0, 0.0])
        learnt = {"temperature": float(found[0].exp()), "power": float(found[1])}
        return scaled(found).log_softmax(-1), learnt


def spread(logits: Float[Tensor, "nodes classes"]) -> Float[Tensor, " nodes"]:
    """Give the logarithm of the standard deviation of each node's logits, less its mean over nodes."""
    floor = torch.finfo(logits.dtype).eps * (1.0 + float(logits.abs().max()))
    log_spread = logits.std(-1, correction=0).clamp(min=floor).log()
    return log_spread - log_spread.mean()
