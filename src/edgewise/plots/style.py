"""Colors of figures, from the color-blind safe palette of Okabe and Ito, and legend entries."""

from collections.abc import Iterable

from matplotlib.artist import Artist
from matplotlib.axes import Axes

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
BLACK, OCHRE = "#000000", "#B07D00"
GRAY = "#8C8C8C"  # visible on white and on black


def legend_entries(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return a legend handle for each label in the axes. The last one wins if a label occurs several times."""
    return {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
