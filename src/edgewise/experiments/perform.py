"""One run: train, predict, score."""

import platform
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from time import perf_counter

from edgewise.experiments.recipes import RECIPES, hyperparameters
from edgewise.experiments.runs import Run, RunKey, as_prediction
from edgewise.experiments.sources import Task
from edgewise.metrics import evaluate
from edgewise.version import __version__

PACKAGES = ("torch", "torch_geometric", "numpy", "numba")


@cache
def versions() -> dict[str, str]:
    """Give the versions of what the numbers of a run depend on."""
    packages = {name: version(name) for name in PACKAGES}
    return {"edgewise": __version__, "python": platform.python_version(), **packages}


def perform(key: RunKey, task: Task) -> Run:
    """Train as the key says, and score every prediction on the test nodes."""
    if key.hyperparameters != hyperparameters(key.model):
        raise ValueError(f"Expected the hyper-parameters of this version, but got others for {key}.")
    split = task.splits[key.split, key.fold]
    started, epochs, predictions = perf_counter(), 0, {}
    for recipe in RECIPES[key.model]:
        fitted = recipe.model.fit(task.data, split, seed=key.seed)
        epochs += fitted.history.epochs
        for name, predict in recipe.predictions.items():
            scored = evaluate(predict(fitted), task.data.y, task.data.edge_index, mask=split.test, same_label=True)
            predictions[name] = as_prediction(scored)
    seconds = perf_counter() - started
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(key, predictions, seconds, epochs, versions(), finished)
