"""Findings of a sweep as sentences: differences between the two readings, and aims of structured calibration."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.special import stdtrit

from edgewise.paper.formatting import NO_VALUE, PERCENT, display_name, format_signed, join_with_and, score_name
from edgewise.paper.readings import (
    AS_DEFINED,
    AS_PUBLISHED,
    MODELS,
    PREDICTIONS,
    READINGS,
    UNCALIBRATED_PREDICTION,
    changed_rows,
)
from edgewise.paper.results import Results, runs_with
from edgewise.paper.score_rows import (
    COMPARED_SCORES,
    STRUCTURED,
    TEMPERATURE,
    NamedPrediction,
    compared_predictions,
    summarize,
)
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


@dataclass(frozen=True)
class Aim:
    """One aim of structured calibration, its outcome as text, and whether it is met."""

    name: str
    outcome: str
    is_met: bool

    @property
    def detail(self) -> str:
        """The outcome without the name, which a table has in its heading."""
        return self.outcome.removeprefix(self.name).lstrip(": ")


@dataclass(frozen=True)
class Verdict:
    """The outcome of all aims for a model on a dataset. ``paired`` compares its runs with temperature scaling."""

    dataset: str
    model: str
    aims: Sequence[Aim]
    paired: str

    @property
    def missed(self) -> list[str]:
        """The names of the aims that are not met."""
        return [aim.name for aim in self.aims if not aim.is_met]

    def __str__(self) -> str:
        return f"{display_name(self.dataset)}, {display_name(self.model)}: {self.outcome}"

    @property
    def outcome(self) -> str:
        """The aims that are not met, then the numbers of all aims."""
        whole = f"not met for {join_with_and(self.missed)}" if self.missed else "all aims are met"
        numbers = "; ".join([*(aim.outcome for aim in self.aims), *([self.paired] if self.paired else [])])
        return f"{whole}. {numbers[0].upper()}{numbers[1:]}."


def verdicts(results: Results) -> list[Verdict]:
    """Return a verdict per dataset of the paper and model with structured calibration."""
    return [
        _verdict(one, [other for other in predictions if _is_rival(one, other)])
        for dataset in results.paper_datasets
        for predictions in [compared_predictions(results, dataset)]
        for one in predictions
        if one.source.prediction == STRUCTURED
    ]


def _is_rival(one: NamedPrediction, other: NamedPrediction) -> bool:
    """Return whether ``other`` is an uncalibrated model of the paper, or temperature scaling of the same model."""
    if other.source.prediction in (TEMPERATURE, STRUCTURED):
        return other.source == one.source._replace(prediction=TEMPERATURE)
    return other.source.model in MODELS


def verdict_summary(verdicts: Sequence[Verdict]) -> str:
    """Describe the aims, and count the pairs of dataset and model for which all and each of them are met."""
    names = [aim.name for aim in verdicts[0].aims] if verdicts else []
    met = [f"{name} {sum(name not in verdict.missed for verdict in verdicts)}" for name in names]
    return (
        "Structured calibration has four aims: a mean edge NLL and a mean edge Brier score below those of the paper's "
        "models, in both readings, and of temperature scaling of the same model; a mean edge ECE no higher than any of "
        "theirs; and an unchanged node accuracy in each run. Of "
        f"{format_count(len(verdicts), 'pair')} of dataset and model, all aims are met for "
        f"{sum(not verdict.missed for verdict in verdicts)}; each aim: {', '.join(met)}."
    )


def _verdict(one: NamedPrediction, others: Sequence[NamedPrediction]) -> Verdict:
    aims = [
        _lowest_aim(one, others, "edge NLL", "nll", or_equal=False),
        _lowest_aim(one, others, "edge Brier score", "brier", or_equal=False),
        _lowest_aim(one, others, "edge ECE", "ece", or_equal=True),
        _same_accuracy_aim(one),
    ]
    return Verdict(one.runs[0].key.dataset, one.source.model, aims, _paired(one))


def _lowest_aim(one: NamedPrediction, others: Sequence[NamedPrediction], name: str, metric: str, or_equal: bool) -> Aim:
    """Compare a mean over runs with those of others. Others without a value are ignored."""
    ours = _mean(one, metric)
    if math.isnan(ours):
        return Aim(name, f"{name}: nothing to score", False)
    means = sorted((mean, other.name) for other in others if not math.isnan(mean := _mean(other, metric)))
    lower = [(mean, other) for mean, other in means if (mean < ours if or_equal else mean <= ours)]
    value = f"{name} {_format_number(ours, metric)}"
    if lower:
        return Aim(name, f"{value} is {'above' if or_equal else 'not below'} {_list_means(lower, metric)}", False)
    comparison = f"{'not above any of' if or_equal else 'below all'} {format_count(len(means), 'other')}"
    return Aim(name, f"{value} is {comparison}, the lowest {_list_means(means[:1], metric)}", True)


def _mean(one: NamedPrediction, metric: str) -> float:
    return summarize(one.values("edgewise", metric))[0]


def _list_means(means: Sequence[tuple[float, str]], metric: str) -> str:
    return join_with_and([f"{display_name(name)} ({_format_number(mean, metric)})" for mean, name in means])


def _format_number(value: float, metric: str) -> str:
    """Format a mean with more digits than tables have, so that different means look different."""
    return (f"{100 * value:.3f}%" if metric in PERCENT else f"{value:.4f}").replace("inf", "∞")


def _same_accuracy_aim(one: NamedPrediction) -> Aim:
    """Compare the accuracy of each run with that of its uncalibrated prediction."""
    base = display_name(one.source.model)
    before = NamedPrediction(base, one.source._replace(prediction=UNCALIBRATED_PREDICTION), one.runs).values(
        "nodewise", "accuracy"
    )
    pairs = zip(one.values("nodewise", "accuracy"), before, strict=True)
    changes = sorted(ours - theirs for ours, theirs in pairs if ours != theirs)
    runs = format_count(len(one.runs), "run")
    if not changes:
        return Aim("node accuracy", f"node accuracy equals that of {base} in each of {runs}", True)
    ends = " to ".join(dict.fromkeys(format_signed(100 * change, 3) for change in (changes[0], changes[-1])))
    outcome = f"node accuracy differs from that of {base} in {len(changes)} of {runs}, by {ends} points"
    return Aim("node accuracy", outcome, False)


def _paired(one: NamedPrediction) -> str:
    """Count the runs whose edge NLL is below that of temperature scaling in the same run."""
    both = runs_with(TEMPERATURE, one.runs)
    if not both:
        return ""
    ours, theirs = (
        NamedPrediction(name, one.source._replace(prediction=name), both).values("edgewise", "nll")
        for name in (one.source.prediction, TEMPERATURE)
    )
    lower = sum(mine < other for mine, other in zip(ours, theirs, strict=True))
    runs = format_count(len(both), "run")
    base = display_name(one.source.model)
    return f"paired by run, its edge NLL is below that of {base} + {TEMPERATURE} in {lower} of {runs}"
