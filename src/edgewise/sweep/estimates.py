"""Estimated run times of a sweep."""

from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, median

from edgewise.sweep.runs import RunKey

# Mean seconds per run of docs/reproduction/runs.parquet, used before any run has been measured. The first model of a
# group includes the pretraining that others continue, see `Plan.runs`. Models that are not in that file: means of a few
# runs on their own.
TYPICAL_SECONDS: Mapping[tuple[str, str], float] = {
    ("cora", "gcn"): 0.58,
    ("cora", "gat"): 1.7,
    ("cora", "gmnn"): 0.62,
    ("cora", "epfgnn"): 0.79,
    ("cora", "deepensemble"): 3.0,
    ("cora", "mcdropout"): 0.58,
    ("cora", "spn"): 1.3,
    ("citeseer", "gcn"): 0.61,
    ("citeseer", "gat"): 1.6,
    ("citeseer", "gmnn"): 0.74,
    ("citeseer", "epfgnn"): 0.78,
    ("citeseer", "deepensemble"): 2.5,
    ("citeseer", "mcdropout"): 0.55,
    ("citeseer", "spn"): 1.2,
    ("pubmed", "gcn"): 4.9,
    ("pubmed", "gat"): 10.9,
    ("pubmed", "gmnn"): 3.8,
    ("pubmed", "epfgnn"): 2.9,
    ("pubmed", "deepensemble"): 26.6,
    ("pubmed", "mcdropout"): 5.0,
    ("pubmed", "spn"): 6.6,
}

# Run time of other graphs relative to Pubmed. Measured on epochs of GCN and GAT on random graphs of the same size, not
# on real runs, so an estimate may be off by a factor of three. Models without a time of their own count as an EPFGNN. A
# module of a user on many dense features can take twenty times as long.
TIME_RELATIVE_TO_PUBMED: Mapping[str, float] = {
    "texas": 0.1,
    "wisconsin": 0.1,
    "cornell": 0.1,
    "actor": 0.7,
    "chameleon": 0.6,
    "squirrel": 1.9,
    "computers": 3.0,
    "photo": 1.5,
    "cs": 2.0,
    "physics": 4.0,
    "dblp": 1.0,
    "cora-ml": 0.2,
    "cora-full": 3.0,
    "citeseer-full": 0.2,
    "pubmed-full": 1.0,
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
