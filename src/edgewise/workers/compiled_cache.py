"""Where a worker keeps its compiled loops.

Numba numbers the files of its cache without a lock: two processes that compile one loop at once may mix up the files of
two compilations. So no two workers that live at the same time share a folder. Folders have stable names, worker-0,
worker-1 and so on, hence the loops of a command are there for the next one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO

VARIABLE = "NUMBA_CACHE_DIR"  # read by Numba when it is imported
LOCK_NAME = "taken.lock"


@dataclass(frozen=True)
class CacheFolder:
    """A folder that belongs to one worker until it is released, or this process ends."""

    path: Path
    _lock: IO[bytes]

    def release(self) -> None:
        """Let another worker have the folder."""
        self._lock.close()


def claim_cache_folder() -> CacheFolder | None:
    """Take the first folder that no living worker has, of this or any other command; None where none can be made."""
    for number in count():
        folder = _root() / f"worker-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK_NAME).open("ab")
        except OSError:
            return None
        if _take(lock):
            return CacheFolder(folder, lock)
        lock.close()
    raise AssertionError("count() does not end")


def _root() -> Path:
    """Return the folder that the user named for Numba, or one below the usual folder for caches."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    usual = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(usual) if usual else Path("~/.cache").expanduser()) / "edgewise" / "numba"


def _take(lock: IO[bytes]) -> bool:
    """Lock a file until it is closed; tell whether no other process had locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks: better a folder that may be shared than none
        return True
    return True


@contextmanager
def inherited_by_children(folder: CacheFolder | None) -> Iterator[None]:
    """Let processes that are started meanwhile keep compiled loops in a folder."""
    before = os.environ.get(VARIABLE)
    if folder is not None:
        os.environ[VARIABLE] = str(folder.path)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


@cache
def claim_for_this_process() -> CacheFolder | None:
    """Keep what this process compiles in a folder of its own; only before Numba is imported this has an effect."""
    folder = claim_cache_folder()
    if folder is not None:
        os.environ[VARIABLE] = str(folder.path)
    return folder
