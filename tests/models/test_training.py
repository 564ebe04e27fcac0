"""What training keeps, and when it stops: validation scores follow a script."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.kernels.adam import Adam
from edgewise.models.training import EarlyStopping, Epoch, Log, Phase, copy_weights, nll_and_accuracy, train

ADAM = Adam(learning_rate=0.01, weight_decay=0.0)
LABELS = torch.zeros(4, dtype=torch.long)
HIGH, LOW = 120.0, 60.0  # of NLL


def logits_of(num_correct, nll):
    """Logits of four nodes of label 0, so many of them right, for sure, the others wrong enough for this NLL.

    With margins of 48 and more the other label adds less than the last bit: the NLL of a node is 0 or the margin, and
    epochs of different accuracy may have equal NLL, to the bit.
    """
    margins = [48.0] * num_correct + [-4 * nll / (4 - num_correct)] * (4 - num_correct)
    return torch.tensor([[margin, 0.0] for margin in margins], dtype=torch.float64)


class Scripted:
    """A network that learns nothing, and validates as the script says."""

    def __init__(self, script, losses=None):
        self.script, self.losses = script, losses
        self.after, self.passes, self.asked = [], 0, 0

    def at(self, weights):
        self.asked += 1
        return ScriptedLogits(self, weights, self.asked)


class ScriptedLogits:
    def __init__(self, network, weights, number):
        self.network, self.weights, self.number = network, weights, number

    def with_dropout(self):
        assert self.number == self.network.asked == self.network.passes + 1  # of the weights as they are now
        self.network.passes += 1
        losses = self.network.losses
        return self.weights["w"].sum() * (1.0 if losses is None else losses[self.network.passes - 1])

    def validation(self):
        assert self.number == self.network.asked and not torch.is_grad_enabled()
        self.network.after.append(copy_weights(self.weights))
        return logits_of(*self.network.script[len(self.network.after) - 1])


def itself(logits):
    return logits


def run(script, patience, max_epochs=None, log=None):
    """How many epochs were trained, and after which of them weights were kept; 0 if none were."""
    passes, start = Scripted(script), {"w": torch.ones(2, dtype=torch.float64)}
    phase = Phase("training", len(script) if max_epochs is None else max_epochs, patience)
    kept = train(start, passes, itself, LABELS, phase, ADAM, Log() if log is None else log)
    assert torch.equal(start["w"], torch.ones(2, dtype=torch.float64))  # not changed in place
    assert not kept["w"].requires_grad
    moments = [start, *passes.after]
    assert passes.passes == len(passes.after)
    (epoch,) = [k for k, weights in enumerate(moments) if torch.equal(weights["w"], kept["w"])]
    return len(passes.after), epoch


def test_scripts_give_the_scores_that_they_promise():
    for num_correct in range(4):
        for nll in (48.0, 54.0, LOW, 66.0, 72.0, 90.0, HIGH):
            assert nll_and_accuracy(logits_of(num_correct, nll), LABELS) == (nll, num_correct / 4)


def test_the_best_of_both_is_kept():
    assert run([(1, HIGH), (3, LOW), (2, HIGH), (0, HIGH)], patience=10) == (4, 2)


def test_better_in_one_only_is_not_kept():
    assert run([(2, 90.0), (3, HIGH), (1, LOW)], patience=10) == (3, 1)


def test_both_bests_move_even_if_nothing_is_kept():
    """After epochs 2 and 3 what is to be beaten is 3 correct and the low NLL, which no epoch had at once."""
    assert run([(2, 90.0), (3, HIGH), (1, LOW), (2, 72.0), (3, 66.0)], patience=10) == (5, 1)
    assert run([(2, 90.0), (3, HIGH), (1, LOW), (2, 72.0), (3, LOW)], patience=10) == (5, 5)


def test_ties_are_improvements():
    """The last of equals is kept, and the same again forever is never without improvement."""
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


def test_without_patience_the_last_weights():
    assert run([(3, LOW), (2, HIGH), (1, HIGH), (0, HIGH)], patience=None) == (4, 4)


def test_at_most_so_many_epochs():
    assert run([(2, LOW)] * 10, patience=5, max_epochs=3) == (3, 3)
    assert run([(2, LOW)] * 10, patience=None, max_epochs=3) == (3, 3)


def by_the_rule(script, patience):
    """The rule from the page, looking back over all epochs each time."""
    kept = waited = 0
    for epoch, (accuracy, nll) in enumerate(script, start=1):
        before = script[: epoch - 1]
        better = all(accuracy >= earlier for earlier, _ in before)
        surer = all(nll <= earlier for _, earlier in before)
        kept = epoch if better and surer else kept
        waited = 0 if better or surer else waited + 1
        if waited == patience:
            return epoch, kept
    return len(script), kept


@given(
    script=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([48.0, LOW, 90.0, HIGH])), min_size=1, max_size=12),
    patience=st.integers(1, 4),
)
@settings(max_examples=100)
def test_any_script(script, patience):
    assert run(script, patience) == by_the_rule(script, patience)


def test_best_keeps_a_first_epoch_without_any_right():
    best = EarlyStopping()
    assert best.update(0.0, math.inf) and best.waited == 0
    assert best.update(0.0, 5.0) and not best.update(0.0, 6.0) and best.waited == 0
    assert (best.accuracy, best.nll) == (0.0, 5.0)


def test_log_tells_all_epochs():
    told = []
    log = Log(told.append)
    run([(1, HIGH), (3, LOW)], patience=10, log=log)
    history = log.history()
    assert history.val_accuracy == [0.25, 0.75] and history.val_loss == [HIGH, LOW]
    assert history.loss == pytest.approx([2.0, 1.98])  # before each step of 0.01 for two weights
    assert history.epochs == 2 and history.phases == [("training", 2)] and history.seconds > 0
    assert told == [
        Epoch("training", k + 1, 2, history.loss[k], history.val_loss[k], history.val_accuracy[k]) for k in range(2)
    ]


def test_one_step_is_that_of_adam_with_weight_decay():
    """The first step of Adam is lr · g / (|g| + ε), g = 1 + decay · w."""
    start = {"w": torch.tensor([3.0, -4000.0], dtype=torch.float64)}
    got = train(start, Scripted([(1, LOW)]), itself, LABELS, Phase("training", 1, None), Adam(0.5, 5e-4), Log())
    torch.testing.assert_close(got["w"], torch.tensor([2.5, -3999.5], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_divergence_names_epoch_phase_and_learning_rate(value):
    log = Log()
    passes = Scripted([(1, LOW)] * 5, losses=[1.0, 1.0, value, 1.0, 1.0])
    with pytest.raises(FloatingPointError, match=r"diverged in epoch 3 of warming up.*learning rate \(0\.01\)"):
        train({"w": torch.ones(2)}, passes, itself, LABELS, Phase("warming up", 5, 3), ADAM, log)
    assert len(log.loss) == 2


def test_divergence_of_validation():
    passes = Scripted([(1, LOW), (1, math.nan)])
    with pytest.raises(FloatingPointError, match=r"diverged in epoch 2 of training: .*nan"):
        train({"w": torch.ones(2)}, passes, itself, LABELS, Phase("training", 5, 3), Adam(0.25, 0.0), Log())
