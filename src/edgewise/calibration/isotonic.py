"""Isotonic regression: any map that keeps the order, for each event on its own (Zadrozny and Elkan 2002)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.calibration.calibration_input import CalibrationInput, Predictions
from edgewise.calibration.calibrator import Learned, NodeCalibrator, Parameters
from edgewise.validation import ArrayLike, as_tensor

ROUNDING = 1e-4  # a sum of probabilities in float32 may be above 1


@dataclass(frozen=True, eq=False)
class IsotonicMap:
    """A map from probabilities of an event to calibrated ones that never falls: straight between its knots.

    Made by `isotonic_map`; call it with probabilities.
    """

    knots: Float[Tensor, " knots"]
    values: Float[Tensor, " knots"]

    def __call__(self, probability: ArrayLike) -> Float[Tensor, "*shape"]:
        """Map probabilities; below the first knot and above the last the map is constant."""
        p = as_tensor(probability, "probability")
        _check_probabilities(p)
        mapped = np.interp(p.cpu().double().numpy(), self.knots.numpy(), self.values.numpy())
        return torch.from_numpy(np.asarray(mapped)).to(p.device, p.dtype)


def isotonic_map(probability: ArrayLike, happened: ArrayLike) -> IsotonicMap:
    """Fit the map of the lowest squared error to how often an event happened, by pooling adjacent violators.

    So many observations cannot show a probability below 1 / (n + 2) or above 1 less that, and the map stays within.

    Parameters
    ----------
    probability
        P(event) of validation nodes or pairs; for pairs `EdgePredictions.outcomes` gives both.
    happened
        Whether it happened.

    Returns
    -------
    IsotonicMap
        A function of probabilities.

    Examples
    --------
    >>> calibrated = isotonic_map(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([False, True, False, True]))
    >>> calibrated(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    [0.166..., 0.5, 0.833...]
    """
    from scipy.optimize import isotonic_regression

    p, event = _checked(probability, happened)
    knots, place = np.unique(p.cpu().double().numpy(), return_inverse=True)
    count = np.bincount(place)
    frequency = np.bincount(place, weights=event.cpu().double().numpy()) / count
    fitted = isotonic_regression(frequency, weights=count).x
    least = 1 / (len(p) + 2)
    return IsotonicMap(torch.from_numpy(knots), torch.from_numpy(fitted.clip(least, 1 - least)))


@dataclass(frozen=True)
class IsotonicCalibration(NodeCalibrator):
    """One isotonic map for each event "the node has label c", fitted on validation nodes; then rows are normalized.

    Labels that are most likely may change. For an event on edges, such as "both ends have the same label",
    `isotonic_map` makes a map of its own. The parameters of the map of label 0 are "knots_0" and "values_0".

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> IsotonicCalibration().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    name = "isotonic"

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit a map for each label."""
        learned: dict[str, float | Tensor] = {}
        for label, p in enumerate(inputs.val_logits.softmax(-1).unbind(1)):
            fitted = isotonic_map(p, inputs.val_labels == label)
            learned |= {f"knots_{label}": fitted.knots, f"values_{label}": fitted.values}
        return learned

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute the logarithms of the mapped probabilities, normalized."""
        maps = [
            IsotonicMap(learned[f"knots_{label}"], learned[f"values_{label}"])
            for label in range(predictions.logits.shape[1])
        ]
        probabilities = predictions.logits.softmax(-1).unbind(1)
        mapped = torch.stack([of_label(p) for of_label, p in zip(maps, probabilities, strict=True)], dim=1)
        return (mapped / mapped.sum(1, keepdim=True)).log()


def _checked(
    probability: ArrayLike, happened: ArrayLike
) -> tuple[Float[Tensor, " observations"], Bool[Tensor, " observations"]]:
    p, event = as_tensor(probability, "probability"), as_tensor(happened, "happened")
    if p.ndim != 1 or len(p) == 0 or p.shape != event.shape or event.dtype != torch.bool:
        raise ValueError(
            "Expected probabilities of an event and truth values of whether it happened, as many of each, but got "
            f"shape {tuple(p.shape)} of dtype {p.dtype} and shape {tuple(event.shape)} of dtype {event.dtype}."
        )
    _check_probabilities(p)
    return p, event


def _check_probabilities(p: Float[Tensor, "*shape"]) -> None:
    if not p.is_floating_point():
        raise ValueError(f"Expected floating-point probabilities, but got dtype {p.dtype}.")
    good = (p >= -ROUNDING) & (p <= 1 + ROUNDING)  # false for NaN
    if not bool(good.all()):
        raise ValueError(f"Expected probabilities from 0 to 1, but got {float(p[~good][0]):.6g}.")
