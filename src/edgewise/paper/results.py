"""The results of sweeps: runs by dataset and model, what can be shown of them, and several sources as one."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

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
    """All that a store holds. Names that the paper does not know come after those that it knows."""

    runs: Sequence[Run]
    tasks: Sequence[TaskRow] = ()
    commands: Sequence[CommandRow] = ()
    failures: Mapping[RunKey, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> "Results":
        """Read a folder with results.sqlite, or a table of runs that was exported from one."""
        if path.suffix == ".parquet":
            return Results(*read_run_table(path))
        folder = path.parent if path.name == FILE_NAME else path
        if not folder.is_dir():
            kind = "is a file" if folder.exists() else "does not exist"
            raise ValueError(f"Expected a folder that reproduce wrote, or a .parquet table, but {path} {kind}.")
        with Store.reading(folder) as store, store.snapshot():
            return Results(store.runs(), store.tasks(), store.commands(), store.failures())

    @cached_property
    def datasets(self) -> list[str]:
        """The datasets that have runs."""
        return sort_datasets({run.key.dataset for run in self.runs})

    @cached_property
    def described_datasets(self) -> list[str]:
        """The datasets whose splits are known, in the same order."""
        return sort_datasets({task.dataset for task in self.tasks})

    @cached_property
    def models(self) -> list[str]:
        """The models that have runs."""
        return sort_known_first(KNOWN_MODELS, (run.key.model for run in self.runs))

    @cached_property
    def calibrators(self) -> list[str]:
        """The calibrators that some run has a prediction of."""
        added = (name for run in self.runs for name in _settings(run.key.hyperparameters).calibrators)
        possible = {*CALIBRATORS, *added}
        return sort_known_first(
            CALIBRATORS, (name for run in self.runs for name in run.predictions if name in possible)
        )

    def rows(self, reading: str) -> Mapping[str, Source]:
        """Return the rows of the tables in a reading, with their sources.

        A model that the paper does not know has a row of its name, as defined: the first of its own predictions.
        """
        known = READINGS[reading]
        if reading != AS_DEFINED:
            return known
        others = [model for model in self.models if model not in KNOWN_MODELS]
        return {**known, **{model: Source(model, self._own_prediction(model)) for model in others}}

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
        """Return the runs of a model on a dataset, in the order of their keys."""
        return self._by_cell.get((dataset, model), [])

    def runs_of(self, dataset: str, source: Source) -> list[Run]:
        """Return the runs that have a prediction of a model: those before a calibrator was added have not."""
        return runs_with(source.prediction, self.of(dataset, source.model))

    def views(self, reading: str, dataset: str, row: str, view: str) -> list[ViewResult]:
        """Return what the runs of a row of the tables say in one view."""
        source = self.rows(reading).get(row)
        if source is None:
            return []
        return [run.predictions[source.prediction][view] for run in self.runs_of(dataset, source)]

    def predictions(self, dataset: str, model: str) -> list[str]:
        """Return the names of what a model's runs predict; some of them may have more than others."""
        return list(dict.fromkeys(name for run in self.of(dataset, model) for name in run.predictions))

    @property
    def versions(self) -> dict[str, list[str]]:
        """The versions of what the runs were made with; more than one where they differ."""
        found: dict[str, set[str]] = defaultdict(set)
        for run in self.runs:
            for name, version in run.versions.items():
                found[name].add(version)
        return {name: sorted(several) for name, several in found.items()}


def runs_with(prediction: str, runs: Iterable[Run]) -> list[Run]:
    """Return the runs that have a prediction."""
    return [run for run in runs if prediction in run.predictions]


# --- several sources ---


class Place(NamedTuple):
    """A run, whatever was calibrated in it."""

    dataset: str
    model: str
    split: int
    fold: int
    init: int


class Settings(NamedTuple):
    """The hyper-parameters of a run: those of its trainings, and those of calibrators by name."""

    trainings: str
    calibrators: Mapping[str, str]


def read_sources(paths: Sequence[Path]) -> Results:
    """Read folders that reproduce wrote, and tables that were exported, as one."""
    return merge({str(path): Results.read(path) for path in paths})


