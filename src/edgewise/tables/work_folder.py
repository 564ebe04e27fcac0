"""The folder of intermediate results: the node table, and the sums of finished jobs, so that a run can continue."""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from edgewise.files.output import make_folder, replace_file
from edgewise.tables.parts import Part

PLAN = "plan.json"  # what the results in the folder are of
SCRATCH = ("duckdb", "nodes/duckdb", "partitions")  # folders of a run that was killed, which no other run reads
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def work_folder(work: Path | None, plan: Mapping[str, object], option: str = "work (--work)") -> Iterator[Path]:
    """Yield the folder of intermediate results of a plan: a given one, or a temporary one.

    ``option`` is the name of the argument in messages.
    """
    if work is None:
        with TemporaryDirectory(prefix="edgewise-") as folder, _name_full_disk(Path(folder), f"{option} or TMPDIR"):
            yield Path(folder)
        return
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", str(work)):
        raise ValueError(f"Expected {option} as a local folder, but got {work}. Pass a local folder.")
    make_folder(work, option)
    with lock_folder(work, option), _name_full_disk(work, option):
        _check_plan(work, plan, option)
        for name in SCRATCH:
            shutil.rmtree(work / name, ignore_errors=True)
        for file in work.rglob(".*.tmp"):
            file.unlink(missing_ok=True)
        yield work


def _check_plan(work: Path, plan: Mapping[str, object], option: str) -> None:
    """Raise ValueError if a folder has results of another plan, or other files. Write the plan if there is none."""
    text, file = json.dumps(plan, indent=1, sort_keys=True), work / PLAN
    if file.exists():
        changed = _changed_keys(json.loads(file.read_text(encoding="utf-8")), json.loads(text))
        if changed:
            raise ValueError(
                f"Expected {work} to hold results of these files and options, but {', '.join(changed)} changed since "
                f"then. Pass another folder as {option}, or delete it."
            )
    elif any(work.iterdir()):
        raise ValueError(
            f"Expected an empty folder for {option}, or one of an earlier run, but {work} holds other files. Pass "
            "another folder."
        )
    else:
        replace_file(file, lambda part: part.write_text(text, encoding="utf-8"))


@contextmanager
def lock_folder(folder: Path, option: str) -> Iterator[None]:
    """Raise ValueError if another process works in a folder. A file system without locks allows all of them.

    The lock is that of the folder itself, so no file is left, and it ends with the process.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"Expected no other run in {folder}, but one is working there. Wait until it ends, or pass another "
                f"folder as {option}."
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _name_full_disk(folder: Path, option: str) -> Iterator[None]:
    """Raise ValueError with the folder if no space is left for intermediate results."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise ValueError(
            f"Expected space for intermediate results in {folder}, but got: {os.strerror(error.errno)}. Free some, or "
            f"pass a folder on a larger disk as {option}."
        ) from error


def _changed_keys(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def check_recognizable(tables: Mapping[str, Sequence[Part]]) -> None:
    """Raise ValueError if parts have no version, so that a later run could not tell whether they changed."""
    for name, parts in tables.items():
        if any(not part.version for part in parts):
            raise ValueError(
                f"Expected {name} in files, as results in work (--work) are kept for a later run, which could not tell "
                "whether a table in memory is the same. Save it as Parquet, or omit work."
            )
