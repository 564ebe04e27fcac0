"""Scores of groups of nodes and edges, the worst first: the result of ``evaluate(…, groups=…, by=…)``."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from jaxtyping import Float, Int
from torch import Tensor

from edgewise.files.tables import data_frame
from edgewise.metrics.node_groups import GroupKey
from edgewise.metrics.scores import METRICS, Norm, ViewScores
from edgewise.metrics.sums import carry_tables
from edgewise.suggestions import NamedResults
from edgewise.validation import check_option

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from edgewise.metrics.evaluation import Interval

MIN_GROUP_COUNT = 30  # nodes or edges of a group; smaller groups come last

GroupView = Literal["nodewise", "edgewise"]
GROUP_VIEWS: tuple[GroupView, ...] = get_args(GroupView)
TINY = 1e-300
COVARIANCE_BITS = 26  # fractional bits of the covariance of edges in the last row of a table


class GroupSums(NamedTuple):
    """Exact sums of each group of one grouping (see `edgewise.metrics.group_sums`), which can be added.

    ``is_given`` means that the caller passed the groups, ``depends_on_outcome`` that they are computed from the true
    labels. ``tables[view]`` are by the key of a group. A group of edges has the key of its smaller end if groups are
    ordered, else the pair of the keys of its ends.
    """

    name: str
    is_ordered: bool
    is_given: bool
    depends_on_outcome: bool
    labels: Mapping[GroupKey, str]
    tables: Mapping[GroupView, Mapping[Any, Int[Tensor, "rows 4"]]]
    boundaries: Mapping[GroupView, Float[Tensor, " limits"]]
    intervals: Mapping[tuple[str, Any], Mapping[str, "Interval"]] = {}

    def merge(self, other: "GroupSums") -> "GroupSums":
        """Add the sums of equal groups. Intervals are dropped."""
        self._check_same_grouping(other)
        labels = {**other.labels, **self.labels}
        ordered = {key: labels[key] for key in sorted(labels)}
        tables = {view: _add_tables(self.tables[view], other.tables[view]) for view in GROUP_VIEWS}
        return self._replace(labels=ordered, tables=tables, intervals={})

    @property
    def conditions_on_outcome(self) -> bool:
        """Whether groups are computed from the true labels, or given groups of the scored nodes are the true labels.

        Given groups are the labels if all labels of a group are equal, Σ y² · n = (Σ y)², and each group has another
        one. A single group conditions on nothing.
        """
        sums = [(int(table[:-2, 0].sum()), *table[-1, 1:3].tolist()) for table in self.tables["nodewise"].values()]
        labels = [label_sum // num for num, label_sum, square_sum in sums if num and square_sum * num == label_sum**2]
        are_labels = 1 < len(labels) == len(set(labels)) == sum(num > 0 for num, *_ in sums)
        return self.depends_on_outcome or (self.is_given and are_labels)

    def _check_same_grouping(self, other: "GroupSums") -> None:
        if self.is_given != other.is_given:
            raise ValueError(
                f"Expected groupings {self.name!r} of one kind, but one evaluation has by={self.name!r} and the other "
                f"groups={{{self.name!r}: …}}. Pass by={self.name!r} in both, or groups= in both."
            )
        kinds = {type(key) for key in (*self.labels, *other.labels)}
        if len(kinds) > 1:
            raise ValueError(
                f"Expected all integers or all text as groups in {self.name!r}, but got integers in one evaluation and "
                'text in the other. Pass text in both: [str(k) if k >= 0 else "" for k in x] for integer groups x.'
            )
        for key, label in self.labels.items():
            if other.labels.get(key, label) != label:
                raise ValueError(
                    f"Expected equal names of groups in {self.name!r}, but group {key} is {label!r} in one evaluation "
                    f"and {other.labels[key]!r} in the other. Pass the same class_names in the same order to both."
                )


def _add_tables(ours: Mapping[Any, Tensor], theirs: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    added = {**ours}
    for key, table in theirs.items():
        added[key] = carry_tables(added[key] + table, len(table) - 2) if key in added else table
    return added


class GroupScores(ViewScores):
    """Scores of one group of nodes or edges.

    Attributes
    ----------
    group
        Name of the group, or "a & b" for edges between the groups a and b. There a name that contains " & " is
        quoted.
    intervals
        Confidence intervals by metric. Empty without ``n_resamples``.
    """

    def __init__(
        self,
        group: str,
        table: Int[Tensor, "rows 4"],
        boundaries: Float[Tensor, " limits"],
        norm: Norm = "l1",
        intervals: Mapping[str, "Interval"] | None = None,
        covariance: float = 0.0,
    ):
        super().__init__(table, boundaries, norm)
        self.group = group
        self.intervals: Mapping[str, Interval] = intervals or {}
        self._covariance = covariance

    @property
    def confidence(self) -> float:
        """Mean confidence."""
        return float(self.reliability.confidence_sum.sum()) / self.count if self.count else math.nan

    @property
    def gap(self) -> float:
        """Accuracy minus mean confidence: below 0 if overconfident."""
        return self.accuracy - self.confidence

    @cached_property
    def chance_ece(self) -> float:
        """Mean ECE (l1) of a calibrated model with these confidences and as few elements, approximately.

        If nodes are right independently, the gap of bin k is approximately normal. For nodes it has the variance
        n_k c_k (1 - c_k), where c_k is the mean confidence. Edges share nodes, and then it has the variance
        n_k c_k (1 - c_k) (1 + φ n_k), because the number of pairs of edges that share a node grows with n_k. φ is the
        same for all bins. It is chosen such that the covariances c_j c_k c_i (1 - c_i) of all pairs (i, j) and (i, k)
        in the same bin have the right sum.
        """
        if not self.count:
            return math.nan
        bins = self.reliability
        count, confidence = bins.count[bins.filled].double(), bins.confidence[bins.filled].clamp(0, 1)
        variance = count * confidence * (1 - confidence)
        phi = self._covariance / max(float((variance * count).sum()), TINY)
        return math.sqrt(2 / math.pi) * float((variance * (1 + phi * count)).sqrt().sum()) / self.count

    @property
    def excess_ece(self) -> float:
        """ECE (l1) minus ``chance_ece``. Groups are sorted by it."""
        return self.reliability.calibration_error("l1") - self.chance_ece

    @property
    def is_small(self) -> bool:
        """Whether the group has fewer than 30 elements. Such groups come last."""
        return self.count < MIN_GROUP_COUNT

    def __repr__(self) -> str:
        scores = ", ".join(f"{metric}={self[metric]:.4f}" for metric in METRICS)
        return f"GroupScores({self.group!r}, count={self.count}{' (few)' if self.is_small else ''}, {scores})"

    def to_dict(self) -> dict[str, object]:
        """Return all scores, intervals and the reliability sums as plain numbers and lists."""
        extra = {name: getattr(self, name) for name in ("confidence", "gap", "chance_ece", "excess_ece")}
        intervals = {metric: [interval.low, interval.high] for metric, interval in self.intervals.items()}
        return {"group": self.group, **super().to_dict(), **extra, "intervals": intervals}


class Groupings(NamedResults["Groups"]):
    """Groups by the name of the grouping. If none was scored, the KeyError says how to score them."""

    def __missing__(self, name: str) -> "Groups":
        if not self:
            raise KeyError(
                f"Expected a grouping, but none was scored, and got {name!r}. Pass by= or groups= to evaluate."
            )
        return super().__missing__(name)


class Groups:
    """Scores of the groups of one grouping.

    ``nodewise`` and ``edgewise`` map the name of each group to its scores, the worst first: groups are sorted by
    ``excess_ece``, the ECE minus the mean ECE of a calibrated model with as few elements. Groups with fewer than 30
    elements come last. An edge belongs to the unordered pair of its ends' groups, or to the smaller of them if groups
    are ordered. A node without a group, and its edges, are not scored. Pairs without edges are left out.

    Attributes
    ----------
    name
        Name of the grouping, such as "degree".
    nodewise
        Scores of nodes by group.
    edgewise
        Scores of edges by group, or by pair of groups.
    is_ordered
        Whether groups are ordered, as those of degree, confidence, distance and homophily are.
    norm
        Norm of ``ece``. ``chance_ece`` and the order are by the l1 error in any case.
    conditions_on_outcome
        Whether groups depend on the true labels: by true class or homophily, or given groups that are the labels of
        the scored nodes. As in agree and disagree, even a calibrated model has errors there.

    Examples
    --------
    >>> import torch
    >>> from edgewise.metrics import evaluate
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> ev = evaluate(probs, torch.tensor([0, 0, 1]), edges, groups={"side": ["left", "left", "right"]})
    >>> ev.groups["side"].nodewise["left"].count, list(ev.groups["side"].edgewise)
    (2, ['left & right', 'left & left'])
    """

    def __init__(self, sums: GroupSums, norm: Norm = "l1"):
        self.name, self.is_ordered, self.conditions_on_outcome = sums.name, sums.is_ordered, sums.conditions_on_outcome
        self.norm: Norm = norm
        self.nodewise, self.edgewise = (
            _sort_worst_first(
                [
                    GroupScores(
                        _label(key, sums.labels),
                        table.cpu(),
                        sums.boundaries[view].cpu(),
                        norm,
                        sums.intervals.get((view, key)),
                        int(table[-1, 2]) / 2**COVARIANCE_BITS if view == "edgewise" else 0.0,
                    )
                    for key, table in _in_order(sums.tables[view], sums.labels)
                ]
            )
            for view in GROUP_VIEWS
        )

    def worst(self, view: GroupView = "nodewise") -> GroupScores | None:
        """Return the scores of the worst group of nodes ("nodewise") or edges ("edgewise"), or None without any.

        If all groups are small (``is_small``), it is one of them, and is printed with "few".
        """
        return next(iter(self.nonempty(view)), None)

    def nonempty(self, view: GroupView) -> list[GroupScores]:
        """Return the groups of a view that have elements, the worst first."""
        check_option("view", view, GROUP_VIEWS)
        groups: dict[str, GroupScores] = getattr(self, view)
        return [scores for scores in groups.values() if scores.count]

    @property
    def note(self) -> str:
        """What to know about the groups: their order if ``ece`` is not l1, whether they depend on the true labels."""
        order = "" if self.norm == "l1" else "sorted by the l1 error"
        outcome = "conditions on the true labels, so even a calibrated model has errors"
        return "; ".join(filter(None, (order, outcome if self.conditions_on_outcome else "")))

    def to_dict(self) -> dict[str, object]:
        """Return the scores of all groups, the worst first, as plain numbers and lists."""
        views: dict[str, object] = {
            view: [scores.to_dict() for scores in getattr(self, view).values()] for view in GROUP_VIEWS
        }
        return {"is_ordered": self.is_ordered, "conditions_on_outcome": self.conditions_on_outcome, **views}

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame with one row per view and group, the worst first, and bounds of intervals."""
        rows = [
            {"grouping": self.name, "conditions_on_outcome": self.conditions_on_outcome, "view": view}
            | {name: value for name, value in scores.to_dict().items() if name not in ("reliability", "intervals")}
            | {f"{metric}_low": interval.low for metric, interval in scores.intervals.items()}
            | {f"{metric}_high": interval.high for metric, interval in scores.intervals.items()}
            for view in GROUP_VIEWS
            for scores in getattr(self, view).values()
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return data_frame({name: [row.get(name, math.nan) for row in rows] for name in names})

    def plot(self, *, ax: "Axes | None" = None, view: GroupView = "nodewise") -> "tuple[Figure, Axes]":
        """Plot the ECE of each group with intervals and counts, the worst at the top: ``plot_groups(self)``."""
        from edgewise.plots.group_plot import plot_groups

        return plot_groups(self, ax=ax, view=view)

    def _repr_html_(self) -> str:
        from edgewise.pages.notebook import groups_html

        return str(groups_html(self))

    def __repr__(self) -> str:
        return f"Groups({self.name!r}, nodewise={len(self.nodewise)}, edgewise={len(self.edgewise)})"

    def __str__(self) -> str:
        return "\n".join([f"by {self.name}, worst first{self.note and f'; {self.note}'}", *_table_lines(self)])


def _label(key: Any, labels: Mapping[GroupKey, str]) -> str:
    """Return the name of a group, or of a pair of groups. Different pairs have different names."""
    if not isinstance(key, tuple):
        return labels[key]
    names = [labels[part] for part in key]
    return " & ".join(repr(name) if " & " in f" {name} " or name[:1] in "'\"" else name for name in names)


def _in_order(tables: Mapping[Any, Tensor], labels: Mapping[GroupKey, str]) -> list[tuple[Any, Tensor]]:
    """Return the tables in the order of their groups, so that groups with equal errors have one order."""
    position = {key: n for n, key in enumerate(labels)}
    return sorted(tables.items(), key=lambda item: [position[k] for k in _parts(item[0])])


def _parts(key: Any) -> tuple[GroupKey, ...]:
    """Return the pair of groups of a key of edges, or the only group."""
    return key if isinstance(key, tuple) else (key,)


def _sort_worst_first(groups: list[GroupScores]) -> dict[str, GroupScores]:
    def rank(scores: GroupScores) -> tuple[bool, bool, float]:
        return scores.count == 0, scores.is_small, -scores.excess_ece if scores.count else 0.0

    return {scores.group: scores for scores in sorted(groups, key=rank)}


def summary_line(groups: Groups) -> str:
    """Return the worst group of nodes and of edges in one line."""
    parts = []
    for elements, view in (("nodes", "nodewise"), ("edges", "edgewise")):
        if scores := groups.worst(view):  # type: ignore[arg-type]
            few = ", few" if scores.is_small else ""
            parts.append(f"worst {elements} {scores.group} ({scores.count:,}{few}): ece {scores.ece:.4f}")
    note = f" ({groups.note})" if groups.note else ""
    return f"by {groups.name}{note}: {'; '.join(parts) or 'no groups'}"


def _table_lines(groups: Groups) -> list[str]:
    lines, columns = [], ["count", "accuracy", "confidence", "gap", "ece"]
    columns += ["chance ece"] if groups.norm == "l1" else []  # the mean error by chance is that of l1
    width = max(8, *(len(name) for view in GROUP_VIEWS for name in getattr(groups, view)), 0)
    for view in GROUP_VIEWS:
        lines.append(f"{view:{width}}" + "".join(f"{name:>12}" for name in columns))
        for scores in groups.nonempty(view):
            numbers = [scores.accuracy, scores.confidence, scores.gap, scores.ece]
            numbers += [scores.chance_ece] if groups.norm == "l1" else []
            small = "  few" if scores.is_small else ""
            texts = "".join(f"{number:12.4f}" for number in numbers)
            lines.append(f"{scores.group:{width}}{scores.count:12,}{texts}{small}")
    return lines
