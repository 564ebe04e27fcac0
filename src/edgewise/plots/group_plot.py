"""Dot plot of the calibration error of groups."""

import math
from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from edgewise.metrics.groups import Groups, GroupScores, GroupView
from edgewise.plots.style import GRAY, ORANGE, mean_color
from edgewise.validation import check_whole_number

MAX_GROUPS = 20
INCHES_PER_GROUP = 0.25
MAX_LABEL, INCHES_PER_CHARACTER = 36, 0.08  # of the name of a group


def plot_groups(
    groups: Groups, *, ax: Axes | None = None, view: GroupView = "nodewise", max_groups: int = MAX_GROUPS
) -> tuple[Figure, Axes]:
    """Plot the calibration error of each group, the worst at the top, with its interval and the number of elements.

    Orange groups are overconfident on average, blue ones underconfident. Hollow marks have fewer than 30 elements. A
    gray line marks the mean error of a calibrated model with as few elements, if ``norm`` is "l1".

    Parameters
    ----------
    groups
        The groups, such as ``ev.groups["degree"]``.
    ax
        Axes to draw in. By default those of a new figure.
    view
        "nodewise" or "edgewise".
    max_groups
        The largest number of groups to draw.

    Returns
    -------
    tuple[Figure, Axes]
        The figure and its axes.

    Examples
    --------
    >>> import numpy as np
    >>> import edgewise as ew
    >>> probs, y = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.array([0, 0, 1])
    >>> ev = ew.evaluate(probs, y, np.array([[0, 1], [1, 2]]), by="degree")
    >>> fig, ax = plot_groups(ev.groups["degree"])
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['1', '2 to 3']
    """
    check_whole_number("max_groups", max_groups, 1, 10_000)
    nonempty = groups.nonempty(view)
    shown = nonempty[:max_groups]
    if ax is None:
        longest = max((len(_cut(scores.group)) for scores in shown), default=0)
        size = 4.8 + INCHES_PER_CHARACTER * max(10, longest), 1.7 + INCHES_PER_GROUP * max(1, len(shown))
        fig, ax = plt.subplots(figsize=size, layout="constrained")
    else:
        fig = ax.figure.figure if isinstance(ax.figure, SubFigure) else ax.figure
    colors = {"overconfident": ORANGE, "underconfident": mean_color(ax)}
    for y, scores in enumerate(shown):
        color = colors["overconfident" if scores.gap < 0 else "underconfident"]
        interval = scores.intervals.get("ece")
        if interval is not None and math.isfinite(interval.low):
            ax.plot([interval.low, interval.high], [y, y], color=color, linewidth=2, alpha=0.5, solid_capstyle="butt")
        if groups.norm == "l1":
            ax.plot([scores.chance_ece] * 2, [y - 0.3, y + 0.3], color=GRAY, linewidth=1.5)
        face = "none" if scores.is_small else color
        ax.plot(scores.ece, y, "o", color=color, markerfacecolor=face, markersize=6, clip_on=False, zorder=3)
    _label_axes(ax, shown, groups, view)
    hidden = f", the {len(shown)} worst of {len(nonempty)}" if len(nonempty) > len(shown) else ""
    elements = "nodes" if view == "nodewise" else "edges"
    title = f"{elements.capitalize()} by {groups.name.replace('_', ' ')}{hidden}"
    ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    if groups.note:
        note = fill(groups.note, 60)
        ax.annotate(note, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize="x-small")
        ax.set_title(title, loc="left", fontsize="medium", fontweight="bold", pad=6 + 10 * (1 + note.count("\n")))
    _draw_legend(ax, colors, groups.norm == "l1", any(scores.intervals for scores in shown))
    return fig, ax


def _cut(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def _label_axes(ax: Axes, shown: Sequence[GroupScores], groups: Groups, view: GroupView) -> None:
    ax.set_yticks(range(len(shown)), [_cut(scores.group) for scores in shown])
    ax.set_ylim(max(1, len(shown)) - 0.5, -0.5)  # the worst at the top
    bounds = [scores.intervals["ece"].high for scores in shown if "ece" in scores.intervals]
    values = [scores.ece for scores in shown]
    values += [scores.chance_ece for scores in shown] if groups.norm == "l1" else []
    highest = max((value for value in (*values, *bounds) if math.isfinite(value)), default=1.0)
    ax.set_xlim(0, 1.05 * highest or 1.0)
    ax.set_xlabel(f"calibration error ({'ECE' if groups.norm == 'l1' else groups.norm})")
    if groups.is_ordered and view == "edgewise":
        ax.set_ylabel("smaller of both ends", fontsize="small")
    counts = ax.secondary_yaxis("right")
    counts.set_yticks(range(len(shown)), [f"{scores.count:,}" for scores in shown], fontsize="small")
    counts.tick_params(length=0)
    elements = "nodes" if view == "nodewise" else "edges"
    ax.annotate(
        elements, (1, 1), (6, 3), xycoords="axes fraction", textcoords="offset points", fontsize="x-small", color=GRAY
    )
    counts.spines["right"].set_visible(False)
    ax.tick_params(axis="y", length=0, pad=8)
    ax.grid(axis="x", alpha=0.3)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _draw_legend(ax: Axes, colors: dict[str, str], has_chance: bool, has_intervals: bool) -> None:
    marks = [Line2D([], [], marker="o", linestyle="", color=color, label=name) for name, color in colors.items()]
    if has_chance:
        marks.append(
            Line2D(
                [], [], marker="|", markersize=9, linestyle="", markeredgewidth=1.5, color=GRAY, label="mean by chance"
            )
        )
    if has_intervals:
        marks.append(Line2D([], [], color=GRAY, linewidth=2, alpha=0.7, label="interval"))
    below = ax.transAxes + ScaledTranslation(0, -3.6 * plt.rcParams["font.size"] / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=marks,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        ncols=2,
        fontsize="x-small",
        frameon=False,
        handletextpad=0.3,
        columnspacing=1.0,
        borderaxespad=0,
    )
