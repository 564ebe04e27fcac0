"""`fit`: no side effects, training history, accuracy, and accepted inputs."""

import re
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
    with_options,
)

DATA = make_block_graph()
SPLIT = make_split(DATA)
LONGER_MODELS = {
    "gcn": ew.GCN(hidden=16, max_epochs=60),
    "gat": ew.GAT(hidden=16, heads=4, max_epochs=60),
    "gmnn": ew.GMNN(hidden=16, pretrain_epochs=60, round_epochs=30),
    "epfgnn": ew.EPFGNN(hidden=16, pretrain_epochs=60, rounds=3, steps=10),
    "spn": ew.SPN(hidden=16, max_epochs=60),
    "deepensemble": ew.Ensemble(ew.GCN(hidden=16, max_epochs=60), members=2),
    "mcdropout": ew.MCDropout(ew.GCN(hidden=16, max_epochs=60), samples=8),
}


@cache
def fit_once(model):
    """Fit with the default seed. The result is shared between tests."""
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


def test_models_and_fitted_models_are_frozen(model):
    with pytest.raises(FrozenInstanceError):
        model.hidden = 3
    fitted = model.fit(DATA, SPLIT)
    with pytest.raises(FrozenInstanceError):
        fitted.weights = {}
    with pytest.raises(FrozenInstanceError):
        fitted.history.epochs = 1
    assert fitted.model is model


def test_models_compare_by_hyperparameters(model):
    assert model == replace(model)
    assert hash(model) == hash(replace(model))
    assert model != with_options(model, hidden=4)


@pytest.mark.parametrize("dense", [False, True])
def test_fit_has_no_side_effects(model, dense, two_threads):
    data = make_block_graph(dense=dense)
    copy, masks = data.clone(), (SPLIT.train.clone(), SPLIT.val.clone())
    before, states = repr(model), global_random_states()
    model.fit(data, SPLIT).posterior()
    assert repr(model) == before
    assert global_random_states() == states
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()
    assert sorted(data.keys()) == ["edge_index", "x", "y"]
    for name in data.keys():  # noqa: SIM118 (Data is not a dict)
        assert torch.equal(data[name], copy[name]), name
    assert torch.equal(SPLIT.train, masks[0])
    assert torch.equal(SPLIT.val, masks[1])


def test_interrupted_fit_restores_number_of_threads(two_threads):
    def interrupt(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=interrupt)
    assert torch.get_num_threads() == 2


def test_fitted_tensors_have_no_gradient(model):
    fitted = fit_once(model)
    assert not any(tensor.requires_grad for tensor in fitted_tensors(fitted).values())


def test_posteriors_are_distributions(model):
    posterior = fit_once(model).posterior()
    assert posterior.node.shape == (90, 3)
    assert posterior.node.dtype == torch.float32
    torch.testing.assert_close(posterior.node.sum(1), torch.ones(90))
    joint = posterior.joint(DATA.edge_index)
    assert joint.shape == (DATA.num_edges, 3, 3)
    torch.testing.assert_close(joint.sum((1, 2)), torch.ones(DATA.num_edges))


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_joints_of_classifiers_are_products(name):
    posterior = fit_once(SMALL_MODELS[name]).posterior()
    assert isinstance(posterior, ew.IndependentPosterior)
    i, j = DATA.edge_index
    product = posterior.node[i].unsqueeze(2) * posterior.node[j].unsqueeze(1)
    torch.testing.assert_close(posterior.joint(DATA.edge_index), product)


def test_history_has_one_entry_per_epoch(model):
    history = fit_once(model).history
    assert len(history.loss) == len(history.val_loss) == len(history.val_accuracy) == history.epochs
    assert sum(epochs for _, epochs in history.phases) == history.epochs
    assert history.seconds > 0
    assert np.isfinite(history.loss + history.val_loss + history.val_accuracy).all()
    of_nodes = history.val_accuracy[: history.phases[0][1]]  # those of SPN's second phase are of edges
    assert all(0 <= value <= 1 and (value * 12) % 1 == pytest.approx(0) for value in of_nodes)


PHASES = {  # of models with several training phases
    "gmnn": [("pretraining", 10), ("M step", 6), ("E step", 6)],
    "epfgnn": [("pretraining", 10), ("EM", 12)],
    "spn": [("nodes", 12), ("edges", 12)],
    "deepensemble": [("member 0", 12), ("member 1", 12)],
}


