"""Base classes of calibrators. A calibrator is a frozen dataclass of options. Its ``fit`` returns a `Calibrated`."""

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
from jaxtyping import Bool, Float
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
from edgewise.representation import changed_options, shorten
from edgewise.small_samples import MIN_SAMPLE, check_sample

Parameters = Mapping[str, float | Tensor]  # by name
Learned = Mapping[str, Tensor]  # parameters as tensors; numbers are float64 scalars
FORMAT = "edgewise calibrated 1"
MIN_NODES_FOR_TEMPERATURE = 50  # validation nodes: the standard error of the temperature is then about 20%
MIN_NODES_PER_CLASS = 10  # validation nodes, for calibrators that learn parameters of each class


class Calibrator(ABC):
    """Base class of all calibrators.

    A subclass is a frozen dataclass of options with two methods: `learn_parameters`, and `calibrate`, which applies
    the parameters to any predictions. A new calibrator of node marginals should subclass `NodeCalibrator`.

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
        """Fit the calibrator to a model's predictions on a graph.

        Parameters
        ----------
        logits
            Logits (nodes, classes), or a fitted model with ``logits``. A posterior, or a model that only has
            ``posterior()``, is calibrated through its log node marginals. Wrap probabilities with `ew.wrap`.
        data
            A torch_geometric Data, or anything with ``y``. Calibrators that use the graph need ``edge_index``.
            `StructuredCalibrator` also uses features ``x``, if there are any.
        split
            An `ew.Split`, or anything with a mask ``val`` of validation nodes. A mask ``train`` is optional and must
            not overlap with it. Only `StructuredCalibrator` uses labels of training nodes, and no calibrator uses
            labels of other nodes.

        Returns
        -------
        Calibrated
            The calibrated ``posterior()``, and the parameters, which can be applied to other logits.

        Warns
        -----
        SmallSampleWarning
            If there are few validation nodes, see `min_val_nodes`, or few labeled edges for `StructuredCalibrator`.

        Raises
        ------
        ValueError
            If logits, labels or masks are invalid, or if edges are needed and missing.
        """
        with torch.inference_mode(False), torch.enable_grad():
            inputs = calibration_input(as_logits(logits), data, split, self.uses_training_labels)
            learned = as_tensors(self.learn_parameters(inputs))
            used = inputs.train | inputs.val
            of_model = getattr(logits, "used", None)
            if isinstance(of_model, Tensor) and of_model.shape == used.shape:
                used = used | of_model.to(used.device)
            calibrated = Calibrated(self, learned, self.calibrate(learned, inputs.predictions), used)
            self._check_sample(inputs)
            return calibrated

    def min_val_nodes(self, num_classes: int) -> int:
        """Return the number of validation nodes below which `fit` warns that the result rests on few labels."""
        return MIN_SAMPLE

    def _check_sample(self, inputs: CalibrationInput) -> None:
        least, count = self.min_val_nodes(inputs.val_logits.shape[1]), len(inputs.val_labels)
        advice = f"Label more, if possible {least:,} or more"
        if count >= MIN_NODES_FOR_TEMPERATURE:
            advice += ", or use ew.TemperatureScaling(), which has one parameter"
        check_sample(f"{type(self).__name__} was fitted to", count, "validation nodes", f"{advice}.", least)

    @abstractmethod
    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Return all parameters that `calibrate` needs."""

    @abstractmethod
    def calibrate(self, learned: Learned, predictions: Predictions) -> Posterior:
        """Return the calibrated posterior. No label may have probability 0."""

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return the entries of `Calibrated.parameters`; by default all learned parameters."""
        return learned


class NodeCalibrator(Calibrator):
    """Base class of calibrators of node marginals. The joint of two nodes is the product of their marginals."""

    @abstractmethod
    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute the calibrated log node marginals."""

    def calibrate(self, learned: Learned, predictions: Predictions) -> IndependentPosterior:
        """Return a posterior of independent nodes, with probabilities of at least the smallest normal number."""
        node = self.log_marginals(learned, predictions).softmax(-1).to(predictions.device, predictions.dtype)
        return IndependentPosterior(node.clamp(min=torch.finfo(predictions.dtype).tiny))


def as_tensors(parameters: Parameters) -> dict[str, Tensor]:
    """Convert numbers to float64 scalar tensors."""
    return {
        name: value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        for name, value in parameters.items()
    }


