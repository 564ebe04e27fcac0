"""SQLite file of results: one process writes, others may read at the same time, and committed rows survive a kill."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from edgewise.version import __version__

FORMAT_VERSION = 1
APPLICATION_ID = 0x65646765  # "edge" in ASCII; marks SQLite files that edgewise wrote
LOCK_TIMEOUT_SECONDS = 60.0  # how long to wait for another transaction to end


class StoreError(ValueError):
    """A results file that cannot be used. The message says why, and how to fix it."""


class ResultFile:
    """Results in an SQLite file, opened with `reading` or `writing`. As a context manager, it closes the file.

    A subclass defines the file name, the tables, the command that fills them, and methods to read and add rows. Every
    file has a table ``about``.
    """

    file_name: ClassVar[str]
    schema: ClassVar[str]
    command: ClassVar[str]  # that writes the file, such as "edgewise reproduce"
    contents: ClassVar[str]  # name of the rows in messages, such as "runs"

    def __init__(self, folder: Path, connection: sqlite3.Connection):
        self.folder, self._connection = folder, connection

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.folder / self.file_name

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Return whether a folder has results."""
        path = folder / cls.file_name
        return path.is_file() and path.stat().st_size > 0

    @classmethod
    def reading(cls, folder: Path) -> Self:
        """Open the results of a folder for reading. Another process may be writing."""
        if not cls.exists(folder):
            raise cls._no_results(folder)
        path = folder / cls.file_name
        with cls._explain_errors(path):
            store = cls(folder, _open_read_only(path))
            try:
                if store._is_empty():
                    raise cls._no_results(folder)
                store._check()
            except BaseException:
                store.close()
                raise
        return store

    @classmethod
    @contextmanager
    def writing(cls, folder: Path) -> Iterator[Self]:
        """Open the results of a folder for writing, and create them if needed.

        Raise StoreError if another process is writing.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "is a file" if folder.is_file() else f"cannot be created: {error.strerror}"
            raise StoreError(f"Expected --out to be a folder, but {folder} {reason}. Choose another --out.") from error
        path = folder / cls.file_name
        with cls._write_lock(folder), cls._explain_errors(path):
            if cls.exists(folder):  # check read-only first: opening for writing would change a damaged file
                with closing(_open_read_only(path)) as connection:
                    reader = cls(folder, connection)
                    if not reader._is_empty():
                        reader._check()
            store = cls(folder, sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None))
            try:
                if store._is_empty():  # new, or its writer was killed before it created the tables
                    store._create_tables()
                store._connection.execute("PRAGMA synchronous=FULL")
                yield store
            finally:
                store.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def written_by(self) -> str:
        """The version of edgewise that created the file."""
        ((value,),) = self._rows("SELECT value FROM about WHERE name = 'edgewise'")
        return str(value)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads within this context see the same state, whatever is written meanwhile."""
        with self._explain_errors(self.path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all writes within this context together, or none if there is an error."""
        with self._explain_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._explain_errors(self.path):
            return self._connection.execute(query).fetchall()

    def _is_empty(self) -> bool:
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return int(tables) == 0

    def _create_tables(self) -> None:
        execute = self._connection.execute
        (mode,) = execute("PRAGMA journal_mode=WAL").fetchone()  # lets others read while one process writes
        if mode != "wal":
            raise StoreError(
                f"Expected --out on a disk where SQLite supports write-ahead logging, but {self.folder} is not: it may "
                "be on a network drive. Choose an --out on a local disk."
            )
        with self._transaction():
            execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            for statement in self.schema.strip().split(";\n"):
                execute(statement)
            execute("INSERT INTO about VALUES ('edgewise', ?)", (__version__,))
            execute(f"PRAGMA application_id={APPLICATION_ID}")
            execute(f"PRAGMA user_version={FORMAT_VERSION}")

    def _check(self) -> None:
        execute = self._connection.execute
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise StoreError(
                f"Expected results of edgewise, but {self.path} is another program's SQLite file. "
                "Nothing was changed. Choose another folder."
            )
        if version != FORMAT_VERSION:
            raise StoreError(
                f"Expected a store of version {FORMAT_VERSION}, but {self.path} has version {version}. Nothing "
                "was changed. Use the edgewise that wrote it, or choose another folder."
            )
        problems = [line for (line,) in execute("PRAGMA quick_check(1)") if line != "ok"]
        if problems:
            raise sqlite3.DatabaseError(problems[0].splitlines()[-1])

    @classmethod
    def _no_results(cls, folder: Path) -> StoreError:
        return StoreError(
            f"Expected results in {folder}, but there are none in {cls.file_name}. Create them with: "
            f"{cls.command} --out {folder}"
        )

    @classmethod
    @contextmanager
    def _write_lock(cls, folder: Path) -> Iterator[None]:
        """Hold an exclusive SQLite lock on a file next to the results.

        The system releases it when the process ends, even by a kill.
        """
        path = (folder / cls.file_name).with_suffix(".lock")

        def not_writable(error: sqlite3.Error) -> StoreError:
            return StoreError(f"Expected to write {path.name} in {folder}, but got: {error}. Choose another --out.")

        try:
            lock = sqlite3.connect(path, timeout=0, isolation_level=None)
        except sqlite3.Error as error:
            raise not_writable(error) from error
        with closing(lock):
            try:
                lock.execute("PRAGMA journal_mode=DELETE")
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.Error as error:
                if "locked" not in str(error):
                    raise not_writable(error) from error
                raise StoreError(
                    f"Expected to be the only writer in {folder}, but another {cls.command} is writing there. "
                    "Wait until it ends, or choose another --out."
                ) from error
            yield

    @classmethod
    @contextmanager
    def _explain_errors(cls, path: Path) -> Iterator[None]:
        """Convert errors of SQLite to a StoreError that says how to fix them."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            text = str(error)
            if "full" in text:
                explanation = (
                    f"Expected space to write {path}, but the disk is full. Finished {cls.contents} are saved. Free "
                    "some space and run the command again to continue."
                )
            elif type(error) is sqlite3.DatabaseError or "decode" in text:
                explanation = damage_message(path, text)
            else:
                explanation = (
                    f"Expected to use {path}, but got: {text}. Finished {cls.contents} are saved. Check the disk and "
                    "run the command again."
                )
            raise StoreError(explanation) from error


def damage_message(path: Path, reason: str) -> str:
    """Return the message for a damaged file."""
    return (
        f"Expected a valid store, but {path} is damaged: {reason}. Nothing was changed. Restore it from a copy, or "
        f"move {path.name} with its -wal and -shm files away to start over."
    )


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open read-only, so that not even the log of a killed writer is changed."""
    address = path.resolve().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        connection.close()
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:  # some rows are only in the log
            raise StoreError(
                f"Expected to read {path.name} together with its -wal file, but got: {error}. "
                "Copy the folder to a place where you may write, and read it there."
            ) from error
        return sqlite3.connect(f"{address}?immutable=1", uri=True, isolation_level=None)
    except sqlite3.Error:
        connection.close()
        raise
    return connection
