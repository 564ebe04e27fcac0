"""Rows of scores: what stands in each cell, what it sorts by, and how far from the published number it is."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import multimode

from edgewise.data.statistics import DatasetStatistics, MeanStd
from edgewise.experiments.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.experiments.readings import KNOWN_MODELS, PREDICTIONS, READINGS
from edgewise.experiments.runs import SAME_LABEL, Run
from edgewise.metrics.sums import VIEWS
from edgewise.report.results import SHARES, Results, Summary, away, runs_with, summarised
from edgewise.report.words import EMPTY, counted, mean_std, signed

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
