"""At the door of fit: what cannot be is refused in words; what is odd but possible has a defined result."""

import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.utils import to_undirected

import edgewise as ew
from edgewise.models.task import prepare_task
from helpers.block_graph import (
    ALL_SMALL_MODELS,
    SMALL_MODELS,
    accuracy,
    assert_same_bits,
    copy_with,
    make_block_graph,
    make_split,
)

DATA = make_block_graph()
SPLIT = make_split(DATA)
TRAIN, VAL = int(SPLIT.train.nonzero()[0]), int(SPLIT.val.nonzero()[0])
ONE_WAY = DATA.edge_index[:, DATA.edge_index[0] < DATA.edge_index[1]]


@cache
def usual(model):
    """Fit as usual; nothing that comes of it changes."""
    return model.fit(DATA, SPLIT)


@pytest.fixture(params=ALL_SMALL_MODELS)
def model(request):
    return ALL_SMALL_MODELS[request.param]


def refused(words, model=SMALL_MODELS["gcn"], data=DATA, split=SPLIT, **options):
    with pytest.raises(ValueError, match=re.escape(words)):
        model.fit(data, split, **options)


def with_value(tensor, place, value):
    copy = tensor.clone()
    copy[place] = value
    return copy


def masks(**others):
    return SimpleNamespace(**{"train": SPLIT.train, "val": SPLIT.val, **others})


# Graphs.


@pytest.mark.parametrize("name", ["x", "edge_index", "y"])
def test_data_without_a_part(name, model):
    refused(f"Expected data with x, edge_index and y, but Data has no {name}.", model, copy_with(DATA, **{name: None}))


def test_what_is_no_data():
    refused("but Tensor has no x. Pass a torch_geometric Data", data=torch.zeros(3, 3))
    refused("but dict has no x.", data={"x": DATA.x, "edge_index": DATA.edge_index, "y": DATA.y})
    refused("but SimpleNamespace has no y.", data=SimpleNamespace(x=DATA.x, edge_index=DATA.edge_index))


PARTS = [
    ({"x": DATA.x[0]}, "Expected x of shape (nodes, features) with at least one of each, but got shape (30,)."),
    ({"x": DATA.x[:, :0]}, "but got shape (90, 0). Nodes without features may take one-hot numbers: torch.eye(num_"),
    ({"x": DATA.x.unsqueeze(0)}, "but got shape (1, 90, 30)."),
    ({"x": DATA.x[:0].to_sparse()}, "but got shape (0, 30)."),
    ({"x": DATA.x.tolist()}, "Expected x to be a tensor or a NumPy array, but got list."),
    ({"x": np.array([["a"] * 3] * 90)}, "Expected x to hold numbers"),
    ({"x": DATA.x[1:]}, "Expected y to hold one label for each of the 89 rows of x, but got shape (90,)."),
    ({"y": DATA.y[1:]}, "Expected y to hold one label for each of the 90 rows of x, but got shape (89,)."),
    ({"y": DATA.y.unsqueeze(1)}, "but got shape (90, 1). For a column pass y.squeeze(1)."),
    ({"y": DATA.y.float()}, "Expected y to hold integers, but got dtype torch.float32."),
    ({"y": DATA.y - 2}, "node 0 has label -2"),
    ({"edge_index": DATA.edge_index.T}, "Expected edge_index of shape (2, edges), but got shape"),
    ({"edge_index": DATA.edge_index.float()}, "Expected edge_index to hold integers, but got dtype torch.float32."),
    ({"edge_index": torch.tensor([[0, 90], [90, 0]])}, "hold nodes from 0 to 89, but edge 0 is [0, 90]."),
    ({"edge_index": torch.tensor([[0, 1, -1], [1, 0, 2]])}, "hold nodes from 0 to 89, but edge 2 is [-1, 2]."),
    ({"edge_index": DATA.edge_index.tolist()}, "Expected edge_index to be a tensor or a NumPy array, but got list."),
]


