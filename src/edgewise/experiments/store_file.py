"""How the file of a store is opened: by one writer, by readers that leave it as it is, and with errors in words."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

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
