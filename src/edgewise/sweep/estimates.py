"""Estimated run times of a sweep."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import median

from edgewise.sweep.runs import RunKey

# Seconds per run on one core, used before any run has been measured: the lower quartile of the runs in
# docs/reproduction.md. The lower quartile, because that machine was shared.
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

# Run time of other graphs relative to Pubmed. Measured on epochs of GCN and GAT on random graphs of the same size, not
# on real runs, so an estimate may be off by a factor of three. Models without a time of their own count as an EPFGNN.
TIME_RELATIVE_TO_PUBMED: Mapping[str, float] = {
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
SYNTHETIC_TIME_RELATIVE_TO_PUBMED = 0.2


def typical_seconds(cell: tuple[str, str]) -> float:
    """Return the approximate seconds that a run of a (dataset, model) cell takes on one core."""
    dataset, model = cell
    timed_model = model if ("pubmed", model) in TYPICAL_SECONDS else "epfgnn"
    factor = TIME_RELATIVE_TO_PUBMED.get(dataset, SYNTHETIC_TIME_RELATIVE_TO_PUBMED)
    return TYPICAL_SECONDS.get((dataset, timed_model), factor * TYPICAL_SECONDS["pubmed", timed_model])


def estimate_seconds(
    missing: Iterable[RunKey], measured: Mapping[tuple[str, str], Collection[float]], workers: int
) -> float:
    """Estimate the seconds that the missing runs take, from the measured seconds of finished runs per cell.

    A cell with finished runs counts with their median, because the first run of a worker also imports and compiles.
    Other cells count with their typical seconds, scaled by how fast this machine ran the measured cells.
    """
    medians = {cell: median(seconds) for cell, seconds in measured.items() if seconds}
    scale = sum(medians.values()) / sum(map(typical_seconds, medians)) if medians else 1.0
    counts = Counter(key.cell for key in missing)
    total = sum(count * medians.get(cell, scale * typical_seconds(cell)) for cell, count in counts.items())
    return total / workers
