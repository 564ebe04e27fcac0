"""The self-contained HTML page of all results."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.metrics.sums import VIEWS
from edgewise.pages.html_page import page_part, render_page, write_page
from edgewise.paper.comparison import compare, tally_line
from edgewise.paper.findings import (
    BETTER,
    TOO_FEW,
    UNCLEAR,
    WORSE,
    change_rows,
    describe_changes,
)
from edgewise.paper.formatting import (
    COUNTS,
    FRACTIONS,
    METRIC_NAMES,
    PERCENT,
    READING_NAMES,
    calibrated_row,
    display_name,
    format_signed,
    row_style,
    row_styles_css,
    score_name,
)
from edgewise.paper.gains import aims_line, gain_table
from edgewise.paper.method_tables import (
    EXPLANATIONS,
    METHOD_COLUMNS,
    explained_predictions,
    method_rows,
    overview_tables,
    printed_methods,
)
from edgewise.paper.model_differences import model_difference_table
from edgewise.paper.readings import (
    AS_DEFINED,
    AS_PUBLISHED,
    KNOWN_MODELS,
    READINGS,
    Source,
    same_in_both_readings,
)
from edgewise.paper.recipes import paper_plan
from edgewise.paper.results import Results
from edgewise.paper.score_rows import (
    COMPARED_SCORES,
    STATISTICS,
    STRUCTURED,
    Score,
    calibrated_runs,
    score_rows,
    statistics_rows,
    summarize,
)
from edgewise.paper.text_tables import NEAR_BEST, printed_rows, score_cell
from edgewise.plots.reliability_panels import MIN_BIN_COUNT
from edgewise.representation import format_duration
from edgewise.sweep.plan import CALIBRATORS_ENTRY
from edgewise.sweep.progress import format_count
from edgewise.sweep.runs import SAME_LABEL, Run, ViewResult
from edgewise.sweep.sources import SYNTHETIC_GRAPH_DESCRIPTION, homophily_of_name
from edgewise.version import __version__

TITLE = "A Graph Is More Than Its Nodes, reproduced"
MAX_DATASETS_SHOWN = 4  # at first, in tables with a choice of datasets


def write_results_page(results: Results, path: Path) -> None:
    """Write the page atomically."""
    write_page(path, results_page(results))


def results_page(results: Results) -> str:
    """Return the page as HTML, with inline style, script and data."""
    return render_page(
        _part("paper.html.j2"),
        title=_title(results),
        style=_part("paper.css") + row_styles_css(styled_rows(results)),
        script=_part("paper.js"),
        data=page_data(results),
        filters={"display_name": display_name},
        **_texts(results),
        **_tables(results),
        **_calibrated(results),
        **_record(results),
    )


def _title(results: Results) -> str:
    """Return the title: the paper's, unless there are other graphs."""
    if not results.other_datasets:
        return TITLE
    models, datasets = format_count(len(results.models), "model"), format_count(len(results.datasets), "graph")
    return f"Nodes and pairs of neighbors: {models} on {datasets}"


def _part(name: str) -> str:
    return page_part(name, "edgewise.paper", "page_parts")


def _texts(results: Results) -> dict[str, object]:
    """Return the variables of the header and summary."""
    runs, keys = results.runs, [run.key for run in results.runs]
    cells = Counter({(dataset, model): 0 for dataset in paper_plan().datasets for model in paper_plan().models})
    cells.update(key.cell for key in keys if key.cell in cells)
    return {
        "version": __version__,
        "tally": tally_line(results),
        "agreement": agreement_chart(results),
        "chart_width": CHART_WIDTH,
        "num_runs": len(runs),
        "num_planned": paper_plan().size,
        "num_of_paper": cells.total(),
        "num_cells": len(cells),
        "missing": [cell for cell, count in cells.items() if not count],
        "synthetic": SYNTHETIC_GRAPH_DESCRIPTION if any(map(homophily_of_name, results.datasets)) else "",
        "others": results.other_datasets,
        "of_paper": results.paper_datasets,
        "num_of": {name: len({getattr(key, name) for key in keys}) for name in ("split", "fold", "init")},
        "num_bins": len(next(iter(runs[0].predictions.values()))["nodewise"].bins.count) if runs else 15,
        "time": format_duration(sum(command.seconds for command in results.commands)),
        "sources": list(dict.fromkeys(command.sources for command in results.commands)),
        "work": format_duration(sum(run.seconds for run in runs)),
        "finished": max((run.finished for run in runs), default=""),
        "datasets": results.datasets,
    }


