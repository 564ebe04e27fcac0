"""Input checks of `fit`, results for degenerate inputs, and divergence."""

import re
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
    with_options,
)

DATA = make_block_graph()
SPLIT = make_split(DATA)
TRAIN, VAL = int(SPLIT.train.nonzero()[0]), int(SPLIT.val.nonzero()[0])
ONE_DIRECTION = DATA.edge_index[:, DATA.edge_index[0] < DATA.edge_index[1]]


@cache
def fit_once(model):
    """Fit with the default seed. The result is shared between tests."""
    return model.fit(DATA, SPLIT)


@pytest.fixture(params=ALL_SMALL_MODELS)
def model(request):
    return ALL_SMALL_MODELS[request.param]


def assert_fit_raises(match, model=SMALL_MODELS["gcn"], data=DATA, split=SPLIT, **options):
    with pytest.raises(ValueError, match=re.escape(match)):
        model.fit(data, split, **options)


def replace_value(tensor, place, value):
    copy = tensor.clone()
    copy[place] = value
    return copy


def masks(**others):
    return SimpleNamespace(**{"train": SPLIT.train, "val": SPLIT.val, **others})


# Graphs.


@pytest.mark.parametrize("name", ["x", "edge_index", "y"])
def test_missing_attributes_raise(name, model):
    assert_fit_raises(f"has no {name}", model, copy_with(DATA, **{name: None}))


def test_objects_without_graph_attributes_raise():
    assert_fit_raises("Tensor has no x", data=torch.zeros(3, 3))
    assert_fit_raises("dict has no x", data={"x": DATA.x, "edge_index": DATA.edge_index, "y": DATA.y})
    assert_fit_raises("SimpleNamespace has no y", data=SimpleNamespace(x=DATA.x, edge_index=DATA.edge_index))


INVALID_ATTRIBUTES = [
    ({"x": DATA.x[0]}, "shape (30,)"),
    ({"x": DATA.x[:, :0]}, "torch.eye(num_nodes)"),
    ({"x": DATA.x.unsqueeze(0)}, "shape (1, 90, 30)"),
    ({"x": DATA.x[:0].to_sparse()}, "shape (0, 30)"),
    ({"x": {"features": DATA.x}}, "but got dict."),
    ({"x": np.array([["a"] * 3] * 90)}, "Expected x to hold numbers"),
    ({"x": DATA.x[1:]}, "Expected y to hold one label for each of the 89 rows of x, but got shape (90,)."),
    ({"y": DATA.y[1:]}, "Expected y to hold one label for each of the 90 rows of x, but got shape (89,)."),
    ({"y": DATA.y.unsqueeze(0)}, "but got shape (1, 90)."),
    ({"y": DATA.y.float()}, "Expected y to hold integers, but got dtype torch.float32."),
    ({"y": DATA.y - 2}, "node 0 has label -2"),
    ({"edge_index": DATA.edge_index.T}, "Expected edge_index of shape (2, edges), but got shape"),
    ({"edge_index": DATA.edge_index.float()}, "Expected edge_index to hold integers, but got dtype torch.float32."),
    ({"edge_index": torch.tensor([[0, 90], [90, 0]])}, "hold nodes from 0 to 89, but edge 0 is [0, 90]."),
    ({"edge_index": torch.tensor([[0, 1, -1], [1, 0, 2]])}, "hold nodes from 0 to 89, but edge 2 is [-1, 2]."),
    ({"edge_index": DATA.edge_index.T.tolist()}, "edge_index.T. Before that, convert the list to an array"),
]


@pytest.mark.parametrize(("parts", "match"), INVALID_ATTRIBUTES, ids=[match[:60] for _, match in INVALID_ATTRIBUTES])
def test_invalid_attributes_raise(parts, match):
    data = SimpleNamespace(**{"x": DATA.x, "edge_index": DATA.edge_index, "y": DATA.y, **parts})
    assert_fit_raises(match, data=data)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_features_raise(value, model):
    x = replace_value(replace_value(DATA.x, (70, 2), value), (41, 0), value)
    match = "in 2 rows, first for node 41"
    assert_fit_raises(match, model, copy_with(DATA, x=x))
    assert_fit_raises(match, model, copy_with(DATA, x=x.numpy()))


