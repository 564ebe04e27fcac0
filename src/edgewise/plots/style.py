"""Colors of figures, from the color-blind safe palette of Okabe and Ito, legend entries, and text that fits."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.transforms import ScaledTranslation

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
BLACK, OCHRE = "#000000", "#B07D00"
GRAY = "#8C8C8C"  # visible on white and on black

# Above the histogram strip, and not clipped at accuracy 0 and 1.
MARKER: dict[str, Any] = {"markersize": 3.5, "zorder": 6, "clip_on": False}

# Of the models in one panel, which differ with and without color.
OVERLAY_COLORS = (BLUE, VERMILION, GREEN, PURPLE, OCHRE)
OVERLAY_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def overlay_color(ax: Axes, index: int) -> str:
    """Return the color of a model in a panel of several."""
    color = OVERLAY_COLORS[index % len(OVERLAY_COLORS)]
    return mean_color(ax) if color == BLUE else color


def overlay_marker(index: int) -> str:
    """Return the marker of a model in a panel of several."""
    return OVERLAY_MARKERS[index % len(OVERLAY_MARKERS)]


def mean_color(ax: Axes) -> str:
    """Return the color of the mean line: a lighter blue on dark backgrounds."""
    return SKY if sum(background(ax)) < 1.5 else BLUE


def background(ax: Axes) -> tuple[float, float, float]:
    """Return the color behind the lines; white if both axes and figure are transparent."""
    opaque = [color for color in (ax.get_facecolor(), ax.figure.get_facecolor()) if to_rgba(color)[3] > 0]
    return to_rgb(opaque[0]) if opaque else (1.0, 1.0, 1.0)


def legend_entries(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return a legend handle for each label in the axes. The last one wins if a label occurs several times."""
    return {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}


def draw_legend_below(fig: Figure, ax: Axes, font: FontProperties, entries: Mapping[str, Artist] | None = None) -> None:
    """Draw the legend below the label of the x axis, and make the figure higher by its height."""
    below = ax.transAxes + ScaledTranslation(0, -3.4 * plt.rcParams["font.size"] / 72, fig.dpi_scale_trans)
    shown = legend_entries([ax]) if entries is None else entries
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": below}
    legend = ax.legend(list(shown.values()), list(shown), prop=font, borderaxespad=0, frameon=False, **place)
    num_lines = sum(text.get_text().count("\n") + 1 for text in legend.get_texts())
    fig.set_figheight(fig.get_figheight() + 1.5 * num_lines * font.get_size_in_points() / 72)


def wrap_text(text: str, width: float, font: FontProperties) -> list[str]:
    """Break a text into lines of at most `width` points, between words where possible. Formulas are not broken."""
    max_chars, lines = len(text), text.splitlines()
    while "$" not in text and max_chars > 1 and (widest := max(_text_width(line, font) for line in lines)) > width:
        max_chars = max(1, min(max_chars - 1, math.ceil(max_chars * width / widest)))
        lines = [part for line in text.splitlines() for part in textwrap.wrap(line, max_chars)]
    return lines


def _text_width(line: str, font: FontProperties) -> float:
    return float(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0])


def room_to_the_right(ax: Axes) -> float:
    """Return the points from the left of the axes to the next axes, or to the right edge of the figure."""
    figure = ax.figure
    boxes = [other.get_position(original=True).transformed(other.figure.transSubfigure) for other in figure.axes]
    own = ax.get_position(original=True).transformed(figure.transSubfigure)
    next_left = min(
        (box.x0 for box in boxes if box.x0 > own.x0 + 1 and box.y0 < own.y1 and own.y0 < box.y1),
        default=figure.bbox.x1,
    )
    return float(next_left - own.x0) * 72 / figure.dpi
