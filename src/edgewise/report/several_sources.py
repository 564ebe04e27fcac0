"""Results of several folders and tables as one, if their numbers can stand beside each other."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edgewise.experiments.plan import CALIBRATORS_ENTRY
from edgewise.experiments.runs import Run, RunKey
from edgewise.experiments.store import CommandRow, TaskRow
from edgewise.report.results import Results


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
    return merged({str(path): Results.read(path) for path in paths})


def merged(sources: Mapping[str, Results]) -> Results:
    """Put the results of sources together, or say why that would mix what does not belong together.

    Where a run is in several, it has the predictions of all: it may be calibrated in one source alone.
    """
    if len(sources) == 1:
        return next(iter(sources.values()))
    _check_versions(sources)
    _check_hyperparameters(sources)
    tasks = _merged_tasks(sources)
    runs: dict[Place, Run] = {}
    for run in (run for results in sources.values() for run in results.runs):
        place = _place(run.key)
        known = runs.get(place, run)
        more = run if len(run.predictions) > len(known.predictions) else known
        runs[place] = replace(more, predictions={**known.predictions, **run.predictions})
    commands = _merged_commands(command for results in sources.values() for command in results.commands)
    failures = _remaining_failures(sources.values(), runs)
    return Results(sorted(runs.values(), key=lambda run: run.key), tasks, commands, failures)


def _place(key: RunKey) -> Place:
    return Place(key.dataset, key.model, key.split, key.fold, key.init)


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


def _merged_tasks(sources: Mapping[str, Results]) -> list[TaskRow]:
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


def _merged_commands(commands: Iterable[CommandRow]) -> list[CommandRow]:
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
