"""Temperature scaling with a temperature that follows the spread of a node's logits and its degree."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.likelihood import nll
from edgewise.calibration.minimise import minimised
from edgewise.calibration.seen import Seen
from edgewise.data.options import check_number


@dataclass(frozen=True)
class LocalScaling(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T s_i^b (1 + d_i)^c; s_i is the standard deviation of a node's logits, d_i its degree.

    Graph networks give some nodes logits many times as large as others, and are surer of hubs, or less sure, than they
    should be: one temperature cannot mend both. Edges see nodes as often as these have neighbours, so a mistake at hubs
    that hardly shows in nodes is large in edges. b = c = 0 is temperature scaling, b = 1 gives all nodes the same
    spread; no node's most likely label changes. s and 1 + d are relative to their geometric means over the graph, so T
    is the temperature of a usual node. The three numbers have the lowest NLL on validation nodes plus
    log(T)² / 2σ_T² + b² / 2σ_b² + c² / 2σ_c²: a σ is how far from plain softmax one expects to end before having seen a
    label. `learn` gives T as "temperature", b as "spread" and c as "degree".

    Parameters
    ----------
    prior_log_temperature
        σ_T.
    prior_spread
        σ_b.
    prior_degree
        σ_c.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> LocalScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    prior_log_temperature: float = 1.0
    prior_spread: float = 0.5
    prior_degree: float = 0.15

    def __post_init__(self) -> None:
        check_number("prior_log_temperature", self.prior_log_temperature, above=0)
        check_number("prior_spread", self.prior_spread, above=0)
        check_number("prior_degree", self.prior_degree, above=0)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(z_i / T_i)."""
        usual = torch.ones(len(seen.labels), dtype=seen.logits.dtype)
        traits = torch.stack([usual, _log_spread(seen.logits), _centred((1 + seen.degree).log())], dim=1)
        priors = torch.tensor([self.prior_log_temperature, self.prior_spread, self.prior_degree], dtype=traits.dtype)

        doubt = seen.doubt

        def loss(exponents: Float[Tensor, " traits"]) -> Tensor:
            temperatures = (traits[seen.val] @ exponents).exp()
            scaled = seen.val_logits / temperatures.unsqueeze(1)
            return nll(scaled, seen.val_labels, doubt) + (exponents / priors).square().sum() / 2

        found = minimised(loss, [0.0, 0.0, 0.0])
        temperatures = (traits @ found).exp()
        learnt = {"temperature": float(found[0].exp()), "spread": float(found[1]), "degree": float(found[2])}
        return (seen.logits / temperatures.unsqueeze(1)).log_softmax(-1), learnt


def _log_spread(logits: Float[Tensor, "nodes classes"]) -> Float[Tensor, " nodes"]:
    """Give the logarithm of the standard deviation of each node's logits, less its mean over nodes."""
    floor = torch.finfo(logits.dtype).eps * (1.0 + float(logits.abs().max()))
    return _centred(logits.std(-1, correction=0).clamp(min=floor).log())


def _centred(values: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    return values - values.mean()
