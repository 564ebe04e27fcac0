"""CaGCN and GATS: small networks on the logits of a node and its neighbors, trained on validation nodes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu, softplus

from edgewise.calibration.calibration_input import CalibrationInput, Predictions
from edgewise.calibration.calibrator import Learned, NodeCalibrator, Parameters
from edgewise.calibration.scaling import best_temperature
from edgewise.kernels.adam import Adam, Weights
from edgewise.kernels.dropout import NO_DROPOUT, Dropout, apply_dropout
from edgewise.kernels.sparse import SparseMatrix, sparse_matmul
from edgewise.models.seeds import dropout_key, generator, glorot
from edgewise.models.training import copy_weights
from edgewise.validation import check_number, check_seed, check_whole_number

MAX_EPOCHS = 1 << 20
STOPPING = 3  # one of so many validation nodes tells when to stop

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
        check_whole_number("epochs", self.epochs, 1, MAX_EPOCHS)
        check_whole_number("patience", self.patience, 1, MAX_EPOCHS)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)

    def best_weights(
        self,
        weights: Weights,
        noisy: Callable[[Weights, int], Logits],
        clean: Callable[[Weights], Logits],
        labels: Labels,
        loss: Callable[[Logits, Labels], Tensor],
        added: float,
        draws: torch.Generator,
    ) -> Weights:
        """Return the weights of the lowest NLL on the nodes that tell when to stop; the first ones are among them.

        ``noisy`` computes the calibrated logits of validation nodes in an epoch, ``clean`` the same without dropout.
        The labels ``added`` (`pseudo_count`) are to those of all validation nodes.
        """

        def with_added(loss: Tensor, logits: Logits) -> Tensor:
            return loss - added / len(labels) * logits.log_softmax(-1).mean() if added else loss

        stopping = torch.zeros(len(labels), dtype=torch.bool)
        stopping[torch.randperm(len(labels), generator=draws)[::STOPPING]] = True
        learning = ~stopping if len(labels) > 1 else stopping
        learned = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        steps = Adam(self.learning_rate, self.weight_decay).optimizer(learned)
        best, kept, waited = math.inf, copy_weights(learned), 0
        for epoch in range(self.epochs + 1):
            with torch.no_grad():
                logits = clean(learned)[stopping]
                nll = float(with_added(cross_entropy(logits, labels[stopping]), logits))
            waited = 0 if nll < best else waited + 1
            if nll < best:
                best, kept = nll, copy_weights(learned)
            if waited >= self.patience or epoch == self.epochs:
                break
            logits = noisy(learned, epoch)[learning]
            steps.step(with_added(loss(logits, labels[learning]), logits))
        return kept


MAX_HIDDEN = 1 << 16


@dataclass(frozen=True)
class CaGCN(NodeCalibrator):
    """softmax(t_i z_i), t = log(exp(GCN(z)) + 1.1), trained by NLL and a margin on validation nodes.

    The margin pulls correct predictions apart from the runner-up and wrong ones towards it. Published trainings stop by
    the labels of training nodes, of which a network is surer than of others; here a third of the validation nodes tells
    when to stop. No node's most likely label changes. The parameters are the weights of both layers, and t of the nodes
    of `fit` as "factors" (Wang et al. 2021).

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
    >>> CaGCN().fit(logits, data, split).posterior()
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

    name = "cagcn"

    def __post_init__(self) -> None:
        check_whole_number("hidden", self.hidden, 1, MAX_HIDDEN)
        check_number("margin", self.margin, least=0)
        check_number("dropout", self.dropout, least=0, below=1)
        self._training()
        check_seed(self.seed)

    def _training(self) -> Training:
        return Training(self.epochs, self.patience, self.learning_rate, self.weight_decay)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Train the weights of both layers."""
        draws = generator(self.seed, "cagcn")
        logits, labels = inputs.val_logits, inputs.val_labels
        classes, dtype = logits.shape[1], logits.dtype
        first = {
            "weight_1": glorot((classes, self.hidden), draws, dtype),
            "bias_1": torch.zeros(self.hidden, dtype=dtype),
            "weight_2": glorot((self.hidden, 1), draws, dtype),
            "bias_2": torch.zeros(1, dtype=dtype),
        }
        dropout = Dropout(self.dropout, dropout_key(self.seed, "cagcn"))
        network = _Network.of(inputs.predictions, inputs.val)
        weights = self._training().best_weights(
            first,
            lambda weights, epoch: network.factors(weights, dropout, epoch) * logits,
            lambda weights: network.factors(weights, NO_DROPOUT, 0) * logits,
            labels,
            lambda logits, labels: cross_entropy(logits, labels) + self.margin * margin_loss(logits, labels),
            inputs.pseudo_count,
            draws,
        )
        return {**weights, "factors": _factors(weights, inputs.predictions).squeeze(1)}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(t_i z_i)."""
        return (_factors(learned, predictions) * predictions.logits).log_softmax(-1)


