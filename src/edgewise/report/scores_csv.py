"""Every number of the tables as one row of CSV."""

import csv
import io
from collections.abc import Iterator
from itertools import product

from edgewise.data.statistics import MeanStd
from edgewise.experiments.published import PUBLISHED_DATASETS
from edgewise.experiments.readings import READINGS
from edgewise.experiments.runs import SAME_LABEL
from edgewise.metrics.sums import VIEWS
from edgewise.report.calibrator_rows import calibrated_predictions, calibrated_runs
from edgewise.report.comparison import STATISTICS, ComparedCell, compare
from edgewise.report.results import SHARES, Results, runs_with, summarised
from edgewise.report.words import METRIC_NAMES

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
