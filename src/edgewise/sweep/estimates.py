"""Estimated run times of a sweep."""

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, median

from edgewise.sweep.runs import RunKey

# Seconds per run on one core of a quiet machine, used before any run has been measured. The first model of a group
# includes the pretraining that others continue, see `Plan.runs`.
TYPICAL_SECONDS: Mapping[tuple[str, str], float] = {
    ("cora", "gcn"): 1.5,
    ("cora", "gat"): 5.4,
    ("cora", "gmnn"): 1.6,
    ("cora", "epfgnn"): 1.5,
    ("citeseer", "gcn"): 1.2,
    ("citeseer", "gat"): 4.4,
    ("citeseer", "gmnn"): 2.0,
    ("citeseer", "epfgnn"): 1.9,
    ("pubmed", "gcn"): 14.3,
    ("pubmed", "gat"): 38.5,
    ("pubmed", "gmnn"): 10.2,
    ("pubmed", "epfgnn"): 6.0,
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

PRIOR_RUNS = 3
MAX_RATIO_TO_MEDIAN = 5.0  # of the longest run of a cell; above it, the run has compiled


def typical_seconds(cell: tuple[str, str]) -> float:
    """Return the approximate seconds that a run of a (dataset, model) cell takes on one core."""
    dataset, model = cell
    timed_model = model if ("pubmed", model) in TYPICAL_SECONDS else "epfgnn"
    factor = TIME_RELATIVE_TO_PUBMED.get(dataset, SYNTHETIC_TIME_RELATIVE_TO_PUBMED)
    return TYPICAL_SECONDS.get((dataset, timed_model), factor * TYPICAL_SECONDS["pubmed", timed_model])


def expected_seconds(
    cells: Iterable[tuple[str, str]], measured: Mapping[tuple[str, str], Collection[float]]
) -> dict[tuple[str, str], float]:
    """Return the seconds that a run of each cell is expected to take, given the seconds of finished runs per cell.

    The typical seconds, scaled by how fast this machine is, count as much as `PRIOR_RUNS` finished runs of the cell:
    runs of a cell differ by a factor of two or three. The speed is a median, because first runs also compile.
    """
    ratios = [seconds / typical_seconds(cell) for cell, runs in measured.items() for seconds in runs]
    scale = median(ratios) if ratios else 1.0
    expected = {}
    for cell in set(cells):
        runs = [*measured.get(cell, ()), *([scale * typical_seconds(cell)] * PRIOR_RUNS)]
        longest = max(runs)  # may have compiled
        expected[cell] = fmean(sorted(runs)[:-1]) if longest > MAX_RATIO_TO_MEDIAN * median(runs) else fmean(runs)
    return expected


def estimate_seconds(
    missing: Iterable[RunKey],
    measured: Mapping[tuple[str, str], Collection[float]],
    workers: int,
    unfinished_seconds: float = 0.0,
) -> float:
    """Estimate the seconds that the missing runs take, see `expected_seconds`.

    ``unfinished_seconds`` were spent on runs that are still running, by all workers together.
    """
    keys = list(missing)
    expected = expected_seconds((key.cell for key in keys), measured)
    seconds = sorted(expected[key.cell] for key in keys)
    return (sum(seconds) - min(unfinished_seconds, sum(seconds[-workers:]))) / workers
