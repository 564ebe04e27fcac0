"""Training with Adam: early stopping on the validation nodes, the training history, and the number of threads."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.files.tables import data_frame
from edgewise.models.seeds import Weights
from edgewise.models.task import Task
from edgewise.representation import shorten

if TYPE_CHECKING:
    import pandas as pd


class Epoch(NamedTuple):
    """The result of one training epoch, which is the argument of ``on_epoch``.

    Attributes
    ----------
    phase
        The training phase, such as "pretraining". A model has one phase or several.
    epoch
        The number of the epoch within its phase, starting at 1.
    max_epochs
        The maximum number of epochs of the phase.
    loss
        Training loss, with dropout.
    val_loss
        NLL on the validation nodes, without dropout.
    val_accuracy
        Accuracy on the validation nodes, without dropout.

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


@dataclass(frozen=True, repr=False)
class History:
    """Training curves of a fit, over the epochs of all its phases.

    Attributes
    ----------
    loss
        Training loss of each epoch, with dropout.
    val_loss
        NLL on the validation nodes after each epoch, without dropout.
    val_accuracy
        Accuracy on the validation nodes after each epoch, without dropout.
    epochs
        Total number of epochs.
    seconds
        Wall-clock time of the fit.
    phases
        Name and number of epochs of each training phase, in order.
    kept
        The epoch, counted from 1 over all phases, whose weights the fitted model has. If it has those of several
        phases, such as the members of an ensemble, it is that of the last one.

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

    def to_frame(self) -> "pd.DataFrame":
        """Return the curves as a pandas DataFrame, one row per epoch. ``kept`` marks the epoch of the kept weights."""
        phase = [name for name, epochs in self.phases for _ in range(epochs)]
        epoch = range(1, self.epochs + 1)
        curves = {name: getattr(self, name) for name in ("loss", "val_loss", "val_accuracy")}
        return data_frame({"epoch": epoch, "phase": phase, **curves, "kept": [k == self.kept for k in epoch]})

    def __repr__(self) -> str:
        phases = ", ".join(f"{name} {epochs}" for name, epochs in self.phases)
        return shorten(
            f"History(epochs={self.epochs}, kept={self.kept}, seconds={self.seconds:.2f}, phases=[{phases}])"
        )

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import history_html

        return history_html(self)


@dataclass
class Log:
    """Collects the history of a running fit."""

    on_epoch: OnEpoch | None = None
    loss: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)
    kept: int = 0

    @property
    def epochs(self) -> int:
        """The number of epochs so far."""
        return len(self.loss)

    def add(self, epoch: Epoch, learning_rate: float) -> None:
        """Append an epoch and call ``on_epoch``. Raise FloatingPointError if the fit diverges."""
        if not math.isfinite(epoch.loss) or math.isnan(epoch.val_loss):
            raise FloatingPointError(
                f"Training diverged in epoch {epoch.epoch} of {epoch.phase}: the loss is {epoch.loss}, the validation "
                f"loss {epoch.val_loss}. Lower the learning rate ({learning_rate:g}) or scale the features down."
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
        """Return the history up to now."""
        seconds = perf_counter() - self.started
        curves = self.loss, self.val_loss, self.val_accuracy
        return History(*curves, self.epochs, seconds, self.phases, self.kept)


@dataclass(frozen=True)
class Phase:
    """The name and limits of a training phase. Without patience it runs for ``max_epochs``."""

    name: str
    max_epochs: int
    patience: int | None


class EarlyStopping:
    """The early-stopping rule of Veličković et al. (2018).

    An epoch is an improvement if its validation accuracy is at least the best so far, or its validation NLL at most
    the best so far. Its weights are kept if both hold.
    """

    def __init__(self) -> None:
        self.accuracy, self.nll, self.waited = 0.0, math.inf, 0

    def update(self, accuracy: float, nll: float) -> bool:
        """Update both bests and the epochs without improvement, and return whether to keep the weights."""
        accuracy_improved, nll_improved = accuracy >= self.accuracy, nll <= self.nll
        self.waited = 0 if accuracy_improved or nll_improved else self.waited + 1
        self.accuracy, self.nll = max(accuracy, self.accuracy), min(nll, self.nll)
        return accuracy_improved and nll_improved


class Logits(Protocol):
    """Logits for the weights at one time of the training."""

    def with_dropout(self) -> Float[Tensor, "nodes classes"]:
        """Compute the logits of the nodes in the loss."""

    def validation(self) -> Float[Tensor, "val classes"]:
        """Compute the logits of the validation nodes, without dropout."""


class TrainedNetwork(Protocol):
    """A network whose weights a `TrainingLoop` changes."""

    def at(self, weights: Weights) -> Logits:
        """Return the logits for these weights. It is called again after the weights have changed."""


class TrainingLoop:
    """Minimization of a loss of the logits, which can be continued. The weights are changed in place.

    The epochs depend on the limits of a phase only in their number. So a training that stopped at the limits of one
    phase can continue to those of another, with the same result as from the start.
    """

    def __init__(
        self,
        weights: Weights,
        network: TrainedNetwork,
        loss_function: Callable[[Tensor], Tensor],
        labels: Int[Tensor, " val"],
        make_optimizer: Callable[[Weights], torch.optim.Adam],
    ):
        self._network, self._loss_function, self._labels = network, loss_function, labels
        self._weights, self._stopping, self._longest_wait = weights, EarlyStopping(), 0
        self._optimizer, self._logits = make_optimizer(self._weights), network.at(self._weights)
        self._epochs: list[tuple[float, float, float]] = []  # loss, validation NLL and accuracy
        self._kept, self._kept_weights = 0, copy_weights(weights)

    def can_continue_to(self, phase: Phase) -> bool:
        """Return whether the epochs so far are within the limits of a phase."""
        patient = phase.patience is None or self._longest_wait < phase.patience
        return patient and len(self._epochs) <= phase.max_epochs

    def run(self, phase: Phase, log: Log) -> Weights:
        """Train up to the limits of a phase, and return the weights of the best epoch; without patience, the last one.

        Epochs of an earlier phase are logged as epochs of this one.
        """
        before, num_done = log.epochs, len(self._epochs)
        for epoch in range(phase.max_epochs):
            if epoch >= num_done:
                if phase.patience is not None and self._stopping.waited >= phase.patience:
                    break
                self._train_epoch()
            log.add(
                Epoch(phase.name, epoch + 1, phase.max_epochs, *self._epochs[epoch]), self._optimizer.defaults["lr"]
            )
        if phase.patience is None:
            log.kept = log.epochs
            return copy_weights(self._weights)
        log.kept = before + self._kept
        return copy_weights(self._kept_weights)

    def _train_epoch(self) -> None:
        self._longest_wait = max(self._longest_wait, self._stopping.waited)
        loss = self._loss_function(self._logits.with_dropout())
        update_weights(self._optimizer, loss)
        self._logits = self._network.at(self._weights)
        with torch.no_grad():
            nll, accuracy = nll_and_accuracy(self._logits.validation(), self._labels)
        self._epochs.append((float(loss.detach()), nll, accuracy))
        if self._stopping.update(accuracy, nll):
            self._kept, self._kept_weights = len(self._epochs), copy_weights(self._weights)


def continue_training(
    task: Task, key: Hashable, make_loop: Callable[[], TrainingLoop], limits: Phase, log: Log
) -> Weights:
    """Train within these limits, and return the weights of the best epoch.

    A training with the same key that stopped earlier on this task is continued.
    """
    loop: TrainingLoop | None = task.training_loops.pop(key, None)
    if loop is None or not loop.can_continue_to(limits):
        loop = make_loop()
    weights = loop.run(limits, log)
    task.training_loops[key] = loop  # not if it was interrupted within an epoch
    return weights


def check_logits(
    logits: Float[Tensor, "elements classes"], learning_rate: float, max_abs: float = math.inf, element: str = "node"
) -> Float[Tensor, "elements classes"]:
    """Return the logits, or raise FloatingPointError if one is not finite or exceeds the maximum absolute value.

    The training loss can be finite while the logits of nodes far from all training nodes overflow. ``element`` is what
    a row belongs to: "node" or "edge".
    """
    bad = ~(logits.isfinite() & (logits.abs() <= max_abs)).all(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise FloatingPointError(
            f"Training diverged: the logits of {element} {row} are {logits[row].tolist()[:4]}. Scale the features "
            f"down or lower the learning rate ({learning_rate:g})."
        )
    return logits


def nll_and_accuracy(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> tuple[float, float]:
    """Return mean NLL and accuracy."""
    nll, correct = cross_entropy(logits, labels), (logits.argmax(1) == labels).sum()
    return float(nll), int(correct) / len(labels)


def adam(weights: Weights, learning_rate: float, weight_decay: float) -> torch.optim.Adam:
    """Return Adam, which updates these weights in place, all of them in one operation."""
    return torch.optim.Adam(weights.values(), lr=learning_rate, weight_decay=weight_decay, fused=True)


def update_weights(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    """Take one step of Adam to reduce a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def trainable_copies(weights: Weights) -> Weights:
    """Return contiguous copies of the weights, with gradients."""
    copies = {name: weight.detach().clone(memory_format=torch.contiguous_format) for name, weight in weights.items()}
    return {name: copied.requires_grad_() for name, copied in copies.items()}


