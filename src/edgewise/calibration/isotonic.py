"""Isotonic regression: a monotone map of the probability of an event (Zadrozny and Elkan 2002)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.calibration.calibration_input import CalibrationInput, Predictions
from edgewise.calibration.calibrator import MIN_NODES_PER_CLASS, Learned, NodeCalibrator, Parameters
from edgewise.small_samples import MIN_SAMPLE, check_sample
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, as_tensor

PROBABILITY_TOLERANCE = 1e-4  # for rounding: a sum of float32 probabilities can exceed 1


@dataclass(frozen=True, eq=False)
class IsotonicMap:
    """A non-decreasing, piecewise linear map from probabilities to calibrated probabilities, see `isotonic_map`."""

    knots: Float[Tensor, " knots"]
    values: Float[Tensor, " knots"]

    def __call__(self, probability: ArrayLike) -> Float[Tensor, "*shape"]:
        """Map probabilities. The map is constant below the first knot and above the last one."""
        p = as_tensor(probability, "probability")
        _check_probabilities(p)
        mapped = np.interp(p.cpu().double().numpy(), self.knots.numpy(), self.values.numpy())
        return torch.from_numpy(np.asarray(mapped)).to(p.device, p.dtype)


def isotonic_map(probability: ArrayLike, happened: ArrayLike) -> IsotonicMap:
    """Fit the non-decreasing map with the lowest squared error to the outcomes of an event.

    The map is fitted with the pool adjacent violators algorithm. For n observations, which cannot support more extreme
    probabilities, its values are clipped to [1 / (n + 2), 1 - 1 / (n + 2)].

    Parameters
    ----------
    probability
        Predicted P(event) of n validation nodes or pairs. For pairs, `EdgePredictions.outcomes` returns both arguments.
    happened
        Whether the event occurred, as n Booleans.

    Returns
    -------
    IsotonicMap
        A function of probabilities.

    Warns
    -----
    SmallSampleWarning
        If there are fewer than 100 observations.

    Examples
    --------
    >>> p, happened = np.repeat([0.1, 0.4, 0.6, 0.9], 25), np.repeat([False, True, False, True], 25)
    >>> isotonic_map(p, happened)(np.array([0.05, 0.5, 0.95])).tolist()
    [0.009..., 0.5, 0.990...]
    """
    p, outcomes = _check_observations(probability, happened)
    fitted = _fit_isotonic(p, outcomes)
    advice = f"Use {MIN_SAMPLE} or more, or calibrate nodes instead."
    check_sample("The isotonic map was fitted to", len(p), "observations", advice)
    return fitted


def _fit_isotonic(p: Float[Tensor, " observations"], outcomes: Bool[Tensor, " observations"]) -> IsotonicMap:
    from scipy.optimize import isotonic_regression

    knots, position = np.unique(p.cpu().double().numpy(), return_inverse=True)
    count = np.bincount(position)
    frequency = np.bincount(position, weights=outcomes.cpu().double().numpy()) / count
    fitted = isotonic_regression(frequency, weights=count).x
    lowest = 1 / (len(p) + 2)
    return IsotonicMap(torch.from_numpy(knots), torch.from_numpy(fitted.clip(lowest, 1 - lowest)))


@suggest_keywords
@dataclass(frozen=True)
class IsotonicCalibration(NodeCalibrator):
    """One isotonic map per class c for the event "the node has label c", followed by normalization of each row.

    The predicted label of a node can change. For an event on edges, such as "both ends have the same label", use
    `isotonic_map`. The parameters of the map of class 0 are "knots_0" and "values_0".

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

    def min_val_nodes(self, num_classes: int) -> int:
        """Return 100, or ten per class, because each class has its own map."""
        return max(MIN_SAMPLE, MIN_NODES_PER_CLASS * num_classes)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit one map per class."""
        learned: dict[str, float | Tensor] = {}
        for label, p in enumerate(inputs.val_logits.softmax(-1).unbind(1)):
            fitted = _fit_isotonic(p, inputs.val_labels == label)
            learned |= {f"knots_{label}": fitted.knots, f"values_{label}": fitted.values}
        return learned

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute the log of the mapped and normalized probabilities."""
        maps = [
            IsotonicMap(learned[f"knots_{label}"], learned[f"values_{label}"])
            for label in range(predictions.logits.shape[1])
        ]
        probabilities = predictions.logits.softmax(-1).unbind(1)
        mapped = torch.stack([apply(p) for apply, p in zip(maps, probabilities, strict=True)], dim=1)
        return (mapped / mapped.sum(1, keepdim=True)).log()


def _check_observations(
    probability: ArrayLike, happened: ArrayLike
) -> tuple[Float[Tensor, " observations"], Bool[Tensor, " observations"]]:
    p, outcomes = as_tensor(probability, "probability"), as_tensor(happened, "happened")
    if p.ndim != 1 or len(p) == 0 or p.shape != outcomes.shape or outcomes.dtype != torch.bool:
        raise ValueError(
            "Expected n probabilities of an event and n Boolean outcomes, but got shape "
            f"{tuple(p.shape)} of dtype {p.dtype} and shape {tuple(outcomes.shape)} of dtype {outcomes.dtype}."
        )
    _check_probabilities(p)
    return p, outcomes


def _check_probabilities(p: Float[Tensor, "*shape"]) -> None:
    if not p.is_floating_point():
        raise ValueError(f"Expected floating-point probabilities, but got dtype {p.dtype}.")
    valid = (p >= -PROBABILITY_TOLERANCE) & (p <= 1 + PROBABILITY_TOLERANCE)  # false for NaN
    if not bool(valid.all()):
        raise ValueError(f"Expected probabilities between 0 and 1, but got {float(p[~valid][0]):.6g}.")
