"""Network: any torch module, trained by the protocol of the models."""

import importlib.util
import sys
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.nn import GCNConv

import edgewise as ew
from edgewise.models import known_models
from edgewise.models.seeds import Initializer, RandomState, generator
from edgewise.models.task import prepare_task
from edgewise.models.training import EarlyStopping
from helpers.block_graph import assert_same_bits, global_random_states, make_block_graph, make_split

DATA = make_block_graph()
SPLIT = make_split(DATA)


class PygGCN(torch.nn.Module):
    def __init__(self, num_features, num_classes, hidden=8, rate=0.5):
        super().__init__()
        self.first, self.second = GCNConv(num_features, hidden), GCNConv(hidden, num_classes)
        self.rate = rate

    def forward(self, x, edge_index):
        return self.second(dropout(self.first(x, edge_index).relu(), self.rate, self.training), edge_index)


class Normalized(torch.nn.Module):
    """An MLP with batch normalization; its running mean is also replaced by another tensor."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.first, self.second = torch.nn.Linear(num_features, 8), torch.nn.Linear(8, num_classes)
        self.norm, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x, edge_index):
        if self.training:
            self.passes = self.passes + 1
        return self.second(self.drop(self.norm(self.first(x)).relu()))


class DrawsInEvaluation(torch.nn.Module):
    """Its dropout is also active in evaluation mode."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.only = torch.nn.Linear(num_features, num_classes)

    def forward(self, x, edge_index):
        return dropout(self.only(x), 0.5)


class Changed(torch.nn.Module):
    """Its parameters have other names from the second time on that it is made."""

    times_made = 0

    def __init__(self, num_features, num_classes):
        super().__init__()
        Changed.times_made += 1
        setattr(self, f"layer_{min(Changed.times_made, 2)}", torch.nn.Linear(num_features, num_classes))

    def forward(self, x, edge_index):
        return next(self.children())(x)


class Constant(torch.nn.Module):
    """Returns a function of the number of classes, without parameters."""

    def __init__(self, make_logits):
        super().__init__()
        self.make_logits = make_logits
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, edge_index):
        return self.make_logits(x) + self.weight


def annotated(num_features: int, num_classes: int) -> PygGCN:
    return PygGCN(num_features, num_classes, hidden=3)


def without_annotation(num_features, num_classes):
    return PygGCN(num_features, num_classes)


SMALL = ew.Network(PygGCN, max_epochs=12)


def equal_gcn(num_features, num_classes):
    """Return the module whose initial weights are those of ew.GCN(hidden=8, dropout=0.0) with seed 0."""
    module = PygGCN(num_features, num_classes, rate=0.0)
    draw = Initializer(generator(0, "gcn"), torch.float32, torch.device("cpu"))
    weights = ew.GCN(hidden=8).initial_weights(num_features, num_classes, draw)
    with torch.no_grad():
        for layer, k in ((module.first, 1), (module.second, 2)):
            layer.lin.weight.copy_(weights[f"weight_{k}"].T)
            layer.bias.copy_(weights[f"bias_{k}"])
    return module


@pytest.mark.parametrize("dense", [False, True])
def test_equal_initial_weights_train_like_gcn(dense):
    data = make_block_graph(dense=dense)
    split = make_split(data)
    gcn = ew.GCN(hidden=8, dropout=0.0, max_epochs=80, patience=10).fit(data, split)
    network = ew.Network(equal_gcn, max_epochs=80, patience=10).fit(data, split)
    assert network.history.epochs == gcn.history.epochs and network.history.kept == gcn.history.kept
    assert network.history.loss == pytest.approx(gcn.history.loss, rel=1e-3)
    assert network.history.val_loss == pytest.approx(gcn.history.val_loss, rel=1e-3)
    torch.testing.assert_close(network.logits, gcn.logits, rtol=1e-2, atol=1e-3)


