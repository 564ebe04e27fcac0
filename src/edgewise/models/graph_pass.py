"""The operations of a forward pass over a graph, restricted to the rows that the requested logits depend on.

After k graph convolutions, the logits of a set of nodes depend only on nodes within k hops. A model declares its
number of hops (`Classifier.hops`), and its forward pass is written as if for the whole graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.kernels.attention import Neighborhoods, attend
from edgewise.kernels.dropout import NO_DROPOUT, Dropout, apply_dropout
from edgewise.kernels.projection import relu_dropout_matmul
from edgewise.kernels.sparse import DropoutMask, SparseMatrix, sparse_matmul
from edgewise.models.seeds import Weights
from edgewise.models.task import Features, Graph, Nodes, Task

Forward = Callable[[Weights, "GraphPass"], Tensor]


class GraphPass:
    """The operations of a forward pass: X are the features, Â = D^-½ (A + I) D^-½ is the normalized adjacency.

    Dropout is active in training passes only. Each call of `propagate_features`, `propagate` or `attend` is one of the
    model's hops.
    """

    def __init__(self, field: "ReceptiveField", propagate_features: Callable[[Tensor], Tensor], draws: "Draws"):
        self._field, self._propagate_features, self._draws = field, propagate_features, draws
        self._hop = field.hops

    def propagate_features(self, weight: Float[Tensor, "features hidden"]) -> Float[Tensor, "rows hidden"]:
        """Compute Â X W, in the faster order of multiplication."""
        self._step()
        self._check_features(weight)
        return self._propagate_features(weight)

    def project_features(
        self, weight: Float[Tensor, "features hidden"], dropout: bool = False
    ) -> Float[Tensor, "rows hidden"]:
        """Compute X W, optionally with dropout on X."""
        self._check_features(weight)
        x = self._field.features
        if isinstance(x, Tensor):
            return (self.dropout(x) if dropout else x) @ weight
        return sparse_matmul(x, weight, self._kept(x.num_entries) if dropout else None)

    def propagate(self, h: Float[Tensor, "inner width"]) -> Float[Tensor, "rows width"]:
        """Compute Â H."""
        return sparse_matmul(self._field.propagation_matrix(self._step()), h)

    def attend(
        self,
        projected: Float[Tensor, "inner width"],
        att_src: Float[Tensor, "heads units"],
        att_dst: Float[Tensor, "heads units"],
    ) -> Float[Tensor, "rows width"]:
        """Compute Σ_j α_ij P_j, α_ij = softmax_j(leaky_relu(a_src · P_j + a_dst · P_i)), with dropout on α."""
        neighborhoods = self._field.neighborhoods(self._step())
        return attend(projected, att_src, att_dst, neighborhoods, self._kept(neighborhoods.num_pairs * len(att_src)))

    def dropout(self, h: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Zero random entries of H, and scale the others."""
        return apply_dropout(h, self._draws.dropout, self._draws.next())

    def relu_dropout_matmul(
        self, h: Float[Tensor, "rows hidden"], bias: Float[Tensor, " hidden"], weight: Float[Tensor, "hidden width"]
    ) -> Float[Tensor, "rows width"]:
        """Compute dropout(ReLU(H + b)) W in one operation."""
        return relu_dropout_matmul(h, bias, weight, self._draws.dropout, self._draws.next(), self._field.graph.threads)

    def logits(self, forward: Forward, weights: Weights) -> Float[Tensor, "nodes classes"]:
        """Run a forward pass, and return the logits of the requested nodes."""
        logits = forward(weights, self)
        if self._hop:
            raise TypeError(
                f"Expected a forward pass of {self._field.hops} hops, but got "
                f"{self._field.hops - self._hop if self._field.hops else 0}. Set the model's hops to that number."
            )
        return self._field.select(logits)

    def _step(self) -> int | None:
        """Count one hop, and return its number."""
        if self._hop == 0:
            raise TypeError(
                f"Expected a forward pass of {self._field.hops} hops, but got more. Set the model's hops to the actual "
                "number, or to None to compute all rows."
            )
        hop = self._hop
        self._hop = None if hop is None else hop - 1
        return hop

    def _check_features(self, weight: Tensor) -> None:
        if (num := self._field.num_features) != len(weight):
            raise ValueError(f"Expected x with {len(weight)} features, as in training, but got {num}.")

    def _kept(self, num: int) -> DropoutMask | None:
        dropout = self._draws.dropout
        if dropout.rate == 0.0:
            return None
        return DropoutMask(dropout.keep(num, self._draws.next(), self._field.graph.device), dropout.scale)


class Draws:
    """Numbers the dropout masks of one training phase."""

    def __init__(self, dropout: Dropout):
        self.dropout, self._used = dropout, 0

    def next(self) -> int:
        """Return the number of the next mask."""
        self._used += 1
        return self._used - 1


