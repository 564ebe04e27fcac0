"""JointGCN: learned coupling, likelihood, held-out labels, MRF, seeds, and files."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import edgewise as ew
from edgewise.inference.messages import log_sum, sweep
from edgewise.models.joint_gcn import (
    PRIOR_STANDARD_DEVIATIONS,
    HeldOut,
    JointGCN,
    JointParameters,
    _fit_joint_parameters,
    _held_out,
    _log_degree,
    _log_likelihood,
)
from edgewise.models.task import prepare_task
from helpers.block_graph import assert_same_bits, copy_with, make_block_graph, make_split
from helpers.sinkhorn import joints_from_messages, sinkhorn_loop

SMALL = JointGCN(hidden=8, folds=3, max_epochs=12)
DATA = make_block_graph()
SPLIT = make_split(DATA)


@cache
def fitted():
    return SMALL.fit(DATA, SPLIT)


@cache
def random_tree_data(coupling, signal=1.0, num_nodes=600, seed=0):
    """Draw binary labels on a random tree with coupling w, features that depend on them, and a split.

    The label of a node is that of its parent with odds e^w.
    """
    rng = np.random.default_rng(seed)
    parent = np.array([rng.integers(max(0, node - 6), node) for node in range(1, num_nodes)])
    differs = rng.random(num_nodes - 1) > 1 / (1 + np.exp(-coupling))
    y = np.zeros(num_nodes, dtype=np.int64)
    for node in range(1, num_nodes):
        y[node] = y[parent[node - 1]] ^ differs[node - 1]
    x = signal * np.eye(2, 6)[y] + rng.normal(size=(num_nodes, 6))
    pairs = np.stack([parent, np.arange(1, num_nodes)])
    edges = torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1))
    data = SimpleNamespace(x=torch.from_numpy(x).float(), edge_index=edges, y=torch.from_numpy(y))
    role = torch.from_numpy(rng.permutation(num_nodes) % 4)
    return data, SimpleNamespace(train=role < 2, val=role == 2, test=role == 3)


# Learned parameters.


@pytest.mark.parametrize("coupling", [2.0, -2.0])
def test_coupling_has_the_true_sign_and_joints_score_better_than_products(coupling):
    data, split = random_tree_data(coupling)
    found = JointGCN(hidden=4, folds=3, max_epochs=30).fit(data, split)
    assert found.coupling * coupling > 1
    posterior = found.posterior()
    joint, product = (
        ew.evaluate(belief, data.y, data.edge_index, mask=split.test).edgewise for belief in (posterior, posterior.node)
    )
    assert joint.nll < product.nll - 0.05


@pytest.mark.parametrize("coupling", [2.0, 0.0, -2.0])
def test_uninformative_features_give_the_true_coupling(coupling):
    """The marginals are ½, and about 150 labeled edges determine the coupling to within about 0.3."""
    data, split = random_tree_data(coupling, signal=0.0)
    assert JointGCN(hidden=4, folds=3, max_epochs=30).fit(data, split).coupling == pytest.approx(coupling, abs=0.8)


def joint_parameters(*values):
    return JointParameters(*torch.tensor(values, dtype=torch.float64))


def test_true_parameters_are_recovered():
    """Labels of 1500 pairs, drawn from joints with the true parameters, determine all three parameters."""
    rng = np.random.default_rng(0)
    logits, log_degree = torch.from_numpy(rng.normal(size=(3000, 3))), torch.from_numpy(rng.normal(size=3000))
    pairs = torch.arange(3000).view(2, -1)
    true = joint_parameters(0.4, -0.1, 1.2)
    joints = joints_from_messages(true.log_marginals(logits, log_degree)[pairs], 1.2).flatten(1).numpy()
    pair_classes = (rng.random((1500, 1)) > joints.cumsum(1)).sum(1).clip(max=8)
    labels = torch.from_numpy(np.concatenate([pair_classes // 3, pair_classes % 3]))
    found = _fit_joint_parameters(HeldOut(logits, log_degree, labels, pairs))
    assert [float(number) for number in found] == pytest.approx([0.4, -0.1, 1.2], abs=0.15)


def random_held_out():
    draws = torch.Generator().manual_seed(3)
    logits = torch.randn(12, 3, generator=draws, dtype=torch.float64)
    log_degree = torch.randn(12, generator=draws, dtype=torch.float64)
    labels = torch.randint(3, (12,), generator=draws)
    return HeldOut(logits, log_degree, labels, torch.tensor([[0, 2, 4, 6], [1, 3, 5, 7]]))


def log_likelihood_loop(held_out, log_sharpness, power, coupling):
    """Sum over nodes and edges, with joints from a Sinkhorn loop."""
    rows = []
    for logits, log_degree in zip(held_out.logits.numpy(), held_out.log_degree.numpy(), strict=True):
        exponentials = np.exp(np.exp(log_sharpness) * np.exp(log_degree) ** power * logits)
        rows.append(exponentials / exponentials.sum())
    labels = held_out.labels.tolist()
    total = sum(np.log(row[label]) for row, label in zip(rows, labels, strict=True))
    for i, j in held_out.edge_index.T.tolist():
        joint = sinkhorn_loop(rows[i], rows[j], coupling)[labels[i], labels[j]]
        total += np.log(joint / (rows[i][labels[i]] * rows[j][labels[j]]))
    return total


@pytest.mark.parametrize("parameters", [(0.0, 0.0, 0.0), (-0.5, 0.3, 2.0), (0.7, -0.4, -1.0)])
def test_log_likelihood_equals_loop(parameters):
    found = _log_likelihood(random_held_out(), joint_parameters(*parameters))
    assert float(found) == pytest.approx(log_likelihood_loop(random_held_out(), *parameters), abs=1e-7)


def test_parameters_maximize_the_penalized_likelihood():
    def loss(parameters):
        return (
            -log_likelihood_loop(random_held_out(), *parameters)
            + np.square(np.divide(parameters, PRIOR_STANDARD_DEVIATIONS)).sum() / 2
        )

    best = minimize(loss, [0.0, 0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-7}).x
    assert [float(number) for number in _fit_joint_parameters(random_held_out())] == pytest.approx(
        best.tolist(), abs=1e-3
    )


def test_parameters_are_finite_if_all_predictions_are_correct():
    held_out = random_held_out()
    logits = held_out.logits.clone()
    logits[held_out.edge_index[1]] = logits[held_out.edge_index[0]]
    found = _fit_joint_parameters(held_out._replace(logits=logits, labels=logits.argmax(1)))
    assert 0 < found.coupling < 10
    assert 0 < found.log_sharpness < 5


def test_coupling_is_zero_without_labeled_edges():
    train = torch.zeros(DATA.num_nodes, dtype=torch.bool)
    train[:1] = True
    for i in range(1, DATA.num_nodes):  # no two training nodes are neighbors
        around = DATA.edge_index[1, DATA.edge_index[0] == i]
        train[i] = not train[around].any() and not SPLIT.val[i]
    train &= ~SPLIT.val
    found = SMALL.fit(DATA, SimpleNamespace(train=train, val=SPLIT.val))
    assert found.coupling == pytest.approx(0.0, abs=1e-9)
    i, j = DATA.edge_index
    node = found.posterior().node
    torch.testing.assert_close(found.posterior().joint(DATA.edge_index), node[i].unsqueeze(2) * node[j].unsqueeze(1))


# Held-out labels.


def test_held_out_logits_are_those_of_networks_trained_without_the_node():
    """The logits of network k are k, so the held-out logits of a node are the number of its fold."""
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    fold = torch.arange(len(task.train)) % 2
    logits = torch.arange(2.0)[:, None, None].expand(2, DATA.num_nodes, 3)
    held_out = _held_out(task, fold, logits, _log_degree(task))
    assert torch.equal(held_out.logits[:, 0], fold.float())
    assert torch.equal(held_out.labels, DATA.y[SPLIT.train])
    of_node = dict(zip(task.train.tolist(), fold.tolist(), strict=True))
    inside = [e for e in task.edge_index.T.tolist() if of_node.get(e[0], -1) == of_node.get(e[1], -2)]
    assert len(inside) > 0
    assert task.train[held_out.edge_index].T.tolist() == inside


def test_log_degree_is_relative_to_the_geometric_mean():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    degree = 1 + torch.bincount(DATA.edge_index[0], minlength=DATA.num_nodes).double()
    torch.testing.assert_close(_log_degree(task).exp(), degree / degree.prod() ** (1 / DATA.num_nodes))


def test_labels_of_other_nodes_are_not_used():
    hidden = torch.where(SPLIT.train | SPLIT.val, DATA.y, -1)
    assert_same_bits(SMALL.fit(copy_with(DATA, y=hidden), SPLIT, num_classes=3), fitted())


def test_single_training_node():
    train = torch.zeros(DATA.num_nodes, dtype=torch.bool)
    train[int((~SPLIT.val).nonzero()[0])] = True
    found = SMALL.fit(DATA, SimpleNamespace(train=train, val=SPLIT.val))
    assert found.posterior().node.isfinite().all()


# Fitted models.


def test_marginals_are_the_mean_over_networks():
    found, means = fitted(), torch.zeros(DATA.num_nodes, 3, dtype=torch.float64)
    start, end = torch.cat([DATA.edge_index, torch.arange(DATA.num_nodes).expand(2, -1)], 1)
    degree = torch.bincount(start).double().rsqrt()
    relative = degree**-2 / (degree**-2).log().mean().exp()
    adjacency = torch.zeros(DATA.num_nodes, DATA.num_nodes, dtype=torch.float64)
    adjacency[start, end] = degree[start] * degree[end]
    for k in range(3):
        w = {name: found.weights[f"{k}/{name}"].double() for name in ("weight_1", "bias_1", "weight_2", "bias_2")}
        hidden = (adjacency @ DATA.x.double() @ w["weight_1"] + w["bias_1"]).relu()
        logits = adjacency @ hidden @ w["weight_2"] + w["bias_2"]
        factor = found.weights["log_sharpness"].exp() * relative ** found.weights["power"]
        means += (factor.unsqueeze(1) * logits).softmax(1) / 3
    torch.testing.assert_close(found.posterior().node.double(), means, atol=1e-5, rtol=1e-4)


def test_joints_sum_to_node_marginals():
    posterior, (i, j) = fitted().posterior(), DATA.edge_index
    joint = posterior.joint(DATA.edge_index)
    torch.testing.assert_close(joint.sum(2), posterior.node[i], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(joint.sum(1), posterior.node[j], atol=1e-5, rtol=0.0)


def test_posterior_is_a_fixed_point_of_sum_product():
    """One sweep of sum-product does not change the messages."""
    found = fitted()
    again = sweep(found.mrf(), found.messages, log_sum)
    torch.testing.assert_close(again, found.messages - found.messages.amax(-1, keepdim=True), atol=1e-4, rtol=0.0)


def test_networks_have_different_weights():
    assert not torch.equal(fitted().weights["0/weight_1"], fitted().weights["1/weight_1"])
    assert [name for name, _ in fitted().history.phases] == ["network 1", "network 2", "network 3"]


def test_same_seed_gives_same_bits():
    assert_same_bits(SMALL.fit(DATA, SPLIT), fitted())
    assert not torch.equal(SMALL.fit(DATA, SPLIT, seed=1).log_node, fitted().log_node)


@pytest.mark.parametrize("name", ew.Seeds._fields)
def test_each_seed_matters(name):
    other = SMALL.fit(DATA, SPLIT, seed=ew.Seeds(**{name: 5}))
    assert not torch.equal(other.log_node, fitted().log_node)


def test_save_and_load_round_trip(tmp_path):
    path = tmp_path / "model.safetensors"
    fitted().save(path)
    again = ew.Fitted.load(path)
    assert again.model == SMALL
    assert again.history == fitted().history
    assert_same_bits(again, fitted())
    assert torch.equal(again.posterior().joint(DATA.edge_index), fitted().posterior().joint(DATA.edge_index))
    assert repr(again) == repr(fitted())
    assert f"coupling={again.coupling:.2f}" in repr(again)


def test_float64_is_close_to_float32():
    doubled = SMALL.fit(copy_with(DATA, x=DATA.x.double()), SPLIT)
    assert doubled.posterior().node.dtype == torch.float64
    torch.testing.assert_close(doubled.posterior().node.float(), fitted().posterior().node, atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("options", [{"folds": 0}, {"max_epochs": 0}, {"patience": 0}, {"folds": 2.5}])
def test_invalid_options_raise(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        replace(SMALL, **options)


def test_single_fold_trains_on_all_training_nodes():
    """Nothing is held out, and there is one network."""
    found = replace(SMALL, folds=1).fit(DATA, SPLIT)
    assert [name for name in found.weights if name.endswith("weight_1")] == ["0/weight_1"]
