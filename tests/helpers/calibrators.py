"""All calibrators of the package, for tests of the behavior they share."""

import pytest
import torch

from edgewise import GATS, StructuredCalibrator
from edgewise.calibration import known_calibrators

CALIBRATOR_CLASSES = {
    kind.__name__: kind for kind in known_calibrators().values() if kind.__module__.startswith("edgewise.")
}
# One instance of each class, trained for a few epochs only, and a structured calibrator with another node calibrator.
CALIBRATORS = [kind(epochs=4) if hasattr(kind, "epochs") else kind() for kind in CALIBRATOR_CLASSES.values()]
CALIBRATORS += [StructuredCalibrator(GATS(epochs=4))]


def parametrize_calibrators(condition=lambda calibrator: True):
    """Parametrize a test over the calibrators that satisfy a condition."""
    selected = [calibrator for calibrator in CALIBRATORS if condition(calibrator)]
    return pytest.mark.parametrize("calibrator", selected, ids=lambda calibrator: repr(calibrator).split("(")[0])


every_calibrator = parametrize_calibrators()


def assert_same_bits(first, second):
    """Assert that two posteriors have the same type and bitwise equal tensors."""
    a, b = first.tensors(), second.tensors()
    assert a.keys() == b.keys() and type(first) is type(second)
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name])
