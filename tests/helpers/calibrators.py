"""All calibrators of the package, found as the package finds them, for tests of what they have in common."""

import pytest
import torch

from edgewise import GATS, StructuredCalibrator
from edgewise.calibration import known_calibrators

# Every calibrator of the package, and one more of two parts; those that are trained, for a few epochs.
CALIBRATOR_CLASSES = {
    kind.__name__: kind for kind in known_calibrators().values() if kind.__module__.startswith("edgewise.")
}
CALIBRATORS = [kind(epochs=4) if hasattr(kind, "epochs") else kind() for kind in CALIBRATOR_CLASSES.values()]
CALIBRATORS += [StructuredCalibrator(GATS(epochs=4))]


def parametrize_calibrators(wanted=lambda calibrator: True):
    chosen = [calibrator for calibrator in CALIBRATORS if wanted(calibrator)]
    return pytest.mark.parametrize("calibrator", chosen, ids=lambda calibrator: repr(calibrator).split("(")[0])


every = parametrize_calibrators()


def assert_same_bits(first, second):
    a, b = first.tensors(), second.tensors()
    assert a.keys() == b.keys() and type(first) is type(second)
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name])
