"""Tables of all methods on all graphs: an overview per score, a table per graph, and the meanings of their names.

A method is a prediction of a model: one of its own, or one of a calibrator. The best score of a column is bold, and so
are those with the same printed mean. Scores that are not clearly worse are marked: their paired difference from the
best is at most two standard errors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import multimode

from edgewise.paper.formatting import NO_VALUE, PERCENT, display_name
from edgewise.paper.gains import MAX_ERRORS
from edgewise.paper.model_differences import paired_difference
from edgewise.paper.readings import PREDICTIONS, Source
from edgewise.paper.results import Results
from edgewise.paper.score_rows import METHOD_SCORES, ScoreRow, mark_best, prediction_row
from edgewise.paper.text_tables import NEAR_BEST, Cell, Row, Table, printed_rows, score_cell
from edgewise.sweep.progress import format_count

OVERVIEW_SCORES = ("edge NLL", "same label ECE")
METHOD_COLUMNS = (*METHOD_SCORES, "runs")
MEANINGS_TITLE = "Names of predictions"
BEST_NOTE = f"best of each graph in bold, {NEAR_BEST} within two standard errors of it."
EXPLANATIONS = (
    "Same label is the event that both ends of an edge have the same label.",
    f"{NEAR_BEST} marks scores whose paired difference from the best is at most two standard errors s/√n, with the "
    "sample standard deviation s of the differences between n runs of the same split, fold and initialization. Runs on "
    "one split share test nodes, so this standard error is too small.",
)


def method_tables(results: Results) -> list[Table]:
    """Return the overview tables, a table per graph, and the meanings of the names."""
    rows = {dataset: method_rows(results, dataset) for dataset in results.datasets}
    tables = [*overview_tables(rows), *map(method_table, rows.values())]
    return [*tables, meanings_table(results)] if rows else []


def method_rows(results: Results, dataset: str) -> list[ScoreRow]:
    """Return a row per method on a graph, with the best scores and those near them marked."""
    sources = [Source(model, name) for model in results.models for name in results.predictions(dataset, model)]
    rows = mark_best(
        [
            prediction_row(dataset, model, name, name, results.of(dataset, model), METHOD_SCORES.values())
            for model, name in sources
        ]
    )
    columns = [_near_best(results, dataset, sources, rows, index) for index in range(len(METHOD_SCORES))]
    return [
        replace(
            row,
            scores=[replace(score, is_near_best=column[at]) for score, column in zip(row.scores, columns, strict=True)],
        )
        for at, row in enumerate(rows)
    ]


def _near_best(
    results: Results, dataset: str, sources: Sequence[Source], rows: Sequence[ScoreRow], index: int
) -> list[bool]:
    """Return for each row whether its score is not the best, but within `MAX_ERRORS` standard errors of it."""
    scores = [row.scores[index] for row in rows]
    finite = [at for at, score in enumerate(scores) if math.isfinite(score.mean)]
    if not finite:
        return [False] * len(rows)
    view, metric = scores[0].view, scores[0].metric
    best = (max if metric == "accuracy" else min)(finite, key=lambda at: scores[at].mean)
    near = []
    for score, source in zip(scores, sources, strict=True):
        runs = results.runs_of(dataset, sources[best]), results.runs_of(dataset, source)
        difference = paired_difference(*runs, (sources[best].prediction, source.prediction), view, metric)
        near.append(not score.is_best and abs(difference.mean) <= MAX_ERRORS * difference.error)  # False for NaN
    return near


def printed_methods(rows: Sequence[ScoreRow]) -> list[Row]:
    """Format rows of `method_rows`, with their number of runs in the last cell."""
    return [
        replace(row, remark="", cells=[*row.cells, Cell(str(scored.runs), value=scored.runs)])
        for row, scored in zip(printed_rows(rows), rows, strict=True)
    ]


def method_table(rows: Sequence[ScoreRow]) -> Table:
    """Return the table of a graph: all scores of each method, and its number of runs."""
    printed = [replace(row, group=row.model) for row in printed_methods(rows)]
    title = f"All methods on {display_name(rows[0].dataset)}"
    return Table(title, METHOD_COLUMNS, printed, [f"Accuracy and ECE in percent; mean ± std over runs; {BEST_NOTE}"])


def overview_tables(rows: Mapping[str, Sequence[ScoreRow]]) -> list[Table]:
    """Return a table for each of the `OVERVIEW_SCORES` of several graphs; nothing for a single one."""
    return [overview_table(rows, name) for name in OVERVIEW_SCORES] if len(rows) > 1 else []


def overview_table(rows: Mapping[str, Sequence[ScoreRow]], name: str) -> Table:
    """Return a table of one score, with methods in rows and graphs in columns.

    ``rows`` has the rows of `method_rows` by graph, and ``name`` is one of the columns of `METHOD_SCORES`. A cell with
    fewer runs than most methods have on the graph states their number.
    """
    index = list(METHOD_SCORES).index(name)
    cells = {
        (row.model, row.name, dataset): replace(
            score_cell(replace(row.scores[index], std=math.nan)),
            remark=format_count(row.runs, "run") if row.runs < usual else "",
        )
        for dataset, of_dataset in rows.items()
        for usual in [max(multimode(row.runs for row in of_dataset))]
        for row in of_dataset
    }
    methods = dict.fromkeys((model, prediction) for model, prediction, _ in cells)
    models = dict.fromkeys(model for model, _ in methods)
    printed = [
        Row(model, prediction, [cells.get((model, prediction, dataset), Cell(NO_VALUE)) for dataset in rows])
        for model in models
        for of_model, prediction in methods
        if of_model == model
    ]
    unit = ", percent" if METHOD_SCORES[name][1] in PERCENT else ""
    title = f"{name[0].upper()}{name[1:]} of all methods{unit}"
    return Table(title, [*map(display_name, rows)], printed, [f"Mean over runs; {BEST_NOTE}"])


def meanings_table(results: Results) -> Table:
    """Return what the names of predictions and the mark mean."""
    rows = [Row("", name, [Cell(meaning)]) for name, meaning in explained_predictions(results).items()]
    return Table(MEANINGS_TITLE, ["meaning"], rows, EXPLANATIONS)


def explained_predictions(results: Results) -> dict[str, str]:
    """Return the descriptions of the predictions in the results, by name."""
    found = {name for run in results.runs for name in run.predictions}
    return {name: meaning for name, meaning in PREDICTIONS.items() if name in found}