@pytest.mark.parametrize(("parts", "words"), PARTS, ids=[words[:60] for _, words in PARTS])
def test_parts_of_a_graph(parts, words):
    data = SimpleNamespace(**{"x": DATA.x, "edge_index": DATA.edge_index, "y": DATA.y, **parts})
    refused(words, data=data)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_features_that_are_no_numbers(value, model):
    x = with_value(with_value(DATA.x, (70, 2), value), (41, 0), value)
    words = "Expected finite features, but x holds NaN or infinity in 2 rows, first for node 41. Fill them, say by"
    refused(words, model, copy_with(DATA, x=x))
    refused(words, model, copy_with(DATA, x=x.numpy()))


def test_sparse_features_that_are_no_numbers():
    x = with_value(DATA.x, (41, 0), torch.nan).to_sparse()
    refused("but x holds NaN or infinity in 1 rows, first for node 41.", data=copy_with(DATA, x=x))


def test_large_features_are_numbers():
    """Their sum is not."""
    large = 1e37 * (DATA.x + 1)
    assert large.isfinite().all() and large.sum().isinf()
    task = prepare_task(copy_with(DATA, x=large), SPLIT, directed="refuse", num_classes=None, device="cpu")
    assert torch.equal(task.x, large)


def test_directed_edges(model):
    i, j = ONE_WAY[:, 0].tolist()
    words = (
        f"but {ONE_WAY.shape[1]} edges are listed in one direction only, first {i} → {j}. Pass directed='undirected'"
    )
    refused(words, model, copy_with(DATA, edge_index=ONE_WAY))
    both = torch.cat([DATA.edge_index, torch.tensor([[5, 7, 7], [7, 5, 5]]), torch.tensor([[8], [80]])], 1)
    lonely = both[:, ((both[0] != 80) | (both[1] != 8))]
    refused("but 1 edges are listed in one direction only, first 8 → 80.", model, copy_with(DATA, edge_index=lonely))


def test_the_way_out_of_directed_edges(model):
    one_way = copy_with(DATA, edge_index=ONE_WAY)
    assert_same_bits(model.fit(one_way, SPLIT, directed="undirected"), usual(model))
    assert_same_bits(model.fit(copy_with(DATA, edge_index=to_undirected(ONE_WAY)), SPLIT), usual(model))
    turned = torch.where(torch.arange(ONE_WAY.shape[1]) % 2 == 0, ONE_WAY, ONE_WAY.flip(0))
    assert_same_bits(model.fit(copy_with(DATA, edge_index=turned), SPLIT, directed="undirected"), usual(model))
    assert_same_bits(model.fit(DATA, SPLIT, directed="undirected"), usual(model))


def test_unknown_options_of_fit():
    refused("Expected directed to be one of refuse, undirected, but got 'directed'.", directed="directed")
    refused("Expected directed to be one of refuse, undirected, but got True.", directed=True)


# Splits.

SPLITS = [
    (
        masks(train=SPLIT.train.long()),
        "Expected train to hold booleans, one per node, but got dtype torch.int64. For 0/1",
    ),
    (
        masks(val=SPLIT.val.nonzero().squeeze(1)),
        "(NumPy: val.astype(bool)). For node indices pass torch_geometric.util",
    ),
    (masks(train=SPLIT.train[1:]), "Expected train of shape (90,), one entry per node, but got (89,)."),
    (masks(val=SPLIT.val.unsqueeze(0)), "Expected val of shape (90,), one entry per node, but got (1, 90)."),
    (masks(val=SPLIT.val.unsqueeze(1)), "but got (90, 1). Choose one of the masks: val[:, k]."),
    (masks(train=torch.zeros(90, dtype=torch.bool)), "Expected at least one train node, but the mask is empty."),
    (masks(val=torch.zeros(90, dtype=torch.bool)), "Expected at least one val node, but the mask is empty."),
    (masks(val=with_value(SPLIT.val, TRAIN, True)), f"training and validation nodes to differ, but node {TRAIN} is in"),
    (
        masks(train=None),
        "masks train and val, but a SimpleNamespace has no train. Pass one of ew.make_splits(y), or ew.Split(",
    ),
    (masks(val=None), "but a SimpleNamespace has no val."),
    ((SPLIT.train, SPLIT.val), "but a tuple has no train."),
    (masks(train=SPLIT.train.tolist()), "Expected train to be a tensor or a NumPy array, but got list."),
]


