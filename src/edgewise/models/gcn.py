"""GCN: two graph convolutions (Kipf and Welling 2017)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.kernels.adam import Adam, Weights
from edgewise.kernels.dropout import NO_DROPOUT, Dropout
from edgewise.kernels.projection import raised_product
from edgewise.kernels.sparse import Sparse, product
from edgewise.models.fitted import FittedClassifier
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, dropout_key, generator, glorot
from edgewise.models.task import Features, Nodes, Task
from edgewise.models.training import Log, Phase, checked_logits, trained


@dataclass(frozen=True, kw_only=True)
class GCN(Model[FittedClassifier]):
    """Two layers of averaging over neighbours, with ReLU and dropout between them.

    Parameters
    ----------
    hidden
        Hidden units.
    dropout
        The share of hidden units that is dropped in each training pass.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    max_epochs
        Stop after so many epochs.
    patience
        Stop when neither accuracy nor NLL on validation has improved for so many epochs.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = GCN(max_epochs=5).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.history.epochs
    (IndependentPosterior(nodes=2708, classes=7), 5)
    """

    max_epochs: int = 2000
    patience: int = 100

    name = "gcn"
    fitted = FittedClassifier

    def _trained(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        phase, adam = Phase("training", self.max_epochs, self.patience), Adam(self.learning_rate, self.weight_decay)
        weights = backbone_trained(task, self.hidden, self.dropout, seeds, phase, adam, log)
        logits = checked_logits(convolved(task, task.x, weights), self.learning_rate)
        return FittedClassifier(self, weights, log.history(), logits)


def convolution_weights(num_in: int, hidden: int, num_out: int, draws: torch.Generator, task: Task) -> Weights:
    """Draw initial weights: Glorot for matrices, zero for biases."""
    return {
        "weight_1": glorot((num_in, hidden), draws, task.dtype).to(task.device),
        "bias_1": torch.zeros(hidden, dtype=task.dtype, device=task.device),
        "weight_2": glorot((hidden, num_out), draws, task.dtype).to(task.device),
        "bias_2": torch.zeros(num_out, dtype=task.dtype, device=task.device),
    }


class Hidden(NamedTuple):
    """Â X W₁ of all rows that are needed, without a gradient, and of those that training needs, with one."""

    needed: Float[Tensor, "needed hidden"]
    learnt: Float[Tensor, "learnt hidden"]


@dataclass(frozen=True, eq=False)
class SparseFirstLayer:
    """W₁ ↦ Â (X W₁) on some rows, of which the first ``num_learnt`` have a gradient: X has fewer non-zeros than Â X."""

    averaging: Sparse
    features: Sparse
    num_learnt: int

    def forward(self, weight: Tensor) -> Tensor:
        """Give all rows."""
        return self.averaging.times(self.features.times(weight))

    def backward(self, grad: Float[Tensor, "learnt hidden"]) -> Tensor:
        """Give the gradient of the weight, from that of the rows that have one."""
        return self.features.transpose_times(self.averaging.transpose_times(grad))


@dataclass(frozen=True, eq=False)
class DenseFirstLayer:
    """W₁ ↦ (Â X) W₁ on some rows, of which the first ``num_learnt`` have a gradient; Â X is computed once."""

    averaged: Float[Tensor, "rows features"]
    num_learnt: int

    def forward(self, weight: Tensor) -> Tensor:
        """Give all rows."""
        return self.averaged @ weight

    def backward(self, grad: Float[Tensor, "learnt hidden"]) -> Tensor:
        """Give the gradient of the weight, from that of the rows that have one."""
        return self.averaged[: self.num_learnt].T @ grad


FirstLayer = SparseFirstLayer | DenseFirstLayer


class _FirstLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, layer: FirstLayer) -> tuple[Tensor, Tensor]:
        ctx.layer = layer
        needed = layer.forward(weight.detach())
        ctx.mark_non_differentiable(needed)
        return needed, needed[: layer.num_learnt]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.backward(grads[1]), None


_first_layer_passes: Callable[..., tuple[Tensor, Tensor]] = _FirstLayer.apply


class Convolution:
    """The logits of some nodes that are learnt from, and of some that validate."""

    def __init__(self, task: Task, x: Features, learnt: Nodes, validated: Nodes):
        learnt_rows = task.reached(learnt)
        validated_rows = task.reached(validated)
        rows = _first_then_rest(learnt_rows, validated_rows)
        self._crew = task.crew
        self._first = _first_layer(task, x, rows, len(learnt_rows))
        everyone = len(learnt) == task.num_nodes
        self._learnt = task.averaging_all if everyone else task.sparse(task.averaging[learnt][:, learnt_rows])
        self._validated = task.sparse(task.averaging[validated][:, validated_rows])
        where = np.empty(task.num_nodes, dtype=np.int64)
        where[rows] = np.arange(len(rows))
        self._validated_rows = torch.from_numpy(where[validated_rows]).to(task.device)

    def hidden(self, weights: Weights) -> Hidden:
        """Compute the first layer before its bias: what all passes share."""
        return Hidden(*_first_layer_passes(weights["weight_1"], self._first))

    def learnt_logits(self, weights: Weights, hidden: Hidden, dropout: Dropout, draw: int) -> Tensor:
        """Compute the logits of the nodes that are learnt from, with dropout between the layers."""
        told = raised_product(hidden.learnt, weights["bias_1"], weights["weight_2"], dropout, draw, self._crew)
        return product(self._learnt, told) + weights["bias_2"]

    def validated_logits(self, weights: Weights, hidden: Hidden) -> Tensor:
        """Compute the logits of the nodes that validate, without dropout."""
        rows = hidden.needed[self._validated_rows]
        told = raised_product(rows, weights["bias_1"], weights["weight_2"], NO_DROPOUT, 0, self._crew)
        return product(self._validated, told) + weights["bias_2"]


class ConvolutionPasses:
    """The passes of two convolutions for any loss of the logits that are learnt from."""

    def __init__(self, convolution: Convolution, dropout: Dropout, loss: Callable[[Tensor], Tensor]):
        self._convolution, self._dropout, self._loss = convolution, dropout, loss

    def shared(self, weights: Weights) -> Hidden:
        """Compute the first layer."""
        return self._convolution.hidden(weights)

    def loss(self, weights: Weights, shared: Hidden, draw: int) -> Tensor:
        """Compute the loss."""
        return self._loss(self._convolution.learnt_logits(weights, shared, self._dropout, draw))

    def validation(self, weights: Weights, shared: Hidden) -> Float[Tensor, "val classes"]:
        """Compute the logits of validation nodes."""
        return self._convolution.validated_logits(weights, shared)


def backbone_trained(task: Task, hidden: int, rate: float, seeds: Seeds, phase: Phase, adam: Adam, log: Log) -> Weights:
    """Train a GCN on the labels of training nodes: a model of its own, and where GMNN and EPFGNN begin."""
    draws = generator(seeds.initialisation, "gcn")
    weights = convolution_weights(task.num_features, hidden, task.num_classes, draws, task)
    convolution = Convolution(task, task.x, task.train.cpu().numpy(), task.val.cpu().numpy())
    labels = task.labels[task.train]
    dropout = Dropout(rate, dropout_key(seeds.dropout, "gcn"))
    passes = ConvolutionPasses(convolution, dropout, lambda logits: cross_entropy(logits, labels))
    return trained(weights, passes, task.labels[task.val], phase, adam, log)


def _first_then_rest(first: Nodes, others: Nodes) -> Nodes:
    return np.concatenate([first, np.setdiff1d(others, first)])


def _first_layer(task: Task, x: Features, rows: Nodes, num_learnt: int) -> FirstLayer:
    everyone = num_learnt == task.num_nodes
    if isinstance(x, Tensor):
        averaging = task.averaging_all if everyone else task.sparse(task.averaging[rows])
        return DenseFirstLayer(averaging.times(x), num_learnt)
    assert x is task.x
    if everyone:
        return SparseFirstLayer(task.averaging_all, task.features_all, num_learnt)
    learnt_columns = task.reached(rows[:num_learnt])
    columns = _first_then_rest(learnt_columns, task.reached(rows))
    return SparseFirstLayer(
        task.sparse(task.averaging[rows][:, columns], learnt_rows=num_learnt),
        task.sparse(x[columns], learnt_rows=len(learnt_columns)),
        num_learnt,
    )


def convolved(task: Task, x: Features, weights: Weights) -> Float[Tensor, "nodes classes"]:
    """Compute the logits of all nodes without dropout."""
    averaging, weight = task.averaging_all, weights["weight_1"]
    with torch.no_grad():
        if not isinstance(x, Tensor):
            assert x is task.x
            first = averaging.times(task.features_all.times(weight))
        elif x.shape[1] < weight.shape[1]:
            first = averaging.times(x) @ weight
        else:
            first = averaging.times(x @ weight)
        told = raised_product(first, weights["bias_1"], weights["weight_2"], NO_DROPOUT, 0, task.crew)
        return averaging.times(told) + weights["bias_2"]
