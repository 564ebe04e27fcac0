"""Calibrators: from a model's predictions and the labels of validation nodes to probabilities that can be trusted."""

from edgewise.calibration.cagcn import CaGCN
from edgewise.calibration.calibrator import Calibrated, Calibrator, NodeCalibrator
from edgewise.calibration.ensemble import EnsembleTemperatureScaling
from edgewise.calibration.gats import GATS
from edgewise.calibration.isotonic import IsotonicCalibration, IsotonicMap, isotonic_map
from edgewise.calibration.local import LocalScaling
from edgewise.calibration.structured import StructuredCalibrator
from edgewise.calibration.temperature import TemperatureScaling
from edgewise.calibration.vector import VectorScaling

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
