"""Training of calibration networks: early stopping, kept weights, and option checks."""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from edgewise.calibration.graph_networks import Training

TRAINING = Training(epochs=200, patience=5, learning_rate=0.05, weight_decay=0.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def train(training, labels, start=0.0, sign=1.0, seed=0, pseudo_count=0.0):
    """Train one weight w, with the logits (w, 0) for each node. Return w, the epochs, and the initial weights."""
    epochs = []

    def logits(weights):
        return torch.stack([weights["w"].expand(len(labels)), torch.zeros(len(labels), dtype=torch.float64)], dim=1)

    def train_logits(weights, epoch):
        epochs.append(epoch)
        return sign * logits(weights)

    weights = {"w": torch.full((1,), start, dtype=torch.float64)}
    found = training.train(weights, train_logits, logits, labels, cross_entropy, pseudo_count, generator(seed))
    return float(found["w"]), epochs, weights


def test_result_minimizes_nll_of_the_early_stopping_nodes():
    labels = (torch.arange(300) % 4 == 0).long()  # label 0 is three times as likely
    found, epochs, _ = train(TRAINING, labels)
    held_out = torch.randperm(300, generator=generator())[::3]
    proportion = float((labels[held_out] == 0).double().mean())
    assert len(held_out) == 100
    best = torch.tensor(proportion / (1 - proportion)).log()
    path = [abs(found - 0.05 * k) for k in range(60)]
    assert found == pytest.approx(float(best), abs=0.3) and min(path) < 0.05
    assert epochs == list(range(len(epochs))) and 5 < len(epochs) < 200


def test_initial_weights_are_kept_if_nothing_is_better():
    found, epochs, _ = train(TRAINING, torch.zeros(30, dtype=torch.long), start=0.5, sign=-1.0)
    assert found == 0.5
    assert len(epochs) == 5  # the patience


def test_epochs_are_limited_and_inputs_not_modified():
    found, epochs, weights = train(replace(TRAINING, epochs=3), torch.zeros(30, dtype=torch.long))
    assert epochs == [0, 1, 2] and found == pytest.approx(3 * 0.05, rel=0.05)  # steps of 0.05
    assert float(weights["w"]) == 0.0


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_validation_nodes(nodes):
    found, epochs, _ = train(replace(TRAINING, epochs=10), torch.zeros(nodes, dtype=torch.long))
    assert found > 0.3 and len(epochs) == 10


def test_seed_determines_the_early_stopping_nodes():
    labels = torch.randint(2, (30,), generator=generator())
    assert train(TRAINING, labels, seed=1)[0] == train(TRAINING, labels, seed=1)[0]
    assert len({train(TRAINING, labels, seed=seed)[0] for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("epochs", 0, "Expected epochs to be a whole number from 1 to 1048576, but got 0."),
        ("epochs", 2.5, "but got 2.5."),
        ("patience", True, "Expected patience to be a whole number"),
        ("learning_rate", 0.0, "Expected learning_rate to be a number above 0, but got 0.0."),
        ("weight_decay", -1e-3, "Expected weight_decay to be a number of at least 0, but got -0.001."),
        ("weight_decay", float("nan"), "but got nan."),
    ],
)
def test_invalid_options_raise(name, value, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        replace(TRAINING, **{name: value})


def test_pseudo_label_bounds_the_confidence():
    labels = torch.zeros(30, dtype=torch.long)
    found, _, _ = train(replace(TRAINING, epochs=5000), labels, pseudo_count=0.5)
    # 30 log(1 + e^-w) + 0.5 (log(1 + e^-w) + w / 2) has its minimum at e^w = 121, where p = 30.25 / 30.5.
    assert torch.sigmoid(torch.tensor(found)) == pytest.approx(30.25 / 30.5, abs=1e-3)
