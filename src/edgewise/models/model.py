"""A model is its hyper-parameters: `fit` trains, changes nothing, and returns a fitted value."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from pkgutil import iter_modules
from threading import Lock
from typing import Any, ClassVar, Generic, TypeVar

import torch

import edgewise.models
from edgewise.models.fitted import Fitted
from edgewise.models.seeds import Seeds, as_seeds
from edgewise.models.task import Directed, LabelledNodes, Task, prepared
from edgewise.models.training import Log, OnEpoch
from edgewise.validation import check_number, check_whole_number

F = TypeVar("F", bound=Fitted)


@dataclass(frozen=True, kw_only=True)
class Model(ABC, Generic[F]):
    """What all models have in common.

    A subclass has a ``name`` of its own, by which `Fitted.load` finds it, wherever it is defined.
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4

    name: ClassVar[str]
    fitted: ClassVar[type[Fitted]]

    def __post_init__(self) -> None:
        check_numbers(self)
        for hyperparameter in fields(self):  # numbers of NumPy, and whole ones where others may be, become Python's own
            if hyperparameter.type in (int, float):
                value = hyperparameter.type(getattr(self, hyperparameter.name))
                object.__setattr__(self, hyperparameter.name, value)

    def fit(
        self,
        data: Any,
        split: LabelledNodes,
        seed: int | Seeds = 0,
        *,
        device: torch.device | str = "cpu",
        directed: Directed = "refuse",
        num_classes: int | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> F:
        """Train on a graph. While it runs, torch has one thread; long loops of its own use as many as torch had.

        Parameters
        ----------
        data
            A torch_geometric Data, or anything with ``x``, ``edge_index`` and ``y``. Self-loops and repeated edges
            count as if they were not there, ``edge_attr`` is not used, and a graph with ``edge_weight`` is refused.
            Nothing is learnt from labels of nodes that neither train nor validate; they may be -1, and if not, they
            count towards the number of classes.
        split
            Who trains and who validates: an `ew.Split`, or anything with the masks ``train`` and ``val``.
        seed
            One for everything, or `Seeds` of initialisation, dropout and sampling. On a CPU the same seeds give the
            same numbers to the last bit.
        device
            Where to train.
        directed
            What to do with edges that are listed in one direction: "refuse" them, or take the graph as "undirected".
        num_classes
            How many labels there are, if ``data.y`` does not hold the last of them.
        on_epoch
            Called after each epoch, say to show progress.

        Returns
        -------
        Fitted
            Has a ``posterior()`` and a ``history``, and can be saved.

        Raises
        ------
        ValueError
            If the graph, the split or an option is not as expected.
        FloatingPointError
            If training diverges.
        """
        seeds, log = as_seeds(seed), Log(on_epoch)
        task = prepared(data, split, directed=directed, num_classes=num_classes, device=device)
        with (
            _one_thread(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(task.device.type, enabled=False),
        ):
            return self._trained(task, seeds, log)

    @abstractmethod
    def _trained(self, task: Task, seeds: Seeds, log: Log) -> F:
        """Train on what has been checked."""


def known_models() -> dict[str, type[Model[Any]]]:
    """Return the models of this package by their names on the command line, in the order of these names.

    A model needs no entry in a list: every module of the package is imported, and its models are found there.
    """
    for module in iter_modules(edgewise.models.__path__):
        import_module(f"edgewise.models.{module.name}")
    own = [kind for path, kind in defined_models().items() if path.startswith("edgewise.models.")]
    return {kind.name: kind for kind in sorted(own, key=lambda kind: kind.name)}


def defined_models() -> dict[str, type[Model[Any]]]:
    """Return all models that are defined by now, wherever, by their paths; of one that is defined twice the last."""
    kinds = Model.__subclasses__()
    for kind in kinds:  # grows by those of subclasses
        kinds += kind.__subclasses__()
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds if "name" in vars(kind)}


_lock = Lock()
_running = 0  # fits, side by side
_before = 1  # torch's threads before the first of them


@contextmanager
def _one_thread() -> Iterator[None]:
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


MOST = 1 << 20  # units, epochs, rounds, heads or samples


def check_numbers(model: "Model[Any]") -> None:
    """Refuse numbers that no network can be trained with: whole ones must be at least 1."""
    for hyperparameter in fields(model):
        if hyperparameter.type is int:
            check_whole_number(hyperparameter.name, getattr(model, hyperparameter.name), 1, MOST)
    check_number("dropout", model.dropout, least=0, below=1)
    check_number("learning_rate", model.learning_rate, above=0)
    check_number("weight_decay", model.weight_decay, least=0)
