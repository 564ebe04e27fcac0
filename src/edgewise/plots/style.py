"""The colors of figures, those of Okabe and Ito, which color-blind readers tell apart too; and legends."""

from collections.abc import Iterable

from matplotlib.artist import Artist
from matplotlib.axes import Axes

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
BLACK, OCHRE = "#000000", "#B07D00"
GRAY = "#8C8C8C"  # a middle one: it shows on a white and on a black ground


def legend_entries(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return what a legend shows for each label that some axes have; of several the last."""
    return {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