def test_training_equals_plain_loop():
    """Dropout is drawn from the global generator; the loop draws from one with the same state."""
    model = replace(SMALL, max_epochs=30, patience=5)
    fitted = model.fit(DATA, SPLIT, seed=3)
    with RandomState(3, "network", torch.device("cpu")).use():
        module = PygGCN(DATA.num_features, 3)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=5e-4)
    stopping, losses, kept = EarlyStopping(), [], None
    with RandomState(3, "network dropout", torch.device("cpu")).use():
        while len(losses) < 30 and stopping.waited < 5:
            optimizer.zero_grad()
            loss = cross_entropy(module.train()(DATA.x, DATA.edge_index)[SPLIT.train], DATA.y[SPLIT.train])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            logits = module.eval()(DATA.x, DATA.edge_index).detach()
            val, labels = logits[SPLIT.val], DATA.y[SPLIT.val]
            if stopping.update(float((val.argmax(1) == labels).double().mean()), float(cross_entropy(val, labels))):
                kept = logits
    assert fitted.history.loss == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(fitted.logits, kept, rtol=1e-3, atol=1e-4)


def test_same_seed_gives_the_same_bits_and_leaves_the_global_generators():
    before = global_random_states()
    one = SMALL.fit(DATA, SPLIT, seed=1, on_epoch=lambda epoch: torch.rand(1) if epoch.epoch == 1 else None)
    torch.manual_seed(5)
    assert_same_bits(SMALL.fit(DATA, SPLIT, seed=1), one)
    assert torch.initial_seed() == 5
    torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))
    assert global_random_states() == before
    SMALL.fit(DATA, SPLIT, seed=1)
    assert global_random_states() == before
    assert not torch.equal(SMALL.fit(DATA, SPLIT, seed=2).logits, one.logits)


def test_module_that_draws_in_evaluation_is_reproducible():
    model = ew.Network(DrawsInEvaluation, max_epochs=5)
    torch.manual_seed(1)
    before = global_random_states()
    one = model.fit(DATA, SPLIT)
    assert global_random_states() == before
    torch.manual_seed(2)
    two = model.fit(DATA, SPLIT)
    assert two.history.val_loss == one.history.val_loss
    assert_same_bits(two, one)
    assert len(set(one.history.val_loss)) == 5


def test_fits_in_threads_do_not_interfere():
    before = global_random_states()
    alone = [SMALL.fit(DATA, SPLIT, seed=seed) for seed in range(4)]
    with ThreadPool(4) as pool:
        together = pool.map(lambda seed: SMALL.fit(DATA, SPLIT, seed=seed), range(4))
    for one, other in zip(alone, together, strict=True):
        assert_same_bits(other, one)
    assert global_random_states() == before


