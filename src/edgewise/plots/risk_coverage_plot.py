"""Plot of risk-coverage curves."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import PercentFormatter

from edgewise.decisions import RiskCoverage, Selective
from edgewise.plots.style import BLUE, GRAY, GREEN, ORANGE, PURPLE, SKY

Points = tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]

COLORS = (BLUE, ORANGE, SKY, GRAY, GREEN, PURPLE)
MAX_POINTS = 2000
MIN_SCALED_COVERAGE = 0.05  # the risk of fewer elements is noisy, so it does not set the y limit


def plot_risk_coverage(
    curves: Selective | Mapping[str, RiskCoverage] | RiskCoverage, *, ax: Axes | None = None, title: str | None = None
) -> tuple[Figure, Axes]:
    """Plot risk against coverage, all curves in one axes, with the optimal curve of each dotted.

    The y axis is scaled to coverages of at least 5%. Higher risks at lower coverages are cut off.

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
    >>> curve = risk_coverage(np.array([0.9, 0.8, 0.6]), np.array([True, True, False]))
    >>> fig, ax = plot_risk_coverage({"nodes": curve})
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['nodes: AURC 0.111, best 0.111']
    """
    named = _named(curves)
    if ax is None:
        fig, ax = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
    else:
        fig = ax.figure.figure if isinstance(ax.figure, SubFigure) else ax.figure
    highest = 0.0
    for k, (name, curve) in enumerate(named.items()):
        color = COLORS[k % len(COLORS)]
        coverage, risk = curve_points(curve)
        if not curve.count:
            ax.plot([], [], color=color, label=f"{name}: none")
            continue
        ax.plot(coverage, risk, color=color, drawstyle="steps-pre", label=_label(name, curve))
        ax.plot(*best_points(curve), color=color, linewidth=1.0, linestyle=":")
        highest = max(highest, float(risk[coverage >= MIN_SCALED_COVERAGE].max()))
    ax.set(xlabel="coverage", ylabel="risk (error rate)", xlim=(0, 1))
    ax.set_ylim(0, min(1.0, 1.2 * highest) if highest else 1.0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small", loc="best")
    if title is not None:
        ax.set_title(title, loc="left")
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
    return f"{name}: AURC {curve.aurc:.3f}, best {curve.best_aurc:.3f}"


def curve_points(curve: RiskCoverage) -> Points:
    """Return (coverage, risk) of a curve, thinned to at most `MAX_POINTS` evenly spaced coverages."""
    coverage, risk = curve.coverage, curve.risk
    if len(coverage) <= MAX_POINTS:
        return coverage, risk
    places = np.unique(np.searchsorted(coverage, np.linspace(0, 1, MAX_POINTS)).clip(max=len(coverage) - 1))
    return coverage[places], risk[places]


def best_points(curve: RiskCoverage) -> Points:
    """Return the optimal curve, with all errors last: risk 0 up to the accuracy, then 1 - accuracy / coverage."""
    accuracy = 1.0 - curve.full_risk
    coverage = np.linspace(accuracy, 1.0, 200)
    return np.append(0.0, coverage), np.append(0.0, 1.0 - accuracy / np.maximum(coverage, 1e-12))
