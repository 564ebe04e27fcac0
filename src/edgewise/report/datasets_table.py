"""The statistics of datasets, as lines of text."""

from edgewise.data import DatasetStatistics

COUNTS = {"nodes": 7, "directed_edges": 7, "features": 10, "classes": 9}  # with the width of the column
SHARES = ("homophily", "k_edgewise", "k_agree", "k_disagree")
DATASETS_HEADER = (
    f"{'':11}"
    + "".join(f"{name.removeprefix('directed_'):>{width}}" for name, width in COUNTS.items())
    + "".join(f"{name.replace('k_', 'K '):>14}" for name in SHARES)
)
DATASETS_FOOTER = "Edges: both directions. Homophily and K: percent, mean ± std over the test sets of the splits."


def dataset_line(label: str, statistics: DatasetStatistics) -> str:
    """Give one row, with shares in percent."""
    counts = (f"{getattr(statistics, name):>{width}}" for name, width in COUNTS.items())
    shares = (getattr(statistics, name) for name in SHARES)
    cells = (f"{100 * share.mean:.2f} ± {100 * share.std:.2f}" for share in shares)
    return f"{label:<11}" + "".join(counts) + "".join(f"{cell:>14}" for cell in cells)
