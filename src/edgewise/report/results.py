"""The results of a sweep as tables and figures see them: runs, and means over runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np

from edgewise.data.statistics import DatasetStatistics, MeanStd
from edgewise.experiments.plan import datasets_in_order
from edgewise.experiments.readings import READINGS
from edgewise.experiments.run_table import read_run_table
from edgewise.experiments.runs import Run, RunKey, ViewResult
from edgewise.experiments.store import CommandRow, Store, TaskRow
from edgewise.experiments.store_file import FILE_NAME

SHARES = ("homophily", "k_edgewise", "k_agree", "k_disagree")


@dataclass(frozen=True)
class Summary(MeanStd):
    """Mean and population std over so many runs; runs without a value, whose set is empty, do not count."""

    runs: int


@dataclass(frozen=True)
class Results:
    """All that a store holds."""

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

    @property
    def datasets(self) -> list[str]:
        """The datasets that have runs: the paper's in its order, then others."""
        return datasets_in_order({run.key.dataset for run in self.runs})

    @property
    def described_datasets(self) -> list[str]:
        """The datasets whose splits are known, in the same order."""
        return datasets_in_order({task.dataset for task in self.tasks})

    def of(self, dataset: str, model: str) -> list[Run]:
        """Give the runs of a cell, in the order of their keys."""
        return sorted((run for run in self.runs if run.key.cell == (dataset, model)), key=lambda run: run.key)

    def views(self, reading: str, dataset: str, row: str, view: str) -> list[ViewResult]:
        """Give what the runs of a row of the tables say in one view."""
        source = READINGS[reading].get(row)
        if source is None:
            return []
        return [run.predictions[source.prediction][view] for run in self.of(dataset, source.model)]

    def summary(self, reading: str, dataset: str, row: str, view: str, metric: str) -> Summary | None:
        """Give mean and std of a score over the runs; None if there is no value."""
        return summarised([result[metric] for result in self.views(reading, dataset, row, view)])

    def predictions(self, dataset: str, model: str) -> list[str]:
        """Give the names of what a model's runs predict; some of them may have more than others."""
        return list(dict.fromkeys(name for run in self.of(dataset, model) for name in run.predictions))

    def dataset_statistics(self, dataset: str) -> DatasetStatistics | None:
        """Give the statistics of a dataset over the test sets of its splits; None if nothing is known of it."""
        tasks = [task for task in self.tasks if task.dataset == dataset]
        if not tasks:
            return None
        size = tasks[0]
        spread = [_spread([float(getattr(task, share)) for task in tasks]) for share in SHARES]
        return DatasetStatistics(size.nodes, size.directed_edges, size.features, size.classes, *spread)

    @property
    def versions(self) -> dict[str, list[str]]:
        """The versions of what the runs were made with; more than one where they differ."""
        found: dict[str, set[str]] = defaultdict(set)
        for run in self.runs:
            for name, version in run.versions.items():
                found[name].add(version)
        return {name: sorted(several) for name, several in found.items()}


def away(ours: MeanStd, published: MeanStd) -> float:
    """Give how far our mean is from a published one, in published standard deviations."""
    return (ours.mean - published.mean) / published.std


def runs_with(prediction: str, runs: Iterable[Run]) -> list[Run]:
    """Give the runs that have a prediction: those before a calibrator was added have not."""
    return [run for run in runs if prediction in run.predictions]


def _spread(values: Sequence[float]) -> Summary:
    """Give mean and population std over the splits that have a value: a test set may have no edge."""
    known = [value for value in values if not np.isnan(value)]
    return Summary(fmean(known), pstdev(known), len(known)) if known else Summary(np.nan, np.nan, 0)


def summarised(values: Iterable[float]) -> Summary | None:
    """Give mean and population std of the values that are there; with an infinite one both are."""
    known = np.array([value for value in values if not np.isnan(value)])
    if not len(known):
        return None
    if np.isinf(known).any():
        return Summary(float("inf"), float("nan"), len(known))
    return Summary(float(known.mean()), float(known.std()), len(known))
