"""Jobs over the parts of tables, here or on a Ray cluster, and progress while tables are read."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgewise.representation import format_bytes
from edgewise.tables.parts import Part, PartError, total_rows
from edgewise.version import __version__


class TableProgress(NamedTuple):
    """How far a table has been read.

    Attributes
    ----------
    what
        What is read: "ids", "labels", "mask", "probabilities", "edges" or "pairs"; "ids again" or "edges again" in a
        second pass.
    rows
        The number of rows so far. The first report has those that an earlier run has finished.
    num_rows
        The number of all rows, or None if only reading the table can tell.
    parts
        The number of finished parts. Of edges and pairs, these are parts whose results are kept. If ids are joined,
        several parts of the nodes are read at once, and finished at once.
    num_parts
        The number of all parts. A large Parquet file has several.
    """

    what: str
    rows: int
    num_rows: int | None
    parts: int
    num_parts: int


Progress = Callable[[TableProgress], None]


class RowCounter:
    """Counts the rows and the finished parts of a table while it is read, and reports them."""

    def __init__(
        self,
        progress: Progress | None,
        what: str,
        parts: Sequence[Part],
        *,
        num_rows: int | None = None,
        finished_rows: int = 0,
        finished_parts: int = 0,
    ):
        self._report = progress
        total = total_rows(parts) if num_rows is None else num_rows
        self._state = TableProgress(what, finished_rows, total, finished_parts, len(parts))
        self.add(0)

    def add(self, rows: int, finished_parts: int | None = None) -> None:
        """Count further rows, and set the number of finished parts if it has changed."""
        state = self._state
        parts = state.parts if finished_parts is None else finished_parts
        self._state = state._replace(rows=state.rows + rows, parts=parts)
        if self._report is not None:
            self._report(self._state)


@dataclass(frozen=True)
class TableJob:
    """Consecutive parts of the edges or pairs, whose results are computed by one process."""

    number: int
    parts: tuple[Part, ...]


def group_parts(parts: Sequence[Part], rows_per_job: int) -> list[TableJob]:
    """Group consecutive parts into jobs with at most this number of rows, if possible."""
    jobs, group, count = list[tuple[Part, ...]](), list[Part](), 0
    for part in parts:
        # The compressed ends of an edge rarely take less than 4 bytes.
        rows = part.num_rows if part.num_rows is not None else part.num_bytes // 4 or rows_per_job
        if group and count + rows > rows_per_job:
            jobs.append(tuple(group))
            group, count = [], 0
        group.append(part)
        count += rows
    return [TableJob(k, parts) for k, parts in enumerate([*jobs, tuple(group)] if group else [])]


def describe_tables(tables: Mapping[str, Sequence[Part]], columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return lines with the parts, rows, size and columns of each table."""
    lines = [f"{'table':8}{'parts':>8}{'rows':>18}{'size':>12}  columns"]
    for name, parts in tables.items():
        if parts:
            files = len({part.name for part in parts})
            rows = total_rows(parts)
            used = columns[name] if len(columns[name]) <= 4 else (*columns[name][:2], "…", columns[name][-1])
            size = format_bytes(sum(part.num_bytes for part in parts))
            count = "unknown" if rows is None else f"{rows:,}"
            lines.append(f"{name:8}{files:>8,}{count:>18}{size:>12}  {', '.join(used)}")
    return lines


def run_on_cluster(
    function: Callable[[TableJob, Any], Any], jobs: Sequence[TableJob], ray: str, shared: object
) -> Generator[tuple[TableJob, Any], None, None]:
    """Yield jobs and what a function of a job and of what is shared returned. Its `PartError` is raised here."""
    from edgewise.workers import Failure, RayCluster

    work: Callable[..., Any] = _WithMessages(function)
    for outcome in RayCluster(ray).execute(work, jobs, _check_version(__version__), shared=shared):
        if isinstance(outcome, Failure):
            raise ValueError(f"{outcome.job.parts[0].name}: {outcome.error.strip().splitlines()[-1]}")
        if isinstance(outcome.result, str):
            raise PartError(outcome.result)
        yield outcome.job, outcome.result


@dataclass(frozen=True)
class _WithMessages:
    """A function that returns the message of a bad part, which another process would print with its stack."""

    function: Callable[[TableJob, Any], Any]

    def __call__(self, job: TableJob, shared: Any) -> Any:
        try:
            return self.function(job, shared)
        except PartError as error:
            return str(error)


def _check_version(expected: str) -> Callable[[Sequence[TableJob]], str]:
    """Return a function that a node calls before it works: the reason why it must not, or nothing."""

    def check(jobs: Sequence[TableJob]) -> str:
        from edgewise.version import __version__ as own

        return "" if own == expected else f"Expected edgewise {expected} on every node, but one has {own}."

    return check
