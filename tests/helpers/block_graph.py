"""Small stochastic block models with features, small models, and comparisons of fitted models."""

import hashlib
from dataclasses import replace

import numpy as np
import torch

import edgewise as ew

# Fast to train, and still with all training phases.
SMALL_MODELS = {
    "gcn": ew.GCN(hidden=8, max_epochs=12),
    "gat": ew.GAT(hidden=8, heads=2, max_epochs=12),
    "gmnn": ew.GMNN(hidden=8, pretrain_epochs=10, round_epochs=6, samples=4),
    "epfgnn": ew.EPFGNN(hidden=8, pretrain_epochs=10, rounds=3, steps=4),
    "spn": ew.SPN(hidden=8, max_epochs=12),
    "deepensemble": ew.Ensemble(ew.GCN(hidden=8, max_epochs=12), members=2),
    "mcdropout": ew.MCDropout(ew.GCN(hidden=8, max_epochs=12), samples=3),
}
ALL_SMALL_MODELS = {**SMALL_MODELS, "jointgcn": ew.JointGCN(hidden=8, folds=3, max_epochs=12)}


def with_options(model, **options):
    """Return a model with other options. Options that it does not have are those of its classifier."""
    own = {name: value for name, value in options.items() if hasattr(model, name)}
    nested = {name: value for name, value in options.items() if name not in own}
    return replace(model, **own, **({"classifier": replace(model.classifier, **nested)} if nested else {}))


def block_graph_arrays(
    num_nodes=90, num_classes=3, seed=0, *, dense=False, within=0.15, between=0.02, dtype=torch.float32
):
    """Return x, edge_index and y of a graph in which nodes of the same class have more edges.

    Node i has class i mod C. Both directions of each edge are listed. Features are sparse and binary, or dense and
    normal; both depend on the class.
    """
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(num_nodes) % num_classes
    i, j = torch.triu_indices(num_nodes, num_nodes, 1)
    linked = torch.rand(len(i), generator=g) < torch.where(y[i] == y[j], within, between)
    edges = torch.stack([i[linked], j[linked]])
    if dense:
        x = torch.randn(num_nodes, 6, generator=g) + 2.0 * torch.eye(num_classes, 6)[y]
    else:
        frequent = (torch.arange(30) % num_classes) == y.unsqueeze(1)
        x = (torch.rand(num_nodes, 30, generator=g) < torch.where(frequent, 0.25, 0.08)).float()
    return {"x": x.to(dtype), "edge_index": torch.cat([edges, edges.flip(0)], 1), "y": y}


def make_block_graph(*sizes, **options):
    """Return the graph of `block_graph_arrays` as a PyG Data."""
    from torch_geometric.data import Data  # imported here because loading it takes seconds

    return Data(**block_graph_arrays(*sizes, **options))


def make_split(data, seed=0):
    """Return a split with 8 training and 4 validation nodes out of 30 nodes per class."""
    return ew.make_splits(data.y, n_splits=1, seed=seed, labeled=0.4)[0]


def fitted_tensors(fitted):
    """Return the weights and all other tensors of a fitted model."""
    return {**fitted.weights, **{name: getattr(fitted, name) for name in fitted.parts}}


def digest(fitted):
    """Hash all tensors of a fitted model."""
    sha = hashlib.sha256()
    for name, tensor in sorted(fitted_tensors(fitted).items()):
        sha.update(name.encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


def assert_same_bits(one, other):
    """Assert that two fitted models are bitwise equal, up to their training times."""
    left, right = fitted_tensors(one), fitted_tensors(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype, name
        assert torch.equal(tensor, right[name]), name
    for name in ("loss", "val_loss", "val_accuracy", "phases"):
        assert getattr(one.history, name) == getattr(other.history, name), name
    assert torch.equal(one.posterior().node, other.posterior().node)


def accuracy(posterior, data, mask):
    return float((posterior.node.argmax(1) == data.y)[mask].double().mean())


def copy_with(data, **attributes):
    """Return a copy of a graph with some attributes replaced or added."""
    from torch_geometric.data import Data

    return Data(**{"x": data.x, "edge_index": data.edge_index, "y": data.y, **attributes})


def global_random_states():
    """Return the states of the global generators of torch and NumPy."""
    kind, keys, position, *_ = np.random.get_state()  # noqa: NPY002 (the global state is the subject)
    return torch.get_rng_state().tolist(), kind, keys.tolist(), position
