"""Bayesian model averaging of sixteen small scaling models."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibration_input import CalibrationInput, Predictions
from edgewise.calibration.calibrator import MIN_NODES_FOR_TEMPERATURE, Learned, NodeCalibrator, Parameters
from edgewise.calibration.scaling import log_spread_and_degree, scaling_covariates, subtract_mean
from edgewise.suggestions import suggest_keywords

PRIOR_STANDARD_DEVIATIONS = {"t": 0.5, "b": 0.5, "c": 0.2, "e": 1.5, "a": 0.25, "s": 0.5}
OPTIONAL_PARAMETERS = ("b", "c", "e", "as")  # a and s are used together
MODELS = tuple("t" + "".join(chosen) for size in range(5) for chosen in combinations(OPTIONAL_PARAMETERS, size))
UNIFORM_LOGIT = -4.0  # of the weight of the uniform distribution at e = 0
EDGE_WEIGHT_POWER = 0.3  # of 1 + degree, in the weight of a validation node
MAX_LOG_TEMPERATURE = 10.0  # the minimum is its negative
MIN_CURVATURE = 0.5  # of the Hessian, relative to the smallest precision of the prior
MIN_MODEL_WEIGHT = 0.003  # models with a smaller posterior probability are left out
GRADIENT_TOLERANCE = 1e-6
MAX_STEPS = 100
MIN_DAMPING, DAMPING_FACTOR = 0.1, 10.0
ROUNDING = 1e-12
TIE_MARGIN = 1e-6  # relative; by which the predicted class is above all others


@suggest_keywords
@dataclass(frozen=True)
class BayesianScaling(NodeCalibrator):
    """The average of sixteen scaling models, weighted by how well each explains the validation labels.

    A model is p_i = (1 - ε) softmax((1 + a) ∘ z̄_i / T_i + s) + ε / C. z̄_i are the centered logits, a and s have one
    number per class, log T_i = t + b log s_i + c log(1 + d_i) with the standard deviation s_i of the logits and the
    degree d_i, and ε = sigmoid(e - 4). The two logarithms are centered over the graph of `fit`. Every model has the
    temperature t. Each of b, c, e and (a, s) is either a parameter or left out (b = c = 0, ε = 0, a = s = 0), which
    gives sixteen models.

    Each model is fitted by Newton's method to Σ_i -ω_i log p_i(y_i) over validation nodes plus the negative log density
    of normal priors. Its evidence and its posterior are those of the Laplace approximation (MacKay 1992). Its
    prediction is the mean of p over the 2K points θ̂ ± √K λ_k^(-½) u_k, with the K eigenpairs (λ_k, u_k) of the Hessian,
    which have the mean and the covariance of the posterior. So little data gives less confident predictions, and a
    parameter that the labels contradict is not used. Without labels, each parameter is used with probability ½.

    A node with many neighbors occurs in many edges, therefore ω_i ∝ (1 + d_i)^0.3. The weights sum to their effective
    sample size (Σ ω)² / Σ ω². If all predictions are correct, half a label is added, spread over all validation nodes
    and classes. |log T| is at most 10. Eigenvalues of a Hessian are at least half the smallest precision of a prior.
    Models with a probability below 0.003 are left out. The time of a prediction grows with the square of the number of
    classes.

    The predicted class of a node does not change. Where the average has another class on top, the probabilities of the
    predicted class and of those above it are replaced by their mean (isotonic regression).

    The prior of t has a standard deviation of 0.5: temperatures between 0.4 and 2.7 are expected. If the scale of the
    logits is far from that, as with cosine similarities, few labels do not correct it. Pass the result of
    `TemperatureScaling` instead of the logits then: ``BayesianScaling().fit(calibrated, data, split)``.

    The parameters are the posterior means of t, b, c as "temperature" (exp t), "spread" and "degree", and the posterior
    probabilities "uses_spread", "uses_degree", "uses_uniform" and "uses_classes" that b, c, e, and a and s are needed.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> BayesianScaling().fit(logits, data, split).posterior()
    IndependentPosterior(nodes=2708, classes=7)
    """

    name = "bayesian"

    def min_val_nodes(self, num_classes: int) -> int:
        """Return 50, as for one temperature: other parameters are used as far as the labels support them."""
        return MIN_NODES_FOR_TEMPERATURE

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit the sixteen models, and store the points of all models with their weights in the average."""
        log_means = torch.stack([values.mean() for values in log_spread_and_degree(inputs.predictions)])
        labeled = _labeled_nodes(inputs, scaling_covariates(inputs.predictions, log_means)[inputs.val])
        fits = _fit_models(labeled)
        probability = torch.stack([fit.log_evidence for fit in fits]).softmax(0)
        probability = torch.where(probability < MIN_MODEL_WEIGHT, 0.0, probability)
        probability = probability / probability.sum()
        used = [(fit, weight) for fit, weight in zip(fits, probability, strict=True) if weight > 0]
        return {
            "points": torch.cat([fit.points for fit, _ in used]),
            "weights": torch.cat([weight.expand(len(fit.points)) / len(fit.points) for fit, weight in used]),
            "model_probabilities": probability,
            "log_means": log_means,
        }

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        """Average p over the points of all models, and keep the predicted classes."""
        logits = predictions.logits
        p = average(learned, subtract_mean(logits), scaling_covariates(predictions, learned["log_means"]))
        return keep_predicted_class(p, logits.argmax(1)).log()

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return posterior means and the probability of each optional parameter."""
        t, b, c = (learned["weights"] @ learned["points"])[:3]
        uses = {
            f"uses_{name}": sum(
                (weight for weight, model in zip(learned["model_probabilities"], MODELS, strict=True) if key in model),
                start=torch.zeros(()),
            )
            for name, key in (("spread", "b"), ("degree", "c"), ("uniform", "e"), ("classes", "a"))
        }
        return {"temperature": float(t.exp()), "spread": float(b), "degree": float(c), **uses}


def average(
    learned: Learned, centered: Float[Tensor, "nodes classes"], covariates: Float[Tensor, "nodes 3"]
) -> Float[Tensor, "nodes classes"]:
    """Compute the weighted mean of p over all points. Classes come first, where softmax is fastest."""
    points, weights = learned["points"], learned["weights"]
    epsilon = _uniform_weight(points)
    by_class, mean = centered.T.contiguous(), torch.zeros(centered.T.shape, dtype=centered.dtype)
    for theta, weight in zip(points, (weights * (1 - epsilon.squeeze(1))).tolist(), strict=True):
        factor, shift = theta[4:].unsqueeze(1).chunk(2)
        log_temperature = (covariates @ theta[:3]).clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
        scaled = by_class * (-log_temperature).exp()
        mean.add_(scaled.mul_(1 + factor).add_(shift).softmax(0), alpha=weight)
    return mean.T + weights @ epsilon / centered.shape[1]


class LabeledNodes(NamedTuple):
    """Labeled nodes with weights ω, which sum to the effective sample size."""

    centered: Float[Tensor, "nodes classes"]
    covariates: Float[Tensor, "nodes 3"]
    labels: Int[Tensor, " nodes"]
    weights: Float[Tensor, " nodes"]


def _labeled_nodes(inputs: CalibrationInput, covariates: Float[Tensor, "val 3"]) -> LabeledNodes:
    """Return the validation nodes, and every class of each with a small weight if there is a pseudo-count."""
    centered, labels = subtract_mean(inputs.val_logits), inputs.val_labels
    weights = (1 + inputs.predictions.degree[inputs.val]) ** EDGE_WEIGHT_POWER
    weights = weights * weights.sum() / weights.square().sum()
    if inputs.pseudo_count:
        num_nodes, num_classes = centered.shape
        weights = torch.cat([weights, weights.new_full((centered.numel(),), inputs.pseudo_count / centered.numel())])
        labels = torch.cat([labels, torch.arange(num_classes).repeat(num_nodes)])
        covariates = torch.cat([covariates, covariates.repeat_interleave(num_classes, 0)])
        centered = torch.cat([centered, centered.repeat_interleave(num_classes, 0)])
    return LabeledNodes(centered, covariates, labels, weights)


class _Scaled(NamedTuple):
    sharpened: Float[Tensor, "models nodes classes"]  # z̄ / T
    factored: Float[Tensor, "models nodes classes"]  # (1 + a) ∘ z̄ / T
    scaled: Float[Tensor, "models nodes classes"]  # (1 + a) ∘ z̄ / T + s


def _scale(
    theta: Float[Tensor, "models parameters"],
    centered: Float[Tensor, "nodes classes"],
    covariates: Float[Tensor, "nodes 3"],
) -> _Scaled:
    factor, shift = theta[:, 4:].unsqueeze(1).chunk(2, dim=2)
    log_temperature = (theta[:, :3] @ covariates.T).clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
    sharpened = centered * (-log_temperature).exp().unsqueeze(2)
    factored = (1 + factor) * sharpened
    return _Scaled(sharpened, factored, factored + shift)


def _uniform_weight(theta: Float[Tensor, "models parameters"]) -> Float[Tensor, "models 1"]:
    """Return ε, which is 0 if e is -∞."""
    return torch.sigmoid(UNIFORM_LOGIT + theta[:, 3:4])


class Derivatives(NamedTuple):
    """Value, gradient and Hessian of the loss of each model."""

    loss: Float[Tensor, " models"]
    gradient: Float[Tensor, "models parameters"]
    hessian: Float[Tensor, "models parameters parameters"]


def weighted_nll(theta: Float[Tensor, "models parameters"], nodes: LabeledNodes) -> Derivatives:
    """Compute -Σ_i ω_i log p_i(y_i) with its gradient and Hessian, for each θ = (t, b, c, e, a, s).

    With q = softmax(u), r = (1 - ε) q(y) / p(y) and h = 1[y] - q, the derivatives with respect to the scaled logits u
    are -r h and r (diag(q) - q qᵀ) - r (1 - r) h hᵀ. The rest is the chain rule.
    """
    x, num_classes = nodes.covariates, nodes.centered.shape[1]
    sharpened, factored, scaled = _scale(theta, nodes.centered, x)
    q = scaled.softmax(-1)
    label = nodes.labels.expand(len(theta), -1).unsqueeze(2)
    q_label, epsilon = q.gather(2, label), _uniform_weight(theta).unsqueeze(2)
    p_label = ((1 - epsilon) * q_label + epsilon / num_classes).clamp(min=torch.finfo(q.dtype).tiny)
    r = (1 - epsilon) * q_label / p_label
    h = torch.zeros_like(q).scatter_(2, label, 1.0) - q
    omega = nodes.weights.unsqueeze(1)

    # Σ ω r (Σ_k q_k ∂u_k/∂θ ∂u_k/∂θᵀ - Σ_k h_k ∂²u_k/∂θ∂θᵀ), the upper triangle. a_k and s_k only change u_k.
    weighted, force = omega * r * q, -omega * r * h
    both = weighted * factored + force
    hessian = theta.new_zeros(*theta.shape, theta.shape[1])
    a, s = torch.arange(4, theta.shape[1]).chunk(2)
    hessian[:, :3, :3] = x.T @ (x * (both * factored).sum(2, keepdim=True))
    hessian[:, :3, 4:] = -x.T @ torch.cat([both * sharpened, weighted * factored], dim=2)
    hessian[:, a, a] = (weighted * sharpened.square()).sum(1)
    hessian[:, a, s] = (weighted * sharpened).sum(1)
    hessian[:, s, s] = weighted.sum(1)
    hessian = hessian.triu() + hessian.triu(1).mT
    # -Σ ω r (m mᵀ + (1 - r) g gᵀ) with m = Σ_k q_k ∂u_k/∂θ and g = Σ_k h_k ∂u_k/∂θ
    mean, residual = (_pull_back(per_logit, sharpened, factored, x) for per_logit in (q, h))
    hessian -= mean.mT @ (omega * r * mean) + residual.mT @ (omega * r * (1 - r) * residual)
    gradient = -(omega * r * residual).sum(1)

    # e changes p(y) by ε (1 - ε) (1 / C - q(y)).
    slope = epsilon * (1 - epsilon)
    change = slope * (1 / num_classes - q_label) / p_label
    cross = (omega * slope * q_label / (num_classes * p_label.square()) * residual).sum(1)
    hessian[:, 3], hessian[:, :, 3] = cross, cross
    hessian[:, 3, 3] = -(omega * (change * (1 - 2 * epsilon) - change.square())).sum((1, 2))
    gradient[:, 3] = -(omega * change).sum((1, 2))
    return Derivatives(-(omega * p_label.log()).sum((1, 2)), gradient, hessian)


def _pull_back(
    per_logit: Float[Tensor, "models nodes classes"],
    sharpened: Float[Tensor, "models nodes classes"],
    factored: Float[Tensor, "models nodes classes"],
    covariates: Float[Tensor, "nodes 3"],
) -> Float[Tensor, "models nodes parameters"]:
    """Compute Σ_k v_k ∂u_k/∂θ for each node, with 0 for e."""
    along_covariates = -covariates * (per_logit * factored).sum(2, keepdim=True)
    return torch.cat([along_covariates, torch.zeros_like(per_logit[..., :1]), per_logit * sharpened, per_logit], 2)


class _Fit(NamedTuple):
    """Points with the mean and the covariance of the posterior of a model, and its log evidence."""

    points: Float[Tensor, "points parameters"]
    log_evidence: Float[Tensor, ""]


def _fit_models(nodes: LabeledNodes) -> list[_Fit]:
    """Fit all models by their maximum a posteriori, and approximate evidence and posterior by Laplace's method."""
    owner, deviations = _parameters(nodes.centered.shape[1])
    used = torch.tensor([[name in model for name in owner] for model in MODELS])
    start = torch.zeros(used.shape, dtype=deviations.dtype)
    start[:, owner.index("e")] = torch.where(used[:, owner.index("e")], 0.0, -math.inf)
    precision = deviations.square().reciprocal()

    def loss(theta: Float[Tensor, "models parameters"]) -> Derivatives:
        nll, gradient, hessian = weighted_nll(theta, nodes)
        values = torch.where(used, theta, 0.0)
        return Derivatives(
            nll + (precision * values.square()).sum(1) / 2,
            torch.where(used, gradient + precision * values, 0.0),
            # The step of a parameter that a model does not have is 0.
            torch.where(used.unsqueeze(1) & used.unsqueeze(2), hessian, 0.0) + precision.diag(),
        )

    modes, at_mode = minimize_newton(loss, start)
    fits = []
    for mode, nll, hessian, own in zip(modes, at_mode.loss, at_mode.hessian, used, strict=True):
        curvature, directions = torch.linalg.eigh(hessian[own][:, own])
        curvature = curvature.clamp(min=MIN_CURVATURE * float(precision[own].min()))
        steps = torch.zeros(len(curvature), len(own), dtype=mode.dtype)
        steps[:, own] = (math.sqrt(len(curvature)) * directions / curvature.sqrt()).T
        log_evidence = -nll - curvature.log().sum() / 2 + precision[own].log().sum() / 2
        fits.append(_Fit(torch.cat([mode + steps, mode - steps]), log_evidence))
    return fits


