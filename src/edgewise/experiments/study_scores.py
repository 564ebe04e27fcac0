"""How far a prediction is from the truth, and how it scores where only labels are known."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.metrics import evaluate
from edgewise.posterior import Posterior
from edgewise.simulation import SyntheticGraph

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
    """Give the mean of Σ p log(p / q): what the expected NLL of q is above the least possible.

    >>> half = torch.tensor([[0.5, 0.5]])
    >>> round(mean_kl(half, torch.tensor([[0.9, 0.1]])), 4), mean_kl(half, half)
    (0.5108, 0.0)
    """
    return float((torch.special.xlogy(true, true) - torch.special.xlogy(true, said)).sum(1).mean())


def mean_total_variation(true: Float[Tensor, "rows entries"], said: Float[Tensor, "rows entries"]) -> float:
    """Give the mean of ½ Σ |p - q|: by how much the probability of any event may be off."""
    return float((true - said).abs().sum(1).mean() / 2.0)


def expected_ece(
    true: Float[Tensor, "edges classes classes"],
    said: Float[Tensor, "edges classes classes"],
    predicted: Int[Tensor, "2 edges"],
) -> float:
    """Give the calibration error with the true probability of being right in the place of being right.

    It is what the edge ECE measures, without the noise of the labels that happened to be drawn.
    """
    confidence = said.flatten(1).amax(1).numpy()
    right = true[torch.arange(len(true)), predicted[0], predicted[1]].numpy()
    place = np.clip(np.ceil(confidence * N_BINS).astype(int) - 1, 0, N_BINS - 1)
    gaps = np.bincount(place, weights=right - confidence, minlength=N_BINS)
    return float(np.abs(gaps).sum() / max(1, len(confidence)))
