"""Running a sweep: train, predict and score every missing run, and write it to the store."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

from edgewise.calibration import known_calibrators
from edgewise.metrics import evaluate
from edgewise.models.fitted import Fitted, FittedClassifier
from edgewise.sweep.plan import Plan, Recipes, Training, calibrators_of, hyperparameters, trainings_of
from edgewise.sweep.progress import Progress
from edgewise.sweep.runs import Prediction, Run, RunKey, as_prediction
from edgewise.sweep.sources import EnvironmentCheck, GraphWithSplits, Sources, load_once, prepare_once
from edgewise.sweep.store import Store
from edgewise.version import versions
from edgewise.workers import Failure, JobOutcome, Workers


@dataclass(frozen=True)
class Runner:
    """The picklable function that workers call with the key of a run.

    With a folder ``fitted``, models that were trained before are loaded from there and others are saved there. The
    seconds of a run include the training time even if the model was loaded.
    """

    sources: Sources
    n_splits: int
    recipes: Recipes = field(default_factory=dict)
    calibrators: tuple[str, ...] = ()  # in the order of their predictions
    fitted: str | None = None

    def __call__(self, key: RunKey) -> Run:
        """Train the model of the key, and score its predictions on the test nodes."""
        requested = calibrators_of(key.hyperparameters)
        calibrators = tuple(name for name in self.calibrators if name in requested)
        if key.hyperparameters != hyperparameters(key.dataset, key.model, self.recipes, calibrators):
            raise ValueError(
                f"Expected the hyperparameters of this version, but got others for {key}. Use the edgewise that "
                "created the key."
            )
        graph = load_once(self.sources, key.dataset, self.n_splits)
        data, split = graph.data, graph.splits[key.split, key.fold]
        start_time, skipped_seconds, epochs = perf_counter(), 0.0, 0
        predictions: dict[str, Prediction] = {}
        for training in trainings_of(key.dataset, key.model, self.recipes):
            training_start = perf_counter()
            fitted = self._load_or_train(training, key, graph)
            if self.fitted is not None:
                skipped_seconds += max(0.0, fitted.history.seconds - (perf_counter() - training_start))
            epochs += fitted.history.epochs
            beliefs: dict[str, Any] = {name: predict() for name, predict in training.predictions(fitted).items()}
            if isinstance(fitted, FittedClassifier):
                kinds = known_calibrators()
                beliefs |= {name: kinds[name]().fit(fitted, data, split) for name in calibrators}
            for name, belief in beliefs.items():
                scored = evaluate(belief, data.y, data.edge_index, mask=split.test, same_label=True)
                predictions[name] = as_prediction(scored)
        seconds = perf_counter() - start_time + skipped_seconds
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        return Run(key, predictions, seconds, epochs, versions(), finished)

    def _load_or_train(self, training: Training, key: RunKey, graph: GraphWithSplits) -> Fitted:
        """Load the fitted model if it was saved, else train it."""
        path = None if self.fitted is None else fitted_path(Path(self.fitted), training, key, graph)
        if path is not None and path.exists():
            return Fitted.load(path)
        task = prepare_once(self.sources, key.dataset, self.n_splits, key.split, key.fold)
        fitted: Fitted = training.model.fit_task(task, seed=key.seed)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fitted.save(path)
        return fitted


def fitted_path(folder: Path, training: Training, key: RunKey, graph: GraphWithSplits) -> Path:
    """Return the path of a fitted model.

    The name ends with a hash of everything the model depends on: hyperparameters, graph, split, seed and versions.
    """
    data = graph.fingerprint(key.split), key.fold, key.seed
    dependencies = [training.model.name, training.hyperparameters(), *data, versions()]
    digest = sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{key.dataset}-{key.model}-{key.split}-{key.fold}-{key.init}-{digest}.safetensors"


def read_progress(plan: Plan, folder: Path, workers: int | None) -> Progress:
    """Return the progress that `run_sweep` would start from, without writing."""
    runs: list[Run] = []
    if Store.exists(folder):
        with Store.reading(folder) as store:
            runs = store.runs()
    return _progress(plan, runs, workers)


def run_sweep(
    plan: Plan,
    folder: Path,
    sources: Sources,
    workers: Workers,
    begin: Callable[[Progress], Callable[[JobOutcome[RunKey, Run]], object]],
    fitted: Path | None = None,
) -> Progress:
    """Run the missing runs of a plan, and write each to the store in a folder when it ends.

    ``begin`` is called once with the progress, and returns the function to call with each outcome. Fitted models are
    loaded from and saved to the folder ``fitted``.
    """
    with Store.writing(folder) as store:
        store.check_resumable(plan.runs(), versions())
        tasks = [row for dataset in plan.datasets for row in sources.load(dataset, plan.splits).rows()]
        store.check_tasks(tasks)
        progress = _progress(plan, store.runs(), workers.count)
        on_outcome = begin(progress)
        absolute = sources.with_absolute_paths()
        runner = Runner(absolute, plan.splits, plan.recipes, plan.calibrators, None if fitted is None else str(fitted))
        check = EnvironmentCheck.of_this_machine(absolute, plan.splits, tasks)
        store.begin_command(f"{plan}; {sources}", str(workers))
        executed = workers.execute(runner, progress.missing, check, lambda key: key.group)
        with closing(executed) as outcomes:  # stops workers if writing fails
            for outcome in outcomes:
                if isinstance(outcome, Failure):
                    store.add_failure(outcome.job, outcome.error)
                    progress.failures[outcome.job] = outcome.error
                else:
                    store.add(outcome.result)
                    progress.runs.append(outcome.result)
                on_outcome(outcome)
        return progress


def _progress(plan: Plan, runs: list[Run], workers: int | None) -> Progress:
    requested = plan.runs()
    keys = set(requested)
    return Progress(requested, [run for run in runs if run.key in keys], workers)
