"""Plot of joint NLL per node against the size of node sets."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator

from edgewise.metrics.joint_nll import JointNLL
from edgewise.plots.style import (
    GRAY,
    draw_legend_below,
    legend_entries,
    overlay_color,
    overlay_marker,
    room_to_the_right,
    wrap_text,
)
from edgewise.validation import check_option

Quantity = Literal["nll_per_node", "gain"]
PRODUCT = "product of the marginals"
SHIFT = 0.06  # between the sizes of two models, so that their intervals do not overlap


def plot_joint_nll(
    results: JointNLL | Mapping[str, JointNLL],
    *,
    quantity: Quantity = "nll_per_node",
    ax: Axes | None = None,
    title: str | None = None,
) -> tuple[Figure, Axes]:
    """Plot the joint NLL per node, or its gain over the marginals, against the size of the sets, with intervals.

    The dotted line of a model is the NLL of the product of its marginals: the distance to its solid line is the gain.
    Sizes without sets, and infinite scores, are not shown.

    Parameters
    ----------
    results
        The result of `joint_nll`, or results of several models by name.
    quantity
        "nll_per_node" or "gain".
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
    >>> from edgewise.metrics import joint_nll
    >>> result = joint_nll([[0.9, 0.1]] * 4, [0, 0, 1, 0], [[0, 1, 2], [1, 2, 3]], sizes=(1, 2), num_sets=100)
    >>> fig, ax = plot_joint_nll({"coins": result})
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['coins', 'product of the marginals']
    """
    check_option("quantity", quantity, get_args(Quantity))
    named = {"joint": results} if isinstance(results, JointNLL) else results
    _check_results(named)
    is_new = ax is None
    if ax is None:
        fig, ax = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
    else:
        fig = ax.figure.figure if isinstance(ax.figure, SubFigure) else ax.figure
    for k, (name, result) in enumerate(named.items()):
        color = overlay_color(ax, k)
        rows = sorted((row for row in result.rows if math.isfinite(getattr(row, quantity))), key=lambda row: row.size)
        size = np.array([row.size for row in rows]) + SHIFT * (k - (len(named) - 1) / 2)
        value = np.array([getattr(row, quantity) for row in rows])
        intervals = [row.gain_interval if quantity == "gain" else row.nll_interval for row in rows]
        bounds = np.array([(value[r] - part.low, part.high - value[r]) for r, part in enumerate(intervals)]).reshape(
            -1, 2
        )
        style: dict[str, Any] = {"color": color, "marker": overlay_marker(k), "markersize": 4, "linewidth": 1.4}
        ax.errorbar(size, value, yerr=bounds.T, elinewidth=0.9, capsize=2, label=name, **style)
        if quantity == "nll_per_node":
            product = value + np.array([row.gain for row in rows])
            ax.plot(size, product, color=color, linewidth=1.0, linestyle=":")
    if quantity == "nll_per_node":
        ax.plot([], [], color=GRAY, linewidth=1.0, linestyle=":", label=PRODUCT)
        ax.set_ylabel("joint NLL per node (nats)")
    else:
        ax.axhline(0.0, color=GRAY, linewidth=0.8)
        ax.set_ylabel("gain over marginals, per node (nats)")
    samplers = dict.fromkeys(result.sampler for result in named.values())
    ax.set_xlabel(f"nodes per set ({', '.join(samplers)})")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    font = FontProperties(size="small")
    found = legend_entries([ax])
    entries = {label: found[label] for label in (*named, PRODUCT) if label in found}
    if is_new:
        draw_legend_below(fig, ax, font, entries)
    else:
        ax.legend(entries.values(), entries, prop=font, loc="best", edgecolor="none", framealpha=0.7)
    if title is not None:
        bold = FontProperties(size="medium", weight="bold")
        ax.set_title("\n".join(wrap_text(title, 0.92 * room_to_the_right(ax), bold)), loc="left", fontproperties=bold)
    return fig, ax


def _check_results(named: object) -> None:
    if not isinstance(named, Mapping) or not named or not all(isinstance(part, JointNLL) for part in named.values()):
        raise ValueError(
            f"Expected the result of joint_nll, or several by name, but got {type(named).__name__}. Compute it with "
            "joint_nll."
        )
