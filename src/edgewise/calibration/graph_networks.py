"""CaGCN and GATS: small graph networks that predict temperatures from logits, trained on the validation nodes."""

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
from edgewise.calibration.scaling import fit_temperature
from edgewise.kernels.dropout import NO_DROPOUT, Dropout, apply_dropout
from edgewise.kernels.sparse import SparseMatrix, sparse_matmul
from edgewise.models.seeds import Weights, dropout_key, generator, glorot
from edgewise.models.training import adam, copy_weights, trainable_copies, update_weights
from edgewise.small_samples import MIN_SAMPLE
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_number, check_seed, check_whole_number

MAX_EPOCHS = 1 << 20
STOPPING_STRIDE = 3  # one in three validation nodes is used for early stopping
MIN_VAL_NODES = STOPPING_STRIDE * MIN_SAMPLE  # so that early stopping does not rest on few nodes

Logits = Float[Tensor, "val classes"]
Labels = Int[Tensor, " val"]


@dataclass(frozen=True)
class Training:
    """Adam on two thirds of the validation nodes, with early stopping on the NLL of the other third."""

    epochs: int
    patience: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        check_whole_number("epochs", self.epochs, 1, MAX_EPOCHS)
        check_whole_number("patience", self.patience, 1, MAX_EPOCHS)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)

    def train(
        self,
        weights: Weights,
        train_logits: Callable[[Weights, int], Logits],
        eval_logits: Callable[[Weights], Logits],
        labels: Labels,
        loss: Callable[[Logits, Labels], Tensor],
        pseudo_count: float,
        draws: torch.Generator,
    ) -> Weights:
        """Return the weights with the lowest NLL on the early-stopping nodes, including the initial weights.

        ``train_logits`` computes the calibrated logits of the validation nodes in an epoch, with dropout, and
        ``eval_logits`` those without dropout. ``pseudo_count`` refers to all validation nodes, see `pseudo_count`.
        """

        def add_pseudo_labels(loss: Tensor, logits: Logits) -> Tensor:
            return loss - pseudo_count / len(labels) * logits.log_softmax(-1).mean() if pseudo_count else loss

        stopping = torch.zeros(len(labels), dtype=torch.bool)
        stopping[torch.randperm(len(labels), generator=draws)[::STOPPING_STRIDE]] = True
        training = ~stopping if len(labels) > 1 else stopping
        learned = trainable_copies(weights)
        optimizer = adam(learned, self.learning_rate, self.weight_decay)
        best, kept, waited = math.inf, copy_weights(learned), 0
        for epoch in range(self.epochs + 1):
            with torch.no_grad():
                logits = eval_logits(learned)[stopping]
                nll = float(add_pseudo_labels(cross_entropy(logits, labels[stopping]), logits))
            waited = 0 if nll < best else waited + 1
            if nll < best:
                best, kept = nll, copy_weights(learned)
            if waited >= self.patience or epoch == self.epochs:
                break
            logits = train_logits(learned, epoch)[training]
            update_weights(optimizer, add_pseudo_labels(loss(logits, labels[training]), logits))
        return kept


MAX_HIDDEN = 1 << 16