class ReceptiveField:
    """The requested nodes, and the nodes within each number of hops of them; with ``hops=None``, always all nodes."""

    def __init__(self, graph: Graph, x: Features, nodes: Nodes, hops: int | None):
        self.graph, self.hops, self._x, self._nodes = graph, hops, x, nodes
        self._levels, self._propagation = [nodes], dict[int, SparseMatrix]()
        self._neighborhoods = dict[int | None, Neighborhoods]()

    def within(self, hops: int | None) -> Nodes:
        """Return the nodes within a number of hops, sorted; for None all nodes."""
        if hops is None:
            return self.graph.all_nodes
        while len(self._levels) <= hops:
            self._levels.append(self.graph.closed_neighborhood(self._levels[-1]))
        return self._levels[hops]

    def propagation_matrix(self, hop: int | None) -> SparseMatrix:
        """Return the rows of Â of nodes within ``hop - 1`` hops, and the columns of nodes within ``hop`` hops."""
        if hop is None or len(self.within(hop - 1)) == self.graph.num_nodes:
            return self.graph.propagation_matrix
        if hop not in self._propagation:
            rows, columns = self.within(hop - 1), self.within(hop)
            self._propagation[hop] = self.graph.sparse(self.graph.normalized_adjacency[rows][:, columns])
        return self._propagation[hop]

    def neighborhoods(self, hop: int | None) -> Neighborhoods:
        """Return the closed neighborhoods of the nodes within ``hop - 1`` hops."""
        if hop not in self._neighborhoods:
            targets, sources = self.within(None if hop is None else hop - 1), self.within(hop)
            adjacent = self.graph.adjacency[targets]
            positions = np.searchsorted(sources, adjacent.indices), np.searchsorted(sources, targets)
            self._neighborhoods[hop] = Neighborhoods.from_arrays(
                adjacent.indptr, *positions, len(sources), self.graph.device, self.graph.threads
            )
        return self._neighborhoods[hop]

    @property
    def num_features(self) -> int:
        """The number of features per node."""
        return int(self._x.shape[1])

    @cached_property
    def features(self) -> SparseMatrix | Tensor:
        """X of all nodes within the model's hops."""
        nodes = self.within(self.hops)
        if isinstance(self._x, Tensor):
            return self._x if len(nodes) == self.graph.num_nodes else self._x[self._index(nodes)]
        return self.graph.sparse_features if len(nodes) == self.graph.num_nodes else self.graph.sparse(self._x[nodes])

    def select(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "nodes width"]:
        """Return the rows of the requested nodes, from the output of a forward pass."""
        return rows if self.hops is not None or len(self._nodes) == len(rows) else rows[self._index(self._nodes)]

    def _index(self, nodes: Nodes) -> Tensor:
        return torch.from_numpy(nodes).to(self.graph.device)


def all_logits(
    forward: Forward, graph: Graph, x: Features, weights: Weights, dropout: Dropout = NO_DROPOUT
) -> Float[Tensor, "nodes classes"]:
    """Compute the logits of all nodes without gradients, by default without dropout."""
    field = ReceptiveField(graph, x, graph.all_nodes, None)

    def propagate_features(weight: Tensor) -> Tensor:
        adjacency = graph.propagation_matrix
        if not isinstance(x, Tensor):
            return adjacency.matmul(graph.sparse_features.matmul(weight))
        if x.shape[1] < weight.shape[1]:
            return adjacency.matmul(x) @ weight
        return adjacency.matmul(x @ weight)

    with torch.no_grad():
        return GraphPass(field, propagate_features, Draws(dropout)).logits(forward, weights)


class TrainingRows:
    """The receptive fields of the nodes in the loss and of the nodes in validation, by default the validation nodes."""

    def __init__(self, task: Task, x: Features, nodes: Nodes, hops: int | None, val: Nodes | None = None):
        self.nodes = ReceptiveField(task, x, nodes, hops)
        self.val = ReceptiveField(task, x, np.asarray(task.val.cpu()) if val is None else val, hops)
        self._task, self._x, self._hops = task, x, hops

    @cached_property
    def first_layer(self) -> "FirstLayer":
        """W ↦ Â X W, for the rows that both receptive fields need."""
        hops = None if self._hops is None else self._hops - 1
        return FirstLayer(self._task, self._x, self.nodes.within(hops), self.val.within(hops))


class TrainingPass:
    """A forward pass over the rows that training needs."""

    def __init__(self, forward: Forward, rows: TrainingRows, dropout: Dropout):
        self.forward, self.rows, self.draws = forward, rows, Draws(dropout)

    def at(self, weights: Weights) -> "TrainingLogits":
        """Return the logits for these weights. Call it again after the weights have changed."""
        return TrainingLogits(self, weights)


