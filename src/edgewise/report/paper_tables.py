"""The tables of the paper, ours beside published, and what its two readings change."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgewise.data.statistics import MeanStd
from edgewise.experiments.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.experiments.readings import AS_DEFINED, AS_PUBLISHED, PREDICTIONS, READINGS
from edgewise.experiments.runs import SAME_LABEL
from edgewise.metrics.sums import VIEWS
from edgewise.report.comparison import ComparedCell, compare
from edgewise.report.results import SHARES, Results, Summary, summarised
from edgewise.report.tables import Cell, Row, Table

METRIC_NAMES = {"ece": "ECE", "accuracy": "accuracy", "nll": "NLL", "brier": "Brier score"}
READING_NAMES = {AS_PUBLISHED: "as published", AS_DEFINED: "as defined"}
PERCENT = ("accuracy", "ece", *SHARES)
BENEATH = "Mean ± std over runs. Beneath: what was published, and how many of its standard deviations ours is away."
TELLING = (
    ("nodewise", "accuracy"),
    ("nodewise", "ece"),
    ("edgewise", "ece"),
    ("edgewise", "nll"),
    ("edgewise", "brier"),
)


def paper_tables(results: Results) -> list[Table]:
    """Make all tables: datasets, four metrics in two readings, what differs, all predictions, cells far away."""
    scores = [_scores(results, reading, metric) for reading in READINGS for metric in METRIC_NAMES]
    tables = [_datasets(results), *scores, _changes(results), _predictions(results), _far(results)]
    return [table for table in tables if table.rows]


def _scores(results: Results, reading: str, metric: str) -> Table:
    rows = []
    for dataset in results.datasets:
        names = [row for row, source in READINGS[reading].items() if results.of(dataset, source.model)]
        means = {row: {view: results.summary(reading, dataset, row, view, metric) for view in VIEWS} for row in names}
        best = {view: _best([of_row[view] for of_row in means.values()], metric) for view in VIEWS}
        for row in names:
            published = PUBLISHED_SCORES[dataset][row].get(metric, {})
            cells = [
                _cell(ours, published.get(view), metric, ours is not None and ours is best[view])
                for view, ours in means[row].items()
            ]
            rows.append(Row(dataset, row, cells))
    unit = ", percent" if metric in PERCENT else ""
    note = f"{BENEATH} " if metric in PERCENT else "Mean ± std over runs. "
    title = f"{METRIC_NAMES[metric][0].upper()}{METRIC_NAMES[metric][1:]}, {READING_NAMES[reading]}{unit}"
    return Table(title, VIEWS, rows, [f"{note}Best of a dataset in bold."])


def _best(summaries: list[Summary | None], metric: str) -> Summary | None:
    known = [summary for summary in summaries if summary is not None]
    if len(known) < 2:
        return None
    return (max if metric == "accuracy" else min)(known, key=lambda summary: summary.mean)


def _cell(ours: MeanStd | None, published: MeanStd | None, metric: str, is_best: bool = False) -> Cell:
    if published is None:
        return Cell(mean_std(ours, metric), is_bold=is_best)
    away = "" if ours is None else f"  {signed((ours.mean - published.mean) / published.std)}"
    return Cell(mean_std(ours, metric), mean_std(published, metric) + away, is_best)


def _datasets(results: Results) -> Table:
    found = {dataset: results.dataset_statistics(dataset) for dataset in PUBLISHED_DATASETS}
    ours = {dataset: statistics for dataset, statistics in found.items() if statistics is not None}
    counts = [
        Row("", name.replace("directed_", ""), [Cell(f"{getattr(of_one, name):,}") for of_one in ours.values()])
        for name in ("nodes", "directed_edges", "features", "classes")
    ]
    shares = [
        Row(
            "",
            share.replace("k_", "K "),
            [
                _cell(getattr(of_one, share), getattr(PUBLISHED_DATASETS[dataset], share), share)
                for dataset, of_one in ours.items()
            ],
        )
        for share in SHARES
    ]
    note = "Edges: both directions. Homophily and K: percent, mean ± std over splits; beneath as in the other tables."
    return Table("Datasets", list(ours), [*counts, *shares] if ours else [], [note])


@dataclass(frozen=True)
class Change:
    """What the definitions change in one score of a row: as defined less as published, run by run."""

    before: float
    after: float
    difference: Summary
    better: int


def change(results: Results, dataset: str, row: str, view: str, metric: str) -> Change | None:
    """Compare the two readings run by run; None without runs."""
    values = [
        (before[metric], after[metric])
        for before, after in zip(
            results.views(AS_PUBLISHED, dataset, row, view), results.views(AS_DEFINED, dataset, row, view), strict=True
        )
    ]
    pairs = [(before, after) for before, after in values if math.isfinite(after - before)]
    difference = summarised(after - before for before, after in pairs)
    if difference is None:
        return None
    sign = 1 if metric == "accuracy" else -1
    befores, afters = zip(*pairs, strict=True)
    better = sum(sign * (after - before) > 0 for before, after in pairs)
    return Change(sum(befores) / len(pairs), sum(afters) / len(pairs), difference, better)


def _changes(results: Results) -> Table:
    rows = []
    for dataset in results.datasets:
        for row, source in READINGS[AS_PUBLISHED].items():
            if source != READINGS[AS_DEFINED][row] and results.of(dataset, source.model):
                found = (change(results, dataset, row, view, metric) for view, metric in TELLING)
                rows.append(Row(dataset, row, [_change_cell(c, m) for c, (_, m) in zip(found, TELLING, strict=True)]))
    note = "As published → as defined, means over runs; beneath: in how many runs as defined is better."
    return Table("What the definitions change", _telling(TELLING), rows, [note])


def _change_cell(found: Change | None, metric: str) -> Cell:
    if found is None:
        return Cell("–")
    text = f"{_number(found.before, metric)} → {_number(found.after, metric)}"
    return Cell(text, f"better in {found.better} of {found.difference.runs}")


def _telling(scores: tuple[tuple[str, str], ...]) -> list[str]:
    return [f"{view.replace('_', ' ')} {METRIC_NAMES[metric]}" for view, metric in scores]


def _predictions(results: Results) -> Table:
    scores = (*TELLING, (SAME_LABEL, "ece"))
    rows = []
    for dataset in results.datasets:
        for model in dict.fromkeys(source.model for source in READINGS[AS_DEFINED].values()):
            runs = results.of(dataset, model)
            for name in runs[0].predictions if runs else ():
                found = (summarised(run.predictions[name][view][metric] for run in runs) for view, metric in scores)
                cells = [Cell(mean_std(one, metric)) for one, (_, metric) in zip(found, scores, strict=True)]
                rows.append(Row(dataset, f"{model} {name}", cells))
    legend = [f"{name}: {meaning}." for name, meaning in PREDICTIONS.items()]
    return Table("All predictions", _telling(scores), rows, legend)


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
                Cell(f"{cell.view} {METRIC_NAMES.get(cell.metric, cell.metric.replace('k_', 'K '))}".strip()),
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


def mean_std(value: MeanStd | None, metric: str) -> str:
    """Write mean ± std: shares in percent, NLL and Brier score as they are."""
    if value is None:
        return "–"
    factor, digits = (100, 2) if metric in PERCENT else (1, 3)
    std = "" if math.isnan(value.std) else f" ± {factor * value.std:.{digits}f}"
    return f"{factor * value.mean:.{digits}f}{std}"


def _number(value: float, metric: str) -> str:
    return f"{100 * value:.2f}" if metric in PERCENT else f"{value:.3f}"


def signed(difference: float) -> str:
    """Write a difference with its sign, but none at zero."""
    text = f"{difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def tidy_rows(results: Results) -> list[Mapping[str, object]]:
    """Give a row for each number of the tables, as plain numbers: for CSV."""
    rows: list[Mapping[str, object]] = []
    for reading in READINGS:
        published = {
            (cell.dataset, cell.row, cell.metric, cell.view): cell.published for cell in compare(results, reading)
        }
        for dataset in results.datasets:
            for row in READINGS[reading]:
                for metric in METRIC_NAMES:
                    for view in VIEWS:
                        ours = results.summary(reading, dataset, row, view, metric)
                        if ours is not None:
                            theirs = published.get((dataset, row, metric, view))
                            rows.append(_tidy(reading, dataset, row, metric, view, ours, ours.runs, theirs))
    for cell in compare(results):
        if cell.metric in SHARES and cell.ours is not None:
            splits = sum(task.dataset == cell.dataset for task in results.tasks)
            rows.append(_tidy("", cell.dataset, cell.row, cell.metric, "", cell.ours, splits, cell.published))
    return rows


def _tidy(
    reading: str, dataset: str, row: str, metric: str, view: str, ours: MeanStd, runs: int, published: MeanStd | None
) -> Mapping[str, object]:
    return {
        "reading": reading,
        "dataset": dataset,
        "row": row,
        "metric": metric,
        "view": view,
        "mean": ours.mean,
        "std": ours.std,
        "runs": runs,
        "published_mean": published.mean if published else None,
        "published_std": published.std if published else None,
        "difference_in_published_std": (ours.mean - published.mean) / published.std if published else None,
    }
