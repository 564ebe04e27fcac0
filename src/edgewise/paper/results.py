"""Results of sweeps: runs by dataset and model, and merging of several sources."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from edgewise.paper.published import PUBLISHED_DATASETS
from edgewise.paper.readings import (
    AS_DEFINED,
    CALIBRATORS,
    KNOWN_MODELS,
    READINGS,
    UNCALIBRATED_PREDICTION,
    Source,
    sort_known_first,
)
from edgewise.sweep.plan import CALIBRATORS_ENTRY
from edgewise.sweep.run_table import read_run_table
from edgewise.sweep.runs import Run, RunKey, ViewResult
from edgewise.sweep.sources import sort_datasets
from edgewise.sweep.store import FILE_NAME, CommandRow, Store, TaskRow


@dataclass(frozen=True)
class Results:
    """The contents of a results store. Datasets, models and calibrators of the paper come before others."""

    runs: Sequence[Run]
    tasks: Sequence[TaskRow] = ()
    commands: Sequence[CommandRow] = ()
    failures: Mapping[RunKey, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> "Results":
        """Read a folder with results.sqlite, or a .parquet table of runs exported from one."""
        if path.suffix == ".parquet":
            return Results(*read_run_table(path))
        folder = path.parent if path.name == FILE_NAME else path
        if not folder.is_dir():
            kind = "is a file" if folder.exists() else "does not exist"
            raise ValueError(f"Expected a folder written by reproduce, or a .parquet table, but {path} {kind}.")
        with Store.reading(folder) as store, store.snapshot():
            return Results(store.runs(), store.tasks(), store.commands(), store.failures())

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets that have runs."""
        return sort_datasets({run.key.dataset for run in self.runs})

    @property
    def paper_datasets(self) -> list[str]:
        """The datasets of the paper that have runs."""
        return [dataset for dataset in self.datasets if dataset in PUBLISHED_DATASETS]

    @property
    def other_datasets(self) -> list[str]:
        """The datasets that have runs and are not in the paper."""
        return [dataset for dataset in self.datasets if dataset not in PUBLISHED_DATASETS]

    @cached_property
    def described_datasets(self) -> list[str]:
        """The datasets with stored statistics, in the same order."""
        return sort_datasets({task.dataset for task in self.tasks})

    @cached_property
    def models(self) -> list[str]:
        """The models that have runs."""
        return sort_known_first(KNOWN_MODELS, (run.key.model for run in self.runs))

    @cached_property
    def calibrators(self) -> list[str]:
        """The calibrators of which some run has a prediction."""
        added = (name for run in self.runs for name in _settings(run.key.hyperparameters).calibrators)
        possible = {*CALIBRATORS, *added}
        return sort_known_first(
            CALIBRATORS, (name for run in self.runs for name in run.predictions if name in possible)
        )

    def rows(self, reading: str) -> Mapping[str, Source]:
        """Return the rows of the tables in a reading, with their sources.

        As defined, other models have a row of their own name, which shows the first of their predictions.
        """
        rows = READINGS[reading]
        if reading != AS_DEFINED:
            return rows
        others = [model for model in self.models if model not in KNOWN_MODELS]
        return {**rows, **{model: Source(model, self._own_prediction(model)) for model in others}}

    def _own_prediction(self, model: str) -> str:
        names = dict.fromkeys(name for run in self.runs if run.key.model == model for name in run.predictions)
        return next((name for name in names if name not in self.calibrators), UNCALIBRATED_PREDICTION)

    @cached_property
    def _by_cell(self) -> dict[tuple[str, str], list[Run]]:
        cells = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.key):
            cells[run.key.cell].append(run)
        return dict(cells)

    def of(self, dataset: str, model: str) -> list[Run]:
        """Return the runs of a model on a dataset, sorted by key."""
        return self._by_cell.get((dataset, model), [])

    def runs_of(self, dataset: str, source: Source) -> list[Run]:
        """Return the runs with the prediction of a source. Runs from before a calibrator was added lack it."""
        return runs_with(source.prediction, self.of(dataset, source.model))

    def views(self, reading: str, dataset: str, row: str, view: str) -> list[ViewResult]:
        """Return the results in one view of the runs of a row of the tables."""
        source = self.rows(reading).get(row)
        if source is None:
            return []
        return [run.predictions[source.prediction][view] for run in self.runs_of(dataset, source)]

    def predictions(self, dataset: str, model: str) -> list[str]:
        """Return the names of the predictions that any run of a model on a dataset has."""
        return list(dict.fromkeys(name for run in self.of(dataset, model) for name in run.predictions))

    @property
    def versions(self) -> dict[str, list[str]]:
        """The package versions of the runs, several if they differ."""
        versions: dict[str, set[str]] = defaultdict(set)
        for run in self.runs:
            for name, version in run.versions.items():
                versions[name].add(version)
        return {name: sorted(several) for name, several in versions.items()}


def runs_with(prediction: str, runs: Iterable[Run]) -> list[Run]:
    """Return the runs that have a prediction of this name."""
    return [run for run in runs if prediction in run.predictions]


