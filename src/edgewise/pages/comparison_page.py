"""The HTML page of a comparison: the verdict in words, a forest plot of all differences, and their table."""

from pathlib import Path

import numpy
import torch

from edgewise.files.output import check_page_suffix
from edgewise.metrics.model_comparison import METRIC_WORDS, Comparison
from edgewise.metrics.scores import METRICS
from edgewise.pages.diagrams import ForestRow, forest_chart, view_name
from edgewise.pages.evaluation_page import number
from edgewise.pages.html_page import page_part, render_page, write_page
from edgewise.version import __version__

TITLE = "Which model is better?"
KINDS = {"better": "under", "worse": "over"}  # colors of the page


def write_comparison_page(comparison: Comparison, path: Path, title: str | None = None) -> None:
    """Write the page atomically to a file that ends in .html or .htm."""
    check_page_suffix(path)
    write_page(path, comparison_page(comparison, title))


def comparison_page(comparison: Comparison, title: str | None = None) -> str:
    """Return the page as HTML."""
    reference = comparison.evaluations[comparison.reference]
    return render_page(
        page_part("comparison.html.j2"),
        title=title or TITLE,
        style=page_part("evaluation.css"),
        verdicts=comparison.verdicts,
        reference=comparison.reference,
        level=f"{100 * comparison.confidence_level:g}%",
        forests=[
            (METRIC_WORDS.get(metric, "Accuracy"), picture)
            for metric in METRICS
            if (picture := _forest(comparison, metric))
        ],
        rows=[
            {
                "model": row.model,
                "name": f"{view_name(row.view)}, {METRIC_WORDS.get(row.metric, row.metric)}",
                "numbers": [
                    number(row.reference_score, 4),
                    number(row.score, 4),
                    _signed(row.difference.value),
                    f"{_signed(row.difference.low)} to {_signed(row.difference.high)}",
                ],
                "outcome": row.outcome,
                "kind": KINDS.get(row.outcome, "soft"),
            }
            for row in comparison.scores()
        ],
        has_edges=bool(reference.edgewise.count),
        n_resamples=f"{comparison.n_resamples:,}",
        seed=comparison.seed,
        options=", ".join(f"{name} {value}" for name, value in reference.options.items()),
        versions=f"edgewise {__version__}, torch {torch.__version__}, NumPy {numpy.__version__}",
    )


def _forest(comparison: Comparison, metric: str) -> str:
    several = len(comparison.models) > 1
    rows = [
        ForestRow(
            f"{view_name(row.view)}, {row.model}" if several else view_name(row.view),
            row.difference.value,
            row.difference.low,
            row.difference.high,
            KINDS.get(row.outcome, ""),
        )
        for row in comparison.scores()
        if row.metric == metric
    ]
    return forest_chart(rows, f"Differences of {METRIC_WORDS.get(metric, metric)}") if rows else ""


def _signed(value: float) -> str:
    text = number(value, 4)
    return text if value < 0 or value != value else f"+{text}"
