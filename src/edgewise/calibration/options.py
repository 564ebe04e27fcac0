"""Options of calibrators at the door."""

import math


def check_positive(calibrator: object, *names: str) -> None:
    """Refuse options that must be finite numbers above 0 and are not."""
    for name in names:
        value = getattr(calibrator, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise ValueError(f"Expected {name} to be a number above 0, but got {value!r}.")
