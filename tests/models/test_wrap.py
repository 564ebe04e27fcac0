"""Anybody's model as a posterior: modules of logits, functions, and probabilities that are there already."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import edgewise as ew
from helpers.block_graph import accuracy, copy_with, global_random_states, make_block_graph, make_split

DATA = make_block_graph(120, within=0.2, between=0.01)
SPLIT = make_split(DATA)


class Network(nn.Module):
    """One layer, with dropout and a normalization that remembers what it sees while training."""

    def __init__(self, num_features=30, num_classes=3):
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)
        self.norm, self.dropout = nn.BatchNorm1d(num_classes), nn.Dropout(0.5)
        self.modes = []

    def forward(self, x, edge_index):
        self.modes.append((self.training, self.norm.training, self.dropout.training, torch.is_grad_enabled()))
        return self.dropout(self.norm(self.linear(x)))


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network()


def refused(words, *arguments):
    with pytest.raises(ValueError, match=re.escape(words)):
        ew.wrap(*arguments)


# Modules.


def test_a_trained_graphsage_is_evaluated_in_a_line():
    from torch_geometric.nn import GraphSAGE

    with torch.random.fork_rng():
        torch.manual_seed(0)
        sage = GraphSAGE(DATA.num_features, hidden_channels=16, num_layers=2, out_channels=3, dropout=0.5)
        optimizer = torch.optim.Adam(sage.parameters(), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            cross_entropy(sage(DATA.x, DATA.edge_index)[SPLIT.train], DATA.y[SPLIT.train]).backward()
            optimizer.step()
    evaluation = ew.evaluate(ew.wrap(sage, DATA), DATA.y, DATA.edge_index, mask=SPLIT.test)
    assert evaluation.nodewise.accuracy > 0.85
    assert evaluation.nodewise.count == int(SPLIT.test.sum())
    assert 0 <= evaluation.edgewise.ece <= 1
    sage.eval()
    with torch.no_grad():
        expected = sage(DATA.x, DATA.edge_index).softmax(-1)
    assert torch.equal(ew.wrap(sage, DATA).node, expected)


def test_modules_run_once_in_evaluation_mode_without_a_gradient(network):
    posterior = ew.wrap(network, DATA)
    assert isinstance(posterior, ew.IndependentPosterior)
    assert network.modes == [(False, False, False, False)]
    assert not posterior.node.requires_grad
    assert torch.is_grad_enabled()
    assert torch.equal(posterior.node, network.eval()(DATA.x, DATA.edge_index).softmax(-1))


def test_modules_stay_as_they_were(network):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    states = global_random_states()
    ew.wrap(network, DATA)
    assert global_random_states() == states
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize(("whole", "norm", "dropout"), [(True, True, True), (False, False, False), (True, False, True)])
def test_each_part_gets_its_mode_back(network, whole, norm, dropout):
    """Also where parts are frozen in evaluation mode while others train, or the other way round."""
    network.training, network.norm.training, network.dropout.training = whole, norm, dropout
    ew.wrap(network, DATA)
    assert (network.training, network.norm.training, network.dropout.training) == (whole, norm, dropout)


def test_modes_come_back_when_a_module_fails(network):
    network.norm.eval()
    with pytest.raises(RuntimeError):
        ew.wrap(network, copy_with(DATA, x=DATA.x[:, :5]))
    assert (network.training, network.norm.training, network.dropout.training) == (True, False, True)


def test_modules_without_parameters():
    class Sums(nn.Module):
        def forward(self, x, edge_index):
            return torch.stack([x[:, 0::3].sum(1), x[:, 1::3].sum(1), x[:, 2::3].sum(1)], 1)

    assert accuracy(ew.wrap(Sums(), DATA), DATA, SPLIT.test) > 0.5


def test_a_fit_agrees_with_its_logits():
    fitted = ew.GCN(hidden=8, max_epochs=5).fit(DATA, SPLIT)
    assert torch.equal(ew.wrap(lambda x, edge_index: fitted.logits, DATA).node, fitted.posterior().node)


def test_log_softmax_is_as_good_as_logits(network):
    logits = ew.wrap(network, DATA).node
    normalized = ew.wrap(lambda x, edge_index: network.eval()(x, edge_index).log_softmax(-1), DATA)
    torch.testing.assert_close(normalized.node, logits)


def test_functions_see_features_and_edges():
    seen = []

    def classify(x, edge_index):
        seen.append((x, edge_index, torch.is_grad_enabled()))
        return x[:, :3]

    posterior = ew.wrap(classify, DATA)
    assert len(seen) == 1
    assert seen[0][0].data_ptr() == DATA.x.data_ptr()
    assert seen[0][1].data_ptr() == DATA.edge_index.data_ptr()
    assert seen[0][2] is False
    assert torch.equal(posterior.node, DATA.x[:, :3].softmax(-1))


def test_anything_with_features_and_edges_is_data(network):
    data = SimpleNamespace(x=DATA.x, edge_index=DATA.edge_index)
    assert torch.equal(ew.wrap(network, data).node, ew.wrap(network, DATA).node)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_logits_of_any_precision(dtype):
    node = ew.wrap(lambda x, edge_index: (3 * x[:, :3] - 1).to(dtype), DATA).node
    assert node.dtype == dtype
    torch.testing.assert_close(node.double().sum(1), torch.ones(120).double(), rtol=1e-2, atol=1e-2)


# Refusals.


def test_modules_need_data(network):
    words = "Expected data with x and edge_index to run the module on: ew.wrap(module, data)."
    refused(words, network)
    refused(words, network, DATA.x)
    refused(words, network, SimpleNamespace(x=DATA.x))
    refused(words, network, copy_with(DATA, x=None))
    refused(words, lambda x, edge_index: x)


def test_probabilities_of_a_module_are_refused_with_the_way_out(network):
    words = "Expected the module to give logits, but its rows are probabilities, which softmax would flatten. Pass them"
    refused(words, lambda x, edge_index: network(x, edge_index).softmax(-1), DATA)
    refused("ew.wrap(probabilities)", lambda x, edge_index: torch.eye(3)[DATA.y], DATA)


OUTPUTS = [
    (lambda x: x[1:, :3], "logits of shape (120, classes), but got shape (119, 3), torch.float32."),
    (lambda x: x[:, 0], "but got shape (120,), torch.float32."),
    (lambda x: x[None, :, :3], "but got shape (1, 120, 3), torch.float32."),
    (lambda x: x.argmax(1, keepdim=True), "but got shape (120, 1), torch.int64."),
    (lambda x: (x, x), "but got tuple."),
    (lambda x: x.numpy(), "but got ndarray."),
    (lambda x: None, "but got NoneType."),
    (lambda x: torch.where(x[:, :3].cumsum(0) > 3, torch.nan, 1.0), "Expected finite logits, but the module gives NaN"),
]


@pytest.mark.parametrize(("output", "words"), OUTPUTS, ids=[words for _, words in OUTPUTS])
def test_what_is_no_logits(output, words):
    refused(words, lambda x, edge_index: output(x), DATA)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_name_the_node(value):
    logits = torch.zeros(120, 3)
    logits[[17, 90], 1] = value
    refused("gives NaN or infinity, first for node 17.", lambda x, edge_index: logits, DATA)


# Probabilities.


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_probabilities_are_wrapped_as_they_are(kind):
    posterior = ew.wrap(kind([[0.9, 0.1], [0.25, 0.75]]))
    assert isinstance(posterior, ew.IndependentPosterior)
    np.testing.assert_allclose(posterior.node.numpy(), [[0.9, 0.1], [0.25, 0.75]], rtol=1e-6)
    joint = posterior.joint(torch.tensor([[0], [1]]))[0]
    np.testing.assert_allclose(joint.numpy(), [[0.225, 0.675], [0.025, 0.075]], rtol=1e-6)


def test_wrapped_probabilities_score_as_they_do_alone():
    probs = torch.randn(120, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    one = ew.evaluate(ew.wrap(probs), DATA.y, DATA.edge_index, mask=SPLIT.test)
    assert one.to_dict() == ew.evaluate(probs, DATA.y, DATA.edge_index, mask=SPLIT.test).to_dict()


def test_one_logit_is_not_enough():
    words = "Expected logits of at least two classes, but got shape (120, 1). Of one logit of class 1 make two"
    refused(words, lambda x, edge_index: x[:, :1], DATA)


def test_probabilities_may_come_with_data():
    probs = torch.full((DATA.num_nodes, 2), 0.5)
    assert torch.equal(ew.wrap(probs, DATA).node, probs)
    refused(f"Expected probabilities of each of {DATA.num_nodes} nodes, but got shape (1, 2).", probs[:1], DATA)


def test_what_takes_something_else_names_the_way_out():
    with pytest.raises(TypeError, match=r"\(x, edge_index\) to logits, but .* Of a module that takes something else"):
        ew.wrap(lambda data: data, DATA)


def test_whole_features_become_those_of_the_module(network):
    whole = SimpleNamespace(x=(4 * DATA.x).long(), edge_index=DATA.edge_index)
    exact = SimpleNamespace(x=(4 * DATA.x).long().float(), edge_index=DATA.edge_index)
    assert torch.equal(ew.wrap(network, whole).node, ew.wrap(network, exact).node)


def test_features_that_are_not_finite_are_named():
    spoilt = SimpleNamespace(x=torch.full((3, 2), torch.nan), edge_index=torch.zeros(2, 0, dtype=torch.long))
    refused("first for node 0. x is not finite either", lambda x, edge_index: x, spoilt)


def test_fitted_values_have_a_posterior_of_their_own():
    fitted = ew.GCN(max_epochs=1).fit(DATA, SPLIT)
    refused("but got FittedClassifier. A fitted model has a posterior() of its own.", fitted, DATA)
    scores = ew.evaluate(fitted, DATA.y, DATA.edge_index)
    assert scores.to_dict() == ew.evaluate(fitted.posterior(), DATA.y, DATA.edge_index).to_dict()


def test_several_samples_are_a_mixture():
    samples = torch.full((4, 5, 2), 0.5)
    refused("but got shape (4, 5, 2). Of several samples make a mixture: ew.MixturePosterior(samples).", samples)
    refused("ew.MixturePosterior(samples)", samples.numpy())


@pytest.mark.parametrize(
    ("probs", "words"),
    [
        (torch.tensor([[0.9, 0.1], [2.0, -1.0]]), "but row 1 of probs holds -1. For logits pass logits.softmax(-1)."),
        (
            torch.tensor([[0.9, 0.3]]),
            "that sum to 1 in each row, but row 0 of probs sums to 1.2",
        ),
        (torch.tensor([[torch.nan, 0.3]]), "holds NaN"),
        (torch.tensor([0.5, 0.5]), "but got shape (2,). Of the probability p of class 1 pass both columns"),
        ([[0.5, 0.5]], "Expected a trained module, or probabilities as a tensor or an array, but got list."),
        (None, "but got NoneType."),
    ],
)
def test_what_is_no_probabilities(probs, words):
    refused(words, probs)
