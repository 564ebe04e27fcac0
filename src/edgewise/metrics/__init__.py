"""Calibration metrics: (confidence, correct, nll, brier) of nodes and edges → exact sums → scores.

`edgewise.metrics.module.GraphCalibration` is not imported here, because torchmetrics takes two seconds to import.
"""

from edgewise.metrics.evaluate import evaluate
from edgewise.metrics.evaluation import Evaluation, Interval, KIndex
from edgewise.metrics.groups import Groups, GroupScores
from edgewise.metrics.scores import METRICS, EventScores, Reliability, ViewScores
from edgewise.metrics.sums import VIEWS

__all__ = [
    "METRICS",
    "VIEWS",
    "Evaluation",
    "EventScores",
    "GroupScores",
    "Groups",
    "Interval",
    "KIndex",
    "Reliability",
    "ViewScores",
    "evaluate",
]
