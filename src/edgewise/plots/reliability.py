"""Plot of reliability diagrams."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from edgewise.metrics.score_parts import ReliabilityCurve
from edgewise.metrics.sums import VIEWS
from edgewise.plots.panel_header import UNNAMED, draw_header
from edgewise.plots.reliability_panels import (
    MIN_BIN_COUNT,
    SAME_LABEL,
    Floats,
    Panel,
    Runs,
    elements_name,
    prepare_overlay,
    prepare_reliability,
)
from edgewise.plots.style import (
    BLUE,
    GRAY,
    GREEN,
    MARKER,
    ORANGE,
    background,
    legend_entries,
    mean_color,
    overlay_color,
    overlay_marker,
    room_to_the_right,
    wrap_text,
)
from edgewise.suggestions import suggest_keywords


@dataclass(frozen=True)
class Strip:
    """Position of the histogram strip: its bounds in axes coordinates, and the lower y limit that makes room for it."""

    bounds: tuple[float, float, float, float]
    floor: float


STRIP_BELOW_AXES = Strip(bounds=(0.0, -0.31, 1.0, 0.24), floor=0.0)
STRIP_INSIDE_AXES = Strip(bounds=(0.0, 0.0, 1.0, 0.2), floor=-0.25)


def _draw_histogram(ax: Axes, panels: Sequence[Panel], strip: Strip, highest: float) -> Axes:
    """Draw the fraction in each bin, scaled to the highest fraction of all views, and return the axes of the strip.

    One model has a bar per non-empty bin, several models have an outline each.
    """
    strip_ax = ax.inset_axes(strip.bounds)
    if len(panels) == 1:
        _draw_bars(ax, strip_ax, panels[0])
    else:
        for index, panel in enumerate(panels):
            if not panel.is_empty:
                strip_ax.stairs(panel.fraction, panel.boundaries, color=overlay_color(ax, index), linewidth=1.0)
    strip_ax.set(xlim=(0, 1), ylim=(0, 1.6 * highest))
    tick = _round_down(0.8 * highest)  # below the top of the strip, where the panel has its tick 0
    strip_ax.set_yticks((0, tick))
    strip_ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if tick >= 0.01 else None))
    return strip_ax


def _draw_bars(ax: Axes, strip_ax: Axes, panel: Panel) -> None:
    filled = panel.num_filled > 0
    left, right = panel.boundaries[:-1][filled], panel.boundaries[1:][filled]
    width = np.maximum(right - left - 0.015, (right - left) / 2)
    # The outline keeps very small fractions visible.
    strip_ax.bar((left + right) / 2, panel.fraction[filled], width, color=GRAY, edgecolor=GRAY, linewidth=0.8)
    if not _has_room(ax):
        return
    # One labeled count relates all fractions to counts.
    fullest = int(panel.mean_count.argmax())
    at = (
        float(np.clip((panel.boundaries[fullest] + panel.boundaries[fullest + 1]) / 2, 0.12, 0.88)),
        panel.fraction[fullest],
    )
    count = f"{panel.mean_count[fullest]:,.0f}"
    strip_ax.annotate(count, at, (0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize="xx-small")


def _has_room(ax: Axes) -> bool:
    """Whether the panel has room for the axis label, both tick labels and the count of its histogram strip."""
    return bool(min(ax.bbox.size) * 72 / ax.figure.dpi > 9 * plt.rcParams["font.size"])


def _round_down(limit: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is at most the limit."""
    power = 10.0 ** math.floor(math.log10(limit))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= limit)


TICKS = (0.0, 0.5, 1.0)


def draw_panels(panels: Sequence[Panel], axes: NDArray[np.object_], strip: Strip, title: str | None = None) -> None:
    """Draw one panel of one model in each axes, with all histogram strips on one scale."""
    _draw_views([{UNNAMED: panel} for panel in panels], axes, strip, title)


