"""What training leaves behind: weights, a history, and what the model believes about its graph."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.kernels.adam import Weights
from edgewise.models.graph_pass import all_logits
from edgewise.models.task import Directed, prepare_graph
from edgewise.models.training import History, one_thread
from edgewise.posterior import IndependentPosterior, Posterior

if TYPE_CHECKING:
    from edgewise.models.model import Model

FORMAT = "edgewise fitted 1"


@dataclass(frozen=True, eq=False)
class Fitted(ABC):
    """A trained model. Nothing of it changes; `posterior` is what it believes about the graph it was trained on.

    Attributes
    ----------
    model
        The hyper-parameters it was trained with.
    weights
        What was learned, by name.
    history
        How training went.

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

    parts: ClassVar[tuple[str, ...]]  # the fields that hold tensors besides the weights

    @abstractmethod
    def posterior(self) -> Posterior:
        """Return what the model believes about the labels of all nodes."""

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return the predictions that a sweep scores, by name; each is computed when it is called."""
        return {"product": self.posterior}

    def save(self, path: Path | str) -> None:
        """Write hyper-parameters, weights, history and beliefs to a safetensors file."""
        tensors = {f"weights/{name}": weight for name, weight in self.weights.items()}
        tensors |= {name: getattr(self, name) for name in self.parts}
        metadata = {
            "format": FORMAT,
            "model": self.model.name,
            "tensors": json.dumps({name: list(tensor.shape) for name, tensor in sorted(tensors.items())}),
            "hyperparameters": json.dumps(dataclasses.asdict(self.model)),
            "history": json.dumps(dataclasses.asdict(self.history)),
        }
        write_tensors(path, tensors, metadata)

    @staticmethod
    def load(path: Path | str) -> "Fitted":
        """Read what `save` wrote, onto the CPU; a model that is not of edgewise has to be imported before."""
        tensors, metadata = read_tensors(path, "fitted model", "Fitted.save", {"format": [FORMAT]})
        return _rebuild(_find_model(metadata.get("model", ""), path), metadata, tensors, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model}, epochs={self.history.epochs}, seconds={self.history.seconds:.2f})"


def _find_model(name: str, path: Path | str) -> "type[Model[Any]]":
    """Find the model that a file names among all that are defined."""
    from edgewise.models.model import defined_models, known_models

    known_models()  # which imports all of this package
    known = defined_models()
    found = {where: kind for where, kind in known.items() if kind.name == name}
    if not found:
        names = ", ".join(kind.name for kind in known.values())
        raise ValueError(
            f"Expected a fitted model of {names}, but {path} is of {name[:40]!r}. Import the module that defines it "
            "before you load it, or update edgewise."
        )
    if len(found) > 1:
        raise ValueError(f"Expected one model named {name!r}, but got {' and '.join(found)}. Rename one of them.")
    return next(iter(found.values()))


def _rebuild(
    kind: "type[Model[Any]]", metadata: Mapping[str, str], tensors: Mapping[str, Tensor], path: Path | str
) -> Fitted:
    weights = {name.removeprefix("weights/"): tensor for name, tensor in tensors.items() if name.startswith("weights/")}
    parts = {name: tensor for name, tensor in tensors.items() if not name.startswith("weights/")}
    try:
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        saved = json.loads(metadata["tensors"])
        if differing := sorted(name for name in saved | shapes if saved.get(name) != shapes.get(name)):
            raise ValueError(f"its tensors {differing} are not as they were saved")
        model = kind(**json.loads(metadata["hyperparameters"]))
        read = json.loads(metadata["history"])
        history = History(**read | {"phases": [tuple(phase) for phase in read["phases"]]})
        return kind.fitted(model=model, weights=weights, history=history, **parts)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected a whole fitted {metadata['model']} in {path}, but it cannot be read: {error}."
        ) from error


@dataclass(frozen=True, eq=False, repr=False)
class FittedClassifier(Fitted):
    """A trained classifier of single nodes: the joint of two nodes is the product of what it says of each.

    Attributes
    ----------
    logits
        What it says of each node, (N, C), before softmax.
    """

    logits: Float[Tensor, "nodes classes"]

    parts = ("logits",)

    def posterior(self) -> IndependentPosterior:
        """Return softmax(logits) for each node, independent of the others."""
        return IndependentPosterior(self.logits.softmax(-1))

    def apply(self, data: Any, *, directed: Directed = "refuse") -> "FittedClassifier":
        """Return the same weights with the logits of another graph, or of one that has changed.

        Parameters
        ----------
        data
            A torch_geometric Data, or anything with ``x``, of as many features as in training, and ``edge_index``.
        directed
            What to do with edges that are listed in one direction, as in ``fit``.

        Examples
        --------
        >>> import edgewise as ew
        >>> import torch
        >>> data = ew.load_dataset("cora")
        >>> fitted = ew.GCN(max_epochs=2).fit(data, ew.make_splits(data.y)[0])
        >>> fitted.apply(data.subgraph(torch.arange(100))).posterior()
        IndependentPosterior(nodes=100, classes=7)
        """
        weight = next(iter(self.weights.values()))
        graph = prepare_graph(data, directed=directed, dtype=weight.dtype, device=weight.device)
        model: Any = self.model  # a Classifier
        with one_thread():
            return replace(self, logits=all_logits(model.forward, graph, graph.x, self.weights))
