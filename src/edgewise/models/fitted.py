"""Fitted models: weights, training history, and predictions on the training graph."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.models.seeds import Weights
from edgewise.models.task import Directed, Graph, prepare_graph
from edgewise.models.training import History, one_thread
from edgewise.posterior import IndependentPosterior, Posterior
from edgewise.representation import changed_options

if TYPE_CHECKING:
    from edgewise.models.model import Model

FORMAT = "edgewise fitted 1"


class NotImportedError(ValueError):
    """A file names a class or function that is not imported, or that does not make modules."""


@dataclass(frozen=True, eq=False)
class Fitted(ABC):
    """A trained model, which is immutable. `posterior` returns its predictions on the graph it was trained on.

    Attributes
    ----------
    model
        The model with its hyperparameters.
    weights
        Learned parameters by name.
    history
        Training curves.
    used
        The training and validation nodes, or None on another graph. Conformal sets warn if they are calibrated with
        these nodes.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> fitted = ew.GCN(max_epochs=2).fit(data, ew.make_splits(data.y)[0])
    >>> fitted.model.hidden, sorted(fitted.weights)
    (64, ['bias_1', 'bias_2', 'weight_1', 'weight_2'])
    """

    model: "Model[Any]"
    weights: Weights
    history: History
    used: Bool[Tensor, " nodes"] | None = field(default=None, kw_only=True)

    parts: ClassVar[tuple[str, ...]]  # names of the tensor attributes besides the weights

    @abstractmethod
    def posterior(self) -> Posterior:
        """Return the posterior of the labels of all nodes."""

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return the predictions that a sweep scores, as functions by name."""
        return {"product": self.posterior}

    def save(self, path: Path | str) -> None:
        """Write hyperparameters, weights, history and predictions to a safetensors file."""
        tensors = {f"weights/{name}": weight for name, weight in self.weights.items()}
        tensors |= {name: getattr(self, name) for name in self.parts}
        tensors |= {} if self.used is None else {"used": self.used}
        metadata = {
            "format": FORMAT,
            "model": self.model.name,
            "tensors": json.dumps({name: list(tensor.shape) for name, tensor in sorted(tensors.items())}),
            "hyperparameters": json.dumps(self.model.hyperparameters()),
            "history": json.dumps(dataclasses.asdict(self.history)),
        }
        write_tensors(path, tensors, metadata)

    @staticmethod
    def load(path: Path | str) -> "Fitted":
        """Read a file written by `save`, onto the CPU. Import the module that defines a custom model first."""
        tensors, metadata = read_tensors(path, "fitted model", "Fitted.save", {"format": [FORMAT]})
        return _rebuild(find_model(metadata.get("model", ""), path), metadata, tensors, path)

    def __repr__(self) -> str:
        curves = f"epochs={self.history.epochs}, seconds={self.history.seconds:.2f}"
        return f"{type(self).__name__}({changed_options(self.model)}, {curves})"

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import fitted_html

        return fitted_html(self)


def find_model(name: str, source: Path | str) -> "type[Model[Any]]":
    """Return the model class with a name that was read from a source, among all that are defined."""
    from edgewise.models.model import defined_models, known_models

    known_models()  # imports all modules of this package
    defined = defined_models()
    matching = {where: model_class for where, model_class in defined.items() if model_class.name == name}
    if not matching:
        names = ", ".join(model_class.name for model_class in defined.values())
        raise ValueError(
            f"Expected a fitted model of a known type ({names}), but {source} holds {name[:40]!r}. Import the module "
            "that defines it before loading, or update edgewise."
        )
    if len(matching) > 1:
        raise ValueError(f"Expected one model named {name!r}, but got {' and '.join(matching)}. Rename one of them.")
    return next(iter(matching.values()))


def graph_like_training(data: Any, directed: Directed, predictions: Tensor) -> Graph:
    """Validate a graph to which a trained model is applied, with the dtype and device of its predictions."""
    return prepare_graph(data, directed=directed, dtype=predictions.dtype, device=predictions.device)


def _rebuild(
    model_class: "type[Model[Any]]", metadata: Mapping[str, str], tensors: Mapping[str, Tensor], path: Path | str
) -> Fitted:
    weights = {name.removeprefix("weights/"): tensor for name, tensor in tensors.items() if name.startswith("weights/")}
    parts = {name: tensor for name, tensor in tensors.items() if not name.startswith("weights/")}
    try:
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        saved = json.loads(metadata["tensors"])
        if differing := sorted(name for name in saved | shapes if saved.get(name) != shapes.get(name)):
            raise ValueError(f"its tensors {differing} do not have the shapes that were saved")
        model = model_class.from_hyperparameters(json.loads(metadata["hyperparameters"]))
        curves = json.loads(metadata["history"])
        history = History(**curves | {"phases": [tuple(phase) for phase in curves["phases"]]})
        return model_class.fitted(model=model, weights=weights, history=history, **parts)
    except NotImportedError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected a complete fitted {metadata['model']} in {path}, but reading it failed: {error}. Save it again."
        ) from error


@dataclass(frozen=True, eq=False, repr=False)
class FittedClassifier(Fitted):
    """A trained node classifier. The joint of two nodes is the product of their marginals.

    Attributes
    ----------
    logits
        Logits (N, C).
    """

    logits: Float[Tensor, "nodes classes"]

    parts = ("logits",)

    def posterior(self) -> IndependentPosterior:
        """Return softmax(logits) as a posterior of independent nodes."""
        return IndependentPosterior(self.logits.softmax(-1))

    def apply(self, data: Any, *, directed: Directed = "refuse") -> "FittedClassifier":
        """Return a fitted model with the same weights and the logits of another graph.

        Parameters
        ----------
        data
            A torch_geometric Data, or anything with ``edge_index`` and ``x``, with the same number of features as in
            training.
        directed
            How to treat edges that are listed in one direction only, as in ``fit``.

        Examples
        --------
        >>> import edgewise as ew
        >>> import torch
        >>> data = ew.load_dataset("cora")
        >>> fitted = ew.GCN(max_epochs=2).fit(data, ew.make_splits(data.y)[0])
        >>> fitted.apply(data.subgraph(torch.arange(100))).posterior()
        IndependentPosterior(nodes=100, classes=7)
        """
        graph = graph_like_training(data, directed, self.logits)
        model: Any = self.model  # with a method compute_logits
        with one_thread():
            return replace(self, logits=model.compute_logits(graph, self.weights, self.logits.shape[1]), used=None)