def _factors(weights: Learned, predictions: Predictions) -> Float[Tensor, "nodes 1"]:
    """Compute t of all nodes."""
    everyone = torch.ones(len(predictions.logits), dtype=torch.bool)
    return _Network.of(predictions, everyone).factors(weights, NO_DROPOUT, 0)


@dataclass(frozen=True, eq=False)
class _Network:
    """What log(exp(Â max(0, Â z W₁ + b₁) W₂ + b₂) + 1.1) needs on some nodes: Â z on those that reach them, and Â."""

    averaged: Float[Tensor, "reached classes"]
    last: SparseMatrix

    @staticmethod
    def of(predictions: Predictions, chosen: Bool[Tensor, " nodes"]) -> "_Network":
        rows = predictions.normalized_adjacency[chosen.numpy()]
        reached = np.unique(rows.indices)
        averaged = torch.from_numpy(predictions.normalized_adjacency[reached] @ predictions.logits.numpy())
        return _Network(averaged, SparseMatrix.from_scipy(rows[:, reached], averaged.dtype, averaged.device))

    def factors(self, weights: Learned, dropout: Dropout, epoch: int) -> Float[Tensor, "chosen 1"]:
        """Compute t of the chosen nodes."""
        hidden = (self.averaged @ weights["weight_1"] + weights["bias_1"]).relu()
        exponent = (
            sparse_matmul(self.last, apply_dropout(hidden, dropout, epoch) @ weights["weight_2"]) + weights["bias_2"]
        )
        return torch.logaddexp(exponent, torch.full_like(exponent, math.log(1.1)))


