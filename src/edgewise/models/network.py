"""Network: any torch module, trained by the same protocol as the models of this package."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from inspect import isfunction, signature
from typing import Any, Self, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from edgewise.models.fitted import FittedClassifier, NotImportedError
from edgewise.models.model import Model
from edgewise.models.seeds import RandomState, Seeds, Weights
from edgewise.models.task import Graph, Task
from edgewise.models.training import Log, Phase, TrainingLoop, adam, check_logits, continue_training
from edgewise.models.wrap import check_module_logits
from edgewise.suggestions import suggest_keywords

MakeModule = Callable[[int, int], Module]


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class Network(Model[FittedClassifier]):
    """Any module that maps (x, edge_index) to logits, trained like `GCN`: cross-entropy, Adam, early stopping.

    The module gets all nodes of the graph: ``x`` (N, features) as a dense tensor, also if the features of the data are
    sparse, and ``edge_index`` with both directions of each edge and without self-loops, as in PyTorch Geometric. It is
    in training mode for the loss, and in evaluation mode for validation and prediction.

    Initial weights and dropout masks are drawn from torch's global generators, which are seeded with the seed of the
    fit. The state of the caller's generators does not change. The generators belong to the process, so of several fits
    in threads only one at a time runs its module. A module that draws random numbers from elsewhere, for example from
    NumPy, is not reproducible.

    To save a fitted network, ``make_module`` must be a class or a function at the top level of a module. Only its name
    is saved. `Fitted.load` looks it up among the imported modules, and imports nothing itself. What a script or
    notebook defines must also be defined where the file is loaded. A function must be annotated to return a
    `torch.nn.Module`, so that a file cannot name any other function.

    Parameters
    ----------
    make_module
        Called with the number of features and of classes, it returns a new module: a class with these two arguments, or
        a function.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    max_epochs
        Maximum number of epochs.
    patience
        Stop after this many epochs without an improvement of validation accuracy or NLL.

    Examples
    --------
    >>> import edgewise as ew
    >>> from torch_geometric.nn import GraphSAGE
    >>> def make_module(num_features, num_classes):
    ...     return GraphSAGE(num_features, 16, num_layers=2, out_channels=num_classes, dropout=0.5)
    >>> data = ew.load_dataset("cora")
    >>> fitted = Network(make_module, max_epochs=2).fit(data, ew.make_splits(data.y)[0], seed=0)
    >>> fitted.posterior(), fitted.history.epochs
    (IndependentPosterior(nodes=2708, classes=7), 2)
    """

    make_module: MakeModule = field(kw_only=False)
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    max_epochs: int = 2000
    patience: int = 100

    name = "network"
    fitted = FittedClassifier

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.make_module, Module) or not callable(self.make_module):
            raise ValueError(
                "Expected a class or function that makes a module from the number of features and of classes, but got "
                f"{type(self.make_module).__name__}. Pass the class itself, such as ew.Network(GraphSAGE)."
            )

    def hyperparameters(self) -> dict[str, Any]:
        """Return all options as values that JSON can hold, ``make_module`` as "module:name"."""
        return asdict(self) | {"make_module": importable_name(self.make_module)}

    @classmethod
    def from_hyperparameters(cls, options: dict[str, Any]) -> Self:
        """Return the model with options that `hyperparameters` returned."""
        return cls(**options | {"make_module": find_imported(options["make_module"])})

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedClassifier:
        weights = self.train_weights(task, seeds, "training", log)
        logits = check_logits(self.compute_logits(task, weights, task.num_classes), self.learning_rate)
        return FittedClassifier(self, weights, log.history(), logits)

    def train_weights(self, task: Task, seeds: Seeds, phase: str, log: Log) -> Weights:
        """Train on the labels of the training nodes, and return parameters and buffers of the best epoch."""
        key = replace(self, max_epochs=1, patience=1), seeds.initialization, seeds.dropout  # everything but the limits
        limits = Phase(phase, self.max_epochs, self.patience)
        return continue_training(task, key, lambda: self._training_loop(task, seeds), limits, log)

    def compute_logits(self, graph: Graph, weights: Weights, num_classes: int) -> Float[Tensor, "nodes classes"]:
        """Compute the logits of all nodes, in evaluation mode."""
        module, random = self._load(graph, weights, num_classes).eval(), RandomState(0, "prediction", graph.device)
        with random.use(), torch.no_grad():
            return _logits(module, graph)

    def sample_logits(
        self, graph: Graph, weights: Weights, num_classes: int, seeds: Sequence[int]
    ) -> Float[Tensor, "samples nodes classes"]:
        """Compute the logits of all nodes with dropout, one sample per seed.

        The module is in training mode, except layers with running statistics, such as batch normalization.
        """
        module = self._load(graph, weights, num_classes).train()
        for layer in module.modules():
            if isinstance(layer, _NormBase):
                layer.eval()
        samples = torch.empty(len(seeds), graph.num_nodes, num_classes, dtype=graph.dtype, device=graph.device)
        for sample, seed in zip(samples, seeds, strict=True):
            with RandomState(seed, "network dropout", graph.device).use(), torch.no_grad():
                sample.copy_(_logits(module, graph))
        return samples

    def _training_loop(self, task: Task, seeds: Seeds) -> TrainingLoop:
        random = RandomState(seeds.initialization, "network", task.device)
        module = self._make(task, task.num_classes, random).eval()
        with random.use(), torch.no_grad():
            _check_output(module, task)  # may also create the parameters of lazy layers
        parameters: Weights = dict(module.named_parameters())
        if not any(parameter.requires_grad for parameter in parameters.values()):
            raise ValueError(
                f"Expected a module with trainable parameters, but {type(module).__name__} has none. If it is trained "
                "already, call ew.wrap(module, data)."
            )
        labels = task.labels[task.train]
        return TrainingLoop(
            _state(module),
            _ModulePass(module, task, seeds),
            lambda logits: cross_entropy(logits, labels),
            task.labels[task.val],
            lambda _: adam(parameters, self.learning_rate, self.weight_decay),
        )

    def _make(self, graph: Graph, num_classes: int, random: RandomState) -> Module:
        with random.use():
            try:
                module = self.make_module(graph.num_features, num_classes)
            except TypeError as error:
                if (reason := reason_against_call(self.make_module, "num_features", "num_classes")) is None:
                    raise
                raise TypeError(
                    "Expected make_module to take (num_features, num_classes), but calling it so fails: "
                    f"{reason}. Define a function with these two arguments that passes the others."
                ) from error
        if not isinstance(module, Module):
            raise ValueError(
                f"Expected make_module to return a torch.nn.Module, but got {type(module).__name__}. Return the module "
                "itself, not its output."
            )
        return module.to(graph.device, graph.dtype)

    def _load(self, graph: Graph, weights: Weights, num_classes: int) -> Module:
        module = self._make(graph, num_classes, RandomState(0, "values that the weights replace", graph.device))
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            trained = _features_of_weights(module, weights, graph.num_features)
            if trained is not None:
                raise ValueError(
                    f"Expected x with as many features as in training, but got {graph.num_features} instead of "
                    f"{trained}. Pass the features that the module was trained on."
                ) from error
            raise ValueError(
                "Expected make_module to return a module with the trained weights, but they differ: "
                f"{' '.join(str(error).split())[:200]}. Use the module as it was defined in training."
            ) from error
        return module


class _ModulePass:
    """The logits of a module whose parameters are trained in place."""

    def __init__(self, module: Module, task: Task, seeds: Seeds):
        self._module, self._task = module, task
        self._random = RandomState(seeds.dropout, "network dropout", task.device)
        self._random_in_validation = RandomState(seeds.dropout, "validation", task.device)
        self._weights: Weights = {}

    def at(self, weights: Weights) -> "_ModulePass":
        """Return the logits for these weights, which are those of the module."""
        self._weights = weights
        return self

    def with_dropout(self) -> Float[Tensor, "train classes"]:
        """Compute the logits of the training nodes, in training mode."""
        with self._random.use():
            logits = _logits(self._module.train(), self._task)
        self._weights.update(_state(self._module))  # the module may have replaced its buffers
        return logits[self._task.train]

    def validation(self) -> Float[Tensor, "val classes"]:
        """Compute the logits of the validation nodes, in evaluation mode."""
        with self._random_in_validation.use():
            return _logits(self._module.eval(), self._task)[self._task.val]


def _state(module: Module) -> Weights:
    """Return the parameters and buffers of a module by name, without copying them."""
    state = module.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"Expected a module whose state_dict() holds tensors, but its entry {name!r} is a "
                f"{type(value).__name__}. Convert it to a tensor in get_extra_state."
            )
    return dict(state)


def _features_of_weights(module: Module, weights: Weights, num_features: int) -> int | None:
    """Return the number of features of the weights, if they differ from the module's in nothing else."""
    made = {name: value for name, value in module.state_dict().items() if not is_lazy(value)}
    if not made.keys() <= weights.keys() or any(value.ndim != weights[name].ndim for name, value in made.items()):
        return None
    sizes = {pair for name, value in made.items() for pair in zip(value.shape, weights[name].shape, strict=True)}
    differing = [(of_module, of_weights) for of_module, of_weights in sizes if of_module != of_weights]
    return differing[0][1] if len(differing) == 1 and differing[0][0] == num_features else None


