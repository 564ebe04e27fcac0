"""The numbers of reliability diagrams, one panel per view."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.score_parts import ReliabilityCurve
from edgewise.metrics.scores import Scores
from edgewise.metrics.sums import VIEWS

Floats = NDArray[np.float64]
Runs = Evaluation | Iterable[Evaluation]

SAME_LABEL = "same_label"
# A bin with fewer elements is drawn hollow and without lines: one more error changes its accuracy by more than 0.1, and
# the binomial standard error of an accuracy, at most 0.5 / sqrt(count), can exceed 0.16.
MIN_BIN_COUNT = 10


@dataclass(frozen=True)
class Panel:
    """The numbers of one view of one model. Arrays have shape (runs, bins), with NaN where a bin of a run is empty.

    ``curve`` is the isotonic curve of a single run, if its scores were decomposed.
    """

    view: str
    norm: str
    boundaries: Floats
    count: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats
    ece: Floats
    curve: ReliabilityCurve | None = None

    @staticmethod
    def from_sums(
        view: str,
        norm: str,
        boundaries: Floats,
        count: NDArray[np.int64],
        confidence_sum: Floats,
        correct_sum: NDArray[np.int64],
        ece: Floats,
    ) -> "Panel":
        """Create a panel from counts and sums (runs, bins)."""
        filled = np.where(count > 0, count, np.nan)
        return Panel(view, norm, boundaries, count, confidence_sum / filled, correct_sum / filled, ece)

    @property
    def is_empty(self) -> bool:
        """Whether no run has any element."""
        return not self.count.any()

    @property
    def num_filled(self) -> NDArray[np.int64]:
        """The number of runs in which each bin is not empty."""
        return np.asarray((self.count > 0).sum(axis=0), dtype=np.int64)

    @property
    def line(self) -> tuple[Floats, Floats]:
        """The mean line, with NaN in bins that have few elements, where it is not drawn."""
        confidence, accuracy = self.mean_line
        return np.where(self.is_small, np.nan, confidence), np.where(self.is_small, np.nan, accuracy)

    @property
    def mean_line(self) -> tuple[Floats, Floats]:
        """Mean confidence and mean accuracy of each bin over the runs in which it is not empty; NaN without any.

        The mean confidence is used instead of the bin center, so that the distance to the diagonal is the mean of the
        gaps that the calibration error sums.
        """
        return mean_and_std(self.confidence)[0], mean_and_std(self.accuracy)[0]

    @property
    def band(self) -> tuple[Floats, Floats]:
        """Mean ± population std of the accuracy over the runs in which a bin is not empty; NaN without any."""
        mean, std = mean_and_std(self.accuracy)
        return mean - std, mean + std

    @property
    def mean_count(self) -> Floats:
        """The mean number of elements per bin over the runs."""
        return np.asarray(self.count.mean(axis=0))

    @property
    def is_small(self) -> NDArray[np.bool_]:
        """Which bins are not empty, but have fewer than `MIN_BIN_COUNT` elements, on average over the runs."""
        return np.asarray((self.num_filled > 0) & (self.mean_count < MIN_BIN_COUNT))

    @property
    def fraction(self) -> Floats:
        """The fraction of elements in each bin: the mean over the runs that have elements."""
        total = self.count.sum(axis=1)
        nonempty = total > 0
        return np.asarray((self.count[nonempty] / total[nonempty, None]).mean(axis=0))


def elements_name(view: str, count: int) -> str:
    """Return "node", "edge" or "set", in the plural unless there is one."""
    singular = {"nodewise": "node", "node_sets": "set"}.get(view, "edge")
    return singular if count == 1 else f"{singular}s"


def prepare_reliability(evaluations: Runs, views: str | Sequence[str] = VIEWS) -> list[Panel]:
    """Compute the numbers of one panel per view.

    Examples
    --------
    >>> import torch
    >>> from edgewise import evaluate
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> ev = evaluate(probs, torch.tensor([0, 0, 0]), torch.tensor([[0, 1], [1, 2]]), n_bins=2)
    >>> (panel,) = prepare_reliability(ev, "nodewise")
    >>> panel.count, panel.accuracy.round(2)
    (array([[0, 3]]), array([[ nan, 0.67]]))
    """
    runs = _check_runs(evaluations)
    norm = str(runs[0].options["norm"])
    return [_panel(view, norm, [_scores(run, view) for run in runs]) for view in _check_views(views)]


def prepare_overlay(named: Mapping[str, Runs], views: str | Sequence[str] = VIEWS) -> list[dict[str, Panel]]:
    """Compute the numbers of one panel per view and name."""
    if not named:
        raise ValueError("Expected evaluations by name, but got none.")
    runs = {str(name): _check_runs(of_name) for name, of_name in named.items()}
    (first, *_), *others = runs.values()
    for other, *_ in others:
        _check_options(first, other)
    panels = {name: prepare_reliability(of_name, views) for name, of_name in runs.items()}
    return [dict(zip(panels, of_view, strict=True)) for of_view in zip(*panels.values(), strict=True)]


def _panel(view: str, norm: str, scores: list[Scores]) -> Panel:
    reliabilities = [of_run.reliability for of_run in scores]
    boundaries = reliabilities[0].boundaries.numpy()
    # Ties make equal-mass bins of zero width. They are empty, and must not break the line.
    has_width = np.diff(boundaries) > 0
    count, confidence_sum, correct_sum = (
        np.stack([getattr(reliability, name).numpy() for reliability in reliabilities])[:, has_width]
        for name in ("count", "confidence_sum", "correct_sum")
    )
    ece = np.array([of_run.ece for of_run in scores])
    panel = Panel.from_sums(view, norm, np.unique(boundaries), count, confidence_sum, correct_sum, ece)
    return replace(panel, curve=scores[0].curve) if len(scores) == 1 else panel


def mean_and_std(values: Floats) -> tuple[Floats, Floats]:
    """Compute mean and population std over the runs that have a value."""
    # Masked arrays, because np.nanmean warns about bins that are empty in all runs.
    masked = np.ma.masked_invalid(values)
    mean, std = np.ma.asarray(masked.mean(axis=0)), np.ma.asarray(masked.std(axis=0))
    return np.asarray(mean.filled(np.nan)), np.asarray(std.filled(np.nan))


def _scores(run: Evaluation, view: str) -> Scores:
    if view != SAME_LABEL:
        return run[view]
    if run.same_label is None:
        raise ValueError(
            "Expected evaluations with same_label scores, but got one with same_label=False. Call evaluate without it."
        )
    return run.same_label


def _check_runs(evaluations: Runs) -> list[Evaluation]:
    if not isinstance(evaluations, Evaluation | Iterable):
        raise ValueError(
            f"Expected an Evaluation, a list of them or a mapping of names, but got a {type(evaluations).__name__}."
        )
    runs = [evaluations] if isinstance(evaluations, Evaluation) else list(evaluations)
    if not runs:
        raise ValueError("Expected at least one evaluation, but got none.")
    for index, run in enumerate(runs):
        if not isinstance(run, Evaluation):
            raise ValueError(f"Expected evaluations, but got a {type(run).__name__} at index {index}.")
    for run in runs:
        _check_options(runs[0], run)
    if len(runs) > 1 and runs[0].options["binning"] == "mass":
        raise ValueError(
            "Expected equal-width bins for several runs, but got equal-mass bins, which differ from run to run. "
            "Use binning='width', or plot one run at a time."
        )
    return runs


def _check_options(run: Evaluation, other: Evaluation) -> None:
    if run.options != other.options:
        raise ValueError(f"Expected runs with the same options, but got {run.options} and {other.options}.")


def _check_views(views: str | Sequence[str]) -> list[str]:
    names = [views] if isinstance(views, str) else list(views)
    if not names:
        raise ValueError("Expected at least one view, but got none.")
    for view in names:
        if view not in (*VIEWS, SAME_LABEL):
            raise ValueError(f"Expected views out of {', '.join((*VIEWS, SAME_LABEL))}, but got {view!r}.")
    return names
