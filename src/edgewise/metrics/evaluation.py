"""Result of `evaluate`: the scores of all views, graph statistics, and a printed table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from edgewise.data.edges import EdgeChoice
from edgewise.files.tables import data_frame
from edgewise.metrics.chance import Chance
from edgewise.metrics.groups import Groupings, Groups, GroupSums, summary_line
from edgewise.metrics.score_parts import ScoreDetails, format_details
from edgewise.metrics.scores import EVENT_METRICS, METRICS, EventScores, Norm, Scores, ViewScores
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import VIEWS, Sums, carry_tables
from edgewise.suggestions import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    low
        Lower bound.
    high
        Upper bound.
    """

    low: float
    high: float


@dataclass(frozen=True)
class KIndex:
    """K index of each edge view: K(E_S) is the fraction of scored nodes that are an end of an edge in E_S.

    Attributes
    ----------
    edgewise
        K of all scored edges.
    agree
        K of edges whose ends have the same true label.
    disagree
        K of edges whose ends have different true labels.
    """

    edgewise: float
    agree: float
    disagree: float

    def __getitem__(self, view: str) -> float:
        return float(getattr(self, view))


Intervals = Mapping[str, Mapping[str, Interval]]
Scored = Literal["probs", "model", "calibrated", "tables"]


@dataclass(frozen=True)
class EvaluationSettings:
    """What was scored, and how intervals were computed.

    Attributes
    ----------
    scored
        "probs" for an array, "model" for another object, "calibrated" for a fitted calibrator, or "tables" of
        `evaluate_tables`.
    normalize
        Whether probabilities were divided by the sums of their rows.
    predictions
        Whether the predicted labels were given.
    n_resamples, confidence_level, seed
        Options of the intervals.
    chance
        Number of labelings drawn for the scores by chance.
    notes
        Lines of text about the input, such as how edges are listed, which `evaluate_tables` finds out.
    """

    scored: Scored = "probs"
    normalize: bool = False
    predictions: bool = False
    n_resamples: int = 0
    confidence_level: float = 0.95
    seed: int = 0
    chance: int = 0
    notes: tuple[str, ...] = ()