def _logits(module: Module, graph: Graph) -> Float[Tensor, "nodes classes"]:
    logits: Tensor = module(graph.dense_features, graph.both_directions)
    return logits


def _check_output(module: Module, task: Task) -> None:
    try:
        logits = _logits(module, task)
    except TypeError as error:
        if (reason := reason_against_call(module.forward, "x", "edge_index")) is None:
            raise
        raise TypeError(
            f"Expected a module that maps (x, edge_index) to logits, but calling {type(module).__name__} with these "
            f"fails: {reason}. Wrap it in a module whose forward has these two arguments."
        ) from error
    check_module_logits(logits, task.dense_features)
    if logits.shape[1] != task.num_classes:
        raise ValueError(
            f"Expected the module to return logits of {task.num_classes} classes, but got shape {tuple(logits.shape)}. "
            "Use the second argument of make_module as the number of outputs, or pass num_classes to fit."
        )


def reason_against_call(function: Callable[..., Any], *arguments: str) -> str | None:
    """Return why a function cannot be called with positional arguments of these names, or None if it can."""
    try:
        signature(function).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # a function in C without a signature
        pass
    return None


def importable_name(make_module: MakeModule) -> str:
    """Return "module:name" of a class or function, by which `find_imported` finds it again."""
    place = f"{getattr(make_module, '__module__', '')}:{getattr(make_module, '__qualname__', '')}"
    if _look_up(place) is not make_module:
        raise ValueError(
            f"Expected make_module to be a class or function at the top level of a module, but got {make_module!r}, "
            "which cannot be found by its name. Define it at the top level of a module to save the fitted model."
        )
    _check_makes_modules(make_module, place)
    return place


