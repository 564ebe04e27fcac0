"""What a sweep shows, in sentences made from its numbers: what the two readings change, what calibration improves."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.stats import t as student

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
        for view, metric in COMPARED_SCORES
    }


def change_rows(results: Results) -> list[Row]:
    """Return a printed row of differences for each dataset and changed row, with a cell for each telling score."""
    rows: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for (dataset, row, _, metric), found in changes(results).items():
        rows[dataset, row].append(_cell(found, metric))
    return [Row(dataset, row, cells) for (dataset, row), cells in rows.items()]


def _cell(found: Change | None, metric: str) -> Cell:
    if found is None:
        return Cell(NO_VALUE, "nothing to compare")
    return Cell(_difference(found, metric), f"better in {found.better} of {found.runs}", value=found.difference)


def _difference(found: Change, metric: str) -> str:
    return format_signed(100 * found.difference) if metric in PERCENT else format_signed(found.difference, 4)


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
            [sentence for view, metric in COMPARED_SCORES if (sentence := _sentence(found, row, view, metric))],
        )
        for row in changed_rows()
        if row in having_runs
    ]


def _sentence(all_changes: Changes, row: str, view: str, metric: str) -> str:
    """Say on which datasets a score is better as defined, on which worse, by how much and in how many runs."""
    score = (row, view, metric)
    found = {display_name(dataset): one for (dataset, *rest), one in all_changes.items() if (*rest,) == score and one}
    if not found:
        return ""
    name = score_name(view, metric)
    places = {
        way: [place for place, one in found.items() if direction(one, metric) == way]
        for way in (BETTER, WORSE, UNCLEAR, TOO_FEW)
    }
    verdict = "; ".join(f"{way} on {join_with_and(several)}" for way, several in places.items() if several)
    better, runs = sum(one.better for one in found.values()), sum(one.runs for one in found.values())
    by = _range([*found.values()], metric)
    return f"{name[0].upper()}{name[1:]} is {verdict}: {by}, better in {better} of {runs} runs."


def _range(found: Sequence[Change], metric: str) -> str:
    ordered = sorted(found, key=lambda one: one.difference)
    ends = dict.fromkeys((_difference(ordered[0], metric), _difference(ordered[-1], metric)))
    return " to ".join(ends) + (" points" if metric in PERCENT else "")


@dataclass(frozen=True)
class Aim:
    """One thing that structured calibration should reach, what came out, and whether that is it."""

    name: str
    outcome: str
    is_met: bool


@dataclass(frozen=True)
class Verdict:
    """What came out for a model on a dataset; ``paired`` compares its runs with temperature scaling."""

    dataset: str
    model: str
    aims: Sequence[Aim]
    paired: str

    @property
    def missed(self) -> list[str]:
        """The names of the aims that are not reached."""
        return [aim.name for aim in self.aims if not aim.is_met]

    def __str__(self) -> str:
        return f"{display_name(self.dataset)}, {display_name(self.model)}: {self.outcome}"

    @property
    def outcome(self) -> str:
        """Which aims are missed, then the numbers of all."""
        whole = f"missed in {join_with_and(self.missed)}" if self.missed else "all aims are met"
        numbers = "; ".join([*(aim.outcome for aim in self.aims), *([self.paired] if self.paired else [])])
        return f"{whole}. {numbers[0].upper()}{numbers[1:]}."


def verdicts(results: Results) -> list[Verdict]:
    """Judge each dataset and model that has structured calibration."""
    return [
        _verdict(one, [other for other in found if _is_rival(one, other)])
        for dataset in results.datasets
        for found in [compared_predictions(results, dataset)]
        for one in found
        if one.source.prediction == STRUCTURED
    ]


def _is_rival(one: NamedPrediction, other: NamedPrediction) -> bool:
    """Tell whether another is a model of the paper as it is, or temperature scaling of the same model."""
    if other.source.prediction in (TEMPERATURE, STRUCTURED):
        return other.source == one.source._replace(prediction=TEMPERATURE)
    return other.source.model in MODELS


def verdict_summary(found: Sequence[Verdict]) -> str:
    """Say what the aims are, and for how many pairs of dataset and model each is met, and all of them."""
    names = [aim.name for aim in found[0].aims] if found else []
    met = [f"{name} {sum(name not in verdict.missed for verdict in found)}" for name in names]
    return (
        "Structured calibration aims at a mean edge NLL and a mean edge Brier score below those of the paper's models, "
        "in both readings, and of temperature scaling of the same model, at a mean edge ECE that is above none of "
        "theirs, and at the node accuracy of each run as it was. Of "
        f"{format_count(len(found), 'pair')} of dataset and model, all aims are met for "
        f"{sum(not verdict.missed for verdict in found)}; one by one: {', '.join(met)}."
    )


def _verdict(one: NamedPrediction, others: Sequence[NamedPrediction]) -> Verdict:
    aims = [
        _lowest(one, others, "edge NLL", "nll", or_equal=False),
        _lowest(one, others, "edge Brier score", "brier", or_equal=False),
        _lowest(one, others, "edge ECE", "ece", or_equal=True),
        _same_accuracy(one),
    ]
    return Verdict(one.runs[0].key.dataset, one.source.model, aims, _paired(one))


def _lowest(one: NamedPrediction, others: Sequence[NamedPrediction], name: str, metric: str, or_equal: bool) -> Aim:
    """Compare a mean over the runs with those of others, of which those without a value do not count."""
    ours = _mean(one, metric)
    if math.isnan(ours):
        return Aim(name, f"{name}: nothing to score", False)
    means = sorted((mean, other.name) for other in others if not math.isnan(mean := _mean(other, metric)))
    before = [(mean, other) for mean, other in means if (mean < ours if or_equal else mean <= ours)]
    said = f"{name} {_format_number(ours, metric)}"
    if before:
        return Aim(name, f"{said} is {'above' if or_equal else 'not below'} {_named(before, metric)}", False)
    held = f"{'not above any of' if or_equal else 'below all'} {format_count(len(means), 'other')}"
    return Aim(name, f"{said} is {held}, the lowest {_named(means[:1], metric)}", True)


def _mean(one: NamedPrediction, metric: str) -> float:
    return summarize(one.values("edgewise", metric))[0]


def _named(means: Sequence[tuple[float, str]], metric: str) -> str:
    return join_with_and([f"{display_name(name)} ({_format_number(mean, metric)})" for mean, name in means])


def _format_number(value: float, metric: str) -> str:
    """Write more digits than tables do, so that means that differ look so."""
    return (f"{100 * value:.3f}%" if metric in PERCENT else f"{value:.4f}").replace("inf", "∞")


def _same_accuracy(one: NamedPrediction) -> Aim:
    """Compare each run with what its calibration started from."""
    base = display_name(one.source.model)
    before = NamedPrediction(base, one.source._replace(prediction=UNCALIBRATED_PREDICTION), one.runs).values(
        "nodewise", "accuracy"
    )
    pairs = zip(one.values("nodewise", "accuracy"), before, strict=True)
    changes = sorted(ours - theirs for ours, theirs in pairs if ours != theirs)
    runs = format_count(len(one.runs), "run")
    if not changes:
        return Aim("node accuracy", f"node accuracy is that of {base} in each of {runs}", True)
    ends = " to ".join(dict.fromkeys(format_signed(100 * change, 3) for change in (changes[0], changes[-1])))
    outcome = f"node accuracy is not that of {base} in {len(changes)} of {runs}, by {ends} points"
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
    below = sum(mine < other for mine, other in zip(ours, theirs, strict=True))
    runs = format_count(len(both), "run")
    base = display_name(one.source.model)
    return f"run by run its edge NLL is below that of {base} + {TEMPERATURE} in {below} of {runs}"
