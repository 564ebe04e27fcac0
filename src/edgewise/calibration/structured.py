"""Calibrated edge joints: the marginals of a node calibrator, and one coupling fitted to labeled edges."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

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
from edgewise.calibration.scaling import LocalScaling
from edgewise.inference.coupled_marginals import pointwise_mutual_information, sinkhorn_messages
from edgewise.models.training import minimize_lbfgs
from edgewise.posterior import PairwisePosterior, Posterior
from edgewise.small_samples import check_sample
from edgewise.suggestions import suggest_keywords
from edgewise.validation import as_tensor, check_number

MIN_PRIOR_STANDARD_DEVIATION = 0.25  # nats, of the normal prior of the coupling
MAX_LOG_TEMPERATURE = 10.0  # the minimum is its negative
MAX_COUPLING = 6.0  # nats; Sinkhorn iterations converge slowly for larger couplings
HOPS = 2  # of the propagated features


@suggest_keywords
@dataclass(frozen=True)
class StructuredCalibrator(Calibrator):
    """Edge joints q_ij(l, m) = a_i(l) b_j(m) exp(w 1[l = m]) with calibrated node marginals p_i and p_j.

    **Nodes.** p are the marginals of a node calibrator. For every w there is exactly one q_ij of this form with
    marginals p_i and p_j, so w changes no marginal. Belief propagation from p would change them, and would count the
    neighbors twice, since a graph network has already used them.

    **Log odds ratio.** J compares labeled edges, whose two ends are labeled, with all pairs of labeled nodes. With
    logit(k, n) = log((k + ½) / (n - k + ½)), f = logit(same-label edges, edges) - logit(same-label pairs, pairs). Its
    variance is approximated by V = 1 / (same-label edges + ½) + 1 / (other edges + ½), as if edges were independent and
    the log odds of pairs were exact. J = f · f² / (f² + V) is f shrunk to 0.

    **Coupling.** w maximizes Σ log q_ij(y_i, y_j) / (p_i(y_i) p_j(y_j)) over labeled edges plus the log density of the
    prior N(J/2, (J/6)² + V/4 + 0.25²). The prior mean is half way between 0, which is right if the marginals explain
    all dependence between neighbors, and J, which is right if they explain nothing. The standard deviation J/6 puts
    both ends three standard deviations away; the other two terms widen the prior. |w| is at most 6. Without labeled
    edges w is 0.

    The likelihood needs marginals of a model that was not trained on the labels of the edge:

    - If both ends are validation nodes, the calibrated marginals p are used. These edges are few.
    - On training nodes a network is overconfident. For all other labeled edges the marginals come from a ridge
      regression on features that are propagated over two hops, fitted without the labels of both ends (`leave_out`).
      They are softmax(r / T + log π), with the scores r, the class proportions π of the labeled nodes, and the T with
      the lowest NLL of leave-one-out scores. This assumes that w is about the same for all models that use two hops.
    - Without features only the first kind of edge is used. If there is none, w = J/2.

    The parameters are w as "coupling" and J as "log_odds_ratio", and those of the node calibrator.

    Parameters
    ----------
    nodes
        The node calibrator, by default `LocalScaling`.
    ridge
        Penalty λ of the ridge regression.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> logits = ew.GCN(max_epochs=5).fit(data, split, seed=0).logits
    >>> StructuredCalibrator().fit(logits, data, split).posterior()
    PairwisePosterior(nodes=2708, classes=7, edges=5278)
    """

    nodes: NodeCalibrator = field(default_factory=LocalScaling)
    ridge: float = 1.0

    name = "structured"
    uses_training_labels = True

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, NodeCalibrator):
            raise ValueError(
                f"Expected nodes to be a node calibrator, but got {self.nodes!r}. Pass one, like TemperatureScaling()."
            )
        check_number("ridge", self.ridge, above=0)

    def min_val_nodes(self, num_classes: int) -> int:
        """Return that of the node calibrator."""
        return self.nodes.min_val_nodes(num_classes)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Fit the node calibrator, then J and w."""
        node_parameters = as_tensors(self.nodes.learn_parameters(inputs))
        log_p = self.nodes.log_marginals(node_parameters, inputs.predictions)
        edges = _labeled_edges(inputs)
        log_odds_ratio = _log_odds_ratio(inputs, edges)
        terms = self._likelihood_terms(inputs, log_p, edges)
        coupling = _fit_coupling(*terms, log_odds_ratio) if edges.numel() else 0.0
        _check_num_edges(inputs, terms[1].shape[1])
        return {
            **{f"nodes/{name}": value for name, value in node_parameters.items()},
            "coupling": coupling,
            "surplus": log_odds_ratio.shrunk,  # the key in saved files
        }

    def calibrate(self, learned: Learned, predictions: Predictions) -> Posterior:
        """Return the posterior with edge joints a_i(l) b_j(m) exp(w 1[l = m]) that have the calibrated marginals."""
        log_p = self.nodes.log_marginals(select_prefix("nodes", learned), predictions)
        messages = sinkhorn_messages(log_p[predictions.edge_index], learned["coupling"])
        coupling = learned["coupling"] * torch.eye(log_p.shape[1], dtype=log_p.dtype)
        posterior = PairwisePosterior(
            clamp_log_probs(log_p, predictions.dtype), predictions.edge_index, messages, coupling.unsqueeze(0)
        )
        return posterior.to(predictions.device, predictions.dtype)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Return the parameters of the node calibrator, and w and J."""
        own = {"coupling": learned["coupling"], "log_odds_ratio": learned["surplus"]}
        return {**self.nodes.summarize_parameters(select_prefix("nodes", learned)), **own}

    def _likelihood_terms(
        self, inputs: CalibrationInput, log_p: Float[Tensor, "nodes classes"], edges: Int[Tensor, "2 edges"]
    ) -> tuple[Float[Tensor, "2 used classes"], Int[Tensor, "2 used"]]:
        """Return the log marginals and the labels of the ends of the edges in the likelihood of w."""
        both_val = inputs.val[edges].all(0)
        val_edges, other_edges = edges[:, both_val], edges[:, ~both_val]
        if inputs.raw_features is None or other_edges.shape[1] == 0:
            return log_p[val_edges], inputs.labels[val_edges]
        labeled = inputs.train | inputs.val
        position = labeled.cumsum(0) - 1
        features = propagate_features(_check_features(inputs), inputs.predictions.normalized_adjacency, labeled)
        labels = inputs.labels[labeled]
        scores = leave_out(features, labels, log_p.shape[1], position[other_edges], self.ridge)
        # Scores are centered: they are near 0, and the class proportions remain, where the features are uninformative.
        log_proportions = (torch.bincount(labels, minlength=log_p.shape[1]) + 0.5).to(log_p.dtype).log()
        temperature = _fit_temperature_with_offset(scores.nodes, labels, log_proportions)
        other_log_p = (scores.pairs / temperature + log_proportions).log_softmax(-1)
        log_marginals = torch.cat([log_p[val_edges], other_log_p], dim=1)
        return log_marginals, torch.cat([inputs.labels[val_edges], inputs.labels[other_edges]], dim=1)


def _fit_temperature_with_offset(
    scores: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], offset: Float[Tensor, " classes"]
) -> float:
    """Return the T that minimizes the NLL of softmax(scores / T + offset)."""

    def loss(log_temperature: Float[Tensor, " 1"]) -> Tensor:
        return cross_entropy(scores / log_temperature.exp() + offset, labels)

    log_temperature = minimize_lbfgs(loss, [0.0], tol=LBFGS_TOLERANCE)[0]
    return float(log_temperature.clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE).exp())


def _check_features(inputs: CalibrationInput) -> Float[Tensor, "nodes features"]:
    x = inputs.raw_features
    x = as_tensor(x.to_dense() if isinstance(x, Tensor) else x, "x").cpu().double()
    fix = "To calibrate without features, set data.x = None, or omit --features on the command line."
    if x.ndim != 2 or len(x) != len(inputs.labels):
        expected = f"({len(inputs.labels)}, features)"
        raise ValueError(f"Expected x of shape {expected}, but got shape {tuple(x.shape)}. {fix}")
    if bool((bad := ~x.isfinite().all(1)).any()):
        node = int(bad.nonzero()[0])
        raise ValueError(f"Expected finite features x, but those of node {node} contain NaN or infinity. {fix}")
    return x


def _check_num_edges(inputs: CalibrationInput, num_edges: int) -> None:
    advice = "Label neighbors of labeled nodes, or calibrate nodes only: ew.LocalScaling()."
    if inputs.raw_features is None:
        advice = "Pass features, data.x or --features on the command line, to use edges of training nodes too."
    check_sample("The coupling of StructuredCalibrator was fitted to", num_edges, "edges between labeled nodes", advice)


def _labeled_edges(inputs: CalibrationInput) -> Int[Tensor, "2 labeled"]:
    """Return the edges whose two ends are labeled."""
    return inputs.predictions.edge_index[:, (inputs.labels[inputs.predictions.edge_index] >= 0).all(0)]


class _LogOddsRatio(NamedTuple):
    """The shrunk log odds ratio J, and the variance V of its unshrunk estimate f."""

    shrunk: float
    variance: float


def _log_odds_ratio(inputs: CalibrationInput, edges: Int[Tensor, "2 edges"]) -> _LogOddsRatio:
    """Compute J from the log odds of the same label on labeled edges and on all pairs of labeled nodes."""
    labels = inputs.labels[inputs.labels >= 0]
    counts = torch.bincount(labels).double()
    same = float((inputs.labels[edges[0]] == inputs.labels[edges[1]]).sum())
    same_pairs, pairs = float((counts * (counts - 1)).sum()) / 2, len(labels) * (len(labels) - 1) / 2
    estimate = _logit(same, edges.shape[1]) - _logit(same_pairs, pairs)
    variance = 1 / (same + 0.5) + 1 / (edges.shape[1] - same + 0.5)
    return _LogOddsRatio(estimate * estimate**2 / (estimate**2 + variance), variance)


def _logit(count: float, total: float) -> float:
    return math.log((count + 0.5) / (total - count + 0.5))


def _fit_coupling(
    log_marginals: Float[Tensor, "2 edges classes"], labels: Int[Tensor, "2 edges"], log_odds_ratio: _LogOddsRatio
) -> float:
    """Return the w that minimizes the NLL of the edges plus (w - J/2)² / 2σ² with σ² = (J/6)² + V/4 + 0.25²."""
    from scipy.optimize import minimize_scalar

    mean = log_odds_ratio.shrunk / 2
    deviation = math.sqrt(
        (log_odds_ratio.shrunk / 6) ** 2 + log_odds_ratio.variance / 4 + MIN_PRIOR_STANDARD_DEVIATION**2
    )

    def loss(coupling: float) -> float:
        # The NLL of the marginals does not depend on w.
        w = torch.tensor(coupling, dtype=log_marginals.dtype)
        log_likelihood = pointwise_mutual_information(log_marginals, w, labels).sum()
        return -float(log_likelihood) + ((coupling - mean) / deviation) ** 2 / 2

    result = minimize_scalar(loss, bounds=(-MAX_COUPLING, MAX_COUPLING), method="bounded", options={"xatol": 1e-4})
    return float(result.x)


class LeaveOutScores(NamedTuple):
    """Scores of each labeled node, fitted without its label, and of the ends of each pair, without both labels."""

    nodes: Float[Tensor, "labeled classes"]
    pairs: Float[Tensor, "2 pairs classes"]


def leave_out(
    features: Float[Tensor, "labeled features"],
    labels: Int[Tensor, " labeled"],
    num_classes: int,
    pairs: Int[Tensor, "2 pairs"],
    ridge: float,
) -> LeaveOutScores:
    """Compute leave-one-out and leave-two-out predictions of a ridge regression in closed form.

    The targets are one-hot labels minus the class proportions of all labeled nodes. Left-out labels count in these
    proportions, but do not enter their own prediction otherwise. With residuals e = (I - H) y of the
    hat matrix H, the prediction for node i is y_i - e_i / (1 - H_ii). For a pair S the predictions are
    y_S - (I - H_SS)⁻¹ e_S.
    """
    targets = one_hot(labels, num_classes).to(features.dtype)
    targets = targets - targets.mean(0)
    factor, identity = _factor_hat_matrix(features, ridge)
    sign = 1 - 2 * identity  # I - H = identity · I + sign · factor factorᵀ
    residuals = identity * targets + sign * (factor @ (factor.T @ targets))
    diagonal = identity + sign * factor.square().sum(1)  # 1 - H_ii
    start, end = pairs
    off_diagonal = sign * (factor[start] * factor[end]).sum(1)  # -H_ij
    determinant = (diagonal[start] * diagonal[end] - off_diagonal.square()).unsqueeze(1)
    without_start = diagonal[end, None] * residuals[start] - off_diagonal[:, None] * residuals[end]
    without_end = diagonal[start, None] * residuals[end] - off_diagonal[:, None] * residuals[start]
    scores = [targets[start] - without_start / determinant, targets[end] - without_end / determinant]
    return LeaveOutScores(targets - residuals / diagonal.unsqueeze(1), torch.stack(scores))


def propagate_features(x: Float[Tensor, "nodes features"], adjacency: Any, nodes: Bool[Tensor, " nodes"]) -> Tensor:
    """Compute the rows of Â² X of some nodes, scaled to length 1."""
    rows = adjacency[nodes.numpy()]
    for _ in range(HOPS - 1):
        rows = rows @ adjacency
    propagated = torch.from_numpy(rows @ x.numpy())
    length: Tensor = propagated.norm(dim=1, keepdim=True)
    return propagated / length.clamp(min=torch.finfo(x.dtype).tiny)


def _factor_hat_matrix(
    features: Float[Tensor, "labeled features"], ridge: float
) -> tuple[Float[Tensor, "labeled rank"], int]:
    """Return (B, 1) with H = B Bᵀ; or (B, 0) with I - H = B Bᵀ, if there are more features than nodes.

    H = X (XᵀX + λI)⁻¹ Xᵀ = I - λ (XXᵀ + λI)⁻¹. With many features H is so close to I that computing I - H as a
    difference would lose precision.
    """
    num_nodes, num_features = features.shape
    if num_features <= num_nodes:
        gram = features.T @ features + ridge * torch.eye(num_features, dtype=features.dtype)
        root = torch.linalg.cholesky(gram)
        factor: Tensor = torch.linalg.solve_triangular(root, features.T, upper=False).T
        return factor, 1
    values, vectors = torch.linalg.eigh(features @ features.T)
    scale: Tensor = (ridge / (values.clamp(min=0) + ridge)).sqrt()
    return vectors * scale, 0