def _tables(results: Results) -> dict[str, object]:
    """Return all tables and their column names."""
    rows = selectable_rows(results)
    methods = {dataset: method_rows(results, dataset) for dataset in results.datasets}
    return {
        "views": VIEWS,
        "readings": READING_NAMES,
        "rows": rows,
        "notes": [style.note for style in map(row_style, rows) if style.note],
        "percent": PERCENT,
        "metrics": METRIC_NAMES,
        "scores": {
            metric: {reading: printed_rows(score_rows(results, reading, metric)) for reading in READINGS}
            for metric in METRIC_NAMES
        },
        "changes": change_rows(results),
        "outcomes": {
            BETTER: ("good", "▲ better"),
            WORSE: ("far", "▼ worse"),
            UNCLEAR: ("soft", "unclear"),
            TOO_FEW: ("soft", "too few splits"),
        },
        "changed_scores": [score_name(view, metric) for view, metric in COMPARED_SCORES],
        "row_changes": describe_changes(results),
        "model_differences": model_difference_table(results),
        "same": same_in_both_readings(),
        "overviews": overview_tables(methods),
        "predictions": [row for of_dataset in methods.values() for row in printed_methods(of_dataset)],
        "prediction_columns": METHOD_COLUMNS,
        "explanations": EXPLANATIONS,
        "near_best": NEAR_BEST,
        "legend": explained_predictions(results),
        "statistics": printed_rows(statistics_rows(results)),
        "statistics_names": (*COUNTS, *FRACTIONS),
    }


def _calibrated(results: Results) -> dict[str, object]:
    """Return the calibrators and their comparison."""
    return {
        "gains": gain_table(results),
        "calibrated_models": {model: calibrated_row(model) for model in calibrated_models(results)},
        "calibrators": results.calibrators,
        "aims": aims_line(results),
    }


def _record(results: Results) -> dict[str, object]:
    """Return commands, versions, failures and hyperparameters."""
    return {
        "commands": [(command, format_duration(command.seconds)) for command in results.commands],
        "num_commands": sum(command.runs > 0 for command in results.commands),
        "versions": results.versions,
        "failures": [(str(key), error.strip()) for key, error in results.failures.items()],
        "hyperparameters": {
            model: list(dict.fromkeys(line for text in sorted(of_model) for line in _trainings(text)))
            for model in results.models
            if (of_model := {run.key.hyperparameters for run in results.runs if run.key.model == model})
        },
    }


def _trainings(hyperparameters: str) -> list[str]:
    """Format each training and each calibrator of a run as a line of names and values."""
    lines = []
    for one in json.loads(hyperparameters):
        calibrators = one.pop(CALIBRATORS_ENTRY, {})
        lines += [", ".join(f"{name} {value}" for name, value in one.items())] if one else []
        lines += [f"calibrated by {name}: {text}" for name, text in calibrators.items()]
    return lines


# --- the chart of differences from the published values ---

CHART_WIDTH, CHART_MARGIN = 400.0, 14.0
DOTS_PER_STD = 8
MAX_CHART_STD = 4  # dots further away are drawn at the edge


@dataclass(frozen=True)
class Dot:
    """A published cell in the chart: its position, its verdict, and a text that names it."""

    x: float
    y: float
    verdict: str
    is_statistic: bool
    text: str


@dataclass(frozen=True)
class AgreementChart:
    """Dots stacked by difference. The baseline is at ``low``; ``ticks`` has the positions of whole deviations."""

    dots: Sequence[Dot]
    low: float
    radius: float
    ticks: Sequence[tuple[float, str]]

    @property
    def within(self) -> tuple[float, float]:
        """The positions of −1 and +1."""
        middle = len(self.ticks) // 2
        return self.ticks[middle - 1][0], self.ticks[middle + 1][0]

    @property
    def num_within(self) -> int:
        """The number of dots within one published standard deviation."""
        return sum(dot.verdict == "good" for dot in self.dots)

    @property
    def has_statistics(self) -> bool:
        """Whether some dots are dataset statistics."""
        return any(dot.is_statistic for dot in self.dots)


def agreement_chart(results: Results) -> AgreementChart | None:
    """Stack a dot for each published cell at its difference from ours; None if there is nothing to compare."""
    scores = [(score.difference, score) for score in compare(results) if score.difference is not None]
    if not scores:
        return None
    limit = max(2, min(MAX_CHART_STD, math.ceil(2 * max(abs(difference) for difference, _ in scores)) / 2))
    unit = (CHART_WIDTH - 2 * CHART_MARGIN) / (2 * limit)
    step = unit / DOTS_PER_STD
    last = int(limit * DOTS_PER_STD)
    columns = [max(-last, min(last - 1, math.floor(DOTS_PER_STD * difference))) for difference, _ in scores]
    low = step * (1 + max(Counter(columns).values())) + 18
    heights: Counter[int] = Counter()
    dots = []
    for column, (_, score) in sorted(zip(columns, scores, strict=True), key=lambda pair: abs(pair[1][0])):
        heights[column] += 1
        x, y = CHART_WIDTH / 2 + (column + 0.5) * step, low - step * (heights[column] - 0.4)
        verdict = score_cell(score).verdict
        dots.append(Dot(round(x, 1), round(y, 1), verdict, score.row == STATISTICS, _dot_text(score)))
    whole = range(-int(limit), int(limit) + 1)
    ticks = [(round(CHART_WIDTH / 2 + k * unit, 1), format_signed(k, 0)) for k in whole]
    return AgreementChart(dots, round(low, 1), round(0.44 * step, 2), ticks)