def clamp_log_probs(log_p: Float[Tensor, "nodes classes"], dtype: torch.dtype) -> Float[Tensor, "nodes classes"]:
    """Clamp log-probabilities to values whose exponential is a normal number of the dtype: -87.3 in float32.

    Logits divided by a small temperature can differ by hundreds of nats. Their softmax would underflow to 0, and the
    NLL of such a label would be infinite.
    """
    return log_p.clamp(min=(1 - 1e-5) * math.log(torch.finfo(dtype).tiny))


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated:
    """A fitted calibrator with its calibrated predictions.

    Attributes
    ----------
    calibrator
        The calibrator with its options.
    learned
        All parameters that `apply` needs, as tensors. `parameters` is the readable form.
    used
        The training and validation nodes of the calibrator and of its model. Conformal sets warn if they are calibrated
        with these nodes.
    """

    calibrator: Calibrator
    learned: Learned
    _posterior: Posterior
    used: Bool[Tensor, " nodes"] | None = None

    def posterior(self) -> Posterior:
        """Return the calibrated posterior of all nodes."""
        return self._posterior

    @property
    def parameters(self) -> dict[str, float | Tensor]:
        """Learned numbers and tensors by name, such as "temperature"."""
        shown = as_tensors(self.calibrator.summarize_parameters(self.learned))
        return {name: value if value.ndim else float(value) for name, value in shown.items()}

    def apply(self, logits: LogitsLike, data: Any = None) -> Posterior:
        """Calibrate other logits with the same parameters. The logits of `fit` give bitwise the same posterior.

        Parameters
        ----------
        logits
            Logits of the same number of classes, or anything else that `fit` accepts.
        data
            The graph of the logits: anything with ``edge_index``. Only calibrators that use the graph need it.
        """
        with torch.inference_mode(False), torch.no_grad():
            checked = as_logits(logits)
            classes = self._posterior.num_classes
            if checked.shape[1] != classes:
                raise ValueError(
                    f"Expected logits of {classes} classes, as in the fit of {type(self.calibrator).__name__}, but got "
                    f"{checked.shape[1]} columns. Fit the calibrator to these logits."
                )
            return self.calibrator.calibrate(self.learned, predictions_on(checked, data))

    def save(self, path: Path | str) -> None:
        """Write options, parameters and posterior to a safetensors file."""
        tensors = {f"learned/{name}": tensor for name, tensor in self.learned.items()}
        tensors |= {f"posterior/{name}": tensor for name, tensor in self._posterior.tensors().items()}
        tensors |= {} if self.used is None else {"used": self.used}
        metadata = {
            "format": FORMAT,
            "calibrator": json.dumps(_to_dict(self.calibrator)),
            "posterior": type(self._posterior).__name__,
            "tensors": json.dumps({name: list(tensor.shape) for name, tensor in tensors.items()}),
        }
        write_tensors(path, tensors, metadata)

    @staticmethod
    def load(path: Path | str) -> "Calibrated":
        """Read a file written by `save`, onto the CPU. Import the module that defines a custom calibrator first."""
        tensors, metadata = read_tensors(path, "fitted calibrator", "Calibrated.save", {"format": [FORMAT]})
        try:
            saved = json.loads(metadata["tensors"])
            if saved != {name: list(tensor.shape) for name, tensor in tensors.items()}:
                raise ValueError(f"its tensors do not have the saved shapes {metadata['tensors'][:200]}")
            tensors = {name: tensors[name] for name in saved}  # in the saved order
            make_posterior: Callable[..., Posterior] = POSTERIORS[metadata["posterior"]]
            posterior = make_posterior(**select_prefix("posterior", tensors))
            calibrator = _from_dict(json.loads(metadata["calibrator"]))
            return Calibrated(calibrator, select_prefix("learned", tensors), posterior, tensors.get("used"))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"Expected a complete fitted calibrator in {path}, but reading it failed: {error}."
            ) from error

    def __repr__(self) -> str:
        shown = [
            f"{name}={list(value.shape)}" if isinstance(value, Tensor) else f"{name}={value:.4g}"
            for name, value in self.parameters.items()
        ]
        return shorten(f"Calibrated({', '.join([changed_options(self.calibrator), *shown, repr(self._posterior)])})")


POSTERIORS: Mapping[str, type[Posterior]] = {kind.__name__: kind for kind in (IndependentPosterior, PairwisePosterior)}


def known_calibrators() -> dict[str, type[Calibrator]]:
    """Return the calibrators of this package by name, in alphabetical order.

    There is no registry: every module of the package is imported, and its calibrators are collected.
    """
    own = (kind for kind in defined_calibrators().values() if kind.__module__.startswith("edgewise.calibration."))
    return {kind.name: kind for kind in sorted(own, key=lambda kind: kind.name)}


def defined_calibrators() -> dict[str, type[Calibrator]]:
    """Return all calibrators defined so far, in any module, by name."""
    package = import_module("edgewise.calibration")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    kinds: list[type[Calibrator]] = Calibrator.__subclasses__()
    for kind in kinds:  # the list grows while it is traversed
        kinds += kind.__subclasses__()
    by_name: dict[str, type[Calibrator]] = {}
    for kind in (kind for kind in kinds if "name" in vars(kind)):
        other = by_name.setdefault(kind.name, kind)
        if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ValueError(f"Expected one calibrator named {kind.name!r}, but got {other} and {kind}. Rename one.")
        by_name[kind.name] = kind  # a redefinition replaces the earlier class
    return by_name


def _to_dict(calibrator: Calibrator) -> dict[str, Any]:
    """Convert a calibrator to its name and options; an option may be a calibrator too."""
    options = {field.name: getattr(calibrator, field.name) for field in fields(calibrator)}  # type: ignore[arg-type]
    converted = {name: _to_dict(value) if isinstance(value, Calibrator) else value for name, value in options.items()}
    return {"name": calibrator.name, "options": converted}


def _from_dict(description: Mapping[str, Any]) -> Calibrator:
    """Create the calibrator from its name and options."""
    defined = defined_calibrators()
    if description["name"] not in defined:
        raise ValueError(
            f"its calibrator {description['name']!r} is not one of {', '.join(defined)}. Import the module that "
            "defines it before loading, or update edgewise"
        )
    options = {
        name: _from_dict(value) if isinstance(value, Mapping) else value
        for name, value in description["options"].items()
    }
    return defined[description["name"]](**options)


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix/``, with this prefix removed."""
    return {
        name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}/")
    }