def test_non_finite_sparse_features_raise():
    x = replace_value(DATA.x, (41, 0), torch.nan).to_sparse()
    assert_fit_raises("in 1 rows, first for node 41", data=copy_with(DATA, x=x))


def test_features_with_infinite_sum_are_accepted():
    """The fast check by the sum must not reject them."""
    large = 1e37 * (DATA.x + 1)
    assert large.isfinite().all() and large.sum().isinf()
    task = prepare_task(copy_with(DATA, x=large), SPLIT, directed="refuse", num_classes=None, device="cpu")
    assert torch.equal(task.x, large)


def test_directed_edges_raise(model):
    i, j = ONE_DIRECTION[:, 0].tolist()
    match = f"{ONE_DIRECTION.shape[1]} edges are listed in one direction only, first {i} → {j}"
    assert_fit_raises(match, model, copy_with(DATA, edge_index=ONE_DIRECTION))
    both = torch.cat([DATA.edge_index, torch.tensor([[5, 7, 7], [7, 5, 5]]), torch.tensor([[8], [80]])], 1)
    one_missing = both[:, ((both[0] != 80) | (both[1] != 8))]
    assert_fit_raises(
        "1 edges are listed in one direction only, first 8 → 80", model, copy_with(DATA, edge_index=one_missing)
    )


def test_fixes_for_directed_edges_work(model):
    one_way = copy_with(DATA, edge_index=ONE_DIRECTION)
    assert_same_bits(model.fit(one_way, SPLIT, directed="undirected"), fit_once(model))
    assert_same_bits(model.fit(copy_with(DATA, edge_index=to_undirected(ONE_DIRECTION)), SPLIT), fit_once(model))
    turned = torch.where(torch.arange(ONE_DIRECTION.shape[1]) % 2 == 0, ONE_DIRECTION, ONE_DIRECTION.flip(0))
    assert_same_bits(model.fit(copy_with(DATA, edge_index=turned), SPLIT, directed="undirected"), fit_once(model))
    assert_same_bits(model.fit(DATA, SPLIT, directed="undirected"), fit_once(model))


def test_invalid_directed_option_raises():
    assert_fit_raises("Expected directed to be one of refuse, undirected, but got 'directed'.", directed="directed")
    assert_fit_raises("Expected directed to be one of refuse, undirected, but got True.", directed=True)


# Splits.

INVALID_SPLITS = [
    (masks(val=SPLIT.val.nonzero().squeeze(1)), "For node indices pass np.isin(np.arange(90), val)."),
    (masks(train=SPLIT.train[1:]), "Expected train of shape (90,), one entry per node, but got (89,)."),
    (masks(val=SPLIT.val.unsqueeze(0)), "Expected val of shape (90,), one entry per node, but got (1, 90)."),
    (masks(val=torch.stack([SPLIT.val] * 2, 1)), "but got (90, 2). Choose one of the masks: val[:, k]."),
    (masks(train=torch.zeros(90, dtype=torch.bool)), "Expected at least one train node, but the mask is empty."),
    (masks(val=torch.zeros(90, dtype=torch.bool)), "Expected at least one val node, but the mask is empty."),
    (masks(val=replace_value(SPLIT.val, TRAIN, True)), f"node {TRAIN} is in both"),
    (
        masks(train=None),
        "SimpleNamespace has no train",
    ),
    (masks(val=None), "SimpleNamespace has no val"),
    ((SPLIT.train, SPLIT.val), "tuple has no train"),
    (masks(train={"train": SPLIT.train}), "but got dict."),
]