class TrainingLogits:
    """Logits for fixed weights. All passes share Â X W, which does not depend on dropout."""

    def __init__(self, training_pass: TrainingPass, weights: Weights):
        self._pass, self._weights = training_pass, weights
        self._first: list[tuple[Tensor, PropagatedFeatures]] = []

    def with_dropout(self) -> Float[Tensor, "nodes classes"]:
        """Compute the logits of the nodes in the loss, with new dropout masks."""
        return self._logits(self._pass.rows.nodes, lambda first: first.with_grad, self._pass.draws)

    def without_dropout(self) -> Float[Tensor, "nodes classes"]:
        """Compute the logits of the nodes in the loss, without dropout."""
        return self._logits(self._pass.rows.nodes, lambda first: first.with_grad, Draws(NO_DROPOUT))

    def validation(self) -> Float[Tensor, "val classes"]:
        """Compute the logits of the validation nodes, without dropout."""
        rows = self._pass.rows
        return self._logits(rows.val, lambda first: first.all[rows.first_layer.val_rows], Draws(NO_DROPOUT))

    def _logits(
        self, field: ReceptiveField, choose_rows: Callable[["PropagatedFeatures"], Tensor], draws: Draws
    ) -> Tensor:
        graph = GraphPass(field, lambda weight: choose_rows(self._propagated_features(weight)), draws)
        return graph.logits(self._pass.forward, self._weights)

    def _propagated_features(self, weight: Tensor) -> "PropagatedFeatures":
        for cached_weight, propagated in self._first:
            if cached_weight is weight:
                return propagated
        with torch.enable_grad():  # validation computes it first, and the next training pass needs its gradient
            propagated = PropagatedFeatures(*_first_layer(weight, self._pass.rows.first_layer))
        self._first.append((weight, propagated))
        return propagated


class PropagatedFeatures(NamedTuple):
    """Â X W for all required rows, without gradient, and for the rows that the loss depends on, with gradient."""

    all: Float[Tensor, "rows hidden"]
    with_grad: Float[Tensor, "grad_rows hidden"]


class FirstLayer:
    """W ↦ Â X W for the rows that the loss depends on, with gradient, followed by further rows for validation.

    Sparse features are projected first, Â (X W). For dense features Â X is computed once.
    """

    def __init__(self, task: Task, x: Features, loss_nodes: Nodes, val: Nodes):
        rows = _concatenate_unique(loss_nodes, val)
        self.num_grad_rows = len(loss_nodes)
        position = np.empty(task.num_nodes, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        self.val_rows = torch.from_numpy(position[val]).to(task.device)
        product = _DenseProduct if isinstance(x, Tensor) else _SparseProduct
        self.product = product.create(task, x, rows, len(loss_nodes))


@dataclass(frozen=True, eq=False)
class _SparseProduct:
    """W ↦ Â (X W): X has fewer non-zeros than Â X."""

    adjacency: SparseMatrix
    features: SparseMatrix

    @staticmethod
    def create(task: Task, x: Features, rows: Nodes, num_grad_rows: int) -> "_SparseProduct":
        if num_grad_rows == task.num_nodes:
            return _SparseProduct(task.propagation_matrix, task.sparse_features)
        grad_columns = task.closed_neighborhood(rows[:num_grad_rows])
        columns = _concatenate_unique(grad_columns, task.closed_neighborhood(rows))
        return _SparseProduct(
            task.sparse(task.normalized_adjacency[rows][:, columns], grad_rows=num_grad_rows),
            task.sparse(x[columns], grad_rows=len(grad_columns)),
        )

    def forward(self, weight: Tensor) -> Tensor:
        return self.adjacency.matmul(self.features.matmul(weight))

    def backward(self, grad: Tensor) -> Tensor:
        return self.features.transpose_matmul(self.adjacency.transpose_matmul(grad))


@dataclass(frozen=True, eq=False)
class _DenseProduct:
    """W ↦ (Â X) W."""

    propagated: Float[Tensor, "rows features"]
    num_grad_rows: int

    @staticmethod
    def create(task: Task, x: Features, rows: Nodes, num_grad_rows: int) -> "_DenseProduct":
        all_rows = num_grad_rows == task.num_nodes
        adjacency = task.propagation_matrix if all_rows else task.sparse(task.normalized_adjacency[rows])
        return _DenseProduct(adjacency.matmul(x), num_grad_rows)

    def forward(self, weight: Tensor) -> Tensor:
        return self.propagated @ weight

    def backward(self, grad: Tensor) -> Tensor:
        return self.propagated[: self.num_grad_rows].T @ grad


class _FirstLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, layer: FirstLayer) -> tuple[Tensor, Tensor]:
        ctx.layer = layer
        rows = layer.product.forward(weight.detach())
        ctx.mark_non_differentiable(rows)
        ctx.set_materialize_grads(False)  # the gradient of `rows` is None, not zeros
        return rows, rows[: layer.num_grad_rows]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return ctx.layer.product.backward(grads[1]), None


_first_layer: Callable[..., tuple[Tensor, Tensor]] = _FirstLayer.apply


def _concatenate_unique(first: Nodes, others: Nodes) -> Nodes:
    """Return the first nodes, followed by the others that are not among them."""
    return np.concatenate([first, np.setdiff1d(others, first)])
