"""Tables of many parts in commands: their options, what they are recognized by, and progress while they are read."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgewise.cli.app import print_error
from edgewise.representation import format_duration

if TYPE_CHECKING:
    from edgewise.tables.table_jobs import Progress, TableProgress

TABLES_HELP = """A TABLE has one or many parts: a file, a folder, a quoted glob such as 'part-*.parquet', or a URL
(s3://, gs://, file://) of Parquet or CSV. Nodes have ids, integers or text, in rows of any order: columns nid or id,
pred (lists) or p0, p1, …, label or y, src and dst, or those of --columns. Such a table is read in parts, joined by ids,
in bounded memory. Access keys of an object store are read from the environment.
"""
LINE_SECONDS = 30.0  # between lines of progress that is not shown on a terminal

ProbsOrTableOption = Annotated[
    str | None,
    typer.Option("--probs", metavar="FILE", help="Probabilities (nodes, classes), a .safetensors file, or a TABLE."),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="KEY=NAME…",
        help="Names of columns of tables: id, probs, label, mask, src, dst; labels.id=NAME is of one table only.",
    ),
]
SkipUnknownOption = Annotated[
    bool,
    typer.Option(
        "--skip-unknown",
        help="Skip and count rows of tables whose ids have no prediction, and pairs of a node with itself.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Work on the parts of tables on a Ray cluster: its address, auto, or local."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only print what would be read of tables, and how large it is.")
]

ONLY_TABLES = ("columns", "listed", "skip_unknown", "work", "ray", "dry_run")  # options that arrays do not have


def find_table(context: typer.Context, *names: str) -> str:
    """Return the first option that names a table of many parts, or that only tables have, as text; or nothing.

    ``names`` are the options with tables. A file counts if it holds predictions beside ids.
    """
    from edgewise.tables.part_search import has_wildcard, is_url

    given = given_options(context)
    for name in (*names, *ONLY_TABLES):
        if name not in given:
            continue
        option, place = given[name], str(context.params[name])
        if name in ONLY_TABLES:
            return option
        if is_url(place) or has_wildcard(place) or Path(place).is_dir():
            return f"{option} {place}"
        if name == "probs" and _has_ids(Path(place)):
            return f"{option} {place}"
    return ""


def _has_ids(path: Path) -> bool:
    """Return whether a file is a table of ids and probabilities. Where it is read, it is reported if it is damaged."""
    from edgewise.files.tables import header_names, is_table_file
    from edgewise.tables.table_columns import has_id_column

    try:
        return path.is_file() and is_table_file(path) and has_id_column(header_names(path) or [])
    except (OSError, ValueError):
        return False


def given_options(context: typer.Context) -> dict[str, str]:
    """Return the options that were given, by the names of their parameters."""
    return {
        str(param.name): param.opts[0]
        for param in context.command.params
        if (source := context.get_parameter_source(str(param.name))) and source.name != "DEFAULT"
    }


def check_only_options(context: typer.Context, table: str, allowed: Sequence[str], advice: Mapping[str, str]) -> None:
    """Raise ValueError for an option that tables do not have. ``advice`` says what to do instead of some of them."""
    for name, option in given_options(context).items():
        if name not in (*allowed, *ONLY_TABLES):
            instead = advice.get(
                name, f"Omit {option}, or save arrays whose rows are in one order (.npy), which are read as a whole."
            )
            raise ValueError(f"Expected no {option} with tables of many parts ({table}), but got it. {instead}")


def split_columns(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Convert KEY=NAME to a mapping. Several names of one key are separated by commas.

    >>> split_columns(["src=from", "probs=p_no,p_yes"])
    {'src': 'from', 'probs': ['p_no', 'p_yes']}
    """
    columns: dict[str, Any] = {}
    for pair in pairs or ():
        key, sign, name = pair.partition("=")
        if not sign or not key or not name:
            raise ValueError(f"Expected --columns as KEY=NAME, such as src=from, but got {pair}.")
        if key in columns:
            raise ValueError(f"Expected each key of --columns once, but got {key} twice. Omit one.")
        columns[key] = name.split(",") if key.endswith("probs") and "," in name else name
    return columns


def read_class_names(path: Path | None) -> list[str] | None:
    """Return the names in a file, one per line, or in the header of a table; or None without a file."""
    if path is None:
        return None
    from edgewise.files.names import read_cells
    from edgewise.files.tables import header_names, is_table_file

    cells = read_cells(path)
    if cells.ndim == 2 and is_table_file(path) and (names := header_names(path)):
        return names
    return [str(name) for name in cells.ravel()]


@contextmanager
def table_progress(work: Path | None) -> "Iterator[Progress]":
    """Show what is read, its pace and the time left: a bar on a terminal, and a line each half minute elsewhere.

    If the run is interrupted, say how to continue it with the results in ``work``.
    """
    try:
        with _bar() if sys.stderr is not None and sys.stderr.isatty() else _lines() as report:
            yield report
    except KeyboardInterrupt:
        if work is not None:
            print_error(f"Finished parts are kept in {work}. Run the same command again to continue.")
        raise


@contextmanager
def _lines() -> "Iterator[Progress]":
    pace, last = Pace(), monotonic()

    def report_line(now: "TableProgress") -> None:
        nonlocal last
        text, seconds = pace.format(now), monotonic()
        if seconds - last > LINE_SECONDS:
            print_error(f"{now.what}: {text}")
            last = seconds

    yield report_line


@contextmanager
def _bar() -> "Iterator[Progress]":
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[pace]}")
    bar = Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
    task, pace = bar.add_task("finding parts", total=None, pace=""), Pace()

    def report(now: "TableProgress") -> None:
        bar.tasks[0].total = now.num_rows
        bar.update(task, description=now.what, completed=now.rows, pace=pace.format(now))

    with bar:
        yield report


class Pace:
    """The pace since the first report of each table. What an earlier run has finished does not count into it."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[float, int]] = {}

    def format(self, now: "TableProgress") -> str:
        """Format the finished parts, the rows, their pace, and the time left."""
        seconds = monotonic()
        start, rows = self._starts.setdefault(now.what, (seconds, now.rows))
        return format_pace(now, now.rows - rows, seconds - start)


def format_pace(now: "TableProgress", new_rows: int, seconds: float) -> str:
    """Format the finished parts, the rows, the pace of those that were read in some seconds, and the time left.

    >>> from edgewise.tables.table_jobs import TableProgress
    >>> format_pace(TableProgress("edges", 30_000_000, 90_000_000, 5, 16), 20_000_000, 2.0)
    '5 of 16 parts, 30,000,000 of 90,000,000 rows, 10.0 million per second, 6 s left'
    """
    total = "" if now.num_rows is None else f" of {now.num_rows:,}"
    text = f"{now.parts:,} of {now.num_parts:,} parts, {now.rows:,}{total} rows"
    if not new_rows or seconds <= 0:
        return text
    pace = new_rows / seconds
    text += f", {pace / 1e6:.1f} million per second" if pace > 1e5 else f", {pace:,.0f} per second"
    left = None if now.num_rows is None else max(0, now.num_rows - now.rows) / pace
    return text if left is None else f"{text}, {format_duration(left)} left"
