"""The tables of the reproduction, with published values, and all numbers as CSV."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import scores_beyond_one_std
from edgewise.paper.findings import Change, changes
from edgewise.paper.formatting import (
    COUNTS,
    FRACTIONS,
    METRIC_NAMES,
    PERCENT,
    READING_NAMES,
    display_name,
    format_number,
    score_name,
)
from edgewise.paper.gains import gain_table
from edgewise.paper.model_differences import model_difference_table
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED, READINGS
from edgewise.paper.results import Results
from edgewise.paper.score_rows import (
    COMPARED_SCORES,
    METHOD_SCORES,
    Score,
    ScoreRow,
    calibrator_rows,
    reading_score,
    score_rows,
    statistics_rows,
)
from edgewise.paper.text_tables import Cell, Row, Table, printed_rows, score_cell
from edgewise.sweep.runs import SAME_LABEL

PUBLISHED_NOTE = "Second line: published value, and the difference of ours in published standard deviations."
DATASETS_PER_TABLE = 4
CALIBRATED_NOTE = (
    "Accuracy and ECE in percent; mean ± std over the same runs of a model; best of each dataset in bold. Same label "
    "is the event that both ends of an edge have the same label."
)
CALIBRATORS_TITLE = "Calibrators"
OTHER_PROCEDURE_NOTE = "The published procedure was different, so differences from its numbers are expected."


def paper_tables(results: Results) -> list[Table]:
    """Return all tables but those of methods: datasets, scores, differences, calibrators, gains, outliers."""
    scores = [_scores(results, reading, metric) for reading in READINGS for metric in METRIC_NAMES]
    tables = [
        *_datasets(results),
        *scores,
        _changes(results),
        model_difference_table(results),
        _calibrators(results),
        gain_table(results),
        beyond_one_std_table(results),
    ]
    return [table for table in tables if table.rows]


def _scores(results: Results, reading: str, metric: str) -> Table:
    unit = ", percent" if metric in PERCENT else ""
    title = f"{METRIC_NAMES[metric][0].upper()}{METRIC_NAMES[metric][1:]}, {READING_NAMES[reading]}{unit}"
    rows = score_rows(results, reading, metric)
    if reading == AS_PUBLISHED and results.other_datasets:  # other graphs have no published procedure
        rows = [row for row in rows if row.dataset in results.paper_datasets]
    published_note = _published_note(rows)
    notes = ["Mean ± std over runs; best of each dataset in bold.", *published_note]
    notes += [OTHER_PROCEDURE_NOTE] if published_note and reading == AS_DEFINED else []
    return Table(title, VIEWS, printed_rows(rows), [" ".join(notes)])


def _datasets(results: Results) -> list[Table]:
    """Return tables with datasets in columns, few enough per table to fit a terminal."""
    rows = statistics_rows(results)
    parts = [rows[start : start + DATASETS_PER_TABLE] for start in range(0, len(rows), DATASETS_PER_TABLE)]
    return [_datasets_table(part, "Datasets, continued" if index else "Datasets") for index, part in enumerate(parts)]


def _datasets_table(part: Sequence[ScoreRow], title: str) -> Table:
    rows = [
        Row("", display_name(name), [score_cell(row.scores[index]) for row in part])
        for index, name in enumerate((*COUNTS, *FRACTIONS))
    ]
    notes = [
        "Edges are counted in both directions. Homophily and K in percent, mean ± std over splits.",
        *_published_note(part),
    ]
    return Table(title, [display_name(row.dataset) for row in part], rows, [" ".join(notes)])


def _published_note(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the note on the second line of cells, if any cell has one."""
    return [PUBLISHED_NOTE] if any(score.published for row in rows for score in row.scores) else []


def _changes(results: Results) -> Table:
    all_changes = changes(results)
    rows = [
        Row(dataset, row, [_change_cell(all_changes[dataset, row, *score], score[1]) for score in COMPARED_SCORES])
        for dataset, row in dict.fromkeys((dataset, row) for dataset, row, *_ in all_changes)
    ]
    note = "As published → as defined, means over runs. Second line: the number of runs in which as defined is better."
    return Table("Differences between the readings", [score_name(*score) for score in COMPARED_SCORES], rows, [note])


def _change_cell(change: Change | None, metric: str) -> Cell:
    if change is None:
        return Cell(format_number(math.nan, metric))
    text = f"{format_number(change.before, metric)} → {format_number(change.after, metric)}"
    return Cell(text, subtext=f"better in {change.better} of {change.runs}")


def _calibrators(results: Results) -> Table:
    """Return the table of calibrators, with one group per dataset and model, so that it fits a terminal."""
    rows = [
        replace(row, group=f"{display_name(row.group)} {display_name(row.model)}")
        for row in printed_rows(calibrator_rows(results))
    ]
    return Table(CALIBRATORS_TITLE, [*METHOD_SCORES], rows, [CALIBRATED_NOTE])


def beyond_one_std_table(results: Results) -> Table:
    """Return the published cells that differ by more than one published standard deviation, largest first."""
    rows = []
    for score in scores_beyond_one_std(results):
        name = f"{score.view} {METRIC_NAMES.get(score.metric, display_name(score.metric))}".strip()
        cell = score_cell(score)
        texts = (name, cell.text, cell.subtext, cell.difference)
        label = f"{display_name(score.dataset)} {display_name(score.row)}"
        rows.append(Row("", label, [Cell(text) for text in texts]))
    return Table(
        "Published cells more than one standard deviation away",
        ("score", "ours", "published", "difference"),
        rows,
        ["In percent; differences in published standard deviations."],
    )


# --- CSV ---

COLUMNS = (
    *("reading", "dataset", "row", "metric", "view", "mean", "std", "runs"),
    *("published_mean", "published_std", "difference_in_published_std"),
)
CALIBRATED = "calibrated"  # in the column "reading"


def scores_csv(results: Results) -> str:
    """Return means, stds and published numbers as CSV, as fractions instead of percent.

    The order is: scores of both readings, scores of calibrators, dataset statistics over splits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for reading, score in _all_scores(results):
        if score.runs:
            published = [score.published.mean, score.published.std] if score.published else [None, None]
            numbers = [score.mean, score.std, score.runs, *published, score.difference]
            writer.writerow([reading, score.dataset, score.row, score.metric, score.view, *numbers])
    return text.getvalue()


def _all_scores(results: Results) -> Iterator[tuple[str, Score]]:
    for reading in READINGS:
        for dataset, row, metric, view in product(results.datasets, results.rows(reading), METRIC_NAMES, VIEWS):
            yield reading, reading_score(results, reading, dataset, row, view, metric)
    every_score = [(view, metric) for metric, view in product(METRIC_NAMES, (*VIEWS, SAME_LABEL))]
    for of_calibrator in calibrator_rows(results, every_score):
        yield from ((CALIBRATED, score) for score in of_calibrator.scores)
    for of_dataset in statistics_rows(results):
        yield from (("", score) for score in of_dataset.scores if score.metric in FRACTIONS)
