"""Result of `compare`: differences of scores with intervals, the verdict in words, and a printed table."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from edgewise.files.tables import data_frame
from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.scores import METRICS
from edgewise.representation import shorten

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

EVENT = "same_label"
COMPARED_EVENT_METRICS = METRICS[1:]  # the frequency of the event is the same for all models
HIGHER_IS_BETTER = ("accuracy",)
VIEW_WORDS = {"nodewise": "node", "edgewise": "edge", EVENT: "same-label"}
METRIC_WORDS = {"nll": "NLL", "brier": "Brier score", "ece": "ECE"}
# Main scores of the verdict: (view, metric). Agree and disagree condition on the true labels, which no model knows.
VERDICT_SCORES = (("nodewise", "accuracy"), ("nodewise", "nll"), ("edgewise", "nll"), ("edgewise", "ece"))
NODE_VERDICT_SCORES = (("nodewise", "accuracy"), ("nodewise", "nll"), ("nodewise", "ece"))
MAX_NAME = 24  # characters of a name in the heading of a column
VERDICT_COLUMNS = 100


@dataclass(frozen=True)
class Difference:
    """Difference of one score: that of a model minus that of the reference.

    Attributes
    ----------
    value
        The difference. NaN if the view is empty, or if both scores are infinite.
    low
        Lower bound of its interval.
    high
        Upper bound of its interval.
    """

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low > 0 or self.high < 0

    @property
    def is_zero(self) -> bool:
        """Whether both scores are equal, and also in every resample."""
        return self.value == self.low == self.high == 0


Differences = Mapping[str, Mapping[str, Mapping[str, Difference]]]


@dataclass(frozen=True)
class ComparedScore:
    """A row of the table: one score of the reference and of a model, and their difference.

    Attributes
    ----------
    model
        The name of the model.
    view
        "nodewise", "edgewise", "agree", "disagree" or "same_label".
    metric
        "accuracy", "nll", "brier" or "ece".
    reference_score
        The score of the reference.
    score
        The score of the model.
    difference
        Their difference with its interval.
    """

    model: str
    view: str
    metric: str
    reference_score: float
    score: float
    difference: Difference

    @property
    def name(self) -> str:
        """The score in words, such as "edge NLL"."""
        view, metric = VIEW_WORDS.get(self.view, self.view), METRIC_WORDS.get(self.metric, self.metric)
        return f"{view} {metric}"

    @property
    def outcome(self) -> str:
        """Return "better" or "worse" if the interval excludes 0, "equal" if the scores are equal, otherwise ""."""
        if self.difference.is_zero:
            return "equal"
        if not self.difference.excludes_zero:
            return ""
        return "better" if (self.difference.low > 0) == (self.metric in HIGHER_IS_BETTER) else "worse"


class Comparison:
    """Paired differences of the scores of two or more models, with intervals; returned by `compare`.

    ``print`` shows a table and the verdict. The first model is the reference.

    Attributes
    ----------
    evaluations
        The `Evaluation` of each model, by name.
    differences
        The `Difference` by model, view and metric, such as ``differences["gat"]["edgewise"]["nll"].low``. The views are
        the four of `Evaluation` and "same_label".
    n_resamples
        Number of resamples of the nodes.
    confidence_level
        Nominal coverage of each interval.
    seed
        Random seed of the resamples.
    """

    def __init__(
        self,
        evaluations: Mapping[str, Evaluation],
        differences: Differences,
        n_resamples: int,
        confidence_level: float,
        seed: int,
    ):
        self.evaluations, self.differences = evaluations, differences
        self.n_resamples, self.confidence_level, self.seed = n_resamples, confidence_level, seed

    @property
    def reference(self) -> str:
        """The name of the model that the others are compared with."""
        return next(iter(self.evaluations))

    @property
    def models(self) -> list[str]:
        """The names of the other models."""
        return list(self.differences)

    def scores(self, model: str | None = None) -> Iterator[ComparedScore]:
        """Yield the scores of one model, or of all. Views of edges are left out if no edge is scored."""
        reference = self.evaluations[self.reference]
        for name in self.models if model is None else [model]:
            for view, by_metric in self.differences[name].items():
                if view != "nodewise" and not reference.edgewise.count:
                    continue
                for metric, difference in by_metric.items():
                    before, after = (_score(ev, view, metric) for ev in (reference, self.evaluations[name]))
                    yield ComparedScore(name, view, metric, before, after, difference)

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        """The result in words for each model: a sentence on its main scores, and one on how many scores differ."""
        return [(_main_scores(self, model), _count(self, model)) for model in self.models]

    @property
    def verdict(self) -> str:
        """The result in words, one line per model."""
        return "\n".join(" ".join(sentences).rstrip() for sentences in self.verdicts)

    def to_dict(self) -> dict[str, object]:
        """Return all results as plain dicts, lists and numbers."""
        return {
            "reference": self.reference,
            "scores": {name: ev.scalars() for name, ev in self.evaluations.items()},
            "differences": {
                model: {
                    view: {
                        metric: {"difference": one.value, "interval": [one.low, one.high]}
                        for metric, one in by_metric.items()
                    }
                    for view, by_metric in views.items()
                }
                for model, views in self.differences.items()
            },
            "verdict": self.verdict.splitlines(),
            "intervals": {
                "n_resamples": self.n_resamples,
                "confidence_level": self.confidence_level,
                "seed": self.seed,
            },
            "options": self.evaluations[self.reference].options,
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return the table as a pandas DataFrame: one row per model, view and metric."""
        rows = list(self.scores())
        return data_frame(
            {
                "model": [row.model for row in rows],
                "view": [row.view for row in rows],
                "metric": [row.metric for row in rows],
                "reference_score": [row.reference_score for row in rows],
                "score": [row.score for row in rows],
                "difference": [row.difference.value for row in rows],
                "low": [row.difference.low for row in rows],
                "high": [row.difference.high for row in rows],
                "outcome": [row.outcome for row in rows],
            }
        )

    def plot(
        self, *, ax: "Sequence[Axes] | NDArray[np.object_] | None" = None, title: str | None = None
    ) -> "tuple[Figure, NDArray[np.object_]]":
        """Plot the differences with their intervals: one panel per metric, one row per view.

        Parameters
        ----------
        ax
            Four axes to draw in, one per metric. By default those of a new figure.
        title
            The title of the figure.
        """
        from edgewise.plots.forest_plot import plot_differences

        return plot_differences(self, ax=ax, title=title)

    def report(self, path: Path | str, *, title: str | None = None) -> None:
        """Write a self-contained HTML page: the verdict, a forest plot and the table of differences.

        Parameters
        ----------
        path
            The file to write, which ends in .html or .htm. An existing file is replaced.
        title
            The title of the page.
        """
        from edgewise.pages.comparison_page import write_comparison_page

        write_comparison_page(self, Path(path), title)

    def __repr__(self) -> str:
        rows = list(self.scores())
        num = sum(row.difference.excludes_zero for row in rows)
        names = ", ".join(self.models)
        return shorten(f"Comparison({num} of {len(rows)} intervals exclude 0; {names} against {self.reference})")

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import comparison_html

        return comparison_html(self)

    def __str__(self) -> str:
        tables = ["\n".join(_table_lines(self, model)) for model in self.models]
        return "\n\n".join([*tables, *(fill(line, VERDICT_COLUMNS) for line in self.verdict.splitlines())])


