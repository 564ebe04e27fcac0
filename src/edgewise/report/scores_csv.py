"""Every number of the tables as one row of CSV."""

import csv
import io
from collections.abc import Iterator, Sequence

from edgewise.data.statistics import MeanStd
from edgewise.experiments.published import PUBLISHED_DATASETS
from edgewise.experiments.readings import READINGS
from edgewise.experiments.runs import SAME_LABEL, Run
from edgewise.metrics.sums import VIEWS
from edgewise.report.calibrator_rows import calibrated_predictions, calibrated_runs
from edgewise.report.comparison import STATISTICS, ComparedCell, compare
from edgewise.report.results import SHARES, Results, summarised
from edgewise.report.words import METRIC_NAMES

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
    for reading in READINGS:
        published = {_place(cell): cell for cell in compare(results, reading)}
        for dataset in results.datasets:
            for row in READINGS[reading]:
                for metric in METRIC_NAMES:
                    for view in VIEWS:
                        ours = results.summary(reading, dataset, row, view, metric)
                        if ours is not None:
                            place = (dataset, row, metric, view)
                            numbers = _numbers(ours, ours.runs, published.get(place))
                            writer.writerow([reading, *place, *numbers])
    for (dataset, model), runs in calibrated_runs(results).items():
        for name, prediction in calibrated_predictions(runs).items():
            writer.writerows([CALIBRATED, dataset, f"{model} {name}", *line] for line in _lines(runs, prediction))
    for cell in compare(results):
        if cell.row == STATISTICS and cell.ours is not None:
            splits = sum(task.dataset == cell.dataset for task in results.tasks)
            writer.writerow(["", *_place(cell), *_numbers(cell.ours, splits, cell)])
    for dataset in results.described_datasets:
        if dataset not in PUBLISHED_DATASETS:
            writer.writerows(_unpublished_statistics(results, dataset))
    return text.getvalue()


def _lines(runs: Sequence[Run], prediction: str) -> Iterator[list[object]]:
    """Give a line for each score of a prediction that some run has."""
    having = [run.predictions[prediction] for run in runs if prediction in run.predictions]
    for metric in METRIC_NAMES:
        for view in (*VIEWS, SAME_LABEL):
            ours = summarised(views[view][metric] for views in having)
            if ours is not None:
                yield [metric, view, *_numbers(ours, ours.runs, None)]


def _unpublished_statistics(results: Results, dataset: str) -> list[list[object]]:
    """Give a line for each share of a dataset that some split has."""
    ours = results.dataset_statistics(dataset)
    shares = {share: getattr(ours, share) for share in SHARES if ours}
    return [
        ["", dataset, STATISTICS, share, "", *_numbers(value, value.runs, None)]
        for share, value in shares.items()
        if value.runs
    ]


def _place(cell: ComparedCell) -> tuple[str, str, str, str]:
    return cell.dataset, cell.row, cell.metric, cell.view


def _numbers(ours: MeanStd, runs: int, cell: ComparedCell | None) -> list[float | int | None]:
    if cell is None:
        return [ours.mean, ours.std, runs, None, None, None]
    return [ours.mean, ours.std, runs, cell.published.mean, cell.published.std, cell.difference]
