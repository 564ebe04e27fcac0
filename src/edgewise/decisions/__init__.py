"""Decisions about pairs of nodes: predicted labels, selective prediction, thresholds."""

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
    "EdgePredictions",
    "RiskCoverage",
    "Selective",
    "Threshold",
    "ThresholdOutcome",
    "bayes_threshold",
    "predict_edges",
    "risk_coverage",
    "selective",
    "threshold_for_believed_fdr",
    "threshold_for_cost",
    "threshold_for_fdr",
    "threshold_for_precision",
]
