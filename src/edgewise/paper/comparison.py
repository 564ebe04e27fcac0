"""Every published cell beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgewise.data import DatasetStatistics
from edgewise.data.statistics import MeanStd
from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.sums import VIEWS
from edgewise.paper.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.paper.readings import AS_PUBLISHED
from edgewise.paper.results import SHARES, Results, away

STATISTICS = "statistics"


@dataclass(frozen=True)
class ComparedCell:
    """A published mean ± std, and ours if there is one; ``row`` is a row of the tables, or "statistics"."""

    dataset: str
    row: str
    metric: str
    view: str
    published: MeanStd
    ours: MeanStd | None

    @property
    def difference(self) -> float | None:
        """Ours less published, in published standard deviations."""
        return None if self.ours is None else away(self.ours, self.published)


@dataclass(frozen=True)
class Tally:
    """How many published cells are reproduced within one, and within two, published standard deviations."""

    cells: int
    compared: int
    within_one: int
    within_two: int

    def __str__(self) -> str:
        if not self.compared:
            return f"None of the {self.cells} published cells has a number of ours yet."
        share = 100 * self.within_one / self.compared
        line = (
            f"{self.within_one} of {self.compared} published cells within one published standard deviation "
            f"({share:.0f}%), {self.within_two} within two"
        )
        left = self.cells - self.compared
        return f"{line}; {left} have no number of ours." if left else f"{line}."


def compare(results: Results, reading: str = AS_PUBLISHED) -> list[ComparedCell]:
    """Set all published cells, 132 of them, beside ours: accuracies and ECEs, then statistics of the datasets."""
    scores = [
        ComparedCell(dataset, row, metric, view, published, results.summary(reading, dataset, row, view, metric))
        for dataset, rows in PUBLISHED_SCORES.items()
        for row, metrics in rows.items()
        for metric, views in metrics.items()
        for view, published in views.items()
    ]
    return scores + [cell for dataset in PUBLISHED_DATASETS for cell in _statistics(results, dataset)]


def _statistics(results: Results, dataset: str) -> list[ComparedCell]:
    published, ours = PUBLISHED_DATASETS[dataset], results.dataset_statistics(dataset)
    return [
        ComparedCell(dataset, STATISTICS, share, "", getattr(published, share), getattr(ours, share) if ours else None)
        for share in SHARES
    ]


def tally(cells: Sequence[ComparedCell]) -> Tally:
    """Count how many cells are near."""
    apart = [abs(cell.difference) for cell in cells if cell.difference is not None]
    return Tally(len(cells), len(apart), sum(one <= 1 for one in apart), sum(one <= 2 for one in apart))


def tally_line(results: Results) -> str:
    """Say how many cells are reproduced, and how many of them are statistics, which no training has a part in."""
    unpublished = [dataset for dataset in results.datasets if dataset not in PUBLISHED_DATASETS]
    if unpublished and len(unpublished) == len(results.datasets):
        return f"Nothing was published about {', '.join(unpublished)} to compare with."
    cells = compare(results)
    statistics = tally([cell for cell in cells if cell.row == STATISTICS])
    scores = tally([cell for cell in cells if cell.row != STATISTICS])
    whole = tally(cells)
    if not whole.compared:
        return str(whole)
    parts = (
        f"scores {scores.within_one} of {scores.compared}, "
        f"statistics of datasets {statistics.within_one} of {statistics.compared}"
    )
    return f"{whole} Within one: {parts}."


WIDTH = 16


def scores_beside_published(
    runs: Mapping[str, Evaluation], published: Mapping[str, Mapping[str, Mapping[str, MeanStd]]]
) -> str:
    """Give a block of lines for each model: a line a metric, in percent, and the published one beneath it."""
    lines = [f"{'':22}" + "".join(f"{view:>{WIDTH}}" for view in VIEWS)]
    for model, run in runs.items():
        lines.append("")
        for metric, views in published[model].items():
            ours = (f"{100 * getattr(getattr(run, view), metric):.2f}{'':8}" for view in views)
            theirs = (f"{100 * cell.mean:.2f} ± {100 * cell.std:5.2f}" for cell in views.values())
            lines.append(f"{model:10}{metric:12}" + "".join(f"{cell:>{WIDTH}}" for cell in ours).rstrip())
            lines.append(f"{'':10}{'published':12}" + "".join(f"{cell:>{WIDTH}}" for cell in theirs))
    return "\n".join(lines)


COUNTS = {"nodes": 7, "directed_edges": 7, "features": 10, "classes": 9}  # with the width of the column
DATASETS_HEADER = (
    f"{'':11}"
    + "".join(f"{name.removeprefix('directed_'):>{width}}" for name, width in COUNTS.items())
    + "".join(f"{name.replace('k_', 'K '):>14}" for name in SHARES)
)
DATASETS_FOOTER = "Edges: both directions. Homophily and K: percent, mean ± std over the test sets of the splits."


def dataset_line(label: str, statistics: DatasetStatistics) -> str:
    """Give one row, with shares in percent."""
    counts = (f"{getattr(statistics, name):>{width}}" for name, width in COUNTS.items())
    shares = (getattr(statistics, name) for name in SHARES)
    cells = (f"{100 * share.mean:.2f} ± {100 * share.std:.2f}" for share in shares)
    return f"{label:<11}" + "".join(counts) + "".join(f"{cell:>14}" for cell in cells)
