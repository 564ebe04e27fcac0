"""Scaled logits: one temperature, one factor per class, a mixture of temperatures, one temperature per node."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibration_input import LBFGS_TOLERANCE, CalibrationInput, Predictions, nll, pseudo_count
from edgewise.calibration.calibrator import Learned, NodeCalibrator, Parameters
from edgewise.models.training import minimize_lbfgs
from edgewise.validation import check_number

MAX_TEMPERATURE = 1e4  # the smallest is its inverse


@dataclass(frozen=True)
class TemperatureScaling(NodeCalibrator):
    """softmax(z / T), with the T of the lowest NLL on validation nodes (Guo et al. 2017).

    The most likely label of a node stays as it is. The parameter is "temperature".

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> TemperatureScaling().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    name = "temperature"

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Find T."""
        return {"temperature": best_temperature(inputs.val_logits, inputs.val_labels)}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(z / T)."""
        return (predictions.logits / learned["temperature"]).log_softmax(-1)


def best_temperature(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Find the T of the lowest NLL: it is convex in 1 / T, so the sign of its slope tells where T is.

    d NLL / d(1/T) = Σ_i E_{softmax(z_i / T)}[z_i - z_i(y_i)]. Where every label has the largest logit there is no
    lowest, until half a label is added (`pseudo_count`). Where labels have on average no more than the mean of their
    node's logits, T is 1e4, the largest that we take. Where no logit differs from another any T is as good: it is 1.
    """
    from scipy.optimize import brentq

    ahead = logits - logits.gather(1, labels[:, None])
    if not bool(ahead.any()):
        return 1.0
    added = pseudo_count(logits, labels) / len(labels)

    def slope(log_inverse: float) -> float:
        expected = ((ahead * math.exp(log_inverse)).softmax(-1) * ahead).sum(-1)
        return float((expected + added * (expected - ahead.mean(-1))).sum())

    limit = math.log(MAX_TEMPERATURE)
    if slope(limit) <= 0:
        return 1 / MAX_TEMPERATURE
    if slope(-limit) >= 0:
        return MAX_TEMPERATURE
    return math.exp(-float(brentq(slope, -limit, limit, xtol=1e-12)))


@dataclass(frozen=True)
class VectorScaling(NodeCalibrator):
    """softmax(a ∘ z / T + b), with the a and b of the lowest NLL on validation nodes, after temperature scaling.

    A few dozen labels cannot tell two numbers for each class apart, so the sum of the NLL is raised by
    (Σ (a - 1)² + Σ b²) / 2σ²: without labels it is temperature scaling. Labels that are most likely may change. The
    parameters are the "temperature" T, the "factor" a / T and the "shift" b, one per class.

    Parameters
    ----------
    prior
        σ. A large one gives plain vector scaling.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> VectorScaling().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    prior: float = 1.0

    name = "vector"

    def __post_init__(self) -> None:
        check_number("prior", self.prior, above=0)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Find T, then a - 1 and b, both from 0."""
        temperature = best_temperature(inputs.val_logits, inputs.val_labels)
        logits, labels, added = _without_mean(inputs.val_logits), inputs.val_labels, inputs.pseudo_count
        classes = logits.shape[1]

        def loss(parameters: Float[Tensor, " twice"]) -> Tensor:
            scaled = logits / temperature * (1 + parameters[:classes]) + parameters[classes:]
            return nll(scaled, labels, added) + parameters.square().sum() / (2 * self.prior**2)

        found = minimize_lbfgs(loss, [0.0] * (2 * classes), tol=LBFGS_TOLERANCE)
        return {"temperature": temperature, "relative_factor": 1 + found[:classes], "shift": found[classes:]}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(a ∘ z / T + b)."""
        scaled = _without_mean(predictions.logits) / learned["temperature"] * learned["relative_factor"]
        return (scaled + learned["shift"]).log_softmax(-1)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Show a / T in the place of a."""
        temperature = learned["temperature"]
        factor = learned["relative_factor"] / temperature
        return {"temperature": temperature, "factor": factor, "shift": learned["shift"]}


def _without_mean(logits: Float[Tensor, "nodes classes"]) -> Float[Tensor, "nodes classes"]:
    """Subtract the mean of each node's logits, so that a ∘ z does not depend on a constant in z."""
    return logits - logits.mean(-1, keepdim=True)


MIN_WEIGHT = 1e-12  # weights are above while they are searched for, so that no label is impossible


@dataclass(frozen=True)
class EnsembleTemperatureScaling(NodeCalibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / C, with T and then the weights of the lowest NLL on validation nodes.

    The most likely label of a node stays as it is. The parameters are the "temperature" and the three "weights" (Zhang
    et al. 2020).

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> EnsembleTemperatureScaling().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    name = "ensemble"

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Find T, then w."""
        temperature = best_temperature(inputs.val_logits, inputs.val_labels)
        log_parts = _log_parts(inputs.val_logits, temperature)
        return {
            "temperature": temperature,
            "weights": mixture_weights(log_parts, inputs.val_labels, inputs.pseudo_count),
        }

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute the logarithms of the mixture."""
        log_weights = learned["weights"].log()[:, None, None]
        return (_log_parts(predictions.logits, learned["temperature"]) + log_weights).logsumexp(0)


def _log_parts(
    logits: Float[Tensor, "nodes classes"], temperature: float | Tensor
) -> Float[Tensor, "parts nodes classes"]:
    """Compute log softmax(z / T), log softmax(z) and log 1 / C."""
    uniform = torch.full_like(logits, -math.log(logits.shape[1]))
    return torch.stack([(logits / temperature).log_softmax(-1), logits.log_softmax(-1), uniform])


def mixture_weights(
    log_parts: Float[Tensor, "parts nodes classes"], labels: Int[Tensor, " nodes"], added: float = 0.0
) -> Float[Tensor, " parts"]:
    """Find the weights w ≥ 0 of the lowest -mean_i log Σ_k w_k p_k(y_i) + Σ_k w_k: there they sum to 1.

    It is convex, and the last digits of small weights do not matter to it, so single parts are tried too. With labels
    ``added`` (`pseudo_count`) the mean is also over all labels of all nodes, which have that weight together.
    """
    from scipy import optimize

    of_labels = log_parts[:, torch.arange(len(labels)), labels]
    shares = torch.ones(len(labels), dtype=of_labels.dtype)
    if added:
        others = log_parts.flatten(1)
        shares = torch.cat([shares, torch.full_like(others[0], added / others.shape[1])])
        of_labels = torch.cat([of_labels, others], dim=1)
    shares = shares / shares.sum()
    p, share = (of_labels - of_labels.amax(0)).exp().numpy(), shares.numpy()
    count = len(p)

    def loss_and_gradient(weights: Any) -> tuple[float, Any]:
        mixed = weights @ p
        return float(weights.sum() - share @ np.log(mixed)), 1 - (p / mixed) @ share

    found = optimize.minimize(
        loss_and_gradient,
        [1 / count] * count,
        jac=True,
        method="L-BFGS-B",
        bounds=[(MIN_WEIGHT, 1.0)] * count,
        tol=1e-14,
    )
    tried = torch.from_numpy(np.vstack([found.x / found.x.sum(), np.eye(count)]))
    nll_of_each = -(tried.log().unsqueeze(2) + of_labels).logsumexp(1) @ shares
    return tried[int(nll_of_each.argmin())]


@dataclass(frozen=True)
class LocalScaling(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T s_i^b (1 + d_i)^c; s_i is the standard deviation of a node's logits, d_i its degree.

    Graph networks give some nodes logits many times as large as others, and are surer of hubs, or less sure, than they
    should be: one temperature cannot correct both. Edges see nodes as often as these have neighbors, so a mistake at
    hubs that hardly shows in nodes is large in edges. b = c = 0 is temperature scaling, b = 1 gives all nodes the same
    spread; no node's most likely label changes. s and 1 + d are relative to their geometric means over the graph of
    `fit`, so T is the temperature of a usual node. The three numbers have the lowest NLL on validation nodes plus
    log(T)² / 2σ_T² + b² / 2σ_b² + c² / 2σ_c²: a σ is how far from plain softmax one expects to end before having seen a
    label. The parameters are T as "temperature", b as "spread" and c as "degree".

    Parameters
    ----------
    prior_log_temperature
        σ_T.
    prior_spread
        σ_b.
    prior_degree
        σ_c.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> LocalScaling().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    prior_log_temperature: float = 1.0
    prior_spread: float = 0.5
    prior_degree: float = 0.15

    name = "local"

    def __post_init__(self) -> None:
        check_number("prior_log_temperature", self.prior_log_temperature, above=0)
        check_number("prior_spread", self.prior_spread, above=0)
        check_number("prior_degree", self.prior_degree, above=0)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Find the exponents log T, b and c, and keep the means of log s and log (1 + d)."""
        log_means = torch.stack([values.mean() for values in _log_spread_and_degree(inputs.predictions)])
        traits = _traits(inputs.predictions, log_means)[inputs.val]
        priors = torch.tensor([self.prior_log_temperature, self.prior_spread, self.prior_degree], dtype=traits.dtype)
        logits, labels, added = inputs.val_logits, inputs.val_labels, inputs.pseudo_count

        def loss(exponents: Float[Tensor, " traits"]) -> Tensor:
            scaled = logits / (traits @ exponents).exp().unsqueeze(1)
            return nll(scaled, labels, added) + (exponents / priors).square().sum() / 2

        return {"exponents": minimize_lbfgs(loss, [0.0, 0.0, 0.0], tol=LBFGS_TOLERANCE), "log_means": log_means}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(z_i / T_i)."""
        traits = _traits(predictions, learned["log_means"])
        temperatures = (traits @ learned["exponents"]).exp()
        return (predictions.logits / temperatures.unsqueeze(1)).log_softmax(-1)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Show T, b and c."""
        log_temperature, spread, degree = learned["exponents"]
        return {"temperature": float(log_temperature.exp()), "spread": float(spread), "degree": float(degree)}


def _traits(predictions: Predictions, log_means: Float[Tensor, " 2"]) -> Float[Tensor, "nodes 3"]:
    """Compute 1, log s and log (1 + d) of each node, the last two less their means on the graph of `fit`."""
    log_spread, log_degree = _log_spread_and_degree(predictions)
    return torch.stack([torch.ones_like(log_spread), log_spread - log_means[0], log_degree - log_means[1]], dim=1)


def _log_spread_and_degree(predictions: Predictions) -> tuple[Float[Tensor, " nodes"], Float[Tensor, " nodes"]]:
    logits = predictions.logits
    floor = torch.finfo(logits.dtype).eps * (1.0 + float(logits.abs().max()))
    return logits.std(-1, correction=0).clamp(min=floor).log(), (1 + predictions.degree).log()
