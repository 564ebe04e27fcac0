"""Predictors of the study, trained models and references that know the graph's distribution, and their scores."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.calibration import Calibrator
from edgewise.calibration.scaling import TemperatureScaling
from edgewise.calibration.structured import StructuredCalibrator
from edgewise.data import Split
from edgewise.inference import sum_product
from edgewise.metrics import evaluate
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import bin_boundaries, bin_index
from edgewise.models.epfgnn import EPFGNN
from edgewise.models.gat import GAT
from edgewise.models.gcn import GCN
from edgewise.models.gmnn import GMNN
from edgewise.models.joint_gcn import JointGCN
from edgewise.models.model import F, Model
from edgewise.posterior import IndependentPosterior, PairwisePosterior, Posterior
from edgewise.simulation import SyntheticGraph


@dataclass(frozen=True, eq=False)
class Case:
    """A graph, its split, its true posterior, and a cache of trained models."""

    graph: SyntheticGraph
    split: Split
    truth: Posterior
    seed: int
    _fitted: dict[Hashable, Any] = field(default_factory=dict)

    def fitted(self, model: Model[F], with_edges: bool = True) -> F:
        """Train a model on the graph, or on its nodes without edges, and cache it."""
        if (model, with_edges) not in self._fitted:
            data = self.graph.data.clone()
            data.edge_index = data.edge_index if with_edges else data.edge_index[:, :0]
            self._fitted[model, with_edges] = model.fit(data, self.split, seed=self.seed)
        fitted: F = self._fitted[model, with_edges]
        return fitted


Predictor = Callable[[Case], Posterior]


def features_alone(case: Case) -> Posterior:
    """Return P(label | features of the node) by Bayes' rule: calibrated, but without information from the graph."""
    return IndependentPosterior(case.graph.field.unary.softmax(-1))


def base_rate(case: Case) -> Posterior:
    """Return the same joint for all edges, the frequency of label pairs: calibrated, but uninformative."""
    affinity = case.graph.coupling.exp()
    joint = affinity / affinity.sum()
    node = joint.sum(1).expand(case.graph.field.num_nodes, -1)
    edges = case.graph.edge_index
    return PairwisePosterior.from_joints(node, edges, joint.expand(edges.shape[1], -1, -1))


def sum_product_on_true_mrf(case: Case) -> Posterior:
    """Run sum-product on the true MRF with the training labels clamped."""
    return sum_product(case.graph.mrf(case.split.train))[0]


def _calibrated_gcn(calibrator: Calibrator, case: Case) -> Posterior:
    return calibrator.fit(case.fitted(GCN()), case.graph.data, case.split).posterior()


# Trained on the training labels. To add a model or a calibrator, add a line.
TRAINED_PREDICTORS: Mapping[str, Predictor] = {
    "gcn": lambda case: case.fitted(GCN()).posterior(),
    "gat": lambda case: case.fitted(GAT()).posterior(),
    "gmnn": lambda case: case.fitted(GMNN()).posterior(),
    "gmnn averaged logits": lambda case: case.fitted(GMNN()).posterior("averaged_logits"),
    "epfgnn": lambda case: case.fitted(EPFGNN()).posterior(),
    "jointgcn": lambda case: case.fitted(JointGCN()).posterior(),
    "mlp": lambda case: case.fitted(GCN(), with_edges=False).posterior(),
    "gcn, temperature": lambda case: _calibrated_gcn(TemperatureScaling(), case),
    "gcn, structured": lambda case: _calibrated_gcn(StructuredCalibrator(), case),
}
REFERENCE_PREDICTORS: Mapping[str, Predictor] = {
    "truth": lambda case: case.truth,
    "true marginals": lambda case: IndependentPosterior(case.truth.node),
    "sum-product on the true field": sum_product_on_true_mrf,
    "features alone": features_alone,
    "base rate": base_rate,
}
PREDICTORS: Mapping[str, Predictor] = {**TRAINED_PREDICTORS, **REFERENCE_PREDICTORS}