def _parameters(num_classes: int) -> tuple[str, Float[Tensor, " parameters"]]:
    """Return the name of each entry of θ, and the standard deviation of its prior."""
    owner = "tbce" + "a" * num_classes + "s" * num_classes
    return owner, torch.tensor([PRIOR_STANDARD_DEVIATIONS[name] for name in owner], dtype=torch.float64)


def minimize_newton(
    derivatives: Callable[[Float[Tensor, "models parameters"]], Derivatives],
    start: Float[Tensor, "models parameters"],
) -> tuple[Float[Tensor, "models parameters"], Derivatives]:
    """Minimize a loss for each model by Newton's method with Levenberg's damping.

    A step is not taken if it increases the loss, or if the damped Hessian is not positive definite. The damping is
    increased then.
    """
    point, current = start, derivatives(start)
    damping = torch.zeros_like(current.loss)
    for _ in range(MAX_STEPS):
        if float(current.gradient.abs().max()) < GRADIENT_TOLERANCE:
            break
        damped = current.hessian + damping[:, None, None] * torch.eye(point.shape[1], dtype=point.dtype)
        root, failed = torch.linalg.cholesky_ex(damped)
        trial_point = point - torch.cholesky_solve(current.gradient.unsqueeze(2), root).squeeze(2)
        trial = derivatives(trial_point)
        better = (failed == 0) & (trial.loss <= current.loss + ROUNDING * current.loss.abs())
        damping = torch.where(better, damping / DAMPING_FACTOR, (damping * DAMPING_FACTOR).clamp(min=MIN_DAMPING))
        point = torch.where(better[:, None], trial_point, point)
        current = Derivatives(
            torch.where(better, trial.loss, current.loss),
            torch.where(better[:, None], trial.gradient, current.gradient),
            torch.where(better[:, None, None], trial.hessian, current.hessian),
        )
    return point, current


