"""Rows of scores: what stands in each cell, what it sorts by, and how far from the published number it is."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import multimode
from types import MappingProxyType

from edgewise.data.statistics import DatasetStatistics, MeanStd
from edgewise.metrics.sums import VIEWS
from edgewise.paper.formatting import EMPTY, READING_NAMES, counted, mean_std, signed
from edgewise.paper.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.paper.readings import (
    AS_DEFINED,
    AS_PUBLISHED,
    CALIBRATORS,
    KNOWN_MODELS,
    PREDICTIONS,
    READINGS,
    STARTED_FROM,
    Source,
)
from edgewise.paper.results import SHARES, Results, Summary, away, runs_with, summarised
from edgewise.sweep.runs import SAME_LABEL, Run

COUNTS = ("nodes", "directed_edges", "features", "classes")
# The scores that tell the predictions of a model apart.
TELLING = (
    ("nodewise", "accuracy"),
    ("nodewise", "ece"),
    ("edgewise", "ece"),
    ("edgewise", "nll"),
    ("edgewise", "brier"),
)
PREDICTION_SCORES = (*TELLING, (SAME_LABEL, "ece"))


@dataclass(frozen=True)
class Published:
    """A published number beside ours, and how many of its standard deviations ours is away."""

    text: str
    difference: float | None = None

    @property
    def away(self) -> str:
        """The difference, with its sign."""
        return "" if self.difference is None else signed(self.difference)

    @property
    def verdict(self) -> str:
        """Within one published standard deviation is good, within two is near, beyond is far; empty without ours."""
        if self.difference is None:
            return ""
        return "good" if abs(self.difference) <= 1 else "near" if abs(self.difference) <= 2 else "far"


@dataclass(frozen=True)
class ScoreCell:
    """A cell: its text, the number that it sorts by, a remark, and what was published."""

    text: str
    value: float | None
    remark: str = ""
    published: Published | None = None
    is_best: bool = False

    @property
    def sort_key(self) -> str:
        """The number as JavaScript reads it; empty where there is none, which sorts last."""
        if self.value is None or math.isnan(self.value):
            return ""
        return repr(float(self.value)).replace("inf", "Infinity")


@dataclass(frozen=True)
class ScoreRow:
    """A row of a table: of which dataset, what its name is, and its cells."""

    dataset: str
    name: str
    cells: Sequence[ScoreCell]
    remark: str = ""


def score_rows(results: Results, reading: str, metric: str) -> list[ScoreRow]:
    """Give a row for each dataset and row of the paper's tables that has runs, with a cell for each view."""
    usual = max(multimode(Counter(run.key.cell for run in results.runs).values()), default=0)
    return [
        row
        for dataset in results.datasets
        for row in with_best(
            [_score_row(results, reading, dataset, name, metric, usual) for name in READINGS[reading]],
            [metric] * len(VIEWS),
        )
    ]


def _score_row(results: Results, reading: str, dataset: str, name: str, metric: str, usual: int) -> ScoreRow:
    runs = len(results.of(dataset, READINGS[reading][name].model))
    if not runs:
        return ScoreRow(dataset, name, ())
    published = PUBLISHED_SCORES.get(dataset, {}).get(name, {}).get(metric, {})
    cells = [
        score_cell(results.summary(reading, dataset, name, view, metric), metric, runs, published.get(view))
        for view in VIEWS
    ]
    return ScoreRow(dataset, name, cells, counted(runs, "run") if runs < usual else "")


def score_cell(ours: Summary | None, metric: str, runs: int, published: MeanStd | None = None) -> ScoreCell:
    """Write mean ± std, and remark on it if some of the runs have no value."""
    theirs = Published(mean_std(published, metric)) if published else None
    if ours is None:
        return ScoreCell(EMPTY, None, "nothing to score", theirs)
    if theirs and published:
        theirs = replace(theirs, difference=away(ours, published))
    remark = counted(ours.runs, "run") if ours.runs < runs else ""
    return ScoreCell(mean_std(ours, metric), ours.mean, remark, theirs)