def _draw_views(
    views: Sequence[Mapping[str, Panel]], axes: NDArray[np.object_], strip: Strip, title: str | None = None
) -> None:
    """Draw one view in each axes: one unnamed model, or several models by name."""
    panels = [panel for view in views for panel in view.values()]
    highest = max((float(panel.fraction.max()) for panel in panels if not panel.is_empty), default=1.0)
    width = 0.92 * min(room_to_the_right(ax) for ax in axes)  # one for all, so that headers have equally many lines
    y_label_before = None
    for view, ax in zip(views, axes, strict=True):
        draw_header(ax, view, width, title)
        ax.set(aspect="equal", xlim=(0, 1), ylim=(strip.floor, 1))
        title = None  # only above the first panel
        first = next(iter(view.values()))
        if all(panel.is_empty for panel in view.values()):
            _draw_empty(ax, first)
            y_label_before = None
            continue
        x_label, y_label = _axis_labels(first)
        has_y_axis = y_label != y_label_before or _is_leftmost(ax)
        y_label_before = y_label
        ax.plot((0, 1), (0, 1), color=GRAY, linestyle="--", linewidth=1, zorder=1.5, label="perfect calibration")
        if UNNAMED in view:
            _draw_lines(ax, first)
        else:
            _draw_overlay(ax, view)
        strip_ax = _draw_histogram(ax, [*view.values()], strip, highest)
        _label_y(ax, strip_ax, y_label if has_y_axis else None)
        _label_x(ax, strip_ax, x_label, strip)


def _axis_labels(panel: Panel) -> tuple[str, str]:
    return ("predicted probability", "observed frequency") if panel.view == SAME_LABEL else ("confidence", "accuracy")


def _is_leftmost(ax: Axes) -> bool:
    place = ax.get_subplotspec()
    return place is None or place.is_first_col()


def _draw_empty(ax: Axes, panel: Panel) -> None:
    # Ticks are hidden, not removed: removing them would also remove them from axes with shared ticks.
    ax.tick_params(which="both", bottom=False, left=False, labelbottom=False, labelleft=False)
    ax.text(
        0.5,
        0.5,
        f"no {elements_name(panel.view, 0)}",
        ha="center",
        va="center",
        fontsize="small",
        transform=ax.transAxes,
    )


def _draw_lines(ax: Axes, panel: Panel) -> None:
    """Draw one model: its bins and gaps, or the mean over its runs."""
    color = mean_color(ax)
    if len(panel.count) == 1:
        _draw_gaps(ax, panel)
        _draw_mean(ax, panel, color, "o", label=f"bin of {MIN_BIN_COUNT} or more")
        _draw_small_bins(ax, panel, color, "o", label=f"bin of fewer than {MIN_BIN_COUNT}")
        if panel.curve is not None:
            _draw_curve(ax, panel.curve)
    else:
        _draw_runs(ax, panel)
        _draw_mean(ax, panel, color, "o", label="mean over runs")
        _draw_band(ax, panel, color, label="± one std")
        _draw_small_bins(ax, panel, color, "o", label=f"fewer than {MIN_BIN_COUNT} per run")


def _draw_curve(ax: Axes, curve: ReliabilityCurve) -> None:
    """Draw the isotonic fit without bins, and its band."""
    ax.plot(curve.forecast, curve.frequency, color=GREEN, linewidth=1.2, zorder=2, label="isotonic fit")
    if curve.low is not None and curve.high is not None:
        ax.fill_between(
            curve.forecast,
            curve.low,
            curve.high,
            color=GREEN,
            alpha=0.2,
            linewidth=0,
            zorder=1.1,
            label="band of the fit",
        )


def _draw_overlay(ax: Axes, view: Mapping[str, Panel]) -> None:
    """Draw several models, without gaps and runs."""
    has_small = False
    for index, (name, panel) in enumerate(view.items()):
        color, marker = overlay_color(ax, index), overlay_marker(index)
        _draw_mean(ax, panel, color, marker, label=name)
        _draw_small_bins(ax, panel, color, marker, label="_small")
        if len(panel.count) > 1:
            _draw_band(ax, panel, color, label="_band")
        has_small |= bool(panel.is_small.any())
    if has_small:  # one legend entry for all models, which the layout would place at the origin
        label = f"bin of fewer than {MIN_BIN_COUNT}"
        hollow: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "none", "in_layout": False}
        ax.plot([], [], color=GRAY, label=label, **hollow, **MARKER)


