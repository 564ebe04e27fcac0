"""SPN: proxy objective, potentials, symmetry, labeled edges, inference, sharpness, and files."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

import edgewise as ew
from edgewise.models import spn
from edgewise.models.seeds import Initializer, generator
from edgewise.models.spn import choose_sharpness, labeled_edges, pair_logits, pair_potentials
from edgewise.models.task import prepare_task
from edgewise.models.training import Log
from helpers.block_graph import assert_same_bits, copy_with, make_block_graph, make_split

DATA = make_block_graph(within=0.3)
SPLIT = make_split(DATA)
SMALL = ew.SPN(hidden=8, max_epochs=12)


@cache
def fitted():
    return SMALL.fit(DATA, SPLIT)


@cache
def task():
    return prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")


def without_training(model):
    """Return a copy of the model that takes one step, smaller than rounding errors."""
    return replace(model, max_epochs=1, learning_rate=1e-30, dropout=0.0)


def part_of(fitted_model, network):
    prefix = f"{network}/"
    return {
        name.removeprefix(prefix): weight for name, weight in fitted_model.weights.items() if name.startswith(prefix)
    }


def dense_adjacency(data):
    adjacency = torch.eye(data.num_nodes, dtype=torch.float64)
    adjacency[data.edge_index[0], data.edge_index[1]] = 1.0
    scale = adjacency.sum(1).rsqrt()
    return scale.unsqueeze(1) * adjacency * scale


def gcn_loop(w, data):
    """Compute Â ReLU(Â X W₁ + b₁) W₂ + b₂ with dense matrices in float64."""
    w, adjacency = {name: weight.double() for name, weight in w.items()}, dense_adjacency(data)
    hidden = (adjacency @ data.x.double() @ w["weight_1"] + w["bias_1"]).relu()
    return adjacency @ hidden @ w["weight_2"] + w["bias_2"]


def pair_logits_loop(w, encoded, i, j):
    """Compute the logits of one edge, (f(u_i, u_j) + f(u_j, u_i)ᵀ) / 2."""
    w = {name: weight.double() for name, weight in w.items()}

    def perceptron(u, v):
        hidden = (torch.cat([u, v]) @ w["weight_3"] + w["bias_3"]).relu()
        return (hidden @ w["weight_4"] + w["bias_4"]).view(3, 3)

    return (perceptron(encoded[i], encoded[j]) + perceptron(encoded[j], encoded[i]).T) / 2


# Training.


def test_proxy_objective_equals_loop():
    """The losses of the first epochs are the two parts of the objective, divided by the number of nodes or edges."""
    found = without_training(SMALL).fit(DATA, SPLIT)
    log_node = gcn_loop(part_of(found, "node"), DATA).log_softmax(1)
    train = SPLIT.train.nonzero().flatten().tolist()
    nodes = sum(float(log_node[i, DATA.y[i]]) for i in train)
    edge = part_of(found, "edge")
    encoded, edges, num_edges = gcn_loop(edge, DATA), 0.0, 0
    for i, j in DATA.edge_index.T.tolist():
        if i < j and i in train and j in train:
            log_pair = pair_logits_loop(edge, encoded, i, j).flatten().log_softmax(0).view(3, 3)
            edges, num_edges = edges + float(log_pair[DATA.y[i], DATA.y[j]]), num_edges + 1
    assert num_edges > 5
    assert found.history.phases == [("nodes", 1), ("edges", 1)]
    assert found.history.loss == pytest.approx([-nodes / len(train), -edges / num_edges], rel=1e-5)


def test_node_network_is_a_gcn():
    gcn = ew.GCN(hidden=8, max_epochs=12).fit(DATA, SPLIT)
    torch.testing.assert_close(fitted().unary, gcn.logits.log_softmax(1))
    assert fitted().history.loss[:12] == gcn.history.loss


def test_labeled_edges():
    roles = dict.fromkeys(SPLIT.train.nonzero().flatten().tolist(), "train")
    roles |= dict.fromkeys(SPLIT.val.nonzero().flatten().tolist(), "val")
    found = labeled_edges(task())
    for pairs, expected in ((found.train, {("train", "train")}), (found.val, None)):
        seen = {(roles[i], roles[j]) for i, j in pairs.T.tolist()}
        assert seen == expected if expected else ("train", "train") not in seen and seen
    both = [edge for edge in task().edge_index.T.tolist() if edge[0] in roles and edge[1] in roles]
    assert found.train.shape[1] + found.val.shape[1] == len(both)


def test_gradient_of_pair_logits():
    draws = torch.Generator().manual_seed(0)
    edges = torch.tensor([[0, 1, 2], [1, 3, 0]])
    shapes = {"weight_3": (4, 2), "bias_3": (2,), "weight_4": (2, 9), "bias_4": (9,)}
    tensors = [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes.values()]
    encoded = torch.randn(4, 2, generator=draws, dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (encoded, *tensors)]
    assert torch.autograd.gradcheck(
        lambda nodes, *parts: pair_logits(dict(zip(shapes, parts, strict=True)), nodes, edges), inputs
    )


def test_edge_network_learns():
    losses = replace(SMALL, max_epochs=60).fit(DATA, SPLIT).history.loss
    edges = losses[60:]
    assert sum(edges[-5:]) / 5 < 0.7 * edges[0]


# Potentials.


def random_logits(num_edges=6):
    return torch.randn(num_edges, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("sharpness", [0.01, 0.5, 1.0])
def test_potentials_equal_loop(sharpness):
    logits = random_logits()
    for pair, found in zip(logits, pair_potentials(logits, sharpness), strict=True):
        tau = (sharpness * pair).exp() / (sharpness * pair).exp().sum()
        expected = torch.empty(3, 3, dtype=torch.float64)
        for a in range(3):
            for b in range(3):
                expected[a, b] = tau[a, b].log() - tau[a].sum().log() - tau[:, b].sum().log()
        torch.testing.assert_close(found, expected)


def test_potentials_of_agreeing_pseudomarginals_make_them_a_fixed_point():
    """If τ_i are the sums of τ_ij, sum-product on a tree returns τ: what the proxy rests on."""
    edges, joints = torch.tensor([[0, 1], [1, 2]]), torch.empty(2, 3, 3, dtype=torch.float64)
    transition = random_logits(2).softmax(2)
    start = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    joints[0] = start.unsqueeze(1) * transition[0]
    joints[1] = joints[0].sum(0).unsqueeze(1) * transition[1]
    node = torch.stack([start, joints[0].sum(0), joints[1].sum(0)])
    posterior, _ = ew.sum_product(ew.PairwiseMRF(node.log(), edges, pair_potentials(joints.log(), 1.0)))
    torch.testing.assert_close(posterior.node, node)
    torch.testing.assert_close(posterior.joint(edges), joints)


def test_direction_of_edges_does_not_matter():
    draw = Initializer(generator(0, "test"), torch.float64, torch.device("cpu"))
    weights = {"weight_3": draw.glorot(16, 8), "bias_3": draw.glorot(1, 8)[0]}
    weights |= {"weight_4": draw.glorot(8, 9), "bias_4": draw.glorot(1, 9)[0]}
    encoded, edges = draw.glorot(5, 8), torch.tensor([[0, 1, 4], [3, 2, 0]])
    found, turned = pair_logits(weights, encoded, edges), pair_logits(weights, encoded, edges.flip(0))
    torch.testing.assert_close(found, turned.transpose(1, 2))
    for e, (i, j) in enumerate(edges.T.tolist()):
        torch.testing.assert_close(found[e], pair_logits_loop(weights, encoded, i, j))
    posterior = fitted().posterior()
    torch.testing.assert_close(
        posterior.joint(DATA.edge_index), posterior.joint(DATA.edge_index.flip(0)).transpose(1, 2)
    )


def test_chunks_of_edges_do_not_matter(monkeypatch):
    monkeypatch.setattr(spn, "CHUNK_EDGES", 7)
    torch.testing.assert_close(SMALL.fit(DATA, SPLIT).pairwise, fitted().pairwise)


# Inference.


def random_tree(num_nodes=12):
    """Return a tree with features and labels of two classes, and a split."""
    draws = torch.Generator().manual_seed(4)
    parent = torch.tensor([int(torch.randint(k, (1,), generator=draws)) for k in range(1, num_nodes)])
    edges = torch.stack([parent, torch.arange(1, num_nodes)])
    y = torch.arange(num_nodes) % 2
    x = torch.randn(num_nodes, 4, generator=draws, dtype=torch.float64) + y.unsqueeze(1)
    role = torch.arange(num_nodes) % 3
    data = SimpleNamespace(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=y)
    return data, SimpleNamespace(train=role == 0, val=role == 1)


def test_marginals_are_exact_on_a_tree(monkeypatch):
    monkeypatch.setattr(spn, "choose_sharpness", lambda task, node, logits: (1.0, pair_potentials(logits, 1.0)))
    data, split = random_tree()
    found = ew.SPN(hidden=4, max_epochs=20).fit(data, split)
    assert float(found.pairwise.abs().max()) > 0.01
    probs = torch.zeros(12, 2, dtype=torch.float64)
    labelings = torch.cartesian_prod(*[torch.arange(2)] * 12)
    labelings = labelings[(labelings[:, split.train] == data.y[split.train]).all(1)]
    i, j = found.edge_index
    for labels in labelings:
        score = found.unary[torch.arange(12), labels].sum()
        score += found.pairwise[torch.arange(11), labels[i], labels[j]].sum()
        probs[torch.arange(12), labels] += score.exp()
    torch.testing.assert_close(found.posterior().node, probs / probs.sum(1, keepdim=True))


def test_training_labels_are_clamped():
    posterior, free = fitted().posterior(), fitted().posterior(evidence=False)
    assert (posterior.node[SPLIT.train, DATA.y[SPLIT.train]] == 1).all()
    assert not (free.node[SPLIT.train, DATA.y[SPLIT.train]] == 1).all()
    assert set(fitted().predictions()) == {"spn_sum_product"}
    assert isinstance(fitted().posterior("mean_field"), ew.Posterior)


# Sharpness.


def val_nll(potentials):
    evidence = dict(zip(task().train.tolist(), task().labels[task().train].tolist(), strict=True))
    mrf = ew.PairwiseMRF(fitted().unary, task().edge_index, potentials, evidence=evidence)
    node = ew.sum_product(mrf)[0].node[SPLIT.val]
    return -float(node[torch.arange(len(node)), DATA.y[SPLIT.val]].log().mean())


def test_sharpness_is_raised_while_the_validation_nll_decreases():
    """Couplings that favor equal labels help on this graph, those that favor different labels do not."""
    equal = 4 * torch.eye(3).expand(task().edge_index.shape[1], 3, 3)
    chosen, pairwise = choose_sharpness(task(), fitted().unary, equal)
    assert chosen > 0
    assert torch.equal(pairwise, pair_potentials(equal, chosen))
    tried = [0.0, *(sharpness for sharpness in spn.SHARPNESS if sharpness <= chosen)]
    nlls = [val_nll(pair_potentials(equal, sharpness)) for sharpness in tried]
    assert nlls == sorted(nlls, reverse=True)
    worst, zeros = choose_sharpness(task(), fitted().unary, -10 * equal)
    assert worst == 0 and not zeros.any()


def test_sharpness_is_not_raised_beyond_the_lowest_validation_nll():
    """Couplings with noise help only while they are weak."""
    noise = torch.randn(task().edge_index.shape[1], 3, 3, generator=torch.Generator().manual_seed(1))
    noisy = 4 * torch.eye(3) + 8 * noise
    chosen, _ = choose_sharpness(task(), fitted().unary, noisy)
    position = spn.SHARPNESS.index(chosen)
    before, best, following = (
        val_nll(pair_potentials(noisy, sharpness)) for sharpness in spn.SHARPNESS[position - 1 : position + 2]
    )
    assert position > 0 and best < before and best < following


def test_sharpness_is_not_raised_where_sum_product_does_not_converge(monkeypatch):
    equal = 4 * torch.eye(3).expand(task().edge_index.shape[1], 3, 3)
    chosen, _ = choose_sharpness(task(), fitted().unary, equal)
    monkeypatch.setattr(spn, "VALIDATION_SWEEPS", 10)
    converging, _ = choose_sharpness(task(), fitted().unary, equal)
    assert 0 < converging < chosen
    monkeypatch.setattr(spn, "VALIDATION_SWEEPS", 1)
    none, zeros = choose_sharpness(task(), fitted().unary, equal)
    assert none == 0 and not zeros.any()


def test_divergence_of_the_edge_network_names_an_edge(monkeypatch):
    def diverged(weights, encoded, edges):
        return torch.full((edges.shape[1], 3, 3), torch.nan)

    weights = SMALL._train_edges(task(), labeled_edges(task()), ew.Seeds(), Log())
    monkeypatch.setattr(spn, "pair_logits", diverged)
    with pytest.raises(FloatingPointError, match="the logits of edge 0 are"):
        SMALL._edge_logits(task(), weights)


def test_sharpness_is_stored_and_shown(tmp_path):
    found = replace(SMALL, max_epochs=60).fit(DATA, SPLIT)
    assert f"sharpness={float(found.sharpness):g}" in repr(found)
    found.save(tmp_path / "model")
    assert_same_bits(ew.Fitted.load(tmp_path / "model"), found)


# Few labels.


@pytest.mark.parametrize("without", ["train", "val"])
def test_without_labeled_edges_nodes_are_independent(without):
    """The edges of all training nodes, or of all validation nodes, are removed."""
    mask = getattr(SPLIT, without)
    edges = DATA.edge_index[:, ~mask[DATA.edge_index].any(0)]
    found = SMALL.fit(copy_with(DATA, edge_index=edges), SPLIT)
    assert found.history.phases == [("nodes", 12)]
    assert found.sharpness == 0 and not found.pairwise.any()
    posterior, (i, j) = found.posterior(), edges
    product = posterior.node[i].unsqueeze(2) * posterior.node[j].unsqueeze(1)
    torch.testing.assert_close(posterior.joint(edges), product)
    free = ~SPLIT.train
    torch.testing.assert_close(posterior.node[free], found.unary.softmax(1)[free])


def test_invalid_options_raise():
    with pytest.raises(ValueError, match="Expected inference to be one of sum_product, max_product, mean_field"):
        ew.SPN(inference="lbp")
    with pytest.raises(ValueError, match="evidence"):
        ew.SPN(evidence="no")
    with pytest.raises(ValueError, match="hidden"):
        ew.SPN(hidden=0)