def with_best(rows: Sequence[ScoreRow], metrics: Sequence[str]) -> list[ScoreRow]:
    """Mark the best cell of each column, and those whose mean looks the same; rows without cells are left out."""
    filled = [row for row in rows if row.cells]
    columns = enumerate(metrics) if len(filled) > 1 else ()
    best = [_best([row.cells[i] for row in filled], metric) for i, metric in columns]
    return [
        replace(row, cells=[replace(c, is_best=_mean(c) == b) for c, b in zip(row.cells, best, strict=True)])
        if best
        else row
        for row in filled
    ]


def _best(cells: Iterable[ScoreCell], metric: str) -> str | None:
    known = [cell for cell in cells if cell.value is not None and math.isfinite(cell.value)]
    if not known:
        return None
    return _mean((max if metric == "accuracy" else min)(known, key=lambda cell: cell.value or 0.0))


def _mean(cell: ScoreCell) -> str:
    return cell.text.split(" ± ")[0]


def prediction_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset and prediction; the name is that of the model and that of the prediction."""
    return [
        prediction_row(dataset, f"{model} {name}", runs, name, PREDICTION_SCORES)
        for dataset in results.datasets
        for model in KNOWN_MODELS
        for runs in [results.of(dataset, model)]
        for name in results.predictions(dataset, model)
    ]


def prediction_row(
    dataset: str, name: str, runs: Sequence[Run], prediction: str, scores: Iterable[tuple[str, str]]
) -> ScoreRow:
    """Give a cell for each score of a prediction; the remark says if only some of the runs have it."""
    having = [run.predictions[prediction] for run in runs_with(prediction, runs)]
    cells = [
        score_cell(summarised(views[view][metric] for views in having), metric, len(having)) for view, metric in scores
    ]
    return ScoreRow(dataset, name, cells, counted(len(having), "run") if len(having) < len(runs) else "")


def legend_of(results: Results) -> dict[str, str]:
    """Explain the predictions that some run has."""
    found = {name for run in results.runs for name in run.predictions}
    return {name: meaning for name, meaning in PREDICTIONS.items() if name in found}


def statistics_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset with its sizes, then its shares in percent, ours and published."""
    return [
        ScoreRow(dataset, dataset, _statistics_cells(ours, PUBLISHED_DATASETS.get(dataset)))
        for dataset in results.described_datasets
        if (ours := results.dataset_statistics(dataset))
    ]


def _statistics_cells(ours: DatasetStatistics, published: DatasetStatistics | None) -> list[ScoreCell]:
    counts = [
        ScoreCell(
            f"{getattr(ours, name):,}",
            getattr(ours, name),
            published=Published(f"{getattr(published, name):,}") if published else None,
        )
        for name in COUNTS
    ]
    return counts + [_share_cell(getattr(ours, share), share, getattr(published, share, None)) for share in SHARES]


def _share_cell(share: MeanStd, name: str, published: MeanStd | None) -> ScoreCell:
    """Write a share of the edges of test sets; a set without edges has none."""
    ours = share if isinstance(share, Summary) and share.runs else None
    return score_cell(ours, name, ours.runs if ours else 0, published)


UNCALIBRATED = "uncalibrated"
# By the name of the column: view and metric.
CALIBRATOR_SCORES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "node accuracy": ("nodewise", "accuracy"),
        "node ECE": ("nodewise", "ece"),
        "node NLL": ("nodewise", "nll"),
        "edge ECE": ("edgewise", "ece"),
        "edge NLL": ("edgewise", "nll"),
        "edge Brier": ("edgewise", "brier"),
        "P(same) ECE": (SAME_LABEL, "ece"),
    }
)


def calibrated_runs(results: Results) -> dict[tuple[str, str], list[Run]]:
    """Give the runs that have calibrated predictions, by dataset and model."""
    cells = [(dataset, model) for dataset in results.datasets for model in KNOWN_MODELS]
    found = {cell: [run for run in results.of(*cell) if _is_calibrated(run)] for cell in cells}
    return {cell: runs for cell, runs in found.items() if runs}


