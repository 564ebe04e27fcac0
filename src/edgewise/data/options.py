"""Options at the door: one of some names, a whole number, or a number, within limits."""

import math
from collections.abc import Sequence

import numpy as np


def check_option(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse an option that does not exist, and list those that do."""
    if value not in allowed:
        raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, but got {value!r}.")


def check_whole_number(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is no whole number within limits; a NumPy integer is one, and True is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"Expected {name} to be a whole number from {low} to {high}, but got {value!r}.")


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    way_out: str = "",
) -> None:
    """Refuse what is no finite number within limits; a NumPy number is one, and True is none.

    >>> check_number("learning_rate", 0.0, above=0)
    Traceback (most recent call last):
    ValueError: Expected learning_rate to be a number above 0, but got 0.0.
    """
    number = value if isinstance(value, int | float | np.integer | np.floating) else math.nan
    if isinstance(value, bool) or not (above < number < below and least <= number <= most):
        limits = {"above": above, "of at least": least, "below": below, "at most": most}
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        raise ValueError(f"Expected {name} to be a number {words}, but got {value!r}. {way_out}".rstrip())
