"""Comparison of all published cells with ours, and lines of text that show both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewise.data.statistics import DatasetStatistics, MeanStd
from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.sums import VIEWS
from edgewise.paper.formatting import FRACTIONS, METRIC_NAMES, display_name
from edgewise.paper.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.paper.readings import AS_PUBLISHED
from edgewise.paper.results import Results
from edgewise.paper.score_rows import STATISTICS, Score, reading_score, statistics_score


def compare(results: Results, reading: str = AS_PUBLISHED) -> list[Score]:
    """Return our score for each of the 132 published cells: accuracies and ECEs, then dataset statistics."""
    scores = [
        reading_score(results, reading, dataset, row, view, metric)
        for dataset, rows in PUBLISHED_SCORES.items()
        for row, metrics in rows.items()
        for metric, views in metrics.items()
        for view in views
    ]
    return scores + [statistics_score(results, dataset, name) for dataset in PUBLISHED_DATASETS for name in FRACTIONS]


def scores_beyond_one_std(results: Results) -> list[Score]:
    """Return the scores that differ by more than one published standard deviation, largest difference first."""
    distances = [(abs(score.difference), score) for score in compare(results) if score.difference is not None]
    return [score for distance, score in sorted(distances, key=lambda pair: -pair[0]) if distance > 1]


@dataclass(frozen=True)
class Tally:
    """Numbers of published cells reproduced within one and within two published standard deviations."""

    cells: int
    compared: int
    within_one: int
    within_two: int

    def __str__(self) -> str:
        if not self.compared:
            return f"None of the {self.cells} published cells has a result yet."
        percent = 100 * self.within_one / self.compared
        line = (
            f"{self.within_one} of {self.compared} published cells within one published standard deviation "
            f"({percent:.0f}%), {self.within_two} within two"
        )
        missing = self.cells - self.compared
        return f"{line}; {missing} have no result." if missing else f"{line}."


def tally(scores: Sequence[Score]) -> Tally:
    """Count the scores within one and within two published standard deviations."""
    distances = [abs(score.difference) for score in scores if score.difference is not None]
    within_one, within_two = (sum(distance <= limit for distance in distances) for limit in (1, 2))
    return Tally(len(scores), len(distances), within_one, within_two)


def tally_line(results: Results) -> str:
    """Return a sentence on how many cells are reproduced, with dataset statistics, which need no training, apart."""
    if results.other_datasets and not results.paper_datasets:
        return f"There are no published numbers for {', '.join(map(display_name, results.other_datasets))}."
    cells = compare(results)
    statistics = tally([cell for cell in cells if cell.row == STATISTICS])
    scores = tally([cell for cell in cells if cell.row != STATISTICS])
    whole = tally(cells)
    if not whole.compared:
        return str(whole)
    parts = (
        f"scores {scores.within_one} of {scores.compared}, "
        f"dataset statistics {statistics.within_one} of {statistics.compared}"
    )
    return f"{whole} Within one: {parts}."


# --- terminal output: scores and dataset statistics, each with the published ones ---

COLUMN_WIDTH = 20


def scores_beside_published(
    runs: Mapping[str, Evaluation], published: Mapping[str, Mapping[str, Mapping[str, MeanStd]]]
) -> str:
    """Format a line per model and metric, in percent, with the published mean ± std in parentheses."""
    lines = [(f"{'':20}" + "".join(f"{view:{COLUMN_WIDTH}}" for view in VIEWS)).rstrip()]
    for model, run in runs.items():
        name = display_name(model)
        for metric, views in published[model].items():
            cells = (
                f"{100 * getattr(run[view], metric):4.1f} ({100 * cell.mean:.1f} ± {100 * cell.std:.1f})"
                for view, cell in views.items()
            )
            line = f"{name:8}{METRIC_NAMES[metric]:12}" + "".join(f"{cell:{COLUMN_WIDTH}}" for cell in cells)
            lines.append(line.rstrip())
            name = ""
    return "\n".join(lines)


COUNT_WIDTHS = {"nodes": 7, "directed_edges": 7, "features": 10, "classes": 9}
DATASETS_HEADER = (
    f"{'':11}"
    + "".join(f"{name.removeprefix('directed_'):>{width}}" for name, width in COUNT_WIDTHS.items())
    + "".join(f"{name.replace('k_', 'K '):>14}" for name in FRACTIONS)
)
DATASETS_FOOTER = "Edges: both directions. Homophily and K: percent, mean ± std over the test sets of the splits."


def dataset_line(label: str, statistics: DatasetStatistics) -> str:
    """Format one row, with fractions in percent."""
    counts = (f"{getattr(statistics, name):>{width}}" for name, width in COUNT_WIDTHS.items())
    fractions = (getattr(statistics, name) for name in FRACTIONS)
    cells = (f"{100 * fraction.mean:.2f} ± {100 * fraction.std:.2f}" for fraction in fractions)
    return f"{label:<11}" + "".join(counts) + "".join(f"{cell:>14}" for cell in cells)
