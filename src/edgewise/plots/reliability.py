"""Plot of reliability diagrams."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend import Legend
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from edgewise.metrics.sums import VIEWS
from edgewise.plots.reliability_panels import SAME_LABEL, Floats, Panel, Runs, mean_and_std, prepare_reliability
from edgewise.plots.style import BLUE, GRAY, ORANGE, SKY, legend_entries


@dataclass(frozen=True)
class Strip:
    """Position of the histogram strip: its bounds in axes coordinates, and the lower y limit that makes room for it."""

    bounds: tuple[float, float, float, float]
    floor: float


STRIP_BELOW_AXES = Strip(bounds=(0.0, -0.31, 1.0, 0.24), floor=0.0)
STRIP_INSIDE_AXES = Strip(bounds=(0.0, 0.0, 1.0, 0.2), floor=-0.25)


def draw_histogram(ax: Axes, panel: Panel, strip: Strip, highest: float) -> Axes:
    """Draw a bar per non-empty bin, scaled to the highest fraction of all panels, and return the axes of the strip."""
    strip_ax = ax.inset_axes(strip.bounds)
    filled = panel.num_filled > 0
    left, right = panel.boundaries[:-1][filled], panel.boundaries[1:][filled]
    width = np.maximum(right - left - 0.015, (right - left) / 2)
    # The outline keeps very small fractions visible.
    strip_ax.bar((left + right) / 2, panel.fraction[filled], width, color=GRAY, edgecolor=GRAY, linewidth=0.8)
    strip_ax.set(xlim=(0, 1), ylim=(0, 1.45 * highest))
    # One labeled count relates all fractions to counts.
    fullest = int(panel.mean_count.argmax())
    at = (
        float(np.clip((panel.boundaries[fullest] + panel.boundaries[fullest + 1]) / 2, 0.12, 0.88)),
        panel.fraction[fullest],
    )
    count = f"{panel.mean_count[fullest]:,.0f}"
    strip_ax.annotate(count, at, (0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize="xx-small")
    tick = _round_down(0.8 * highest)  # below the top of the strip, where the panel has its tick 0
    strip_ax.set_yticks((0, tick))
    strip_ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if tick >= 0.01 else None))
    return strip_ax


def _round_down(limit: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is at most the limit."""
    power = 10.0 ** math.floor(math.log10(limit))
    return max(digit * power for digit in (1, 2, 5) if digit * power <= limit)


TICKS = (0.0, 0.5, 1.0)

# Above the histogram strip, and not clipped at accuracy 0 and 1.
MARKERS: dict[str, Any] = {"marker": "o", "markersize": 3.5, "zorder": 6, "clip_on": False}


def draw_panels(panels: Sequence[Panel], axes: NDArray[np.object_], strip: Strip, title: str | None = None) -> None:
    """Draw each panel in its axes, with all histogram strips on one scale."""
    highest = max((float(panel.fraction.max()) for panel in panels if not panel.is_empty), default=1.0)
    y_label_before = None
    for panel, ax in zip(panels, axes, strict=True):
        _draw_header(ax, panel, title)
        ax.set(aspect="equal", xlim=(0, 1), ylim=(strip.floor, 1))
        title = None  # only above the first panel
        if panel.is_empty:
            _draw_empty(ax, panel)
            y_label_before = None
            continue
        x_label, y_label = _axis_labels(panel)
        has_y_axis = y_label != y_label_before or _is_leftmost(ax)
        y_label_before = y_label
        _draw_lines(ax, panel)
        strip_ax = draw_histogram(ax, panel, strip, highest)
        _label_y(ax, strip_ax, y_label if has_y_axis else None)
        _label_x(ax, strip_ax, x_label, strip)


def _draw_header(ax: Axes, panel: Panel, title: str | None) -> None:
    name = panel.view.replace("_", " ")
    subtitle = ax.annotate(
        "" if panel.is_empty else f"{_count_text(panel)}\n{_ece_text(panel)}",
        (0, 1),
        (0, 3),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        fontsize="x-small",
    )
    # The title is above the two lines of the subtitle.
    pad = 3 + 2.8 * float(subtitle.get_fontsize())
    ax.set_title(name if title is None else f"{title}\n{name}", loc="left", pad=pad, fontsize="medium", weight="bold")


