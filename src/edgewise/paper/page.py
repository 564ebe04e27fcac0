"""One HTML page of all results, which needs no network and no server."""

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from edgewise.files.output import replace_file
from edgewise.metrics.sums import VIEWS
from edgewise.paper.changes import change_rows, stories
from edgewise.paper.comparison import tally_line
from edgewise.paper.formatting import (
    METRIC_NAMES,
    PERCENT,
    READING_NAMES,
    calibrated_row,
    duration,
    label,
    look_of,
    looks_css,
    score_name,
)
from edgewise.paper.published import PUBLISHED_DATASETS
from edgewise.paper.readings import AS_PUBLISHED, CALIBRATORS, KNOWN_MODELS, READINGS, Source, same_in_both_readings
from edgewise.paper.results import SHARES, Results, runs_with, summarised
from edgewise.paper.score_rows import (
    CALIBRATOR_SCORES,
    COUNTS,
    PREDICTION_SCORES,
    STRUCTURED,
    STRUCTURED_SCORES,
    TELLING,
    UNCALIBRATED,
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
from edgewise.sweep.plan import CALIBRATORS_ENTRY, Plan
from edgewise.sweep.runs import SAME_LABEL, Run, ViewResult
from edgewise.sweep.sources import SIZE_IN_WORDS
from edgewise.version import __version__


def write_page(results: Results, path: Path) -> None:
    """Write the page; a half of one is never there."""
    text = page_html(results)
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def page_html(results: Results) -> str:
    """Give the page as text: style, script and numbers are all in it."""
    style, script = _part("page.css") + looks_css(drawable_rows(results)), _part("page.js")
    template = _environment().get_template("template.html.j2")
    return template.render(
        style=Markup(style),
        script=Markup(script),
        data=Markup(_embedded(drawn_document(results))),
        policy=_policy(style, script),
        **_texts(results),
        **_tables(results),
        **_calibrated(results),
        **_record(results),
    )


def _part(name: str) -> str:
    return (files("edgewise.paper") / "page_parts" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("edgewise.paper", "page_parts"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["label"] = label
    return environment


def _policy(style: str, script: str) -> str:
    """Allow the page its own style and script and nothing else, wherever from."""
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _embedded(document: Mapping[str, object]) -> str:
    """Write JSON in which no text can end the element around it."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _texts(results: Results) -> dict[str, object]:
    """Give what the summary says."""
    runs, keys = results.runs, [run.key for run in results.runs]
    cells = Counter({(dataset, model): 0 for dataset in Plan().datasets for model in Plan().models})
    cells.update(key.cell for key in keys if key.cell in cells)
    return {
        "version": __version__,
        "tally": tally_line(results),
        "num_runs": len(runs),
        "num_planned": Plan().size,
        "num_of_paper": cells.total(),
        "num_cells": len(cells),
        "missing": [cell for cell, count in cells.items() if not count],
        "synthetic": SIZE_IN_WORDS,
        "others": [dataset for dataset in results.datasets if dataset not in PUBLISHED_DATASETS],
        "num_of": {name: len({getattr(key, name) for key in keys}) for name in ("split", "fold", "init")},
        "num_bins": len(next(iter(runs[0].predictions.values()))["nodewise"].bins.count) if runs else 15,
        "time": duration(sum(command.seconds for command in results.commands)),
        "sources": list(dict.fromkeys(command.sources for command in results.commands)),
        "work": duration(sum(run.seconds for run in runs)),
        "finished": max((run.finished for run in runs), default=""),
        "datasets": results.datasets,
    }


def _tables(results: Results) -> dict[str, object]:
    """Give all tables, and the names of their columns."""
    return {
        "views": VIEWS,
        "readings": READING_NAMES,
        "rows": drawn_rows(results),
        "notes": [look.note for look in map(look_of, drawn_rows(results)) if look.note],
        "percent": PERCENT,
        "metrics": METRIC_NAMES,
        "scores": {metric: _by_reading(results, metric) for metric in METRIC_NAMES},
        "changes": change_rows(results),
        "changed_scores": [score_name(view, metric) for view, metric in TELLING],
        "stories": stories(results),
        "same": same_in_both_readings(),
        "predictions": prediction_rows(results),
        "prediction_scores": [score_name(view, metric) for view, metric in PREDICTION_SCORES],
        "legend": legend_of(results),
        "statistics": statistics_rows(results),
        "statistics_names": (*COUNTS, *SHARES),
    }


def _calibrated(results: Results) -> dict[str, object]:
    """Give what calibrators do, and whether structured calibration reaches its aims."""
    models, found = calibrated_models(results), verdicts(results)
    return {
        "calibrated": calibrator_rows(results),
        "calibrated_scores": CALIBRATOR_SCORES,
        "calibrated_models": {model: calibrated_row(model) for model in models},
        "calibrators": calibrators_of_all(models),
        "uncalibrated": UNCALIBRATED,
        "structured": structured_rows(results),
        "structured_scores": STRUCTURED_SCORES,
        "verdicts": found,
        "verdict_summary": verdict_summary(found),
    }


def _by_reading(results: Results, metric: str) -> dict[str, list[ScoreRow]]:
    return {reading: score_rows(results, reading, metric) for reading in READINGS}


def _record(results: Results) -> dict[str, object]:
    """Give how the results were made, and what went wrong."""
    return {
        "commands": [(command, duration(command.seconds)) for command in results.commands],
        "versions": results.versions,
        "failures": [(str(key), error.strip()) for key, error in results.failures.items()],
        "hyperparameters": {
            model: list(dict.fromkeys(line for text in sorted(of_model) for line in _trainings(text)))
            for model in KNOWN_MODELS
            if (of_model := {run.key.hyperparameters for run in results.runs if run.key.model == model})
        },
    }


def _trainings(hyperparameters: str) -> list[str]:
    """Write each training of a run, and each calibrator, as a line of names and values."""
    lines = []
    for one in json.loads(hyperparameters):
        calibrators = one.pop(CALIBRATORS_ENTRY, {})
        lines += [", ".join(f"{name} {value}" for name, value in one.items())] if one else []
        lines += [f"calibrated by {name}: {text}" for name, text in calibrators.items()]
    return lines


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
