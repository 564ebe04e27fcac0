"""One forward pass over a graph: its operations, each cut to the rows that the wanted nodes need.

The logits of some nodes after k graph convolutions depend on the nodes within k steps of them, and on no others. A
model says how many steps its forward pass looks (`Classifier.hops`) and is written as if for the whole graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.kernels.adam import Weights
from edgewise.kernels.attention import Neighborhoods, attend
from edgewise.kernels.dropout import NO_DROPOUT, Dropout, apply_dropout
from edgewise.kernels.projection import relu_dropout_matmul
from edgewise.kernels.sparse import DropoutMask, SparseMatrix, sparse_matmul
from edgewise.models.task import Features, Graph, Nodes, Task

Forward = Callable[[Weights, "GraphPass"], Tensor]


class GraphPass:
    """What a forward pass may do with its graph: X are the features, Â = D^-½ (A + I) D^-½ averages over neighbors.

    While a network is trained some entries are dropped; in other passes `dropout` changes nothing. Each method that
    looks one step further (`propagate_features`, `average`, `attend`) uses up one of the model's hops.
    """

    def __init__(self, field: "ReceptiveField", propagate_features: Callable[[Tensor], Tensor], draws: "Draws"):
        self._field, self._average_features, self._draws = field, propagate_features, draws
        self._hop = field.hops

    def propagate_features(self, weight: Float[Tensor, "features hidden"]) -> Float[Tensor, "rows hidden"]:
        """Â X W, in the order that is quickest."""
        self._step()
        self._check_features(weight)
        return self._average_features(weight)

    def project_features(
        self, weight: Float[Tensor, "features hidden"], dropout: bool = False
    ) -> Float[Tensor, "rows hidden"]:
        """X W; if asked for, with dropout on X."""
        self._check_features(weight)
        x = self._field.features
        if isinstance(x, Tensor):
            return (self.dropout(x) if dropout else x) @ weight
        return sparse_matmul(x, weight, self._kept(x.num_entries) if dropout else None)

    def propagate(self, h: Float[Tensor, "inner width"]) -> Float[Tensor, "rows width"]:
        """Â H."""
        return sparse_matmul(self._field.propagation_matrix(self._step()), h)

    def attend(
        self,
        projected: Float[Tensor, "inner width"],
        att_src: Float[Tensor, "heads units"],
        att_dst: Float[Tensor, "heads units"],
    ) -> Float[Tensor, "rows width"]:
        """Σ_j α_ij P_j with α_ij = softmax_j(leaky_relu(a_src · P_j + a_dst · P_i)), and dropout on α."""
        neighborhoods = self._field.neighborhoods(self._step())
        return attend(projected, att_src, att_dst, neighborhoods, self._kept(neighborhoods.num_pairs * len(att_src)))

    def dropout(self, h: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Drop entries of H and scale the others."""
        return apply_dropout(h, self._draws.dropout, self._draws.next())

    def relu_dropout_matmul(
        self, h: Float[Tensor, "rows hidden"], bias: Float[Tensor, " hidden"], weight: Float[Tensor, "hidden width"]
    ) -> Float[Tensor, "rows width"]:
        """dropout(max(0, H + b)) W, in one operation."""
        return relu_dropout_matmul(h, bias, weight, self._draws.dropout, self._draws.next(), self._field.graph.threads)

    def logits(self, forward: Forward, weights: Weights) -> Float[Tensor, "nodes classes"]:
        """Run a forward pass, and return the rows of the wanted nodes."""
        logits = forward(weights, self)
        if self._hop:
            raise TypeError(
                f"Expected a forward pass over {self._field.hops} hops, but it looks at neighbors "
                f"{self._field.hops - self._hop if self._field.hops else 0} times. Set the model's hops to that."
            )
        return self._field.select(logits)

    def _step(self) -> int | None:
        """Use up one hop, and return which it is."""
        if self._hop == 0:
            raise TypeError(
                f"Expected a forward pass over {self._field.hops} hops, but it looks at neighbors more often. Set the "
                "model's hops to how often it does, or to None, which computes all rows."
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
    """The draws of dropout in one phase of training, numbered one after the other."""

    def __init__(self, dropout: Dropout):
        self.dropout, self._used = dropout, 0

    def next(self) -> int:
        """Return the number of the next draw."""
        self._used += 1
        return self._used - 1


class ReceptiveField:
    """Some nodes, and for each hop the nodes that lie within so many steps of them; without hops, always all."""

    def __init__(self, graph: Graph, x: Features, nodes: Nodes, hops: int | None):
        self.graph, self.hops, self._x, self._nodes = graph, hops, x, nodes
        self._levels, self._propagation = [nodes], dict[int, SparseMatrix]()
        self._neighborhoods = dict[int | None, Neighborhoods]()

    def within(self, steps: int | None) -> Nodes:
        """Return the nodes within so many steps, in order."""
        if steps is None:
            return self.graph.all_nodes
        while len(self._levels) <= steps:
            self._levels.append(self.graph.closed_neighborhood(self._levels[-1]))
        return self._levels[steps]

    def propagation_matrix(self, hop: int | None) -> SparseMatrix:
        """Return Â from the nodes within ``hop`` steps to those within one less."""
        if hop is None or len(self.within(hop - 1)) == self.graph.num_nodes:
            return self.graph.propagation_matrix
        if hop not in self._propagation:
            rows, columns = self.within(hop - 1), self.within(hop)
            self._propagation[hop] = self.graph.sparse(self.graph.normalized_adjacency[rows][:, columns])
        return self._propagation[hop]

    def neighborhoods(self, hop: int | None) -> Neighborhoods:
        """Return who is averaged for the nodes within one step less than ``hop``."""
        if hop not in self._neighborhoods:
            targets, sources = self.within(None if hop is None else hop - 1), self.within(hop)
            adjacent = self.graph.adjacency[targets]
            places = np.searchsorted(sources, adjacent.indices), np.searchsorted(sources, targets)
            self._neighborhoods[hop] = Neighborhoods.from_arrays(
                adjacent.indptr, *places, len(sources), self.graph.device, self.graph.threads
            )
        return self._neighborhoods[hop]

    @property
    def num_features(self) -> int:
        """How many features a node has."""
        return int(self._x.shape[1])

    @cached_property
    def features(self) -> SparseMatrix | Tensor:
        """X of all nodes that are reached."""
        nodes = self.within(self.hops)
        if isinstance(self._x, Tensor):
            return self._x if len(nodes) == self.graph.num_nodes else self._x[self._index(nodes)]
        return self.graph.sparse_features if len(nodes) == self.graph.num_nodes else self.graph.sparse(self._x[nodes])

    def select(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "nodes width"]:
        """Return the rows of the wanted nodes, from those that a forward pass ends with."""
        return rows if self.hops is not None or len(self._nodes) == len(rows) else rows[self._index(self._nodes)]

    def _index(self, nodes: Nodes) -> Tensor:
        return torch.from_numpy(nodes).to(self.graph.device)


def all_logits(forward: Forward, graph: Graph, x: Features, weights: Weights) -> Float[Tensor, "nodes classes"]:
    """Run a forward pass over all nodes, without dropout and without a gradient."""
    field = ReceptiveField(graph, x, graph.all_nodes, None)

    def propagate_features(weight: Tensor) -> Tensor:
        averaging = graph.propagation_matrix
        if not isinstance(x, Tensor):
            return averaging.matmul(graph.sparse_features.matmul(weight))
        if x.shape[1] < weight.shape[1]:
            return averaging.matmul(x) @ weight
        return averaging.matmul(x @ weight)

    with torch.no_grad():
        return GraphPass(field, propagate_features, Draws(NO_DROPOUT)).logits(forward, weights)


class TrainingRows:
    """The rows that training needs: of the nodes that a loss is computed of, and of those that validate."""

    def __init__(self, task: Task, x: Features, nodes: Nodes, hops: int | None):
        self.nodes = ReceptiveField(task, x, nodes, hops)
        self.val = ReceptiveField(task, x, np.asarray(task.val.cpu()), hops)
        self._task, self._x, self._hops = task, x, hops

    @cached_property
    def first_layer(self) -> "FirstLayer":
        """Â X W on the rows of both."""
        steps = None if self._hops is None else self._hops - 1
        return FirstLayer(self._task, self._x, self.nodes.within(steps), self.val.within(steps))


class Network:
    """A forward pass over the rows that training needs; ``at(weights)`` computes logits."""

    def __init__(self, forward: Forward, rows: TrainingRows, dropout: Dropout):
        self.forward, self.rows, self.draws = forward, rows, Draws(dropout)

    def at(self, weights: Weights) -> "NetworkLogits":
        """Return the logits at these weights; ask again when the weights have changed."""
        return NetworkLogits(self, weights)


class NetworkLogits:
    """Logits at given weights. All passes share Â X W, which dropout does not change."""

    def __init__(self, network: Network, weights: Weights):
        self._network, self._weights = network, weights
        self._first: list[tuple[Tensor, PropagatedFeatures]] = []

    def with_dropout(self) -> Float[Tensor, "nodes classes"]:
        """Compute the logits that are learned from, with the next draws of dropout."""
        return self._logits(self._network.rows.nodes, lambda first: first.learned, self._network.draws)

    def without_dropout(self) -> Float[Tensor, "nodes classes"]:
        """Compute the same without dropout."""
        return self._logits(self._network.rows.nodes, lambda first: first.learned, Draws(NO_DROPOUT))

    def validation(self) -> Float[Tensor, "val classes"]:
        """Compute the logits of validation nodes, without dropout."""
        rows = self._network.rows
        return self._logits(rows.val, lambda first: first.all[rows.first_layer.val_rows], Draws(NO_DROPOUT))

    def _logits(
        self, field: ReceptiveField, choose_rows: Callable[["PropagatedFeatures"], Tensor], draws: Draws
    ) -> Tensor:
        graph = GraphPass(field, lambda weight: choose_rows(self._propagated_features(weight)), draws)
        return graph.logits(self._network.forward, self._weights)

    def _propagated_features(self, weight: Tensor) -> "PropagatedFeatures":
        for known, averaged in self._first:
            if known is weight:
                return averaged
        with torch.enable_grad():  # the next training pass needs what validation asks for first
            averaged = PropagatedFeatures(*_first_layer(weight, self._network.rows.first_layer))
        self._first.append((weight, averaged))
        return averaged


class PropagatedFeatures(NamedTuple):
    """Â X W of all rows that are needed, without a gradient, and of those that are learned from, with one."""

    all: Float[Tensor, "rows hidden"]
    learned: Float[Tensor, "learned hidden"]


class FirstLayer:
    """W ↦ Â X W on some rows: first those that are learned from, which have a gradient, then the rest for validation.

    Sparse features are projected first, Â (X W); for dense ones Â X is computed once.
    """

    def __init__(self, task: Task, x: Features, learned: Nodes, val: Nodes):
        rows = _first_then_rest(learned, val)
        self.num_learned = len(learned)
        place = np.empty(task.num_nodes, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        self.val_rows = torch.from_numpy(place[val]).to(task.device)
        self.product = (_DenseProduct if isinstance(x, Tensor) else _SparseProduct).cut(task, x, rows, len(learned))


@dataclass(frozen=True, eq=False)
class _SparseProduct:
    """W ↦ Â (X W): X has fewer non-zeros than Â X."""

    averaging: SparseMatrix
    features: SparseMatrix

    @staticmethod
    def cut(task: Task, x: Features, rows: Nodes, num_learned: int) -> "_SparseProduct":
        if num_learned == task.num_nodes:
            return _SparseProduct(task.propagation_matrix, task.sparse_features)
        learned_columns = task.closed_neighborhood(rows[:num_learned])
        columns = _first_then_rest(learned_columns, task.closed_neighborhood(rows))
        return _SparseProduct(
            task.sparse(task.normalized_adjacency[rows][:, columns], grad_rows=num_learned),
            task.sparse(x[columns], grad_rows=len(learned_columns)),
        )

    def forward(self, weight: Tensor) -> Tensor:
        return self.averaging.matmul(self.features.matmul(weight))

    def backward(self, grad: Tensor) -> Tensor:
        return self.features.transpose_matmul(self.averaging.transpose_matmul(grad))


@dataclass(frozen=True, eq=False)
class _DenseProduct:
    """W ↦ (Â X) W."""

    averaged: Float[Tensor, "rows features"]
    num_learned: int

    @staticmethod
    def cut(task: Task, x: Features, rows: Nodes, num_learned: int) -> "_DenseProduct":
        everyone = num_learned == task.num_nodes
        averaging = task.propagation_matrix if everyone else task.sparse(task.normalized_adjacency[rows])
        return _DenseProduct(averaging.matmul(x), num_learned)

    def forward(self, weight: Tensor) -> Tensor:
        return self.averaged @ weight

    def backward(self, grad: Tensor) -> Tensor:
        return self.averaged[: self.num_learned].T @ grad


class _FirstLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, layer: FirstLayer) -> tuple[Tensor, Tensor]:
        ctx.layer = layer
        rows = layer.product.forward(weight.detach())
        ctx.mark_non_differentiable(rows)
        return rows, rows[: layer.num_learned]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.product.backward(grads[1]), None


_first_layer: Callable[..., tuple[Tensor, Tensor]] = _FirstLayer.apply


def _first_then_rest(first: Nodes, others: Nodes) -> Nodes:
    return np.concatenate([first, np.setdiff1d(others, first)])
