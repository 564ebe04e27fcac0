"""What fit promises: it changes nothing but its answer, writes down its epochs, and learns."""

import warnings
from dataclasses import FrozenInstanceError, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import edgewise as ew
from edgewise.models.task import prepare_task
from helpers.block_graph import (
    SMALL_MODELS,
    accuracy,
    assert_same_bits,
    copy_with,
    fitted_tensors,
    global_random_states,
    make_block_graph,
    make_split,
)

DATA = make_block_graph()
SPLIT = make_split(DATA)
LONGER = {
    "gcn": ew.GCN(hidden=16, max_epochs=60),
    "gat": ew.GAT(hidden=16, heads=4, max_epochs=60),
    "gmnn": ew.GMNN(hidden=16, pretrain_epochs=60, round_epochs=30),
    "epfgnn": ew.EPFGNN(hidden=16, pretrain_epochs=60, rounds=3, steps=10),
}


@cache
def usual(model):
    """Fit as usual; nothing that comes of it changes."""
    return model.fit(DATA, SPLIT)


@pytest.fixture(params=SMALL_MODELS)
def model(request):
    return SMALL_MODELS[request.param]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_models_and_what_they_leave_are_frozen(model):
    with pytest.raises(FrozenInstanceError):
        model.hidden = 3
    fitted = model.fit(DATA, SPLIT)
    with pytest.raises(FrozenInstanceError):
        fitted.weights = {}
    with pytest.raises(FrozenInstanceError):
        fitted.history.epochs = 1
    assert fitted.model is model


def test_equal_hyper_parameters_are_one_model(model):
    assert model == replace(model)
    assert hash(model) == hash(replace(model))
    assert model != replace(model, hidden=4)


@pytest.mark.parametrize("dense", [False, True])
def test_fit_changes_nothing(model, dense, two_threads):
    data = make_block_graph(dense=dense)
    copy, masks = data.clone(), (SPLIT.train.clone(), SPLIT.val.clone())
    words, states = repr(model), global_random_states()
    model.fit(data, SPLIT).posterior()
    assert repr(model) == words
    assert global_random_states() == states
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()
    assert sorted(data.keys()) == ["edge_index", "x", "y"]
    for name in data.keys():  # noqa: SIM118 (Data is no dict)
        assert torch.equal(data[name], copy[name]), name
    assert torch.equal(SPLIT.train, masks[0])
    assert torch.equal(SPLIT.val, masks[1])


def test_an_interrupted_fit_gives_the_threads_back(two_threads):
    def interrupt(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=interrupt)
    assert torch.get_num_threads() == 2


def test_nothing_that_is_left_has_a_gradient(model):
    fitted = usual(model)
    assert not any(tensor.requires_grad for tensor in fitted_tensors(fitted).values())


def test_posteriors_are_distributions(model):
    posterior = usual(model).posterior()
    assert posterior.node.shape == (90, 3)
    assert posterior.node.dtype == torch.float32
    torch.testing.assert_close(posterior.node.sum(1), torch.ones(90))
    joint = posterior.joint(DATA.edge_index)
    assert joint.shape == (DATA.num_edges, 3, 3)
    torch.testing.assert_close(joint.sum((1, 2)), torch.ones(DATA.num_edges))


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_classifiers_of_nodes_multiply(name):
    posterior = usual(SMALL_MODELS[name]).posterior()
    assert isinstance(posterior, ew.IndependentPosterior)
    i, j = DATA.edge_index
    product = posterior.node[i].unsqueeze(2) * posterior.node[j].unsqueeze(1)
    torch.testing.assert_close(posterior.joint(DATA.edge_index), product)


def test_history_is_one_number_an_epoch(model):
    history = usual(model).history
    assert len(history.loss) == len(history.val_loss) == len(history.val_accuracy) == history.epochs
    assert sum(epochs for _, epochs in history.phases) == history.epochs
    assert history.seconds > 0
    assert np.isfinite(history.loss + history.val_loss + history.val_accuracy).all()
    assert all(0 <= share <= 1 and (share * 12) % 1 == pytest.approx(0) for share in history.val_accuracy)


PHASES = {  # of models that do not train once, from the beginning to the end
    "gmnn": [("pretraining", 10), ("M step", 6), ("E step", 6)],
    "epfgnn": [("pretraining", 10), ("EM", 12)],
}