def expected_phases(model):
    if model.name in PHASES:
        return PHASES[model.name]
    return [("training", getattr(model, "classifier", model).max_epochs)]


def test_phases_are_in_order(model):
    assert fit_once(model).history.phases == expected_phases(model)


def test_on_epoch_is_called_once_per_epoch(model):
    epochs = []
    history = model.fit(DATA, SPLIT, on_epoch=epochs.append).history
    assert [epoch.loss for epoch in epochs] == history.loss
    assert [epoch.val_loss for epoch in epochs] == history.val_loss
    assert [epoch.val_accuracy for epoch in epochs] == history.val_accuracy
    numbers = [(epoch.phase, epoch.epoch, epoch.max_epochs) for epoch in epochs if epoch.phase != "EM"]
    phases = [(phase, num) for phase, num in expected_phases(model) if phase != "EM"]
    assert numbers == [(phase, k + 1, num) for phase, num in phases for k in range(num)]


def test_on_epoch_does_not_change_the_result(model):
    assert_same_bits(fit_once(model), model.fit(DATA, SPLIT, on_epoch=lambda epoch: None))


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", LONGER_MODELS)
def test_models_learn(name, dense):
    data = make_block_graph(120, dense=dense, within=0.2, between=0.01)
    split = make_split(data)
    fitted = LONGER_MODELS[name].fit(data, split)
    first = fitted.history.phases[0][1]
    assert np.mean(fitted.history.loss[first - 5 : first]) < 0.7 * fitted.history.loss[0]
    assert accuracy(fitted.posterior(), data, split.test) > 0.85  # chance is a third


@pytest.mark.slow
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
def test_logits_are_those_of_the_kept_epoch(name):
    """The kept epoch is the last whose accuracy and NLL are at least as good as in all epochs before."""
    fitted = replace(LONGER_MODELS[name], patience=10, learning_rate=0.1).fit(DATA, SPLIT)
    history = fitted.history
    curve = list(zip(history.val_accuracy, history.val_loss, strict=True))
    kept = max(k for k, (acc, nll) in enumerate(curve) if all(acc >= a and nll <= n for a, n in curve[:k]))
    assert kept < history.epochs - 1
    nll = cross_entropy(fitted.logits[SPLIT.val], DATA.y[SPLIT.val])
    assert float(nll) == pytest.approx(history.val_loss[kept], rel=1e-4)
    assert accuracy(fitted.posterior(), DATA, SPLIT.val) == history.val_accuracy[kept]


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_patience_stops_training(name):
    """The last epochs, as many as the patience, are no improvement."""
    history = replace(LONGER_MODELS[name], patience=7, learning_rate=0.2, max_epochs=500).fit(DATA, SPLIT).history
    assert history.epochs < 500
    before, last = slice(0, -7), slice(-7, None)
    assert max(history.val_accuracy[last]) < max(history.val_accuracy[before])
    assert min(history.val_loss[last]) > min(history.val_loss[before])


def test_numpy_arrays_give_same_bits(model):
    data = SimpleNamespace(x=DATA.x.numpy(), edge_index=DATA.edge_index.numpy(), y=DATA.y.numpy())
    split = SimpleNamespace(train=SPLIT.train.numpy(), val=SPLIT.val.numpy())
    assert_same_bits(model.fit(data, split), fit_once(model))


def test_read_only_and_strided_arrays(model):
    x, y = DATA.x.numpy().copy(), DATA.y.numpy().astype(np.int8)
    x.flags.writeable = y.flags.writeable = False
    data = SimpleNamespace(x=x, edge_index=DATA.edge_index.numpy().astype(np.uint32)[:, ::-1], y=y)
    assert_same_bits(model.fit(data, SPLIT), fit_once(model))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_features_of_other_dtypes_become_float32(dtype):
    assert_same_bits(
        SMALL_MODELS["gcn"].fit(copy_with(DATA, x=DATA.x.to(dtype)), SPLIT),
        fit_once(SMALL_MODELS["gcn"]),
    )


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_float64_stays_float64(model, dense):
    data = make_block_graph(dense=dense, dtype=torch.float64)
    fitted = model.fit(data, SPLIT)
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in fitted_tensors(fitted).values())
    assert fitted.posterior().node.dtype == torch.float64
    torch.testing.assert_close(
        fitted.posterior().node.sum(1), torch.ones(90, dtype=torch.float64), rtol=1e-14, atol=1e-14
    )


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_features_give_same_bits(model, layout):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # torch warns that they are in beta
        sparse = DATA.x.to_sparse(layout=layout)
    assert_same_bits(model.fit(copy_with(DATA, x=sparse), SPLIT), fit_once(model))


