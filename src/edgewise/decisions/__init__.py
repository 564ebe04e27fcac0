"""Decisions about nodes and pairs of nodes: predicted labels, selective prediction, thresholds, conformal sets."""

from edgewise.decisions.conformal_nodes import ConformalNodes, NodePredictionSets
from edgewise.decisions.conformal_pairs import ConformalPairs, PairPredictionSets
from edgewise.decisions.conformal_scores import Coverage, ExchangeabilityWarning
from edgewise.decisions.conformal_selection import PairSelection, benjamini_hochberg, conformal_p_values
from edgewise.decisions.edge_predictions import EdgePredictions
from edgewise.decisions.predict import predict_edges
from edgewise.decisions.risk_coverage import RiskCoverage, Selective, risk_coverage, selective
from edgewise.decisions.thresholds import (
    Threshold,
    ThresholdOutcome,
    bayes_threshold,
    threshold_for_believed_fdr,
    threshold_for_cost,
    threshold_for_fdr,
    threshold_for_precision,
)

__all__ = [
    "ConformalNodes",
    "ConformalPairs",
    "Coverage",
    "EdgePredictions",
    "ExchangeabilityWarning",
    "NodePredictionSets",
    "PairPredictionSets",
    "PairSelection",
    "RiskCoverage",
    "Selective",
    "Threshold",
    "ThresholdOutcome",
    "bayes_threshold",
    "benjamini_hochberg",
    "conformal_p_values",
    "predict_edges",
    "risk_coverage",
    "selective",
    "threshold_for_believed_fdr",
    "threshold_for_cost",
    "threshold_for_fdr",
    "threshold_for_precision",
]