def _count_text(panel: Panel) -> str:
    total = panel.count.sum(axis=1)
    least, most = total.min(), total.max()
    elements = _elements(panel) if most != 1 else _elements(panel).removesuffix("s")
    return f"{most:,} {elements}" if least == most else f"{least:,}–{most:,} {elements}"


def _ece_text(panel: Panel) -> str:
    mean, std = mean_and_std(panel.ece[:, None])
    spread = f" ± {std[0]:.3f}" if len(panel.ece) > 1 else ""
    return f"ECE ({panel.norm}) {mean[0]:.3f}{spread}"


def _elements(panel: Panel) -> str:
    return "nodes" if panel.view == "nodewise" else "edges"


def _axis_labels(panel: Panel) -> tuple[str, str]:
    return ("predicted probability", "observed frequency") if panel.view == SAME_LABEL else ("confidence", "accuracy")


def _is_leftmost(ax: Axes) -> bool:
    place = ax.get_subplotspec()
    return place is None or place.is_first_col()


def _draw_empty(ax: Axes, panel: Panel) -> None:
    # Ticks are hidden, not removed: removing them would also remove them from axes with shared ticks.
    ax.tick_params(which="both", bottom=False, left=False, labelbottom=False, labelleft=False)
    ax.text(0.5, 0.5, f"no {_elements(panel)}", ha="center", va="center", fontsize="small", transform=ax.transAxes)


def _draw_lines(ax: Axes, panel: Panel) -> None:
    ax.plot((0, 1), (0, 1), color=GRAY, linestyle="--", linewidth=1, zorder=1.5, label="perfect calibration")
    if len(panel.count) == 1:
        _draw_gaps(ax, panel)
        _draw_mean(ax, panel, label="filled bin")
    else:
        _draw_runs(ax, panel)
        _draw_mean(ax, panel, label="mean over runs")
        _draw_band(ax, panel)
        _draw_partly_filled(ax, panel)


def _draw_gaps(ax: Axes, panel: Panel) -> None:
    confidence, accuracy = panel.confidence[0], panel.accuracy[0]
    # Centered at the mean confidence and narrower than the bin, so that each bar starts on the diagonal.
    width = 0.6 / len(confidence)
    for label, color, chosen in (  # distinguishable in grayscale too
        ("gap: overconfident", ORANGE, accuracy < confidence),
        ("gap: underconfident", BLUE, accuracy > confidence),
    ):
        if chosen.any():
            x, gap = confidence[chosen], (accuracy - confidence)[chosen]
            ax.bar(x, gap, width, bottom=x, color=color, alpha=0.6, linewidth=0, zorder=1, label=label)