def _dot_text(score: Score) -> str:
    cell = score_cell(score)
    metric = METRIC_NAMES.get(score.metric, display_name(score.metric))
    name = " ".join(filter(None, (display_name(score.dataset), display_name(score.row) + ",", score.view, metric)))
    return f"{name}: {cell.text}, published {cell.subtext}, difference {cell.difference} sd"


# --- the data of the diagrams ---

Document = dict[str, object]

JSON_DECIMALS = 6  # more than a diagram can show


def page_data(results: Results) -> Document:
    """Return the data of the diagrams: names, the first selection, and the bins and runs of each dataset and source."""
    rows, models, calibrators = selectable_rows(results), calibrated_models(results), results.calibrators
    sources = {source for reading in READINGS for source in results.rows(reading).values()}
    sources |= {Source(model, calibrator) for model in models for calibrator in calibrators}
    return {
        "readings": {
            reading: {
                "label": READING_NAMES[reading],
                "rows": {row: source_key(source) for row, source in results.rows(reading).items() if row in rows},
            }
            for reading in READINGS
        },
        "views": {view: display_name(view) for view in (*VIEWS, SAME_LABEL)},
        "rows": {row: display_name(row) for row in rows},
        "calibrators": {name: display_name(name) for name in calibrators},
        "calibrator": STRUCTURED if STRUCTURED in calibrators else next(reversed(calibrators), None),
        "calibrated": {calibrated_row(model): model for model in models},
        "minBinCount": MIN_BIN_COUNT,
        "reading": AS_DEFINED if results.other_datasets or set(results.models) - set(KNOWN_MODELS) else AS_PUBLISHED,
        "dataset": "all" if len(results.datasets) <= MAX_DATASETS_SHOWN else results.datasets[0],
        "markers": {row: row_style(row).marker for row in styled_rows(results)},
        "datasets": {
            dataset: {
                "label": display_name(dataset),
                "sources": {
                    source_key(source): source_data(runs, source.prediction)
                    for source in sorted(sources)
                    if (runs := results.runs_of(dataset, source))
                },
            }
            for dataset in results.datasets
        },
    }


def selectable_rows(results: Results) -> list[str]:
    """Return the rows that can be selected: the published ones, and others that have runs."""
    rows = {row: source.model for reading in READINGS for row, source in results.rows(reading).items()}
    return [row for row, model in rows.items() if row in READINGS[AS_PUBLISHED] or model in results.models]


def styled_rows(results: Results) -> list[str]:
    """Return the selectable rows and the calibrated rows, which all need a style."""
    return [*selectable_rows(results), *map(calibrated_row, calibrated_models(results))]


def calibrated_models(results: Results) -> list[str]:
    """Return the models with calibrated predictions."""
    return list(dict.fromkeys(model for _, model in calibrated_runs(results)))


def source_key(source: Source) -> str:
    """Return the key of a source in the data."""
    return f"{source.model}/{source.prediction}"


def source_data(runs: Sequence[Run], prediction: str) -> Document:
    """Return the bins of each view, and a list [split, fold, init, ECE of each view] per run."""
    scored = [run.predictions[prediction] for run in runs]
    return {
        "views": {view: pool_bins([of_run[view] for of_run in scored]) for view in scored[0]},
        "runs": [
            [run.key.split, run.key.fold, run.key.init, *(round_or_none(of_run[view].ece) for view in VIEWS)]
            for run, of_run in zip(runs, scored, strict=True)
        ],
    }


def pool_bins(results: Sequence[ViewResult]) -> Document:
    """Sum the bins of runs. The ECE is the mean over the runs, not that of the summed bins.

    ``few`` states whether a bin has fewer than ``MIN_BIN_COUNT`` elements per run. Confidence and accuracy of an empty
    bin are null.
    """
    count = _sum_columns(result.bins.count for result in results)
    mean, std, num_runs = summarize(result.ece for result in results)
    return {
        "count": [int(n) for n in count],
        "confidence": _means(_sum_columns(result.bins.confidence_sum for result in results), count),
        "accuracy": _means(_sum_columns(result.bins.correct_sum for result in results), count),
        "few": [n < MIN_BIN_COUNT * len(results) for n in count],
        "runs": len(results),
        "ece": {"mean": round_or_none(mean), "std": round_or_none(std), "runs": num_runs} if num_runs else None,
    }


def round_or_none(value: float) -> float | None:
    """Round a number for JSON; None, which becomes null, if it is not finite."""
    return round(value, JSON_DECIMALS) if math.isfinite(value) else None


def _sum_columns(columns: Iterable[Sequence[float]]) -> list[float]:
    return [math.fsum(values) for values in zip(*columns, strict=True)]


def _means(sums: Sequence[float], count: Sequence[float]) -> list[float | None]:
    return [round_or_none(total / n) if n else None for total, n in zip(sums, count, strict=True)]