class Evaluation:
    """Scores of predictions in the four views.

    `evaluate` and `GraphCalibration` return it. ``ev.edgewise.ece`` and ``ev["edgewise"]["ece"]`` are the same number,
    and ``print(ev)`` shows a table. Evaluations of disjoint parts can be added with ``+``.

    Attributes
    ----------
    nodewise
        Scores of nodes.
    edgewise
        Scores of edges, where the label of an edge is the pair of labels of its ends.
    agree
        Scores of edges whose ends have the same true label.
    disagree
        Scores of edges whose ends have different true labels.
    same_label
        Scores of P(same label) = Σ_l q(l, l) on the scored edges, or None with ``same_label=False``.
    node_sets
        Scores of the node sets, or None without ``node_sets``.
    intervals
        Confidence intervals by view and metric, such as ``ev.intervals["edgewise"]["ece"].low``. Empty without
        ``n_resamples``.
    groups
        Scores of groups of nodes and edges by the name of the grouping, such as ``ev.groups["degree"]``. Empty without
        ``groups`` and ``by``.
    chance
        Scores that chance would give if the posterior were right, such as ``ev.chance["edgewise"]["ece"].p_value``, see
        `Chance`. None without ``chance``.
    settings
        What was scored, and how intervals were computed.

    Examples
    --------
    >>> import torch
    >>> from edgewise.metrics import evaluate
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> ev = evaluate(probs, torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [1, 2]]))
    >>> ev
    Evaluation(nodes=3, edges=2)
    >>> ev.homophily, (ev + ev).edgewise.count
    (0.5, 4)
    """

    nodewise: ViewScores
    edgewise: ViewScores
    agree: ViewScores
    disagree: ViewScores

    def __init__(
        self,
        sums: Mapping[str, Sums],
        binning: Binning,
        norm: Norm = "l1",
        edge_choice: EdgeChoice = "both",
        intervals: Intervals | None = None,
        settings: EvaluationSettings | None = None,
        group_sums: Sequence[GroupSums] = (),
        details: Mapping[str, ScoreDetails] | None = None,
        chance: Chance | None = None,
    ):
        self._sums = {view: Sums(table.cpu(), boundaries.cpu()) for view, (table, boundaries) in sums.items()}
        self._binning, self._norm, self._edge_choice = binning, norm, edge_choice
        self.intervals: Intervals = intervals or {}
        self.settings = settings or EvaluationSettings()
        self.chance = chance
        details = details or {}
        self.nodewise, self.edgewise, self.agree, self.disagree = (
            ViewScores(*self._sums[view], norm, details.get(view)) for view in VIEWS
        )
        event, sets = self._sums.get("same_label"), self._sums.get("node_sets")
        self.same_label = None if event is None else EventScores(*event, norm, details.get("same_label"))
        self.node_sets = None if sets is None else ViewScores(*sets, norm)
        self._group_sums = {sums.name: sums for sums in group_sums}
        self.groups = Groupings({name: Groups(sums, norm) for name, sums in self._group_sums.items()})

    @property
    def options(self) -> dict[str, object]:
        """Choice of edges, binning, and norm of the calibration error."""
        binning = self._binning
        bin_options = {"n_bins": binning.n_bins, "binning": binning.kind, "closed": binning.closed}
        return {"edge_choice": self._edge_choice, **bin_options, "norm": self._norm}

    @property
    def homophily(self) -> float:
        """Fraction |E_A| / |E_U| of scored edges whose ends have the same true label, NaN without edges."""
        return self.agree.count / self.edgewise.count if self.edgewise.count else float("nan")

    @property
    def k_index(self) -> KIndex:
        """K index of each edge view, NaN without nodes."""
        nodes = self.nodewise.count
        num_with_edge = (int(self._sums[view].table[-1, 1]) for view in VIEWS[1:])
        return KIndex(*(number / nodes if nodes else float("nan") for number in num_with_edge))

    @property
    def independent_edges(self) -> float:
        """Number of independent edges that vary as much as the scored edges, which share nodes.

        It is E / (Σ_i d_i² / Σ_i d_i) for E edges, where d_i is the number of scored edges of node i: n / 2 on a
        regular graph of n nodes, and about 2 on a star. NaN if the degrees are unknown, because an earlier version
        stored the sums.
        """
        num_edges, degree_squares = self.edgewise.count, int(self._sums["edgewise"].table[-1, 2])
        if not degree_squares:
            return float("nan") if num_edges else 0.0
        return 2 * num_edges**2 / degree_squares

    def __getitem__(self, view: str) -> ViewScores:
        if view not in VIEWS:
            raise KeyError(f"Expected one of {', '.join(VIEWS)}, but got {view!r}.{did_you_mean(view, VIEWS)}")
        scores: ViewScores = getattr(self, view)
        return scores

    def __add__(self, other: "Evaluation") -> "Evaluation":
        """Merge the scores of two disjoint parts. A node in both counts twice.

        Intervals, scores by chance, decompositions, and smooth and classwise errors are dropped.
        """
        if not isinstance(other, Evaluation):
            return NotImplemented
        ours, theirs = ({**ev.options, "views": list(ev._sums), "groups": list(ev.groups)} for ev in (self, other))
        if ours != theirs:
            raise ValueError(f"Expected evaluations with the same options, but got {ours} and {theirs}.")
        if self._binning.kind == "mass":
            raise ValueError(
                "Expected bins of equal width, but got bins of equal mass, which cannot be added. Use binning='width'."
            )
        tables = torch.stack([sums.table + other._sums[view].table for view, sums in self._sums.items()])
        added = zip(self._sums.items(), carry_tables(tables, self._binning.n_bins), strict=True)
        sums = {view: Sums(table, boundaries) for (view, (_, boundaries)), table in added}
        groups = [sums.merge(other._group_sums[name]) for name, sums in self._group_sums.items()]
        return Evaluation(sums, self._binning, self._norm, self._edge_choice, group_sums=groups)

    def __radd__(self, other: object) -> "Evaluation":
        """Support ``sum(evaluations)``, which starts with 0."""
        return self if other == 0 else NotImplemented

    def scalars(self) -> dict[str, float]:
        """Return the scores by flat names such as "edgewise/ece" and "same_label/ece", for loggers."""
        views = {view: self[view] for view in VIEWS} | ({"node_sets": self.node_sets} if self.node_sets else {})
        scalars = {f"{view}/{metric}": scores[metric] for view, scores in views.items() for metric in METRICS}
        if self.same_label is not None:
            scalars |= {f"same_label/{metric}": getattr(self.same_label, metric) for metric in EVENT_METRICS}
        parts: dict[str, Scores] = {**views, **({"same_label": self.same_label} if self.same_label else {})}
        return scalars | {
            f"{view}/{name}": x for view, part in parts.items() for name, x in part.details.numbers().items()
        }

    def to_dict(self) -> dict[str, object]:
        """Return all results as plain dicts, lists and numbers."""
        out: dict[str, object] = {view: self[view].to_dict() for view in VIEWS}
        k_index = self.k_index
        out["homophily"] = self.homophily
        out["k_index"] = {view: k_index[view] for view in VIEWS[1:]}
        out["same_label"] = self.same_label.to_dict() if self.same_label else None
        out["node_sets"] = self.node_sets.to_dict() if self.node_sets else None
        out["intervals"] = {
            view: {metric: [interval.low, interval.high] for metric, interval in intervals.items()}
            for view, intervals in self.intervals.items()
        }
        out["groups"] = {name: groups.to_dict() for name, groups in self.groups.items()}
        out["chance"] = self.chance.to_dict() if self.chance else None
        return {**out, "options": self.options}

    def to_frame(self) -> "pd.DataFrame":
        """Return the scores as a pandas DataFrame: one row per view, and the bounds of intervals if there are any.

        The rows "same_label" and "node_sets" are there if they were scored. The mean predicted ``probability`` and the
        observed ``frequency`` belong to "same_label", which has no accuracy. With ``chance`` there are also columns
        such as "ece_chance_mean", "ece_chance_low", "ece_chance_high" and "ece_p_value", NaN if there is no p-value.
        Groups have frames of their own, such as ``ev.groups["degree"].to_frame()``.
        """
        parts: dict[str, Scores | None] = {view: self[view] for view in VIEWS}
        parts |= {"same_label": self.same_label, "node_sets": self.node_sets}
        rows = {name: _flat_numbers(scores) for name, scores in parts.items() if scores is not None}
        bounds = {name: _interval_bounds(self.intervals.get(name, {})) for name in rows}
        if self.chance:
            bounds = {name: row | self.chance.columns(name) for name, row in bounds.items()}
        names = dict.fromkeys(name for table in (rows, bounds) for row in table.values() for name in row)
        columns = {name: [(rows[row] | bounds[row]).get(name, float("nan")) for row in rows] for name in names}
        return data_frame(columns, list(rows))

    def plot(
        self,
        *,
        ax: "Axes | Sequence[Axes] | NDArray[np.object_] | None" = None,
        views: str | Sequence[str] | None = None,
        title: str | None = None,
    ) -> "tuple[Figure, NDArray[np.object_]]":
        """Plot a reliability diagram of each view: ``plot_reliability(ev)``, with its options and its result."""
        from edgewise.plots.reliability import plot_reliability

        options: dict[str, Any] = {} if views is None else {"views": views}
        return plot_reliability(self, ax=ax, title=title, **options)

    def report(self, path: Path | str, *, title: str | None = None) -> None:
        """Write a self-contained HTML page: the verdict in words, scores, reliability diagrams, and what to do next.

        Parameters
        ----------
        path
            The file to write, which ends in .html or .htm. An existing file is replaced.
        title
            The title of the page, such as the name of the model.
        """
        from edgewise.pages.evaluation_page import write_evaluation_page

        write_evaluation_page(self, Path(path), title)

    def __repr__(self) -> str:
        return f"Evaluation(nodes={self.nodewise.count}, edges={self.edgewise.count})"

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import evaluation_html

        return evaluation_html(self)

    def __str__(self) -> str:
        views = VIEWS if self.edgewise.count else VIEWS[:1]
        shown = {view: self[view].details for view in views}
        if self.same_label is not None and self.same_label.count:
            shown["same label"] = self.same_label.details
        lines = [*_score_lines(self), *_interval_lines(self)]
        if self.chance:
            lines += self.chance.lines(bool(self.edgewise.count))
        return "\n".join([*lines, *format_details(shown), *_graph_lines(self), *self.settings.notes])


