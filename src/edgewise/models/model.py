"""Base classes of models. A model is a frozen dataclass of hyperparameters, and its ``fit`` returns a `Fitted`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.kernels.dropout import Dropout
from edgewise.models.fitted import Fitted, FittedClassifier
from edgewise.models.graph_pass import GraphPass, TrainingPass, TrainingRows, all_logits
from edgewise.models.seeds import Initializer, Seeds, Weights, as_seeds, dropout_key, generator
from edgewise.models.task import Directed, Graph, LabeledNodes, Task, prepare_task
from edgewise.models.training import (
    Log,
    OnEpoch,
    Phase,
    TrainingLoop,
    adam,
    check_logits,
    continue_training,
    one_thread,
    trainable_copies,
)
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_number, check_whole_number

MAX_COUNT = 1 << 20  # maximum number of units, epochs, rounds, heads or samples
OPTION_LIMITS: dict[str, dict[str, Any]] = {  # of options that several models have
    "dropout": {"least": 0, "below": 1},
    "learning_rate": {"above": 0},
    "weight_decay": {"least": 0},
}

F = TypeVar("F", bound=Fitted)


@dataclass(frozen=True, kw_only=True)
class Model(ABC, Generic[F]):
    """Base class of all models.

    A subclass has a unique ``name``, which is its name on the command line and in files that `Fitted.load` reads.
    """

    name: ClassVar[str]
    fitted: ClassVar[type[Fitted]]

    def __post_init__(self) -> None:
        numbers = _number_fields(self)
        for name, kind in numbers.items():
            if kind is int:
                check_whole_number(name, getattr(self, name), 1, MAX_COUNT)
        for name, limits in OPTION_LIMITS.items():
            if name in numbers:
                check_number(name, getattr(self, name), **limits)
        for name, kind in numbers.items():  # convert NumPy numbers to int and float, and int to float
            object.__setattr__(self, name, kind(getattr(self, name)))

    @suggest_keywords
    def fit(
        self,
        data: Any,
        split: LabeledNodes,
        seed: int | Seeds = 0,
        *,
        device: torch.device | str = "cpu",
        directed: Directed = "refuse",
        num_classes: int | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> F:
        """Train on a graph.

        During training torch uses one thread. Compiled kernels use as many threads as torch was set to before.

        Parameters
        ----------
        data
            A torch_geometric Data, or anything with ``x``, ``edge_index`` and ``y``. Self-loops and repeated edges are
            ignored, ``edge_attr`` is not used, and ``edge_weight`` raises a ValueError. Labels of nodes in neither mask
            may be -1. They are not used, except that they count for the number of classes.
        split
            An `ew.Split`, or anything with the masks ``train`` and ``val``.
        seed
            One seed, or `Seeds` for initialization, dropout and sampling. On a CPU, results are bitwise reproducible.
        device
            Device to train on.
        directed
            How to treat edges that are listed in one direction only: "refuse" raises a ValueError, "undirected" adds
            the other direction.
        num_classes
            Number of classes, if it is larger than the largest label in ``data.y`` plus 1.
        on_epoch
            Callback that is called with an `Epoch` after each epoch, for example to show progress.

        Returns
        -------
        Fitted
            The fitted model, with ``posterior()`` and ``history``.

        Raises
        ------
        ValueError
            If the graph, the split or an option is invalid.
        FloatingPointError
            If training diverges.
        """
        task = prepare_task(data, split, directed=directed, num_classes=num_classes, device=device)
        try:
            return self.fit_task(task, seed, on_epoch)
        finally:
            task.training_loops.clear()  # they refer to the task, which would end its threads later

    def fit_task(self, task: Task, seed: int | Seeds = 0, on_epoch: OnEpoch | None = None) -> F:
        """Train on a graph and split that were validated before.

        Fits on the same task share what they have in common, such as the pretraining of GMNN and EPFGNN. The result is
        that of `fit`, to the last bit.
        """
        seeds, log = as_seeds(seed), Log(on_epoch)
        with (
            one_thread(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(task.device.type, enabled=False),
        ):
            return replace(self._train(task, seeds, log), used=task.labels >= 0)

    def hyperparameters(self) -> dict[str, Any]:
        """Return all options as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_hyperparameters(cls, options: dict[str, Any]) -> Self:
        """Return the model with options that `hyperparameters` returned."""
        return cls(**options)

    def with_weight_decay(self, weight_decay: float) -> Self:
        """Return the same model with another weight decay."""
        if "weight_decay" not in {option.name for option in fields(self)}:
            raise ValueError(
                f"Expected a model with the option weight_decay, but {type(self).__name__} has none. Add it, or a "
                "method with_weight_decay(weight_decay) that returns the model."
            )
        return replace(self, weight_decay=weight_decay)  # type: ignore[call-arg]  # an option of most models

    @abstractmethod
    def _train(self, task: Task, seeds: Seeds, log: Log) -> F:
        """Train on a validated task."""


