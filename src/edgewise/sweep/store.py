"""The results of runs in one SQLite file: each finished run is one transaction, and one command writes."""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from edgewise.sweep.runs import OtherVersionError, Run, RunKey, predictions_from_json, predictions_to_json
from edgewise.version import __version__

FILE_NAME = "results.sqlite"
LOCK_NAME = "results.lock"
SECONDS_TO_WAIT = 60.0  # for a writer to end its transaction


class StoreError(ValueError):
    """What is wrong with a store, and the way out."""


def connection_to_write(path: Path) -> sqlite3.Connection:
    """Open as the only writer: see `only_writer`."""
    return sqlite3.connect(path, timeout=SECONDS_TO_WAIT, isolation_level=None)


def connection_to_read(path: Path) -> sqlite3.Connection:
    """Open without a right to write, so that not even the log of a killed writer is touched."""
    address = path.resolve().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", timeout=SECONDS_TO_WAIT, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        connection.close()
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:  # not all of it is in the file itself
            raise StoreError(
                f"Expected a folder where {path.name} can be read together with its -wal, but got: {error}. "
                "Copy the folder to where you can write, and read it there."
            ) from error
        return sqlite3.connect(f"{address}?immutable=1", uri=True, isolation_level=None)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends: SQLite's own, on a file beside the results."""
    try:
        lock = sqlite3.connect(folder / LOCK_NAME, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise _not_writable(folder, error) from error
    with closing(lock):
        try:
            lock.execute("PRAGMA journal_mode=DELETE")
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if "locked" not in str(error):
                raise _not_writable(folder, error) from error
            raise StoreError(
                f"Expected to be the only writer in {folder}, but another edgewise reproduce is writing there. "
                "Wait for it, or name another --out."
            ) from error
        yield


def _not_writable(folder: Path, error: sqlite3.Error) -> StoreError:
    return StoreError(f"Expected to write {LOCK_NAME} in {folder}, but got: {error}. Name another --out.")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in words what SQLite says in codes."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(_explanation(path, error)) from error


def _explanation(path: Path, error: Exception) -> str:
    text = str(error)
    if "full" in text:
        return (
            f"The disk is full: {path} could not grow. Finished runs are safe; free some space and start again, and "
            "only what is missing is done."
        )
    if type(error) is sqlite3.DatabaseError or "decode" in text:
        return damage(path, text)
    return f"Expected to use {path}, but got: {text}. Finished runs are safe; see to the disk and start again."


def damage(path: Path, what: str) -> str:
    """Say that a file is damaged, and what to do."""
    return (
        f"Expected a whole store, but {path} is damaged: {what}. Nothing was changed. Put a copy of it in its place, "
        f"or move {path.name} with its -wal and -shm away to start anew."
    )


STORE_VERSION = 1
APPLICATION_ID = 0x65646765  # "edge": tells our files from other SQLite files

# `scores` is what one would plot: a row for each run, prediction, view and metric.
SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
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


class Store:
    """Reads results, and writes them if it was opened by `writing`. A context manager: it closes its file."""

    def __init__(self, folder: Path, connection: sqlite3.Connection):
        self.folder, self._connection = folder, connection
        self._command: int | None = None
        self._clock = perf_counter()

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.folder / FILE_NAME

    @staticmethod
    def exists(folder: Path) -> bool:
        """Tell whether a folder has results."""
        path = folder / FILE_NAME
        return path.is_file() and path.stat().st_size > 0

    @staticmethod
    def reading(folder: Path) -> "Store":
        """Open the results of a folder to read them; another command may be writing."""
        if not Store.exists(folder):
            raise _no_results(folder)
        path = folder / FILE_NAME
        with explained(path):
            store = Store(folder, connection_to_read(path))
            try:
                if store._is_blank():
                    raise _no_results(folder)
                store._check()
            except BaseException:
                store.close()
                raise
        return store

    @staticmethod
    @contextmanager
    def writing(folder: Path) -> Iterator["Store"]:
        """Open the results of a folder to add to them, or begin new ones; refused while another command does."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = "is a file" if folder.is_file() else f"cannot be made: {error.strerror}"
            raise StoreError(f"Expected --out to be a folder, but {folder} {what}. Name another --out.") from error
        path = folder / FILE_NAME
        with only_writer(folder), explained(path):
            if Store.exists(folder):  # as a reader first: a writer's first look would tidy up what may be damaged
                _check_unless_blank(folder)
            store = Store(folder, connection_to_write(path))
            try:
                if store._is_blank():  # new, or all that is left of one whose writer was killed at once
                    store._begin()
                store._connection.execute("PRAGMA synchronous=FULL")
                yield store
            finally:
                store.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_blank(self) -> bool:
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return int(tables) == 0

    def _begin(self) -> None:
        execute = self._connection.execute
        (mode,) = execute("PRAGMA journal_mode=WAL").fetchone()  # so that one may read while another writes
        if mode != "wal":
            raise StoreError(
                f"Expected a disk for --out that SQLite can share between processes, but {self.folder} is on none: a "
                "network drive, perhaps. Name an --out on a local disk."
            )
        with self._transaction():
            for statement in SCHEMA.strip().split(";\n"):
                execute(statement)
            execute("INSERT INTO about VALUES ('edgewise', ?)", (__version__,))
            execute(f"PRAGMA application_id={APPLICATION_ID}")
            execute(f"PRAGMA user_version={STORE_VERSION}")

    def _check(self) -> None:
        execute = self._connection.execute
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise StoreError(
                f"Expected results of edgewise, but {self.path} is another program's SQLite file. "
                "Nothing was changed; name another folder."
            )
        if version != STORE_VERSION:
            raise StoreError(
                f"Expected a store of version {STORE_VERSION}, but {self.path} has version {version}: another edgewise "
                "wrote it. Nothing was changed; use that edgewise, or name another folder."
            )
        problems = [line for (line,) in execute("PRAGMA quick_check(1)") if line != "ok"]
        if problems:
            raise sqlite3.DatabaseError(problems[0].splitlines()[-1])

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one moment of the store in all that is read within, whatever is written meanwhile."""
        with explained(self.path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with explained(self.path):
            return self._connection.execute(query).fetchall()

    @property
    def written_by(self) -> str:
        """The version of edgewise that began the store."""
        ((value,),) = self._rows("SELECT value FROM about WHERE name = 'edgewise'")
        return str(value)

    def check_resumable(self, wanted: Iterable[RunKey], versions: Mapping[str, str]) -> None:
        """Refuse to mix runs whose numbers may differ: of other versions, or of other hyper-parameters."""
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
        """Give what is known of the graphs and splits, in the order of their names."""
        return [TaskRow(*map(_or_nan, row)) for row in self._rows("SELECT * FROM tasks ORDER BY dataset, split")]

    def begin_command(self, sources: str, workers: str) -> None:
        """Note that a command begins to add runs; its time is counted up with each of them."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction():
            row = self._connection.execute("INSERT INTO commands VALUES (?, ?, ?, 0, 0.0)", (started, sources, workers))
        self._command, self._clock = row.lastrowid, perf_counter()

    def commands(self) -> list[CommandRow]:
        """Give all commands that wrote here, in their order."""
        return [CommandRow(*row) for row in self._rows("SELECT * FROM commands ORDER BY rowid")]

    def add(self, run: Run) -> None:
        """Write a finished run in one transaction; an earlier failure of it is forgotten."""
        key = run.key
        row = (
            *_columns(key),
            *(key.seed, run.seconds, run.epochs, json.dumps(dict(run.versions)), run.finished),
            predictions_to_json(run.predictions),
        )
        with explained(self.path), self._transaction():
            self._connection.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)
            self._connection.execute(f"DELETE FROM failures WHERE ({KEY}) = (?, ?, ?, ?, ?, ?)", _columns(key))
            self._connection.execute(
                "UPDATE commands SET runs = runs + 1, seconds = ? WHERE rowid = ?",
                (perf_counter() - self._clock, self._command),
            )

    def add_failure(self, key: RunKey, error: str) -> None:
        """Note that a run failed; it is tried again the next time."""
        with explained(self.path), self._transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", (*_columns(key), error)
            )

    def finished(self) -> set[RunKey]:
        """Give the keys of all finished runs."""
        return {RunKey(*row) for row in self._rows(f"SELECT {KEY} FROM runs")}

    def runs(self) -> list[Run]:
        """Give all finished runs, in the order of their keys."""
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
            raise StoreError(damage(self.path, f"the scores of {key} cannot be read")) from error

    def failures(self) -> dict[RunKey, str]:
        """Give the runs that failed and have not been finished since, with their errors."""
        rows = self._rows(f"SELECT {KEY}, error FROM failures ORDER BY {KEY}")
        return {RunKey(*row[:6]): row[6] for row in rows}


def _columns(key: RunKey) -> tuple[str, str, str, int, int, int]:
    return key.dataset, key.model, key.hyperparameters, key.split, key.fold, key.init


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value


def _no_results(folder: Path) -> StoreError:
    return StoreError(
        f"Expected results in {folder}, but there are none in {FILE_NAME}. Make some: edgewise reproduce --out {folder}"
    )


def _check_unless_blank(folder: Path) -> None:
    with closing(connection_to_read(folder / FILE_NAME)) as connection:
        store = Store(folder, connection)
        if not store._is_blank():
            store._check()
