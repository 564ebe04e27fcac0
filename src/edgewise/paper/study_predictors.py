"""Who predicts in a study: trained models, and references that know the law of the graph."""

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
    """A graph, who is labeled in it, its true posterior, and models that are trained when they are first asked for."""

    graph: SyntheticGraph
    split: Split
    truth: Posterior
    seed: int
    _fitted: dict[Hashable, Any] = field(default_factory=dict)

    def fitted(self, model: Model[F], with_edges: bool = True) -> F:
        """Train a model on the graph, once; without edges it looks at single nodes."""
        if (model, with_edges) not in self._fitted:
            data = self.graph.data.clone()
            data.edge_index = data.edge_index if with_edges else data.edge_index[:, :0]
            self._fitted[model, with_edges] = model.fit(data, self.split, seed=self.seed)
        fitted: F = self._fitted[model, with_edges]
        return fitted


Predictor = Callable[[Case], Posterior]


def features_alone(case: Case) -> Posterior:
    """Say what a node's features say by Bayes' rule, and nothing of the graph: calibrated, with less to go by."""
    return IndependentPosterior(case.graph.field.unary.softmax(-1))


def base_rate(case: Case) -> Posterior:
    """Say the same of all edges: how often neighbors have each pair of labels. Calibrated, and knows nothing."""
    affinity = case.graph.coupling.exp()
    joint = affinity / affinity.sum()
    node = joint.sum(1).expand(case.graph.field.num_nodes, -1)
    edges = case.graph.edge_index
    return PairwisePosterior.from_joints(node, edges, joint.expand(edges.shape[1], -1, -1))


def sum_product_on_true_mrf(case: Case) -> Posterior:
    """Know the law of the graph and the training labels, and infer by belief propagation."""
    return sum_product(case.graph.mrf(case.split.train))[0]


def _calibrated_gcn(calibrator: Calibrator, case: Case) -> Posterior:
    return calibrator.fit(case.fitted(GCN()), case.graph.data, case.split).posterior()


# What is learned from the training labels: add a line for each further model or calibration.
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
    *("edge_accuracy", "edges"),  # by the labels that were drawn
    *("edge_kl", "edge_tv", "edge_squared", "node_kl", "node_tv", "edge_ece_expected"),  # by the true joints
)


def scores(
    prediction: Posterior, truth: Posterior, graph: SyntheticGraph, test: Bool[Tensor, " nodes"]
) -> dict[str, float]:
    """Score a prediction on test nodes, and on edges between them, against drawn labels and against the true joints."""
    ev = evaluate(prediction, graph.data.y, graph.data.edge_index, mask=test, n_bins=N_BINS, same_label=True)
    assert ev.same_label is not None
    edges = graph.edge_index[:, test[graph.edge_index].all(0)]
    exact = [posterior.to("cpu", torch.float64) for posterior in (truth, prediction)]  # small products stay above zero
    true, said = (posterior.joint(edges) for posterior in exact)
    true_node, said_node = (posterior.node[test] for posterior in exact)
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
        "edge_kl": mean_kl(true.flatten(1), said.flatten(1)),
        "edge_tv": mean_total_variation(true.flatten(1), said.flatten(1)),
        "edge_squared": float((true - said).square().sum((1, 2)).mean()),
        "node_kl": mean_kl(true_node, said_node),
        "node_tv": mean_total_variation(true_node, said_node),
        "edge_ece_expected": expected_ece(true, said, prediction.node[edges].argmax(-1)),
    }
    return by_labels | by_truth


def mean_kl(true: Float[Tensor, "rows entries"], said: Float[Tensor, "rows entries"]) -> float:
    """Compute the mean of Σ p log(p / q): what the expected NLL of q is above the least possible.

    >>> half = torch.tensor([[0.5, 0.5]])
    >>> round(mean_kl(half, torch.tensor([[0.9, 0.1]])), 4), mean_kl(half, half)
    (0.5108, 0.0)
    """
    return float((torch.special.xlogy(true, true) - torch.special.xlogy(true, said)).sum(1).mean())


def mean_total_variation(true: Float[Tensor, "rows entries"], said: Float[Tensor, "rows entries"]) -> float:
    """Compute the mean of ½ Σ |p - q|: by how much the probability of any event may be off."""
    return float((true - said).abs().sum(1).mean() / 2.0)


def expected_ece(
    true: Float[Tensor, "edges classes classes"],
    said: Float[Tensor, "edges classes classes"],
    predicted: Int[Tensor, "2 edges"],
) -> float:
    """Compute the calibration error with the true probability of being right in the place of being right.

    It is what the edge ECE measures, without the noise of the labels that happened to be drawn.
    """
    confidence, binning = said.flatten(1).amax(1), Binning(N_BINS)
    right = true[torch.arange(len(true)), predicted[0], predicted[1]]
    place = bin_index(confidence, binning, bin_boundaries(binning))
    gaps = torch.bincount(place, weights=(right - confidence).double(), minlength=N_BINS)
    return float(gaps.abs().sum() / max(1, len(confidence)))