def test_repeated_sparse_entries_are_summed():
    row, column = DATA.x.nonzero().T
    half = DATA.x[row, column] / 2
    indices = torch.stack([torch.cat([row, row]), torch.cat([column, column])])
    twice = torch.sparse_coo_tensor(indices, torch.cat([half, half]), DATA.x.shape, check_invariants=True)
    assert_same_bits(SMALL_MODELS["gat"].fit(copy_with(DATA, x=twice), SPLIT), fit_once(SMALL_MODELS["gat"]))


@pytest.mark.parametrize("name", ["gcn", "gmnn", "epfgnn"])
def test_dense_features_in_a_sparse_tensor_differ_by_rounding(name):
    data = make_block_graph(dense=True, dtype=torch.float64)
    dense = SMALL_MODELS[name].fit(data, SPLIT).posterior().node
    sparse = SMALL_MODELS[name].fit(copy_with(data, x=data.x.to_sparse()), SPLIT).posterior().node
    torch.testing.assert_close(sparse, dense, rtol=1e-9, atol=1e-9)


def test_kept_epoch_matches_the_weights(model):
    history = fit_once(model).history
    assert 1 <= history.kept <= history.epochs
    if model.name not in PHASES:
        kept = with_options(model, max_epochs=history.kept, patience=history.kept).fit(DATA, SPLIT)
        assert kept.history.kept == history.kept
        assert torch.equal(kept.posterior().node, fit_once(model).posterior().node)


def test_edge_weights_raise(model):
    weighted = copy_with(DATA, edge_weight=torch.ones(DATA.edge_index.shape[1]))
    with pytest.raises(ValueError, match="edge_weight"):
        model.fit(weighted, SPLIT)


def test_autocast_and_no_grad_do_not_matter(model):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert_same_bits(model.fit(DATA, SPLIT), fit_once(model))


def test_labels_of_other_nodes_are_not_used(model):
    labeled = SPLIT.train | SPLIT.val
    unknown = torch.where(labeled, DATA.y, -1)
    shuffled = torch.where(labeled, DATA.y, DATA.y.roll(1))
    assert_same_bits(model.fit(copy_with(DATA, y=unknown), SPLIT, num_classes=3), fit_once(model))
    assert_same_bits(model.fit(copy_with(DATA, y=shuffled), SPLIT), fit_once(model))


def test_task_hides_labels_of_other_nodes():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    labeled = SPLIT.train | SPLIT.val
    assert torch.equal(task.labels[labeled], DATA.y[labeled])
    assert (task.labels[~labeled] == -1).all()


def test_split_without_test_nodes(model):
    split = SimpleNamespace(train=SPLIT.train, val=SPLIT.val)
    assert_same_bits(model.fit(DATA, split), fit_once(model))


def test_validation_labels_do_not_change_training_losses():
    """Validation labels only select the kept epoch."""
    other = copy_with(DATA, y=torch.where(SPLIT.val, (DATA.y + 1) % 3, DATA.y))
    one, two = fit_once(SMALL_MODELS["gcn"]), SMALL_MODELS["gcn"].fit(other, SPLIT)
    assert one.history.loss == two.history.loss
    assert one.history.val_loss != two.history.val_loss


def test_num_classes_above_largest_label(model):
    fitted = model.fit(DATA, SPLIT, num_classes=5)
    assert fitted.posterior().num_classes == 5


def test_repr_of_fitted_model(model):
    fitted = fit_once(model)
    assert re.match(rf"{type(fitted).__name__}\({type(model).__name__}\((classifier=GCN\()?hidden=8", repr(fitted))
    assert f"epochs={fitted.history.epochs}" in repr(fitted)
