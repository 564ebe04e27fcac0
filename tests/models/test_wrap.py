"""`wrap`: posteriors of modules, functions and probabilities."""

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
    """One layer with dropout and batch normalization."""

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


def assert_wrap_raises(match, *arguments):
    with pytest.raises(ValueError, match=re.escape(match)):
        ew.wrap(*arguments)


# Modules.


def test_trained_graphsage_is_evaluated():
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


def test_module_runs_once_in_evaluation_mode_without_gradient(network):
    posterior = ew.wrap(network, DATA)
    assert isinstance(posterior, ew.IndependentPosterior)
    assert network.modes == [(False, False, False, False)]
    assert not posterior.node.requires_grad
    assert torch.is_grad_enabled()
    assert torch.equal(posterior.node, network.eval()(DATA.x, DATA.edge_index).softmax(-1))


def test_module_is_not_modified(network):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    states = global_random_states()
    ew.wrap(network, DATA)
    assert global_random_states() == states
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize(("whole", "norm", "dropout"), [(True, True, True), (False, False, False), (True, False, True)])
def test_training_mode_of_each_submodule_is_restored(network, whole, norm, dropout):
    """Also if some submodules are in evaluation mode and others in training mode."""
    network.training, network.norm.training, network.dropout.training = whole, norm, dropout
    ew.wrap(network, DATA)
    assert (network.training, network.norm.training, network.dropout.training) == (whole, norm, dropout)


def test_training_modes_are_restored_after_an_error(network):
    network.norm.eval()
    with pytest.raises(RuntimeError):
        ew.wrap(network, copy_with(DATA, x=DATA.x[:, :5]))
    assert (network.training, network.norm.training, network.dropout.training) == (True, False, True)


def test_module_without_parameters():
    class Sums(nn.Module):
        def forward(self, x, edge_index):
            return torch.stack([x[:, 0::3].sum(1), x[:, 1::3].sum(1), x[:, 2::3].sum(1)], 1)

    assert accuracy(ew.wrap(Sums(), DATA), DATA, SPLIT.test) > 0.5


def test_logits_of_a_fitted_model_give_its_posterior():
    fitted = ew.GCN(hidden=8, max_epochs=5).fit(DATA, SPLIT)
    assert torch.equal(ew.wrap(lambda x, edge_index: fitted.logits, DATA).node, fitted.posterior().node)


def test_log_softmax_is_accepted_as_logits(network):
    logits = ew.wrap(network, DATA).node
    normalized = ew.wrap(lambda x, edge_index: network.eval()(x, edge_index).log_softmax(-1), DATA)
    torch.testing.assert_close(normalized.node, logits)


def test_function_gets_features_and_edges():
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


def test_data_can_be_any_object_with_features_and_edges(network):
    data = SimpleNamespace(x=DATA.x, edge_index=DATA.edge_index)
    assert torch.equal(ew.wrap(network, data).node, ew.wrap(network, DATA).node)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_of_logits_is_preserved(dtype):
    node = ew.wrap(lambda x, edge_index: (3 * x[:, :3] - 1).to(dtype), DATA).node
    assert node.dtype == dtype
    torch.testing.assert_close(node.double().sum(1), torch.ones(120).double(), rtol=1e-2, atol=1e-2)


# Input checks.


def test_module_without_data_raises(network):
    match = "ew.wrap(module, data)"
    assert_wrap_raises(match, network)
    assert_wrap_raises(match, network, DATA.x)
    assert_wrap_raises(match, network, SimpleNamespace(x=DATA.x))
    assert_wrap_raises(match, network, copy_with(DATA, x=None))
    assert_wrap_raises(match, lambda x, edge_index: x)


def test_module_that_returns_probabilities_raises(network):
    assert_wrap_raises("ew.wrap(probabilities)", lambda x, edge_index: network(x, edge_index).softmax(-1), DATA)
    assert_wrap_raises("ew.wrap(probabilities)", lambda x, edge_index: torch.eye(3)[DATA.y], DATA)


INVALID_OUTPUTS = [
    (lambda x: x[1:, :3], "(120, classes), but got shape (119, 3), torch.float32."),
    (lambda x: x[:, 0], "but got shape (120,), torch.float32."),
    (lambda x: x[None, :, :3], "but got shape (1, 120, 3), torch.float32."),
    (lambda x: x.argmax(1, keepdim=True), "but got shape (120, 1), torch.int64."),
    (lambda x: (x, x), "but got tuple."),
    (lambda x: x.numpy(), "but got ndarray."),
    (lambda x: None, "but got NoneType."),
    (lambda x: torch.where(x[:, :3].cumsum(0) > 3, torch.nan, 1.0), "first for node"),
]


