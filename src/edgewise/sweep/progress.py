"""Progress of a sweep: counts, time left, and how both are displayed."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBars
from rich.table import Table

from edgewise.models import known_models
from edgewise.representation import format_duration
from edgewise.sweep.estimates import TYPICAL_SECONDS, estimate_seconds
from edgewise.sweep.plan import sort_models
from edgewise.sweep.runs import Run, RunKey, ViewResult
from edgewise.sweep.sources import sort_datasets
from edgewise.workers.outcomes import Failure, JobOutcome

MIN_DATASET_COLUMN_WIDTH, MODEL_COLUMN_WIDTH = 10, 10


@dataclass(frozen=True)
class Progress:
    """The requested runs of a sweep, those that are finished, and those that failed."""

    requested: list[RunKey]
    runs: list[Run]
    workers: int | None  # None for a cluster of unknown size
    failures: dict[RunKey, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[RunKey]:
        """The requested runs that are not finished, in their order."""
        finished = {run.key for run in self.runs}
        return [key for key in self.requested if key not in finished]

    @property
    def seconds_left(self) -> float:
        """Estimated seconds for the missing runs that have not failed; on one core if the workers are unknown."""
        return self.seconds_left_after(0.0, 0.0)

    def seconds_left_after(self, elapsed: float, finished_seconds: float) -> float:
        """Estimate the seconds left of a sweep that has been running for ``elapsed`` seconds.

        ``finished_seconds`` is the sum of the seconds of the runs that ended since then. The number of cores of a
        cluster is taken to be the work done per elapsed second.
        """
        measured: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run in self.runs:
            measured[run.key.cell].append(run.seconds)
        left = [key for key in self.missing if key not in self.failures]
        workers = self.workers or max(1, round(finished_seconds / elapsed) if elapsed else 1)
        return estimate_seconds(left, measured, workers, max(0.0, workers * elapsed - finished_seconds))


def format_count(count: int, name: str) -> str:
    """Format a number of things, such as ``"1 run"`` or ``"3 runs"``."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def plan_text(progress: Progress) -> str:
    """Format the number of runs, a table of finished runs per cell, and the estimated time left."""
    total, finished = Counter(key.cell for key in progress.requested), Counter(run.key.cell for run in progress.runs)
    datasets, models = _datasets_and_models(progress)
    width = max(MIN_DATASET_COLUMN_WIDTH, *(len(dataset) + 2 for dataset in datasets))
    widths = [max(MODEL_COLUMN_WIDTH, len(model) + 2) for model in models]
    lines = [" " * width + "".join(f"{model:>{column}}" for model, column in zip(models, widths, strict=True))]
    for dataset in datasets:
        cells = [(dataset, model) for model in models]
        counts = (f"{finished[cell]}/{total[cell]}" if total[cell] else "" for cell in cells)
        row = f"{dataset:{width}}" + "".join(f"{count:>{column}}" for count, column in zip(counts, widths, strict=True))
        lines.append(row.rstrip())
    repeats = [
        format_count(len({getattr(key, name) for key in progress.requested}), name)
        for name in ("split", "fold", "init")
    ]
    runs = f"{format_count(len(progress.requested), 'run')} ({', '.join(repeats)} for each cell)"
    return "\n".join([f"{runs}, {len(progress.runs)} done: {_time_left(progress)}.", "", *lines])


def _time_left(progress: Progress) -> str:
    if not progress.missing:
        return "nothing left to do"
    measured = {run.key.cell for run in progress.runs}
    is_rough = bool({key.cell for key in progress.missing} - set(TYPICAL_SECONDS) - measured)
    unknown = sorted({key.model for key in progress.missing if key.cell not in measured} - set(known_models()))
    count_as = f", counting {', '.join(unknown)}, whose time is unknown, as epfgnn" if unknown else ""
    workers = f"with {format_count(progress.workers, 'worker')}" if progress.workers else "on one core"
    compilation = "" if progress.runs else ", plus up to a minute to compile once"
    duration = format_duration(progress.seconds_left)
    return f"{'very roughly' if is_rough else 'about'} {duration} {workers}{count_as}{compilation}"