def test_seeds_of_initialization_and_dropout_are_separate():
    fits = [SMALL.fit(DATA, SPLIT, seed=ew.Seeds(*seeds)) for seeds in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert torch.equal(fits[0].logits, fits[3].logits)
    assert fits[0].history.loss[0] != fits[1].history.loss[0]
    assert fits[0].history.loss[0] != fits[2].history.loss[0]
    no_dropout = [ew.Network(equal_gcn, max_epochs=3).fit(DATA, SPLIT, seed=ew.Seeds(0, k)) for k in (0, 1)]
    assert torch.equal(no_dropout[0].logits, no_dropout[1].logits)


def test_buffers_are_those_of_the_kept_epoch(tmp_path):
    fitted = ew.Network(Normalized, max_epochs=40).fit(DATA, SPLIT)
    assert float(fitted.weights["passes"]) == fitted.history.kept == int(fitted.weights["norm.num_batches_tracked"])
    assert fitted.history.kept < fitted.history.epochs
    module = Normalized(DATA.num_features, 3)
    module.load_state_dict(fitted.weights)
    torch.testing.assert_close(module.eval()(DATA.x, DATA.edge_index).detach(), fitted.logits)
    fitted.save(tmp_path / "model")
    assert_same_bits(ew.Fitted.load(tmp_path / "model"), fitted)


@pytest.mark.parametrize("make_module", [PygGCN, annotated])
def test_save_load_and_apply(make_module, tmp_path):
    fitted = ew.Network(make_module, max_epochs=5, learning_rate=0.02).fit(DATA, SPLIT)
    fitted.save(tmp_path / "model")
    again = ew.Fitted.load(tmp_path / "model")
    assert again.model == fitted.model and again.history == fitted.history
    assert_same_bits(again, fitted)
    unlabeled = SimpleNamespace(x=DATA.x, edge_index=DATA.edge_index)
    assert torch.equal(again.apply(unlabeled).logits, fitted.logits)
    part = SimpleNamespace(x=DATA.x[:5], edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert again.apply(part).posterior().node.shape == (5, 3)
    with pytest.raises(ValueError, match=r"as many features as in training, but got 29"):
        fitted.apply(SimpleNamespace(x=DATA.x[:, 1:], edge_index=DATA.edge_index))


def test_loading_needs_the_module_to_be_imported(tmp_path, monkeypatch):
    fitted = ew.Network(PygGCN, max_epochs=1).fit(DATA, SPLIT)
    module = ModuleType("my_networks")
    monkeypatch.setitem(sys.modules, "my_networks", module)
    monkeypatch.setattr(PygGCN, "__module__", "my_networks")
    module.PygGCN = PygGCN
    fitted.save(tmp_path / "model")
    assert ew.Fitted.load(tmp_path / "model").model == fitted.model
    monkeypatch.delitem(sys.modules, "my_networks")
    with pytest.raises(ValueError, match="from my_networks import PygGCN"):
        ew.Fitted.load(tmp_path / "model")


def test_loading_needs_the_module_of_another_script(tmp_path, monkeypatch):
    fitted = ew.Network(PygGCN, max_epochs=1).fit(DATA, SPLIT)
    monkeypatch.setattr(PygGCN, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "PygGCN", PygGCN, raising=False)
    fitted.save(tmp_path / "model")
    assert ew.Fitted.load(tmp_path / "model").model == fitted.model
    monkeypatch.delattr(sys.modules["__main__"], "PygGCN")
    with pytest.raises(ValueError, match="Define PygGCN here as it was there, or import it"):
        ew.Fitted.load(tmp_path / "model")


@pytest.mark.parametrize("place", ["os:abort", "builtins:print", "torch:Tensor", "os.path:join"])
def test_a_file_cannot_name_other_functions(place, tmp_path, monkeypatch):
    monkeypatch.setattr("edgewise.models.network.importable_name", lambda make_module: place)
    ew.Network(PygGCN, max_epochs=1).fit(DATA, SPLIT).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"subclass of torch\.nn\.Module"):
        ew.Fitted.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("make_module", "match"),
    [
        (lambda num_features, num_classes: PygGCN(num_features, num_classes), "at the top level of a module"),
        (without_annotation, r"-> torch\.nn\.Module"),
    ],
)
def test_saving_needs_a_name(make_module, match, tmp_path):
    fitted = ew.Network(make_module, max_epochs=1).fit(DATA, SPLIT)
    with pytest.raises(ValueError, match=match):
        fitted.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make_logits", "match"),
    [
        (lambda x: x[:, :3].softmax(1), "Remove the softmax"),
        (lambda x: x[:, :4], r"of 3 classes, but got shape \(90, 4\)"),
        (lambda x: x[:5, :3], r"shape \(90, classes\), but got shape \(5, 3\)"),
        (lambda x: torch.where(x[:, :3] >= 0, torch.nan, 0.0), "first for node 0"),
    ],
)
def test_output_of_the_module_is_checked(make_logits, match):
    with pytest.raises(ValueError, match=match):
        ew.Network(lambda num_features, num_classes: Constant(make_logits)).fit(DATA, SPLIT)


def test_other_weights_than_in_training():
    with pytest.raises(ValueError, match=r"they differ: .*layer_1.* Use the module as it was defined in training"):
        ew.Network(Changed, max_epochs=1).fit(DATA, SPLIT)