# --- merging several sources ---


class RunId(NamedTuple):
    """The identity of a run, without its hyperparameters and calibrators."""

    dataset: str
    model: str
    split: int
    fold: int
    init: int


class Settings(NamedTuple):
    """The hyperparameters of a run: those of its trainings, and those of calibrators by name."""

    trainings: str
    calibrators: Mapping[str, str]


def read_sources(paths: Sequence[Path]) -> Results:
    """Read and merge folders written by reproduce and exported tables."""
    return merge({str(path): Results.read(path) for path in paths})


def merge(sources: Mapping[str, Results]) -> Results:
    """Merge the results of sources. Raise ValueError if their versions, hyperparameters or graphs differ.

    A run in several sources gets the predictions of all of them, because only one of them may be calibrated.
    """
    if len(sources) == 1:
        return next(iter(sources.values()))
    _check_versions(sources)
    _check_hyperparameters(sources)
    tasks = _merge_tasks(sources)
    runs: dict[RunId, Run] = {}
    for run in (run for results in sources.values() for run in results.runs):
        run_id = _run_id(run.key)
        earlier = runs.get(run_id, run)
        larger = run if len(run.predictions) > len(earlier.predictions) else earlier
        runs[run_id] = replace(larger, predictions={**earlier.predictions, **run.predictions})
    commands = _merge_commands(command for results in sources.values() for command in results.commands)
    failures = _remaining_failures(sources.values(), runs)
    return Results(sorted(runs.values(), key=lambda run: run.key), tasks, commands, failures)


def _run_id(key: RunKey) -> RunId:
    return RunId(key.dataset, key.model, key.split, key.fold, key.init)


@cache
def _settings(hyperparameters: str) -> Settings:
    described = json.loads(hyperparameters)
    calibrators = {name: text for one in described for name, text in one.get(CALIBRATORS_ENTRY, {}).items()}
    return Settings(json.dumps([one for one in described if CALIBRATORS_ENTRY not in one]), calibrators)


def _check_versions(sources: Mapping[str, Results]) -> None:
    """Raise ValueError if package versions other than Python's differ, as a store does when runs are added."""
    seen: dict[str, tuple[str, str]] = {}
    for source, results in sources.items():
        for name, versions in results.versions.items():
            for version in versions if name != "python" else ():
                first, first_source = seen.setdefault(name, (version, source))
                if version != first:
                    raise ValueError(
                        f"Expected runs of one version of {name}, but {first_source} has runs of {name} {first} and "
                        f"{source} of {name} {version}. Report them separately."
                    )


def _check_hyperparameters(sources: Mapping[str, Results]) -> None:
    """Raise ValueError if hyperparameters of a model on a dataset, or of a calibrator, differ."""
    seen: dict[tuple[str, ...], tuple[str, str]] = {}
    for source, results in sources.items():
        for cell, hyperparameters in {(run.key.cell, run.key.hyperparameters) for run in results.runs}:
            settings = _settings(hyperparameters)
            of_cell = {cell: settings.trainings}
            of_calibrators = {(*cell, name): text for name, text in settings.calibrators.items()}
            for name, text in [*of_cell.items(), *of_calibrators.items()]:
                first, first_source = seen.setdefault(name, (text, source))
                if text != first:
                    raise ValueError(
                        f"Expected runs of {' '.join(name)} with the same hyperparameters, but those in {source} "
                        f"differ from those in {first_source}. Report them separately."
                    )


def _merge_tasks(sources: Mapping[str, Results]) -> list[TaskRow]:
    """Merge the rows of graphs and splits. Raise ValueError if two of the same name differ."""
    seen: dict[tuple[str, int], tuple[TaskRow, str]] = {}
    for source, results in sources.items():
        for task in results.tasks:
            first, first_source = seen.setdefault((task.dataset, task.split), (task, source))
            if task.fingerprint != first.fingerprint:
                raise ValueError(
                    f"Expected the same {task.dataset} in all sources, but its graph or split {task.split} in {source} "
                    f"differs from that in {first_source}. Report them separately."
                )
    return [seen[key][0] for key in sorted(seen)]


def _merge_commands(commands: Iterable[CommandRow]) -> list[CommandRow]:
    """Sort commands by start. Of a command that was exported while it ran, keep the later state."""
    latest: dict[tuple[str, str, str], CommandRow] = {}
    for command in commands:
        identity = command.started, command.sources, command.workers
        if identity not in latest or command.runs > latest[identity].runs:
            latest[identity] = command
    return sorted(latest.values(), key=lambda command: command.started)


def _remaining_failures(sources: Iterable[Results], runs: Mapping[RunId, Run]) -> dict[RunKey, str]:
    """Return the failures of runs that no source has with all requested calibrators."""
    failures = {key: error for results in sources for key, error in results.failures.items()}
    return {
        key: error
        for key, error in failures.items()
        if (run_id := _run_id(key)) not in runs
        or not set(_settings(key.hyperparameters).calibrators) <= set(runs[run_id].predictions)
    }
