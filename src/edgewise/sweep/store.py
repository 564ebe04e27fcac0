"""Store of runs: every finished run is one row of results.sqlite, written in one transaction."""

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from edgewise.sweep.result_file import ResultFile, StoreError, damage_message
from edgewise.sweep.runs import OtherVersionError, Run, RunKey, predictions_from_json, predictions_to_json

FILE_NAME = "results.sqlite"

# The view `scores` is for plotting: one row per run, prediction, view and metric.
SCHEMA = """
CREATE TABLE commands (
  started TEXT NOT NULL, sources TEXT NOT NULL, workers TEXT NOT NULL, runs INTEGER NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE tasks (
  dataset TEXT NOT NULL, split INTEGER NOT NULL, fingerprint TEXT NOT NULL,
  nodes INTEGER NOT NULL, directed_edges INTEGER NOT NULL, features INTEGER NOT NULL, classes INTEGER NOT NULL,
  homophily REAL, k_edgewise REAL, k_agree REAL, k_disagree REAL, train REAL, test REAL,
  PRIMARY KEY (dataset, split)
);
CREATE TABLE runs (
  dataset TEXT NOT NULL, model TEXT NOT NULL, hyperparameters TEXT NOT NULL,
  split INTEGER NOT NULL, fold INTEGER NOT NULL, init INTEGER NOT NULL,
  seed INTEGER NOT NULL, seconds REAL NOT NULL, epochs INTEGER NOT NULL,
  versions TEXT NOT NULL, finished TEXT NOT NULL, predictions TEXT NOT NULL,
  PRIMARY KEY (dataset, model, hyperparameters, split, fold, init)
);
CREATE TABLE failures (
  dataset TEXT NOT NULL, model TEXT NOT NULL, hyperparameters TEXT NOT NULL,
  split INTEGER NOT NULL, fold INTEGER NOT NULL, init INTEGER NOT NULL,
  error TEXT NOT NULL,
  PRIMARY KEY (dataset, model, hyperparameters, split, fold, init)
);
CREATE VIEW scores AS
  SELECT runs.dataset, runs.model, runs.split, runs.fold, runs.init,
         prediction.key AS prediction, view.key AS view, metric.key AS metric, metric.value AS value
  FROM runs, json_each(runs.predictions) AS prediction, json_each(prediction.value) AS view,
       json_each(view.value) AS metric
  WHERE metric.key <> 'bins';
"""
KEY_COLUMNS = "dataset, model, hyperparameters, split, fold, init"


@dataclass(frozen=True)
class TaskRow:
    """A graph and a split: fingerprint, sizes, and statistics of the test set.

    ``train`` and ``test`` are the numbers of nodes, ``train`` the mean over folds; NaN in tables of older versions.
    """

    dataset: str
    split: int
    fingerprint: str
    nodes: int
    directed_edges: int
    features: int
    classes: int
    homophily: float
    k_edgewise: float
    k_agree: float
    k_disagree: float
    train: float = math.nan
    test: float = math.nan


@dataclass(frozen=True)
class CommandRow:
    """A command that added runs: start time, data sources, workers, number of runs, and seconds."""

    started: str
    sources: str
    workers: str
    runs: int
    seconds: float