def _draw_gaps(ax: Axes, panel: Panel) -> None:
    confidence, accuracy = panel.confidence[0], panel.accuracy[0]
    # Centered at the mean confidence and narrower than the bin, so that each bar starts on the diagonal.
    width = 0.6 / len(confidence)
    for label, color, chosen in (  # distinguishable in grayscale too
        ("gap: overconfident", ORANGE, accuracy < confidence),
        ("gap: underconfident", BLUE, accuracy > confidence),
    ):
        if chosen.any():
            order = np.argsort(panel.is_small[chosen], kind="stable")  # the legend shows the first bar
            x, gap, is_small = (values[chosen][order] for values in (confidence, accuracy - confidence, panel.is_small))
            colors = [to_rgba(color, 0.2 if faint else 0.6) for faint in is_small]
            ax.bar(x, gap, width, bottom=x, color=colors, linewidth=0, zorder=1, label=label)


def _draw_runs(ax: Axes, panel: Panel) -> None:
    for run, (count, confidence, accuracy) in enumerate(
        zip(panel.count, panel.confidence, panel.accuracy, strict=True)
    ):
        label = f"each of {len(panel.count)} runs" if run == 0 else "_run"
        height = np.where(count < MIN_BIN_COUNT, np.nan, accuracy)
        isolated = np.flatnonzero(_find_isolated(height)).tolist()
        ax.plot(
            confidence,
            height,
            color=GRAY,
            alpha=0.4,
            linewidth=0.6,
            marker=".",
            markersize=2,
            markevery=isolated,
            zorder=1.2,
            label=label,
        )


def _find_isolated(values: Floats) -> NDArray[np.bool_]:
    """Return which bins have a value between neighbors without, where no line or band would be drawn."""
    filled = np.pad(~np.isnan(values), 1)
    return np.asarray(filled[1:-1] & ~filled[:-2] & ~filled[2:])


def _draw_band(ax: Axes, panel: Panel, color: str, label: str) -> None:
    confidence, accuracy = panel.line
    low, high = (np.where(panel.is_small, np.nan, edge) for edge in panel.band)
    isolated = _find_isolated(accuracy)
    ax.fill_between(confidence, low, high, color=color, alpha=0.25, linewidth=0, zorder=1.3, label=label)
    ax.vlines(confidence[isolated], low[isolated], high[isolated], color=color, alpha=0.25, linewidth=4, zorder=1.3)


def _draw_mean(ax: Axes, panel: Panel, color: str, marker: str, label: str) -> None:
    # NaN breaks the line at empty and at small bins.
    ax.plot(*panel.line, color=color, linewidth=1.5, marker=marker, label=label, **MARKER)


def _draw_small_bins(ax: Axes, panel: Panel, color: str, marker: str, label: str) -> None:
    """Draw hollow markers for bins with few elements."""
    if panel.is_small.any():
        x, y = (values[panel.is_small] for values in panel.mean_line)
        ax.plot(x, y, color=color, linestyle="", marker=marker, markerfacecolor=background(ax), label=label, **MARKER)


def _label_y(ax: Axes, strip_ax: Axes, label: str | None) -> None:
    ax.set_yticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    for axes in (ax, strip_ax):
        axes.tick_params(axis="y", labelleft=label is not None, labelsize="x-small")
    if label is not None:
        ax.set_ylabel(label, fontsize="small")
    if not _has_room(ax):
        strip_ax.set_yticks(strip_ax.get_yticks()[1:])
    elif label is not None:
        strip_ax.set_ylabel("fraction", fontsize="small")


def _label_x(ax: Axes, strip_ax: Axes, label: str, strip: Strip) -> None:
    for axes in (ax, strip_ax):
        axes.set_xticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    lowest, other = (strip_ax, ax) if strip is STRIP_BELOW_AXES else (ax, strip_ax)
    other.tick_params(axis="x", labelbottom=False)
    lowest.tick_params(axis="x", labelsize="x-small")
    lowest.set_xlabel(label, fontsize="small")


