"""How small networks are trained: when it stops, what it keeps, what it refuses."""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from edgewise.calibration.graph_networks import Training

USUAL = Training(epochs=200, patience=5, learning_rate=0.05, weight_decay=0.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def trained(training, labels, start=0.0, towards=1.0, seed=0, added=0.0):
    """Train one weight w: the logits of each node are (w, 0); give it, and the epochs that were asked for."""
    epochs = []

    def logits(weights):
        return torch.stack([weights["w"].expand(len(labels)), torch.zeros(len(labels), dtype=torch.float64)], dim=1)

    def noisy(weights, epoch):
        epochs.append(epoch)
        return towards * logits(weights)

    weights = {"w": torch.full((1,), start, dtype=torch.float64)}
    found = training.best_weights(weights, noisy, logits, labels, cross_entropy, added, generator(seed))
    return float(found["w"]), epochs, weights


def test_it_ends_where_the_held_out_third_has_the_lowest_nll():
    labels = (torch.arange(300) % 4 == 0).long()  # label 0 is three times as likely
    found, epochs, _ = trained(USUAL, labels)
    held_out = torch.randperm(300, generator=generator())[::3]
    share = float((labels[held_out] == 0).double().mean())
    assert len(held_out) == 100
    best = torch.tensor(share / (1 - share)).log()
    path = [abs(found - 0.05 * k) for k in range(60)]
    assert found == pytest.approx(float(best), abs=0.3) and min(path) < 0.05
    assert epochs == list(range(len(epochs))) and 5 < len(epochs) < 200


def test_it_gives_the_first_weights_if_nothing_is_better():
    found, epochs, _ = trained(USUAL, torch.zeros(30, dtype=torch.long), start=0.5, towards=-1.0)
    assert found == 0.5
    assert len(epochs) == 5  # as long as its patience


def test_it_takes_so_many_epochs_at_most_and_changes_no_input():
    found, epochs, weights = trained(replace(USUAL, epochs=3), torch.zeros(30, dtype=torch.long))
    assert epochs == [0, 1, 2] and found == pytest.approx(3 * 0.05, rel=0.05)  # Adam's steps are of one size
    assert float(weights["w"]) == 0.0


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_nodes_are_enough(nodes):
    found, epochs, _ = trained(replace(USUAL, epochs=10), torch.zeros(nodes, dtype=torch.long))
    assert found > 0.3 and len(epochs) == 10


def test_a_seed_tells_who_is_held_out():
    labels = torch.randint(2, (30,), generator=generator())
    assert trained(USUAL, labels, seed=1)[0] == trained(USUAL, labels, seed=1)[0]
    assert len({trained(USUAL, labels, seed=seed)[0] for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("epochs", 0, "Expected epochs to be a whole number from 1 to 1048576, but got 0."),
        ("epochs", 2.5, "but got 2.5."),
        ("patience", True, "Expected patience to be a whole number"),
        ("learning_rate", 0.0, "Expected learning_rate to be a number above 0, but got 0.0."),
        ("weight_decay", -1e-3, "Expected weight_decay to be a number of at least 0, but got -0.001."),
        ("weight_decay", float("nan"), "but got nan."),
    ],
)
def test_options_are_checked(name, value, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        replace(USUAL, **{name: value})


def test_an_added_label_keeps_labels_that_are_all_the_same_from_certainty():
    labels = torch.zeros(30, dtype=torch.long)
    found, _, _ = trained(replace(USUAL, epochs=5000), labels, added=0.5)
    # 30 log(1 + e^-w) + 0.5 (log(1 + e^-w) + w / 2), whose slope is zero where e^w = 121: p = 30.25 / 30.5 is right
    assert torch.sigmoid(torch.tensor(found)) == pytest.approx(30.25 / 30.5, abs=1e-3)