def _datasets_and_models(progress: Progress) -> tuple[list[str], list[str]]:
    cells = dict.fromkeys(key.cell for key in progress.requested)
    models = dict.fromkeys(model for _, model in cells)
    return sort_datasets({dataset for dataset, _ in cells}), sort_models(models)


# --- display while the sweep runs ---

STARTING_MESSAGE = "starting; the first runs on a machine compile for up to a minute"
DISPLAYED_SCORES = (("nodewise", "accuracy"), ("nodewise", "ece"), ("edgewise", "accuracy"), ("edgewise", "ece"))


class SweepDisplay:
    """Display of finished runs and their mean scores: a live table on a terminal, one line per run elsewhere."""

    def __init__(self, progress: Progress, console: Console):
        self._progress, self._console = progress, console
        self._total = Counter(key.cell for key in progress.requested)
        self._start_time, self._num_runs_before, self._num_outcomes = monotonic(), len(progress.runs), 0
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
        self._bars = ProgressBars(TextColumn("runs"), *columns)
        total, completed = len(progress.requested), len(progress.runs)
        self._bar = self._bars.add_task("", total=total, completed=completed, pace=STARTING_MESSAGE)
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator["SweepDisplay"]:
        """Draw the live table within this context if the console is a terminal."""
        if not self._console.is_terminal:
            yield self
            return
        with Live(console=self._console, get_renderable=self.renderable, refresh_per_second=2) as self._live:
            yield self

    def show(self, outcome: JobOutcome[RunKey, Run]) -> None:
        """Count one outcome, and print a line for it if there is no live table."""
        self._num_outcomes += 1
        done, pace = len(self._progress.runs) + len(self._progress.failures), self._pace()
        self._bars.update(self._bar, completed=done, pace=pace)
        if self._live is None:
            line = f"{done}/{len(self._progress.requested)} {_outcome_line(outcome)} ({pace})"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _pace(self) -> str:
        elapsed = monotonic() - self._start_time
        finished_seconds = sum(run.seconds for run in self._progress.runs[self._num_runs_before :])
        left = self._progress.seconds_left_after(elapsed, finished_seconds)
        return f"{60 * self._num_outcomes / elapsed:.1f} runs/min, {format_duration(left)} left"

    def renderable(self) -> RenderableType:
        """Return the table of mean scores per cell, with a progress bar below it."""
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        scores = (f"{view.removesuffix('wise')} {metric}" for view, metric in DISPLAYED_SCORES)
        for heading in ("runs", *scores, "s/run"):
            table.add_column(heading, justify="right")
        datasets, models = _datasets_and_models(self._progress)
        for cell in ((dataset, model) for dataset in datasets for model in models):
            if cell in self._total:
                table.add_row(" ".join(cell), *self._row(cell))
        return Group(table, "", self._bars)

    def _row(self, cell: tuple[str, str]) -> list[str]:
        runs = [run for run in self._progress.runs if run.key.cell == cell]
        num_failed = sum(key.cell == cell for key in self._progress.failures)
        count = f"{len(runs)}/{self._total[cell]}" + (f" ({num_failed} failed)" if num_failed else "")
        if not runs:
            return [count, *([""] * (len(DISPLAYED_SCORES) + 1))]
        views = [_first_prediction(run) for run in runs]
        means = (f"{100 * fmean(of_run[view][metric] for of_run in views):.1f}" for view, metric in DISPLAYED_SCORES)
        return [count, *means, f"{fmean(run.seconds for run in runs):.1f}"]


def _outcome_line(outcome: JobOutcome[RunKey, Run]) -> str:
    if isinstance(outcome, Failure):
        return f"{outcome.job} failed: {outcome.error.strip().splitlines()[-1]}"
    run = outcome.result
    views = _first_prediction(run)
    scores = ", ".join(f"{view} {metric} {100 * views[view][metric]:.1f}" for view, metric in DISPLAYED_SCORES)
    return f"{run.key}: {scores}, {run.seconds:.1f} s"


def _first_prediction(run: Run) -> Mapping[str, ViewResult]:
    """Return the scores of the model's main prediction, which comes first."""
    return next(iter(run.predictions.values()))
