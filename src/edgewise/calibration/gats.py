"""GATS: attention to neighbours gives each node a temperature (Hsu, Shen, Tomani, Cremers 2022)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu, softplus

from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.network import Training
from edgewise.calibration.seen import Seen
from edgewise.calibration.temperature import best_temperature
from edgewise.data.options import check_whole_number
from edgewise.models.adam import Weights
from edgewise.models.seeds import LARGEST_SEED, generator, glorot

MOST_HEADS = 1 << 10
LEAST_TEMPERATURE = 1e-2


@dataclass(frozen=True)
class GATS(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T₀ + mean_h softplus(ω δ_i + Σ_j α_ij γ_j θ_h·z̃_j) over i and its neighbours j.

    z̃_j are the sorted logits of j, scaled to [0, 1]; α_ij is the softmax of leaky-ReLU(z_i·z_j / γ_i γ_j); δ_i is by
    how much i is more confident than i and its neighbours on average; γ has one value for training nodes, one for
    their neighbours, and is 1 elsewhere. The NLL of validation nodes trains it, from where their T_i are on average
    that of temperature scaling; none falls below 0.01. No node's most likely label changes. `learn` gives the
    "temperatures".

    Parameters
    ----------
    heads
        How many θ there are.
    epochs
        How long to train at most.
    patience
        For how many epochs to wait for a lower NLL on the third of the validation nodes that tells when to stop.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    seed
        Of the first θ, and of which validation nodes tell when to stop.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> GATS().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    heads: int = 2
    epochs: int = 300
    patience: int = 50
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole_number("heads", self.heads, 1, MOST_HEADS)
        self._training()
        check_whole_number("seed", self.seed, 0, LARGEST_SEED)

    def _training(self) -> Training:
        return Training(self.epochs, self.patience, self.learning_rate, self.weight_decay)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(z_i / T_i)."""
        classes, dtype = seen.logits.shape[1], seen.logits.dtype
        draws = generator(self.seed, "gats")
        near = _Neighbourhood.of(seen, seen.val)
        weights: Weights = {
            "theta": glorot((classes, self.heads), draws, dtype),
            "omega": torch.zeros(1, dtype=dtype),
            "gamma": torch.ones(2, dtype=dtype),
            "base": torch.zeros(1, dtype=dtype),
        }
        start = best_temperature(seen.val_logits, seen.val_labels)
        weights["base"] = start - near.temperatures(weights).mean(0, keepdim=True)

        def scaled(weights: Weights) -> Float[Tensor, "val classes"]:
            return seen.val_logits / near.temperatures(weights).unsqueeze(1)

        found = self._training().best_weights(
            weights, lambda weights, _: scaled(weights), scaled, seen.val_labels, cross_entropy, seen.doubt, draws
        )
        temperatures = _Neighbourhood.of(seen, torch.ones_like(seen.val)).temperatures(found)
        return (seen.logits / temperatures.unsqueeze(1)).log_softmax(-1), {"temperatures": temperatures}


@dataclass(frozen=True, eq=False)
class _Neighbourhood:
    """Some nodes, each with itself and its neighbours."""

    listener: Int[Tensor, " pairs"]  # the place of a node among those whose temperature is asked for
    agreement: Float[Tensor, " pairs"]  # z_i·z_j
    kinds: tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]  # of i and j: trained, beside one that is, or neither
    speaker: Float[Tensor, "pairs classes"]  # z̃_j
    lead: Float[Tensor, " nodes"]  # δ_i

    @staticmethod
    def of(seen: Seen, chosen: Tensor) -> "_Neighbourhood":
        nodes = len(chosen)
        itself = torch.arange(nodes)
        source, target = torch.cat([seen.both_directions, itself.expand(2, -1)], dim=1)
        wanted = chosen[target]
        source, target = source[wanted], target[wanted]
        place = chosen.cumsum(0) - 1
        z = seen.logits
        low, high = z.aminmax(dim=1, keepdim=True)
        sorted_logits = ((z - low) / (high - low).clamp(min=torch.finfo(z.dtype).tiny)).sort(-1).values
        confidence = z.softmax(-1).amax(-1)
        around = torch.zeros_like(confidence).index_add(0, target, confidence[source])
        lead = (confidence - around / (seen.degree + 1))[chosen]
        beside = torch.zeros(nodes, dtype=torch.bool)
        beside[seen.both_directions[1][seen.train[seen.both_directions[0]]]] = True
        kind = torch.where(seen.train, 0, torch.where(beside, 1, 2))
        agreement = (z[target] * z[source]).sum(1)
        return _Neighbourhood(place[target], agreement, (kind[target], kind[source]), sorted_logits[source], lead)

    def temperatures(self, weights: Weights) -> Float[Tensor, " nodes"]:
        """Compute T_i."""
        gamma = torch.cat([weights["gamma"], torch.ones(1, dtype=self.agreement.dtype)])
        here, there = gamma[self.kinds[0]], gamma[self.kinds[1]]
        attention = self._shares(leaky_relu(self.agreement / _away_from_zero(here * there), 0.2))
        told = (self.speaker @ weights["theta"]) * (attention * there).unsqueeze(1)
        heard = told.new_zeros(len(self.lead), told.shape[1]).index_add(0, self.listener, told)
        warm = softplus(heard + (weights["omega"] * self.lead).unsqueeze(1)).mean(1)
        return (weights["base"] + warm).clamp(min=LEAST_TEMPERATURE)

    def _shares(self, scores: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """Normalise exp(scores) over the pairs of each listener."""
        empty = torch.full((len(self.lead),), -math.inf, dtype=scores.dtype)
        highest = empty.scatter_reduce(0, self.listener, scores.detach(), "amax")
        raised = (scores - highest[self.listener]).exp()
        total = torch.zeros_like(self.lead).index_add(0, self.listener, raised)
        return raised / total[self.listener]


def _away_from_zero(values: Tensor) -> Tensor:
    """Keep a divisor's sign, and its size above the least temperature."""
    return torch.where(values < 0, values.clamp(max=-LEAST_TEMPERATURE), values.clamp(min=LEAST_TEMPERATURE))