N_BINS = 15
SCORES = (
    *("edge_ece", "edge_nll", "edge_brier", "same_ece", "agree_ece", "disagree_ece", "node_ece", "node_nll"),
    *("edge_accuracy", "edges"),  # up to here by the drawn labels
    *("edge_kl", "edge_tv", "edge_squared", "node_kl", "node_tv", "edge_ece_expected"),  # by the true joints
)


def score_prediction(
    prediction: Posterior, truth: Posterior, graph: SyntheticGraph, test: Bool[Tensor, " nodes"]
) -> dict[str, float]:
    """Score a prediction on test nodes and the edges between them, by the drawn labels and by the true joints."""
    ev = evaluate(prediction, graph.data.y, graph.data.edge_index, mask=test, n_bins=N_BINS, same_label=True)
    assert ev.same_label is not None
    edges = graph.edge_index[:, test[graph.edge_index].all(0)]
    exact = [
        posterior.to("cpu", torch.float64) for posterior in (truth, prediction)
    ]  # float64 keeps small products above 0
    true, predicted = (posterior.joint(edges) for posterior in exact)
    true_node, predicted_node = (posterior.node[test] for posterior in exact)
    by_labels = {
        "edge_ece": ev.edgewise.ece,
        "edge_nll": ev.edgewise.nll,
        "edge_brier": ev.edgewise.brier,
        "same_ece": ev.same_label.ece,
        "agree_ece": ev.agree.ece,
        "disagree_ece": ev.disagree.ece,
        "node_ece": ev.nodewise.ece,
        "node_nll": ev.nodewise.nll,
        "edge_accuracy": ev.edgewise.accuracy,
        "edges": float(ev.edgewise.count),
    }
    by_truth = {
        "edge_kl": mean_kl(true.flatten(1), predicted.flatten(1)),
        "edge_tv": mean_total_variation(true.flatten(1), predicted.flatten(1)),
        "edge_squared": float((true - predicted).square().sum((1, 2)).mean()),
        "node_kl": mean_kl(true_node, predicted_node),
        "node_tv": mean_total_variation(true_node, predicted_node),
        "edge_ece_expected": expected_ece(true, predicted, prediction.node[edges].argmax(-1)),
    }
    return by_labels | by_truth


def mean_kl(true: Float[Tensor, "rows entries"], predicted: Float[Tensor, "rows entries"]) -> float:
    """Compute the mean over rows of KL(p ‖ q) = Σ p log(p / q), the excess of the expected NLL of q over its minimum.

    >>> half = torch.tensor([[0.5, 0.5]])
    >>> round(mean_kl(half, torch.tensor([[0.9, 0.1]])), 4), mean_kl(half, half)
    (0.5108, 0.0)
    """
    return float((torch.special.xlogy(true, true) - torch.special.xlogy(true, predicted)).sum(1).mean())


def mean_total_variation(true: Float[Tensor, "rows entries"], predicted: Float[Tensor, "rows entries"]) -> float:
    """Compute the mean over rows of ½ Σ |p - q|, the largest error in the probability of any event."""
    return float((true - predicted).abs().sum(1).mean() / 2.0)


def expected_ece(
    true: Float[Tensor, "edges classes classes"],
    predicted: Float[Tensor, "edges classes classes"],
    labels: Int[Tensor, "2 edges"],
) -> float:
    """Compute the edge ECE with the true probability that the predicted ``labels`` are correct in place of correctness.

    It is the edge ECE without the noise of the drawn labels.
    """
    confidence, binning = predicted.flatten(1).amax(1), Binning(N_BINS)
    p_correct = true[torch.arange(len(true)), labels[0], labels[1]]
    place = bin_index(confidence, binning, bin_boundaries(binning))
    gaps = torch.bincount(place, weights=(p_correct - confidence).double(), minlength=N_BINS)
    return float(gaps.abs().sum() / max(1, len(confidence)))
