"""The grid of reliability diagrams of a dataset: a row per model, a column per view.

All panels are drawn in one axes whose units are inches. A grid of matplotlib axes with their ticks would take several
times as long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from edgewise.plots.reliability_panels import MIN_BIN_COUNT, Floats, Panel, mean_and_std
from edgewise.plots.style import BLUE, GRAY

# Inches. A panel is a square of accuracy against confidence above a strip with the histogram of confidences.
SIDE, STRIP = 1.55, 0.36
LEFT, RIGHT, GAP = 0.95, 0.15, 0.3
TOP, ROW, BOTTOM = 0.95, SIDE + STRIP + 0.32, 0.75
TICKS = (0.0, 0.5, 1.0)
TICK_LENGTH = 0.04


@dataclass(frozen=True)
class Place:
    """Position of a panel: the point of confidence 0 and accuracy 0."""

    x: float
    y: float

    def points(self, confidence: Floats, accuracy: Floats) -> Floats:
        """Return positions in the figure."""
        return np.stack((self.x + SIDE * confidence, self.y + SIDE * accuracy), axis=-1)


def draw_grid(panels: Mapping[str, Sequence[Panel]], title: str) -> Figure:
    """Draw the panels of each row under its name: runs in gray, mean and mean ± std in blue."""
    columns = len(next(iter(panels.values()), ()))
    width = LEFT + columns * SIDE + (columns - 1) * GAP + RIGHT
    height = TOP + len(panels) * ROW + BOTTOM
    fig = plt.figure(figsize=(width, height))
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    ax.text(width / 2, height - 0.25, title, ha="center", va="center", size="large")
    places = {
        (row, column): Place(LEFT + column * (SIDE + GAP), height - TOP - (row + 1) * ROW + STRIP + 0.12)
        for row in range(len(panels))
        for column in range(columns)
    }
    placed = [
        (places[row, column], panel)
        for row, of_row in enumerate(panels.values())
        for column, panel in enumerate(of_row)
    ]
    _draw_lines(ax, [(place, panel) for place, panel in placed if not panel.is_empty])
    _draw_frames(ax, [place for place, _ in placed])
    for row, (name, of_row) in enumerate(panels.items()):
        _draw_histograms(ax, [(places[row, column], panel) for column, panel in enumerate(of_row)])
        _label_row(ax, places[row, 0], name)
    for column, of_column in enumerate(zip(*panels.values(), strict=True)):
        _label_column(ax, places[0, column], places[len(panels) - 1, column], of_column)
    for place, panel in placed:
        _label_panel(ax, place, panel)
    _draw_legend(ax, width / 2, max((len(panel.count) for _, panel in placed), default=0))
    return fig


def _draw_lines(ax: Axes, placed: Sequence[tuple[Place, Panel]]) -> None:
    """Draw diagonals, runs, bands, means and bins. Lines break at empty bins and at bins with few elements."""
    runs: list[Floats] = []
    bands: list[Floats] = []
    bars: list[Floats] = []
    dots, means, filled, hollow = [], [], [], []
    for place, panel in placed:
        of_runs = place.points(panel.confidence, np.where(panel.count < MIN_BIN_COUNT, np.nan, panel.accuracy))
        runs += [*of_runs]
        dots.append(of_runs[_is_isolated(of_runs)])
        mean = place.points(*panel.line)
        means.append(mean)
        filled.append(mean[~np.isnan(mean[:, 1])])
        hollow.append(place.points(*panel.mean_line)[panel.is_small])
        low, high = (place.points(panel.line[0], np.clip(edge, 0, 1)) for edge in panel.band)
        for part in _unbroken(mean[:, 1]):
            (bands if part.stop - part.start > 1 else bars).append(np.concatenate((low[part], high[part][::-1])))
    ends = np.array((0.0, 1.0))
    diagonals = [place.points(ends, ends) for place, _ in placed]
    ax.add_collection(LineCollection(diagonals, colors=GRAY, linewidths=1, linestyles="--", zorder=1.5))
    ax.add_collection(LineCollection(runs, colors=GRAY, alpha=0.4, linewidths=0.6, zorder=1.2, label="runs"))
    ax.add_collection(PolyCollection(bands, facecolors=BLUE, alpha=0.25, linewidths=0, zorder=1.3, label="band"))
    ax.add_collection(LineCollection(bars, colors=BLUE, alpha=0.25, linewidths=4, zorder=1.3))
    ax.add_collection(LineCollection(means, colors=BLUE, linewidths=1.5, zorder=6, label="mean"))
    markers: list[tuple[list[Floats], dict[str, Any]]] = [
        (dots, {"color": GRAY, "alpha": 0.4, "markersize": 1, "markeredgewidth": 0, "zorder": 1.2}),
        (filled, {"color": BLUE, "markersize": 3.5, "zorder": 6}),
        (hollow, {"color": BLUE, "markersize": 3.5, "markerfacecolor": "white", "zorder": 6}),
    ]
    for points, style in markers:
        if points:
            ax.plot(*np.concatenate(points).T, linestyle="", marker="o", **style)


def _is_isolated(points: Floats) -> np.ndarray:
    """Return which bins of runs (runs, bins, 2) have a value between neighbors without, where no line is drawn."""
    has_value = np.pad(~np.isnan(points[..., 1]), ((0, 0), (1, 1)))
    return np.asarray(has_value[:, 1:-1] & ~has_value[:, :-2] & ~has_value[:, 2:])


def _unbroken(values: Floats) -> list[slice]:
    """Return the ranges of values between NaN."""
    edges = np.flatnonzero(np.diff(np.pad(~np.isnan(values), 1).astype(int)))
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _draw_frames(ax: Axes, places: Sequence[Place]) -> None:
    """Draw the frame of each panel, the line above its histogram, and its ticks."""
    lines = []
    for place in places:
        low, high = place.y - STRIP, place.y + SIDE
        right = place.x + SIDE
        lines += [[(place.x, low), (right, low), (right, high), (place.x, high), (place.x, low)]]
        lines += [[(place.x, place.y), (right, place.y)]]
        for tick in TICKS:
            x, y = place.x + SIDE * tick, place.y + SIDE * tick
            lines += [[(x, low), (x, low - TICK_LENGTH)], [(place.x, y), (place.x - TICK_LENGTH, y)]]
    ax.add_collection(LineCollection(lines, colors="black", linewidths=0.8, zorder=4, label="frames"))


def _draw_histograms(ax: Axes, placed: Sequence[tuple[Place, Panel]]) -> None:
    """Draw the fraction in each bin of one row, on one scale, and the mean count of the fullest bin."""
    shown = [(place, panel) for place, panel in placed if not panel.is_empty]
    highest = max((float(panel.fraction.max()) for _, panel in shown), default=1.0)
    scale = 0.62 * STRIP / highest
    boxes = []
    for place, panel in shown:
        low = place.y - STRIP
        for left, right, fraction in zip(panel.boundaries[:-1], panel.boundaries[1:], panel.fraction, strict=True):
            if fraction:
                x, wide, high = place.x + SIDE * (left + 0.006), SIDE * (right - left - 0.012), low + scale * fraction
                boxes.append([(x, low), (x, high), (x + wide, high), (x + wide, low)])
        fullest = int(panel.mean_count.argmax())
        center = (panel.boundaries[fullest] + panel.boundaries[fullest + 1]) / 2
        x, y = place.x + SIDE * float(np.clip(center, 0.12, 0.88)), low + scale * panel.fraction[fullest] + 0.02
        ax.text(x, y, f"{panel.mean_count[fullest]:,.0f}", ha="center", va="bottom", size="xx-small")
    # The outline keeps very small fractions visible.
    ax.add_collection(PolyCollection(boxes, facecolors=GRAY, edgecolors=GRAY, linewidths=0.5, zorder=2, label="bars"))
    place, _ = placed[0]
    ax.text(place.x - 0.08, place.y - 0.38 * STRIP, f"{100 * highest:.0f}%", ha="right", va="center", size="xx-small")


def _label_row(ax: Axes, place: Place, name: str) -> None:
    """Label the left side of a row."""
    middle = place.y + SIDE / 2
    ax.text(0.22, middle, name, rotation=90, ha="center", va="center", size="medium", weight="bold")
    ax.text(place.x - 0.42, middle, "accuracy", rotation=90, ha="center", va="center", size="small")
    for tick in TICKS:
        ax.text(place.x - 0.08, place.y + SIDE * tick, f"{tick:g}", ha="right", va="center", size="x-small")


def _label_column(ax: Axes, top: Place, bottom: Place, panels: Sequence[Panel]) -> None:
    """Label the top and the bottom of a column: view, number of elements, confidence."""
    view = panels[0].view
    totals = np.concatenate([panel.count.sum(axis=1) for panel in panels])
    numbers = dict.fromkeys(f"{total:,}" for total in (totals.min(), totals.max()))
    elements = "nodes" if view == "nodewise" else "edges"
    ax.text(top.x, top.y + SIDE + 0.36, view, va="bottom", weight="bold")
    ax.text(top.x, top.y + SIDE + 0.21, f"{'–'.join(numbers)} {elements}", va="bottom", size="x-small")
    low = bottom.y - STRIP
    for tick in TICKS:
        ax.text(bottom.x + SIDE * tick, low - 0.07, f"{tick:g}", ha="center", va="top", size="x-small")
    ax.text(bottom.x + SIDE / 2, low - 0.2, "confidence", ha="center", va="top", size="small")


def _label_panel(ax: Axes, place: Place, panel: Panel) -> None:
    if panel.is_empty:
        elements = "nodes" if panel.view == "nodewise" else "edges"
        ax.text(place.x + SIDE / 2, place.y + SIDE / 2, f"no {elements}", ha="center", va="center", size="small")
        return
    mean, std = mean_and_std(panel.ece[:, None])
    spread = f" ± {std[0]:.3f}" if len(panel.ece) > 1 else ""
    ax.text(place.x, place.y + SIDE + 0.05, f"ECE {mean[0]:.3f}{spread}", va="bottom", size="x-small")


def _draw_legend(ax: Axes, x: float, num_runs: int) -> None:
    dot: dict[str, Any] = {"color": BLUE, "marker": "o", "markersize": 3.5}
    handles = [
        Line2D([], [], color=GRAY, linestyle="--", linewidth=1, label="perfect calibration"),
        Line2D([], [], color=GRAY, alpha=0.4, linewidth=0.6, label=f"each of {num_runs} runs"),
        Line2D([], [], linewidth=1.5, label="mean over runs", **dot),
        Patch(facecolor=BLUE, alpha=0.25, linewidth=0, label="± one std"),
        Line2D([], [], linestyle="", markerfacecolor="white", label=f"fewer than {MIN_BIN_COUNT} per run", **dot),
    ]
    ax.legend(
        handles=handles,
        loc="center",
        bbox_to_anchor=(x, 0.17),
        bbox_transform=ax.transData,
        ncols=len(handles),
        frameon=False,
        fontsize="x-small",
    )