@suggest_keywords
def plot_reliability(
    evaluations: Runs | Mapping[str, Runs],
    *,
    ax: Axes | Sequence[Axes] | NDArray[np.object_] | None = None,
    views: str | Sequence[str] = VIEWS,
    title: str | None = None,
) -> tuple[Figure, NDArray[np.object_]]:
    """Plot a reliability diagram for each view, of one model or of several models in the same panels.

    A bin with fewer than 10 elements has a hollow marker, and no line goes through it.

    Parameters
    ----------
    evaluations
        One evaluation: accuracy against confidence in each non-empty bin, with bars for the gaps to the diagonal. With
        ``decompose=True``, also the isotonic curve, and its band if nodes were resampled.
        A list of evaluations, which are runs of one model: each run in gray, their mean and mean ± std in blue.
        A mapping of names to either of them, such as ``{"GCN": before, "calibrated": after}``: one line per name.
    ax
        Axes to draw in, one per view, with the histogram of confidences inside them. By default a new figure, scaled
        to the font size in use.
    views
        One or more views. "same_label" is missing in evaluations with ``same_label=False``.
    title
        The title of the new figure, or of the first of the given axes.

    Returns
    -------
    tuple[Figure, NDArray[object_]]
        The figure and its axes, one per view.

    Examples
    --------
    >>> import torch
    >>> from edgewise import evaluate
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> ev = evaluate(probs, torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]]))
    >>> fig, axes = plot_reliability(ev, views=("nodewise", "edgewise"))
    >>> [ax.get_title(loc="left") for ax in axes]
    ['nodewise', 'edgewise']
    >>> fig.savefig("reliability.png", dpi=200)  # doctest: +SKIP
    """
    if isinstance(evaluations, Mapping):
        panels = prepare_overlay(evaluations, views)
    else:
        panels = [{UNNAMED: panel} for panel in prepare_reliability(evaluations, views)]
    if ax is None:
        return _draw_figure(panels, title)
    axes = _check_axes(ax, len(panels))
    _draw_views(panels, axes, STRIP_INSIDE_AXES, title)
    figure = axes[0].figure
    return (figure.figure if isinstance(figure, SubFigure) else figure), axes


def _draw_figure(views: Sequence[Mapping[str, Panel]], title: str | None = None) -> tuple[Figure, NDArray[np.object_]]:
    """Draw the views side by side in a new figure."""
    # At 10 points, up to four panels fill a page of eight inches. Panels scale with the font size.
    side = min(3.2, max(2.0, 8.0 / len(views))) * plt.rcParams["font.size"] / 10
    size = (len(views) * side, 4 * side)  # too high at first, see _fit_height
    # Created by pyplot, so that notebooks show it. The anchor "S" puts spare height above the panels.
    fig, grid = plt.subplots(
        1, len(views), figsize=size, layout="constrained", squeeze=False, subplot_kw={"anchor": "S"}
    )
    axes = grid[0]
    _draw_views(views, axes, STRIP_BELOW_AXES)
    outside: list[Artist] = []
    if title is not None:
        font = FontProperties(size=plt.rcParams["figure.titlesize"], weight=plt.rcParams["figure.titleweight"])
        outside.append(fig.suptitle("\n".join(wrap_text(title, 0.95 * 72 * fig.get_figwidth(), font))))
    if any(not panel.is_empty for view in views for panel in view.values()):
        outside.append(_draw_legend(fig, axes, in_header=views[0].keys()))
    _fit_height(fig, axes, outside)
    return fig, axes


def _draw_legend(fig: Figure, axes: NDArray[np.object_], in_header: Collection[str]) -> Legend:
    entries = {label: handle for label, handle in legend_entries(axes).items() if label not in in_header}
    entry_width = 11.5 * plt.rcParams["font.size"] / 72  # of the longest entry, in inches
    return fig.legend(
        [*entries.values()],
        [*entries],
        loc="outside lower center",
        ncols=max(1, int(fig.get_figwidth() / entry_width)),
        fontsize="x-small",
        frameon=False,
    )


def _fit_height(fig: Figure, axes: NDArray[np.object_], outside: Sequence[Artist]) -> None:
    """Set the figure height to what its square panels need, as matplotlib does not compute it."""
    fig.draw_without_rendering()
    panels = Bbox.union([ax.get_tightbbox() for ax in axes])
    heights = [panels.height, *(artist.get_window_extent().height for artist in outside)]
    fig.set_figheight(sum(heights) / fig.dpi + 0.1 * len(heights))


def _check_axes(ax: Axes | Sequence[Axes] | NDArray[np.object_], num_views: int) -> NDArray[np.object_]:
    axes = np.array(ax, dtype=object).ravel()
    for index, value in enumerate(axes):
        if not isinstance(value, Axes):
            raise ValueError(f"Expected matplotlib axes, but got a {type(value).__name__} at index {index}.")
    if len(axes) != num_views:
        raise ValueError(
            f"Expected one axes per view, but got {len(axes)} axes for {num_views} views. "
            "To draw in one axes, pass one view, such as views='edgewise'."
        )
    return axes
