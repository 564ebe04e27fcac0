"""Results in one SQLite file of a folder: one process writes, others may read meanwhile, and a kill costs nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from edgewise.version import __version__

FORMAT_VERSION = 1
APPLICATION_ID = 0x65646765  # "edge": tells our files from other SQLite files
SECONDS_TO_WAIT = 60.0  # for a writer to end its transaction


class StoreError(ValueError):
    """What is wrong with a store, and the way out."""


class ResultFile:
    """Reads results, and writes them if it was opened by `writing`. A context manager: it closes its file.

    A subclass names its file, its tables and the command that fills them, and has methods for its rows. The table
    ``about`` is in all.
    """

    file_name: ClassVar[str]
    schema: ClassVar[str]
    command: ClassVar[str]  # which writes it
    contents: ClassVar[str]  # what is finished one by one, in the plural

    def __init__(self, folder: Path, connection: sqlite3.Connection):
        self.folder, self._connection = folder, connection

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.folder / self.file_name

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Tell whether a folder has results."""
        path = folder / cls.file_name
        return path.is_file() and path.stat().st_size > 0

    @classmethod
    def reading(cls, folder: Path) -> Self:
        """Open the results of a folder to read them; another process may be writing."""
        if not cls.exists(folder):
            raise cls._no_results(folder)
        path = folder / cls.file_name
        with cls._explained(path):
            store = cls(folder, _connection_to_read(path))
            try:
                if store._is_blank():
                    raise cls._no_results(folder)
                store._check()
            except BaseException:
                store.close()
                raise
        return store

    @classmethod
    @contextmanager
    def writing(cls, folder: Path) -> Iterator[Self]:
        """Open the results of a folder to add to them, or begin new ones; refused while another process does."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = "is a file" if folder.is_file() else f"cannot be made: {error.strerror}"
            raise StoreError(f"Expected --out to be a folder, but {folder} {what}. Name another --out.") from error
        path = folder / cls.file_name
        with cls._only_writer(folder), cls._explained(path):
            if cls.exists(folder):  # as a reader first: a writer's first look would tidy up what may be damaged
                with closing(_connection_to_read(path)) as connection:
                    reader = cls(folder, connection)
                    if not reader._is_blank():
                        reader._check()
            store = cls(folder, sqlite3.connect(path, timeout=SECONDS_TO_WAIT, isolation_level=None))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def written_by(self) -> str:
        """The version of edgewise that began the file."""
        ((value,),) = self._rows("SELECT value FROM about WHERE name = 'edgewise'")
        return str(value)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one moment of the file in all that is read within, whatever is written meanwhile."""
        with self._explained(self.path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all that is written within, or nothing."""
        with self._explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._explained(self.path):
            return self._connection.execute(query).fetchall()

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
                "Nothing was changed; name another folder."
            )
        if version != FORMAT_VERSION:
            raise StoreError(
                f"Expected a store of version {FORMAT_VERSION}, but {self.path} has version {version}: another "
                "edgewise wrote it. Nothing was changed; use that edgewise, or name another folder."
            )
        problems = [line for (line,) in execute("PRAGMA quick_check(1)") if line != "ok"]
        if problems:
            raise sqlite3.DatabaseError(problems[0].splitlines()[-1])

    @classmethod
    def _no_results(cls, folder: Path) -> StoreError:
        return StoreError(
            f"Expected results in {folder}, but there are none in {cls.file_name}. "
            f"Make some: {cls.command} --out {folder}"
        )

    @classmethod
    @contextmanager
    def _only_writer(cls, folder: Path) -> Iterator[None]:
        """Hold a lock that ends with the process, however it ends: SQLite's own, on a file beside the results."""
        path = (folder / cls.file_name).with_suffix(".lock")

        def not_writable(error: sqlite3.Error) -> StoreError:
            return StoreError(f"Expected to write {path.name} in {folder}, but got: {error}. Name another --out.")

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
                    "Wait for it, or name another --out."
                ) from error
            yield

    @classmethod
    @contextmanager
    def _explained(cls, path: Path) -> Iterator[None]:
        """Say in words what SQLite says in codes."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            text = str(error)
            if "full" in text:
                explanation = (
                    f"The disk is full: {path} could not grow. Finished {cls.contents} are safe; free some space and "
                    "start again, and only what is missing is done."
                )
            elif type(error) is sqlite3.DatabaseError or "decode" in text:
                explanation = damage_message(path, text)
            else:
                explanation = (
                    f"Expected to use {path}, but got: {text}. Finished {cls.contents} are safe; see to the disk and "
                    "start again."
                )
            raise StoreError(explanation) from error


def damage_message(path: Path, what: str) -> str:
    """Say that a file is damaged, and what to do."""
    return (
        f"Expected a whole store, but {path} is damaged: {what}. Nothing was changed. Put a copy of it in its place, "
        f"or move {path.name} with its -wal and -shm away to start anew."
    )


def _connection_to_read(path: Path) -> sqlite3.Connection:
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