@pytest.mark.parametrize(("split", "words"), SPLITS, ids=[words[:60] for _, words in SPLITS])
def test_splits(split, words):
    refused(words, split=split)


@pytest.mark.parametrize(("name", "node"), [("train", TRAIN), ("val", VAL)])
def test_unknown_labels_of_labeled_nodes(name, node, model):
    words = f"Expected a label for each {name} node, but that of node {node} is unknown (-1)."
    refused(words, model, copy_with(DATA, y=with_value(DATA.y, node, -1)))


def test_too_few_classes(model):
    refused("Expected at least 3 classes, for there is a label 2, but got 2.", model, num_classes=2)
    refused("Expected num_classes to be a whole number from 1 to 1048576, but got 3.0.", model, num_classes=3.0)
    refused("Expected num_classes to be a whole number from 1 to 1048576, but got 0.", model, num_classes=0)


# Seeds and devices.


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "0", 1 << 63, (1, 2, 3)])
def test_seeds(seed, model):
    refused(f"Expected seed to be a whole number from 0 to 9223372036854775807, but got {seed!r}.", model, seed=seed)


@pytest.mark.parametrize("name", ew.Seeds._fields)
@pytest.mark.parametrize("seed", [-1, 0.5, False])
def test_each_seed(name, seed):
    words = f"Expected the seed of {name} to be a whole number from 0 to 9223372036854775807, but got {seed!r}."
    refused(words, seed=ew.Seeds(**{name: seed}))


@pytest.mark.parametrize("seed", [np.int64(3), (1 << 63) - 1])
def test_seeds_of_any_size_and_kind(seed):
    assert_same_bits(
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, seed=seed), SMALL_MODELS["gcn"].fit(DATA, SPLIT, seed=int(seed))
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_device_that_is_not_there(device, model):
    refused("Expected a device that torch can use, but got", model, device=device)
    refused("Try 'cpu'.", model, device=device)


def test_a_device_that_nobody_has():
    refused("Expected a device that torch can use, but got 'abacus'", device="abacus")


# Hyper-parameters.

COUNT = "to be a whole number from 1 to 1048576, but got"
HYPER_PARAMETERS = [
    *(
        (ew.GCN, name, value, f"Expected {name} {COUNT} {value!r}.")
        for name in ("max_epochs", "patience")
        for value in (0,)
    ),
    *((ew.GAT, name, 0, f"Expected {name} {COUNT} 0.") for name in ("heads", "max_epochs", "patience")),
    (ew.GAT, "heads", 7, "Expected hidden to be a multiple of 7 heads, but got 64."),
    (ew.GAT, "hidden", 4, "Expected hidden to be a multiple of 8 heads, but got 4."),
    *(
        (ew.GMNN, name, 0, f"Expected {name} {COUNT} 0.")
        for name in ("pretrain_epochs", "pretrain_patience", "rounds", "round_epochs", "samples")
    ),
    (ew.GMNN, "prediction", "mean", "Expected prediction to be one of mixture, averaged_logits, but got 'mean'."),
    *(
        (ew.EPFGNN, name, 0, f"Expected {name} {COUNT} 0.")
        for name in ("pretrain_epochs", "pretrain_patience", "rounds", "round_patience", "steps", "step_patience")
    ),
    (ew.EPFGNN, "schedule", "paper", "Expected schedule to be one of backbone, published, but got 'paper'."),
    (ew.EPFGNN, "inference", "lbp", "inference to be one of sum_product, max_product, mean_field, but got 'lbp'."),
]