@dataclass(frozen=True, kw_only=True)
class Classifier(Model[FittedClassifier]):
    """Base class of models with a forward pass, trained by cross-entropy with early stopping.

    A subclass has a ``name``, `initial_weights`, `forward` and its own options. ``hops`` is the number of propagation
    or attention steps of the forward pass. If it is set, rows that no training or validation node needs are skipped.
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    max_epochs: int = 2000
    patience: int = 100

    hops: ClassVar[int | None] = None
    fitted = FittedClassifier

    @abstractmethod
    def initial_weights(self, num_features: int, num_classes: int, draw: Initializer) -> Weights:
        """Draw the initial weights."""

    @abstractmethod
    def forward(self, weights: Weights, graph: GraphPass) -> Float[Tensor, "nodes classes"]:
        """Compute the logits."""

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        weights = self.train_weights(task, seeds, "training", log)
        logits = check_logits(self.compute_logits(task, weights, task.num_classes), self.learning_rate)
        return FittedClassifier(self, weights, log.history(), logits)

    def compute_logits(self, graph: Graph, weights: Weights, num_classes: int) -> Float[Tensor, "nodes classes"]:
        """Compute the logits of all nodes, without dropout."""
        return all_logits(self.forward, graph, graph.x, weights)

    def sample_logits(
        self, graph: Graph, weights: Weights, num_classes: int, seeds: Sequence[int]
    ) -> Float[Tensor, "samples nodes classes"]:
        """Compute the logits of all nodes with dropout, one sample per seed."""
        masks = [Dropout(self.dropout, dropout_key(seed, f"{self.name} sample")) for seed in seeds]
        return torch.stack([all_logits(self.forward, graph, graph.x, weights, dropout) for dropout in masks])

    def train_weights(self, task: Task, seeds: Seeds, phase: str, log: Log) -> Weights:
        """Train on the labels of the training nodes, and return the weights of the best epoch.

        A training with the same options and seeds that stopped earlier on this task is continued.
        """
        options = repr(replace(self, max_epochs=1, patience=1))  # everything but the limits
        key = type(self), options, seeds.initialization, seeds.dropout
        limits = Phase(phase, self.max_epochs, self.patience)
        return continue_training(task, key, lambda: self._training_loop(task, seeds), limits, log)

    def _training_loop(self, task: Task, seeds: Seeds) -> TrainingLoop:
        draw = Initializer(generator(seeds.initialization, self.name), task.dtype, task.device)
        weights = self.initial_weights(task.num_features, task.num_classes, draw)
        rows = TrainingRows(task, task.x, task.train.cpu().numpy(), self.hops)
        network = TrainingPass(self.forward, rows, Dropout(self.dropout, dropout_key(seeds.dropout, self.name)))
        labels = task.labels[task.train]
        return TrainingLoop(
            trainable_copies(weights),
            network,
            lambda logits: cross_entropy(logits, labels),
            task.labels[task.val],
            self.adam,
        )

    def adam(self, weights: Weights) -> torch.optim.Adam:
        """Return Adam with the learning rate and weight decay of this model."""
        return adam(weights, self.learning_rate, self.weight_decay)


def known_models() -> dict[str, type[Model[Any]]]:
    """Return the models of this package that have defaults for all options, by name, in alphabetical order.

    There is no registry: every module of the package is imported, and its models are collected.
    """
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"edgewise.models.{module.name}")
    own = [
        model
        for path, model in defined_models().items()
        if path.startswith("edgewise.models.") and _has_defaults(model)
    ]
    return {model.name: model for model in sorted(own, key=lambda model: model.name)}


def defined_models() -> dict[str, type[Model[Any]]]:
    """Return all models defined so far, in any module, by import path. A redefinition replaces the earlier class."""
    models = Model.__subclasses__()
    for model in models:  # the list grows while it is traversed
        models += model.__subclasses__()
    return {f"{model.__module__}.{model.__qualname__}": model for model in models if "name" in vars(model)}


def _has_defaults(model: type[Model[Any]]) -> bool:
    """Return whether a model can be made without arguments."""
    return all(option.default is not MISSING or option.default_factory is not MISSING for option in fields(model))


def _number_fields(model: Model[Any]) -> dict[str, type]:
    """Return the type of each int or float option. Under postponed annotations, types are strings."""
    try:
        hints = get_type_hints(type(model))
    except NameError:  # an option has a type that is only imported for type checkers
        hints = {
            option.name: {"int": int, "float": float}.get(str(option.type), option.type) for option in fields(model)
        }
    return {option.name: hints[option.name] for option in fields(model) if hints[option.name] in (int, float)}