@pytest.mark.parametrize(("output", "match"), INVALID_OUTPUTS, ids=[match for _, match in INVALID_OUTPUTS])
def test_invalid_module_output_raises(output, match):
    assert_wrap_raises(match, lambda x, edge_index: output(x), DATA)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_logits_name_the_node(value):
    logits = torch.zeros(120, 3)
    logits[[17, 90], 1] = value
    assert_wrap_raises("first for node 17", lambda x, edge_index: logits, DATA)


# Probabilities.


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_probabilities_are_wrapped_unchanged(kind):
    posterior = ew.wrap(kind([[0.9, 0.1], [0.25, 0.75]]))
    assert isinstance(posterior, ew.IndependentPosterior)
    np.testing.assert_allclose(posterior.node.numpy(), [[0.9, 0.1], [0.25, 0.75]], rtol=1e-6)
    joint = posterior.joint(torch.tensor([[0], [1]]))[0]
    np.testing.assert_allclose(joint.numpy(), [[0.225, 0.675], [0.025, 0.075]], rtol=1e-6)


def test_wrapped_probabilities_have_the_same_scores():
    probs = torch.randn(120, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    one = ew.evaluate(ew.wrap(probs), DATA.y, DATA.edge_index, mask=SPLIT.test)
    assert one.to_dict() == ew.evaluate(probs, DATA.y, DATA.edge_index, mask=SPLIT.test).to_dict()


def test_single_logit_raises():
    match = "torch.cat([torch.zeros_like(logit), logit], 1)"
    assert_wrap_raises(match, lambda x, edge_index: x[:, :1], DATA)


def test_number_of_probabilities_is_checked_against_data():
    probs = torch.full((DATA.num_nodes, 2), 0.5)
    assert torch.equal(ew.wrap(probs, DATA).node, probs)
    assert_wrap_raises(f"for {DATA.num_nodes} nodes, but got shape (1, 2)", probs[:1], DATA)


def test_module_with_another_signature_raises_type_error():
    with pytest.raises(TypeError, match=r"ew\.wrap\(logits\.softmax\(-1\)\)"):
        ew.wrap(lambda data: data, DATA)


def test_integer_features_are_converted_to_the_dtype_of_the_module(network):
    whole = SimpleNamespace(x=(4 * DATA.x).long(), edge_index=DATA.edge_index)
    exact = SimpleNamespace(x=(4 * DATA.x).long().float(), edge_index=DATA.edge_index)
    assert torch.equal(ew.wrap(network, whole).node, ew.wrap(network, exact).node)


def test_non_finite_features_are_mentioned():
    data = SimpleNamespace(x=torch.full((3, 2), torch.nan), edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert_wrap_raises("first for node 0. x is not finite either", lambda x, edge_index: x, data)


def test_fitted_model_raises():
    fitted = ew.GCN(max_epochs=1).fit(DATA, SPLIT)
    assert_wrap_raises("FittedClassifier. Call its posterior()", fitted, DATA)
    scores = ew.evaluate(fitted, DATA.y, DATA.edge_index)
    assert scores.to_dict() == ew.evaluate(fitted.posterior(), DATA.y, DATA.edge_index).to_dict()


def test_samples_raise():
    samples = torch.full((4, 5, 2), 0.5)
    assert_wrap_raises("but got shape (4, 5, 2)", samples)
    assert_wrap_raises("ew.MixturePosterior(samples)", samples.numpy())


@pytest.mark.parametrize(
    ("probs", "match"),
    [
        (torch.tensor([[0.9, 0.1], [2.0, -1.0]]), "but row 1 of probs holds -1. For logits pass logits.softmax(-1)"),
        (
            torch.tensor([[0.9, 0.3]]),
            "that sum to 1 in each row, but row 0 of probs sums to 1.2",
        ),
        (torch.tensor([[torch.nan, 0.3]]), "holds NaN"),
        (torch.tensor([0.5, 0.5]), "np.column_stack([1 - p, p])"),
        ([[0.5, 0.5], [1.0]], "nested lists of one length"),
        (None, "but got NoneType."),
    ],
)
def test_invalid_probabilities_raise(probs, match):
    assert_wrap_raises(match, probs)
