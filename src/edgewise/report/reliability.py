"""Reliability diagrams in one call; saving is the caller's."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from edgewise.metrics.sums import VIEWS
from edgewise.report.legends import legend_entries
from edgewise.report.reliability_axes import draw_panels
from edgewise.report.reliability_panels import Panel, Runs, prepare_reliability
from edgewise.report.reliability_strip import BENEATH, INSIDE


def plot_reliability(
    evaluations: Runs,
    *,
    ax: Axes | Sequence[Axes] | NDArray[np.object_] | None = None,
    views: str | Sequence[str] = VIEWS,
    title: str | None = None,
) -> tuple[Figure, NDArray[np.object_]]:
    """Draw a reliability diagram of each view, for one run or for many runs of one model.

    Parameters
    ----------
    evaluations
        One evaluation: accuracy against confidence in each filled bin, and its gap to the diagonal of perfect
        calibration. Many: each run in grey, their mean and mean ± std in blue.
    ax
        Axes to draw in, one a view; the strip that shows each bin's share of the elements is then inside them. By
        default a new figure, whose size follows the font size of the style in use.
    views
        A view or several; "same_label" is one of them if the evaluations have it.
    title
        Stands above the new figure, or above the first of the axes given.

    Returns
    -------
    tuple[Figure, NDArray[object_]]
        The figure, and its axes, one a view.

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
    axes = _checked_axes(ax, len(panels))
    draw_panels(panels, axes, INSIDE, title)
    figure = axes[0].figure
    return (figure.figure if isinstance(figure, SubFigure) else figure), axes


def draw_figure(panels: Sequence[Panel], title: str | None = None) -> tuple[Figure, NDArray[np.object_]]:
    """Draw the panels side by side in a new figure."""
    # Two inches a panel at the usual 10 points, so that four fill a page; larger letters ask for larger panels.
    side = (2.0 if len(panels) > 2 else 3.2) * plt.rcParams["font.size"] / 10
    size = (len(panels) * side, 4 * side)  # much too high at first, see _fit_height
    # Through pyplot, so that a notebook shows the figure. What height is to spare goes above the panels ("S").
    fig, grid = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", squeeze=False, subplot_kw={"anchor": "S"}
    )
    axes = grid[0]
    draw_panels(panels, axes, BENEATH)
    around: list[Artist] = [] if title is None else [fig.suptitle(title)]
    if not all(panel.is_empty for panel in panels):
        around.append(_draw_legend(fig, axes))
    _fit_height(fig, axes, around)
    return fig, axes


def _draw_legend(fig: Figure, axes: NDArray[np.object_]) -> Legend:
    entries = legend_entries(axes)
    widest = 11.5 * plt.rcParams["font.size"] / 72  # inches that the longest entry takes
    return fig.legend(
        [*entries.values()],
        [*entries],
        loc="outside lower center",
        ncols=max(1, int(fig.get_figwidth() / widest)),
        fontsize="x-small",
        frameon=False,
    )


def _fit_height(fig: Figure, axes: NDArray[np.object_], around: Sequence[Artist]) -> None:
    """Give the figure the height that its square panels need; matplotlib lays out within a height, but finds none."""
    fig.draw_without_rendering()
    panels = Bbox.union([ax.get_tightbbox() for ax in axes])
    heights = [panels.height, *(artist.get_window_extent().height for artist in around)]
    fig.set_figheight(sum(heights) / fig.dpi + 0.1 * len(heights))


def _checked_axes(ax: Axes | Sequence[Axes] | NDArray[np.object_], num_views: int) -> NDArray[np.object_]:
    axes = np.array(ax, dtype=object).ravel()
    for place, given in enumerate(axes):
        if not isinstance(given, Axes):
            raise ValueError(f"Expected matplotlib axes, but got a {type(given).__name__} at place {place}.")
    if len(axes) != num_views:
        raise ValueError(
            f"Expected as many axes as views, but got {len(axes)} for {num_views}. "
            "For one axes name the view, such as views='edgewise'."
        )
    return axes