def _is_calibrated(run: Run) -> bool:
    return any(name in run.predictions for name in CALIBRATORS)


def calibrated_predictions(runs: Sequence[Run]) -> dict[str, str]:
    """Give the predictions of the runs by the names of calibrators, first the one that they start from."""
    having = [name for name in CALIBRATORS if any(name in run.predictions for run in runs)]
    return {UNCALIBRATED: STARTED_FROM, **{name: name for name in having}}


def calibrator_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset, model and calibrator; the name is that of the model and that of the calibrator."""
    metrics = [metric for _, metric in CALIBRATOR_SCORES.values()]
    cells = calibrated_runs(results)
    return [
        row
        for dataset in results.datasets
        for row in with_best(
            [
                prediction_row(dataset, f"{model} {name}", runs, prediction, CALIBRATOR_SCORES.values())
                for (of_dataset, model), runs in cells.items()
                if of_dataset == dataset
                for name, prediction in calibrated_predictions(runs).items()
            ],
            metrics,
        )
    ]


STRUCTURED, TEMPERATURE = "structured", "temperature"
# By the name of the column: view and metric.
STRUCTURED_SCORES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "edge NLL": ("edgewise", "nll"),
        "edge Brier": ("edgewise", "brier"),
        "edge ECE": ("edgewise", "ece"),
        "node accuracy": ("nodewise", "accuracy"),
    }
)


@dataclass(frozen=True)
class Contender:
    """What is compared: its name, the prediction that it is, and the runs that have it."""

    name: str
    source: Source
    runs: Sequence[Run]

    @property
    def is_structured(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.source.prediction == STRUCTURED

    def scores(self, view: str, metric: str) -> list[float]:
        """Give a score of each run."""
        return [run.predictions[self.source.prediction][view][metric] for run in self.runs]


def contenders(results: Results, dataset: str) -> list[Contender]:
    """Give all that have runs on a dataset, only runs whose split, fold and init structured calibration has too."""
    structured = [
        run
        for (of_dataset, _), runs in calibrated_runs(results).items()
        for run in runs_with(STRUCTURED, runs)
        if of_dataset == dataset
    ]
    bases, places = dict.fromkeys(run.key.model for run in structured), {_place(run) for run in structured}
    found = [
        Contender(name, source, [run for run in runs if _place(run) in places])
        for name, source in _named(bases)
        for runs in [runs_with(source.prediction, results.of(dataset, source.model))]
    ]
    return [one for one in found if one.runs]


def _named(bases: Iterable[str]) -> list[tuple[str, Source]]:
    """Name the rows of the tables, twice where the readings differ, and what calibrators make of models."""
    named = []
    for row in dict.fromkeys(row for rows in READINGS.values() for row in rows):
        of_reading = {reading: READINGS[reading].get(row) for reading in (AS_PUBLISHED, AS_DEFINED)}
        differ = None not in of_reading.values() and len(set(of_reading.values())) > 1
        for reading, source in of_reading.items():
            if source is not None:
                named.append((f"{row} {READING_NAMES[reading]}" if differ else row, source))
    named += [
        (f"{base} + {calibrator}", Source(base, calibrator))
        for calibrator in (TEMPERATURE, STRUCTURED)
        for base in bases
    ]
    return list(dict.fromkeys(named))


def _place(run: Run) -> tuple[int, int, int]:
    return run.key.split, run.key.fold, run.key.init


def structured_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset with structured calibration and each contender."""
    metrics = [metric for _, metric in STRUCTURED_SCORES.values()]
    return [row for dataset in results.datasets for row in with_best(_rows(contenders(results, dataset)), metrics)]


def _rows(found: Sequence[Contender]) -> list[ScoreRow]:
    most = max((len(one.runs) for one in found), default=0)
    return [
        replace(
            prediction_row(
                one.runs[0].key.dataset, one.name, one.runs, one.source.prediction, STRUCTURED_SCORES.values()
            ),
            remark=counted(len(one.runs), "run") if len(one.runs) < most else "",
        )
        for one in found
    ]
