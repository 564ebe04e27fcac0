"""GAT: two layers of graph attention (Veličković et al. 2018)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, elu

from edgewise.kernels.adam import Adam, Weights
from edgewise.kernels.attention import Listeners, attended
from edgewise.kernels.dropout import Dropout, dropped
from edgewise.kernels.sparse import Kept, Sparse, product
from edgewise.models.fitted import FittedClassifier
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, dropout_key, generator, glorot
from edgewise.models.task import Nodes, Task
from edgewise.models.training import Log, Phase, checked_logits, trained

DRAWS = 4  # places where entries are dropped


@dataclass(frozen=True, kw_only=True)
class GAT(Model[FittedClassifier]):
    """Two layers of attention: several heads side by side and ELU, then one.

    Parameters
    ----------
    hidden
        Hidden units of all heads together.
    dropout
        The share that is dropped of the inputs of both layers, and of attention weights, in each training pass.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    heads
        Heads of the first layer.
    max_epochs
        Stop after so many epochs.
    patience
        Stop when neither accuracy nor NLL on validation has improved for so many epochs.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> GAT(max_epochs=2).fit(data, split, seed=0).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    heads: int = 8
    max_epochs: int = 2000
    patience: int = 100

    name = "gat"
    fitted = FittedClassifier

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise ValueError(f"Expected hidden to be a multiple of {self.heads} heads, but got {self.hidden}.")

    def _trained(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        draws = generator(seeds.initialisation, self.name)
        weights = initial_weights(task, self.heads, self.hidden // self.heads, draws)
        passes = _Passes(task, Dropout(self.dropout, dropout_key(seeds.dropout, self.name)))
        phase, adam = Phase("training", self.max_epochs, self.patience), Adam(self.learning_rate, self.weight_decay)
        weights = trained(weights, passes, task.labels[task.val], phase, adam, log)
        with torch.no_grad():
            logits = _Attention(task, task.all_nodes).logits(weights)
        return FittedClassifier(self, weights, log.history(), checked_logits(logits, self.learning_rate))


def initial_weights(task: Task, heads: int, units: int, draws: torch.Generator) -> Weights:
    """Draw initial weights: Glorot for matrices and vectors of attention, zero for biases."""
    hidden, classes = heads * units, task.num_classes
    weights = {
        "weight_1": glorot((task.num_features, hidden), draws, task.dtype),
        "att_src_1": glorot((heads, units), draws, task.dtype),
        "att_dst_1": glorot((heads, units), draws, task.dtype),
        "bias_1": torch.zeros(hidden, dtype=task.dtype),
        "weight_2": glorot((hidden, classes), draws, task.dtype),
        "att_src_2": glorot((1, classes), draws, task.dtype),
        "att_dst_2": glorot((1, classes), draws, task.dtype),
        "bias_2": torch.zeros(classes, dtype=task.dtype),
    }
    return {name: weight.to(task.device) for name, weight in weights.items()}


class _Attention:
    """The logits of some nodes, from the features of all that reach them in two steps."""

    def __init__(self, task: Task, nodes: Nodes):
        hidden = task.reached(nodes)
        inputs = task.reached(hidden)
        self._first, self._second = Listeners.of(task, hidden, inputs), Listeners.of(task, nodes, hidden)
        self._x: Sparse | Tensor
        if isinstance(task.x, Tensor):
            self._x = task.x[torch.from_numpy(inputs).to(task.device)]
        else:
            self._x = task.sparse(task.x[inputs])
        self._device = task.device

    def logits(self, weights: Weights, dropout: Dropout | None = None, draw: int = 0) -> Float[Tensor, "nodes classes"]:
        """Compute the logits, with dropout while training."""
        dropout = dropout if dropout is not None and dropout.rate > 0.0 else None
        projected = self._projected(weights["weight_1"], dropout, DRAWS * draw)
        kept = self._kept(self._first.num_pairs * len(weights["att_src_1"]), dropout, DRAWS * draw + 1)
        heard = attended(projected, weights["att_src_1"], weights["att_dst_1"], self._first, kept)
        hidden = elu(heard + weights["bias_1"])
        if dropout is not None:
            hidden = dropped(hidden, dropout, DRAWS * draw + 2)
        kept = self._kept(self._second.num_pairs, dropout, DRAWS * draw + 3)
        projected = hidden @ weights["weight_2"]
        return attended(projected, weights["att_src_2"], weights["att_dst_2"], self._second, kept) + weights["bias_2"]

    def _projected(self, weight: Tensor, dropout: Dropout | None, draw: int) -> Tensor:
        if isinstance(self._x, Tensor):
            return (self._x if dropout is None else dropped(self._x, dropout, draw)) @ weight
        return product(self._x, weight, self._kept(self._x.num_entries, dropout, draw))

    def _kept(self, num: int, dropout: Dropout | None, draw: int) -> Kept | None:
        if dropout is None:
            return None
        return Kept(dropout.keep(num, draw, self._device), dropout.scale)


class _Passes:
    """A GAT's passes for the cross-entropy on training nodes; dropout comes first, so they share nothing."""

    def __init__(self, task: Task, dropout: Dropout):
        train, val = (np.asarray(nodes.cpu()) for nodes in (task.train, task.val))
        self._training, self._validation = _Attention(task, train), _Attention(task, val)
        self._dropout, self._labels = dropout, task.labels[task.train]

    def shared(self, weights: Weights) -> None:
        """Nothing."""

    def loss(self, weights: Weights, shared: None, draw: int) -> Tensor:
        """Compute the cross-entropy."""
        return cross_entropy(self._training.logits(weights, self._dropout, draw), self._labels)

    def validation(self, weights: Weights, shared: None) -> Float[Tensor, "val classes"]:
        """Compute the logits of validation nodes."""
        return self._validation.logits(weights)
