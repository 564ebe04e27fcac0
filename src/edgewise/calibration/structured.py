"""Calibrated joints of neighbors: the marginals of a node calibrator, coupled as much as labeled edges say."""

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
    below,
    floored,
)
from edgewise.calibration.scaling import LocalScaling
from edgewise.inference.coupled_marginals import pointwise_mutual_information, sinkhorn_messages
from edgewise.models.training import minimize_lbfgs
from edgewise.posterior import PairwisePosterior, Posterior
from edgewise.validation import as_tensor, check_number

MIN_PRIOR = 0.25  # nats: the standard deviation of the prior of a coupling is never smaller
MAX_LOG_TEMPERATURE = 10.0  # the smallest is its negative
MAX_COUPLING = 6.0  # nats; more would make the scaling of rows and columns slow


@dataclass(frozen=True)
class StructuredCalibrator(Calibrator):
    """q_ij(l, m) = a_i(l) b_j(m) exp(w 1[l = m]) for each edge, with a and b such that its marginals are p_i and p_j.

    p are the marginals of a node calibrator, and stay as they are: the network has used the neighbors already, so
    belief propagation would count them twice. Only how far two ends go together is new. That is one number w, learned
    from edges with both ends labeled. Edges between validation nodes speak for the calibrated marginals themselves,
    but are few, and a network is too sure of labels that it was trained on. So for other labeled edges the likelihood
    of w is that of marginals by a simpler model, a ridge regression on features averaged over two hops, which leaves
    out both labels of each edge in turn (`left_out`): this takes w for much the same in all models that look as far.
    Without features there are only the edges between validation nodes.

    w is shrunk: labels alone say J, by how much the log odds of equal labels on edges exceed those of any two nodes.
    Marginals that know nothing would leave all of it to w, and marginals that know everything nothing. So before the
    likelihood w is J / 2, and none and all are three standard deviations off; J is itself shrunk to 0 by its own
    variance, which also widens the prior. The parameters are w as "coupling" and J as "surplus", beside those of the
    node calibrator. Without training nodes, edges between validation nodes tell both.

    Parameters
    ----------
    nodes
        The calibrator of single nodes, by default `LocalScaling`.
    ridge
        The penalty of the regression.

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
                f"Expected nodes to be a calibrator of nodes, say TemperatureScaling(), but got {self.nodes!r}."
            )
        check_number("ridge", self.ridge, above=0)

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        """Learn the marginals, then w by the likelihood of labeled edges and its prior."""
        of_nodes = as_tensors(self.nodes.learn_parameters(inputs))
        log_p = self.nodes.log_marginals(of_nodes, inputs.predictions)
        known = _labeled_edges(inputs)
        surplus = _surplus(inputs, known)
        strength = _strength(*self._evidence(inputs, log_p, known), surplus) if known.shape[1] else 0.0
        return {
            **{f"nodes/{name}": value for name, value in of_nodes.items()},
            "coupling": strength,
            "surplus": surplus.mean,
        }

    def calibrate(self, learned: Learned, predictions: Predictions) -> Posterior:
        """Couple the ends of all edges by w 1[l = m], with messages that keep their marginals."""
        log_p = self.nodes.log_marginals(below("nodes", learned), predictions)
        messages = sinkhorn_messages(log_p[predictions.edge_index], learned["coupling"])
        coupling = learned["coupling"] * torch.eye(log_p.shape[1], dtype=log_p.dtype)
        posterior = PairwisePosterior(
            floored(log_p, predictions.dtype), predictions.edge_index, messages, coupling.unsqueeze(0)
        )
        return posterior.to(predictions.device, predictions.dtype)

    def summarize_parameters(self, learned: Learned) -> Parameters:
        """Show what the calibrator of nodes shows, and w and J."""
        # Files of format 1 store the log odds ratio as "surplus".
        own = {"coupling": learned["coupling"], "log_odds_ratio": learned["surplus"]}
        return {**self.nodes.summarize_parameters(below("nodes", learned)), **own}

    def _evidence(
        self, inputs: CalibrationInput, log_p: Float[Tensor, "nodes classes"], known: Int[Tensor, "2 known"]
    ) -> tuple[Float[Tensor, "2 pairs classes"], Int[Tensor, "2 pairs"]]:
        """Return log marginals of the ends of labeled edges that were made without their labels, and these labels."""
        both_validate = inputs.val[known].all(0)
        own, others = known[:, both_validate], known[:, ~both_validate]
        if inputs.raw_features is None or others.shape[1] == 0:
            return log_p[own], inputs.labels[own]
        labeled = inputs.train | inputs.val
        place = labeled.cumsum(0) - 1
        features = propagate_features(_features(inputs), inputs.predictions.normalized_adjacency, labeled)
        labels = inputs.labels[labeled]
        scores = left_out(features, labels, log_p.shape[1], place[others], self.ridge)
        # Scores are about 0 where features say nothing; there a node has the shares of classes.
        log_shares = (torch.bincount(labels, minlength=log_p.shape[1]) + 0.5).to(log_p.dtype).log()
        temperature = _temperature_with_shares(scores.nodes, labels, log_shares)
        of_others = (scores.pairs / temperature + log_shares).log_softmax(-1)
        return torch.cat([log_p[own], of_others], dim=1), torch.cat([inputs.labels[own], inputs.labels[others]], dim=1)


def _temperature_with_shares(
    scores: Float[Tensor, "nodes classes"], labels: Int[Tensor, " nodes"], log_shares: Float[Tensor, " classes"]
) -> float:
    """Find the T of the lowest NLL of softmax(scores / T + log shares)."""

    def loss(log_temperature: Float[Tensor, " 1"]) -> Tensor:
        return cross_entropy(scores / log_temperature.exp() + log_shares, labels)

    return float(
        minimize_lbfgs(loss, [0.0], tol=LBFGS_TOLERANCE)[0].clamp(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE).exp()
    )


def _features(inputs: CalibrationInput) -> Float[Tensor, "nodes features"]:
    x = inputs.raw_features
    x = as_tensor(x.to_dense() if isinstance(x, Tensor) else x, "x").cpu().double()
    way_out = "To do without features set data.x = None, in a command leave --features out."
    if x.ndim != 2 or len(x) != len(inputs.labels):
        expected = f"({len(inputs.labels)}, features)"
        raise ValueError(f"Expected x of shape {expected}, but got shape {tuple(x.shape)}. {way_out}")
    if bool((bad := ~x.isfinite().all(1)).any()):
        node = int(bad.nonzero()[0])
        raise ValueError(f"Expected finite features x, but those of node {node} hold NaN or infinity. {way_out}")
    return x


def _labeled_edges(inputs: CalibrationInput) -> Int[Tensor, "2 known"]:
    """Return the edges whose ends both have a label that may be looked at."""
    return inputs.predictions.edge_index[:, (inputs.labels[inputs.predictions.edge_index] >= 0).all(0)]


class _Surplus(NamedTuple):
    """J, shrunk to 0 by its variance, and that variance."""

    mean: float
    variance: float


def _surplus(inputs: CalibrationInput, known: Int[Tensor, "2 known"]) -> _Surplus:
    """J: by how much the log odds of equal labels on labeled edges exceed those of any two labeled nodes."""
    labels = inputs.labels[inputs.labels >= 0]
    counts = torch.bincount(labels).double()
    equal = float((inputs.labels[known[0]] == inputs.labels[known[1]]).sum())
    pairs_equal, pairs = float((counts * (counts - 1)).sum()) / 2, len(labels) * (len(labels) - 1) / 2
    found = _log_odds(equal, known.shape[1]) - _log_odds(pairs_equal, pairs)
    variance = 1 / (equal + 0.5) + 1 / (known.shape[1] - equal + 0.5)
    return _Surplus(found * found**2 / (found**2 + variance), variance)


def _log_odds(happened: float, of: float) -> float:
    return math.log((happened + 0.5) / (of - happened + 0.5))


def _strength(log_ends: Float[Tensor, "2 pairs classes"], labels: Int[Tensor, "2 pairs"], surplus: _Surplus) -> float:
    """Find the w of the lowest NLL of labeled edges, plus (w - J/2)² / 2σ² with σ² = (J/6)² + Var(J)/4 + ¼²."""
    from scipy.optimize import minimize_scalar

    middle = surplus.mean / 2
    deviation = math.sqrt((surplus.mean / 6) ** 2 + surplus.variance / 4 + MIN_PRIOR**2)

    def loss(strength: float) -> float:
        # What the marginals say of each end does not depend on w.
        information = pointwise_mutual_information(log_ends, torch.tensor(strength, dtype=log_ends.dtype), labels)
        return -float(information.sum()) + ((strength - middle) / deviation) ** 2 / 2

    found = minimize_scalar(loss, bounds=(-MAX_COUPLING, MAX_COUPLING), method="bounded", options={"xatol": 1e-4})
    return float(found.x)


HOPS = 2


class LeftOut(NamedTuple):
    """Scores of each labeled node without its own label, and of the ends of each pair without both labels."""

    nodes: Float[Tensor, "labeled classes"]
    pairs: Float[Tensor, "2 pairs classes"]


def left_out(
    features: Float[Tensor, "labeled features"],
    labels: Int[Tensor, " labeled"],
    num_classes: int,
    pairs: Int[Tensor, "2 pairs"],
    ridge: float,
) -> LeftOut:
    """Give what ridge regression says of nodes, and of the ends of pairs, that are left out of it.

    Its targets are one-hot labels less the shares of classes among all labeled nodes.
    """
    targets = one_hot(labels, num_classes).to(features.dtype)
    targets = targets - targets.mean(0)
    half, unit = _half_of_hat(features, ridge)
    sign = 1 - 2 * unit  # I - H = unit I + sign half halfᵀ
    residuals = unit * targets + sign * (half @ (half.T @ targets))
    room = unit + sign * half.square().sum(1)  # 1 - H_ii
    start, end = pairs
    link = sign * (half[start] * half[end]).sum(1)  # -H_ij
    determinant = (room[start] * room[end] - link.square()).unsqueeze(1)
    without_start = room[end, None] * residuals[start] - link[:, None] * residuals[end]
    without_end = room[start, None] * residuals[end] - link[:, None] * residuals[start]
    scores = [targets[start] - without_start / determinant, targets[end] - without_end / determinant]
    return LeftOut(targets - residuals / room.unsqueeze(1), torch.stack(scores))


def propagate_features(x: Float[Tensor, "nodes features"], averaging: Any, nodes: Bool[Tensor, " nodes"]) -> Tensor:
    """Average features twice over neighbors, as a GCN does, and scale the rows of some nodes to length 1."""
    chosen = averaging[nodes.numpy()]
    for _ in range(HOPS - 1):
        chosen = chosen @ averaging
    rows = torch.from_numpy(chosen @ x.numpy())
    length: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / length.clamp(min=torch.finfo(x.dtype).tiny)


def _half_of_hat(
    features: Float[Tensor, "labeled features"], ridge: float
) -> tuple[Float[Tensor, "labeled rank"], int]:
    """Give B with H = B Bᵀ, and 1; where features are more than nodes, B with I - H = B Bᵀ, and 0.

    H = X (XᵀX + λI)⁻¹ Xᵀ = I - λ (XXᵀ + λI)⁻¹, and with many features H is so near to I that I - H must not be taken
    as a difference.
    """
    nodes, width = features.shape
    if width <= nodes:
        gram = features.T @ features + ridge * torch.eye(width, dtype=features.dtype)
        root = torch.linalg.cholesky(gram)
        half: Tensor = torch.linalg.solve_triangular(root, features.T, upper=False).T
        return half, 1
    values, vectors = torch.linalg.eigh(features @ features.T)
    left: Tensor = (ridge / (values.clamp(min=0) + ridge)).sqrt()
    return vectors * left, 0
