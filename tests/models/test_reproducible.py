"""Bitwise reproducibility with threads and processes, and separate seeds."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import edgewise as ew
from edgewise.kernels import dispatch as compiled
from edgewise.kernels.dropout import Dropout
from edgewise.models import gmnn
from edgewise.models.seeds import Initializer, generator
from edgewise.models.task import prepare_task
from helpers.block_graph import (
    SMALL_MODELS,
    assert_same_bits,
    copy_with,
    digest,
    make_block_graph,
    make_split,
    with_options,
)

DATA = make_block_graph()
SPLIT = make_split(DATA)
LARGE = {  # large enough for sums to be split between threads
    "sparse": make_block_graph(300, within=0.05, between=0.01),
    "dense": make_block_graph(300, dense=True, within=0.05, between=0.01),
}
LARGE_SPLIT = make_split(LARGE["sparse"])
WIDE = {name: with_options(model, hidden=64) for name, model in SMALL_MODELS.items()}


@pytest.fixture(params=SMALL_MODELS)
def model(request):
    return SMALL_MODELS[request.param]


@contextmanager
def threads(num):
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    yield
    torch.set_num_threads(before)


def pretraining(fitted):
    """Return the curves of the first phase."""
    num = fitted.history.phases[0][1]
    return [curve[:num] for curve in (fitted.history.loss, fitted.history.val_loss, fitted.history.val_accuracy)]


def without_training(model):
    """Return a copy of the model that takes one step, smaller than rounding errors."""
    is_classifier = hasattr(getattr(model, "classifier", model), "max_epochs")
    short = {"max_epochs": 1} if is_classifier else {"pretrain_epochs": 1, "rounds": 1}
    short |= {"gmnn": {"round_epochs": 1}, "epfgnn": {"steps": 1, "schedule": "published"}}.get(model.name, {})
    return with_options(model, learning_rate=1e-30, **short)


def matrices(fitted):
    """Return the weights with random initial values, which are all but biases and edge scales."""
    return {name: weight for name, weight in fitted.weights.items() if "bias" not in name and name != "edge_scale"}


def equal_names(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if torch.equal(one[name], other[name])]


# Bitwise reproducibility.


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_same_seed_gives_same_bits(model, dense):
    data = make_block_graph(dense=dense)
    assert_same_bits(model.fit(data, SPLIT, seed=3), model.fit(data, SPLIT, seed=3))


def test_other_seed_gives_other_weights(model):
    one, other = model.fit(DATA, SPLIT, seed=3), model.fit(DATA, SPLIT, seed=4)
    assert equal_names(matrices(one), matrices(other)) == []
    assert one.history.loss[0] != other.history.loss[0]


def test_global_generators_do_not_matter(model):
    expected = model.fit(DATA, SPLIT)
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        assert_same_bits(model.fit(DATA, SPLIT), expected)


@pytest.mark.parametrize(("kind", "num"), [("sparse", 2), ("sparse", 3), ("dense", 2)])
@pytest.mark.parametrize("name", WIDE)
def test_number_of_threads_does_not_matter(name, kind, num, monkeypatch):
    with threads(1):
        one = WIDE[name].fit(LARGE[kind], LARGE_SPLIT)
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 1)
    with threads(num):
        assert_same_bits(WIDE[name].fit(LARGE[kind], LARGE_SPLIT), one)


def test_worker_threads_end_after_fit(model, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 1)
    before = set(threading.enumerate())
    with threads(3):
        model.fit(DATA, SPLIT)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=600)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", WIDE)
def test_concurrent_fit_does_not_matter(name):
    expected = WIDE[name].fit(LARGE["sparse"], LARGE_SPLIT)
    done = threading.Event()

    def busy():
        while not done.is_set():
            SMALL_MODELS["gmnn"].fit(DATA, SPLIT, seed=7)

    other = threading.Thread(target=busy)
    other.start()
    try:
        assert_same_bits(WIDE[name].fit(LARGE["sparse"], LARGE_SPLIT), expected)
    finally:
        done.set()
        other.join()


@pytest.mark.parametrize("name", WIDE)
def test_concurrent_fit_that_ends_first_does_not_matter(name):
    """The other fit restores the number of threads while this fit still needs one thread."""
    expected = WIDE[name].fit(LARGE["dense"], LARGE_SPLIT)

    def other():
        torch.set_num_threads(2)
        SMALL_MODELS["gcn"].fit(DATA, SPLIT)
        torch.rand(100)  # uses the global generator

    def start_other(epoch):
        if epoch.epoch == 1:
            run(other)

    with threads(2), torch.random.fork_rng():
        assert_same_bits(WIDE[name].fit(LARGE["dense"], LARGE_SPLIT, on_epoch=start_other), expected)


@pytest.mark.slow
def test_other_process_gives_same_bits():
    program = (
        "from helpers.block_graph import *\n"
        "from types import SimpleNamespace\n"
        "data = SimpleNamespace(**block_graph_arrays())\n"
        "print(*(digest(SMALL_MODELS[name].fit(data, make_split(data), seed=5)) for name in ('gcn', 'gmnn')))\n"
    )
    tests = Path(__file__).parents[1]
    other = subprocess.run([sys.executable, "-c", program], cwd=tests, capture_output=True, text=True, timeout=600)
    assert other.returncode == 0, other.stderr
    assert other.stdout.split() == [digest(SMALL_MODELS[name].fit(DATA, SPLIT, seed=5)) for name in ("gcn", "gmnn")]


def test_overlapping_fits_restore_number_of_threads():
    first_began, second_began, first_ended = threading.Event(), threading.Event(), threading.Event()

    def first():
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=lambda epoch: (first_began.set(), second_began.wait()))
        first_ended.set()

    def second():
        first_began.wait()
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=lambda epoch: (second_began.set(), first_ended.wait()))

    with threads(2):
        run(first, second)
        counts = []
        run(lambda: counts.append(torch.get_num_threads()))  # a new thread inherits the default
        assert counts == [2]


def test_fit_that_ends_during_another_restores_its_number_of_threads():
    second_began, first_ended = threading.Event(), threading.Event()
    second = threading.Thread(
        target=lambda: SMALL_MODELS["gcn"].fit(
            DATA, SPLIT, on_epoch=lambda epoch: (second_began.set(), first_ended.wait())
        )
    )

    def start_second(epoch):
        if epoch.epoch == 1:
            second.start()
            second_began.wait()

    with threads(2):
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=start_second)
        first_ended.set()
        second.join()
        assert torch.get_num_threads() == 2


def run(*functions):
    """Run each function in its own thread."""
    running = [threading.Thread(target=function) for function in functions]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


# Separate seeds.


def test_single_seed_equals_three_seeds(model):
    assert_same_bits(model.fit(DATA, SPLIT, seed=3), model.fit(DATA, SPLIT, seed=ew.Seeds(3, 3, 3)))


def test_initial_weights_depend_on_initialization_seed_only(model):
    begin = matrices(without_training(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 1, 1)))
    again = matrices(without_training(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 3)))
    other = matrices(without_training(model).fit(DATA, SPLIT, seed=ew.Seeds(2, 1, 1)))
    assert equal_names(begin, again) == list(begin)
    assert equal_names(begin, other) == []


def test_initial_weights_do_not_depend_on_dropout(model):
    begin = matrices(without_training(model).fit(DATA, SPLIT))
    other = matrices(with_options(without_training(model), dropout=0.1).fit(DATA, SPLIT))
    assert equal_names(begin, other) == list(begin)


def test_fit_starts_from_initial_weights():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    drawn = ew.GCN(hidden=8).initial_weights(30, 3, Initializer(generator(4, "gcn"), task.dtype, task.device))
    fitted = without_training(SMALL_MODELS["gcn"]).fit(DATA, SPLIT, seed=ew.Seeds(initialization=4))
    assert torch.equal(fitted.weights["weight_1"], drawn["weight_1"])
    assert torch.equal(fitted.weights["weight_2"], drawn["weight_2"])


def test_dropout_seed_changes_training_loss_only(model):
    one = without_training(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 1, 1)).history
    other = without_training(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 1)).history
    assert one.loss[0] != other.loss[0]
    assert one.val_loss[0] == other.val_loss[0]


@pytest.fixture
def mask_starts(monkeypatch):
    """Record the start of the random stream of each dropout mask, which determines the mask."""
    starts = []
    start = Dropout.initial_state

    def recorded(self, draw):
        starts.append(start(self, draw))
        return starts[-1]

    monkeypatch.setattr(Dropout, "initial_state", recorded)
    return starts


def fit_mask_starts(model, seeds, mask_starts):
    mask_starts.clear()
    model.fit(DATA, SPLIT, seed=seeds)
    return list(mask_starts)


def test_masks_depend_on_dropout_seed_only(model, mask_starts):
    model = replace(model, step_patience=4, rounds=1, round_patience=1) if model.name == "epfgnn" else model
    one = fit_mask_starts(model, ew.Seeds(1, 1, 1), mask_starts)
    assert fit_mask_starts(model, ew.Seeds(2, 1, 2), mask_starts) == one
    assert not set(fit_mask_starts(model, ew.Seeds(1, 2, 1), mask_starts)) & set(one)


def test_masks_are_unique(model, mask_starts):
    starts = fit_mask_starts(model, ew.Seeds(), mask_starts)
    draws, samples = 4 if model.name == "gat" else 1, 3 if model.name == "mcdropout" else 0
    assert len(starts) == len(set(starts)) == draws * model.fit(DATA, SPLIT).history.epochs + samples


@pytest.mark.parametrize("name", ["gcn", "gat", "epfgnn", "spn", "deepensemble", "mcdropout"])
def test_models_without_sampling_ignore_the_sampling_seed(name):
    assert_same_bits(
        SMALL_MODELS[name].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 3)),
        SMALL_MODELS[name].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 4)),
    )


def test_samples_depend_on_sampling_seed():
    one = SMALL_MODELS["gmnn"].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 3))
    other = SMALL_MODELS["gmnn"].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 4))
    assert pretraining(one) == pretraining(other)
    assert one.history.loss[10:] != other.history.loss[10:]
    assert not torch.equal(one.sample_logits, other.sample_logits)


def record_uniform_draws(monkeypatch, seeds, **options):
    """Record the uniform numbers that GMNN draws, through the classes they select from a uniform distribution."""
    classes, draw = [], gmnn.draw_classes
    uniform = torch.full((90, 1000), 1e-3, dtype=torch.float64)

    def recorded(probs, draws):
        state = draws.get_state()
        classes.append(draw(uniform, draws).tolist())
        draws.set_state(state)
        return draw(probs, draws)

    monkeypatch.setattr(gmnn, "draw_classes", recorded)
    replace(SMALL_MODELS["gmnn"], **options).fit(DATA, SPLIT, seed=seeds)
    monkeypatch.undo()
    return classes


def test_sampling_does_not_depend_on_other_seeds_or_hyperparameters(monkeypatch):
    one = record_uniform_draws(monkeypatch, ew.Seeds(1, 1, 1))
    assert len(one) == 1 + 4
    assert record_uniform_draws(monkeypatch, ew.Seeds(2, 2, 1), dropout=0.1, hidden=4) == one
    assert record_uniform_draws(monkeypatch, ew.Seeds(1, 1, 2)) != one


def test_more_samples_keep_the_first_ones():
    few, many = (replace(SMALL_MODELS["gmnn"], samples=num).fit(DATA, SPLIT) for num in (4, 7))
    assert torch.equal(many.sample_logits[:4], few.sample_logits)


@pytest.mark.parametrize("name", ["gmnn", "epfgnn"])
@pytest.mark.parametrize("patience", [3, 50])
def test_pretraining_equals_gcn(name, patience):
    seeds = ew.Seeds(5, 6, 7)
    model = replace(SMALL_MODELS[name], pretrain_epochs=40, pretrain_patience=patience, learning_rate=0.1)
    alone = ew.GCN(hidden=8, max_epochs=40, patience=patience, learning_rate=0.1).fit(DATA, SPLIT, seed=seeds)
    assert (alone.history.epochs < 40) == (patience == 3)
    assert pretraining(model.fit(DATA, SPLIT, seed=seeds)) == pretraining(alone)


def test_interrupted_training_is_not_continued():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")

    def interrupt(epoch):
        if epoch.epoch == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SMALL_MODELS["gcn"].fit_task(task, on_epoch=interrupt)
    assert task.training_loops == {}
    assert_same_bits(SMALL_MODELS["gcn"].fit_task(task), SMALL_MODELS["gcn"].fit(DATA, SPLIT))


@pytest.mark.parametrize(
    "order", [("gmnn", "epfgnn", "gcn"), ("gcn", "epfgnn", "gmnn")], ids=["short first", "long first"]
)
def test_fits_on_one_task_equal_fits_on_their_own(order):
    models = {name: SMALL_MODELS[name] for name in order} | {"gcn": replace(SMALL_MODELS["gcn"], max_epochs=25)}
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    for name in order:
        shared, alone = models[name].fit_task(task, seed=5), models[name].fit(DATA, SPLIT, seed=5)
        assert_same_bits(shared, alone)
        assert shared.history.phases == alone.history.phases and shared.history.kept == alone.history.kept


# Permutations.


def test_order_of_edges_does_not_matter(model):
    order = torch.randperm(DATA.num_edges, generator=torch.Generator().manual_seed(1))
    assert_same_bits(model.fit(copy_with(DATA, edge_index=DATA.edge_index[:, order]), SPLIT), model.fit(DATA, SPLIT))


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", ["gcn", "gat", "epfgnn", "spn", "deepensemble"])
def test_permuting_nodes_permutes_results_without_dropout(name, dense):
    """Dropout masks depend on the order of nodes. Without dropout, results differ by rounding only."""
    data = make_block_graph(dense=dense, dtype=torch.float64)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(2))
    inverse = order.argsort()
    permuted = copy_with(data, x=data.x[order], edge_index=inverse[data.edge_index], y=data.y[order])
    split = ew.Split(SPLIT.train[order], SPLIT.val[order], SPLIT.test[order], 0, 0)
    model = with_options(SMALL_MODELS[name], dropout=0.0)
    one, other = model.fit(data, SPLIT), model.fit(permuted, split)
    assert other.history.val_accuracy == one.history.val_accuracy
    assert other.history.loss == pytest.approx(one.history.loss, rel=1e-9)
    assert other.history.val_loss == pytest.approx(one.history.val_loss, rel=1e-9)
    torch.testing.assert_close(other.posterior().node[inverse], one.posterior().node, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_permuted_classes_are_learned_equally_well(name):
    """Reversed labels give other weights, but the same accuracy."""
    data = make_block_graph(120, within=0.2, between=0.01)
    split = make_split(data)
    model = replace(SMALL_MODELS[name], hidden=16, max_epochs=60)
    reversed_data = copy_with(data, y=2 - data.y)
    marginals = model.fit(reversed_data, split).posterior().node
    assert float((marginals.argmax(1) == reversed_data.y)[split.test].double().mean()) > 0.85
