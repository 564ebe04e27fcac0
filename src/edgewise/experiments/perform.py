"""One run: train, predict, score."""

from collections.abc import Iterable
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from edgewise.data import Split
from edgewise.experiments.fitted_files import FittedFiles
from edgewise.experiments.recipes import RECIPES, calibrators_of, hyperparameters
from edgewise.experiments.runs import Prediction, Run, RunKey, as_prediction
from edgewise.experiments.sources import Task
from edgewise.experiments.versions import versions
from edgewise.metrics import evaluate
from edgewise.models.fitted import Fitted, FittedClassifier
from edgewise.posterior import Posterior


def perform(key: RunKey, task: Task, files: FittedFiles | None = None) -> Run:
    """Train as the key says, and score every prediction on the test nodes.

    With ``files``, models that were trained before are taken from there; the seconds of a run still are those that
    training took.
    """
    calibrators = calibrators_of(key.hyperparameters)
    if key.hyperparameters != hyperparameters(key.model, calibrators):
        raise ValueError(f"Expected the hyper-parameters of this version, but got others for {key}.")
    split = task.splits[key.split, key.fold]
    started, saved, epochs = perf_counter(), 0.0, 0
    predictions: dict[str, Prediction] = {}
    for recipe in RECIPES[key.model]:
        began = perf_counter()
        if files is None:
            fitted: Fitted = recipe.model.fit(task.data, split, seed=key.seed)
        else:
            fitted = files.fitted(recipe.model, key, task)
            saved += max(0.0, fitted.history.seconds - (perf_counter() - began))
        epochs += fitted.history.epochs
        named = {name: predict(fitted) for name, predict in recipe.predictions.items()}
        if isinstance(fitted, FittedClassifier):
            named |= _calibrated(fitted, calibrators, task.data, split)
        for name, posterior in named.items():
            scored = evaluate(posterior, task.data.y, task.data.edge_index, mask=split.test, same_label=True)
            predictions[name] = as_prediction(scored)
    seconds = perf_counter() - started + saved
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(key, predictions, seconds, epochs, versions(), finished)


def _calibrated(fitted: FittedClassifier, names: Iterable[str], data: Any, split: Split) -> dict[str, Posterior]:
    """Calibrate what a classifier says, by each calibrator."""
    from edgewise.experiments.calibrators import BY_NAME

    return {name: BY_NAME[name].fit(fitted.logits, data, split) for name in names}
