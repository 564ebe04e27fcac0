"""Scores summarized over runs, with the published values, as rows for tables, CSV, page and figures.

A score passes through three types: the `ViewResult` stored for each run, the `Score` over runs, and the printed `Cell`
(text_tables.py).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, multimode, pstdev
from types import MappingProxyType

import numpy as np

from edgewise.data.statistics import MeanStd
from edgewise.metrics.sums import VIEWS
from edgewise.paper.formatting import COUNTS, FRACTIONS, format_number
from edgewise.paper.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.paper.readings import UNCALIBRATED_PREDICTION
from edgewise.paper.results import Results, runs_with
from edgewise.sweep.runs import SAME_LABEL, Run

# Scores by which predictions of a model are compared: (view, metric).
COMPARED_SCORES = (
    ("nodewise", "accuracy"),
    ("nodewise", "ece"),
    ("edgewise", "ece"),
    ("edgewise", "nll"),
    ("edgewise", "brier"),
)
STATISTICS = "statistics"  # the row of dataset statistics


@dataclass(frozen=True)
class Score:
    """Mean and population std over runs, or over splits, and the published value.

    The mean is NaN if no run has a value, as for empty sets. If a value is infinite, the mean is infinite and the std
    is NaN.
    """

    dataset: str
    row: str
    view: str
    metric: str
    mean: float
    std: float
    runs: int  # with a value
    num_runs: int  # in total
    published: MeanStd | None = None
    is_best: bool = False
    is_near_best: bool = False  # not the best, but not clearly worse

    @property
    def difference(self) -> float | None:
        """Ours minus published, in published standard deviations; None if one of the three is missing."""
        if self.published is None or not self.runs or math.isnan(self.published.std):
            return None
        return (self.mean - self.published.mean) / self.published.std


@dataclass(frozen=True)
class ScoreRow:
    """A row of a table. ``model`` is set if the row is one of several predictions or calibrators of a model."""

    dataset: str
    name: str
    scores: Sequence[Score]
    runs: int
    has_fewer_runs: bool = False  # than the other rows
    model: str = ""


def summarize(values: Iterable[float]) -> tuple[float, float, int]:
    """Return mean, population std and number of the values that are not NaN."""
    valid = np.array([value for value in values if not math.isnan(value)])
    if not len(valid):
        return math.nan, math.nan, 0
    if np.isinf(valid).any():
        return math.inf, math.nan, len(valid)
    return float(valid.mean()), float(valid.std()), len(valid)


def score_of_runs(dataset: str, row: str, view: str, metric: str, runs: Sequence[Run], prediction: str) -> Score:
    """Summarize one score of a prediction over the runs that have the prediction."""
    values = [run.predictions[prediction][view][metric] for run in runs]
    return Score(dataset, row, view, metric, *summarize(values), len(runs))


# --- rows of the paper's tables ---


def reading_score(results: Results, reading: str, dataset: str, row: str, view: str, metric: str) -> Score:
    """Summarize a cell of the paper's tables in one reading, with the published value."""
    source = results.rows(reading)[row]
    score = score_of_runs(dataset, row, view, metric, results.runs_of(dataset, source), source.prediction)
    return replace(score, published=PUBLISHED_SCORES.get(dataset, {}).get(row, {}).get(metric, {}).get(view))


def score_rows(results: Results, reading: str, metric: str) -> list[ScoreRow]:
    """Return a row per dataset and row of the paper's tables that has runs, with a score per view."""
    usual = max(multimode(Counter(run.key.cell for run in results.runs).values()), default=0)
    rows = [
        ScoreRow(dataset, name, scores, len(runs), len(runs) < usual)
        for dataset in results.datasets
        for name, source in results.rows(reading).items()
        if (runs := results.of(dataset, source.model))
        for scores in [[reading_score(results, reading, dataset, name, view, metric) for view in VIEWS]]
    ]
    return mark_best(rows)


