"""The calibrators that a sweep may add to a model's own predictions, by the names that `readings.CALIBRATORS` has."""

from collections.abc import Mapping
from types import MappingProxyType

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
)

BY_NAME: Mapping[str, Calibrator] = MappingProxyType(
    {
        "temperature": TemperatureScaling(),
        "vector": VectorScaling(),
        "ensemble": EnsembleTemperatureScaling(),
        "cagcn": CaGCN(),
        "gats": GATS(),
        "isotonic": IsotonicCalibration(),
        "local": LocalScaling(),
        "structured": StructuredCalibrator(),
    }
)