def phases_of(model):
    if model.name in PHASES:
        return PHASES[model.name]
    return [("training", model.max_epochs)]


def test_phases_come_in_order(model):
    assert usual(model).history.phases == phases_of(model)


def test_on_epoch_hears_of_each_epoch_once(model):
    heard = []
    history = model.fit(DATA, SPLIT, on_epoch=heard.append).history
    assert [epoch.loss for epoch in heard] == history.loss
    assert [epoch.val_loss for epoch in heard] == history.val_loss
    assert [epoch.val_accuracy for epoch in heard] == history.val_accuracy
    numbers = [(epoch.phase, epoch.epoch, epoch.max_epochs) for epoch in heard if epoch.phase != "EM"]
    phases = [(phase, most) for phase, most in phases_of(model) if phase != "EM"]
    assert numbers == [(phase, k + 1, most) for phase, most in phases for k in range(most)]


def test_listening_changes_nothing(model):
    assert_same_bits(usual(model), model.fit(DATA, SPLIT, on_epoch=lambda epoch: None))


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("name", LONGER)
def test_models_learn(name, dense):
    data = make_block_graph(120, dense=dense, within=0.2, between=0.01)
    split = make_split(data)
    fitted = LONGER[name].fit(data, split)
    first = fitted.history.phases[0][1]
    assert np.mean(fitted.history.loss[first - 5 : first]) < 0.7 * fitted.history.loss[0]
    assert accuracy(fitted.posterior(), data, split.test) > 0.85  # chance is a third


def test_gcn_learns_cora():
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    fitted = ew.GCN().fit(data, split)
    assert ew.evaluate(fitted.posterior(), data.y, data.edge_index, mask=split.test).nodewise.accuracy > 0.78
    assert 100 < fitted.history.epochs < 2000


def test_gmnn_learns_cora():
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    posterior = ew.GMNN(pretrain_epochs=100, round_epochs=30).fit(data, split).posterior()
    assert posterior.node.shape == (2708, 7)
    assert accuracy(posterior, data, split.test) > 0.75


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_the_weights_that_were_kept_predict(name):
    """The last epoch that was at least as accurate and as sure as all before it."""
    fitted = replace(LONGER[name], patience=10, learning_rate=0.1).fit(DATA, SPLIT)
    history = fitted.history
    curve = list(zip(history.val_accuracy, history.val_loss, strict=True))
    kept = max(k for k, (acc, nll) in enumerate(curve) if all(acc >= a and nll <= n for a, n in curve[:k]))
    assert kept < history.epochs - 1
    nll = cross_entropy(fitted.logits[SPLIT.val], DATA.y[SPLIT.val])
    assert float(nll) == pytest.approx(history.val_loss[kept], rel=1e-4)
    assert accuracy(fitted.posterior(), DATA, SPLIT.val) == history.val_accuracy[kept]


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_patience_stops(name):
    """The last epochs bring nothing, as many as patience allows."""
    history = replace(LONGER[name], patience=7, learning_rate=0.2, max_epochs=500).fit(DATA, SPLIT).history
    assert history.epochs < 500
    before, last = slice(0, -7), slice(-7, None)
    assert max(history.val_accuracy[last]) < max(history.val_accuracy[before])
    assert min(history.val_loss[last]) > min(history.val_loss[before])


def test_arrays_of_numpy_are_as_good(model):
    data = SimpleNamespace(x=DATA.x.numpy(), edge_index=DATA.edge_index.numpy(), y=DATA.y.numpy())
    split = SimpleNamespace(train=SPLIT.train.numpy(), val=SPLIT.val.numpy())
    assert_same_bits(model.fit(data, split), usual(model))


