"""Plot of risk-coverage curves."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import PercentFormatter

from edgewise.decisions import RiskCoverage, Selective
from edgewise.plots.reliability_panels import MIN_BIN_COUNT
from edgewise.plots.style import GRAY, draw_legend_below, overlay_color, room_to_the_right, wrap_text

Points = tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]

DASHES = ("-", (0, (6, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)))  # curves differ with and without color
MAX_POINTS = 2000
MIN_SCALED_COVERAGE = 0.05  # the risk of fewer elements is noisy, so it does not set the y limit


def plot_risk_coverage(
    curves: Selective | Mapping[str, RiskCoverage] | RiskCoverage, *, ax: Axes | None = None, title: str | None = None
) -> tuple[Figure, Axes]:
    """Plot risk against coverage, all curves in one axes, with the optimal curve of each dotted.

    The y axis is scaled to coverages of at least 5%. Higher risks at lower coverages are cut off. The part of a curve
    that rests on fewer than 10 elements is faint.

    Parameters
    ----------
    curves
        The result of `selective`, curves by name, or one curve.
    ax
        Axes to draw in. By default those of a new figure.
    title
        The title of the axes.

    Returns
    -------
    tuple[Figure, Axes]
        The figure and its axes.

    Examples
    --------
    >>> from edgewise.decisions import risk_coverage
    >>> curve = risk_coverage(np.repeat([0.9, 0.8, 0.6], 40), np.repeat([True, True, False], 40))
    >>> fig, ax = plot_risk_coverage({"nodes": curve})
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['nodes: AURC 0.111, best 0.064', 'best: all errors last']
    """
    named = _named(curves)
    is_new = ax is None
    if ax is None:
        fig, ax = plt.subplots(figsize=(4.8, 3.2), layout="constrained")
    else:
        fig = ax.figure.figure if isinstance(ax.figure, SubFigure) else ax.figure
    font = FontProperties(size="small")
    width = 0.9 * room_to_the_right(ax) - 6 * font.get_size_in_points()  # beside the line in the legend
    highest = 0.0
    for k, (name, curve) in enumerate(named.items()):
        color, dashes = overlay_color(ax, k), DASHES[k % len(DASHES)]
        label = "\n".join(wrap_text(_label(name, curve), width, font))
        coverage, risk = curve_points(curve)
        ax.plot(*_last_points(curve), color=color, linestyle=dashes, drawstyle="steps-pre", label=label)
        if not curve.count:
            continue
        few = coverage * curve.count < MIN_BIN_COUNT
        ax.plot(coverage[few], risk[few], color=color, linewidth=1.0, alpha=0.3, drawstyle="steps-pre")
        ax.plot(*best_points(curve), color=color, linewidth=1.0, linestyle=":")
        highest = max(highest, float(risk[coverage >= MIN_SCALED_COVERAGE].max()))
    ax.plot([], [], color=GRAY, linewidth=1.0, linestyle=":", label="best: all errors last", in_layout=False)
    ax.set(xlabel="coverage", ylabel="risk (error rate)", xlim=(0, 1))
    ax.set_ylim(0, min(1.0, 1.2 * highest) if highest else 1.0)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if highest > 0.05 else None))
    ax.spines[["top", "right"]].set_visible(False)
    if is_new:
        draw_legend_below(fig, ax, font)
    else:
        ax.legend(prop=font, loc="best", edgecolor="none", framealpha=0.7)
    if title is not None:
        bold = FontProperties(size="medium", weight="bold")
        ax.set_title("\n".join(wrap_text(title, 0.92 * room_to_the_right(ax), bold)), loc="left", fontproperties=bold)
    return fig, ax


def _named(curves: Selective | Mapping[str, RiskCoverage] | RiskCoverage) -> Mapping[str, RiskCoverage]:
    named = curves.curves if isinstance(curves, Selective) else curves
    if isinstance(named, RiskCoverage):
        named = {"all": named}
    if not isinstance(named, Mapping) or not all(isinstance(curve, RiskCoverage) for curve in named.values()):
        raise ValueError(
            f"Expected risk-coverage curves, but got {type(curves).__name__}. Compute them with selective or "
            "risk_coverage."
        )
    return named


def _label(name: str, curve: RiskCoverage) -> str:
    if not curve.count:
        return f"{name}: none"
    return f"{name}: AURC {curve.aurc:.3f}, best {curve.best_aurc:.3f}"


def curve_points(curve: RiskCoverage) -> Points:
    """Return (coverage, risk) of a curve, thinned to at most `MAX_POINTS` evenly spaced coverages."""
    coverage, risk = curve.coverage, curve.risk
    if len(coverage) <= MAX_POINTS:
        return coverage, risk
    places = np.unique(np.searchsorted(coverage, np.linspace(0, 1, MAX_POINTS)).clip(max=len(coverage) - 1))
    return coverage[places], risk[places]


def _last_points(curve: RiskCoverage) -> Points:
    """Return the points of a curve that rest on at least `MIN_BIN_COUNT` elements."""
    coverage, risk = curve_points(curve)
    many = coverage * curve.count >= MIN_BIN_COUNT
    return coverage[many], risk[many]


def best_points(curve: RiskCoverage) -> Points:
    """Return the optimal curve, with all errors last: risk 0 up to the accuracy, then 1 - accuracy / coverage."""
    accuracy = 1.0 - curve.full_risk
    coverage = np.linspace(accuracy, 1.0, 200)
    return np.append(0.0, coverage), np.append(0.0, 1.0 - accuracy / np.maximum(coverage, 1e-12))