def _score(ev: Evaluation, view: str, metric: str) -> float:
    return float(getattr(ev.same_label, metric)) if view == EVENT else ev[view][metric]


def _table_lines(comparison: Comparison, model: str) -> list[str]:
    names = [shorten(name, MAX_NAME) for name in (comparison.reference, model)]
    widths = [max(11, len(name) + 2) for name in names]
    interval = f"{100 * comparison.confidence_level:g}% interval"
    heading = "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    lines = [f"{'':22}{heading}{'difference':>12}{interval:>21}"]
    view_before = ""
    for row in comparison.scores(model):
        numbers = zip((row.reference_score, row.score), widths, strict=True)
        scores = "".join(f"{number:{width}.4f}" for number, width in numbers)
        one = row.difference
        view = row.view.replace("_", " ") if row.view != view_before else ""
        line = f"{view:12}{row.metric:10}{scores}{one.value:+12.4f}{f'[{one.low:+.4f}, {one.high:+.4f}]':>21}"
        lines.append(f"{line}  {row.outcome}".rstrip())
        view_before = row.view
    return lines


def _main_scores(comparison: Comparison, model: str) -> str:
    """Return a sentence on the main scores of a model: first those that differ, then the others."""
    has_edges = comparison.evaluations[comparison.reference].edgewise.count
    main = VERDICT_SCORES if has_edges else NODE_VERDICT_SCORES
    rows = [row for row in comparison.scores(model) if (row.view, row.metric) in main]
    parts, subject = [], f"{model} has "
    for row in (row for row in rows if row.difference.excludes_zero):
        one = row.difference
        word, than = "higher" if one.low > 0 else "lower", f" than {comparison.reference}" if subject else ""
        article = f"{subject}a {word} {row.name}{than}"
        parts.append(f"{article}: {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}]")
        subject = ""
    equal = [row.name for row in rows if row.difference.is_zero]
    unclear = [row.name for row in rows if not row.outcome and not math.isnan(row.difference.value)]
    parts += [f"{', '.join(equal)}: equal"] if equal else []
    parts += [f"{', '.join(unclear)}: no difference can be shown"] if unclear else []
    text = "; ".join(parts) or "There is nothing to compare"
    return f"{text if subject == '' or not parts else f'{model} and {comparison.reference}: {text}'}."


def _count(comparison: Comparison, model: str) -> str:
    """Return a sentence on the number of scores that differ, and on what chance would give.

    Scores of agree and disagree do not count, because they condition on the true labels.
    """
    rows = [
        row
        for row in comparison.scores(model)
        if row.view in VIEW_WORDS and not row.difference.is_zero and not math.isnan(row.difference.value)
    ]
    if not rows:
        return ""
    better, worse = (sum(row.outcome == outcome for row in rows) for outcome in ("better", "worse"))
    by_chance = (1 - comparison.confidence_level) * len(rows)
    number = f"{by_chance:.0f}" if by_chance >= 1 else f"{by_chance:.1g}"
    has_edges = comparison.evaluations[comparison.reference].edgewise.count
    return (
        f"Of {len(rows)} scores that are not equal{', without agree and disagree' if has_edges else ''}, {better} "
        f"{'is' if better == 1 else 'are'} better and {worse} worse. Each interval holds for one score alone: if the "
        f"models were equally good, about {number} of {len(rows)} would exclude 0 by chance."
    )