@suggest_keywords
@dataclass(frozen=True)
class CaGCN(NodeCalibrator):
    """softmax(t_i z_i), t = log(exp(GCN(z)) + 1.1), trained with NLL and a margin loss (Wang et al. 2021).

    The margin loss increases the gap between the two largest probabilities of correct predictions, and decreases it for
    wrong ones. Deviation from the publication: early stopping uses a third of the validation nodes, not the training
    nodes, on which a network is overconfident. The predicted label of a node does not change. The parameters are the
    weights of both layers, and t of the nodes of `fit` as "factors".

    Parameters
    ----------
    hidden
        Number of hidden units.
    dropout
        Dropout probability of the hidden units.
    margin
        Weight of the margin loss.
    epochs
        Maximum number of epochs.
    patience
        Stop after this many epochs without a lower NLL on the early-stopping nodes.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    seed
        Seed of the initial weights, the dropout masks, and the choice of early-stopping nodes.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y, labeled=0.4)[0]
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

    def min_val_nodes(self, num_classes: int) -> int:
        """Return 300: one in three is used for early stopping only."""
        return MIN_VAL_NODES

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
        initial = {
            "weight_1": glorot((classes, self.hidden), draws, dtype),
            "bias_1": torch.zeros(self.hidden, dtype=dtype),
            "weight_2": glorot((self.hidden, 1), draws, dtype),
            "bias_2": torch.zeros(1, dtype=dtype),
        }
        dropout = Dropout(self.dropout, dropout_key(self.seed, "cagcn"))
        network = _CalibrationGCN.create(inputs.predictions, inputs.val)
        weights = self._training().train(
            initial,
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
    all_nodes = torch.ones(len(predictions.logits), dtype=torch.bool)
    return _CalibrationGCN.create(predictions, all_nodes).factors(weights, NO_DROPOUT, 0)


@dataclass(frozen=True, eq=False)
class _CalibrationGCN:
    """log(exp(Â ReLU(Â z W₁ + b₁) W₂ + b₂) + 1.1) for a set of nodes.

    It stores Â z for these nodes and their neighbors, and the rows of Â of these nodes.
    """

    propagated: Float[Tensor, "neighborhood classes"]
    adjacency: SparseMatrix

    @staticmethod
    def create(predictions: Predictions, nodes: Bool[Tensor, " nodes"]) -> "_CalibrationGCN":
        rows = predictions.normalized_adjacency[nodes.numpy()]
        neighborhood = np.unique(rows.indices)
        propagated = torch.from_numpy(predictions.normalized_adjacency[neighborhood] @ predictions.logits.numpy())
        adjacency = SparseMatrix.from_scipy(rows[:, neighborhood], propagated.dtype, propagated.device)
        return _CalibrationGCN(propagated, adjacency)

    def factors(self, weights: Learned, dropout: Dropout, epoch: int) -> Float[Tensor, "chosen 1"]:
        """Compute t of the nodes."""
        hidden = (self.propagated @ weights["weight_1"] + weights["bias_1"]).relu()
        projected = apply_dropout(hidden, dropout, epoch) @ weights["weight_2"]
        exponent = sparse_matmul(self.adjacency, projected) + weights["bias_2"]
        return torch.logaddexp(exponent, torch.full_like(exponent, math.log(1.1)))


def margin_loss(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> Tensor:
    """Return the mean of 1 - p₁ + p₂ for correct and p₁ - p₂ for wrong predictions, p₁ ≥ p₂ the two largest."""
    largest, classes = logits.softmax(-1).topk(2, dim=-1)
    gap = largest[:, 0] - largest[:, 1]
    return torch.where(classes[:, 0] == labels, 1 - gap, gap).mean()


MAX_HEADS = 1 << 10
MIN_TEMPERATURE = 1e-2


@suggest_keywords
@dataclass(frozen=True)
class GATS(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T₀ + mean_h softplus(ω δ_i + Σ_j α_ij γ_j θ_h·z̃_j), j = i and its neighbors.

    - z̃_j: the sorted logits of j, scaled to [0, 1].
    - α_ij: attention weights, the softmax over j of leaky_relu(z_i·z_j / γ_i γ_j).
    - δ_i: the confidence of i minus the mean confidence of i and its neighbors.
    - γ: one value for training nodes, one for their neighbors, and 1 for all other nodes.

    The network is trained with the NLL of the validation nodes (Hsu et al. 2022). The initial T₀ makes the mean T_i of
    the validation nodes that of temperature scaling. T_i is at least 0.01. The predicted label of a node does not
    change. The parameters are θ, ω, γ and T₀ as "theta", "omega", "gamma" and "base", and the "temperatures" of the
    nodes of `fit`. When applied to another graph, no node counts as a training node.

    Parameters
    ----------
    heads
        Number of heads, each with its own θ.
    epochs
        Maximum number of epochs.
    patience
        Stop after this many epochs without a lower NLL on the early-stopping nodes, a third of the validation nodes.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    seed
        Seed of the initial θ, and of the choice of early-stopping nodes.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y, labeled=0.4)[0]
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

    def min_val_nodes(self, num_classes: int) -> int:
        """Return 300: one in three is used for early stopping only."""
        return MIN_VAL_NODES

    def __post_init__(self) -> None:
        check_whole_number("heads", self.heads, 1, MAX_HEADS)
        self._training()
        check_seed(self.seed)

    def _training(self) -> Training:
        return Training(self.epochs, self.patience, self.learning_rate, self.weight_decay)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Train θ, ω, γ and T₀, and store the training nodes and the edges of the graph."""
        logits, labels = inputs.val_logits, inputs.val_labels
        draws = generator(self.seed, "gats")
        neighborhoods = _Neighborhoods.create(inputs.predictions, inputs.train, inputs.val)
        initial: Weights = {
            "theta": glorot((logits.shape[1], self.heads), draws, logits.dtype),
            "omega": torch.zeros(1, dtype=logits.dtype),
            "gamma": torch.ones(2, dtype=logits.dtype),
            "base": torch.zeros(1, dtype=logits.dtype),
        }
        mean_temperature = neighborhoods.temperatures(initial).mean(0, keepdim=True)
        initial["base"] = fit_temperature(logits, labels) - mean_temperature

        def scale_logits(weights: Weights) -> Float[Tensor, "val classes"]:
            return logits / neighborhoods.temperatures(weights).unsqueeze(1)

        weights = self._training().train(
            initial,
            lambda weights, _: scale_logits(weights),
            scale_logits,
            labels,
            cross_entropy,
            inputs.pseudo_count,
            draws,
        )
        learned = {**weights, "trained": inputs.train, "edge_index": inputs.predictions.edge_index}
        return {**learned, "temperatures": _temperatures(learned, inputs.predictions)}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(z_i / T_i)."""
        return (predictions.logits / _temperatures(learned, predictions).unsqueeze(1)).log_softmax(-1)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return all parameters except the stored graph and training nodes."""
        return {name: value for name, value in learned.items() if name not in ("trained", "edge_index")}


