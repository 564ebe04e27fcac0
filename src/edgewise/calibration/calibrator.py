"""A calibrator is its options; `fit` learns parameters from labels of validation nodes and returns a `Calibrated`."""

import json
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.calibration.calibration_input import (
    CalibrationInput,
    LogitsLike,
    Predictions,
    ValidationSplit,
    as_logits,
    calibration_input,
    predictions_on,
)
from edgewise.files.tensors import read_tensors, write_tensors
from edgewise.posterior import IndependentPosterior, PairwisePosterior, Posterior

Parameters = Mapping[str, float | Tensor]  # by name
Learned = Mapping[str, Tensor]  # the same, with numbers as float64 tensors of no dimension
FORMAT = "edgewise calibrated 1"


class Calibrator(ABC):
    """What all calibrators have in common: `fit`, which learns from labels of validation nodes.

    A calibrator is its frozen options. It has two functions: `learn_parameters`, and `calibrate`, which applies what
    was learned to any predictions. A new calibrator of single nodes is a `NodeCalibrator`.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = ew.GCN(max_epochs=5).fit(data, split, seed=0)
    >>> calibrated = ew.TemperatureScaling().fit(fitted, data, split)
    >>> calibrated.parameters
    {'temperature': 0...}
    >>> calibrated.apply(2 * fitted.logits)
    IndependentPosterior(nodes=2708, classes=7)
    """

    name: ClassVar[str]  # on the command line and in results
    uses_training_labels: ClassVar[bool] = False

    def fit(self, logits: LogitsLike, data: Any, split: ValidationSplit) -> "Calibrated":
        """Calibrate a model's predictions on a graph.

        Parameters
        ----------
        logits
            Logits (nodes, classes), or a fitted model, whose logits are taken. Of a posterior, or of a model that has
            nothing but one, the node marginals are taken. Probabilities that are no posterior yet become one by
            `ew.wrap`.
        data
            A torch_geometric Data, or anything with ``y`` and, where a calibrator looks at neighbors, ``edge_index``;
            the structured one also looks at features ``x`` if there are any.
        split
            An `ew.Split`, or anything with a mask ``val`` of validation nodes. If there is a mask ``train``, it must
            not overlap. Labels of training nodes are used by the structured calibrator only, labels of other nodes
            never.

        Returns
        -------
        Calibrated
            Has a ``posterior()`` and ``parameters``, can be applied to other logits, and can be saved.

        Raises
        ------
        ValueError
            If logits, labels or masks are not as expected, or if edges are needed and there are none.
        """
        with torch.inference_mode(False), torch.enable_grad():
            inputs = calibration_input(as_logits(logits), data, split, self.uses_training_labels)
            learned = as_tensors(self.learn_parameters(inputs))
            return Calibrated(self, learned, self.calibrate(learned, inputs.predictions))

    @abstractmethod
    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Learn everything that `calibrate` needs."""

    @abstractmethod
    def calibrate(self, learned: Learned, predictions: Predictions) -> Posterior:
        """Apply what was learned. No label has probability 0."""

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Choose and name what a reader wants to see of the parameters; by default all of them."""
        return learned