def test_type_errors_inside_a_module_are_not_those_of_its_arguments():
    def fail(*_):
        raise TypeError("inside")

    with pytest.raises(TypeError, match=r"^inside$"):
        ew.Network(lambda num_features, num_classes: fail()).fit(DATA, SPLIT)
    with pytest.raises(TypeError, match=r"^inside$"):
        ew.Network(lambda num_features, num_classes: Constant(fail)).fit(DATA, SPLIT)


def test_errors_of_make_module():
    with pytest.raises(ValueError, match=r"ew\.Network\(GraphSAGE\)"):
        ew.Network(PygGCN(30, 3))
    with pytest.raises(ValueError, match="but got str"):
        ew.Network("PygGCN")
    with pytest.raises(TypeError, match=r"\(num_features, num_classes\).* Define a function"):
        ew.Network(lambda: PygGCN(30, 3)).fit(DATA, SPLIT)
    with pytest.raises(ValueError, match=r"torch\.nn\.Module, but got int"):
        ew.Network(lambda num_features, num_classes: 3).fit(DATA, SPLIT)
    with pytest.raises(TypeError, match=r"Linear.*two arguments"):
        ew.Network(torch.nn.Linear).fit(DATA, SPLIT)
    with pytest.raises(ValueError, match=r"Frozen.*ew\.wrap\(module, data\)"):
        ew.Network(lambda num_features, num_classes: Frozen()).fit(DATA, SPLIT)
    with pytest.raises(ValueError, match="weight_decay"):
        ew.Network(PygGCN, weight_decay=-1.0)
    with pytest.raises(TypeError, match=r"Did you mean 'max_epochs'"):
        ew.Network(PygGCN, max_epoch=3)


class Frozen(torch.nn.Module):
    """Has no parameters."""

    def forward(self, x, edge_index):
        return x[:, :3]


def test_lazy_layers_are_created_before_training():
    class Lazy(torch.nn.Module):
        def __init__(self, num_features, num_classes):
            super().__init__()
            self.only = torch.nn.LazyLinear(num_classes)

        def forward(self, x, edge_index):
            return self.only(x)

    fitted = ew.Network(Lazy, max_epochs=3).fit(DATA, SPLIT)
    assert fitted.weights["only.weight"].shape == (3, 30)
    assert torch.equal(fitted.apply(DATA).logits, fitted.logits)


def test_float64_and_sparse_features():
    double = SMALL.fit(make_block_graph(dtype=torch.float64), SPLIT)
    assert double.logits.dtype == torch.float64 and double.weights["first.bias"].dtype == torch.float64
    sparse = SimpleNamespace(x=DATA.x.to_sparse(), edge_index=DATA.edge_index, y=DATA.y)
    assert_same_bits(SMALL.fit(sparse, SPLIT), SMALL.fit(DATA, SPLIT))


def test_calibrators_take_a_fitted_network():
    fitted = SMALL.fit(DATA, SPLIT)
    assert isinstance(fitted, ew.Fitted) and list(fitted.predictions()) == ["product"]
    with pytest.warns(ew.SmallSampleWarning, match="12 validation nodes"):
        calibrated = ew.TemperatureScaling().fit(fitted, DATA, SPLIT)
    assert calibrated.posterior().node.shape == (90, 3)


def test_network_is_not_a_model_of_the_command_line():
    assert "network" not in known_models()


def test_weight_decay_can_be_changed():
    assert SMALL.with_weight_decay(0.0) == replace(SMALL, weight_decay=0.0)


def test_continued_training_is_shared_on_a_task():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    short = SMALL.fit_task(task)
    longer = replace(SMALL, max_epochs=20).fit_task(task)
    assert longer.history.loss[:12] == short.history.loss
    assert_same_bits(longer, replace(SMALL, max_epochs=20).fit(DATA, SPLIT))


def test_example_module_trains():
    path = Path(__file__).parents[2] / "examples" / "graph_sage.py"
    spec = importlib.util.spec_from_file_location("graph_sage", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fitted = ew.Network(module.GraphSAGE, max_epochs=5).fit(DATA, SPLIT)
    assert fitted.logits.shape == (90, 3)
