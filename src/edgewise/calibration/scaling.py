"""Calibration by scaling of logits: temperature, vector, ensemble temperature, and local scaling."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibration_input import LBFGS_TOLERANCE, CalibrationInput, Predictions, nll, pseudo_count
from edgewise.calibration.calibrator import (
    MIN_NODES_FOR_TEMPERATURE,
    MIN_NODES_PER_CLASS,
    Learned,
    NodeCalibrator,
    Parameters,
)
from edgewise.models.training import minimize_lbfgs
from edgewise.small_samples import MIN_SAMPLE
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_number

MAX_TEMPERATURE = 1e4  # the minimum is its inverse


@suggest_keywords
@dataclass(frozen=True)
class TemperatureScaling(NodeCalibrator):
    """softmax(z / T), with the T that minimizes the NLL of the validation nodes (Guo et al. 2017).

    The predicted label of a node does not change. The parameter is "temperature".

    If every validation label has the largest logit, the NLL has no minimum: it falls as T goes to 0. In this case half
    a pseudo-label is added, spread evenly over all nodes and classes. The rule is discontinuous: the pseudo-label is
    dropped as soon as one prediction is wrong, and T can jump.

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

    def min_val_nodes(self, num_classes: int) -> int:
        """Return 50. The standard error of one parameter is then about 20%."""
        return MIN_NODES_FOR_TEMPERATURE

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit T."""
        return {"temperature": fit_temperature(inputs.val_logits, inputs.val_labels)}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(z / T)."""
        return (predictions.logits / learned["temperature"]).log_softmax(-1)


