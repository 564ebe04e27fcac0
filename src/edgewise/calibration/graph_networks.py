"""How the small networks of CaGCN and GATS are trained: on the logits of validation nodes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu, softplus

from edgewise.calibration.calibration_input import Seen
from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.calibration.scaling import best_temperature
from edgewise.kernels.adam import Adam, Weights
from edgewise.kernels.dropout import NO_DROPOUT, Dropout, dropped
from edgewise.kernels.sparse import Sparse, product
from edgewise.models.seeds import dropout_key, generator, glorot
from edgewise.models.training import copied
from edgewise.validation import check_number, check_seed, check_whole_number

MOST_EPOCHS = 1 << 20
STOPPING = 3  # of so many validation nodes, one tells when to stop

Logits = Float[Tensor, "val classes"]
Labels = Int[Tensor, " val"]


@dataclass(frozen=True)
class Training:
    """Adam on two thirds of the validation nodes, until the NLL of the others has not fallen for so many epochs."""

    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        check_whole_number("epochs", self.epochs, 1, MOST_EPOCHS)
        check_whole_number("patience", self.patience, 1, MOST_EPOCHS)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)

    def best_weights(
        self,
        weights: Weights,
        noisy: Callable[[Weights, int], Logits],
        clean: Callable[[Weights], Logits],
        labels: Labels,
        loss: Callable[[Logits, Labels], Tensor],
        doubt: float,
        draws: torch.Generator,
    ) -> Weights:
        """Give the weights of the lowest NLL on the nodes that tell when to stop; the first ones are among them.

        ``noisy`` computes the calibrated logits of validation nodes in an epoch, ``clean`` the same without dropout.
        The ``doubt`` is about all validation nodes.
        """

        def doubted(loss: Tensor, logits: Logits) -> Tensor:
            return loss - doubt / len(labels) * logits.log_softmax(-1).mean() if doubt else loss

        stopping = torch.zeros(len(labels), dtype=torch.bool)
        stopping[torch.randperm(len(labels), generator=draws)[::STOPPING]] = True
        learning = ~stopping if len(labels) > 1 else stopping
        learnt = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        steps = Adam(self.learning_rate, self.weight_decay).over(learnt)
        best, kept, waited = math.inf, copied(learnt), 0
        for epoch in range(self.epochs + 1):
            with torch.no_grad():
                logits = clean(learnt)[stopping]
                nll = float(doubted(cross_entropy(logits, labels[stopping]), logits))
            waited = 0 if nll < best else waited + 1
            if nll < best:
                best, kept = nll, copied(learnt)
            if waited >= self.patience or epoch == self.epochs:
                break
            logits = noisy(learnt, epoch)[learning]
            steps.take(doubted(loss(logits, labels[learning]), logits))
        return kept


MOST_HIDDEN = 1 << 16


@dataclass(frozen=True)
class CaGCN(NodeCalibrator):
    """softmax(t_i z_i), t = log(exp(GCN(z)) + 1.1), trained by NLL and a margin on validation nodes.

    The margin pulls correct predictions apart from the runner-up and wrong ones towards it. Published trainings stop by
    the labels of training nodes, of which a network is surer than of others; here a third of the validation nodes tells
    when to stop. No node's most likely label changes. `learn` gives t as "factors".

    Parameters
    ----------
    hidden
        Units between its two layers.
    dropout
        The share of them that is dropped in each training pass.
    margin
        The weight of the margin.
    epochs
        How long to train at most.
    patience
        For how many epochs to wait for a lower NLL on the nodes that tell when to stop.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    seed
        Of weights and dropout, and of which validation nodes tell when to stop.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> CaGCN().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    hidden: int = 16
    dropout: float = 0.5
    margin: float = 0.5
    epochs: int = 200
    patience: int = 50
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole_number("hidden", self.hidden, 1, MOST_HIDDEN)
        check_number("margin", self.margin, least=0)
        check_number("dropout", self.dropout, least=0, below=1)
        self._training()
        check_seed(self.seed)

    def _training(self) -> Training:
        return Training(self.epochs, self.patience, self.learning_rate, self.weight_decay)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(t_i z_i)."""
        draws = generator(self.seed, "cagcn")
        classes, dtype = seen.logits.shape[1], seen.logits.dtype
        weights = {
            "weight_1": glorot((classes, self.hidden), draws, dtype),
            "bias_1": torch.zeros(self.hidden, dtype=dtype),
            "weight_2": glorot((self.hidden, 1), draws, dtype),
            "bias_2": torch.zeros(1, dtype=dtype),
        }
        dropout = Dropout(self.dropout, dropout_key(self.seed, "cagcn"))
        network = _Network.of(seen, seen.val)

        def scaled(weights: Weights, dropout: Dropout, epoch: int) -> Float[Tensor, "val classes"]:
            return network.factors(weights, dropout, epoch) * seen.val_logits

        found = self._training().best_weights(
            weights,
            lambda weights, epoch: scaled(weights, dropout, epoch),
            lambda weights: scaled(weights, NO_DROPOUT, 0),
            seen.val_labels,
            lambda logits, labels: cross_entropy(logits, labels) + self.margin * margin_loss(logits, labels),
            seen.doubt,
            draws,
        )
        factors = _Network.of(seen, torch.ones_like(seen.val)).factors(found, NO_DROPOUT, 0)
        return (factors * seen.logits).log_softmax(-1), {"factors": factors.squeeze(1)}


@dataclass(frozen=True, eq=False)
class _Network:
    """What log(exp(Â max(0, Â z W₁ + b₁) W₂ + b₂) + 1.1) needs on some nodes: Â z on those that reach them, and Â."""

    averaged: Float[Tensor, "reached classes"]
    last: Sparse

    @staticmethod
    def of(seen: Seen, chosen: Bool[Tensor, " nodes"]) -> "_Network":
        rows = seen.averaging[chosen.numpy()]
        reached = np.unique(rows.indices)
        averaged = torch.from_numpy(seen.averaging[reached] @ seen.logits.numpy())
        return _Network(averaged, Sparse.of(rows[:, reached], averaged.dtype, averaged.device))

    def factors(self, weights: Weights, dropout: Dropout, draw: int) -> Float[Tensor, "chosen 1"]:
        """Compute the factors of the chosen nodes."""
        hidden = (self.averaged @ weights["weight_1"] + weights["bias_1"]).relu()
        exponent = product(self.last, dropped(hidden, dropout, draw) @ weights["weight_2"]) + weights["bias_2"]
        return torch.logaddexp(exponent, torch.full_like(exponent, math.log(1.1)))


def margin_loss(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> Tensor:
    """Mean of 1 - p₁ + p₂ where the most likely label is right, and of p₁ - p₂ where it is wrong."""
    two, places = logits.softmax(-1).topk(2, dim=-1)
    gap = two[:, 0] - two[:, 1]
    return torch.where(places[:, 0] == labels, 1 - gap, gap).mean()


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
        check_seed(self.seed)

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
