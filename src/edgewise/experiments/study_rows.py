"""The rows of a study: one for each graph and predictor, in a CSV that grows row by row."""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from edgewise.experiments.study_plan import GraphKey
from edgewise.experiments.study_scores import SCORES

TRUTH = ("truth_exact", "truth_kl_error", "truth_r_hat")  # how well the true joints are known
COLUMNS = (*GraphKey._fields, "predictor", *SCORES, *TRUTH)


class Row(NamedTuple):
    """The scores of a predictor on a graph."""

    graph: GraphKey
    predictor: str
    scores: Mapping[str, float]


def read_rows(path: Path) -> list[Row]:
    """Read the rows that are there; a last line that was cut off is none."""
    if not path.exists():
        return []
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        header, *lines = list(csv.reader(io.StringIO(whole))) or [list(COLUMNS)]
    except (UnicodeError, csv.Error) as error:
        raise _damage(path, str(error)) from error
    if tuple(header) != COLUMNS:
        raise ValueError(
            f"Expected a study with the columns {', '.join(COLUMNS)} in {path}, but got {', '.join(header)}. "
            "Name another folder."
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(_row(line))
        except (IndexError, TypeError, ValueError) as error:  # too few or too many cells, or others than numbers
            raise _damage(path, f"line {number} is {','.join(line)[:40]!r}") from error
    return rows


def _damage(path: Path, what: str) -> ValueError:
    return ValueError(
        f"Expected rows of a study, but {path} is damaged: {what}. Correct it, or name another folder to start anew."
    )


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to the end of the file, and see them to the disk; what was cut off there goes first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with path.open("a+b") as file:
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
        file.truncate(end)
        if not end:
            writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([*row.graph, row.predictor, *(f"{row.scores[name]:.7g}" for name in (*SCORES, *TRUTH))])
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())


def _row(line: list[str]) -> Row:
    kinds = GraphKey.__annotations__.values()
    num = len(GraphKey._fields)
    graph = GraphKey(*(kind(cell) for kind, cell in zip(kinds, line, strict=False)))
    return Row(graph, line[num], dict(zip((*SCORES, *TRUTH), map(float, line[num + 1 :]), strict=True)))
