"""Risk-coverage curves: the points of a curve, and all curves drawn in one call; saving is the caller's."""

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
MIN_COVERAGE = 0.05  # risks of fewer elements jump, and do not set the scale


def plot_risk_coverage(
    curves: Selective | Mapping[str, RiskCoverage] | RiskCoverage, *, ax: Axes | None = None, title: str | None = None
) -> tuple[Figure, Axes]:
    """Draw risk against coverage, all curves in one plot, and dotted what the best order of each would give.

    Risks of the first few elements jump; where they are far above all later ones they are cut off.

    Parameters
    ----------
    curves
        What `selective` returns, curves by name, or one curve.
    ax
        Axes to draw in; by default those of a new figure.
    title
        Stands above the axes.

    Returns
    -------
    tuple[Figure, Axes]
        The figure, and its axes.

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
        highest = max(highest, float(risk[coverage >= MIN_COVERAGE].max()))
    ax.set(xlabel="coverage: share that is decided", ylabel="risk: share of errors in it", xlim=(0, 1))
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
            f"Expected risk-coverage curves, but got {type(curves).__name__}. Make them by selective or risk_coverage."
        )
    return named


def _label(name: str, curve: RiskCoverage) -> str:
    return f"{name}: AURC {curve.aurc:.3f}, best {curve.best_aurc:.3f}"


def curve_points(curve: RiskCoverage) -> Points:
    """Return the points of a curve; of very many only some, spread over the coverage."""
    coverage, risk = curve.coverage, curve.risk
    if len(coverage) <= MAX_POINTS:
        return coverage, risk
    places = np.unique(np.searchsorted(coverage, np.linspace(0, 1, MAX_POINTS)).clip(max=len(coverage) - 1))
    return coverage[places], risk[places]


def best_points(curve: RiskCoverage) -> Points:
    """Return the curve of an order in which all errors come last: no risk up to them, then 1 - right / selected."""
    right = 1.0 - curve.full_risk
    coverage = np.linspace(right, 1.0, 200)
    return np.append(0.0, coverage), np.append(0.0, 1.0 - right / np.maximum(coverage, 1e-12))
