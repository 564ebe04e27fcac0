"""The strip of a reliability diagram that shows which share of the elements is in each bin."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from edgewise.report.colours import GREY
from edgewise.report.reliability_panels import Panel


@dataclass(frozen=True)
class Strip:
    """Where the strip of shares goes: its place in the axes, and how far below accuracy 0 the axes reach for it."""

    bounds: tuple[float, float, float, float]
    floor: float


BENEATH = Strip(bounds=(0.0, -0.31, 1.0, 0.24), floor=0.0)
INSIDE = Strip(bounds=(0.0, 0.0, 1.0, 0.2), floor=-0.25)


def draw_shares(ax: Axes, panel: Panel, strip: Strip, highest: float) -> Axes:
    """Draw a bar for each filled bin, on a scale up to the highest share of all panels; give the axes of the strip."""
    strip_ax = ax.inset_axes(strip.bounds)
    filled = panel.num_filled > 0
    left, right = panel.boundaries[:-1][filled], panel.boundaries[1:][filled]
    width = np.maximum(right - left - 0.015, (right - left) / 2)
    # The outline lets a share of almost nothing be seen.
    strip_ax.bar((left + right) / 2, panel.share[filled], width, color=GREY, edgecolor=GREY, linewidth=0.8)
    strip_ax.set(xlim=(0, 1), ylim=(0, 1.45 * highest))
    # The count of one bin makes counts of all shares.
    fullest = int(panel.mean_count.argmax())
    at = (
        float(np.clip((panel.boundaries[fullest] + panel.boundaries[fullest + 1]) / 2, 0.12, 0.88)),
        panel.share[fullest],
    )
    count = f"{panel.mean_count[fullest]:,.0f}"
    strip_ax.annotate(count, at, (0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize="xx-small")
    tick = _round_share(0.8 * highest)  # clear of the strip's top, where the panel has its own 0
    strip_ax.set_yticks((0, tick))
    strip_ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if tick >= 0.01 else None))
    return strip_ax


def _round_share(limit: float) -> float:
    """Give the largest 1, 2 or 5 times a power of ten within a limit."""
    power = 10.0 ** math.floor(math.log10(limit))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= limit)