@pytest.mark.parametrize(("split", "match"), INVALID_SPLITS, ids=[match[:60] for _, match in INVALID_SPLITS])
def test_invalid_splits_raise(split, match):
    assert_fit_raises(match, split=split)


@pytest.mark.parametrize(("name", "node"), [("train", TRAIN), ("val", VAL)])
def test_training_and_validation_nodes_need_labels(name, node, model):
    match = f"label for each {name} node, but the label of node {node}"
    assert_fit_raises(match, model, copy_with(DATA, y=replace_value(DATA.y, node, -1)))


def test_invalid_num_classes_raise(model):
    assert_fit_raises("at least 3", model, num_classes=2)
    assert_fit_raises(
        "Expected num_classes to be a whole number from 1 to 1048576, but got 3.0.", model, num_classes=3.0
    )
    assert_fit_raises("Expected num_classes to be a whole number from 1 to 1048576, but got 0.", model, num_classes=0)


# Seeds and devices.


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "0", 1 << 63, (1, 2, 3)])
def test_invalid_seeds_raise(seed, model):
    assert_fit_raises(
        f"Expected seed to be a whole number from 0 to 9223372036854775807, but got {seed!r}.", model, seed=seed
    )


@pytest.mark.parametrize("name", ew.Seeds._fields)
@pytest.mark.parametrize("seed", [-1, 0.5, False])
def test_invalid_seed_names_its_purpose(name, seed):
    match = f"the {name} seed to be a whole number from 0 to 9223372036854775807, but got {seed!r}."
    assert_fit_raises(match, seed=ew.Seeds(**{name: seed}))


@pytest.mark.parametrize("seed", [np.int64(3), (1 << 63) - 1])
def test_numpy_and_large_seeds(seed):
    assert_same_bits(
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, seed=seed), SMALL_MODELS["gcn"].fit(DATA, SPLIT, seed=int(seed))
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_unavailable_device_raises(device, model):
    assert_fit_raises("'cpu'", model, device=device)


def test_unknown_device_raises():
    assert_fit_raises("'abacus'", device="abacus")


# Hyper-parameters.

COUNT_RANGE = "to be a whole number from 1 to 1048576, but got"
HYPERPARAMETERS = [
    *(
        (ew.GCN, name, value, f"Expected {name} {COUNT_RANGE} {value!r}.")
        for name in ("max_epochs", "patience")
        for value in (0,)
    ),
    *((ew.GAT, name, 0, f"Expected {name} {COUNT_RANGE} 0.") for name in ("heads", "max_epochs", "patience")),
    (ew.GAT, "heads", 7, "multiple of 7 heads, but got 64"),
    (ew.GAT, "hidden", 4, "multiple of 8 heads, but got 4"),
    *(
        (ew.GMNN, name, 0, f"Expected {name} {COUNT_RANGE} 0.")
        for name in ("pretrain_epochs", "pretrain_patience", "rounds", "round_epochs", "samples")
    ),
    (ew.GMNN, "prediction", "mean", "Expected prediction to be one of mixture, averaged_logits, but got 'mean'."),
    *(
        (ew.EPFGNN, name, 0, f"Expected {name} {COUNT_RANGE} 0.")
        for name in ("pretrain_epochs", "pretrain_patience", "rounds", "round_patience", "steps", "step_patience")
    ),
    (ew.EPFGNN, "schedule", "paper", "Expected schedule to be one of backbone, published, but got 'paper'."),
    (ew.EPFGNN, "inference", "lbp", "inference to be one of sum_product, max_product, mean_field, but got 'lbp'."),
]


