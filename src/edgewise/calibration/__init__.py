"""Calibrators: from a model's predictions and the labels of validation nodes to probabilities that can be trusted."""

from edgewise.calibration.calibrator import Calibrated, Calibrator, NodeCalibrator
from edgewise.calibration.graph_networks import GATS, CaGCN
from edgewise.calibration.isotonic import IsotonicCalibration, IsotonicMap, isotonic_map
from edgewise.calibration.scaling import EnsembleTemperatureScaling, LocalScaling, TemperatureScaling, VectorScaling
from edgewise.calibration.structured import StructuredCalibrator

__all__ = [
    "GATS",
    "CaGCN",
    "Calibrated",
    "Calibrator",
    "EnsembleTemperatureScaling",
    "IsotonicCalibration",
    "IsotonicMap",
    "LocalScaling",
    "NodeCalibrator",
    "StructuredCalibrator",
    "TemperatureScaling",
    "VectorScaling",
    "isotonic_map",
]
