"""Plain PyG training loops for the four models: dense x, one evaluation pass per epoch.

They start from the same weights as edgewise and use the same random draws, so without dropout the losses are equal.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout, elu, one_hot, relu
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.utils import degree

import edgewise as ew
from edgewise.models.seeds import Weights, generator


class TwoConvolutions(torch.nn.Module):
    """GCN with PyG's GCNConv."""

    def __init__(self, weights: Weights, rate: float):
        super().__init__()
        (num_in, hidden), num_out = weights["weight_1"].shape, len(weights["bias_2"])
        self.first, self.second, self.rate = GCNConv(num_in, hidden), GCNConv(hidden, num_out), rate
        _copy((self.first, self.second), weights)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits."""
        hidden = relu(self.first(x, edge_index))
        logits: Tensor = self.second(dropout(hidden, self.rate, self.training), edge_index)
        return logits


class TwoAttentions(torch.nn.Module):
    """GAT with PyG's GATConv."""

    def __init__(self, weights: Weights, rate: float):
        super().__init__()
        (num_in, hidden), num_out = weights["weight_1"].shape, len(weights["bias_2"])
        heads, units = weights["att_src_1"].shape
        self.first = GATConv(num_in, units, heads=heads, dropout=rate)
        self.second = GATConv(hidden, num_out, heads=1, concat=False, dropout=rate)
        self.rate = rate
        _copy((self.first, self.second), weights)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits."""
        hidden = elu(self.first(dropout(x, self.rate, self.training), edge_index))
        logits: Tensor = self.second(dropout(hidden, self.rate, self.training), edge_index)
        return logits


def _copy(layers: Sequence[Any], weights: Weights) -> None:
    for name, layer in zip("12", layers, strict=True):
        parts = {"weight": layer.lin.weight, "bias": layer.bias}
        parts |= {part: getattr(layer, part) for part in ("att_src", "att_dst") if hasattr(layer, part)}
        for part, parameter in parts.items():
            value = weights[f"{part}_{name}"]
            with torch.no_grad():
                parameter.copy_(value.T if part == "weight" else value.view(parameter.shape))


@dataclass
class Loop:
    """A training loop with one optimizer, which records its losses."""

    model: torch.nn.Module
    data: Data
    split: ew.Split

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, weight_decay=5e-4)
        self.losses: list[float] = []
        self.best, self.kept = (0.0, math.inf), self.model.state_dict()

    def run(self, epochs: int, x: Tensor, loss_of: Callable[[Tensor], Tensor], evaluated: bool) -> None:
        """Train for `epochs` epochs."""
        for _ in range(epochs):
            self.model.train()
            self.optimizer.zero_grad()
            loss = loss_of(self.model(x, self.data.edge_index))
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))
            if evaluated:
                self.model.eval()
                with torch.no_grad():
                    logits, y = self.model(x, self.data.edge_index)[self.split.val], self.data.y[self.split.val]
                    nll, accuracy = float(cross_entropy(logits, y)), float((logits.argmax(1) == y).float().mean())
                if accuracy >= self.best[0] and nll <= self.best[1]:
                    self.kept = copy.deepcopy(self.model.state_dict())
                self.best = max(accuracy, self.best[0]), min(nll, self.best[1])
        if evaluated:
            self.model.load_state_dict(self.kept)

    def logits(self, x: Tensor) -> Tensor:
        """Return logits without dropout."""
        self.model.eval()
        with torch.no_grad():
            result: Tensor = self.model(x, self.data.edge_index)
        return result


def classifier(model: torch.nn.Module, data: Data, split: ew.Split, epochs: int) -> list[float]:
    loop = Loop(model, data, split)
    loop.run(epochs, data.x, lambda logits: cross_entropy(logits[split.train], data.y[split.train]), evaluated=True)
    loop.logits(data.x)
    return loop.losses


def gmnn(
    q: torch.nn.Module, p: torch.nn.Module, data: Data, split: ew.Split, epochs: tuple[int, int], samples: int
) -> list[float]:
    features, labels, classes = Loop(q, data, split), Loop(p, data, split), int(data.y.max()) + 1
    train_labels, draws = one_hot(data.y[split.train], classes).float(), generator(0, "gmnn")
    features.run(epochs[0], data.x, lambda out: cross_entropy(out[split.train], data.y[split.train]), evaluated=True)
    features.optimizer = torch.optim.Adam(q.parameters(), lr=0.01, weight_decay=5e-4)

    def draw_labels(logits: Tensor) -> Tensor:
        uniform = torch.rand(len(logits), 1, dtype=torch.float64, generator=draws)
        drawn = one_hot((logits.double().softmax(1).cumsum(1)[:, :-1] <= uniform).sum(1), classes).float()
        drawn[split.train] = train_labels
        return drawn

    matrix = draw_labels(features.logits(data.x))
    labels.run(epochs[1], matrix, lambda out: cross_entropy(out, matrix), evaluated=False)
    target = labels.logits(matrix).softmax(1)
    target[split.train] = train_labels
    features.run(epochs[1], data.x, lambda out: cross_entropy(out, target), evaluated=False)
    logits = features.logits(data.x)
    torch.stack([labels.logits(draw_labels(logits)) for _ in range(samples)])
    return [*features.losses[: epochs[0]], *labels.losses, *features.losses[epochs[0] :]]


class PairwiseModel(torch.nn.Module):
    """EPFGNN: a backbone, a coupling matrix, and a scale for each edge."""

    def __init__(self, backbone: torch.nn.Module, coupling: Tensor, once: Tensor, num_nodes: int):
        super().__init__()
        self.backbone, self.coupling = backbone, torch.nn.Parameter(coupling.clone())
        self.scale = torch.nn.Parameter(torch.zeros(once.shape[1]))
        self.start, self.end = once
        self.stars = degree(once.flatten(), num_nodes).unsqueeze(1) + 1

    def symmetric(self) -> Tensor:
        """Return the symmetric coupling matrix (B + Bᵀ) / 2."""
        return (self.coupling + self.coupling.T) / 2

    def loss(self, unary: Tensor, q: Tensor) -> Tensor:
        """Return minus the mean piecewise log-likelihood."""
        share, half = unary / self.stars, self.scale[:, None, None] * self.symmetric() / 2
        to_start = torch.logsumexp(share[self.end].unsqueeze(1) + half, 2)
        to_end = torch.logsumexp(share[self.start].unsqueeze(2) + half, 1)
        total = share.index_add(0, self.start, to_start).index_add(0, self.end, to_end)
        pairs = ((q @ self.symmetric())[self.start] * q[self.end]).sum(1)
        energy = (q * unary).sum() + (self.scale * pairs).sum()
        return (torch.logsumexp(total, 1).sum() - energy) / len(unary)

    def mean_field_sweep(self, unary: Tensor, q: Tensor) -> Tensor:
        """Return the logits after one mean-field sweep."""
        scale = self.scale.unsqueeze(1)
        around = torch.zeros_like(q).index_add(0, self.start, scale * q[self.end])
        return unary + around.index_add(0, self.end, scale * q[self.start]) @ self.symmetric()


def epfgnn(field: PairwiseModel, data: Data, split: ew.Split, epochs: tuple[int, int]) -> list[float]:
    backbone = Loop(field.backbone, data, split)
    backbone.run(epochs[0], data.x, lambda out: cross_entropy(out[split.train], data.y[split.train]), evaluated=True)
    q = backbone.logits(data.x).softmax(1)
    q[split.train] = one_hot(data.y[split.train], q.shape[1]).float()
    optimizer = torch.optim.Adam(field.parameters(), lr=0.01, weight_decay=5e-4)
    losses = backbone.losses
    for _ in range(epochs[1]):
        field.train()
        optimizer.zero_grad()
        loss = field.loss(field.backbone(data.x, data.edge_index), q)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        field.eval()
        with torch.no_grad():
            logits = field.mean_field_sweep(field.backbone(data.x, data.edge_index), q)[split.val]
            float((logits.argmax(1) == data.y[split.val]).float().mean())
    return losses
