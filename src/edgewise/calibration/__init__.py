"""Calibrators: from a model's predictions and the labels of validation nodes to probabilities that can be trusted.

Each calibrator is a class in a module of this package, and a name of `edgewise`.
"""

from edgewise.calibration.calibration_input import CalibrationInput, Predictions
from edgewise.calibration.calibrator import (
    Calibrated,
    Calibrator,
    Learned,
    NodeCalibrator,
    Parameters,
    known_calibrators,
)

__all__ = [
    "Calibrated",
    "CalibrationInput",
    "Calibrator",
    "Learned",
    "NodeCalibrator",
    "Parameters",
    "Predictions",
    "known_calibrators",
]
