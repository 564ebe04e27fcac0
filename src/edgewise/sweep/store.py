"""The results of runs: each finished run is one row of one transaction in results.sqlite."""

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

# `scores` is what one would plot: a row for each run, prediction, view and metric.
SCHEMA = """
CREATE TABLE commands (
  started TEXT NOT NULL, sources TEXT NOT NULL, workers TEXT NOT NULL, runs INTEGER NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE tasks (
  dataset TEXT NOT NULL, split INTEGER NOT NULL, fingerprint TEXT NOT NULL,
  nodes INTEGER NOT NULL, directed_edges INTEGER NOT NULL, features INTEGER NOT NULL, classes INTEGER NOT NULL,
  homophily REAL, k_edgewise REAL, k_agree REAL, k_disagree REAL,
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
KEY = "dataset, model, hyperparameters, split, fold, init"


@dataclass(frozen=True)
class TaskRow:
    """A graph with one of its splits, whose test set has these statistics."""

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


@dataclass(frozen=True)
class CommandRow:
    """One command that added runs: when, on what, with what, how many, and in which time."""

    started: str
    sources: str
    workers: str
    runs: int
    seconds: float


class Store(ResultFile):
    """Runs, those that failed, the graphs they are about, and the commands that added them."""

    file_name = FILE_NAME
    schema = SCHEMA
    command = "edgewise reproduce"
    contents = "runs"

    def __init__(self, folder: Path, connection: sqlite3.Connection):
        super().__init__(folder, connection)
        self._command: int | None = None
        self._clock = perf_counter()

    def check_resumable(self, wanted: Iterable[RunKey], versions: Mapping[str, str]) -> None:
        """Refuse to mix runs whose numbers may differ: of other versions, or of other hyper-parameters.

        A version that runs do not name, since the edgewise that made them did not record it, is not compared.
        """
        self._check_version("edgewise", self.written_by, versions["edgewise"])
        for (text,) in self._rows("SELECT DISTINCT versions FROM runs"):
            for name, version in json.loads(text).items():
                if name != "python":
                    self._check_version(name, version, versions.get(name, version))
        hyperparameters = {key.cell: key.hyperparameters for key in wanted}
        for key in self.finished():
            if hyperparameters.get(key.cell, key.hyperparameters) != key.hyperparameters:
                raise StoreError(
                    f"Expected runs of {' '.join(key.cell)} with the hyper-parameters of this edgewise, but some in "
                    f"{self.path} have others, or other calibrators. Nothing was changed; name another --out."
                )

    def _check_version(self, name: str, written: str, here: str) -> None:
        if written != here:
            raise StoreError(
                f"Expected a store of {name} {here}, but {self.path} has runs of {name} {written}, whose numbers may "
                f"differ. Nothing was changed; use {name} {written}, or name another --out."
            )

    def check_tasks(self, tasks: Iterable[TaskRow]) -> None:
        """Refuse runs on another graph or other splits than those that are here; note what is new."""
        known = {(task.dataset, task.split): task.fingerprint for task in self.tasks()}
        new = []
        for task in tasks:
            if known.get((task.dataset, task.split), task.fingerprint) != task.fingerprint:
                raise StoreError(
                    f"Expected the {task.dataset} whose runs are in {self.path}, but its graph or split {task.split} "
                    "is another. Nothing was changed; use the same --data-root and --splits-dir, or name another --out."
                )
            if (task.dataset, task.split) not in known:
                new.append(astuple(task))
        with self._transaction():
            self._connection.executemany(f"INSERT INTO tasks VALUES ({', '.join('?' * len(fields(TaskRow)))})", new)

    def tasks(self) -> list[TaskRow]:
        """Return what is known of the graphs and splits, in the order of their names."""
        return [TaskRow(*map(_or_nan, row)) for row in self._rows("SELECT * FROM tasks ORDER BY dataset, split")]

    def begin_command(self, sources: str, workers: str) -> None:
        """Note that a command begins to add runs; its time is counted up with each of them."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction():
            row = self._connection.execute("INSERT INTO commands VALUES (?, ?, ?, 0, 0.0)", (started, sources, workers))
        self._command, self._clock = row.lastrowid, perf_counter()

    def commands(self) -> list[CommandRow]:
        """Return all commands that wrote here, in their order."""
        return [CommandRow(*row) for row in self._rows("SELECT * FROM commands ORDER BY rowid")]

    def add(self, run: Run) -> None:
        """Write a finished run in one transaction; an earlier failure of it is forgotten."""
        key = run.key
        row = (
            *_columns(key),
            *(key.seed, run.seconds, run.epochs, json.dumps(dict(run.versions)), run.finished),
            predictions_to_json(run.predictions),
        )
        with self._transaction():
            self._connection.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
            self._connection.execute(f"DELETE FROM failures WHERE ({KEY}) = (?, ?, ?, ?, ?, ?)", _columns(key))
            self._connection.execute(
                "UPDATE commands SET runs = runs + 1, seconds = ? WHERE rowid = ?",
                (perf_counter() - self._clock, self._command),
            )

    def add_failure(self, key: RunKey, error: str) -> None:
        """Note that a run failed; it is tried again the next time."""
        with self._transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", (*_columns(key), error)
            )

    def finished(self) -> set[RunKey]:
        """Return the keys of all finished runs."""
        return {RunKey(*row) for row in self._rows(f"SELECT {KEY} FROM runs")}

    def runs(self) -> list[Run]:
        """Return all finished runs, in the order of their keys."""
        columns = f"{KEY}, predictions, seconds, epochs, versions, finished"
        return [self._run(row) for row in self._rows(f"SELECT {columns} FROM runs ORDER BY {KEY}")]

    def _run(self, row: tuple[Any, ...]) -> Run:
        key = RunKey(*row[:6])
        try:
            return Run(key, predictions_from_json(row[6]), row[7], row[8], json.loads(row[9]), row[10])
        except OtherVersionError as error:
            raise StoreError(
                f"Expected runs with all scores of this edgewise, but those in {self.path} have {error}: another "
                "version wrote them. Nothing was changed; use that edgewise, or run them again in another folder."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # it is not what we wrote
            raise StoreError(damage_message(self.path, f"the scores of {key} cannot be read")) from error

    def failures(self) -> dict[RunKey, str]:
        """Return the runs that failed and have not been finished since, with their errors."""
        rows = self._rows(f"SELECT {KEY}, error FROM failures ORDER BY {KEY}")
        return {RunKey(*row[:6]): row[6] for row in rows}


def _columns(key: RunKey) -> tuple[str, str, str, int, int, int]:
    return key.dataset, key.model, key.hyperparameters, key.split, key.fold, key.init


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value
