"""GCN and GAT are PyG's layers: equal weights give equal logits, losses and steps."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, elu, relu
from torch_geometric.nn import GATConv, GCNConv

import edgewise as ew
from edgewise.kernels.dropout import Dropout
from edgewise.models import gat
from edgewise.models.gcn import Convolution, convolution_weights, convolved
from edgewise.models.seeds import generator
from models.graphs import every_third, random_data, task_of
from reference.layers import attention, convolution, neighbours

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


def gcn_of(weights):
    """PyG's two convolutions with our weights."""
    layers = []
    for k in (1, 2):
        weight = weights[f"weight_{k}"]
        layer = GCNConv(*weight.shape).to(weight.dtype)
        with torch.no_grad():
            layer.lin.weight.copy_(weight.T)
            layer.bias.copy_(weights[f"bias_{k}"])
        layers.append(layer)
    return torch.nn.ModuleList(layers), relu


def gat_of(weights):
    """PyG's two attentions with our weights."""
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


PYG = {"gcn": gcn_of, "gat": gat_of}


def their_logits(net, data):
    (first, second), activation = net
    return second(activation(first(data.x, data.edge_index)), data.edge_index)


def initial_weights(name, task, seed):
    """What `fit` begins with."""
    if name == "gcn":
        return convolution_weights(task.num_features, 8, task.num_classes, generator(seed, "gcn"), task)
    return gat.initial_weights(task, 2, 4, generator(seed, "gat"))


def trained_by_pyg(net, data, split, epochs):
    """The loop that everybody writes; losses of training, and of validation after each step."""
    adam = torch.optim.Adam(net[0].parameters(), lr=0.01, weight_decay=5e-4)
    losses, val_losses = [], []
    for _ in range(epochs):
        adam.zero_grad()
        loss = cross_entropy(their_logits(net, data)[split.train], data.y[split.train])
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            val_losses.append(float(cross_entropy(their_logits(net, data)[split.val], data.y[split.val])))
    return losses, val_losses


def random_weights(name, task, seed=0):
    """Biases are not zero, so that they matter."""
    weights = initial_weights(name, task, seed)
    g = torch.Generator().manual_seed(seed)
    return {
        key: value + 0.3 * torch.randn(value.shape, generator=g, dtype=value.dtype) for key, value in weights.items()
    }


def our_logits(name, task, weights):
    if name == "gcn":
        return convolved(task, task.x, weights)
    return gat._Attention(task, task.all_nodes).logits(weights)


@pytest.mark.parametrize("model", [ew.GCN(max_epochs=5), ew.GAT(max_epochs=3)], ids=["gcn", "gat"])
def test_logits_on_cora(model, cora):
    data, split = cora
    fitted = model.fit(data, split)
    with torch.no_grad():
        expected = their_logits(PYG[model.name](fitted.weights), data)
    torch.testing.assert_close(fitted.logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
def test_logits_on_tiny_graphs(name, dense):
    """With isolated nodes and self-loops."""
    for seed in range(3):
        data = random_data(seed, dense=dense)
        fitted = MODELS[name].fit(data, every_third(data), seed)
        with torch.no_grad():
            expected = their_logits(PYG[name](fitted.weights), data)
        torch.testing.assert_close(fitted.logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("hidden", [5, 20])  # below and above the number of features
def test_gcn_by_loops(dense, hidden):
    data = random_data(3, num_nodes=12, num_edges=15, dense=dense, dtype=torch.float64)
    task = task_of(data)
    weights = convolution_weights(12, hidden, 3, generator(0, "gcn"), task)
    weights["bias_1"] += 0.1
    edges = data.edge_index.T.tolist()
    listed = {name: weight.tolist() for name, weight in weights.items()}
    first = convolution(data.x.tolist(), edges, listed["weight_1"], listed["bias_1"])
    raised = [[max(0.0, value) for value in row] for row in first]
    expected = torch.tensor(convolution(raised, edges, listed["weight_2"], listed["bias_2"]), dtype=torch.float64)
    torch.testing.assert_close(convolved(task, task.x, weights), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
def test_gat_by_loops(dense):
    data = random_data(4, num_nodes=12, num_edges=15, dense=dense, dtype=torch.float64)
    task = task_of(data)
    weights = random_weights("gat", task)
    heard = neighbours(data.edge_index.T.tolist(), 12)

    def layer(x, k):
        source, target = weights[f"att_src_{k}"], weights[f"att_dst_{k}"]
        projected = (x @ weights[f"weight_{k}"]).view(12, *source.shape)
        told = attention(projected.tolist(), source.tolist(), target.tolist(), heard, range(12))
        return torch.tensor(told, dtype=torch.float64) + weights[f"bias_{k}"]

    expected = layer(elu(layer(data.x, 1)), 2)
    torch.testing.assert_close(our_logits("gat", task, weights), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("learnt", [SOME, [3], list(range(30))], ids=["some", "one", "all"])
def test_convolutions_of_some_nodes(dense, learnt):
    """Logits of learnt and of validated nodes are those of the whole graph; so are gradients of learnt ones."""
    data = random_data(5, dense=dense, dtype=torch.float64)
    task = task_of(data)
    weights = {name: weight.requires_grad_() for name, weight in random_weights("gcn", task).items()}
    expected = their_logits(net := gcn_of(weights), data)
    for validated in (SOME, [2, 9], [29]):
        cut = Convolution(task, task.x, np.array(learnt), np.array(validated))
        hidden = cut.hidden(weights)
        got = cut.learnt_logits(weights, hidden, Dropout(0.0, 0), 0)
        torch.testing.assert_close(got, expected[learnt], rtol=0, atol=1e-12)
        torch.testing.assert_close(cut.validated_logits(weights, hidden), expected[validated], rtol=0, atol=1e-12)
        grads = torch.autograd.grad(got.square().sum(), list(weights.values()))
        theirs = torch.autograd.grad(expected[learnt].square().sum(), list(net[0].parameters()), retain_graph=True)
        ordered = [theirs[1].T, theirs[0], theirs[3].T, theirs[2]]  # PyG lists the bias first
        torch.testing.assert_close(list(grads), ordered, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("nodes", [SOME, [3], [29]], ids=["some", "one", "isolated"])
def test_attention_of_some_nodes(dense, nodes):
    data = random_data(6, dense=dense, dtype=torch.float64)
    task = task_of(data)
    weights = random_weights("gat", task)
    with torch.no_grad():
        expected = their_logits(gat_of(weights), data)[nodes]
    torch.testing.assert_close(gat._Attention(task, np.array(nodes)).logits(weights), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS)
def test_20_epochs_on_a_small_graph(name, dense):
    data = random_data(7, dense=dense, dtype=torch.float64)
    split = every_third(data)
    history = MODELS[name].fit(data, split, seed=4).history
    net = PYG[name](initial_weights(name, task_of(data), seed=4))
    losses, val_losses = trained_by_pyg(net, data, split, 20)
    assert history.epochs == 20 and losses[-1] < losses[0]
    np.testing.assert_allclose(history.loss, losses, rtol=1e-9)
    np.testing.assert_allclose(history.val_loss, val_losses, rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_20_epochs_on_cora(name, cora):
    data, split = cora
    history = MODELS[name].fit(data, split, seed=1).history
    net = PYG[name](initial_weights(name, task_of(data, split), seed=1))
    losses, val_losses = trained_by_pyg(net, data, split, 20)
    np.testing.assert_allclose(history.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(history.val_loss, val_losses, rtol=1e-5)
