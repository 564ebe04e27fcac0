"""Calibration metrics: (confidence, correct, nll, brier) of nodes and edges → exact sums → scores.

`edgewise.metrics.module.GraphCalibration` is not imported here, because torchmetrics takes two seconds to import.
"""

from edgewise.metrics.chance import Chance, ChanceScore
from edgewise.metrics.compare import compare
from edgewise.metrics.evaluate import evaluate
from edgewise.metrics.evaluation import Evaluation, Interval, KIndex
from edgewise.metrics.groups import Groups, GroupScores
from edgewise.metrics.joint_nll import JointNLL, SetScores, joint_nll
from edgewise.metrics.model_comparison import Comparison, Difference
from edgewise.metrics.score_parts import Decomposition, ReliabilityCurve
from edgewise.metrics.scores import METRICS, EventScores, Reliability, ViewScores
from edgewise.metrics.sums import VIEWS

__all__ = [
    "METRICS",
    "VIEWS",
    "Chance",
    "ChanceScore",
    "Comparison",
    "Decomposition",
    "Difference",
    "Evaluation",
    "EventScores",
    "GroupScores",
    "Groups",
    "Interval",
    "JointNLL",
    "KIndex",
    "Reliability",
    "ReliabilityCurve",
    "SetScores",
    "ViewScores",
    "compare",
    "evaluate",
    "joint_nll",
]
