"""Warnings about results that rest on few labeled nodes or pairs."""

import math
import sys
import warnings

MIN_SAMPLE = 100  # nodes or pairs: a fraction of so many has a 95% interval of at most ±0.1
Z_95 = 1.959964  # the 97.5% quantile of the standard normal distribution


class SmallSampleWarning(UserWarning):
    """A result rests on few labeled nodes or pairs.

    The result is the same with and without the warning. To hide it, call
    ``warnings.filterwarnings("ignore", category=ew.SmallSampleWarning)``.
    """


def fraction_interval(hits: float, count: int) -> tuple[float, float]:
    """Return the 95% Wilson score interval of a fraction, from ``hits`` successes in ``count`` trials.

    >>> fraction_interval(9, 10)
    (0.595..., 0.982...)
    """
    if not count:
        return 0.0, 1.0
    p, shrinkage = hits / count, 1 + Z_95**2 / count
    center = (p + Z_95**2 / (2 * count)) / shrinkage
    half_width = Z_95 * math.sqrt(p * (1 - p) / count + (Z_95 / (2 * count)) ** 2) / shrinkage
    return max(0.0, center - half_width), min(1.0, center + half_width)


def warn_small_sample(message: str) -> None:
    """Issue a `SmallSampleWarning` that points to the first caller outside of the package."""
    warn_caller(message, SmallSampleWarning)


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the first caller outside of the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "edgewise":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_sample(result: str, count: int, elements: str, advice: str, least: int = MIN_SAMPLE) -> None:
    """Warn if a result rests on fewer than ``least`` elements, and state how uncertain a frequency among them is.

    ``result`` is the begin of a sentence that the number of elements completes, such as "The map was fitted to".
    """
    if count < least:
        low, high = fraction_interval(count / 2, count)
        warn_small_sample(
            f"{result} only {count:,} {elements}. A frequency that is observed on so few is uncertain by up to "
            f"±{(high - low) / 2:.2f} (95% interval). {advice}"
        )
