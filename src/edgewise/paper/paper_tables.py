"""The tables of the paper, ours beside published, and what its two readings change."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from edgewise.data.statistics import MeanStd
from edgewise.metrics.sums import VIEWS
from edgewise.paper.changes import change, changed_cells
from edgewise.paper.comparison import STATISTICS, ComparedCell, compare
from edgewise.paper.formatting import METRIC_NAMES, PERCENT, READING_NAMES, label, mean_std, number, score_name, signed
from edgewise.paper.published import PUBLISHED_DATASETS
from edgewise.paper.readings import AS_DEFINED, READINGS
from edgewise.paper.results import SHARES, Results, runs_with, summarised
from edgewise.paper.score_rows import (
    CALIBRATOR_SCORES,
    COUNTS,
    PREDICTION_SCORES,
    STRUCTURED_SCORES,
    TELLING,
    ScoreCell,
    ScoreRow,
    calibrated_predictions,
    calibrated_runs,
    calibrator_rows,
    legend_of,
    prediction_rows,
    score_rows,
    statistics_rows,
    structured_rows,
)
from edgewise.paper.structured_verdicts import verdict_summary, verdicts
from edgewise.paper.text_tables import Cell, Row, Table
from edgewise.sweep.runs import SAME_LABEL

BENEATH = "Beneath: what was published, and how many of its standard deviations ours is away."
ACROSS = 4  # datasets side by side
CALIBRATED_NOTE = (
    "Accuracy and ECE in percent; mean ± std over the same runs of a model; best of a dataset in bold. P(same) is the "
    "probability that both ends of an edge have the same label."
)
STRUCTURED_TITLE = "Structured calibration against the paper's models"
STRUCTURED_NOTE = (
    "Accuracy and ECE in percent; mean ± std over the runs whose split, fold and initialisation structured calibration "
    "has; best of a dataset in bold."
)
OTHER_PROCEDURE = "The published procedure was another: to be away from its numbers is no failure to reproduce them."


def paper_tables(results: Results) -> list[Table]:
    """Make all tables: datasets, four metrics in two readings, what differs, calibrators, predictions, far cells."""
    scores = [_scores(results, reading, metric) for reading in READINGS for metric in METRIC_NAMES]
    calibrated = [_calibrators(results), _structured(results)]
    tables = [*_datasets(results), *scores, _changes(results), *calibrated, _predictions(results), _far(results)]
    return [table for table in tables if table.rows]


def _scores(results: Results, reading: str, metric: str) -> Table:
    unit = ", percent" if metric in PERCENT else ""
    title = f"{METRIC_NAMES[metric][0].upper()}{METRIC_NAMES[metric][1:]}, {READING_NAMES[reading]}{unit}"
    rows = score_rows(results, reading, metric)
    beneath = _beneath(rows)
    notes = ["Mean ± std over runs; best of a dataset in bold.", *beneath]
    notes += [OTHER_PROCEDURE] if beneath and reading == AS_DEFINED else []
    return Table(title, VIEWS, _rows(rows), [" ".join(notes)])


def _rows(rows: Sequence[ScoreRow]) -> list[Row]:
    return [
        Row(row.dataset, f"{row.name} ({row.remark})" if row.remark else row.name, [_cell(cell) for cell in row.cells])
        for row in rows
    ]


def _cell(cell: ScoreCell) -> Cell:
    published = f"{cell.published.text}  {cell.published.away}".rstrip() if cell.published else ""
    return Cell(f"{cell.text} ({cell.remark})" if cell.remark else cell.text, published, cell.is_best)


def _datasets(results: Results) -> list[Table]:
    """Turn the table: datasets in columns, and only so many that they fit a terminal."""
    found = statistics_rows(results)
    parts = [found[start : start + ACROSS] for start in range(0, len(found), ACROSS)]
    return [_datasets_table(part, "Datasets, continued" if place else "Datasets") for place, part in enumerate(parts)]


def _datasets_table(part: Sequence[ScoreRow], title: str) -> Table:
    rows = [
        Row("", label(name), [_cell(row.cells[place]) for row in part]) for place, name in enumerate((*COUNTS, *SHARES))
    ]
    notes = ["Edges: both directions. Homophily and K: percent, mean ± std over splits.", *_beneath(part)]
    return Table(title, [row.dataset for row in part], rows, [" ".join(notes)])


def _beneath(rows: Sequence[ScoreRow]) -> list[str]:
    """Explain the second line of cells, if there is one."""
    return [BENEATH] if any(cell.published for row in rows for cell in row.cells) else []


def _changes(results: Results) -> Table:
    rows = [
        Row(dataset, row, [_change(results, dataset, row, *score) for score in TELLING])
        for dataset, row in changed_cells(results)
    ]
    note = "As published → as defined, means over runs; beneath: in how many runs as defined is better."
    return Table("What the definitions change", [score_name(*score) for score in TELLING], rows, [note])


def _change(results: Results, dataset: str, row: str, view: str, metric: str) -> Cell:
    found = change(results, dataset, row, view, metric)
    if found is None:
        return Cell(mean_std(None, metric))
    text = f"{number(found.before, metric)} → {number(found.after, metric)}"
    return Cell(text, f"better in {found.better} of {found.runs}")


def _calibrators(results: Results) -> Table:
    """Put each model of a dataset in a group of its own, so that the table fits a terminal."""
    rows = []
    for row in calibrator_rows(results):
        model, _, calibrator = row.name.partition(" ")
        rows += _rows([replace(row, dataset=f"{row.dataset} {model}", name=calibrator)])
    return Table("Calibrators", [*CALIBRATOR_SCORES], rows, [CALIBRATED_NOTE])


def _structured(results: Results) -> Table:
    found = verdicts(results)
    notes = [STRUCTURED_NOTE, verdict_summary(found), *map(str, found)]
    return Table(STRUCTURED_TITLE, [*STRUCTURED_SCORES], _rows(structured_rows(results)), notes)


def _predictions(results: Results) -> Table:
    legend = [f"{name}: {meaning}." for name, meaning in legend_of(results).items()]
    columns = [score_name(*score) for score in PREDICTION_SCORES]
    return Table("All predictions", columns, _rows(prediction_rows(results)), legend)


def far_cells(results: Results) -> list[ComparedCell]:
    """Give the published cells that are more than one of their standard deviations away, the farthest first."""
    away = [(abs(cell.difference), cell) for cell in compare(results) if cell.difference is not None]
    return [cell for distance, cell in sorted(away, key=lambda pair: -pair[0]) if distance > 1]


def _far(results: Results) -> Table:
    rows = [
        Row(
            "",
            f"{cell.dataset} {cell.row}",
            [
                Cell(f"{cell.view} {METRIC_NAMES.get(cell.metric, label(cell.metric))}".strip()),
                Cell(mean_std(cell.ours, cell.metric)),
                Cell(mean_std(cell.published, cell.metric)),
                Cell(signed(cell.difference or 0.0)),
            ],
        )
        for cell in far_cells(results)
    ]
    return Table(
        "Published cells more than one standard deviation away",
        ("score", "ours", "published", "difference"),
        rows,
        ["Percent; the difference is in published standard deviations."],
    )


COLUMNS = (
    *("reading", "dataset", "row", "metric", "view", "mean", "std", "runs"),
    *("published_mean", "published_std", "difference_in_published_std"),
)

Line = list[object]

CALIBRATED = "calibrated"  # in the column of readings


def scores_csv(results: Results) -> str:
    """Write means, stds and published numbers as fractions.

    First come the scores of both readings, then what calibrators do to them, then statistics over splits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for reading in READINGS:
        writer.writerows(_of_reading(results, reading))
    writer.writerows(_of_calibrators(results))
    writer.writerows(_published_statistics(results))
    writer.writerows(_other_statistics(results))
    return text.getvalue()


