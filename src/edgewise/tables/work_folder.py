"""The folder of intermediate results: the node table, and the sums of finished jobs, so that a run can continue."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from edgewise.files.output import make_folder, replace_file
from edgewise.tables.parts import Part

PLAN = "plan.json"  # what the results in the folder are of


@contextmanager
def work_folder(work: Path | None, plan: Mapping[str, object], option: str = "work (--work)") -> Iterator[Path]:
    """Yield the folder of intermediate results of a plan: a given one, or a temporary one.

    ``option`` is the name of the argument in messages.
    """
    if work is None:
        with TemporaryDirectory(prefix="edgewise-") as folder:
            yield Path(folder)
        return
    make_folder(work, option)
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
    yield work


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