def mark_best(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Mark the best score of each column within a dataset, and those with the same printed mean."""
    marked = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of_dataset = [row for row in rows if row.dataset == dataset]
        best = [_best(column) for column in zip(*(row.scores for row in of_dataset), strict=True)]
        for row in of_dataset:
            scores = [
                replace(score, is_best=len(of_dataset) > 1 and format_number(score.mean, score.metric) == text)
                for score, text in zip(row.scores, best, strict=True)
            ]
            marked.append(replace(row, scores=scores))
    return marked


def _best(scores: Iterable[Score]) -> str | None:
    finite = [score for score in scores if math.isfinite(score.mean)]
    if not finite:
        return None
    choose = max if finite[0].metric == "accuracy" else min
    best = choose(finite, key=lambda score: score.mean)
    return format_number(best.mean, best.metric)


# --- dataset statistics ---


def statistics_rows(results: Results) -> list[ScoreRow]:
    """Return a row per dataset: its sizes, then its fractions over the test sets of the splits."""
    return [_statistics_row(results, dataset) for dataset in results.described_datasets]


def statistics_score(results: Results, dataset: str, name: str) -> Score:
    """Summarize a fraction of edges or nodes over the splits that have one: a test set may have no edge."""
    values = [float(getattr(task, name)) for task in results.tasks if task.dataset == dataset]
    valid = [value for value in values if not math.isnan(value)]
    mean, std = (fmean(valid), pstdev(valid)) if valid else (math.nan, math.nan)
    published = getattr(PUBLISHED_DATASETS.get(dataset), name, None)
    return Score(dataset, STATISTICS, "", name, mean, std, len(valid), len(valid), published)


def _statistics_row(results: Results, dataset: str) -> ScoreRow:
    tasks = [task for task in results.tasks if task.dataset == dataset]
    published = PUBLISHED_DATASETS.get(dataset)
    counts = []
    for name in COUNTS:
        theirs = MeanStd(float(getattr(published, name)), math.nan) if published else None
        ours = float(getattr(tasks[0], name))
        counts.append(Score(dataset, STATISTICS, "", name, ours, math.nan, len(tasks), len(tasks), theirs))
    fractions = [statistics_score(results, dataset, name) for name in FRACTIONS]
    return ScoreRow(dataset, dataset, [*counts, *fractions], len(tasks))


# --- calibrators ---

UNCALIBRATED, TEMPERATURE, STRUCTURED = "uncalibrated", "temperature", "structured"
# Of predictions and calibrators. By the name of the column: view and metric.
METHOD_SCORES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "node accuracy": ("nodewise", "accuracy"),
        "node ECE": ("nodewise", "ece"),
        "node NLL": ("nodewise", "nll"),
        "edge ECE": ("edgewise", "ece"),
        "edge NLL": ("edgewise", "nll"),
        "edge Brier": ("edgewise", "brier"),
        "same label ECE": (SAME_LABEL, "ece"),
    }
)


def prediction_row(
    dataset: str, model: str, name: str, prediction: str, runs: Sequence[Run], scores: Iterable[tuple[str, str]]
) -> ScoreRow:
    """Summarize scores of a prediction of a model over the runs that have it."""
    used = runs_with(prediction, runs)
    row = f"{model} {name}"
    cells = [score_of_runs(dataset, row, view, metric, used, prediction) for view, metric in scores]
    return ScoreRow(dataset, name, cells, len(used), len(used) < len(runs), model)


def calibrated_runs(results: Results) -> dict[tuple[str, str], list[Run]]:
    """Return the runs that have calibrated predictions, by dataset and model."""
    cells = [(dataset, model) for dataset in results.datasets for model in results.models]
    found = {
        cell: [run for run in results.of(*cell) if any(name in run.predictions for name in results.calibrators)]
        for cell in cells
    }
    return {cell: runs for cell, runs in found.items() if runs}


def calibrator_rows(
    results: Results, scores: Iterable[tuple[str, str]] = tuple(METHOD_SCORES.values())
) -> list[ScoreRow]:
    """Return a row per dataset, model and calibrator, after the uncalibrated row of the model."""
    rows = []
    for (dataset, model), runs in calibrated_runs(results).items():
        having = [name for name in results.calibrators if runs_with(name, runs)]
        for name, prediction in {
            UNCALIBRATED: UNCALIBRATED_PREDICTION,
            **dict(zip(having, having, strict=True)),
        }.items():
            rows.append(prediction_row(dataset, model, name, prediction, runs, scores))
    return mark_best(rows)


def run_position(run: Run) -> tuple[int, int, int]:
    """Return split, fold and initialization, by which runs of two models are paired."""
    return run.key.split, run.key.fold, run.key.init
