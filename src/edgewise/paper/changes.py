"""What the two readings of the paper change, as a table and in sentences that are made from its numbers."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.stats import t as student

from edgewise.paper.formatting import PERCENT, label, listed, score_name, signed
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED, PREDICTIONS, READINGS, changed_rows
from edgewise.paper.results import Results
from edgewise.paper.score_rows import TELLING, ScoreCell, ScoreRow

BETTER, WORSE, UNCLEAR, TOO_FEW = "better", "worse", "not clearly different", "of too few splits to tell"
FEWEST_SPLITS = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Change:
    """What the definitions change in one score of a row, run by run: as defined less as published.

    Means are infinite where a run's score is; ``difference`` is the mean over the runs whose two scores are finite, NaN
    if there is none, and ``by_split`` the same of each split.
    """

    before: float
    after: float
    difference: float
    by_split: Sequence[float]
    better: int
    runs: int


def change(results: Results, dataset: str, row: str, view: str, metric: str) -> Change | None:
    """Compare the two readings run by run; None where no run has both scores."""
    runs = results.of(dataset, READINGS[AS_PUBLISHED][row].model)
    pairs = [
        (run.key.split, before[metric], after[metric])
        for run, before, after in zip(
            runs,
            results.views(AS_PUBLISHED, dataset, row, view),
            results.views(AS_DEFINED, dataset, row, view),
            strict=True,
        )
        if not (math.isnan(before[metric]) or math.isnan(after[metric]))
    ]
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


def direction(found: Change, metric: str) -> str:
    """Tell better from worse, by Student's t over the means of splits.

    Runs of one split share their test set, so they are not independent, and neither are they counted as if they were.
    """
    splits = len(found.by_split)
    if splits < FEWEST_SPLITS:
        return TOO_FEW
    mean, error = fmean(found.by_split), float(np.std(found.by_split, ddof=1)) / math.sqrt(splits)
    if abs(mean) <= float(student.ppf((1 + CONFIDENCE) / 2, splits - 1)) * error:
        return UNCLEAR
    return BETTER if (mean > 0) == (metric == "accuracy") else WORSE


@dataclass(frozen=True)
class Story:
    """What differs in one row of the tables: what is scored in each reading, and a sentence for each score."""

    row: str
    published: str
    defined: str
    sentences: list[str]


def changed_cells(results: Results) -> list[tuple[str, str]]:
    """Give each dataset with each changed row of the tables that it has runs of."""
    return [
        (dataset, row)
        for dataset in results.datasets
        for row in changed_rows()
        if results.of(dataset, READINGS[AS_PUBLISHED][row].model)
    ]


def change_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset and changed row of the tables, with a cell for each telling score."""
    return [
        ScoreRow(dataset, row, [_cell(results, dataset, row, view, metric) for view, metric in TELLING])
        for dataset, row in changed_cells(results)
    ]


def _cell(results: Results, dataset: str, row: str, view: str, metric: str) -> ScoreCell:
    found = change(results, dataset, row, view, metric)
    if found is None:
        return ScoreCell("–", None, "nothing to compare")
    return ScoreCell(_difference(found, metric), found.difference, f"better in {found.better} of {found.runs}")


def _difference(found: Change, metric: str) -> str:
    return signed(100 * found.difference) if metric in PERCENT else signed(found.difference, 4)


def stories(results: Results) -> list[Story]:
    """Tell what differs, for each changed row that has runs."""
    having_runs = {row for _, row in changed_cells(results)}
    return [
        Story(
            row,
            PREDICTIONS[READINGS[AS_PUBLISHED][row].prediction],
            PREDICTIONS[READINGS[AS_DEFINED][row].prediction],
            [sentence for view, metric in TELLING if (sentence := _sentence(results, row, view, metric))],
        )
        for row in changed_rows()
        if row in having_runs
    ]


def _sentence(results: Results, row: str, view: str, metric: str) -> str:
    """Say on which datasets a score is better as defined, on which worse, by how much and in how many runs."""
    each = {dataset: change(results, dataset, row, view, metric) for dataset in results.datasets}
    found = {label(dataset): one for dataset, one in each.items() if one is not None}
    if not found:
        return ""
    name = score_name(view, metric)
    places = {
        way: [place for place, one in found.items() if direction(one, metric) == way]
        for way in (BETTER, WORSE, UNCLEAR, TOO_FEW)
    }
    verdict = "; ".join(f"{way} on {listed(several)}" for way, several in places.items() if several)
    better, runs = sum(one.better for one in found.values()), sum(one.runs for one in found.values())
    by = _range([*found.values()], metric)
    return f"{name[0].upper()}{name[1:]} is {verdict}: {by}, better in {better} of {runs} runs."


def _range(found: Sequence[Change], metric: str) -> str:
    ordered = sorted(found, key=lambda one: one.difference)
    ends = dict.fromkeys((_difference(ordered[0], metric), _difference(ordered[-1], metric)))
    return " to ".join(ends) + (" points" if metric in PERCENT else "")