def keep_predicted_class(
    p: Float[Tensor, "nodes classes"], predicted: Int[Tensor, " nodes"]
) -> Float[Tensor, "nodes classes"]:
    """Return the closest probabilities whose largest entry is that of the predicted class.

    The predicted class and the classes above it get their common mean: the most probable other classes are included as
    long as they are above the mean of those included before. The predicted class is above all others by 1e-6, relative,
    so that rounding to float32 does not change it.
    """
    at_predicted = p.gather(1, predicted.unsqueeze(1)).squeeze(1)
    highest_other = p.scatter(1, predicted.unsqueeze(1), -1.0).amax(1)
    changed = (at_predicted < (1 + TIE_MARGIN) * highest_other).nonzero().squeeze(1)
    rows, target = p[changed], predicted[changed].unsqueeze(1)
    others, order = rows.scatter(1, target, -1.0).sort(dim=1, descending=True)
    sizes = torch.arange(1, p.shape[1] + 1, dtype=p.dtype)
    means = (rows.gather(1, target) + others.cumsum(1) - others) / sizes  # before each class is included
    included = others > means
    mean = means.gather(1, included.sum(1, keepdim=True))
    kept = rows.scatter(1, order, torch.where(included, mean, others)).scatter(1, target, mean * (1 + TIE_MARGIN))
    return p.index_copy(0, changed, kept / kept.sum(1, keepdim=True))
