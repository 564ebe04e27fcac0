"""Calibration metrics: (confidence, correct, nll, brier) of nodes and edges → exact sums → scores.

`edgewise.metrics.module.GraphCalibration` is not imported here, because torchmetrics takes two seconds to import.
"""

from edgewise.metrics.chance import Chance, ChanceScore
from edgewise.metrics.evaluate import evaluate
from edgewise.metrics.evaluation import Evaluation, Interval, KIndex
from edgewise.metrics.scores import METRICS, EventScores, Reliability, ViewScores
from edgewise.metrics.sums import VIEWS

__all__ = [
    "METRICS",
    "VIEWS",
    "Chance",
    "ChanceScore",
    "Evaluation",
    "EventScores",
    "Interval",
    "KIndex",
    "Reliability",
    "ViewScores",
    "evaluate",
]
