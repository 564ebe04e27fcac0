"""Early stopping and kept weights, for scripted validation scores."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.models.training import (
    EarlyStopping,
    Epoch,
    Log,
    Phase,
    TrainingLoop,
    adam,
    copy_weights,
    nll_and_accuracy,
    trainable_copies,
    update_weights,
)

ADAM = partial(adam, learning_rate=0.01, weight_decay=0.0)
LABELS = torch.zeros(4, dtype=torch.long)
HIGH, LOW = 120.0, 60.0  # NLL


def logits_with_scores(num_correct, nll):
    """Return logits of four nodes of label 0 with this number of correct predictions and this mean NLL.

    With margins of 48 or more the other label adds less than the last bit. The NLL of a node is then exactly 0 or the
    margin, so that epochs of different accuracy can have exactly equal NLL.
    """
    margins = [48.0] * num_correct + [-4 * nll / (4 - num_correct)] * (4 - num_correct)
    return torch.tensor([[margin, 0.0] for margin in margins], dtype=torch.float64)


class ScriptedNetwork:
    """A network whose validation scores follow a script of (number correct, NLL)."""

    def __init__(self, script, losses=None):
        self.script, self.losses = script, losses
        self.weights_after, self.passes, self.num_calls = [], 0, 0

    def at(self, weights):
        self.num_calls += 1
        return ScriptedLogits(self, weights, self.num_calls)


class ScriptedLogits:
    def __init__(self, network, weights, number):
        self.network, self.weights, self.number = network, weights, number

    def with_dropout(self):
        assert self.number == self.network.num_calls == self.network.passes + 1  # computed from the current weights
        self.network.passes += 1
        losses = self.network.losses
        return self.weights["w"].sum() * (1.0 if losses is None else losses[self.network.passes - 1])

    def validation(self):
        assert self.number == self.network.num_calls and not torch.is_grad_enabled()
        self.network.weights_after.append(copy_weights(self.weights))
        return logits_with_scores(*self.network.script[len(self.network.weights_after) - 1])


def identity(logits):
    return logits


def run(script, patience, max_epochs=None, log=None):
    """Return the number of epochs, and the epoch whose weights were kept; 0 for the initial weights."""
    network, start = ScriptedNetwork(script), {"w": torch.ones(2, dtype=torch.float64)}
    phase = Phase("training", len(script) if max_epochs is None else max_epochs, patience)
    kept = TrainingLoop(trainable_copies(start), network, identity, LABELS, ADAM).run(
        phase, Log() if log is None else log
    )
    assert torch.equal(start["w"], torch.ones(2, dtype=torch.float64))  # not changed in place
    assert not kept["w"].requires_grad
    history = [start, *network.weights_after]
    assert network.passes == len(network.weights_after)
    (epoch,) = [k for k, weights in enumerate(history) if torch.equal(weights["w"], kept["w"])]
    return len(network.weights_after), epoch


def test_logits_with_scores_have_these_scores():
    for num_correct in range(4):
        for nll in (48.0, 54.0, LOW, 66.0, 72.0, 90.0, HIGH):
            assert nll_and_accuracy(logits_with_scores(num_correct, nll), LABELS) == (nll, num_correct / 4)


def test_best_epoch_in_accuracy_and_nll_is_kept():
    assert run([(1, HIGH), (3, LOW), (2, HIGH), (0, HIGH)], patience=10) == (4, 2)


def test_epoch_better_in_one_score_only_is_not_kept():
    assert run([(2, 90.0), (3, HIGH), (1, LOW)], patience=10) == (3, 1)


def test_best_scores_are_updated_separately():
    """After epochs 2 and 3 the bests are 3 correct and the low NLL, which no single epoch has."""
    assert run([(2, 90.0), (3, HIGH), (1, LOW), (2, 72.0), (3, 66.0)], patience=10) == (5, 1)
    assert run([(2, 90.0), (3, HIGH), (1, LOW), (2, 72.0), (3, LOW)], patience=10) == (5, 5)


def test_ties_are_improvements():
    """The last of several equal epochs is kept, and the patience never runs out."""
    assert run([(2, LOW)] * 6, patience=2) == (6, 6)
    assert run([(2, LOW), (2, HIGH), (0, LOW), (2, HIGH), (0, LOW)], patience=1) == (5, 1)


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_stops_after_patience(patience):
    worse = [(1, HIGH)] * 10
    assert run([(2, LOW), *worse], patience) == (1 + patience, 1)
    assert run([(1, HIGH), (2, LOW), *worse], patience) == (2 + patience, 2)


@pytest.mark.parametrize("better", [(3, HIGH), (1, 54.0)], ids=["accuracy", "nll"])
def test_patience_restarts_when_either_improves(better):
    worse = (1, HIGH)
    assert run([(2, LOW), worse, worse, better, worse, worse, worse, worse], patience=3) == (7, 1)


def test_last_weights_are_kept_without_patience():
    assert run([(3, LOW), (2, HIGH), (1, HIGH), (0, HIGH)], patience=None) == (4, 4)


def test_max_epochs_is_a_limit():
    assert run([(2, LOW)] * 10, patience=5, max_epochs=3) == (3, 3)
    assert run([(2, LOW)] * 10, patience=None, max_epochs=3) == (3, 3)


def early_stopping_loop(script, patience):
    """Early stopping by comparing each epoch with all earlier ones."""
    kept = waited = 0
    for epoch, (accuracy, nll) in enumerate(script, start=1):
        before = script[: epoch - 1]
        accuracy_improved = all(accuracy >= earlier for earlier, _ in before)
        nll_improved = all(nll <= earlier for _, earlier in before)
        kept = epoch if accuracy_improved and nll_improved else kept
        waited = 0 if accuracy_improved or nll_improved else waited + 1
        if waited == patience:
            return epoch, kept
    return len(script), kept


@given(
    script=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([48.0, LOW, 90.0, HIGH])), min_size=1, max_size=12),
    patience=st.integers(1, 4),
)
def test_random_scripts_equal_loop(script, patience):
    assert run(script, patience) == early_stopping_loop(script, patience)


@given(
    script=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([48.0, LOW, 90.0, HIGH])), min_size=12, max_size=12),
    limits=st.tuples(st.integers(1, 12), st.integers(1, 4)),
    longer=st.tuples(st.integers(1, 12), st.integers(1, 4)),
)
def test_continued_training_equals_training_from_the_start(script, limits, longer):
    start = {"w": torch.ones(2, dtype=torch.float64)}
    continued, fresh = (
        TrainingLoop(trainable_copies(start), ScriptedNetwork(script), identity, LABELS, ADAM) for _ in range(2)
    )
    continued.run(Phase("pretraining", *limits), Log())
    first_epochs, longer_epochs = (early_stopping_loop(script[:most], wait)[0] for most, wait in (limits, longer))
    assert continued.can_continue_to(Phase("training", *longer)) == (first_epochs <= longer_epochs)
    if first_epochs <= longer_epochs:
        logs = Log(), Log()
        kept = [loop.run(Phase("training", *longer), log) for loop, log in zip((continued, fresh), logs, strict=True)]
        assert torch.equal(kept[0]["w"], kept[1]["w"])
        assert [(log.loss, log.val_loss, log.phases, log.kept) for log in logs[:1]] == [
            (log.loss, log.val_loss, log.phases, log.kept) for log in logs[1:]
        ]


def test_first_epoch_is_kept_with_zero_accuracy():
    stopping = EarlyStopping()
    assert stopping.update(0.0, math.inf) and stopping.waited == 0
    assert stopping.update(0.0, 5.0) and not stopping.update(0.0, 6.0) and stopping.waited == 0
    assert (stopping.accuracy, stopping.nll) == (0.0, 5.0)


def test_log_collects_all_epochs():
    epochs = []
    log = Log(epochs.append)
    run([(1, HIGH), (3, LOW)], patience=10, log=log)
    history = log.history()
    assert history.val_accuracy == [0.25, 0.75] and history.val_loss == [HIGH, LOW]
    assert history.loss == pytest.approx([2.0, 1.98])  # before each step of 0.01 for two weights
    assert history.epochs == 2 and history.phases == [("training", 2)] and history.seconds > 0
    assert epochs == [
        Epoch("training", k + 1, 2, history.loss[k], history.val_loss[k], history.val_accuracy[k]) for k in range(2)
    ]


def test_single_step_is_adam_with_weight_decay():
    """The first step of Adam is lr · g / (|g| + ε), g = 1 + decay · w."""
    start = {"w": torch.tensor([3.0, -4000.0], dtype=torch.float64)}
    training = TrainingLoop(
        trainable_copies(start),
        ScriptedNetwork([(1, LOW)]),
        identity,
        LABELS,
        partial(adam, learning_rate=0.5, weight_decay=5e-4),
    )
    got = training.run(Phase("training", 1, None), Log())
    torch.testing.assert_close(got["w"], torch.tensor([2.5, -3999.5], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_divergence_names_epoch_phase_and_learning_rate(value):
    log = Log()
    network = ScriptedNetwork([(1, LOW)] * 5, losses=[1.0, 1.0, value, 1.0, 1.0])
    with pytest.raises(FloatingPointError, match=r"epoch 3 of warming up.*learning rate \(0\.01\)"):
        TrainingLoop(trainable_copies({"w": torch.ones(2)}), network, identity, LABELS, ADAM).run(
            Phase("warming up", 5, 3), log
        )
    assert len(log.loss) == 2


def test_divergence_of_validation_raises():
    network = ScriptedNetwork([(1, LOW), (1, math.nan)])
    with pytest.raises(FloatingPointError, match=r"epoch 2 of training: .*nan"):
        training = TrainingLoop(
            trainable_copies({"w": torch.ones(2)}),
            network,
            identity,
            LABELS,
            partial(adam, learning_rate=0.25, weight_decay=0.0),
        )
        training.run(Phase("training", 5, 3), Log())


def test_trained_weights_are_contiguous_copies():
    initial = {"a": torch.arange(6.0).view(2, 3).T}
    learned = trainable_copies(initial)
    assert learned["a"].is_contiguous() and torch.equal(learned["a"], initial["a"])
    update_weights(adam(learned, 0.01, 0.0), learned["a"].sum())
    assert torch.equal(initial["a"], torch.arange(6.0).view(2, 3).T)


def test_steps_with_gradients_of_transposed_weights_equal_those_of_separate_operations():
    learned, expected = (trainable_copies({"a": torch.linspace(-1, 1, 12).view(4, 3)}) for _ in range(2))
    unfused = torch.optim.Adam(expected.values(), lr=0.01, weight_decay=0.3, fused=False)
    optimizer, factors = adam(learned, 0.01, 0.3), torch.linspace(-2, 3, 12).view(3, 4)
    for _ in range(20):
        for weights, of in ((learned, optimizer), (expected, unfused)):
            update_weights(of, ((weights["a"].T @ weights["a"]).sum() + (weights["a"].T * factors).sum()))
    torch.testing.assert_close(learned["a"], expected["a"], rtol=1e-5, atol=1e-6)
