"""Act on edges: what is believed about pairs, what is decided selectively, and from which threshold on."""

from edgewise.decisions.choose import bayes_threshold, threshold_for_cost, threshold_for_precision
from edgewise.decisions.edge_predictions import EdgePredictions
from edgewise.decisions.false_discoveries import threshold_for_believed_fdr, threshold_for_fdr
from edgewise.decisions.predict import predict_edges
from edgewise.decisions.risk_coverage import RiskCoverage, risk_coverage
from edgewise.decisions.selective import Selective, selective
from edgewise.decisions.threshold import Outcome, Threshold

__all__ = [
    "EdgePredictions",
    "Outcome",
    "RiskCoverage",
    "Selective",
    "Threshold",
    "bayes_threshold",
    "predict_edges",
    "risk_coverage",
    "selective",
    "threshold_for_believed_fdr",
    "threshold_for_cost",
    "threshold_for_fdr",
    "threshold_for_precision",
]
