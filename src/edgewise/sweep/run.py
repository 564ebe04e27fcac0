"""Runs: one is trained, predicted and scored; those of a plan go into a store, if it does not have them yet."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

from edgewise.calibration import known_calibrators
from edgewise.metrics import evaluate
from edgewise.models.fitted import Fitted, FittedClassifier
from edgewise.models.model import Model
from edgewise.sweep.plan import Plan, Recipes, calibrators_of, hyperparameters, trainings_of
from edgewise.sweep.progress import Progress
from edgewise.sweep.runs import Prediction, Run, RunKey, as_prediction
from edgewise.sweep.sources import EnvironmentCheck, GraphWithSplits, Sources, load_once
from edgewise.sweep.store import Store
from edgewise.version import versions
from edgewise.workers import Failure, JobOutcome, Workers


@dataclass(frozen=True)
class Runner:
    """What workers call with the key of a run. It can be pickled.

    With a folder ``fitted``, models that were trained before are taken from there, and others kept; the seconds of a
    run still are those that training took.
    """

    sources: Sources
    n_splits: int
    recipes: Recipes = field(default_factory=dict)
    calibrators: tuple[str, ...] = ()  # in the order of their predictions
    fitted: str | None = None

    def __call__(self, key: RunKey) -> Run:
        """Train as the key says, and score every prediction on the test nodes."""
        named = calibrators_of(key.hyperparameters)
        calibrators = tuple(name for name in self.calibrators if name in named)
        if key.hyperparameters != hyperparameters(key.model, self.recipes, calibrators):
            raise ValueError(f"Expected the hyper-parameters of this version, but got others for {key}.")
        graph = load_once(self.sources, key.dataset, self.n_splits)
        data, split = graph.data, graph.splits[key.split, key.fold]
        started, saved, epochs = perf_counter(), 0.0, 0
        predictions: dict[str, Prediction] = {}
        for training in trainings_of(key.model, self.recipes):
            began = perf_counter()
            fitted = self._fitted(training.model, key, graph)
            if self.fitted is not None:
                saved += max(0.0, fitted.history.seconds - (perf_counter() - began))
            epochs += fitted.history.epochs
            beliefs: dict[str, Any] = {name: predict() for name, predict in training.predictions(fitted).items()}
            if isinstance(fitted, FittedClassifier):
                known = known_calibrators()
                beliefs |= {name: known[name]().fit(fitted, data, split) for name in calibrators}
            for name, belief in beliefs.items():
                scored = evaluate(belief, data.y, data.edge_index, mask=split.test, same_label=True)
                predictions[name] = as_prediction(scored)
        seconds = perf_counter() - started + saved
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        return Run(key, predictions, seconds, epochs, versions(), finished)

    def _fitted(self, model: Model[Any], key: RunKey, graph: GraphWithSplits) -> Fitted:
        """Load a trained model, or train it."""
        path = None if self.fitted is None else fitted_path(Path(self.fitted), model, key, graph)
        if path is not None and path.exists():
            return Fitted.load(path)
        fitted: Fitted = model.fit(graph.data, graph.splits[key.split, key.fold], seed=key.seed)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fitted.save(path)
        return fitted


def fitted_path(folder: Path, model: Model[Any], key: RunKey, graph: GraphWithSplits) -> Path:
    """Name the file of a trained model, with a hash of all that its numbers depend on.

    These are hyper-parameters, graph, split, seed and versions.
    """
    numbers_depend_on = [model.name, asdict(model), graph.fingerprint(key.split), key.fold, key.seed, versions()]
    digest = sha256(json.dumps(numbers_depend_on, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{key.dataset}-{model.name}-{key.split}-{key.fold}-{key.init}-{digest}.safetensors"


def read_progress(plan: Plan, folder: Path, workers: int | None) -> Progress:
    """Tell what `run_sweep` would do; nothing is written."""
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
    """Do the runs of a plan that a folder does not have yet; each is written when it ends.

    ``begin`` gets what there is to do, and returns what is called with each outcome. In the folder ``fitted`` trained
    models are kept and looked for.
    """
    with Store.writing(folder) as store:
        store.check_resumable(plan.runs(), versions())
        tasks = [row for dataset in plan.datasets for row in sources.load(dataset, plan.splits).rows()]
        store.check_tasks(tasks)
        progress = _progress(plan, store.runs(), workers.count)
        on_outcome = begin(progress)
        there = sources.with_full_paths()
        runner = Runner(there, plan.splits, plan.recipes, plan.calibrators, None if fitted is None else str(fitted))
        check = EnvironmentCheck.of_this_machine(there, plan.splits, tasks)
        store.begin_command(f"{plan}; {sources}", str(workers))
        with closing(workers.execute(runner, progress.missing, check)) as outcomes:  # a full disk ends the workers too
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
    wanted = plan.runs()
    among = set(wanted)
    return Progress(wanted, [run for run in runs if run.key in among], workers)
