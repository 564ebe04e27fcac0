"""GCN and GAT against PyG layers with the same weights: logits, losses and gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, elu, relu
from torch_geometric.nn import GATConv, GCNConv

import edgewise as ew
from edgewise.kernels.dropout import NO_DROPOUT
from edgewise.models.graph_pass import TrainingPass, TrainingRows, all_logits
from edgewise.models.seeds import Initializer, generator
from helpers.reference.layers import attention, convolution, neighbors
from helpers.small_graphs import make_task, modulo_split, random_data

MODELS = {
    "gcn": ew.GCN(hidden=8, dropout=0.0, max_epochs=20),
    "gat": ew.GAT(hidden=8, heads=2, dropout=0.0, max_epochs=20),
}
GRAPHS = {"sparse features": False, "dense features": True}
SOME = [0, 1, 5, 17, 28, 29]


@pytest.fixture(scope="module")
def cora():
    data = ew.load_dataset("cora")
    return data, ew.make_splits(data.y)[0]


def pyg_gcn(weights):
    """Two PyG convolution layers with the given weights, and their activation."""
    layers = []
    for k in (1, 2):
        weight = weights[f"weight_{k}"]
        layer = GCNConv(*weight.shape).to(weight.dtype)
        with torch.no_grad():
            layer.lin.weight.copy_(weight.T)
            layer.bias.copy_(weights[f"bias_{k}"])
        layers.append(layer)
    return torch.nn.ModuleList(layers), relu


def pyg_gat(weights):
    """Two PyG attention layers with the given weights, and their activation."""
    layers = []
    for k in (1, 2):
        weight, source = weights[f"weight_{k}"], weights[f"att_src_{k}"]
        layer = GATConv(weight.shape[0], source.shape[1], heads=len(source)).to(weight.dtype)
        with torch.no_grad():
            layer.lin.weight.copy_(weight.T)
            layer.att_src.copy_(source[None])
            layer.att_dst.copy_(weights[f"att_dst_{k}"][None])
            layer.bias.copy_(weights[f"bias_{k}"])
        layers.append(layer)
    return torch.nn.ModuleList(layers), elu


PYG = {"gcn": pyg_gcn, "gat": pyg_gat}


def pyg_logits(net, data):
    (first, second), activation = net
    return second(activation(first(data.x, data.edge_index)), data.edge_index)


def initial_weights(name, task, seed):
    """The initial weights of `fit`."""
    draw = Initializer(generator(seed, name), task.dtype, task.device)
    return MODELS[name].initial_weights(task.num_features, task.num_classes, draw)


def train_with_pyg(net, data, split, epochs):
    """Train with the usual PyTorch loop, and return training losses and the validation losses after each step."""
    adam = torch.optim.Adam(net[0].parameters(), lr=0.01, weight_decay=5e-4)
    losses, val_losses = [], []
    for _ in range(epochs):
        adam.zero_grad()
        loss = cross_entropy(pyg_logits(net, data)[split.train], data.y[split.train])
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            val_losses.append(float(cross_entropy(pyg_logits(net, data)[split.val], data.y[split.val])))
    return losses, val_losses


def random_weights(name, task, seed=0):
    """Weights with non-zero biases."""
    weights = initial_weights(name, task, seed)
    g = torch.Generator().manual_seed(seed)
    return {
        key: value + 0.3 * torch.randn(value.shape, generator=g, dtype=value.dtype) for key, value in weights.items()
    }


def edgewise_logits(name, task, weights):
    return all_logits(MODELS[name].forward, task, task.x, weights)


@pytest.mark.parametrize("model", [ew.GCN(max_epochs=5), ew.GAT(max_epochs=3)], ids=["gcn", "gat"])
def test_logits_equal_pyg_on_cora(model, cora):
    data, split = cora
    fitted = model.fit(data, split)
    with torch.no_grad():
        expected = pyg_logits(PYG[model.name](fitted.weights), data)
    torch.testing.assert_close(fitted.logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
def test_logits_equal_pyg_on_small_graphs(name, dense):
    """With isolated nodes and self-loops."""
    for seed in range(3):
        data = random_data(seed, dense=dense)
        fitted = MODELS[name].fit(data, modulo_split(data), seed)
        with torch.no_grad():
            expected = pyg_logits(PYG[name](fitted.weights), data)
        torch.testing.assert_close(fitted.logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("hidden", [5, 20])  # below and above the number of features
def test_gcn_equals_loop(dense, hidden):
    data = random_data(3, num_nodes=12, num_edges=15, dense=dense, dtype=torch.float64)
    task = make_task(data)
    draw = Initializer(generator(0, "gcn"), task.dtype, task.device)
    weights = ew.GCN(hidden=hidden).initial_weights(12, 3, draw)
    weights["bias_1"] += 0.1
    edges = data.edge_index.T.tolist()
    listed = {name: weight.tolist() for name, weight in weights.items()}
    first = convolution(data.x.tolist(), edges, listed["weight_1"], listed["bias_1"])
    hidden_rows = [[max(0.0, value) for value in row] for row in first]
    expected = torch.tensor(convolution(hidden_rows, edges, listed["weight_2"], listed["bias_2"]), dtype=torch.float64)
    torch.testing.assert_close(edgewise_logits("gcn", task, weights), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
def test_gat_equals_loop(dense):
    data = random_data(4, num_nodes=12, num_edges=15, dense=dense, dtype=torch.float64)
    task = make_task(data)
    weights = random_weights("gat", task)
    neighborhoods = neighbors(data.edge_index.T.tolist(), 12)

    def layer(x, k):
        source, target = weights[f"att_src_{k}"], weights[f"att_dst_{k}"]
        projected = (x @ weights[f"weight_{k}"]).view(12, *source.shape)
        rows = attention(projected.tolist(), source.tolist(), target.tolist(), neighborhoods, range(12))
        return torch.tensor(rows, dtype=torch.float64) + weights[f"bias_{k}"]

    expected = layer(elu(layer(data.x, 1)), 2)
    torch.testing.assert_close(edgewise_logits("gat", task, weights), expected, rtol=0, atol=1e-12)


def restricted_network(name, task, nodes, val_nodes):
    """The network restricted to the rows that some nodes need."""
    task = replace(task, val=torch.tensor(val_nodes))
    model = MODELS[name]
    return TrainingPass(model.forward, TrainingRows(task, task.x, np.array(nodes), model.hops), NO_DROPOUT)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("nodes", [SOME, [3], [29], list(range(30))], ids=["some", "one", "isolated", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_restricted_logits_and_gradients_equal_pyg(name, nodes, dense):
    """The restricted network computes only the rows that these nodes need."""
    data = random_data(5, dense=dense, dtype=torch.float64)
    task = make_task(data)
    weights = {name: weight.requires_grad_() for name, weight in random_weights(name, task).items()}
    net = PYG[name](weights)
    expected = pyg_logits(net, data)
    for val_nodes in (SOME, [2, 9], [29]):
        logits = restricted_network(name, task, nodes, val_nodes).at(weights)
        validated, got = logits.validation(), logits.with_dropout()
        torch.testing.assert_close(got, expected[nodes], rtol=0, atol=1e-12)
        torch.testing.assert_close(logits.without_dropout(), expected[nodes], rtol=0, atol=1e-12)
        torch.testing.assert_close(validated, expected[val_nodes], rtol=0, atol=1e-12)
        grads = torch.autograd.grad(got.square().sum(), list(weights.values()))
        parts = list(net[0].parameters())
        theirs = torch.autograd.grad(expected[nodes].square().sum(), parts, retain_graph=True)
        by_part = {id(part): grad for part, grad in zip(parts, theirs, strict=True)}
        for key, grad in zip(weights, grads, strict=True):
            layer = net[0][int(key[-1]) - 1]
            kind = key[:-2]
            part = layer.lin.weight if kind == "weight" else getattr(layer, kind)
            their = by_part[id(part)]
            their = their.T if kind == "weight" else their.view(grad.shape)
            torch.testing.assert_close(grad, their, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
def test_20_epochs_equal_pyg_on_a_small_graph(name, dense):
    data = random_data(7, dense=dense, dtype=torch.float64)
    split = modulo_split(data)
    history = MODELS[name].fit(data, split, seed=4).history
    net = PYG[name](initial_weights(name, make_task(data), seed=4))
    losses, val_losses = train_with_pyg(net, data, split, 20)
    assert history.epochs == 20 and losses[-1] < losses[0]
    np.testing.assert_allclose(history.loss, losses, rtol=1e-9)
    np.testing.assert_allclose(history.val_loss, val_losses, rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_20_epochs_equal_pyg_on_cora(name, cora):
    data, split = cora
    history = MODELS[name].fit(data, split, seed=1).history
    net = PYG[name](initial_weights(name, make_task(data, split), seed=1))
    losses, val_losses = train_with_pyg(net, data, split, 20)
    np.testing.assert_allclose(history.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(history.val_loss, val_losses, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_apply_to_a_graph_with_new_nodes_and_edges_matches_pyg(name):
    data = random_data(0)
    fitted = replace(MODELS[name], max_epochs=3).fit(data, modulo_split(data))
    grown = random_data(1)
    grown.x = torch.cat([data.x, grown.x[:7]])
    kept = data.edge_index[:, (data.edge_index != 0).all(0)]  # node 0 loses its edges
    new = torch.tensor([[data.num_nodes, 1], [data.num_nodes + 6, 2]])
    grown.edge_index = torch.cat([kept, new, new.flip(1).flip(0)], dim=1).unique(dim=1)
    with torch.no_grad():
        expected = pyg_logits(PYG[name](fitted.weights), grown)
    applied = fitted.apply(grown)
    assert applied.posterior().num_nodes == data.num_nodes + 7
    torch.testing.assert_close(applied.logits, expected, rtol=1e-4, atol=1e-5)