def fit_temperature(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Return the T in [1e-4, 1e4] that minimizes the NLL, by root finding on its derivative.

    The NLL is convex in 1 / T, with d NLL / d(1/T) = Σ_i E_{softmax(z_i / T)}[z_i - z_i(y_i)]. If every label has the
    largest logit, there is no minimum, and half a pseudo-label is added (`pseudo_count`). If the logits of the labels
    are on average not above the mean logit of their node, T is 1e4. If all logits of each node are equal, the NLL does
    not depend on T, and T is 1.
    """
    from scipy.optimize import brentq

    differences = logits - logits.gather(1, labels[:, None])
    if not bool(differences.any()):
        return 1.0
    pseudo_weight = pseudo_count(logits, labels) / len(labels)

    def slope(log_inverse: float) -> float:
        expected = ((differences * math.exp(log_inverse)).softmax(-1) * differences).sum(-1)
        return float((expected + pseudo_weight * (expected - differences.mean(-1))).sum())

    limit = math.log(MAX_TEMPERATURE)
    if slope(limit) <= 0:
        return 1 / MAX_TEMPERATURE
    if slope(-limit) >= 0:
        return MAX_TEMPERATURE
    return math.exp(-float(brentq(slope, -limit, limit, xtol=1e-12)))


@suggest_keywords
@dataclass(frozen=True)
class VectorScaling(NodeCalibrator):
    """softmax(a ∘ z̄ / T + b), with T from temperature scaling and one a and b per class; z̄ are the centered logits.

    a and b minimize the summed NLL of the validation nodes plus the penalty (Σ (a - 1)² + Σ b²) / 2σ², because a few
    dozen labels do not determine two parameters per class. The penalty shrinks to temperature scaling. The predicted
    label of a node can change. The parameters are the "temperature" T, the "factor" a / T and the "shift" b.

    Parameters
    ----------
    prior
        Standard deviation σ of the normal priors of a - 1 and b. A large value gives unpenalized vector scaling.

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

    def min_val_nodes(self, num_classes: int) -> int:
        """Return 100, or ten per class, because each class has two parameters, which are shrunk."""
        return max(MIN_SAMPLE, MIN_NODES_PER_CLASS * num_classes)

    def __post_init__(self) -> None:
        check_number("prior", self.prior, above=0)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit T, then a and b."""
        temperature = fit_temperature(inputs.val_logits, inputs.val_labels)
        logits, labels, pseudo_count = subtract_mean(inputs.val_logits), inputs.val_labels, inputs.pseudo_count
        classes = logits.shape[1]

        def loss(parameters: Float[Tensor, " twice"]) -> Tensor:
            scaled = logits / temperature * (1 + parameters[:classes]) + parameters[classes:]
            return nll(scaled, labels, pseudo_count) + parameters.square().sum() / (2 * self.prior**2)

        result = minimize_lbfgs(loss, [0.0] * (2 * classes), tol=LBFGS_TOLERANCE)
        return {"temperature": temperature, "relative_factor": 1 + result[:classes], "shift": result[classes:]}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(a ∘ z̄ / T + b)."""
        scaled = subtract_mean(predictions.logits) / learned["temperature"] * learned["relative_factor"]
        return (scaled + learned["shift"]).log_softmax(-1)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return T, a / T and b."""
        temperature = learned["temperature"]
        factor = learned["relative_factor"] / temperature
        return {"temperature": temperature, "factor": factor, "shift": learned["shift"]}


def subtract_mean(logits: Float[Tensor, "nodes classes"]) -> Float[Tensor, "nodes classes"]:
    """Subtract the mean of each node's logits, so that a ∘ z̄ does not depend on an additive constant."""
    return logits - logits.mean(-1, keepdim=True)


MIN_WEIGHT = 1e-12  # lower bound during optimization, so that no label has probability 0


@suggest_keywords
@dataclass(frozen=True)
class EnsembleTemperatureScaling(NodeCalibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / C, with T from temperature scaling (Zhang et al. 2020).

    The weights minimize the NLL of the validation nodes. The predicted label of a node does not change. The parameters
    are the "temperature" T and the three "weights" w.

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
        """Fit T, then w."""
        temperature = fit_temperature(inputs.val_logits, inputs.val_labels)
        log_components = _log_components(inputs.val_logits, temperature)
        return {
            "temperature": temperature,
            "weights": fit_mixture_weights(log_components, inputs.val_labels, inputs.pseudo_count),
        }

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute the log of the mixture."""
        log_weights = learned["weights"].log()[:, None, None]
        return (_log_components(predictions.logits, learned["temperature"]) + log_weights).logsumexp(0)


def _log_components(
    logits: Float[Tensor, "nodes classes"], temperature: float | Tensor
) -> Float[Tensor, "components nodes classes"]:
    """Compute log softmax(z / T), log softmax(z) and log(1 / C)."""
    uniform = torch.full_like(logits, -math.log(logits.shape[1]))
    return torch.stack([(logits / temperature).log_softmax(-1), logits.log_softmax(-1), uniform])


def fit_mixture_weights(
    log_components: Float[Tensor, "components nodes classes"],
    labels: Int[Tensor, " nodes"],
    pseudo_count: float = 0.0,
) -> Float[Tensor, " components"]:
    """Return the weights w ≥ 0, Σ_k w_k = 1, that minimize -mean_i log Σ_k w_k p_k(y_i).

    The optimizer minimizes this NLL plus Σ_k w_k, a convex function whose minimizer sums to 1. The NLL is not sensitive
    to small weights, so each single component is tried too. A ``pseudo_count`` adds all labels of all nodes to the
    mean, with this total weight.
    """
    from scipy import optimize

    log_p = log_components[:, torch.arange(len(labels)), labels]
    weights = torch.ones(len(labels), dtype=log_p.dtype)
    if pseudo_count:
        all_log_p = log_components.flatten(1)
        weights = torch.cat([weights, torch.full_like(all_log_p[0], pseudo_count / all_log_p.shape[1])])
        log_p = torch.cat([log_p, all_log_p], dim=1)
    weights = weights / weights.sum()
    p, label_weights = (log_p - log_p.amax(0)).exp().numpy(), weights.numpy()
    count = len(p)

    def loss_and_gradient(w: Any) -> tuple[float, Any]:
        mixture = w @ p
        return float(w.sum() - label_weights @ np.log(mixture)), 1 - (p / mixture) @ label_weights

    result = optimize.minimize(
        loss_and_gradient,
        [1 / count] * count,
        jac=True,
        method="L-BFGS-B",
        bounds=[(MIN_WEIGHT, 1.0)] * count,
        tol=1e-14,
    )
    candidates = torch.from_numpy(np.vstack([result.x / result.x.sum(), np.eye(count)]))
    losses = -(candidates.log().unsqueeze(2) + log_p).logsumexp(1) @ weights
    return candidates[int(losses.argmin())]


@suggest_keywords
@dataclass(frozen=True)
class LocalScaling(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T s_i^b (1 + d_i)^c, with s_i the standard deviation of z_i and d_i the degree of i.

    s and 1 + d are divided by their geometric means over the graph of `fit`, so that T is the temperature of a typical
    node. With b = c = 0 this is temperature scaling; with b = 1 the scaled logits of all nodes have the same standard
    deviation. The predicted label of a node does not change.

    One temperature is not enough if the scale of the logits differs between nodes, or if confidence errors depend on
    the degree. A node appears in as many edges as it has neighbors, so an error at hubs that is small in node scores
    can be large in edge scores.

    T, b and c minimize the summed NLL of the validation nodes plus log(T)² / 2σ_T² + b² / 2σ_b² + c² / 2σ_c². The
    parameters are T as "temperature", b as "spread" and c as "degree".

    Parameters
    ----------
    prior_log_temperature
        Standard deviation σ_T of the normal prior of log T.
    prior_spread
        Standard deviation σ_b of the normal prior of b.
    prior_degree
        Standard deviation σ_c of the normal prior of c.

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
        """Fit the exponents log T, b and c, and store the means of log s and log(1 + d)."""
        log_means = torch.stack([values.mean() for values in log_spread_and_degree(inputs.predictions)])
        covariates = scaling_covariates(inputs.predictions, log_means)[inputs.val]
        deviations = torch.tensor(
            [self.prior_log_temperature, self.prior_spread, self.prior_degree], dtype=covariates.dtype
        )
        logits, labels, pseudo_count = inputs.val_logits, inputs.val_labels, inputs.pseudo_count

        def loss(exponents: Float[Tensor, " 3"]) -> Tensor:
            scaled = logits / (covariates @ exponents).exp().unsqueeze(1)
            return nll(scaled, labels, pseudo_count) + (exponents / deviations).square().sum() / 2

        return {"exponents": minimize_lbfgs(loss, [0.0, 0.0, 0.0], tol=LBFGS_TOLERANCE), "log_means": log_means}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Compute log softmax(z_i / T_i)."""
        covariates = scaling_covariates(predictions, learned["log_means"])
        temperatures = (covariates @ learned["exponents"]).exp()
        return (predictions.logits / temperatures.unsqueeze(1)).log_softmax(-1)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return T, b and c."""
        log_temperature, spread, degree = learned["exponents"]
        return {"temperature": float(log_temperature.exp()), "spread": float(spread), "degree": float(degree)}


def scaling_covariates(predictions: Predictions, log_means: Float[Tensor, " 2"]) -> Float[Tensor, "nodes 3"]:
    """Compute 1, log s and log(1 + d) of each node, the last two minus their means on the graph of `fit`."""
    log_spread, log_degree = log_spread_and_degree(predictions)
    return torch.stack([torch.ones_like(log_spread), log_spread - log_means[0], log_degree - log_means[1]], dim=1)


def log_spread_and_degree(predictions: Predictions) -> tuple[Float[Tensor, " nodes"], Float[Tensor, " nodes"]]:
    """Return the log of the standard deviation of the logits, and log(1 + degree), of each node."""
    logits = predictions.logits
    min_spread = torch.finfo(logits.dtype).eps * (1.0 + float(logits.abs().max()))  # equal logits have spread 0
    return logits.std(-1, correction=0).clamp(min=min_spread).log(), (1 + predictions.degree).log()
