"""How long runs take: an estimate before any has been measured, and one by those that have."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import median

from edgewise.experiments.runs import RunKey

# Seconds of one run on one core, for an estimate before anything has been measured: the lower quartile of the runs of
# docs/reproduction.md, whose machine was shared.
TYPICAL_SECONDS: Mapping[tuple[str, str], float] = {
    ("cora", "gcn"): 2.3,
    ("cora", "gat"): 5.8,
    ("cora", "gmnn"): 1.8,
    ("cora", "epfgnn"): 3.1,
    ("citeseer", "gcn"): 2.2,
    ("citeseer", "gat"): 4.6,
    ("citeseer", "gmnn"): 2.2,
    ("citeseer", "epfgnn"): 4.0,
    ("pubmed", "gcn"): 22.5,
    ("pubmed", "gat"): 45.5,
    ("pubmed", "gmnn"): 10.9,
    ("pubmed", "epfgnn"): 19.1,
}

# The same for graphs that the paper has not, in times of Pubmed: not of their own runs, but of epochs of GCN and GAT on
# random graphs of their size, so they may be wrong by a factor of three. A model that the paper has not counts as an
# EPFGNN.
TIMES_OF_PUBMED: Mapping[str, float] = {
    "texas": 0.1,
    "wisconsin": 0.1,
    "cornell": 0.1,
    "actor": 0.7,
    "chameleon": 0.6,
    "squirrel": 1.9,
    "roman-empire": 1.2,
    "amazon-ratings": 2.1,
    "minesweeper": 0.6,
    "tolokers": 6.4,
    "questions": 8.4,
}
SYNTHETIC_TIMES = 0.2


def typical_seconds(cell: tuple[str, str]) -> float:
    """Give about how long a run of a dataset and a model takes on one core."""
    dataset, model = cell
    like = model if ("pubmed", model) in TYPICAL_SECONDS else "epfgnn"
    times = TIMES_OF_PUBMED.get(dataset, SYNTHETIC_TIMES)
    return TYPICAL_SECONDS.get((dataset, like), times * TYPICAL_SECONDS["pubmed", like])


def estimated_seconds(
    missing: Iterable[RunKey], measured: Mapping[tuple[str, str], Collection[float]], workers: int
) -> float:
    """Estimate how long the missing runs take: by the median of their cell's finished runs, else by a typical one.

    Typical seconds are those of another machine, so they are scaled by how this one does in the cells that have run.
    The median, because the first run of a worker loads and compiles.
    """
    usual = {cell: median(seconds) for cell, seconds in measured.items() if seconds}
    ours, typical = sum(usual.values()), sum(map(typical_seconds, usual))
    pace = ours / typical if usual else 1.0
    counts = Counter(key.cell for key in missing)
    total = sum(count * usual.get(cell, pace * typical_seconds(cell)) for cell, count in counts.items())
    return total / workers