def copy_weights(weights: Weights) -> Weights:
    """Return detached copies of the weights."""
    return {name: weight.detach().clone() for name, weight in weights.items()}


def minimize_lbfgs(
    loss: Callable[[Float[Tensor, " parameters"]], Tensor],
    start: Sequence[float],
    *,
    bounds: Sequence[tuple[float, float]] | None = None,
    tol: float | None = None,
) -> Float[Tensor, " parameters"]:
    """Minimize a smooth function of a few float64 parameters with scipy's L-BFGS-B and torch's gradient."""
    from scipy.optimize import minimize

    def value_and_gradient(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        parameters = torch.from_numpy(values.copy()).requires_grad_()
        value = loss(parameters)
        (gradient,) = torch.autograd.grad(value, parameters)
        return float(value.detach()), gradient.numpy()

    first = np.asarray(start, dtype=np.float64)
    result = minimize(value_and_gradient, first, jac=True, method="L-BFGS-B", bounds=bounds, tol=tol)
    return torch.from_numpy(result.x)


_lock = Lock()
_running = 0  # number of fits that run at the same time
_before = 1  # torch's number of threads before the first of them


@contextmanager
def one_thread() -> Iterator[None]:
    """Set torch's number of threads to 1 within a ``with`` block.

    The tensors are small, and sums must not depend on the number of threads. Each Python thread has its own setting,
    and a new thread inherits the setting made last. Therefore each fit restores its own setting, and the last of
    several concurrent fits restores that of the first.
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
