"""The same seed gives the same bits, whatever runs beside it; each thing that is drawn has a seed of its own."""

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
from helpers.block_graph import SMALL_MODELS, assert_same_bits, copy_with, digest, make_block_graph, make_split

DATA = make_block_graph()
SPLIT = make_split(DATA)
LARGE = {  # so large that threads would share sums
    "words": make_block_graph(300, within=0.05, between=0.01),
    "dense": make_block_graph(300, dense=True, within=0.05, between=0.01),
}
LARGE_SPLIT = make_split(LARGE["words"])
WIDE = {name: replace(model, hidden=64) for name, model in SMALL_MODELS.items()}


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
    """Give losses of the first phase."""
    num = fitted.history.phases[0][1]
    return [curve[:num] for curve in (fitted.history.loss, fitted.history.val_loss, fitted.history.val_accuracy)]


def untrained(model):
    """Let a model stay where it begins: steps are far below rounding, and there is one."""
    brief = {"max_epochs": 1} if hasattr(model, "max_epochs") else {"pretrain_epochs": 1, "rounds": 1}
    brief |= {"gmnn": {"round_epochs": 1}, "epfgnn": {"steps": 1, "schedule": "published"}}.get(model.name, {})
    return replace(model, learning_rate=1e-30, **brief)


def matrices(fitted):
    """Give the weights that are drawn; biases are not."""
    return {name: weight for name, weight in fitted.weights.items() if "bias" not in name and name != "edge_scale"}


def same(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if torch.equal(one[name], other[name])]


# The same bits.


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_the_same_seed_gives_the_same_bits(model, dense):
    data = make_block_graph(dense=dense)
    assert_same_bits(model.fit(data, SPLIT, seed=3), model.fit(data, SPLIT, seed=3))


def test_another_seed_gives_others(model):
    one, other = model.fit(DATA, SPLIT, seed=3), model.fit(DATA, SPLIT, seed=4)
    assert same(matrices(one), matrices(other)) == []
    assert one.history.loss[0] != other.history.loss[0]


def test_shared_generators_do_not_matter(model):
    usual = model.fit(DATA, SPLIT)
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        assert_same_bits(model.fit(DATA, SPLIT), usual)


@pytest.mark.parametrize(("kind", "num"), [("words", 2), ("words", 3), ("dense", 2)])
@pytest.mark.parametrize("name", WIDE)
def test_the_number_of_threads_does_not_matter(name, kind, num, monkeypatch):
    with threads(1):
        one = WIDE[name].fit(LARGE[kind], LARGE_SPLIT)
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 1)
    with threads(num):
        assert_same_bits(WIDE[name].fit(LARGE[kind], LARGE_SPLIT), one)


def test_threads_that_helped_leave(model, monkeypatch):
    monkeypatch.setattr(compiled, "MIN_PARALLEL_OPERATIONS", 1)
    before = set(threading.enumerate())
    with threads(3):
        model.fit(DATA, SPLIT)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", WIDE)
def test_another_fit_beside_it_does_not_matter(name):
    usual = WIDE[name].fit(LARGE["words"], LARGE_SPLIT)
    done = threading.Event()

    def busy():
        while not done.is_set():
            SMALL_MODELS["gmnn"].fit(DATA, SPLIT, seed=7)

    other = threading.Thread(target=busy)
    other.start()
    try:
        assert_same_bits(WIDE[name].fit(LARGE["words"], LARGE_SPLIT), usual)
    finally:
        done.set()
        other.join()


@pytest.mark.parametrize("name", WIDE)
def test_another_thread_that_ends_a_fit_does_not_matter(name):
    """It sets the number of threads back, while this fit still needs one."""
    usual = WIDE[name].fit(LARGE["dense"], LARGE_SPLIT)

    def other():
        torch.set_num_threads(2)
        SMALL_MODELS["gcn"].fit(DATA, SPLIT)
        torch.rand(100)  # of the shared generator

    def start_other(epoch):
        if epoch.epoch == 1:
            run(other)

    with threads(2), torch.random.fork_rng():
        assert_same_bits(WIDE[name].fit(LARGE["dense"], LARGE_SPLIT, on_epoch=start_other), usual)


