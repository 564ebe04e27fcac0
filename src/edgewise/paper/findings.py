"""Differences between the two readings of the paper, as sentences."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.special import stdtrit

from edgewise.paper.formatting import NO_VALUE, PERCENT, format_signed, join_with_and, score_name
from edgewise.paper.readings import (
    AS_DEFINED,
    AS_PUBLISHED,
    PREDICTIONS,
    READINGS,
    changed_rows,
)
from edgewise.paper.results import Results, runs_with
from edgewise.paper.score_rows import COMPARED_SCORES
from edgewise.paper.text_tables import Cell, Row
from edgewise.sweep.progress import format_count

BETTER, WORSE, UNCLEAR, TOO_FEW = "better", "worse", "not clearly different", "undecided for lack of splits"
# By the outcome that all datasets share, the begin of a sentence about the scores that have it.
SHARED_OUTCOMES = {
    BETTER: "Better on every dataset",
    WORSE: "Worse on every dataset",
    UNCLEAR: "Not clearly different on any dataset",
    TOO_FEW: "Undecided for lack of splits",
}
DIFFERENT_OUTCOMES = "Depends on the dataset"
MIN_SPLITS = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Change:
    """Difference of one score of a row between the readings, paired by run: as defined minus as published.

    ``before`` and ``after`` are means, infinite if a run's score is. ``difference`` is the mean over the runs with two
    finite scores, NaN without any, and ``by_split`` the same for each split.
    """

    before: float
    after: float
    difference: float
    by_split: Sequence[float]
    better: int
    runs: int


def change(results: Results, dataset: str, row: str, view: str, metric: str) -> Change | None:
    """Compare the two readings run by run; None if no run has both scores."""
    published, defined = READINGS[AS_PUBLISHED][row], READINGS[AS_DEFINED][row]
    runs = runs_with(defined.prediction, results.runs_of(dataset, published))
    scores = [
        (run.key.split, *(run.predictions[name][view][metric] for name in (published.prediction, defined.prediction)))
        for run in runs
    ]
    pairs = [pair for pair in scores if not any(map(math.isnan, pair))]
    if not pairs:
        return None
    by_split = defaultdict(list)
    for split, before, after in pairs:
        if math.isfinite(after - before):
            by_split[split].append(after - before)
    finite = [difference for of_split in by_split.values() for difference in of_split]
    return Change(
        before=fmean(before for _, before, _ in pairs),
        after=fmean(after for _, _, after in pairs),
        difference=fmean(finite) if finite else math.nan,
        by_split=[fmean(of_split) for of_split in by_split.values()],
        better=sum(after > before if metric == "accuracy" else after < before for _, before, after in pairs),
        runs=len(pairs),
    )


def classify_change(change: Change, metric: str) -> str:
    """Return whether a score is better, worse or neither, by a 95% Student's t interval over the split means.

    Runs of one split share their test set and are not independent, so splits are the unit.
    """
    splits = len(change.by_split)
    if splits < MIN_SPLITS:
        return TOO_FEW
    mean, error = fmean(change.by_split), float(np.std(change.by_split, ddof=1)) / math.sqrt(splits)
    if abs(mean) <= float(stdtrit(splits - 1, (1 + CONFIDENCE) / 2)) * error:
        return UNCLEAR
    return BETTER if (mean > 0) == (metric == "accuracy") else WORSE


Changes = Mapping[tuple[str, str, str, str], Change | None]  # by dataset, row, view and metric


def changes(results: Results) -> Changes:
    """Compare the readings in the `COMPARED_SCORES` of each dataset and changed row that has runs."""
    return {
        (dataset, row, view, metric): change(results, dataset, row, view, metric)
        for dataset in results.datasets
        for row in changed_rows()
        if results.of(dataset, READINGS[AS_PUBLISHED][row].model)
        for view, metric in COMPARED_SCORES
    }


def change_rows(results: Results) -> list[Row]:
    """Return a printed row of differences per dataset and changed row."""
    rows: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for (dataset, row, _, metric), one in changes(results).items():
        rows[dataset, row].append(_cell(one, metric))
    return [Row(dataset, row, cells) for (dataset, row), cells in rows.items()]


def _cell(change: Change | None, metric: str) -> Cell:
    if change is None:
        return Cell(NO_VALUE, "nothing to compare")
    difference = format_signed(100 * change.difference) if metric in PERCENT else format_signed(change.difference, 4)
    remark = f"{change.better} of {format_count(change.runs, 'run')}"
    return Cell(difference, remark, outcome=classify_change(change, metric), value=change.difference)


@dataclass(frozen=True)
class RowChanges:
    """Differences of one row of the tables: the prediction scored in each reading, and a summary of all scores."""

    row: str
    published: str
    defined: str
    summary: str


def describe_changes(results: Results) -> list[RowChanges]:
    """Describe the differences between the readings for each changed row that has runs."""
    all_changes = changes(results)
    rows_with_runs = {row for _, row, *_ in all_changes}
    return [
        RowChanges(
            row,
            PREDICTIONS[READINGS[AS_PUBLISHED][row].prediction],
            PREDICTIONS[READINGS[AS_DEFINED][row].prediction],
            _summary(all_changes, row),
        )
        for row in changed_rows()
        if row in rows_with_runs
    ]


def _summary(all_changes: Changes, row: str) -> str:
    """Return sentences with the scores that are better, worse or neither on all datasets, and those that differ."""
    by_outcome: dict[str, list[str]] = {start: [] for start in (*SHARED_OUTCOMES.values(), DIFFERENT_OUTCOMES)}
    for score in COMPARED_SCORES:
        found = [one for (_, of_row, *of_score), one in all_changes.items() if of_row == row and (*of_score,) == score]
        outcomes = {classify_change(one, score[1]) for one in found if one}
        if outcomes:
            start = SHARED_OUTCOMES[outcomes.pop()] if len(outcomes) == 1 else DIFFERENT_OUTCOMES
            by_outcome[start].append(score_name(*score))
    return " ".join(f"{start}: {join_with_and(names)}." for start, names in by_outcome.items() if names)
