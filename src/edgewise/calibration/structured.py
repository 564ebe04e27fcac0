"""Calibrated edge joints: the marginals of a node calibrator, and one coupling fitted to labeled edges."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.calibration.bayesian import BayesianScaling
from edgewise.calibration.calibration_input import LBFGS_TOLERANCE, CalibrationInput, Predictions
from edgewise.calibration.calibrator import (
    Calibrator,
    Learned,
    NodeCalibrator,
    Parameters,
    as_tensors,
    clamp_log_probs,
    select_prefix,
)
from edgewise.calibration.leave_out import leave_out, propagate_features
from edgewise.inference.coupled_marginals import coupled_messages, pointwise_mutual_information
from edgewise.models.task import check_features
from edgewise.models.training import minimize_lbfgs
from edgewise.posterior import PairwisePosterior, Posterior
from edgewise.small_samples import check_sample
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_number

DEGREE_POWER = -0.2  # of (1 + d_i) (1 + d_j), in the factor of the coupling of an edge
PRIOR_MEAN = 0.35  # of w, relative to J
PRIOR_DEVIATION = 0.1  # of w, relative to J
MIN_PRIOR_DEVIATION = 0.25  # nats
GRID = np.linspace(-3.0, 4.0, 29)  # couplings whose likelihood is computed; between them it is interpolated
FINE_GRID = np.linspace(-3.0, 4.0, 1401)
MIN_RIDGE = 1e-8  # below it, a matrix may not be invertible in float64
MAX_COUPLING = 6.0  # nats, of an edge
MAX_LOG_TEMPERATURE = 10.0  # the minimum is its negative


@suggest_keywords
@dataclass(frozen=True)
class StructuredCalibrator(Calibrator):
    """Edge joints q_ij(l, m) = a_i(l) b_j(m) exp(w g_ij 1[l = m]) with calibrated node marginals p_i and p_j.

    **Nodes.** p are the marginals of a node calibrator. For every w there is exactly one q_ij of this form with
    marginals p_i and p_j, so w changes no marginal. Belief propagation from p would change them, and would count the
    neighbors twice, since a graph network has already used them.

    **Degrees.** g_ij = ((1 + d_i) (1 + d_j))^-0.2, divided by its mean over all edges: one neighbor of a hub says less
    than one of few neighbors. |w g_ij| is at most 6.

    **Log odds ratio.** J compares labeled edges, whose two ends are labeled, with all pairs of labeled nodes. With
    logit(k, n) = log((k + ½) / (n - k + ½)), f = logit(same-label edges, edges) - logit(same-label pairs, pairs). The
    variance of f is about V = (1 / (same-label edges + ½) + 1 / (other edges + ½)) / κ. The effective fraction κ of
    labeled edges accounts for edges that share a node: with r_e = 1[same label] minus its mean,
    κ = min(1, Σ_e r_e² / (Σ_i (Σ_{e ∋ i} r_e)² - Σ_e r_e²)), or 1 if the denominator is not positive.
    J = f · f² / (f² + V) is f shrunk to 0.

    **Coupling.** The prior of w is a spike at 0 and a slab N(0.35 J, (0.1 J)² + 0.35² V + 0.25²) (George and McCulloch
    1993). The odds of the spike are N(f; 0, V) / N(f; 0, V + 1). The log-likelihood of w is κ Σ log q_ij(y_i, y_j) /
    (p_i(y_i) p_j(y_j)) over labeled edges. w is the posterior mean, so labels that show no dependence of neighbors give
    nearly products. Without labeled edges, and if all pairs of labeled nodes have the same label or none, w is 0.

    The likelihood needs marginals of a model that was hardly fitted to the labels of the edge:

    - If both ends are validation nodes, the calibrated marginals p are used. The network was not trained on these
      labels, but the few parameters of the node calibrator were fitted to them. These edges are few.
    - On training nodes a network is overconfident. For all other labeled edges the marginals come from a ridge
      regression on features that are propagated over two hops, fitted without the labels of both ends (`leave_out`).
      They are softmax(r / T + log π), with the scores r, the class proportions π of the labeled nodes, and the T with
      the lowest NLL of leave-one-out scores. This assumes that w is about the same for all models that use two hops.
    - Without features only the first kind of edge is used.

    The parameters are w as "coupling", the posterior probability that it is not 0 as "uses_coupling", J as
    "log_odds_ratio", and those of the node calibrator.

    Parameters
    ----------
    nodes
        The node calibrator, by default `BayesianScaling`.
    ridge
        Penalty λ of the ridge regression, at least 1e-8. Rows of features have length 1.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> StructuredCalibrator().fit(logits, data, split).posterior()
    PairwisePosterior(nodes=2708, classes=7, edges=5278)
    """

    nodes: NodeCalibrator = field(default_factory=BayesianScaling)
    ridge: float = 1.0

    name = "structured"
    uses_training_labels = True

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, NodeCalibrator):
            raise ValueError(
                f"Expected nodes to be a node calibrator, but got {self.nodes!r}. Pass one, like TemperatureScaling()."
            )
        check_number("ridge", self.ridge, least=MIN_RIDGE)

    def min_val_nodes(self, num_classes: int) -> int:
        """Return that of the node calibrator."""
        return self.nodes.min_val_nodes(num_classes)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit the node calibrator, then J and w."""
        node_parameters = as_tensors(self.nodes.learn_parameters(inputs))
        log_p = self.nodes.log_marginals(node_parameters, inputs.predictions)
        edges = _labeled_edges(inputs)
        ratio = _log_odds_ratio(inputs.labels, edges)
        mean_factor = _degree_factor(inputs.predictions, inputs.predictions.edge_index).mean()
        log_marginals = self._leave_labels_out(inputs, log_p, edges)
        used = edges[:, : log_marginals.shape[1]]
        factor, labels = _degree_factor(inputs.predictions, used) / mean_factor, inputs.labels[used]

        def log_likelihood(w: float) -> float:
            coupling = (w * factor).clamp(-MAX_COUPLING, MAX_COUPLING)
            return ratio.kappa * float(pointwise_mutual_information(log_marginals, coupling, labels).sum())

        is_informed = edges.numel() > 0 and ratio.is_defined
        coupling, probability = _fit_coupling(log_likelihood, ratio) if is_informed else (0.0, 0.0)
        _check_num_edges(inputs, used.shape[1])
        return {
            **{f"nodes/{name}": value for name, value in node_parameters.items()},
            "coupling": coupling,
            "uses_coupling": probability,
            "log_odds_ratio": ratio.shrunk,
            "mean_factor": mean_factor.nan_to_num(1.0),
        }

    def calibrate(self, learned: Learned, predictions: Predictions) -> Posterior:
        """Return the posterior with the calibrated marginals and edge joints a_i(l) b_j(m) exp(w g_ij 1[l = m])."""
        log_p = self.nodes.log_marginals(select_prefix("nodes", learned), predictions)
        edges = predictions.edge_index
        coupling = learned["coupling"] * _degree_factor(predictions, edges) / learned["mean_factor"]
        coupling = coupling.clamp(-MAX_COUPLING, MAX_COUPLING)
        messages = coupled_messages(log_p[edges], coupling)
        same = torch.eye(log_p.shape[1], dtype=log_p.dtype).unsqueeze(0)
        posterior = PairwisePosterior(clamp_log_probs(log_p, predictions.dtype), edges, messages, same, coupling)
        return posterior.to(predictions.device, predictions.dtype)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return the parameters of the node calibrator, w with its probability, and J."""
        own = {name: learned[name] for name in ("coupling", "uses_coupling", "log_odds_ratio")}
        return {**self.nodes.summarize_parameters(select_prefix("nodes", learned)), **own}

    def _leave_labels_out(
        self, inputs: CalibrationInput, log_p: Float[Tensor, "nodes classes"], edges: Int[Tensor, "2 edges"]
    ) -> Float[Tensor, "2 used classes"]:
        """Return log marginals of both ends of the first edges, by a model that was not trained on their labels.

        Edges between validation nodes come first. Without features there are marginals of these only.
        """
        num_val = int(inputs.val[edges].all(0).sum())
        val_edges, other_edges = edges[:, :num_val], edges[:, num_val:]
        if inputs.raw_features is None or other_edges.shape[1] == 0:
            return log_p[val_edges]
        labeled = inputs.train | inputs.val
        position = labeled.cumsum(0) - 1
        features = propagate_features(_sparse_features(inputs), inputs.predictions.normalized_adjacency, labeled)
        labels = inputs.labels[labeled]
        scores = leave_out(features, labels, log_p.shape[1], position[other_edges], self.ridge)
        # Scores are centered: they are near 0, and the class proportions remain, where the features are uninformative.
        log_proportions = (torch.bincount(labels, minlength=log_p.shape[1]) + 0.5).to(log_p.dtype).log()
        temperature = _fit_temperature_with_offset(scores.nodes, labels, log_proportions)
        other_log_p = (scores.pairs / temperature + log_proportions).log_softmax(-1)
        return torch.cat([log_p[val_edges], other_log_p], dim=1)


def _degree_factor(predictions: Predictions, edges: Int[Tensor, "2 edges"]) -> Float[Tensor, " edges"]:
    """Compute ((1 + d_i) (1 + d_j))^-0.2 for each edge."""
    return (1 + predictions.degree[edges]).prod(0) ** DEGREE_POWER


def _fit_temperature_with_offset(
    scores: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], offset: Float[Tensor, " classes"]
) -> float:
    """Return the T that minimizes the NLL of softmax(scores / T + offset)."""

    def loss(log_temperature: Float[Tensor, " 1"]) -> Tensor:
        return cross_entropy(scores / log_temperature.exp() + offset, labels)

    log_temperature = minimize_lbfgs(loss, [0.0], tol=LBFGS_TOLERANCE)[0]
    return float(log_temperature.clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE).exp())


def _sparse_features(inputs: CalibrationInput) -> Any:
    """Return the features as a scipy CSR array in float64."""
    from scipy.sparse import csr_array

    fix = "To calibrate without features, set data.x = None, or omit --features on the command line."
    try:
        x, _ = check_features(inputs.raw_features)
    except ValueError as error:
        raise ValueError(f"{error} {fix}") from error
    if x.shape[0] != len(inputs.labels):
        expected = f"({len(inputs.labels)}, features)"
        raise ValueError(f"Expected x of shape {expected}, but got shape {tuple(x.shape)}. {fix}")
    return csr_array(x).astype(np.float64)


def _check_num_edges(inputs: CalibrationInput, num_edges: int) -> None:
    advice = "Label neighbors of labeled nodes, or calibrate nodes only: ew.BayesianScaling()."
    if inputs.raw_features is None:
        advice = "Pass features, data.x or --features on the command line, to use edges of training nodes too."
    check_sample("The coupling of StructuredCalibrator was fitted to", num_edges, "edges between labeled nodes", advice)


def _labeled_edges(inputs: CalibrationInput) -> Int[Tensor, "2 labeled"]:
    """Return the edges whose two ends are labeled, those between validation nodes first."""
    edges = inputs.predictions.edge_index
    edges = edges[:, (inputs.labels[edges] >= 0).all(0)]
    both_val = inputs.val[edges].all(0)
    return torch.cat([edges[:, both_val], edges[:, ~both_val]], dim=1)


class LogOddsRatio(NamedTuple):
    """The log odds ratio f and its variance V, and the effective fraction κ of the labeled edges.

    f is 0, and not defined, if all pairs of labeled nodes have the same label, or none.
    """

    estimate: float
    variance: float
    kappa: float
    is_defined: bool

    @property
    def shrunk(self) -> float:
        """J = f³ / (f² + V)."""
        return self.estimate**3 / (self.estimate**2 + self.variance)


def _log_odds_ratio(labels: Int[Tensor, " nodes"], edges: Int[Tensor, "2 edges"]) -> LogOddsRatio:
    """Compare the log odds of the same label on labeled edges and on all pairs of labeled nodes (label -1: none)."""
    counts = torch.bincount(labels[labels >= 0]).double()
    total = float(counts.sum())
    is_same = (labels[edges[0]] == labels[edges[1]]).double()
    same, num_edges = float(is_same.sum()), edges.shape[1]
    same_pairs, num_pairs = float((counts * (counts - 1)).sum()) / 2, total * (total - 1) / 2
    is_defined = 0 < same_pairs < num_pairs
    estimate = _logit(same, num_edges) - _logit(same_pairs, num_pairs) if is_defined else 0.0
    residual = is_same - same / max(1, num_edges)
    at_node = torch.zeros(len(labels), dtype=torch.float64).index_add_(0, edges.flatten(), residual.repeat(2))
    squares = float(residual.square().sum())
    shared = float(at_node.square().sum()) - squares
    kappa = min(1.0, squares / shared) if shared > 0 else 1.0
    variance = 1 / (same + 0.5) + 1 / (num_edges - same + 0.5)
    return LogOddsRatio(estimate, variance / kappa, kappa, is_defined)


def _logit(count: float, total: float) -> float:
    return math.log((count + 0.5) / (total - count + 0.5))


def _fit_coupling(log_likelihood: Callable[[float], float], ratio: LogOddsRatio) -> tuple[float, float]:
    """Return the posterior mean of w, and the posterior probability of the slab.

    The log-likelihood at w = 0 must be 0. With the log evidence log Z of the slab relative to w = 0 and the prior log
    odds r of the spike, the probability of the slab is sigmoid(log Z - r).
    """
    from scipy.interpolate import CubicSpline

    mean, estimate, variance = PRIOR_MEAN * ratio.shrunk, ratio.estimate, ratio.variance
    slab_variance = (PRIOR_DEVIATION * ratio.shrunk) ** 2 + PRIOR_MEAN**2 * variance + MIN_PRIOR_DEVIATION**2
    log_prior = -((FINE_GRID - mean) ** 2) / (2 * slab_variance)
    log_prior -= np.logaddexp.reduce(log_prior)
    log_posterior = CubicSpline(GRID, [log_likelihood(w) for w in GRID])(FINE_GRID) + log_prior
    log_evidence = float(np.logaddexp.reduce(log_posterior))
    slab_mean = float(np.exp(log_posterior - log_evidence) @ FINE_GRID)
    log_spike_odds = (math.log((variance + 1) / variance) - estimate**2 / (variance * (variance + 1))) / 2
    probability = 1 / (1 + math.exp(min(log_spike_odds - log_evidence, 700.0)))
    return probability * slab_mean, probability