def merge(sources: Mapping[str, Results]) -> Results:
    """Put the results of sources together, or say why that would mix what does not belong together.

    Where a run is in several, it has the predictions of all: it may be calibrated in one source alone.
    """
    if len(sources) == 1:
        return next(iter(sources.values()))
    _check_versions(sources)
    _check_hyperparameters(sources)
    tasks = _merge_tasks(sources)
    runs: dict[Place, Run] = {}
    for run in (run for results in sources.values() for run in results.runs):
        place = _place(run.key)
        known = runs.get(place, run)
        more = run if len(run.predictions) > len(known.predictions) else known
        runs[place] = replace(more, predictions={**known.predictions, **run.predictions})
    commands = _merge_commands(command for results in sources.values() for command in results.commands)
    failures = _remaining_failures(sources.values(), runs)
    return Results(sorted(runs.values(), key=lambda run: run.key), tasks, commands, failures)


def _place(key: RunKey) -> Place:
    return Place(key.dataset, key.model, key.split, key.fold, key.init)


@cache
def _settings(hyperparameters: str) -> Settings:
    described = json.loads(hyperparameters)
    calibrators = {name: text for one in described for name, text in one.get(CALIBRATORS_ENTRY, {}).items()}
    return Settings(json.dumps([one for one in described if CALIBRATORS_ENTRY not in one]), calibrators)


def _check_versions(sources: Mapping[str, Results]) -> None:
    """Refuse other versions of anything but Python, as a store does that is added to."""
    known: dict[str, tuple[str, str]] = {}
    for source, results in sources.items():
        for name, versions in results.versions.items():
            for version in versions if name != "python" else ():
                first, there = known.setdefault(name, (version, source))
                if version != first:
                    raise ValueError(
                        f"Expected runs of one version of {name}, but {there} has runs of {name} {first} and {source} "
                        f"of {name} {version}, whose numbers may differ. Report them apart."
                    )


def _check_hyperparameters(sources: Mapping[str, Results]) -> None:
    """Refuse other trainings of a model on a dataset, and other options of a calibrator."""
    known: dict[tuple[str, ...], tuple[str, str]] = {}
    for source, results in sources.items():
        for cell, hyperparameters in {(run.key.cell, run.key.hyperparameters) for run in results.runs}:
            settings = _settings(hyperparameters)
            of_cell = {cell: settings.trainings}
            of_calibrators = {(*cell, name): text for name, text in settings.calibrators.items()}
            for what, text in [*of_cell.items(), *of_calibrators.items()]:
                first, there = known.setdefault(what, (text, source))
                if text != first:
                    raise ValueError(
                        f"Expected runs of {' '.join(what)} with the same hyper-parameters, but those in {source} have "
                        f"others than those in {there}. Report them apart."
                    )


def _merge_tasks(sources: Mapping[str, Results]) -> list[TaskRow]:
    """Take each graph with a split once; refuse another graph or split of the same name."""
    known: dict[tuple[str, int], tuple[TaskRow, str]] = {}
    for source, results in sources.items():
        for task in results.tasks:
            first, there = known.setdefault((task.dataset, task.split), (task, source))
            if task.fingerprint != first.fingerprint:
                raise ValueError(
                    f"Expected the same {task.dataset} in all sources, but its graph or split {task.split} in {source} "
                    f"is another than in {there}. Report them apart."
                )
    return [known[key][0] for key in sorted(known)]


def _merge_commands(commands: Iterable[CommandRow]) -> list[CommandRow]:
    """Put commands in the order of their beginning; of one that was exported while it ran, take the later state."""
    latest: dict[tuple[str, str, str], CommandRow] = {}
    for command in commands:
        which = command.started, command.sources, command.workers
        if which not in latest or command.runs > latest[which].runs:
            latest[which] = command
    return sorted(latest.values(), key=lambda command: command.started)


def _remaining_failures(sources: Iterable[Results], runs: Mapping[Place, Run]) -> dict[RunKey, str]:
    """Leave out failures of runs that another source has, with all calibrators that they should have had."""
    failures = {key: error for results in sources for key, error in results.failures.items()}
    return {
        key: error
        for key, error in failures.items()
        if (place := _place(key)) not in runs
        or not set(_settings(key.hyperparameters).calibrators) <= set(runs[place].predictions)
    }