def margin_loss(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> Tensor:
    """Mean of 1 - p₁ + p₂ where the most likely label is right, and of p₁ - p₂ where it is wrong."""
    two, places = logits.softmax(-1).topk(2, dim=-1)
    gap = two[:, 0] - two[:, 1]
    return torch.where(places[:, 0] == labels, 1 - gap, gap).mean()


MAX_HEADS = 1 << 10
MIN_TEMPERATURE = 1e-2


@dataclass(frozen=True)
class GATS(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T₀ + mean_h softplus(ω δ_i + Σ_j α_ij γ_j θ_h·z̃_j) over i and its neighbors j.

    z̃_j are the sorted logits of j, scaled to [0, 1]; α_ij is the softmax of leaky-ReLU(z_i·z_j / γ_i γ_j); δ_i is by
    how much i is more confident than i and its neighbors on average; γ has one value for training nodes, one for
    their neighbors, and is 1 elsewhere. The NLL of validation nodes trains it, from where their T_i are on average
    that of temperature scaling; none falls below 0.01. No node's most likely label changes. The parameters are θ, ω, γ
    and T₀ ("theta", "omega", "gamma", "base"), and the "temperatures" of the nodes of `fit`. Applied to another graph,
    no node counts as a training node (Hsu et al. 2022).

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
    >>> GATS().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    heads: int = 2
    epochs: int = 300
    patience: int = 50
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    seed: int = 0

    name = "gats"

    def __post_init__(self) -> None:
        check_whole_number("heads", self.heads, 1, MAX_HEADS)
        self._training()
        check_seed(self.seed)

    def _training(self) -> Training:
        return Training(self.epochs, self.patience, self.learning_rate, self.weight_decay)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Train θ, ω, γ and T₀; keep which nodes were trained on, and in which graph."""
        logits, labels = inputs.val_logits, inputs.val_labels
        draws = generator(self.seed, "gats")
        near = _Neighborhood.of(inputs.predictions, inputs.train, inputs.val)
        first: Weights = {
            "theta": glorot((logits.shape[1], self.heads), draws, logits.dtype),
            "omega": torch.zeros(1, dtype=logits.dtype),
            "gamma": torch.ones(2, dtype=logits.dtype),
            "base": torch.zeros(1, dtype=logits.dtype),
        }
        first["base"] = best_temperature(logits, labels) - near.temperatures(first).mean(0, keepdim=True)

        def scaled(weights: Weights) -> Float[Tensor, "val classes"]:
            return logits / near.temperatures(weights).unsqueeze(1)

        weights = self._training().best_weights(
            first, lambda weights, _: scaled(weights), scaled, labels, cross_entropy, inputs.pseudo_count, draws
        )
        learned = {**weights, "trained": inputs.train, "edge_index": inputs.predictions.edge_index}
        return {**learned, "temperatures": _temperatures(learned, inputs.predictions)}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(z_i / T_i)."""
        return (predictions.logits / _temperatures(learned, predictions).unsqueeze(1)).log_softmax(-1)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Leave out the graph and who was trained on."""
        return {name: value for name, value in learned.items() if name not in ("trained", "edge_index")}


def _temperatures(learned: Learned, predictions: Predictions) -> Float[Tensor, " nodes"]:
    """Compute T of all nodes. On the graph of `fit` some were trained on; on another graph none was."""
    everyone = torch.ones(len(predictions.logits), dtype=torch.bool)
    trained, edges = learned["trained"], learned["edge_index"]
    is_graph_of_fit = len(trained) == len(everyone) and torch.equal(edges, predictions.edge_index)
    trained = trained if is_graph_of_fit else torch.zeros_like(everyone)
    return _Neighborhood.of(predictions, trained, everyone).temperatures(learned)


@dataclass(frozen=True, eq=False)
class _Neighborhood:
    """Some nodes i, each with itself and its neighbors j."""

    target: Int[Tensor, " pairs"]  # the place of i among the nodes whose temperature is asked for
    agreement: Float[Tensor, " pairs"]  # z_i·z_j
    kinds: tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]  # of i and j: trained, beside one that is, or neither
    sorted_logits: Float[Tensor, "pairs classes"]  # z̃_j
    lead: Float[Tensor, " nodes"]  # δ_i

    @staticmethod
    def of(
        predictions: Predictions, trained: Bool[Tensor, " nodes"], chosen: Bool[Tensor, " nodes"]
    ) -> "_Neighborhood":
        nodes, z = len(chosen), predictions.logits
        source, target = torch.cat([predictions.both_directions, torch.arange(nodes).expand(2, -1)], dim=1)
        wanted = chosen[target]
        source, target = source[wanted], target[wanted]
        place = chosen.cumsum(0) - 1
        low, high = z.aminmax(dim=1, keepdim=True)
        sorted_logits = ((z - low) / (high - low).clamp(min=torch.finfo(z.dtype).tiny)).sort(-1).values
        confidence = z.softmax(-1).amax(-1)
        around = torch.zeros_like(confidence).index_add(0, target, confidence[source])
        lead = (confidence - around / (predictions.degree + 1))[chosen]
        start, end = predictions.both_directions
        beside = torch.zeros(nodes, dtype=torch.bool)
        beside[end[trained[start]]] = True
        kind = torch.where(trained, 0, torch.where(beside, 1, 2))
        agreement = (z[target] * z[source]).sum(1)
        return _Neighborhood(place[target], agreement, (kind[target], kind[source]), sorted_logits[source], lead)

    def temperatures(self, weights: Learned) -> Float[Tensor, " nodes"]:
        """Compute T_i."""
        from torch_geometric.utils import softmax

        gamma = torch.cat([weights["gamma"], torch.ones(1, dtype=self.agreement.dtype)])
        gamma_i, gamma_j = gamma[self.kinds[0]], gamma[self.kinds[1]]
        scores = leaky_relu(self.agreement / _away_from_zero(gamma_i * gamma_j), 0.2)
        attention = softmax(scores, self.target, num_nodes=len(self.lead))
        messages = (self.sorted_logits @ weights["theta"]) * (attention * gamma_j).unsqueeze(1)
        received = messages.new_zeros(len(self.lead), messages.shape[1]).index_add(0, self.target, messages)
        warmth = softplus(received + (weights["omega"] * self.lead).unsqueeze(1)).mean(1)
        return (weights["base"] + warmth).clamp(min=MIN_TEMPERATURE)


def _away_from_zero(values: Tensor) -> Tensor:
    """Keep a divisor's sign, and its size above the least temperature."""
    return torch.where(values < 0, values.clamp(max=-MIN_TEMPERATURE), values.clamp(min=MIN_TEMPERATURE))