class NodeCalibrator(Calibrator):
    """A calibrator of single nodes: the joint of two nodes is the product of their marginals."""

    @abstractmethod
    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute the logarithms of calibrated node marginals."""

    def calibrate(self, learned: Learned, predictions: Predictions) -> IndependentPosterior:
        """Make independent nodes of the marginals, none below the smallest normal number of the dtype."""
        node = self.log_marginals(learned, predictions).softmax(-1).to(predictions.device, predictions.dtype)
        return IndependentPosterior(node.clamp(min=torch.finfo(predictions.dtype).tiny))


def as_tensors(parameters: Parameters) -> dict[str, Tensor]:
    """Make float64 tensors of numbers."""
    return {
        name: value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        for name, value in parameters.items()
    }


def floored(log_p: Float[Tensor, "nodes classes"], dtype: torch.dtype) -> Float[Tensor, "nodes classes"]:
    """Raise log-probabilities to where a softmax in the dtype does not underflow: -87.3 in float32.

    Logits that are divided by a small temperature may differ by hundreds of nats. Their softmax would be 0, which says
    that a label is impossible, and has an infinite NLL if it is the true one.
    """
    return log_p.clamp(min=(1 - 1e-5) * math.log(torch.finfo(dtype).tiny))


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated:
    """Calibrated predictions, and the learned parameters that lead to them.

    Attributes
    ----------
    calibrator
        The calibrator that was fitted.
    learned
        All that `apply` needs. `parameters` shows what is worth reading of it.
    """

    calibrator: Calibrator
    learned: Learned
    _posterior: Posterior

    def posterior(self) -> Posterior:
        """Return the calibrated posterior of all nodes."""
        return self._posterior

    @property
    def parameters(self) -> dict[str, float | Tensor]:
        """What was learned: numbers and tensors by name, such as "temperature"."""
        shown = as_tensors(self.calibrator.summarize_parameters(self.learned))
        return {name: value if value.ndim else float(value) for name, value in shown.items()}

    def apply(self, logits: LogitsLike, data: Any = None) -> Posterior:
        """Calibrate other logits by the same parameters; of the logits of `fit` it gives the same bits.

        Parameters
        ----------
        logits
            Logits of as many classes, or whatever `fit` takes in their place.
        data
            The graph that they are on: anything with ``edge_index``. Only calibrators that look at neighbors need it.
        """
        with torch.inference_mode(False), torch.no_grad():
            checked = as_logits(logits)
            classes = self._posterior.num_classes
            if checked.shape[1] != classes:
                raise ValueError(
                    f"Expected logits of {classes} classes, as those that {type(self.calibrator).__name__} was fitted "
                    f"to, but got {checked.shape[1]} columns. Fit it to these."
                )
            return self.calibrator.calibrate(self.learned, predictions_on(checked, data))

    def save(self, path: Path | str) -> None:
        """Write options, parameters and posterior to a safetensors file."""
        tensors = {f"learned/{name}": tensor for name, tensor in self.learned.items()}
        tensors |= {f"posterior/{name}": tensor for name, tensor in self._posterior.tensors().items()}
        metadata = {
            "format": FORMAT,
            "calibrator": json.dumps(_described(self.calibrator)),
            "posterior": type(self._posterior).__name__,
            "tensors": json.dumps({name: list(tensor.shape) for name, tensor in tensors.items()}),
        }
        write_tensors(path, tensors, metadata)

    @staticmethod
    def load(path: Path | str) -> "Calibrated":
        """Read what `save` wrote, onto the CPU; a calibrator that is not of edgewise has to be imported before."""
        tensors, metadata = read_tensors(path, "fitted calibrator", "Calibrated.save", {"format": [FORMAT]})
        try:
            saved = json.loads(metadata["tensors"])
            if saved != {name: list(tensor.shape) for name, tensor in tensors.items()}:
                raise ValueError(f"its tensors are not as they were saved, {metadata['tensors'][:200]}")
            tensors = {name: tensors[name] for name in saved}  # in their order
            make: Callable[..., Posterior] = POSTERIORS[metadata["posterior"]]
            posterior = make(**below("posterior", tensors))
            return Calibrated(_remade(json.loads(metadata["calibrator"])), below("learned", tensors), posterior)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"Expected a whole fitted calibrator in {path}, but it cannot be read: {error}."
            ) from error

    def __repr__(self) -> str:
        shown = [
            f"{name}={list(value.shape)}" if isinstance(value, Tensor) else f"{name}={value:.4g}"
            for name, value in self.parameters.items()
        ]
        return f"Calibrated({', '.join([repr(self.calibrator), *shown, repr(self._posterior)])})"


POSTERIORS: Mapping[str, type[Posterior]] = {kind.__name__: kind for kind in (IndependentPosterior, PairwisePosterior)}


def known_calibrators() -> dict[str, type[Calibrator]]:
    """Return the calibrators of this package by their names on the command line, in the order of these names.

    A calibrator needs no entry in a list: every module of the package is imported, and its calibrators are found there.
    """
    own = (kind for kind in defined_calibrators().values() if kind.__module__.startswith("edgewise.calibration."))
    return {kind.name: kind for kind in sorted(own, key=lambda kind: kind.name)}


def defined_calibrators() -> dict[str, type[Calibrator]]:
    """Return all calibrators that are defined by now, wherever, by their names."""
    package = import_module("edgewise.calibration")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    kinds: list[type[Calibrator]] = Calibrator.__subclasses__()
    for kind in kinds:  # grows by those of subclasses
        kinds += kind.__subclasses__()
    known: dict[str, type[Calibrator]] = {}
    for kind in (kind for kind in kinds if "name" in vars(kind)):
        other = known.setdefault(kind.name, kind)
        if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ValueError(f"Expected one calibrator named {kind.name!r}, but got {other} and {kind}. Rename one.")
        known[kind.name] = kind  # of one that is defined again, the last
    return known


def _described(calibrator: Calibrator) -> dict[str, Any]:
    """Describe a calibrator by its name and its options; one of these may be a calibrator too."""
    options = {field.name: getattr(calibrator, field.name) for field in fields(calibrator)}  # type: ignore[arg-type]
    written = {name: _described(value) if isinstance(value, Calibrator) else value for name, value in options.items()}
    return {"name": calibrator.name, "options": written}


def _remade(description: Mapping[str, Any]) -> Calibrator:
    """Make the calibrator that was described."""
    known = defined_calibrators()
    if description["name"] not in known:
        raise ValueError(
            f"it is of {description['name']!r}, and known are {', '.join(known)}. Import the module that defines it "
            "before you load it, or update edgewise"
        )
    options = {
        name: _remade(value) if isinstance(value, Mapping) else value for name, value in description["options"].items()
    }
    return known[description["name"]](**options)


def below(folder: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Choose the tensors whose names begin with ``folder/``, and leave that out of their names."""
    return {
        name.removeprefix(f"{folder}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{folder}/")
    }