def _of_reading(results: Results, reading: str) -> Iterator[Line]:
    """Give a line for each score of each row of the tables that some run has."""
    published = {_place(cell): cell for cell in compare(results, reading)}
    for dataset, row, metric, view in product(results.datasets, READINGS[reading], METRIC_NAMES, VIEWS):
        ours = results.summary(reading, dataset, row, view, metric)
        if ours is not None:
            place = (dataset, row, metric, view)
            yield [reading, *place, *_numbers(ours, ours.runs, published.get(place))]


def _of_calibrators(results: Results) -> Iterator[Line]:
    """Give a line for each score of each calibrator of each model that some run has."""
    for (dataset, model), runs in calibrated_runs(results).items():
        for name, prediction in calibrated_predictions(runs).items():
            having = [run.predictions[prediction] for run in runs_with(prediction, runs)]
            for metric, view in product(METRIC_NAMES, (*VIEWS, SAME_LABEL)):
                ours = summarised(views[view][metric] for views in having)
                if ours is not None:
                    place = (dataset, f"{model} {name}", metric, view)
                    yield [CALIBRATED, *place, *_numbers(ours, ours.runs, None)]


def _published_statistics(results: Results) -> Iterator[Line]:
    """Give a line for each published share of a dataset whose splits are known."""
    for cell in compare(results):
        if cell.row == STATISTICS and cell.ours is not None:
            splits = sum(task.dataset == cell.dataset for task in results.tasks)
            yield ["", *_place(cell), *_numbers(cell.ours, splits, cell)]


def _other_statistics(results: Results) -> Iterator[Line]:
    """Give a line for each share of another dataset that some split has."""
    for dataset in results.described_datasets:
        ours = results.dataset_statistics(dataset)
        if dataset in PUBLISHED_DATASETS or ours is None:
            continue
        for share in SHARES:
            value = getattr(ours, share)
            if value.runs:
                yield ["", dataset, STATISTICS, share, "", *_numbers(value, value.runs, None)]


def _place(cell: ComparedCell) -> tuple[str, str, str, str]:
    return cell.dataset, cell.row, cell.metric, cell.view


def _numbers(ours: MeanStd, runs: int, cell: ComparedCell | None) -> list[float | int | None]:
    if cell is None:
        return [ours.mean, ours.std, runs, None, None, None]
    return [ours.mean, ours.std, runs, cell.published.mean, cell.published.std, cell.difference]