class Store(ResultFile):
    """Finished and failed runs, their graphs and splits, and the commands that added them."""

    file_name = FILE_NAME
    schema = SCHEMA
    command = "edgewise reproduce"
    contents = "runs"

    def __init__(self, folder: Path, connection: sqlite3.Connection):
        super().__init__(folder, connection)
        self._command: int | None = None
        self._clock = perf_counter()

    def check_resumable(self, requested: Iterable[RunKey], versions: Mapping[str, str]) -> None:
        """Raise StoreError if stored runs have other package versions or hyperparameters than the requested ones.

        A version that stored runs do not record is not compared.
        """
        self._check_version("edgewise", self.written_by, versions["edgewise"])
        for (text,) in self._rows("SELECT DISTINCT versions FROM runs"):
            for name, version in json.loads(text).items():
                if name != "python":
                    self._check_version(name, version, versions.get(name, version))
        hyperparameters = {key.cell: key.hyperparameters for key in requested}
        for key in self.finished():
            if hyperparameters.get(key.cell, key.hyperparameters) != key.hyperparameters:
                raise StoreError(
                    f"Expected runs of {' '.join(key.cell)} with the requested hyperparameters, calibrators and "
                    f"model file, but some in {self.path} have others. Nothing was changed. Choose another --out."
                )

    def _check_version(self, name: str, written: str, here: str) -> None:
        if written != here:
            raise StoreError(
                f"Expected a store of {name} {here}, but {self.path} has runs of {name} {written}, whose numbers may "
                f"differ. Nothing was changed. Use {name} {written}, or choose another --out."
            )

    def check_tasks(self, tasks: Iterable[TaskRow]) -> None:
        """Add new graphs and splits. Raise StoreError if a stored one has another fingerprint."""
        stored = {(task.dataset, task.split): task.fingerprint for task in self.tasks()}
        new = []
        for task in tasks:
            if stored.get((task.dataset, task.split), task.fingerprint) != task.fingerprint:
                raise StoreError(
                    f"Expected the {task.dataset} of the runs in {self.path}, but its graph or split {task.split} "
                    "differs. Nothing was changed. Use the same --data-root and --splits-dir, or choose another --out."
                )
            if (task.dataset, task.split) not in stored:
                new.append(astuple(task))
        with self._transaction():
            self._connection.executemany(f"INSERT INTO tasks VALUES ({', '.join('?' * len(fields(TaskRow)))})", new)

    def tasks(self) -> list[TaskRow]:
        """Return the graphs and splits, sorted by name."""
        return [TaskRow(*map(_none_to_nan, row)) for row in self._rows("SELECT * FROM tasks ORDER BY dataset, split")]

    def begin_command(self, sources: str, workers: str) -> None:
        """Add a row for a command that starts. Its runs and seconds are updated by `add`."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction():
            row = self._connection.execute("INSERT INTO commands VALUES (?, ?, ?, 0, 0.0)", (started, sources, workers))
        self._command, self._clock = row.lastrowid, perf_counter()

    def commands(self) -> list[CommandRow]:
        """Return all commands that added runs, oldest first."""
        return [CommandRow(*row) for row in self._rows("SELECT * FROM commands ORDER BY rowid")]

    def add(self, run: Run) -> None:
        """Write a finished run and delete earlier failures of it, in one transaction."""
        key = run.key
        row = (
            *_columns(key),
            *(key.seed, run.seconds, run.epochs, json.dumps(dict(run.versions)), run.finished),
            predictions_to_json(run.predictions),
        )
        with self._transaction():
            self._connection.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
            self._delete_failures(key)
            self._connection.execute(
                "UPDATE commands SET runs = runs + 1, seconds = ? WHERE rowid = ?",
                (perf_counter() - self._clock, self._command),
            )

    def add_failure(self, key: RunKey, error: str) -> None:
        """Write the error of a failed run, which is run again by the next command."""
        with self._transaction():
            self._delete_failures(key)
            self._connection.execute("INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", (*_columns(key), error))

    def _delete_failures(self, key: RunKey) -> None:
        """Delete failures of a run, also those with other hyperparameters, such as a file that has been corrected."""
        where = "(dataset, model, split, fold, init) = (?, ?, ?, ?, ?)"
        values = key.dataset, key.model, key.split, key.fold, key.init
        self._connection.execute(f"DELETE FROM failures WHERE {where}", values)

    def finished(self) -> set[RunKey]:
        """Return the keys of all finished runs."""
        return {RunKey(*row) for row in self._rows(f"SELECT {KEY_COLUMNS} FROM runs")}

    def runs(self) -> list[Run]:
        """Return all finished runs, sorted by key."""
        columns = f"{KEY_COLUMNS}, predictions, seconds, epochs, versions, finished"
        return [self._run(row) for row in self._rows(f"SELECT {columns} FROM runs ORDER BY {KEY_COLUMNS}")]

    def _run(self, row: tuple[Any, ...]) -> Run:
        key = RunKey(*row[:6])
        try:
            return Run(key, predictions_from_json(row[6]), row[7], row[8], json.loads(row[9]), row[10])
        except OtherVersionError as error:
            raise StoreError(
                f"Expected runs with all scores of this edgewise, but those in {self.path} have {error}. Nothing was "
                "changed. Use the edgewise that wrote them, or run them again in another folder."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # damaged, or changed by others
            raise StoreError(damage_message(self.path, f"the scores of {key} cannot be read")) from error

    def failures(self) -> dict[RunKey, str]:
        """Return the errors of runs that failed and have not finished since."""
        rows = self._rows(f"SELECT {KEY_COLUMNS}, error FROM failures ORDER BY {KEY_COLUMNS}")
        return {RunKey(*row[:6]): row[6] for row in rows}


def _columns(key: RunKey) -> tuple[str, str, str, int, int, int]:
    return key.dataset, key.model, key.hyperparameters, key.split, key.fold, key.init


def _none_to_nan(value: Any) -> Any:
    return math.nan if value is None else value
