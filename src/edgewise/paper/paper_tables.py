"""The tables of the paper, ours beside published, what its two readings change, and all numbers as CSV."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import scores_beyond_one_std
from edgewise.paper.findings import Change, changes, verdict_summary, verdicts
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
from edgewise.paper.readings import AS_DEFINED, READINGS
from edgewise.paper.results import Results
from edgewise.paper.score_rows import (
    CALIBRATOR_SCORES,
    COMPARED_SCORES,
    PREDICTION_SCORES,
    STRUCTURED_SCORES,
    Score,
    ScoreRow,
    calibrator_rows,
    explained_predictions,
    prediction_rows,
    reading_score,
    score_rows,
    statistics_rows,
    structured_rows,
)
from edgewise.paper.text_tables import Cell, Row, Table, printed_rows, score_cell
from edgewise.sweep.runs import SAME_LABEL

PUBLISHED_NOTE = "Beneath: what was published, and how many of its standard deviations ours is away."
DATASETS_PER_TABLE = 4
CALIBRATED_NOTE = (
    "Accuracy and ECE in percent; mean ± std over the same runs of a model; best of a dataset in bold. P(same) is the "
    "probability that both ends of an edge have the same label."
)
STRUCTURED_TITLE = "Structured calibration against the paper's models"
STRUCTURED_NOTE = (
    "Accuracy and ECE in percent; mean ± std over the runs whose split, fold and initialization structured calibration "
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
    beneath = _published_note(rows)
    notes = ["Mean ± std over runs; best of a dataset in bold.", *beneath]
    notes += [OTHER_PROCEDURE] if beneath and reading == AS_DEFINED else []
    return Table(title, VIEWS, printed_rows(rows), [" ".join(notes)])


def _datasets(results: Results) -> list[Table]:
    """Turn the table: datasets in columns, and only so many that they fit a terminal."""
    found = statistics_rows(results)
    parts = [found[start : start + DATASETS_PER_TABLE] for start in range(0, len(found), DATASETS_PER_TABLE)]
    return [_datasets_table(part, "Datasets, continued" if place else "Datasets") for place, part in enumerate(parts)]


def _datasets_table(part: Sequence[ScoreRow], title: str) -> Table:
    rows = [
        Row("", display_name(name), [score_cell(row.scores[place]) for row in part])
        for place, name in enumerate((*COUNTS, *FRACTIONS))
    ]
    notes = ["Edges: both directions. Homophily and K: percent, mean ± std over splits.", *_published_note(part)]
    return Table(title, [row.dataset for row in part], rows, [" ".join(notes)])


def _published_note(rows: Sequence[ScoreRow]) -> list[str]:
    """Explain the second line of cells, if there is one."""
    return [PUBLISHED_NOTE] if any(score.published for row in rows for score in row.scores) else []


def _changes(results: Results) -> Table:
    found = changes(results)
    rows = [
        Row(dataset, row, [_change(found[dataset, row, *score], score[1]) for score in COMPARED_SCORES])
        for dataset, row in dict.fromkeys((dataset, row) for dataset, row, *_ in found)
    ]
    note = "As published → as defined, means over runs; beneath: in how many runs as defined is better."
    return Table("What the definitions change", [score_name(*score) for score in COMPARED_SCORES], rows, [note])


def _change(change: Change | None, metric: str) -> Cell:
    if change is None:
        return Cell(format_number(math.nan, metric))
    text = f"{format_number(change.before, metric)} → {format_number(change.after, metric)}"
    return Cell(text, subtext=f"better in {change.better} of {change.runs}")


def _calibrators(results: Results) -> Table:
    """Put each model of a dataset in a group of its own, so that the table fits a terminal."""
    rows = [replace(row, group=f"{row.group} {row.model}") for row in printed_rows(calibrator_rows(results))]
    return Table("Calibrators", [*CALIBRATOR_SCORES], rows, [CALIBRATED_NOTE])


def _structured(results: Results) -> Table:
    found = verdicts(results)
    notes = [STRUCTURED_NOTE, verdict_summary(found), *map(str, found)]
    return Table(STRUCTURED_TITLE, [*STRUCTURED_SCORES], printed_rows(structured_rows(results)), notes)


def _predictions(results: Results) -> Table:
    meanings = [f"{name}: {meaning}." for name, meaning in explained_predictions(results).items()]
    columns = [score_name(*score) for score in PREDICTION_SCORES]
    rows = [replace(row, label=f"{row.model} {row.label}") for row in printed_rows(prediction_rows(results))]
    return Table("All predictions", columns, rows, meanings)


def _far(results: Results) -> Table:
    rows = []
    for score in scores_beyond_one_std(results):
        name = f"{score.view} {METRIC_NAMES.get(score.metric, display_name(score.metric))}".strip()
        cell = score_cell(score)
        texts = (name, cell.text, cell.subtext, cell.difference)
        rows.append(Row("", f"{score.dataset} {score.row}", [Cell(text) for text in texts]))
    return Table(
        "Published cells more than one standard deviation away",
        ("score", "ours", "published", "difference"),
        rows,
        ["Percent; the difference is in published standard deviations."],
    )


# --- CSV ---

COLUMNS = (
    *("reading", "dataset", "row", "metric", "view", "mean", "std", "runs"),
    *("published_mean", "published_std", "difference_in_published_std"),
)
CALIBRATED = "calibrated"  # in the column of readings


def scores_csv(results: Results) -> str:
    """Write means, stds and published numbers as fractions.

    First come the scores of both readings, then what calibrators do to them, then statistics over splits.
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
