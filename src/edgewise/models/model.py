"""A model is its hyper-parameters: `fit` trains, changes nothing, and returns a fitted value."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.kernels.adam import Adam, Weights
from edgewise.kernels.dropout import Dropout
from edgewise.models.fitted import Fitted, FittedClassifier
from edgewise.models.graph_pass import GraphPass, Network, TrainingRows, all_logits
from edgewise.models.seeds import Initializer, Seeds, as_seeds, dropout_key, generator
from edgewise.models.task import Directed, LabeledNodes, Task, prepare_task
from edgewise.models.training import Log, OnEpoch, Phase, check_logits, one_thread, train
from edgewise.validation import check_number, check_whole_number

MAX_COUNT = 1 << 20  # of units, epochs, rounds, heads or samples

F = TypeVar("F", bound=Fitted)


@dataclass(frozen=True, kw_only=True)
class Model(ABC, Generic[F]):
    """What all models have in common.

    A subclass has a ``name`` of its own, by which the command line knows it and `Fitted.load` finds it, wherever it is
    defined.
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4

    name: ClassVar[str]
    fitted: ClassVar[type[Fitted]]

    def __post_init__(self) -> None:
        numbers = _number_fields(self)
        for name, kind in numbers.items():
            if kind is int:
                check_whole_number(name, getattr(self, name), 1, MAX_COUNT)
        check_number("dropout", self.dropout, least=0, below=1)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)
        for name, kind in numbers.items():  # NumPy's numbers, and whole ones where others may be, become Python's own
            object.__setattr__(self, name, kind(getattr(self, name)))

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
        """Train on a graph. While it runs, torch has one thread; long loops of its own use as many as torch had.

        Parameters
        ----------
        data
            A torch_geometric Data, or anything with ``x``, ``edge_index`` and ``y``. Self-loops and repeated edges
            count as if they were not there, ``edge_attr`` is not used, and a graph with ``edge_weight`` is refused.
            Nothing is learned from labels of nodes that neither train nor validate; they may be -1, and if not, they
            count towards the number of classes.
        split
            Who trains and who validates: an `ew.Split`, or anything with the masks ``train`` and ``val``.
        seed
            One for everything, or `Seeds` of initialization, dropout and sampling. On a CPU the same seeds give the
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
        task = prepare_task(data, split, directed=directed, num_classes=num_classes, device=device)
        with (
            one_thread(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(task.device.type, enabled=False),
        ):
            return self._train(task, seeds, log)

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate, self.weight_decay)

    @abstractmethod
    def _train(self, task: Task, seeds: Seeds, log: Log) -> F:
        """Train on what has been checked."""


@dataclass(frozen=True, kw_only=True)
class Classifier(Model[FittedClassifier]):
    """A model that is a forward pass: it is trained by cross-entropy on training nodes, and stopped by validation.

    A subclass has options of its own, a ``name``, `initial_weights` and `forward`. With ``hops``, how many steps the
    forward pass looks, rows that no training or validation node needs are not computed.
    """

    max_epochs: int = 2000
    patience: int = 100

    hops: ClassVar[int | None] = None
    fitted = FittedClassifier

    @abstractmethod
    def initial_weights(self, num_features: int, num_classes: int, draw: Initializer) -> Weights:
        """Draw the weights that training begins with."""

    @abstractmethod
    def forward(self, weights: Weights, graph: GraphPass) -> Float[Tensor, "nodes classes"]:
        """Compute logits."""

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        weights = self.train_weights(task, seeds, "training", log)
        logits = all_logits(self.forward, task, task.x, weights)
        return FittedClassifier(self, weights, log.history(), check_logits(logits, self.learning_rate))

    def train_weights(self, task: Task, seeds: Seeds, phase: str, log: Log) -> Weights:
        """Train on the labels of training nodes, and return the weights that were kept."""
        draw = Initializer(generator(seeds.initialization, self.name), task.dtype, task.device)
        weights = self.initial_weights(task.num_features, task.num_classes, draw)
        rows = TrainingRows(task, task.x, task.train.cpu().numpy(), self.hops)
        network = Network(self.forward, rows, Dropout(self.dropout, dropout_key(seeds.dropout, self.name)))
        labels = task.labels[task.train]
        return train(
            weights,
            network,
            lambda logits: cross_entropy(logits, labels),
            task.labels[task.val],
            Phase(phase, self.max_epochs, self.patience),
            self._adam,
            log,
        )


def known_models() -> dict[str, type[Model[Any]]]:
    """Return the models of this package by their names on the command line, in the order of these names.

    A model needs no entry in a list: every module of the package is imported, and its models are found there.
    """
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"edgewise.models.{module.name}")
    own = [kind for path, kind in defined_models().items() if path.startswith("edgewise.models.")]
    return {kind.name: kind for kind in sorted(own, key=lambda kind: kind.name)}


def defined_models() -> dict[str, type[Model[Any]]]:
    """Return all models that are defined by now, wherever, by their paths; of one that is defined twice the last."""
    kinds = Model.__subclasses__()
    for kind in kinds:  # grows by those of subclasses
        kinds += kind.__subclasses__()
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds if "name" in vars(kind)}


def _number_fields(model: Model[Any]) -> dict[str, type]:
    """Return which options are an int or a float. Under postponed annotations their types are strings."""
    try:
        hints = get_type_hints(type(model))
    except NameError:  # of an option whose type is imported for type checkers only
        hints = {
            option.name: {"int": int, "float": float}.get(str(option.type), option.type) for option in fields(model)
        }
    return {option.name: hints[option.name] for option in fields(model) if hints[option.name] in (int, float)}
