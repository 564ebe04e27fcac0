"""Runs as data: keys and scores, and their JSON form."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.scores import METRICS, Scores
from edgewise.metrics.sums import VIEWS

SAME_LABEL = "same_label"
JSON_INFINITY = "9e999"  # strict JSON has no infinity, but Python and SQLite read this number as infinity


@dataclass(frozen=True, order=True)
class RunKey:
    """Key of a run. On one kind of machine, a key determines all scores, with any number of workers.

    ``hyperparameters`` has all hyperparameters of the model as JSON, so another learning rate is another run.
    """

    dataset: str
    model: str
    hyperparameters: str
    split: int
    fold: int
    init: int

    @property
    def seed(self) -> int:
        """The seed of the fit, different for all runs of a model on a dataset."""
        return 1_000_000 * self.split + 1_000 * self.fold + self.init

    @property
    def cell(self) -> tuple[str, str]:
        """Dataset and model, which is a cell of the paper's tables."""
        return self.dataset, self.model

    @property
    def group(self) -> tuple[str, int, int, int]:
        """Dataset, split, fold and initialization. The models of a group share their pretraining."""
        return self.dataset, self.split, self.fold, self.init

    def __str__(self) -> str:
        return f"{self.dataset} {self.model} split {self.split} fold {self.fold} init {self.init}"


@dataclass(frozen=True)
class Bins:
    """Bins of a reliability diagram: count, Σ confidence and Σ correct per bin of equal width."""

    count: list[int]
    confidence_sum: list[float]
    correct_sum: list[int]


@dataclass(frozen=True)
class ViewResult:
    """Scores of one view. All but the count are NaN if the view is empty.

    For the event "same label", the accuracy is the frequency of the event.
    """

    count: int
    accuracy: float
    nll: float
    brier: float
    ece: float
    bins: Bins

    def __getitem__(self, metric: str) -> float:
        if metric not in METRICS:
            raise KeyError(f"Expected one of {', '.join(METRICS)}, but got {metric!r}.")
        return float(getattr(self, metric))


Prediction = Mapping[str, ViewResult]  # by view, and "same_label"


@dataclass(frozen=True)
class Run:
    """A finished run: the scores of all predictions on the test nodes."""

    key: RunKey
    predictions: Mapping[str, Prediction]
    seconds: float
    epochs: int
    versions: Mapping[str, str]
    finished: str  # UTC

    @property
    def seed(self) -> int:
        """The seed of the fit."""
        return self.key.seed


def as_prediction(evaluation: Evaluation) -> Prediction:
    """Convert an evaluation to the scores that are stored."""
    views = {view: _result(evaluation[view], evaluation[view].accuracy) for view in VIEWS}
    event = evaluation.same_label
    return views if event is None else {**views, SAME_LABEL: _result(event, event.frequency)}


def _result(scores: Scores, accuracy: float) -> ViewResult:
    sums = scores.reliability
    bins = Bins(sums.count.tolist(), sums.confidence_sum.tolist(), sums.correct_sum.tolist())
    return ViewResult(scores.count, accuracy, scores.nll, scores.brier, scores.ece, bins)


def predictions_to_json(predictions: Mapping[str, Prediction]) -> str:
    """Convert predictions to JSON, with null for NaN and 9e999 for infinity."""
    document = {
        name: {view: _replace_non_finite(asdict(result)) for view, result in prediction.items()}
        for name, prediction in predictions.items()
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace(f'"{JSON_INFINITY}"', JSON_INFINITY)


def predictions_from_json(text: str) -> dict[str, Prediction]:
    """Convert JSON of `predictions_to_json` back to predictions."""
    document = json.loads(text)
    check_scores((view, plain) for prediction in document.values() for view, plain in prediction.items())
    return {
        name: {view: _view_result(plain) for view, plain in prediction.items()} for name, prediction in document.items()
    }


class OtherVersionError(ValueError):
    """Results of another version, which lack views or scores of this one."""

    def __init__(self, missing: Collection[str]):
        super().__init__(f"no {' and no '.join(missing)}")


def check_scores(scored: Iterable[tuple[str, Collection[str]]]) -> None:
    """Raise OtherVersionError if a view or score of this version is in none of the results.

    ``scored`` has pairs of a view and the names of its scores. If only some of them lack a score, another check
    reports it.
    """
    scored = list(scored)
    views, names = {view for view, _ in scored}, {name for _, of_view in scored for name in of_view}
    missing = [view for view in (*VIEWS, SAME_LABEL) if view not in views] if views & {*VIEWS} else []
    missing += [metric for metric in METRICS if metric not in names] if names else []
    if missing:
        raise OtherVersionError(missing)


def _replace_non_finite(plain: dict[str, object]) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, value in plain.items():
        if isinstance(value, float) and not math.isfinite(value):
            value = JSON_INFINITY if math.isinf(value) else None
        out[name] = value
    return out


def _view_result(plain: dict[str, object]) -> ViewResult:
    bins = plain["bins"]
    if not isinstance(bins, dict) or not isinstance(plain["count"], int):
        raise ValueError("Expected the scores of a view with its bins, but got others.")
    scores = {metric: _parse_float(plain[metric]) for metric in METRICS}
    return ViewResult(count=plain["count"], bins=Bins(**bins), **scores)


def _parse_float(value: object) -> float:
    return math.nan if value is None else float(str(value))