@pytest.mark.parametrize(("kind", "name", "value", "words"), HYPER_PARAMETERS)
def test_hyper_parameters(kind, name, value, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        kind(**{name: value})


COMMON = [
    *(("hidden", value, f"Expected hidden {COUNT} {value!r}.") for value in (0, -1, 8.0, True, "8", None)),
    *(
        ("dropout", value, f"Expected dropout to be a number of at least 0 and below 1, but got {value!r}.")
        for value in (1.0, 1, -0.1, float("nan"), True, "0.5", None)
    ),
    *(
        ("learning_rate", value, f"Expected learning_rate to be a number above 0, but got {value!r}.")
        for value in (0, 0.0, -0.01, float("inf"), float("nan"), True, "0.01")
    ),
    *(
        ("weight_decay", value, f"Expected weight_decay to be a number of at least 0, but got {value!r}.")
        for value in (-1e-9, float("inf"), float("nan"), False, None)
    ),
]


@pytest.mark.parametrize("kind", [ew.GCN, ew.GAT, ew.GMNN, ew.EPFGNN])
@pytest.mark.parametrize(("name", "value", "words"), COMMON)
def test_hyper_parameters_of_all(kind, name, value, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [ew.GCN, ew.GAT, ew.GMNN, ew.EPFGNN])
def test_unknown_hyper_parameters(kind):
    with pytest.raises(TypeError, match="layers"):
        kind(layers=3)


def test_evidence_is_a_truth_value():
    with pytest.raises(ValueError, match="evidence"):
        ew.EPFGNN(evidence="no")


def test_options_of_posteriors():
    fitted = {name: usual(SMALL_MODELS[name]) for name in ("gmnn", "epfgnn")}
    with pytest.raises(ValueError, match="Expected prediction to be one of mixture, averaged_logits, but got 'mean'"):
        fitted["gmnn"].posterior("mean")
    with pytest.raises(ValueError, match="Expected inference to be one of sum_product, max_product, mean_field, but"):
        fitted["epfgnn"].posterior(inference="gibbs")


# What is odd, but possible.


def sound(posterior, num_nodes=90, num_classes=3):
    assert posterior.node.shape == (num_nodes, num_classes)
    torch.testing.assert_close(posterior.node.sum(1), torch.ones(num_nodes))
    return posterior


def without_edges_of(data, *nodes):
    keep = ~torch.isin(data.edge_index, torch.tensor(nodes)).any(0)
    return copy_with(data, edge_index=data.edge_index[:, keep])


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_isolated_nodes(model, dense):
    """They train, validate or neither, by their own features."""
    free = int((~(SPLIT.train | SPLIT.val)).nonzero()[0])
    data = without_edges_of(make_block_graph(dense=dense), TRAIN, VAL, free)
    fitted = model.fit(data, SPLIT)
    posterior = sound(fitted.posterior())
    others = copy_with(data, x=torch.where(torch.arange(90)[:, None] == free, data.x.roll(1, 1), data.x))
    if model.name in ("gcn", "gat"):  # nobody hears what an isolated node says
        moved = (model.fit(others, SPLIT).posterior().node != posterior.node).any(1)
        assert moved.nonzero().flatten().tolist() == [free]


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_a_graph_without_edges(model, dense):
    """Then nodes are classified by their own features, so like nodes are treated alike."""
    data = copy_with(make_block_graph(dense=dense), edge_index=torch.empty(2, 0, dtype=torch.long))
    data.x[89] = data.x[88]
    assert not bool((SPLIT.train | SPLIT.val)[88:].any())
    posterior = sound(model.fit(data, SPLIT).posterior())
    if model.name != "gmnn":  # whose samples differ
        torch.testing.assert_close(posterior.node[88], posterior.node[89])
    assert posterior.joint(data.edge_index).shape == (0, 3, 3)


def test_self_loops_and_repeated_edges_count_as_if_they_were_not_there(model):
    loops = torch.tensor([[0, 3, 3, 89], [0, 3, 3, 89]])
    odd = torch.cat([DATA.edge_index[:, :40], loops, DATA.edge_index, DATA.edge_index[:, 10:11]], 1)
    assert_same_bits(model.fit(copy_with(DATA, edge_index=odd), SPLIT), usual(model))


def test_a_class_that_nobody_trains(model):
    known = SPLIT.train & (DATA.y != 1)
    posterior = sound(model.fit(DATA, masks(train=known)).posterior())
    assert accuracy(posterior, DATA, SPLIT.test & (DATA.y == 1)) < 0.5


def test_a_class_that_nobody_validates(model):
    sound(model.fit(DATA, masks(val=SPLIT.val & (DATA.y == 0))).posterior())


def test_one_class_only(model):
    """There is nothing to learn, and no doubt."""
    fitted = model.fit(copy_with(DATA, y=torch.zeros(90, dtype=torch.long)), SPLIT)
    assert (sound(fitted.posterior(), num_classes=1).node == 1).all()
    assert (fitted.posterior().joint(DATA.edge_index) == 1).all()
    assert set(fitted.history.val_accuracy) == {1.0}


def test_one_label_of_several_classes(model):
    """All training nodes agree, yet other labels stay possible."""
    posterior = sound(model.fit(copy_with(DATA, y=DATA.y * 0), SPLIT, num_classes=3).posterior())
    assert (posterior.node[SPLIT.test] > 0).all()
    assert (posterior.node.argmax(1)[SPLIT.test] == 0).double().mean() > 0.8


def test_nodes_without_any_feature(model):
    x = DATA.x.clone()
    x[::2] = 0.0
    sound(model.fit(copy_with(DATA, x=x), SPLIT).posterior())


def test_no_feature_anywhere(model):
    sound(model.fit(copy_with(DATA, x=torch.zeros(90, 4)), SPLIT).posterior())


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_constant_features_tell_only_how_many_neighbors_there_are(name):
    data = copy_with(DATA, x=torch.ones(90, 3), edge_index=torch.empty(2, 0, dtype=torch.long))
    belief = sound(SMALL_MODELS[name].fit(data, SPLIT).posterior()).node
    torch.testing.assert_close(belief, belief[:1].expand(90, 3))


def test_constant_features(model):
    sound(model.fit(copy_with(DATA, x=torch.ones(90, 3)), SPLIT).posterior())


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_a_single_feature(model, dense):
    sound(model.fit(copy_with(DATA, x=make_block_graph(dense=dense).x[:, :1]), SPLIT).posterior())


def test_two_nodes(model):
    data = SimpleNamespace(x=torch.eye(2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
    split = SimpleNamespace(train=np.array([True, False]), val=np.array([False, True]))
    sound(model.fit(data, split).posterior(), 2, 2)


def test_every_node_is_labeled(model):
    split = masks(val=~SPLIT.train)
    sound(model.fit(DATA, split).posterior())


def test_more_heads_than_units_of_eight():
    sound(ew.GAT(hidden=15, heads=5, max_epochs=5).fit(DATA, SPLIT).posterior())
    sound(ew.GAT(hidden=13, heads=1, max_epochs=5).fit(DATA, SPLIT).posterior())


# What diverges.


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_a_fit_that_diverges_says_so(model, dense):
    words = r"Training diverged in epoch 1 of ((pre)?training|network 1): .* Lower the learning rate \(1e\+30\), or"
    with pytest.raises(FloatingPointError, match=words):
        replace(model, learning_rate=1e30).fit(make_block_graph(dense=dense), SPLIT)


def test_a_fit_that_diverges_later_says_when():
    data = copy_with(DATA, x=1e20 * DATA.x)
    with pytest.raises(FloatingPointError, match=r"Training diverged in epoch \d+ of training: the loss is"):
        SMALL_MODELS["gat"].fit(data, SPLIT)


def test_a_fit_that_diverges_gives_the_threads_back():
    before = torch.get_num_threads()
    with pytest.raises(FloatingPointError):
        ew.GCN(learning_rate=1e30).fit(DATA, SPLIT)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", ["gcn", "gat", "gmnn", "epfgnn"])
def test_huge_features_have_a_result_or_diverge(name):
    try:
        fitted = SMALL_MODELS[name].fit(copy_with(DATA, x=1e37 * DATA.x), SPLIT)
    except FloatingPointError:
        return
    sound(fitted.posterior())


@pytest.mark.parametrize("name", ["gcn", "gat", "gmnn", "epfgnn"])
def test_an_overflow_where_nobody_trains_says_so(name):
    """A node whose logits overflow is neither trained on nor validated on, nor heard by such."""
    free = int((~(SPLIT.train | SPLIT.val)).nonzero()[0])
    data = without_edges_of(DATA, free)
    with pytest.raises(FloatingPointError):
        SMALL_MODELS[name].fit(copy_with(data, x=with_value(data.x, free, 3e38)), SPLIT)