def _flat_numbers(scores: Scores) -> dict[str, Any]:
    numbers = {name: value for name, value in scores.to_dict().items() if isinstance(value, int | float)}
    return numbers | scores.details.numbers()


def _interval_bounds(intervals: Mapping[str, Interval]) -> dict[str, float]:
    return {
        f"{metric}_{end}": getattr(interval, end) for metric, interval in intervals.items() for end in ("low", "high")
    }


def _score_lines(ev: Evaluation) -> list[str]:
    columns = ("count", *METRICS, "over", "under")
    lines = [f"{'':10}" + "".join(f"{name:>11}" for name in columns)]
    for view in VIEWS if ev.edgewise.count else VIEWS[:1]:
        scores = ev[view]
        numbers = [*(scores[metric] for metric in METRICS), scores.overconfidence, scores.underconfidence]
        lines.append(f"{view:10}{scores.count:11,}" + "".join(f"{number:11.4f}" for number in numbers))
    return lines


def _interval_lines(ev: Evaluation) -> list[str]:
    if not ev.intervals:
        return []
    lines = ["", f"{'interval':10}" + "".join(f"{metric:>19}" for metric in METRICS)]
    for view in VIEWS if ev.edgewise.count else VIEWS[:1]:
        intervals = ev.intervals[view]
        cells = (f"[{intervals[metric].low:.4f}, {intervals[metric].high:.4f}]" for metric in METRICS)
        lines.append(f"{view:10}" + "".join(f"{cell:>19}" for cell in cells))
    return lines


def _graph_lines(ev: Evaluation) -> list[str]:
    k = ev.k_index
    homophily = f"homophily {ev.homophily:.4f}; K index: edgewise {k.edgewise:.4f}, agree {k.agree:.4f}"
    lines = ["", f"{homophily}, disagree {k.disagree:.4f}" if ev.edgewise.count else "no edges scored"]
    if ev.same_label is not None and ev.same_label.count:
        same = ev.same_label
        lines.append(
            f"same label: predicted {same.probability:.4f}, observed {same.frequency:.4f}, "
            f"ece {same.ece:.4f}, nll {same.nll:.4f}, brier {same.brier:.4f}"
        )
    if ev.node_sets is not None:
        sets = ev.node_sets
        scores = ", ".join(f"{metric} {sets[metric]:.4f}" for metric in METRICS)
        lines.append(f"node sets: {sets.count:,}, {scores}")
    return [*lines, *map(summary_line, ev.groups.values())]
