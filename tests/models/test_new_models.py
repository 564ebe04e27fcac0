"""Custom models, `known_models`, named predictions, and `apply`."""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCNConv

import edgewise as ew
from edgewise.models import Classifier, known_models
from helpers.block_graph import make_block_graph, make_split

DATA = make_block_graph()
SPLIT = make_split(DATA)


@dataclass(frozen=True, kw_only=True)
class ThreeLayers(ew.GCN):
    """Â ReLU(Â ReLU(Â X W₁ + b₁) W₂ + b₂) W₃ + b₃."""

    name = "three_layers"
    hops = 3

    def initial_weights(self, num_features, num_classes, draw):
        weights = super().initial_weights(num_features, self.hidden, draw)
        return weights | {"weight_3": draw.glorot(self.hidden, num_classes), "bias_3": draw.zeros(num_classes)}

    def forward(self, weights, graph):
        w = weights
        hidden = graph.propagate_features(w["weight_1"])
        hidden = graph.propagate(graph.relu_dropout_matmul(hidden, w["bias_1"], w["weight_2"]))
        hidden = graph.propagate(graph.relu_dropout_matmul(hidden, w["bias_2"], w["weight_3"]))
        return hidden + w["bias_3"]


def pyg_three_layers(weights, data):
    h = data.x
    for k in (1, 2, 3):
        weight = weights[f"weight_{k}"]
        layer = GCNConv(*weight.shape)
        with torch.no_grad():
            layer.lin.weight.copy_(weight.T)
            layer.bias.copy_(weights[f"bias_{k}"])
        h = layer(h.relu() if k > 1 else h, data.edge_index)
    return h.detach()


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("hops", [3, None])
def test_three_layers_equal_pyg(hops, dense, monkeypatch):
    monkeypatch.setattr(ThreeLayers, "hops", hops)
    data = make_block_graph(dense=dense)
    split = make_split(data)
    fitted = ThreeLayers(hidden=8, max_epochs=1, patience=9, dropout=0.0).fit(data, split, seed=3)
    logits = pyg_three_layers(fitted.weights, data)
    torch.testing.assert_close(fitted.logits, logits, rtol=1e-4, atol=1e-5)
    # The validation loss after the epoch is that of these weights, computed on restricted rows.
    expected = float(cross_entropy(logits[split.val], data.y[split.val]))
    assert fitted.history.val_loss == pytest.approx([expected], rel=1e-5)


def test_restricted_and_all_rows_train_equally(monkeypatch):
    """Dropout is off, because its masks depend on the computed rows."""
    model = ThreeLayers(hidden=8, max_epochs=15, dropout=0.0)
    restricted = model.fit(DATA, SPLIT, seed=1)
    monkeypatch.setattr(ThreeLayers, "hops", None)
    all_rows = model.fit(DATA, SPLIT, seed=1)
    np.testing.assert_allclose(restricted.history.loss, all_rows.history.loss, rtol=1e-4)
    np.testing.assert_allclose(restricted.history.val_loss, all_rows.history.val_loss, rtol=1e-4)


@pytest.mark.parametrize(("hops", "actual"), [(2, "more"), (4, "3")])
def test_wrong_number_of_hops_raises(hops, actual, monkeypatch):
    monkeypatch.setattr(ThreeLayers, "hops", hops)
    with pytest.raises(TypeError, match=rf"of {hops} hops, but got {actual}"):
        ThreeLayers(hidden=8, max_epochs=1).fit(DATA, SPLIT)


POSTPONED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
import edgewise as ew
if TYPE_CHECKING:
    from nowhere import Unknown
Count = int

@dataclass(frozen=True, kw_only=True)
class Postponed(ew.GCN):
    layers: Count = 2
    slope: float = 1
    name = "postponed"

@dataclass(frozen=True, kw_only=True)
class Unresolved(ew.GCN):
    layers: int = 2
    slope: float = 1
    other: Unknown = None
    name = "unresolved"
"""


@pytest.mark.parametrize("name", ["Postponed", "Unresolved"])
def test_integer_options_are_checked_under_postponed_annotations(name, monkeypatch):
    module = ModuleType("postponed_models")
    monkeypatch.setitem(sys.modules, "postponed_models", module)
    exec(compile(POSTPONED, "postponed_models", "exec", dont_inherit=True), module.__dict__)
    kind = getattr(module, name)
    with pytest.raises(ValueError, match=r"layers to be a whole number from 1 to \d+, but got 1\.5"):
        kind(layers=1.5)
    with pytest.raises(ValueError, match="hidden to be a whole number"):
        kind(hidden=0)
    made = kind(layers=np.int64(3), slope=2)
    assert type(made.layers) is int and type(made.slope) is float


def test_known_models_are_exported_by_name():
    known = known_models()
    assert {"deepensemble", "epfgnn", "gat", "gcn", "gmnn", "jointgcn", "mcdropout", "spn"} <= set(known)
    assert ThreeLayers.name not in known
    assert all(kind.name == name and getattr(ew, kind.__name__) is kind for name, kind in known.items())
    assert issubclass(known["gcn"], Classifier)


PREDICTIONS = {
    ew.GCN(max_epochs=2): ["product"],
    ew.GMNN(pretrain_epochs=2, round_epochs=2, samples=2): ["averaged_logits", "mixture_product", "mixture"],
    ew.EPFGNN(pretrain_epochs=2, rounds=1, steps=2): ["mean_field", "sum_product"],
    ew.EPFGNN(pretrain_epochs=2, rounds=1, steps=2, schedule="published"): [
        "published_mean_field",
        "published_sum_product",
    ],
    ew.JointGCN(max_epochs=2, folds=2): ["joint"],
    ew.Ensemble(ew.GCN(max_epochs=2), members=2): ["deepensemble_product", "deepensemble_mixture"],
    ew.MCDropout(ew.GCN(max_epochs=2), samples=2): ["mcdropout_product", "mcdropout_mixture"],
    ew.SPN(max_epochs=2): ["spn_sum_product"],
}


@pytest.mark.parametrize(("model", "names"), PREDICTIONS.items(), ids=lambda value: getattr(value, "name", ""))
def test_names_of_predictions(model, names):
    predictions = model.fit(DATA, SPLIT).predictions()
    assert list(predictions) == names
    for predict in predictions.values():
        assert predict().node.shape == (90, 3)


@pytest.mark.parametrize("model", [ew.GCN(hidden=8, max_epochs=5), ew.GAT(hidden=8, heads=2, max_epochs=5)])
@pytest.mark.parametrize("dense", [False, True])
def test_apply_to_same_and_other_graph(model, dense):
    data = make_block_graph(dense=dense)
    fitted = model.fit(data, make_split(data))
    unlabeled = SimpleNamespace(x=data.x, edge_index=data.edge_index)
    assert torch.equal(fitted.apply(unlabeled).logits, fitted.logits)
    assert torch.equal(fitted.apply(unlabeled).posterior().node, fitted.posterior().node)
    alone = fitted.apply(SimpleNamespace(x=data.x[:5].double(), edge_index=torch.empty(2, 0, dtype=torch.long)))
    same = fitted.apply(SimpleNamespace(x=data.x, edge_index=torch.empty(2, 0, dtype=torch.long)))
    torch.testing.assert_close(alone.logits, same.logits[:5], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(same.logits, fitted.logits)
    with pytest.raises(ValueError, match=rf"{data.x.shape[1]} features.*but got {data.x.shape[1] - 1}"):
        fitted.apply(SimpleNamespace(x=data.x[:, 1:], edge_index=data.edge_index))