def test_arrays_nobody_may_write_to(model):
    x, y = DATA.x.numpy().copy(), DATA.y.numpy().astype(np.int8)
    x.flags.writeable = y.flags.writeable = False
    data = SimpleNamespace(x=x, edge_index=DATA.edge_index.numpy().astype(np.uint32)[:, ::-1], y=y)
    assert_same_bits(model.fit(data, SPLIT), usual(model))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_features_of_other_dtypes_become_float32(dtype):
    assert_same_bits(
        SMALL_MODELS["gcn"].fit(copy_with(DATA, x=DATA.x.to(dtype)), SPLIT),
        usual(SMALL_MODELS["gcn"]),
    )


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_float64_stays_float64(model, dense):
    data = make_block_graph(dense=dense, dtype=torch.float64)
    fitted = model.fit(data, SPLIT)
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in fitted_tensors(fitted).values())
    assert fitted.posterior().node.dtype == torch.float64
    torch.testing.assert_close(
        fitted.posterior().node.sum(1), torch.ones(90, dtype=torch.float64), rtol=1e-14, atol=1e-14
    )


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_features_are_the_same_features(model, layout):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # torch calls them beta
        sparse = DATA.x.to_sparse(layout=layout)
    assert_same_bits(model.fit(copy_with(DATA, x=sparse), SPLIT), usual(model))


def test_sparse_entries_that_are_listed_twice_add_up():
    row, column = DATA.x.nonzero().T
    half = DATA.x[row, column] / 2
    places = torch.stack([torch.cat([row, row]), torch.cat([column, column])])
    twice = torch.sparse_coo_tensor(places, torch.cat([half, half]), DATA.x.shape, check_invariants=True)
    assert_same_bits(SMALL_MODELS["gat"].fit(copy_with(DATA, x=twice), SPLIT), usual(SMALL_MODELS["gat"]))


@pytest.mark.parametrize("name", ["gcn", "gmnn", "epfgnn"])
def test_dense_features_in_a_sparse_tensor_differ_by_rounding(name):
    data = make_block_graph(dense=True, dtype=torch.float64)
    dense = SMALL_MODELS[name].fit(data, SPLIT).posterior().node
    sparse = SMALL_MODELS[name].fit(copy_with(data, x=data.x.to_sparse()), SPLIT).posterior().node
    torch.testing.assert_close(sparse, dense, rtol=1e-9, atol=1e-9)


def test_the_kept_epoch_is_that_of_the_weights(model):
    history = usual(model).history
    assert 1 <= history.kept <= history.epochs
    if model.name not in PHASES:
        kept = replace(model, max_epochs=history.kept, patience=history.kept).fit(DATA, SPLIT)
        assert kept.history.kept == history.kept
        assert torch.equal(kept.logits, usual(model).logits)


def test_weights_of_edges_are_refused(model):
    weighted = copy_with(DATA, edge_weight=torch.ones(DATA.edge_index.shape[1]))
    with pytest.raises(ValueError, match="but data has edge_weight"):
        model.fit(weighted, SPLIT)


def test_other_modes_of_torch_change_nothing(model):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert_same_bits(model.fit(DATA, SPLIT), usual(model))


def test_other_labels_are_not_looked_at(model):
    seen = SPLIT.train | SPLIT.val
    unknown = torch.where(seen, DATA.y, -1)
    shuffled = torch.where(seen, DATA.y, DATA.y.roll(1))
    assert_same_bits(model.fit(copy_with(DATA, y=unknown), SPLIT, num_classes=3), usual(model))
    assert_same_bits(model.fit(copy_with(DATA, y=shuffled), SPLIT), usual(model))


def test_a_task_holds_no_label_that_is_not_to_be_seen():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    seen = SPLIT.train | SPLIT.val
    assert torch.equal(task.labels[seen], DATA.y[seen])
    assert (task.labels[~seen] == -1).all()


def test_a_split_needs_no_test_nodes(model):
    split = SimpleNamespace(train=SPLIT.train, val=SPLIT.val)
    assert_same_bits(model.fit(DATA, split), usual(model))


def test_labels_of_validation_choose_but_do_not_teach():
    """Training losses do not move with the labels of validation nodes."""
    other = copy_with(DATA, y=torch.where(SPLIT.val, (DATA.y + 1) % 3, DATA.y))
    one, two = usual(SMALL_MODELS["gcn"]), SMALL_MODELS["gcn"].fit(other, SPLIT)
    assert one.history.loss == two.history.loss
    assert one.history.val_loss != two.history.val_loss


def test_more_classes_than_labels(model):
    fitted = model.fit(DATA, SPLIT, num_classes=5)
    assert fitted.posterior().num_classes == 5


def test_a_fitted_value_says_what_it_is(model):
    fitted = usual(model)
    assert repr(fitted).startswith(f"{type(fitted).__name__}({type(model).__name__}(hidden=8")
    assert f"epochs={fitted.history.epochs}" in repr(fitted)
