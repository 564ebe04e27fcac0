"""Small random graphs with features and labels."""

from types import SimpleNamespace

import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from edgewise.models.task import prepare_task


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_edges(num_nodes, num_edges, g):
    """Draw distinct pairs, in random order and direction. The last two nodes have no edges."""
    pairs = torch.triu_indices(num_nodes - 2, num_nodes - 2, 1)
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=g)[:num_edges]]
    return torch.where(torch.rand(pairs.shape[1], generator=g) < 0.5, pairs, pairs.flip(0))


def random_data(seed, num_nodes=30, num_edges=50, num_features=12, num_classes=3, dense=False, dtype=torch.float32):
    """A graph with both directions of each edge and two self-loops. The last two nodes have no neighbors."""
    g = generator(seed)
    edge_index = to_undirected(random_edges(num_nodes, num_edges, g))
    loop = torch.tensor([[0, num_nodes - 1], [0, num_nodes - 1]])
    x = torch.randn(num_nodes, num_features, generator=g, dtype=torch.float64)
    if not dense:
        x = x * (torch.rand(x.shape, generator=g) < 0.2)
    y = torch.randint(num_classes, (num_nodes,), generator=g)
    y[:num_classes] = torch.arange(num_classes)
    return Data(x=x.to(dtype), edge_index=torch.cat([edge_index, loop], dim=1), y=y)


def modulo_split(data):
    """A split with training nodes 0, 3, 6, … and validation nodes 1, 4, 7, …; both include isolated nodes."""
    nodes = torch.arange(data.num_nodes)
    return SimpleNamespace(train=nodes % 3 == 0, val=nodes % 3 == 1)


def make_task(data, split=None):
    """Return the task of a graph and a split, as in `fit`."""
    split = modulo_split(data) if split is None else split
    return prepare_task(data, split, directed="refuse", num_classes=None, device="cpu")
