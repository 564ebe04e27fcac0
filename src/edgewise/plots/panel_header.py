"""The header of a panel: the view, its count and the ECE of each model."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.transforms import ScaledTranslation

from edgewise.plots.reliability_panels import Panel, elements_name, mean_and_std
from edgewise.plots.style import MARKER, overlay_color, overlay_marker, wrap_text

UNNAMED = ""  # the name of a model that is alone in a figure
GAP = 4.0  # points between the panel and its header
INDENT = 9.0  # points for the marker of a model


def draw_header(ax: Axes, view: Mapping[str, Panel], width: float, title: str | None) -> None:
    """Write the view, its count and the ECE of each model above the panel, in lines of at most `width` points."""
    font, bold = FontProperties(size="x-small"), FontProperties(size="medium", weight="bold")
    size = font.get_size_in_points()
    line_height = 1.25 * size
    panels, up = list(view.values()), GAP
    if not all(panel.is_empty for panel in panels):
        for index, (name, panel) in reversed([*enumerate(view.items())] if UNNAMED not in view else []):
            lines = wrap_text(f"{name} {_ece_text(panel)}", width - INDENT, font)
            up = _write_upwards(ax, lines, INDENT, up, font)
            _draw_marker(ax, index, up - line_height + 0.36 * size)
        label = f"ECE ({panels[0].norm})"
        count = _count_text(panels)
        texts = [count, f"{label} {_ece_text(panels[0])}"] if UNNAMED in view else [f"{count}, {label}:"]
        lines = [line for text in texts for line in wrap_text(text, width, font)]
        up = _write_upwards(ax, lines, 0.0, up, font)
    lines = [*([] if title is None else wrap_text(title, width, bold)), panels[0].view.replace("_", " ")]
    ax.set_title("\n".join(lines), loc="left", pad=up + 0.3 * size, fontproperties=bold)


def _write_upwards(ax: Axes, lines: Sequence[str], indent: float, up: float, font: FontProperties) -> float:
    """Write the lines `up` points above the panel, and return the height of the next line."""
    for line in reversed(lines):
        text = ax.annotate(
            line, (0, 1), (indent, up), xycoords="axes fraction", textcoords="offset points", fontproperties=font
        )
        text.set_in_layout(False)  # below the title, which makes room for it
        up += 1.25 * font.get_size_in_points()
    return up


def _draw_marker(ax: Axes, index: int, up: float) -> None:
    # Points above the upper left corner of the panel.
    place = ax.transAxes + ScaledTranslation(GAP / 72, up / 72, ax.figure.dpi_scale_trans)
    ax.plot(
        [0],
        [1],
        color=overlay_color(ax, index),
        marker=overlay_marker(index),
        transform=place,
        in_layout=False,
        **MARKER,
    )


def _count_text(panels: Sequence[Panel]) -> str:
    total = np.concatenate([panel.count.sum(axis=1) for panel in panels])
    least, most = total.min(), total.max()
    counted = elements_name(panels[0].view, most)
    return f"{most:,} {counted}" if least == most else f"{least:,}–{most:,} {counted}"


def _ece_text(panel: Panel) -> str:
    mean, std = mean_and_std(panel.ece[:, None])
    spread = f" ± {std[0]:.3f}" if len(panel.ece) > 1 else ""
    return f"{mean[0]:.3f}{spread}"
