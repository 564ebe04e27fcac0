"""The numbers that the page draws, as a plain document for JSON: bins added up over runs, and errors run by run."""

import math
from collections.abc import Iterable, Mapping, Sequence

from edgewise.experiments.readings import AS_PUBLISHED, CALIBRATORS, READINGS, Source
from edgewise.experiments.runs import SAME_LABEL, Run, ViewResult
from edgewise.metrics.sums import VIEWS
from edgewise.report.calibrator_rows import calibrated_predictions, calibrated_runs
from edgewise.report.results import Results, runs_with, summarised
from edgewise.report.row_looks import calibrated_row, look_of
from edgewise.report.structured_rows import STRUCTURED
from edgewise.report.words import READING_NAMES, label

Document = dict[str, object]

DIGITS = 6  # what a diagram can show is less


def drawn_document(results: Results) -> Document:
    """Give all that the page draws: names, and for each dataset and source its bins by view and its runs."""
    rows = drawn_rows(results)
    models = calibrated_models(results)
    calibrators = calibrators_of_all(models)
    sources = {source for of_reading in READINGS.values() for source in of_reading.values()}
    sources |= {Source(model, calibrator) for model, several in models.items() for calibrator in several}
    return {
        "readings": {
            reading: {
                "label": READING_NAMES[reading],
                "rows": {row: source_key(source) for row, source in of_reading.items() if row in rows},
            }
            for reading, of_reading in READINGS.items()
        },
        "views": {view: label(view) for view in (*VIEWS, SAME_LABEL)},
        "rows": {row: label(row) for row in rows},
        "calibrators": {name: label(name) for name in calibrators},
        "calibrator": _shown_unasked(calibrators),
        "calibrated": {calibrated_row(model): model for model in models},
        "markers": {row: look_of(row).marker for row in drawable_rows(results)},
        "datasets": {
            dataset: {
                "label": label(dataset),
                "sources": {
                    source_key(source): source_document(runs, source.prediction)
                    for source in sorted(sources)
                    if (runs := runs_with(source.prediction, results.of(dataset, source.model)))
                },
            }
            for dataset in results.datasets
        },
    }


def drawn_rows(results: Results) -> list[str]:
    """Give the rows of the tables that can be chosen: the published ones, and others that have runs."""
    models = {run.key.model for run in results.runs}
    rows = {row: source.model for of_reading in READINGS.values() for row, source in of_reading.items()}
    return [row for row, model in rows.items() if row in READINGS[AS_PUBLISHED] or model in models]


def drawable_rows(results: Results) -> list[str]:
    """Give those rows, and what calibrators make of models."""
    return [*drawn_rows(results), *map(calibrated_row, calibrated_models(results))]


def calibrated_models(results: Results) -> dict[str, list[str]]:
    """Give the models that have calibrated predictions, each with its calibrators."""
    found: dict[str, dict[str, str]] = {}
    for (_, model), runs in calibrated_runs(results).items():
        found.setdefault(model, {}).update(calibrated_predictions(runs))
    return {model: [name for name in CALIBRATORS if name in several] for model, several in found.items()}


def calibrators_of_all(models: Mapping[str, Sequence[str]]) -> list[str]:
    """Give all calibrators of some models, in the order in which they are known."""
    return [name for name in CALIBRATORS if any(name in several for several in models.values())]


def _shown_unasked(calibrators: Sequence[str]) -> str | None:
    return STRUCTURED if STRUCTURED in calibrators else next(reversed(calibrators), None)


def source_key(source: Source) -> str:
    """Name a source in the document."""
    return f"{source.model}/{source.prediction}"


def source_document(runs: Sequence[Run], prediction: str) -> Document:
    """Give the bins of each view, and a line [split, fold, init, ECE of each view] for each run."""
    scored = [run.predictions[prediction] for run in runs]
    return {
        "views": {view: pooled_bins([of_run[view] for of_run in scored]) for view in scored[0]},
        "runs": [
            [run.key.split, run.key.fold, run.key.init, *(number(of_run[view].ece) for view in VIEWS)]
            for run, of_run in zip(runs, scored, strict=True)
        ],
    }


def pooled_bins(results: Sequence[ViewResult]) -> Document:
    """Add up the bins of runs; the ECE is the mean over the runs, and not that of the added bins.

    ``filled`` tells in how many runs a bin has elements; confidence and accuracy of an empty bin are null.
    """
    count = _added(result.bins.count for result in results)
    ece = summarised(result.ece for result in results)
    return {
        "count": [int(n) for n in count],
        "confidence": _means(_added(result.bins.confidence_sum for result in results), count),
        "accuracy": _means(_added(result.bins.correct_sum for result in results), count),
        "filled": [
            sum(n > 0 for n in of_bin) for of_bin in zip(*(result.bins.count for result in results), strict=True)
        ],
        "runs": len(results),
        "ece": None if ece is None else {"mean": number(ece.mean), "std": number(ece.std), "runs": ece.runs},
    }


def number(value: float) -> float | None:
    """Round what is drawn; JSON has null for what is not finite."""
    return round(value, DIGITS) if math.isfinite(value) else None


def _added(columns: Iterable[Sequence[float]]) -> list[float]:
    return [math.fsum(values) for values in zip(*columns, strict=True)]


def _means(sums: Sequence[float], count: Sequence[float]) -> list[float | None]:
    return [number(total / n) if n else None for total, n in zip(sums, count, strict=True)]
