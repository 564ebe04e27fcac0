"""A run as data: its key, and what came out."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

from edgewise.metrics.evaluation import Evaluation
from edgewise.metrics.scores import METRICS, Scores
from edgewise.metrics.sums import VIEWS

SAME_LABEL = "same_label"
INFINITE = "9e999"  # strict JSON has no infinity, but this number is; SQLite reads it so too


@dataclass(frozen=True, order=True)
class RunKey:
    """Which run: on one kind of machine the same key gives the same numbers, with any number of workers.

    ``hyperparameters`` are all of the model's, as JSON: another learning rate is another run.
    """

    dataset: str
    model: str
    hyperparameters: str
    split: int
    fold: int
    init: int

    @property
    def seed(self) -> int:
        """The seed of the fit: no two runs of a model share one."""
        return 1_000_000 * self.split + 1_000 * self.fold + self.init

    @property
    def cell(self) -> tuple[str, str]:
        """The cell of the paper's tables that the run counts for: dataset and model."""
        return self.dataset, self.model

    def __str__(self) -> str:
        return f"{self.dataset} {self.model} split {self.split} fold {self.fold} init {self.init}"


@dataclass(frozen=True)
class Bins:
    """What a reliability diagram shows: count, Σ confidence and Σ correct of each bin of equal width."""

    count: list[int]
    confidence_sum: list[float]
    correct_sum: list[int]


@dataclass(frozen=True)
class ViewResult:
    """The scores of one view; all but the count are NaN where there was nothing to score.

    For the event "both ends have the same label" the accuracy is how often it happened.
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


Prediction = Mapping[str, ViewResult]  # by view; and by "same_label"


@dataclass(frozen=True)
class Run:
    """A finished run: every prediction that its training gave, scored on the test nodes."""

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
    """Take from an evaluation what is stored of it."""
    views = {view: _result(evaluation[view], evaluation[view].accuracy) for view in VIEWS}
    event = evaluation.same_label
    return views if event is None else {**views, SAME_LABEL: _result(event, event.frequency)}


def _result(scores: Scores, accuracy: float) -> ViewResult:
    sums = scores.reliability
    bins = Bins(sums.count.tolist(), sums.confidence_sum.tolist(), sums.correct_sum.tolist())
    return ViewResult(scores.count, accuracy, scores.nll, scores.brier, scores.ece, bins)


def predictions_to_json(predictions: Mapping[str, Prediction]) -> str:
    """Write predictions as JSON: null for the scores of an empty set, 9e999, which is infinite, for infinity."""
    document = {
        name: {view: _finite(asdict(result)) for view, result in prediction.items()}
        for name, prediction in predictions.items()
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace(f'"{INFINITE}"', INFINITE)


def predictions_from_json(text: str) -> dict[str, Prediction]:
    """Read what `predictions_to_json` wrote."""
    document = json.loads(text)
    check_scores((view, plain) for prediction in document.values() for view, plain in prediction.items())
    return {
        name: {view: _from_plain(plain) for view, plain in prediction.items()} for name, prediction in document.items()
    }


class OtherVersionError(ValueError):
    """Results lack what this version scores: another wrote them."""

    def __init__(self, lacking: Collection[str]):
        super().__init__(f"no {' and no '.join(lacking)}")


def check_scores(scored: Iterable[tuple[str, Collection[str]]]) -> None:
    """Refuse results, given as views with the names of their scores, if a view or a score of this version is in none.

    What only some of them lack is no matter of versions.
    """
    listed = list(scored)
    views, names = {view for view, _ in listed}, {name for _, of_view in listed for name in of_view}
    lacking = [view for view in (*VIEWS, SAME_LABEL) if view not in views] if views & {*VIEWS} else []
    lacking += [metric for metric in METRICS if metric not in names] if names else []
    if lacking:
        raise OtherVersionError(lacking)


def _finite(plain: dict[str, object]) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, value in plain.items():
        if isinstance(value, float) and not math.isfinite(value):
            value = INFINITE if math.isinf(value) else None
        out[name] = value
    return out


def _from_plain(plain: dict[str, object]) -> ViewResult:
    bins = plain["bins"]
    if not isinstance(bins, dict) or not isinstance(plain["count"], int):
        raise ValueError("Expected the scores of a view with its bins.")
    scores = {metric: _float(plain[metric]) for metric in METRICS}
    return ViewResult(count=plain["count"], bins=Bins(**bins), **scores)


def _float(value: object) -> float:
    return math.nan if value is None else float(str(value))
