"""Structured uncertainty on graphs: whether probabilities are right, for nodes and for pairs of neighbours.

dataset → split → model.fit → posterior → calibrator.fit → evaluate → scores → table, JSON, reliability diagram
                                                        → predict_edges → decisions
"""

from importlib import import_module
from typing import TYPE_CHECKING

from edgewise.version import __version__

if TYPE_CHECKING:
    from edgewise.calibration import (
        GATS,
        CaGCN,
        Calibrator,
        EnsembleTemperatureScaling,
        IsotonicCalibration,
        LocalScaling,
        StructuredCalibrator,
        TemperatureScaling,
        VectorScaling,
        isotonic_map,
    )
    from edgewise.data import Split, load_dataset, load_splits, make_splits
    from edgewise.decisions import (
        EdgePredictions,
        RiskCoverage,
        Threshold,
        bayes_threshold,
        predict_edges,
        risk_coverage,
        selective,
        threshold_for_believed_fdr,
        threshold_for_cost,
        threshold_for_fdr,
        threshold_for_precision,
    )
    from edgewise.inference import (
        Convergence,
        PairwiseMRF,
        bethe_free_energy,
        exact_marginals,
        max_product,
        mean_field,
        sum_product,
    )
    from edgewise.metrics import METRICS, VIEWS, Evaluation, evaluate
    from edgewise.metrics.module import GraphCalibration
    from edgewise.models import EPFGNN, GAT, GCN, GMNN, Epoch, Fitted, History, JointGCN, Seeds, wrap
    from edgewise.posterior import IndependentPosterior, MixturePosterior, PairwisePosterior, Posterior
    from edgewise.report.reliability import plot_reliability
    from edgewise.report.risk_coverage_figure import plot_risk_coverage
    from edgewise.simulation import SyntheticGraph, synthetic

# Where each public name lives. They are imported when first used: `import edgewise` is quick, and whoever only scores
# predictions never waits for matplotlib or torch_geometric.
_HOMES = {
    "EPFGNN": "edgewise.models",
    "GAT": "edgewise.models",
    "GATS": "edgewise.calibration",
    "GCN": "edgewise.models",
    "GMNN": "edgewise.models",
    "METRICS": "edgewise.metrics",
    "VIEWS": "edgewise.metrics",
    "CaGCN": "edgewise.calibration",
    "Calibrator": "edgewise.calibration",
    "Convergence": "edgewise.inference",
    "EdgePredictions": "edgewise.decisions",
    "EnsembleTemperatureScaling": "edgewise.calibration",
    "Epoch": "edgewise.models",
    "Evaluation": "edgewise.metrics",
    "Fitted": "edgewise.models",
    "GraphCalibration": "edgewise.metrics.module",
    "History": "edgewise.models",
    "IndependentPosterior": "edgewise.posterior",
    "IsotonicCalibration": "edgewise.calibration",
    "JointGCN": "edgewise.models",
    "LocalScaling": "edgewise.calibration",
    "MixturePosterior": "edgewise.posterior",
    "PairwiseMRF": "edgewise.inference",
    "PairwisePosterior": "edgewise.posterior",
    "Posterior": "edgewise.posterior",
    "RiskCoverage": "edgewise.decisions",
    "Seeds": "edgewise.models",
    "Split": "edgewise.data",
    "StructuredCalibrator": "edgewise.calibration",
    "SyntheticGraph": "edgewise.simulation",
    "TemperatureScaling": "edgewise.calibration",
    "Threshold": "edgewise.decisions",
    "VectorScaling": "edgewise.calibration",
    "bayes_threshold": "edgewise.decisions",
    "bethe_free_energy": "edgewise.inference",
    "evaluate": "edgewise.metrics",
    "exact_marginals": "edgewise.inference",
    "isotonic_map": "edgewise.calibration",
    "load_dataset": "edgewise.data",
    "load_splits": "edgewise.data",
    "make_splits": "edgewise.data",
    "max_product": "edgewise.inference",
    "mean_field": "edgewise.inference",
    "plot_reliability": "edgewise.report.reliability",
    "plot_risk_coverage": "edgewise.report.risk_coverage_figure",
    "predict_edges": "edgewise.decisions",
    "risk_coverage": "edgewise.decisions",
    "selective": "edgewise.decisions",
    "sum_product": "edgewise.inference",
    "synthetic": "edgewise.simulation",
    "threshold_for_believed_fdr": "edgewise.decisions",
    "threshold_for_cost": "edgewise.decisions",
    "threshold_for_fdr": "edgewise.decisions",
    "threshold_for_precision": "edgewise.decisions",
    "wrap": "edgewise.models",
}

__all__ = [
    "EPFGNN",
    "GAT",
    "GATS",
    "GCN",
    "GMNN",
    "METRICS",
    "VIEWS",
    "CaGCN",
    "Calibrator",
    "Convergence",
    "EdgePredictions",
    "EnsembleTemperatureScaling",
    "Epoch",
    "Evaluation",
    "Fitted",
    "GraphCalibration",
    "History",
    "IndependentPosterior",
    "IsotonicCalibration",
    "JointGCN",
    "LocalScaling",
    "MixturePosterior",
    "PairwiseMRF",
    "PairwisePosterior",
    "Posterior",
    "RiskCoverage",
    "Seeds",
    "Split",
    "StructuredCalibrator",
    "SyntheticGraph",
    "TemperatureScaling",
    "Threshold",
    "VectorScaling",
    "__version__",
    "bayes_threshold",
    "bethe_free_energy",
    "evaluate",
    "exact_marginals",
    "isotonic_map",
    "load_dataset",
    "load_splits",
    "make_splits",
    "max_product",
    "mean_field",
    "plot_reliability",
    "plot_risk_coverage",
    "predict_edges",
    "risk_coverage",
    "selective",
    "sum_product",
    "synthetic",
    "threshold_for_believed_fdr",
    "threshold_for_cost",
    "threshold_for_fdr",
    "threshold_for_precision",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
