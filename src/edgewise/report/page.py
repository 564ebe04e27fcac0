"""One HTML page of all results, which needs no network and no server."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from edgewise.experiments.plan import CALIBRATORS_ENTRY, Plan
from edgewise.experiments.published import PUBLISHED_DATASETS
from edgewise.experiments.readings import KNOWN_MODELS, READINGS, same_in_both_readings
from edgewise.experiments.synthetic_graphs import SIZE_IN_WORDS
from edgewise.metrics.sums import VIEWS
from edgewise.replace_file import replace_file
from edgewise.report.calibrator_rows import CALIBRATOR_SCORES, UNCALIBRATED, calibrator_rows
from edgewise.report.changes import change_rows, stories
from edgewise.report.comparison import tally_line
from edgewise.report.page_data import calibrated_models, calibrators_of_all, drawable_rows, drawn_document, drawn_rows
from edgewise.report.results import SHARES, Results
from edgewise.report.row_looks import calibrated_row, look_of, looks_css
from edgewise.report.score_rows import (
    COUNTS,
    PREDICTION_SCORES,
    TELLING,
    ScoreRow,
    legend_of,
    prediction_rows,
    score_rows,
    statistics_rows,
)
from edgewise.report.structured_rows import STRUCTURED_SCORES, structured_rows
from edgewise.report.structured_verdicts import verdict_summary, verdicts
from edgewise.report.words import METRIC_NAMES, PERCENT, READING_NAMES, duration, label, score_name
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
    return (files("edgewise.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("edgewise.report", "page"),
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