def _draw_runs(ax: Axes, panel: Panel) -> None:
    for run, (confidence, accuracy) in enumerate(zip(panel.confidence, panel.accuracy, strict=True)):
        label = f"each of {len(panel.count)} runs" if run == 0 else "_run"
        isolated = np.flatnonzero(_find_isolated(accuracy)).tolist()
        ax.plot(
            confidence,
            accuracy,
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
    """Return which bins are filled between empty neighbors, where no line or band would be drawn."""
    filled = np.pad(~np.isnan(values), 1)
    return np.asarray(filled[1:-1] & ~filled[:-2] & ~filled[2:])


def _mean_color(ax: Axes) -> str:
    """Return the color of the mean line: a lighter blue on dark backgrounds."""
    return SKY if sum(_background(ax)) < 1.5 else BLUE


def _background(ax: Axes) -> tuple[float, float, float]:
    """Return the color behind the lines; white if both axes and figure are transparent."""
    opaque = [color for color in (ax.get_facecolor(), ax.figure.get_facecolor()) if to_rgba(color)[3] > 0]
    return to_rgb(opaque[0]) if opaque else (1.0, 1.0, 1.0)


def _draw_band(ax: Axes, panel: Panel) -> None:
    confidence, accuracy = panel.mean_line
    low, high = panel.band
    isolated, color = _find_isolated(accuracy), _mean_color(ax)
    ax.fill_between(confidence, low, high, color=color, alpha=0.25, linewidth=0, zorder=1.3, label="± one std")
    ax.vlines(confidence[isolated], low[isolated], high[isolated], color=color, alpha=0.25, linewidth=4, zorder=1.3)


def _draw_mean(ax: Axes, panel: Panel, label: str) -> None:
    # NaN breaks the line at empty bins, which have no accuracy.
    ax.plot(*panel.mean_line, color=_mean_color(ax), linewidth=1.5, label=label, **MARKERS)


def _draw_partly_filled(ax: Axes, panel: Panel) -> None:
    """Draw hollow markers for bins that are empty in some runs: their std is over fewer runs, 0 for a single one."""
    confidence, accuracy = panel.mean_line
    partly = (panel.num_filled > 0) & (panel.num_filled < len(panel.count))
    if partly.any():
        hollow = {**MARKERS, "markerfacecolor": _background(ax), "zorder": 7}
        x, y = confidence[partly], accuracy[partly]
        ax.plot(x, y, color=_mean_color(ax), linestyle="", label="bin empty in some runs", **hollow)


def _label_y(ax: Axes, strip_ax: Axes, label: str | None) -> None:
    ax.set_yticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    for axes in (ax, strip_ax):
        axes.tick_params(axis="y", labelleft=label is not None, labelsize="x-small")
    if label is not None:
        ax.set_ylabel(label, fontsize="small")
        strip_ax.set_ylabel("fraction", fontsize="small")


def _label_x(ax: Axes, strip_ax: Axes, label: str, strip: Strip) -> None:
    for axes in (ax, strip_ax):
        axes.set_xticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
    lowest, other = (strip_ax, ax) if strip is STRIP_BELOW_AXES else (ax, strip_ax)
    other.tick_params(axis="x", labelbottom=False)
    lowest.tick_params(axis="x", labelsize="x-small")
    lowest.set_xlabel(label, fontsize="small")


def plot_reliability(
    evaluations: Runs,
    *,
    ax: Axes | Sequence[Axes] | NDArray[np.object_] | None = None,
    views: str | Sequence[str] = VIEWS,
    title: str | None = None,
) -> tuple[Figure, NDArray[np.object_]]:
    """Plot a reliability diagram for each view, of one run or of several runs of one model.

    Parameters
    ----------
    evaluations
        One evaluation: accuracy against confidence in each non-empty bin, with bars for the gaps to the diagonal.
        Several evaluations: each run in gray, their mean and mean ± std in blue.
    ax
        Axes to draw in, one per view, with the histogram of confidences inside them. By default a new figure, scaled
        to the font size in use.
    views
        One or more views. "same_label" requires evaluations with ``same_label=True``.
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
    panels = prepare_reliability(evaluations, views)
    if ax is None:
        return draw_figure(panels, title)
    axes = _check_axes(ax, len(panels))
    draw_panels(panels, axes, STRIP_INSIDE_AXES, title)
    figure = axes[0].figure
    return (figure.figure if isinstance(figure, SubFigure) else figure), axes


def draw_figure(panels: Sequence[Panel], title: str | None = None) -> tuple[Figure, NDArray[np.object_]]:
    """Draw the panels side by side in a new figure."""
    # Two inches per panel at 10 points, so that four panels fill a page. Panels scale with the font size.
    side = (2.0 if len(panels) > 2 else 3.2) * plt.rcParams["font.size"] / 10
    size = (len(panels) * side, 4 * side)  # too high at first, see _fit_height
    # Created by pyplot, so that notebooks show it. The anchor "S" puts spare height above the panels.
    fig, grid = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", squeeze=False, subplot_kw={"anchor": "S"}
    )
    axes = grid[0]
    draw_panels(panels, axes, STRIP_BELOW_AXES)
    outside: list[Artist] = [] if title is None else [fig.suptitle(title)]
    if not all(panel.is_empty for panel in panels):
        outside.append(_draw_legend(fig, axes))
    _fit_height(fig, axes, outside)
    return fig, axes


def _draw_legend(fig: Figure, axes: NDArray[np.object_]) -> Legend:
    entries = legend_entries(axes)
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
