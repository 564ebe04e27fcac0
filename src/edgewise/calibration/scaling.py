"""Temperature scaling: one number for all nodes (Guo et al. 2017)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.calibration.calibration_input import Seen, doubt_about, minimised, nll
from edgewise.calibration.calibrator import Learnt, NodeCalibrator
from edgewise.validation import check_number

LARGEST_TEMPERATURE = 1e4  # the smallest is its inverse


@dataclass(frozen=True)
class TemperatureScaling(NodeCalibrator):
    """softmax(z / T), with the T of the lowest NLL on validation nodes.

    The most likely label of a node stays as it is. `learn` gives the "temperature".

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> TemperatureScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(z / T)."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        return (seen.logits / temperature).log_softmax(-1), {"temperature": temperature}


def best_temperature(logits: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"]) -> float:
    """Find the T of the lowest NLL: it is convex in 1 / T, so the sign of its slope tells where T is.

    d NLL / d(1/T) = Σ_i E_{softmax(z_i / T)}[z_i - z_i(y_i)]. Where every label has the largest logit there is no
    lowest, until some doubt is added (`doubt_about`). Where labels have on average no more than the mean of their
    node's logits, T is 1e4, the largest that we take. Where no logit differs from another any T is as good: it is 1.
    """
    from scipy.optimize import brentq

    ahead = logits - logits.gather(1, labels[:, None])
    if not bool(ahead.any()):
        return 1.0
    doubt = doubt_about(logits, labels) / len(labels)

    def slope(log_inverse: float) -> float:
        expected = ((ahead * math.exp(log_inverse)).softmax(-1) * ahead).sum(-1)
        return float((expected + doubt * (expected - ahead.mean(-1))).sum())

    widest = math.log(LARGEST_TEMPERATURE)
    if slope(widest) <= 0:
        return 1 / LARGEST_TEMPERATURE
    if slope(-widest) >= 0:
        return LARGEST_TEMPERATURE
    return math.exp(-float(brentq(slope, -widest, widest, xtol=1e-12)))


LEAST_WEIGHT = 1e-12  # weights are above while they are searched for, so that no label is impossible


@dataclass(frozen=True)
class EnsembleTemperatureScaling(NodeCalibrator):
    """w₁ softmax(z / T) + w₂ softmax(z) + w₃ / C, with T and then the weights of the lowest NLL on validation nodes.

    The most likely label of a node stays as it is. `learn` gives the "temperature" and the "weights".

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> EnsembleTemperatureScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give the logarithms of the mixture."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        nodes, classes = seen.logits.shape
        uniform = torch.full((nodes, classes), -math.log(classes), dtype=seen.logits.dtype)
        opinions = torch.stack([(seen.logits / temperature).log_softmax(-1), seen.logits.log_softmax(-1), uniform])
        weights = mixture_weights(opinions[:, seen.val], seen.val_labels, seen.doubt)
        log_marginals = (opinions + weights.log()[:, None, None]).logsumexp(0)
        return log_marginals, {"temperature": temperature, "weights": weights}


def mixture_weights(
    log_opinions: Float[Tensor, "opinions nodes classes"], labels: Int[Tensor, " nodes"], doubt: float = 0.0
) -> Float[Tensor, " opinions"]:
    """Find the weights w ≥ 0 of the lowest -mean_i log Σ_k w_k p_k(y_i) + Σ_k w_k: there they sum to 1.

    It is convex, and the last digits of small weights do not matter to it, so single opinions are tried too. With a
    doubt the mean is also over all labels of all nodes, which have that weight together (`doubt_about`).
    """
    from scipy.optimize import minimize

    of_labels = log_opinions[:, torch.arange(len(labels)), labels]
    shares = torch.ones(len(labels), dtype=of_labels.dtype)
    if doubt:
        others = log_opinions.flatten(1)
        shares = torch.cat([shares, torch.full_like(others[0], doubt / others.shape[1])])
        of_labels = torch.cat([of_labels, others], dim=1)
    shares = shares / shares.sum()
    p, share = (of_labels - of_labels.amax(0)).exp().numpy(), shares.numpy()
    count = len(p)

    def loss_and_gradient(weights: Any) -> tuple[float, Any]:
        mixed = weights @ p
        return float(weights.sum() - share @ np.log(mixed)), 1 - (p / mixed) @ share

    found = minimize(
        loss_and_gradient,
        [1 / count] * count,
        jac=True,
        method="L-BFGS-B",
        bounds=[(LEAST_WEIGHT, 1.0)] * count,
        tol=1e-14,
    )
    tried = torch.from_numpy(np.vstack([found.x / found.x.sum(), np.eye(count)]))
    nll = -(tried.log().unsqueeze(2) + of_labels).logsumexp(1) @ shares
    return tried[int(nll.argmin())]


@dataclass(frozen=True)
class VectorScaling(NodeCalibrator):
    """softmax(a ∘ z / T + b), with the a and b of the lowest NLL on validation nodes, after temperature scaling.

    A few dozen labels cannot tell two numbers for each class apart, so the sum of the NLL is raised by
    (Σ (a - 1)² + Σ b²) / 2σ²: without labels it is temperature scaling. Labels that are most likely may change. `learn`
    gives the "temperature" T, the "factor" a / T and the "shift" b.

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
    >>> VectorScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    prior: float = 1.0

    def __post_init__(self) -> None:
        check_number("prior", self.prior, above=0)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(a ∘ z / T + b)."""
        temperature = best_temperature(seen.val_logits, seen.val_labels)
        classes = seen.logits.shape[1]
        centred = seen.logits - seen.logits.mean(-1, keepdim=True)  # a ∘ z must not depend on a constant in z

        doubt = seen.doubt

        def scaled(parameters: Float[Tensor, " twice"], logits: Tensor) -> Tensor:
            return logits / temperature * (1 + parameters[:classes]) + parameters[classes:]

        def loss(parameters: Float[Tensor, " twice"]) -> Tensor:
            fit = nll(scaled(parameters, centred[seen.val]), seen.val_labels, doubt)
            return fit + parameters.square().sum() / (2 * self.prior**2)

        found = minimised(loss, [0.0] * (2 * classes))
        factor, shift = (1 + found[:classes]) / temperature, found[classes:]
        learnt: Learnt = {"temperature": temperature, "factor": factor, "shift": shift}
        return scaled(found, centred).log_softmax(-1), learnt


@dataclass(frozen=True)
class LocalScaling(NodeCalibrator):
    """softmax(z_i / T_i), T_i = T s_i^b (1 + d_i)^c; s_i is the standard deviation of a node's logits, d_i its degree.

    Graph networks give some nodes logits many times as large as others, and are surer of hubs, or less sure, than they
    should be: one temperature cannot mend both. Edges see nodes as often as these have neighbours, so a mistake at hubs
    that hardly shows in nodes is large in edges. b = c = 0 is temperature scaling, b = 1 gives all nodes the same
    spread; no node's most likely label changes. s and 1 + d are relative to their geometric means over the graph, so T
    is the temperature of a usual node. The three numbers have the lowest NLL on validation nodes plus
    log(T)² / 2σ_T² + b² / 2σ_b² + c² / 2σ_c²: a σ is how far from plain softmax one expects to end before having seen a
    label. `learn` gives T as "temperature", b as "spread" and c as "degree".

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
    >>> LocalScaling().fit(logits, data, split)
    IndependentPosterior(nodes=2708, classes=7)
    """

    prior_log_temperature: float = 1.0
    prior_spread: float = 0.5
    prior_degree: float = 0.15

    def __post_init__(self) -> None:
        check_number("prior_log_temperature", self.prior_log_temperature, above=0)
        check_number("prior_spread", self.prior_spread, above=0)
        check_number("prior_degree", self.prior_degree, above=0)

    def log_marginals(self, seen: Seen) -> tuple[Float[Tensor, "nodes classes"], Learnt]:
        """Give log softmax(z_i / T_i)."""
        usual = torch.ones(len(seen.labels), dtype=seen.logits.dtype)
        traits = torch.stack([usual, _log_spread(seen.logits), _centred((1 + seen.degree).log())], dim=1)
        priors = torch.tensor([self.prior_log_temperature, self.prior_spread, self.prior_degree], dtype=traits.dtype)

        doubt = seen.doubt

        def loss(exponents: Float[Tensor, " traits"]) -> Tensor:
            temperatures = (traits[seen.val] @ exponents).exp()
            scaled = seen.val_logits / temperatures.unsqueeze(1)
            return nll(scaled, seen.val_labels, doubt) + (exponents / priors).square().sum() / 2

        found = minimised(loss, [0.0, 0.0, 0.0])
        temperatures = (traits @ found).exp()
        learnt = {"temperature": float(found[0].exp()), "spread": float(found[1]), "degree": float(found[2])}
        return (seen.logits / temperatures.unsqueeze(1)).log_softmax(-1), learnt


def _log_spread(logits: Float[Tensor, "nodes classes"]) -> Float[Tensor, " nodes"]:
    """Give the logarithm of the standard deviation of each node's logits, less its mean over nodes."""
    floor = torch.finfo(logits.dtype).eps * (1.0 + float(logits.abs().max()))
    return _centred(logits.std(-1, correction=0).clamp(min=floor).log())


def _centred(values: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    return values - values.mean()
