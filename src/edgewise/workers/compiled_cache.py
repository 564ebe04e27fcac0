"""Cache folders for the compiled functions of workers.

Numba numbers the files of its cache without a lock, so two processes that compile the same function at the same time
may mix up their files. Hence no two running workers share a folder. The folders have fixed names, worker-0, worker-1
and so on, so that the next command finds the functions that this one compiled.
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

CACHE_VARIABLE = "NUMBA_CACHE_DIR"  # environment variable that Numba reads when it is imported
LOCK_NAME = "taken.lock"


@dataclass(frozen=True)
class CacheFolder:
    """A folder locked for one worker until it is released or this process ends."""

    path: Path
    _lock: IO[bytes]

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.close()


def claim_cache_folder() -> CacheFolder | None:
    """Lock the first folder that no running worker uses. Return None if no folder can be created."""
    for number in count():
        folder = _root() / f"worker-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / LOCK_NAME).open("ab")
        except OSError:
            return None
        if _acquire(lock):
            return CacheFolder(folder, lock)
        lock.close()
    raise AssertionError("count() does not end")


def _root() -> Path:
    """Return the folder in NUMBA_CACHE_DIR, or else one in the user's cache folder."""
    if configured := os.environ.get(CACHE_VARIABLE):
        return Path(configured)
    cache_home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path("~/.cache").expanduser()) / "edgewise" / "numba"


def _acquire(lock: IO[bytes]) -> bool:
    """Lock a file until it is closed. Return False if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # the file system has no locks: use the folder although it may be shared
        return True
    return True


@contextmanager
def inherited_by_children(folder: CacheFolder | None) -> Iterator[None]:
    """Set NUMBA_CACHE_DIR to a folder within this context, for processes that are started in it."""
    before = os.environ.get(CACHE_VARIABLE)
    if folder is not None:
        os.environ[CACHE_VARIABLE] = str(folder.path)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CACHE_VARIABLE, None)
        else:
            os.environ[CACHE_VARIABLE] = before


@cache
def claim_for_this_process() -> CacheFolder | None:
    """Lock a folder and set NUMBA_CACHE_DIR to it. Has an effect only before Numba is imported."""
    folder = claim_cache_folder()
    if folder is not None:
        os.environ[CACHE_VARIABLE] = str(folder.path)
    return folder
