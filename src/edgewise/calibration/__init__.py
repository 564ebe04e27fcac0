"""Post-hoc calibrators, which are fitted to a model's logits and the labels of validation nodes.

Each calibrator is a class in a module of this package, and is exported by `edgewise`.
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