def _temperatures(learned: Learned, predictions: Predictions) -> Float[Tensor, " nodes"]:
    """Compute T of all nodes. Training nodes are those of `fit` if the graph is the same, and none otherwise."""
    all_nodes = torch.ones(len(predictions.logits), dtype=torch.bool)
    trained, edges = learned["trained"], learned["edge_index"]
    is_graph_of_fit = len(trained) == len(all_nodes) and torch.equal(edges, predictions.edge_index)
    trained = trained if is_graph_of_fit else torch.zeros_like(all_nodes)
    return _Neighborhoods.create(predictions, trained, all_nodes).temperatures(learned)


@dataclass(frozen=True, eq=False)
class _Neighborhoods:
    """Pairs of a node i, from a set of nodes, and a node j that is i or a neighbor of i."""

    target: Int[Tensor, " pairs"]  # the position of i in the set
    similarity: Float[Tensor, " pairs"]  # z_i·z_j
    gamma_index: tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]  # of i and j: 0 training node, 1 neighbor, 2 other
    sorted_logits: Float[Tensor, "pairs classes"]  # z̃_j
    relative_confidence: Float[Tensor, " nodes"]  # δ_i

    @staticmethod
    def create(
        predictions: Predictions, trained: Bool[Tensor, " nodes"], nodes: Bool[Tensor, " nodes"]
    ) -> "_Neighborhoods":
        num_nodes, z = len(nodes), predictions.logits
        source, target = torch.cat([predictions.both_directions, torch.arange(num_nodes).expand(2, -1)], dim=1)
        selected = nodes[target]
        source, target = source[selected], target[selected]
        position = nodes.cumsum(0) - 1
        low, high = z.aminmax(dim=1, keepdim=True)
        sorted_logits = ((z - low) / (high - low).clamp(min=torch.finfo(z.dtype).tiny)).sort(-1).values
        confidence = z.softmax(-1).amax(-1)
        confidence_sum = torch.zeros_like(confidence).index_add(0, target, confidence[source])
        relative_confidence = (confidence - confidence_sum / (predictions.degree + 1))[nodes]
        start, end = predictions.both_directions
        near_trained = torch.zeros(num_nodes, dtype=torch.bool)
        near_trained[end[trained[start]]] = True
        index = torch.where(trained, 0, torch.where(near_trained, 1, 2))
        return _Neighborhoods(
            target=position[target],
            similarity=(z[target] * z[source]).sum(1),
            gamma_index=(index[target], index[source]),
            sorted_logits=sorted_logits[source],
            relative_confidence=relative_confidence,
        )

    def temperatures(self, weights: Learned) -> Float[Tensor, " nodes"]:
        """Compute T_i."""
        from torch_geometric.utils import softmax

        num_nodes = len(self.relative_confidence)
        gamma = torch.cat([weights["gamma"], torch.ones(1, dtype=self.similarity.dtype)])
        gamma_i, gamma_j = gamma[self.gamma_index[0]], gamma[self.gamma_index[1]]
        scores = leaky_relu(self.similarity / _clamp_magnitude(gamma_i * gamma_j), 0.2)
        attention = softmax(scores, self.target, num_nodes=num_nodes)
        messages = (self.sorted_logits @ weights["theta"]) * (attention * gamma_j).unsqueeze(1)
        sums = messages.new_zeros(num_nodes, messages.shape[1]).index_add(0, self.target, messages)
        offsets = (weights["omega"] * self.relative_confidence).unsqueeze(1)
        return (weights["base"] + softplus(sums + offsets).mean(1)).clamp(min=MIN_TEMPERATURE)


def _clamp_magnitude(values: Tensor) -> Tensor:
    """Clamp the magnitude of divisors to at least `MIN_TEMPERATURE`, and keep their sign."""
    return torch.where(values < 0, values.clamp(max=-MIN_TEMPERATURE), values.clamp(min=MIN_TEMPERATURE))
