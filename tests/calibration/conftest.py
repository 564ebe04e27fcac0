"""Small random graphs with informative, miscalibrated logits."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from helpers.one_thread import one_thread

__all__ = ["one_thread"]


def random_case(seed=0, num_nodes=60, num_edges=100, num_classes=3, num_features=5, signal_scale=1.5):
    """Return data, split and logits of a homophilous graph whose last two nodes have no neighbors.

    Nodes 0, 4, 8, … are training nodes, and 1, 5, 9, … validation nodes. ``signal_scale`` is the logit of the label.
    """
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(num_classes, (num_nodes,), generator=g)
    y[: 2 * num_classes] = torch.arange(2 * num_classes) % num_classes
    pairs = torch.triu_indices(num_nodes - 2, num_nodes - 2, 1)
    score = torch.rand(pairs.shape[1], generator=g) + 0.4 * (y[pairs[0]] == y[pairs[1]])
    edge_index = to_undirected(pairs[:, score.topk(num_edges).indices])
    signal = one_hot(y, num_classes).double()
    x = signal @ torch.randn(num_classes, num_features, generator=g, dtype=torch.float64)
    x = x + torch.randn(num_nodes, num_features, generator=g, dtype=torch.float64)
    noise = torch.randn(num_nodes, num_classes, generator=g, dtype=torch.float64)
    scale = torch.rand(num_nodes, 1, generator=g, dtype=torch.float64).mul(2).exp()
    nodes = torch.arange(num_nodes)
    return SimpleNamespace(
        data=Data(x=x.float(), edge_index=edge_index, y=y),
        split=SimpleNamespace(train=nodes % 4 == 0, val=nodes % 4 == 1),
        logits=scale * (signal_scale * signal + noise),
    )


@pytest.fixture(scope="session")
def make_case():
    return random_case


@pytest.fixture
def case():
    return random_case()
