"""The calibrators that a sweep may add to a model's own predictions."""

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
from edgewise.experiments.plan import CALIBRATORS

_KINDS: tuple[Calibrator, ...] = (
    TemperatureScaling(),
    VectorScaling(),
    EnsembleTemperatureScaling(),
    CaGCN(),
    GATS(),
    IsotonicCalibration(),
    LocalScaling(),
    StructuredCalibrator(),
)
BY_NAME: Mapping[str, Calibrator] = MappingProxyType(dict(zip(CALIBRATORS, _KINDS, strict=True)))
