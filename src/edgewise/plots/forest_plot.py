"""Forest plot of a comparison: differences of scores with their intervals."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edgewise.metrics.model_comparison import HIGHER_IS_BETTER, METRIC_WORDS, ComparedScore, Comparison
from edgewise.metrics.scores import METRICS
from edgewise.plots.style import GRAY, legend_entries, overlay_color, overlay_marker, wrap_text

ROW_INCHES, MODEL_INCHES = 0.2, 0.12  # heights of a view, and of each model in it
TICK_INCHES = 0.45  # width for the label of a tick


def plot_differences(
    comparison: Comparison, *, ax: "Sequence[Axes] | NDArray[np.object_] | None" = None, title: str | None = None
) -> "tuple[Figure, NDArray[np.object_]]":
    """Plot each difference as a mark with its interval: one panel per metric, one row per view.

    A mark is filled if its interval excludes 0, and hollow otherwise. Panels have scales of their own. Infinite and
    missing differences are not drawn.
    """
    rows = list(comparison.scores())
    views = list(dict.fromkeys(row.view for row in rows))
    if ax is None:
        height = 1.35 + len(views) * (ROW_INCHES + MODEL_INCHES * len(comparison.models))
        fig, axes = plt.subplots(1, len(METRICS), figsize=(9.0, height), sharey=True, layout="constrained")
    else:
        axes = np.asarray(ax, dtype=object).ravel()
        if len(axes) != len(METRICS):
            raise ValueError(
                f"Expected ax to hold {len(METRICS)} axes, one for each of {', '.join(METRICS)}, but got {len(axes)}. "
                f"Pass the axes of plt.subplots(1, {len(METRICS)}, sharey=True)."
            )
        fig = axes[0].figure.figure if isinstance(axes[0].figure, SubFigure) else axes[0].figure
    for metric, panel in zip(METRICS, axes, strict=True):
        _draw_panel(panel, metric, [row for row in rows if row.metric == metric], views, comparison.models)
        panel.set_title(_panel_title(comparison, metric), loc="left", fontsize="medium", fontweight="bold")
    axes[0].set_yticks(range(len(views)), [view.replace("_", " ") for view in views])
    for panel in axes:
        panel.set_ylim(len(views) - 0.5, -0.5)
    if ax is None:
        entries = legend_entries(axes[:1])
        text = "\n".join(wrap_text(title or _caption(comparison), 0.97 * 72 * fig.get_figwidth(), FontProperties()))
        fig.suptitle(text, x=0.01, ha="left", fontsize="medium")
        if len(entries) > 1:
            fig.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=4, frameon=False)
    return fig, axes


def _caption(comparison: Comparison) -> str:
    minuend = comparison.models[0] if len(comparison.models) == 1 else "model"
    return f"{minuend} − {comparison.reference}, with {100 * comparison.confidence_level:g}% intervals"


def _panel_title(comparison: Comparison, metric: str) -> str:
    norm = comparison.evaluations[comparison.reference].options["norm"]
    name = METRIC_WORDS.get(metric, metric)
    return f"{name} ({norm})" if metric == "ece" and norm != "l1" else name


def _width(ax: Axes) -> float:
    return float(ax.get_position(original=True).width * ax.figure.bbox.width / ax.figure.dpi)


def _draw_panel(
    ax: Axes, metric: str, rows: Sequence[ComparedScore], views: Sequence[str], models: Sequence[str]
) -> None:
    ax.axvline(0, color=GRAY, linewidth=1.0, zorder=1)
    for k, model in enumerate(models):
        color, marker = overlay_color(ax, k), overlay_marker(k)
        shift = 0.6 * ((k + 0.5) / len(models) - 0.5)
        ax.plot([], [], color=color, marker=marker, markersize=4.5, label=model)
        for row in rows:
            one = row.difference
            if row.model != model or not np.isfinite([one.value, one.low, one.high]).all():
                continue
            place = views.index(row.view) + shift
            ax.plot([one.low, one.high], [place, place], color=color, linewidth=1.5, solid_capstyle="butt", zorder=2)
            fill = color if one.excludes_zero else ax.get_facecolor()
            ax.plot([one.value], [place], marker, color=color, markersize=4.5, markerfacecolor=fill, zorder=3)
    better = "higher" if metric in HIGHER_IS_BETTER else "lower"
    ax.set_xlabel(f"{better} is better", fontsize="small")
    ax.xaxis.set_major_locator(MaxNLocator(int(np.clip(_width(ax) / TICK_INCHES, 2, 5))))
    ax.tick_params(axis="x", labelsize="small")
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.08)
    ax.spines[["top", "right", "left"]].set_visible(False)