def find_imported(place: str) -> MakeModule:
    """Return the class or function with a name "module:name", if its module is imported. Nothing is imported."""
    found = _look_up(place)
    if found is None:
        module, _, name = place.partition(":")
        if module == "__main__":
            raise NotImportedError(
                f"Expected {name}, which makes the network and was defined in a script or notebook, but it is not "
                f"defined in this one. Define {name} here as it was there, or import it from a module, then load the "
                "file again."
            )
        raise NotImportedError(
            f"Expected {name} of the module {module}, which makes the network, but it is not imported. Run "
            f"from {module} import {name.partition('.')[0]}, then load the file again."
        )
    _check_makes_modules(found, place)
    made: MakeModule = found
    return made


def _look_up(place: str) -> Any:
    """Return an attribute of an imported module, or None."""
    module, _, path = place.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _check_makes_modules(made_by: Any, place: str) -> None:
    """Raise ValueError unless it is a subclass of Module, or a function annotated to return one."""
    made = get_type_hints(made_by).get("return") if isfunction(made_by) else made_by
    if not (isinstance(made, type) and issubclass(made, Module)):
        raise NotImportedError(
            f"Expected a subclass of torch.nn.Module, or a function annotated to return one, but {place} is neither. "
            "Add the annotation: def make_module(num_features: int, num_classes: int) -> torch.nn.Module."
        )
