"""One legend for several axes."""

from collections.abc import Iterable

from matplotlib.artist import Artist
from matplotlib.axes import Axes


def legend_entries(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Give what a legend shows for each label that some axes have; of several the last."""
    return {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
