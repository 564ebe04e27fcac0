"""CaGCN against PyG layers, the margin loss against a loop, and data that need two temperatures."""

import re

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

from edgewise import CaGCN, TemperatureScaling
from edgewise.calibration.calibration_input import predictions_on
from edgewise.calibration.graph_networks import _CalibrationGCN, margin_loss
from edgewise.data.splits import Split
from edgewise.kernels.dropout import NO_DROPOUT

pytestmark = pytest.mark.filterwarnings("ignore::edgewise.SmallSampleWarning")  # tiny graphs, on purpose


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_factors_equal_two_pyg_layers(case):
    g = generator()
    shapes = {"weight_1": (3, 5), "bias_1": (5,), "weight_2": (5, 1), "bias_2": (1,)}
    weights = {name: torch.randn(*shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()}
    first, second = GCNConv(3, 5).double(), GCNConv(5, 1).double()
    with torch.no_grad():
        for layer, number in ((first, 1), (second, 2)):
            layer.lin.weight.copy_(weights[f"weight_{number}"].T)
            layer.bias.copy_(weights[f"bias_{number}"])
        edges = case.data.edge_index
        expected = torch.log(torch.exp(second(first(case.logits, edges).relu(), edges)) + 1.1)
    predictions = predictions_on(case.logits, case.data)
    for chosen in (torch.ones(60, dtype=torch.bool), case.split.val):
        found = _CalibrationGCN.create(predictions, chosen).factors(weights, NO_DROPOUT, 0)
        torch.testing.assert_close(found, expected[chosen])


def test_large_logits_have_finite_factors(case):
    found = CaGCN(epochs=3).fit(1e4 * case.logits, case.data, case.split)
    assert bool(found.parameters["factors"].isfinite().all()) and bool((found.parameters["factors"] > 0).all())


def test_margin_loss_equals_loop():
    g = generator()
    logits = torch.randn(40, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(4, (40,), generator=g)
    total = 0.0
    for row, label in zip(logits.softmax(-1).tolist(), labels.tolist(), strict=True):
        first, second = sorted(row, reverse=True)[:2]
        right = row.index(first) == label
        total += 1 - first + second if right else first - second
    assert float(margin_loss(logits, labels)) == pytest.approx(total / 40)


def two_communities(nodes_each=150):
    """Two communities with labels from softmax(z), and the logits 6 z in one and z / 4 in the other."""
    g = generator(1)
    nodes = 2 * nodes_each
    true = 2.5 * torch.randn(nodes, 3, generator=g, dtype=torch.float64)
    y = torch.multinomial(true.softmax(-1), 1, generator=g).squeeze(1)
    over_confident = torch.arange(nodes) < nodes_each
    pairs = torch.triu_indices(nodes, nodes, 1)
    same_community, same_label = (part[pairs[0]] == part[pairs[1]] for part in (over_confident, true.argmax(1)))
    pairs = pairs[:, same_community & same_label]
    edges = to_undirected(pairs[:, torch.randperm(pairs.shape[1], generator=g)[: 3 * nodes]])
    part = torch.arange(nodes) % 3
    split = Split(part == 0, part == 1, part == 2)
    return Data(edge_index=edges, y=y), split, true * torch.where(over_confident, 6.0, 0.25)[:, None], over_confident


def test_fits_two_communities_with_different_temperatures():
    data, split, logits, over_confident = two_communities()
    options = {"hidden": 64, "dropout": 0.0, "margin": 0.0, "weight_decay": 1e-4}
    first = CaGCN(**options, epochs=1, learning_rate=1e-12).fit(logits, data, split).posterior()
    found = CaGCN(**options, epochs=300, patience=300, learning_rate=0.03).fit(logits, data, split)
    one = TemperatureScaling().fit(logits, data, split).posterior()
    nll = [float(cross_entropy(p.node[split.test].log(), data.y[split.test])) for p in (found.posterior(), one, first)]
    assert nll[0] < min(nll[1:]) - 0.1
    factors = found.parameters["factors"]
    assert float(factors[over_confident].median()) < 0.5 < 1.0 < float(factors[~over_confident].median())
    assert torch.equal(found.posterior().node.argmax(1), logits.argmax(1))


def test_seed_determines_the_result(case):
    def nodes(seed):
        return CaGCN(epochs=5, seed=seed).fit(case.logits, case.data, case.split).posterior().node

    assert torch.equal(nodes(3), nodes(3))
    assert not torch.equal(nodes(3), nodes(4))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"hidden": 0}, "Expected hidden to be a whole number from 1 to 65536, but got 0."),
        ({"dropout": 1.0}, "Expected dropout to be a number of at least 0 and below 1, but got 1.0."),
        ({"dropout": -0.1}, "Expected dropout to be a number of at least 0 and below 1, but got -0.1."),
        ({"margin": float("inf")}, "Expected margin to be a number of at least 0, but got inf."),
        ({"epochs": 0}, "Expected epochs to be a whole number from 1 to"),
        ({"learning_rate": "fast"}, "Expected learning_rate to be a number above 0, but got 'fast'."),
        ({"seed": -1}, "Expected seed to be a whole number from 0 to"),
    ],
)
def test_invalid_options_raise(options, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        CaGCN(**options)
