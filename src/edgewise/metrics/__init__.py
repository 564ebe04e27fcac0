"""(confidence, correct, nll, brier) → exact sums → scores."""

from edgewise.metrics.evaluate import evaluate
from edgewise.metrics.evaluation import Evaluation, Interval, KIndex
from edgewise.metrics.module import GraphCalibration
from edgewise.metrics.scores import METRICS, EventScores, Reliability, ViewScores
from edgewise.metrics.sums import VIEWS

__all__ = [
    "METRICS",
    "VIEWS",
    "Evaluation",
    "EventScores",
    "GraphCalibration",
    "Interval",
    "KIndex",
    "Reliability",
    "ViewScores",
    "evaluate",
]