@pytest.mark.parametrize(("kind", "name", "value", "match"), HYPERPARAMETERS)
def test_invalid_hyperparameters_raise(kind, name, value, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        kind(**{name: value})


COMMON_HYPERPARAMETERS = [
    *(("hidden", value, f"Expected hidden {COUNT_RANGE} {value!r}.") for value in (0, -1, 8.0, True, "8", None)),
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
@pytest.mark.parametrize(("name", "value", "match"), COMMON_HYPERPARAMETERS)
def test_invalid_common_hyperparameters_raise(kind, name, value, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [ew.GCN, ew.GAT, ew.GMNN, ew.EPFGNN])
def test_unknown_hyperparameters_raise(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'layers'"):
        kind(layers=3)


def test_evidence_must_be_boolean():
    with pytest.raises(ValueError, match=r"evidence .*'no'"):
        ew.EPFGNN(evidence="no")


def test_invalid_posterior_options_raise():
    fitted = {name: fit_once(SMALL_MODELS[name]) for name in ("gmnn", "epfgnn")}
    with pytest.raises(ValueError, match="Expected prediction to be one of mixture, averaged_logits, but got 'mean'"):
        fitted["gmnn"].posterior("mean")
    with pytest.raises(ValueError, match="Expected inference to be one of sum_product, max_product, mean_field, but"):
        fitted["epfgnn"].posterior(inference="gibbs")


# Degenerate inputs.


def assert_valid(posterior, num_nodes=90, num_classes=3):
    assert posterior.node.shape == (num_nodes, num_classes)
    torch.testing.assert_close(posterior.node.sum(1), torch.ones(num_nodes))
    return posterior


def remove_edges_of(data, *nodes):
    keep = ~torch.isin(data.edge_index, torch.tensor(nodes)).any(0)
    return copy_with(data, edge_index=data.edge_index[:, keep])


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_isolated_nodes(model, dense):
    """An isolated node is predicted from its own features, whether it is a training, validation or other node."""
    free = int((~(SPLIT.train | SPLIT.val)).nonzero()[0])
    data = remove_edges_of(make_block_graph(dense=dense), TRAIN, VAL, free)
    fitted = model.fit(data, SPLIT)
    posterior = assert_valid(fitted.posterior())
    others = copy_with(data, x=torch.where(torch.arange(90)[:, None] == free, data.x.roll(1, 1), data.x))
    if model.name in ("gcn", "gat"):  # an isolated node has no influence on others
        moved = (model.fit(others, SPLIT).posterior().node != posterior.node).any(1)
        assert moved.nonzero().flatten().tolist() == [free]


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_graph_without_edges(model, dense):
    """Nodes with equal features have equal predictions."""
    data = copy_with(make_block_graph(dense=dense), edge_index=torch.empty(2, 0, dtype=torch.long))
    data.x[89] = data.x[88]
    assert not bool((SPLIT.train | SPLIT.val)[88:].any())
    posterior = assert_valid(model.fit(data, SPLIT).posterior())
    if model.name not in ("gmnn", "mcdropout"):  # their samples differ between nodes
        torch.testing.assert_close(posterior.node[88], posterior.node[89])
    assert posterior.joint(data.edge_index).shape == (0, 3, 3)


def test_self_loops_and_repeated_edges_are_ignored(model):
    loops = torch.tensor([[0, 3, 3, 89], [0, 3, 3, 89]])
    odd = torch.cat([DATA.edge_index[:, :40], loops, DATA.edge_index, DATA.edge_index[:, 10:11]], 1)
    assert_same_bits(model.fit(copy_with(DATA, edge_index=odd), SPLIT), fit_once(model))


def test_class_without_training_nodes(model):
    known = SPLIT.train & (DATA.y != 1)
    posterior = assert_valid(model.fit(DATA, masks(train=known)).posterior())
    assert accuracy(posterior, DATA, SPLIT.test & (DATA.y == 1)) < 0.5


def test_class_without_validation_nodes(model):
    assert_valid(model.fit(DATA, masks(val=SPLIT.val & (DATA.y == 0))).posterior())


def test_single_class(model):
    """All probabilities are 1."""
    fitted = model.fit(copy_with(DATA, y=torch.zeros(90, dtype=torch.long)), SPLIT)
    assert (assert_valid(fitted.posterior(), num_classes=1).node == 1).all()
    assert (fitted.posterior().joint(DATA.edge_index) == 1).all()
    assert set(fitted.history.val_accuracy) == {1.0}


def test_all_labels_equal_with_several_classes(model):
    """The other labels keep a positive probability."""
    posterior = assert_valid(model.fit(copy_with(DATA, y=DATA.y * 0), SPLIT, num_classes=3).posterior())
    assert (posterior.node[SPLIT.test] > 0).all()
    assert (posterior.node.argmax(1)[SPLIT.test] == 0).double().mean() > 0.8


def test_zero_features_of_some_nodes(model):
    x = DATA.x.clone()
    x[::2] = 0.0
    assert_valid(model.fit(copy_with(DATA, x=x), SPLIT).posterior())


def test_zero_features_of_all_nodes(model):
    assert_valid(model.fit(copy_with(DATA, x=torch.zeros(90, 4)), SPLIT).posterior())


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_constant_features_without_edges_give_equal_predictions(name):
    data = copy_with(DATA, x=torch.ones(90, 3), edge_index=torch.empty(2, 0, dtype=torch.long))
    belief = assert_valid(SMALL_MODELS[name].fit(data, SPLIT).posterior()).node
    torch.testing.assert_close(belief, belief[:1].expand(90, 3))


def test_constant_features(model):
    assert_valid(model.fit(copy_with(DATA, x=torch.ones(90, 3)), SPLIT).posterior())


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_single_feature(model, dense):
    assert_valid(model.fit(copy_with(DATA, x=make_block_graph(dense=dense).x[:, :1]), SPLIT).posterior())


def test_two_nodes(model):
    data = SimpleNamespace(x=torch.eye(2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
    split = SimpleNamespace(train=np.array([True, False]), val=np.array([False, True]))
    assert_valid(model.fit(data, split).posterior(), 2, 2)


def test_all_nodes_labeled(model):
    split = masks(val=~SPLIT.train)
    assert_valid(model.fit(DATA, split).posterior())


def test_gat_head_sizes():
    assert_valid(ew.GAT(hidden=15, heads=5, max_epochs=5).fit(DATA, SPLIT).posterior())
    assert_valid(ew.GAT(hidden=13, heads=1, max_epochs=5).fit(DATA, SPLIT).posterior())


# Divergence.


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_divergence_names_epoch_phase_and_learning_rate(model, dense):
    match = r"epoch 1 of ((pre)?training|network 1|member 0|nodes): .* learning rate \(1e\+30\)"
    with pytest.raises(FloatingPointError, match=match):
        with_options(model, learning_rate=1e30).fit(make_block_graph(dense=dense), SPLIT)


def test_later_divergence_names_epoch():
    data = copy_with(DATA, x=1e20 * DATA.x)
    with pytest.raises(FloatingPointError, match=r"epoch \d+ of training"):
        SMALL_MODELS["gat"].fit(data, SPLIT)


def test_divergence_restores_threads():
    before = torch.get_num_threads()
    with pytest.raises(FloatingPointError):
        ew.GCN(learning_rate=1e30).fit(DATA, SPLIT)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_huge_features_give_valid_posterior_or_diverge(name):
    try:
        fitted = SMALL_MODELS[name].fit(copy_with(DATA, x=1e37 * DATA.x), SPLIT)
    except FloatingPointError:
        return
    assert_valid(fitted.posterior())


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_overflow_at_unlabeled_node_raises(name):
    """The node has no label and no neighbors, so neither the loss nor the validation NLL shows the overflow."""
    free = int((~(SPLIT.train | SPLIT.val)).nonzero()[0])
    data = remove_edges_of(DATA, free)
    with pytest.raises(FloatingPointError):
        SMALL_MODELS[name].fit(copy_with(data, x=replace_value(data.x, free, 3e38)), SPLIT)
