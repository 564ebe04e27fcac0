"""Training by Adam with one validation pass per epoch: what is kept, and when to stop."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.kernels.adam import Adam, Weights
from edgewise.models.graph_pass import Network


class Epoch(NamedTuple):
    """How far a fit is: what ``on_epoch`` is called with after each epoch.

    Attributes
    ----------
    phase
        What is being trained, such as "pretraining"; a model has one phase or several.
    epoch
        The epoch of the phase, counted from 1.
    max_epochs
        How many the phase has at most.
    loss
        On what is trained on, with dropout.
    val_loss
        NLL on validation nodes, without dropout.
    val_accuracy
        Accuracy on validation nodes, without dropout.

    Examples
    --------
    >>> import edgewise as ew
    >>> data, epochs = ew.load_dataset("cora"), []
    >>> fitted = ew.GCN(max_epochs=2).fit(data, ew.make_splits(data.y)[0], on_epoch=epochs.append)
    >>> [(epoch.phase, epoch.epoch, epoch.max_epochs) for epoch in epochs]
    [('training', 1, 2), ('training', 2, 2)]
    """

    phase: str
    epoch: int
    max_epochs: int
    loss: float
    val_loss: float
    val_accuracy: float


OnEpoch = Callable[[Epoch], None]


@dataclass(frozen=True)
class History:
    """How a fit went, epoch by epoch over all its phases.

    Attributes
    ----------
    loss
        On what is trained on, with dropout.
    val_loss
        NLL on validation nodes, without dropout.
    val_accuracy
        Accuracy on validation nodes, without dropout.
    epochs
        How many there were.
    seconds
        How long they took, with all that they needed.
    phases
        Each phase of training, in order, with how many epochs it took.
    kept
        After which epoch, counted from 1, the weights of the fitted value were.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> history = ew.GCN(max_epochs=3).fit(data, ew.make_splits(data.y)[0]).history
    >>> history.epochs, len(history.val_loss), history.phases
    (3, 3, [('training', 3)])
    """

    loss: list[float]
    val_loss: list[float]
    val_accuracy: list[float]
    epochs: int
    seconds: float
    phases: list[tuple[str, int]]
    kept: int


@dataclass
class Log:
    """A history that is being written."""

    on_epoch: OnEpoch | None = None
    loss: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)
    kept: int = 0

    @property
    def epochs(self) -> int:
        """How many epochs there were so far."""
        return len(self.loss)

    def write(self, epoch: Epoch, learning_rate: float) -> None:
        """Write an epoch down, and stop a fit that diverges."""
        if not math.isfinite(epoch.loss) or math.isnan(epoch.val_loss):
            raise FloatingPointError(
                f"Training diverged in epoch {epoch.epoch} of {epoch.phase}: the loss is {epoch.loss}, that of "
                f"validation {epoch.val_loss}. Lower the learning rate ({learning_rate:g}), or scale the features down."
            )
        self.loss.append(epoch.loss)
        self.val_loss.append(epoch.val_loss)
        self.val_accuracy.append(epoch.val_accuracy)
        if not self.phases or self.phases[-1][0] != epoch.phase:
            self.phases.append((epoch.phase, 0))
        self.phases[-1] = (epoch.phase, self.phases[-1][1] + 1)
        if self.on_epoch is not None:
            self.on_epoch(epoch)

    def history(self) -> History:
        """Close it."""
        seconds = perf_counter() - self.started
        curves = self.loss, self.val_loss, self.val_accuracy
        return History(*curves, self.epochs, seconds, self.phases, self.kept)


@dataclass(frozen=True)
class Phase:
    """How long to train: at most so many epochs; with patience, until so many pass without an improvement."""

    name: str
    max_epochs: int
    patience: int | None


class Best:
    """The rule for what to keep (Veličković et al. 2018).

    An epoch whose accuracy is at least the best, or whose NLL is at most the best, is an improvement; if both hold its
    weights are kept.
    """

    def __init__(self) -> None:
        self.accuracy, self.nll, self.waited = 0.0, math.inf, 0

    def keeps(self, accuracy: float, nll: float) -> bool:
        """Take note of an epoch, and tell whether its weights are to be kept."""
        better, surer = accuracy >= self.accuracy, nll <= self.nll
        self.waited = 0 if better or surer else self.waited + 1
        self.accuracy, self.nll = max(accuracy, self.accuracy), min(nll, self.nll)
        return better and surer


def train(
    weights: Weights,
    network: Network,
    loss_of: Callable[[Tensor], Tensor],
    labels: Int[Tensor, " val"],
    phase: Phase,
    adam: Adam,
    log: Log,
) -> Weights:
    """Train by a loss of logits, and return the weights that were kept; without patience, the last."""
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    optimizer, best, kept = adam.optimizer(weights), Best(), copy_weights(weights)
    logits = network.at(weights)
    for epoch in range(phase.max_epochs):
        loss = loss_of(logits.with_dropout())
        optimizer.step(loss)
        logits = network.at(weights)
        with torch.no_grad():
            nll, accuracy = scores(logits.validation(), labels)
        log.write(
            Epoch(phase.name, epoch + 1, phase.max_epochs, float(loss.detach()), nll, accuracy), adam.learning_rate
        )
        if phase.patience is None or best.keeps(accuracy, nll):
            kept, log.kept = weights if phase.patience is None else copy_weights(weights), log.epochs
        if phase.patience is not None and best.waited >= phase.patience:
            break
    return copy_weights(kept)


def check_logits(
    logits: Float[Tensor, "nodes classes"], learning_rate: float, max_size: float = math.inf
) -> Float[Tensor, "nodes classes"]:
    """Refuse logits that are not finite, or too large: those of nodes that training did not reach may overflow."""
    bad = ~(logits.isfinite() & (logits.abs() <= max_size)).all(1)
    if bool(bad.any()):
        node = int(bad.nonzero()[0])
        raise FloatingPointError(
            f"Training diverged: the logits of node {node} are {logits[node].tolist()[:4]}. Scale its features down, "
            f"or lower the learning rate ({learning_rate:g})."
        )
    return logits


def scores(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> tuple[float, float]:
    """Return NLL and accuracy."""
    nll, correct = cross_entropy(logits, labels), (logits.argmax(1) == labels).sum()
    return float(nll), int(correct) / len(labels)


def copy_weights(weights: Weights) -> Weights:
    """Copy weights without their gradient."""
    return {name: weight.detach().clone() for name, weight in weights.items()}


_lock = Lock()
_running = 0  # fits, side by side
_before = 1  # torch's threads before the first of them


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: these tensors are small, and sums must not depend on how many threads share them.

    Each thread of Python has a number of its own, and new ones take the number that was set last. So each fit puts its
    own back, and the last of several that ran side by side that of the first.
    """
    global _running, _before
    own = torch.get_num_threads()
    with _lock:
        _before = own if _running == 0 else _before
        _running += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            torch.set_num_threads(own if _running else _before)
