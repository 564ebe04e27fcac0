"""Options of calibrators at the door."""

import math


def check_positive(calibrator: object, *names: str) -> None:
    """Refuse options that must be finite numbers above 0 and are not."""
    for name in names:
        value = getattr(calibrator, name)
        if not _is_number(value) or not 0 < value < math.inf:
            raise ValueError(f"Expected {name} to be a number above 0, but got {value!r}.")


def check_not_negative(calibrator: object, *names: str) -> None:
    """Refuse options that must be finite numbers from 0 on and are not."""
    for name in names:
        value = getattr(calibrator, name)
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"Expected {name} to be a number from 0 on, but got {value!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