def test_another_process_gives_the_same_bits():
    program = (
        "from helpers.block_graph import *\n"
        "from types import SimpleNamespace\n"
        "data = SimpleNamespace(**block_graph_arrays())\n"
        "print(*(digest(SMALL_MODELS[name].fit(data, make_split(data), seed=5)) for name in ('gcn', 'gmnn')))\n"
    )
    tests = Path(__file__).parents[1]
    other = subprocess.run([sys.executable, "-c", program], cwd=tests, capture_output=True, text=True, timeout=300)
    assert other.returncode == 0, other.stderr
    assert other.stdout.split() == [digest(SMALL_MODELS[name].fit(DATA, SPLIT, seed=5)) for name in ("gcn", "gmnn")]


def test_fits_that_overlap_give_the_threads_back():
    first_began, second_began, first_ended = threading.Event(), threading.Event(), threading.Event()

    def first():
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=lambda epoch: (first_began.set(), second_began.wait()))
        first_ended.set()

    def second():
        first_began.wait()
        SMALL_MODELS["gcn"].fit(DATA, SPLIT, on_epoch=lambda epoch: (second_began.set(), first_ended.wait()))

    with threads(2):
        run(first, second)
        seen = []
        run(lambda: seen.append(torch.get_num_threads()))  # a new thread takes what is usual
        assert seen == [2]


def test_a_fit_that_ends_while_another_runs_gives_its_own_thread_back():
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
    """Run functions in threads of their own."""
    running = [threading.Thread(target=function) for function in functions]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


# Seeds are separate.


def test_one_seed_is_short_for_three(model):
    assert_same_bits(model.fit(DATA, SPLIT, seed=3), model.fit(DATA, SPLIT, seed=ew.Seeds(3, 3, 3)))


def test_initial_weights_follow_the_seed_of_initialization_only(model):
    begin = matrices(untrained(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 1, 1)))
    again = matrices(untrained(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 3)))
    other = matrices(untrained(model).fit(DATA, SPLIT, seed=ew.Seeds(2, 1, 1)))
    assert same(begin, again) == list(begin)
    assert same(begin, other) == []


def test_the_rate_of_dropout_leaves_initial_weights(model):
    begin = matrices(untrained(model).fit(DATA, SPLIT))
    other = matrices(replace(untrained(model), dropout=0.1).fit(DATA, SPLIT))
    assert same(begin, other) == list(begin)


def test_a_fit_begins_with_the_weights_that_are_drawn():
    task = prepare_task(DATA, SPLIT, directed="refuse", num_classes=None, device="cpu")
    drawn = ew.GCN(hidden=8).initial_weights(30, 3, Initializer(generator(4, "gcn"), task.dtype, task.device))
    fitted = untrained(SMALL_MODELS["gcn"]).fit(DATA, SPLIT, seed=ew.Seeds(initialization=4))
    assert torch.equal(fitted.weights["weight_1"], drawn["weight_1"])
    assert torch.equal(fitted.weights["weight_2"], drawn["weight_2"])


def test_the_seed_of_dropout_moves_losses_and_not_where_they_begin(model):
    one = untrained(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 1, 1)).history
    other = untrained(model).fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 1)).history
    assert one.loss[0] != other.loss[0]
    assert one.val_loss[0] == other.val_loss[0]


@pytest.fixture
def masks(monkeypatch):
    """Write down where the words of each draw of dropout begin: they decide who is dropped."""
    starts = []
    start = Dropout.start

    def written(self, draw):
        starts.append(start(self, draw))
        return starts[-1]

    monkeypatch.setattr(Dropout, "start", written)
    return starts


def masks_of(model, seeds, masks):
    masks.clear()
    model.fit(DATA, SPLIT, seed=seeds)
    return list(masks)


def test_dropout_follows_the_seed_of_dropout_only(model, masks):
    model = replace(model, step_patience=4, rounds=1, round_patience=1) if model.name == "epfgnn" else model
    one = masks_of(model, ew.Seeds(1, 1, 1), masks)
    assert masks_of(model, ew.Seeds(2, 1, 2), masks) == one
    assert not set(masks_of(model, ew.Seeds(1, 2, 1), masks)) & set(one)


def test_no_mask_comes_twice(model, masks):
    starts = masks_of(model, ew.Seeds(), masks)
    draws = 4 if model.name == "gat" else 1
    assert len(starts) == len(set(starts)) == draws * model.fit(DATA, SPLIT).history.epochs


@pytest.mark.parametrize("name", ["gcn", "gat", "epfgnn"])
def test_who_draws_no_samples_ignores_their_seed(name):
    assert_same_bits(
        SMALL_MODELS[name].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 3)),
        SMALL_MODELS[name].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 4)),
    )


