"""What the two readings of the paper change, as a table and in sentences that are made from its numbers."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.stats import t as student

from edgewise.paper.formatting import EMPTY, PERCENT, label, listed, score_name, signed
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED, PREDICTIONS, READINGS, changed_rows
from edgewise.paper.results import Results, runs_with
from edgewise.paper.score_rows import TELLING
from edgewise.paper.text_tables import Cell, Row

BETTER, WORSE, UNCLEAR, TOO_FEW = "better", "worse", "not clearly different", "of too few splits to tell"
MIN_SPLITS = 3
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


def direction(found: Change, metric: str) -> str:
    """Tell better from worse, by Student's t over the means of splits.

    Runs of one split share their test set, so they are not independent, and neither are they counted as if they were.
    """
    splits = len(found.by_split)
    if splits < MIN_SPLITS:
        return TOO_FEW
    mean, error = fmean(found.by_split), float(np.std(found.by_split, ddof=1)) / math.sqrt(splits)
    if abs(mean) <= float(student.ppf((1 + CONFIDENCE) / 2, splits - 1)) * error:
        return UNCLEAR
    return BETTER if (mean > 0) == (metric == "accuracy") else WORSE


Changes = Mapping[tuple[str, str, str, str], Change | None]  # by dataset, row, view and metric


def changes(results: Results) -> Changes:
    """Compare the telling scores of each dataset and changed row that has runs."""
    return {
        (dataset, row, view, metric): change(results, dataset, row, view, metric)
        for dataset in results.datasets
        for row in changed_rows()
        if results.of(dataset, READINGS[AS_PUBLISHED][row].model)
        for view, metric in TELLING
    }


def change_rows(results: Results) -> list[Row]:
    """Return a printed row of differences for each dataset and changed row, with a cell for each telling score."""
    rows: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for (dataset, row, _, metric), found in changes(results).items():
        rows[dataset, row].append(_cell(found, metric))
    return [Row(dataset, row, cells) for (dataset, row), cells in rows.items()]


def _cell(found: Change | None, metric: str) -> Cell:
    if found is None:
        return Cell(EMPTY, "nothing to compare")
    return Cell(_difference(found, metric), f"better in {found.better} of {found.runs}", value=found.difference)


def _difference(found: Change, metric: str) -> str:
    return signed(100 * found.difference) if metric in PERCENT else signed(found.difference, 4)


@dataclass(frozen=True)
class RowChanges:
    """What differs in one row of the tables: what is scored in each reading, and a sentence for each score."""

    row: str
    published: str
    defined: str
    sentences: list[str]


def describe_changes(results: Results) -> list[RowChanges]:
    """Say what differs, for each changed row that has runs."""
    found = changes(results)
    having_runs = {row for _, row, *_ in found}
    return [
        RowChanges(
            row,
            PREDICTIONS[READINGS[AS_PUBLISHED][row].prediction],
            PREDICTIONS[READINGS[AS_DEFINED][row].prediction],
            [sentence for view, metric in TELLING if (sentence := _sentence(found, row, view, metric))],
        )
        for row in changed_rows()
        if row in having_runs
    ]


def _sentence(all_changes: Changes, row: str, view: str, metric: str) -> str:
    """Say on which datasets a score is better as defined, on which worse, by how much and in how many runs."""
    score = (row, view, metric)
    found = {label(dataset): one for (dataset, *rest), one in all_changes.items() if (*rest,) == score and one}
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