def test_samples_follow_the_seed_of_sampling():
    one = SMALL_MODELS["gmnn"].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 3))
    other = SMALL_MODELS["gmnn"].fit(DATA, SPLIT, seed=ew.Seeds(1, 2, 4))
    assert pretraining(one) == pretraining(other)
    assert one.history.loss[10:] != other.history.loss[10:]
    assert not torch.equal(one.sample_logits, other.sample_logits)


def drawn_labels(monkeypatch, seeds, **options):
    """Write down what uniform numbers GMNN draws, by the labels that they choose of equal ones."""
    drawn, draw = [], gmnn.draw_classes
    equal = torch.full((90, 1000), 1e-3, dtype=torch.float64)

    def written(probs, draws):
        state = draws.get_state()
        drawn.append(draw(equal, draws).tolist())
        draws.set_state(state)
        return draw(probs, draws)

    monkeypatch.setattr(gmnn, "draw_classes", written)
    replace(SMALL_MODELS["gmnn"], **options).fit(DATA, SPLIT, seed=seeds)
    monkeypatch.undo()
    return drawn


def test_sampling_does_not_follow_other_seeds_or_hyper_parameters(monkeypatch):
    one = drawn_labels(monkeypatch, ew.Seeds(1, 1, 1))
    assert len(one) == 1 + 4
    assert drawn_labels(monkeypatch, ew.Seeds(2, 2, 1), dropout=0.1, hidden=4) == one
    assert drawn_labels(monkeypatch, ew.Seeds(1, 1, 2)) != one


def test_more_samples_leave_the_first():
    few, many = (replace(SMALL_MODELS["gmnn"], samples=num).fit(DATA, SPLIT) for num in (4, 7))
    assert torch.equal(many.sample_logits[:4], few.sample_logits)


@pytest.mark.parametrize("name", ["gmnn", "epfgnn"])
@pytest.mark.parametrize("patience", [3, 50])
def test_pretraining_is_a_gcn(name, patience):
    seeds = ew.Seeds(5, 6, 7)
    model = replace(SMALL_MODELS[name], pretrain_epochs=40, pretrain_patience=patience, learning_rate=0.1)
    alone = ew.GCN(hidden=8, max_epochs=40, patience=patience, learning_rate=0.1).fit(DATA, SPLIT, seed=seeds)
    assert (alone.history.epochs < 40) == (patience == 3)
    assert pretraining(model.fit(DATA, SPLIT, seed=seeds)) == pretraining(alone)


# Names and order.


def test_the_order_of_edges_does_not_matter(model):
    order = torch.randperm(DATA.num_edges, generator=torch.Generator().manual_seed(1))
    assert_same_bits(model.fit(copy_with(DATA, edge_index=DATA.edge_index[:, order]), SPLIT), model.fit(DATA, SPLIT))


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("name", ["gcn", "gat", "epfgnn"])
def test_names_of_nodes_matter_only_to_dropout(name, dense):
    """Without dropout, curves and beliefs differ by rounding."""
    data = make_block_graph(dense=dense, dtype=torch.float64)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(2))
    place = order.argsort()  # where node i has gone
    renamed = copy_with(data, x=data.x[order], edge_index=place[data.edge_index], y=data.y[order])
    split = ew.Split(SPLIT.train[order], SPLIT.val[order], SPLIT.test[order], 0, 0)
    model = replace(SMALL_MODELS[name], dropout=0.0)
    one, other = model.fit(data, SPLIT), model.fit(renamed, split)
    assert other.history.val_accuracy == one.history.val_accuracy
    assert other.history.loss == pytest.approx(one.history.loss, rel=1e-9)
    assert other.history.val_loss == pytest.approx(one.history.val_loss, rel=1e-9)
    torch.testing.assert_close(other.posterior().node[place], one.posterior().node, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_names_of_classes_do_not_matter_to_what_can_be_learned(name):
    """Labels that are turned round give other weights, but are learned as well."""
    data = make_block_graph(120, within=0.2, between=0.01)
    split = make_split(data)
    model = replace(SMALL_MODELS[name], hidden=16, max_epochs=60)
    turned = copy_with(data, y=2 - data.y)
    belief = model.fit(turned, split).posterior().node
    assert float((belief.argmax(1) == turned.y)[split.test].double().mean()) > 0.85
