"""How far a running sweep is: a table that is drawn anew on a terminal, a line for each run elsewhere."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from statistics import fmean
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBars
from rich.table import Table

from edgewise.paper.formatting import counted, duration
from edgewise.paper.readings import AS_PUBLISHED, KNOWN_MODELS, MODELS, READINGS
from edgewise.sweep.plan import TYPICAL_SECONDS, datasets_in_order
from edgewise.sweep.reproduce import Progress
from edgewise.sweep.runs import Run, ViewResult
from edgewise.workers.jobs import Failure, Outcome

STARTING = "starting; first runs on a machine compile for up to a minute"
SHOWN = (("nodewise", "accuracy"), ("nodewise", "ece"), ("edgewise", "accuracy"), ("edgewise", "ece"))


class SweepDisplay:
    """Counts the runs of a sweep as they end, and shows their means."""

    def __init__(self, progress: Progress, console: Console):
        self._sweep, self._console = progress, console
        self._total = Counter(key.cell for key in progress.wanted)
        self._begun, self._before, self._ended = monotonic(), len(progress.runs), 0
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
        self._bars = ProgressBars(TextColumn("runs"), *columns)
        self._bar = self._bars.add_task("", total=len(progress.wanted), completed=len(progress.runs), pace=STARTING)
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator["SweepDisplay"]:
        """Draw the table while the sweep goes on, if this is a terminal."""
        if not self._console.is_terminal:
            yield self
            return
        with Live(console=self._console, get_renderable=self.renderable, refresh_per_second=2) as self._live:
            yield self

    def show(self, outcome: Outcome) -> None:
        """Count a run that ended."""
        self._ended += 1
        done, pace = len(self._sweep.runs) + len(self._sweep.failures), self._pace()
        self._bars.update(self._bar, completed=done, pace=pace)
        if self._live is None:
            line = f"{done}/{len(self._sweep.wanted)} {_line(outcome)} ({pace})"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _pace(self) -> str:
        elapsed = monotonic() - self._begun
        # What is left is known as work of one core; how many cores there are is what was done in the time so far.
        work = sum(run.seconds for run in self._sweep.runs[self._before :])
        one_core = self._sweep.seconds_left * (self._sweep.workers or 1)
        left = one_core * elapsed / work if work else self._sweep.seconds_left
        return f"{60 * self._ended / elapsed:.1f} runs/min, {duration(left)} left"

    def renderable(self) -> RenderableType:
        """Draw cells with running means, and a bar beneath."""
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for heading in ("runs", *(f"{view.removesuffix('wise')} {metric}" for view, metric in SHOWN), "s/run"):
            table.add_column(heading, justify="right")
        for cell in _cells(self._total):
            table.add_row(" ".join(cell), *self._row(cell))
        return Group(table, "", self._bars)

    def _row(self, cell: tuple[str, str]) -> list[str]:
        runs = [run for run in self._sweep.runs if run.key.cell == cell]
        failed = sum(key.cell == cell for key in self._sweep.failures)
        count = f"{len(runs)}/{self._total[cell]}" + (f" ({failed} failed)" if failed else "")
        if not runs:
            return [count, *([""] * (len(SHOWN) + 1))]
        views = [_shown_views(run) for run in runs]
        means = (f"{100 * fmean(of_run[view][metric] for of_run in views):.1f}" for view, metric in SHOWN)
        return [count, *means, f"{fmean(run.seconds for run in runs):.1f}"]


def _line(outcome: Outcome) -> str:
    if isinstance(outcome, Failure):
        return f"{outcome.key} failed: {outcome.error.strip().splitlines()[-1]}"
    views = _shown_views(outcome)
    scores = ", ".join(f"{view} {metric} {100 * views[view][metric]:.1f}" for view, metric in SHOWN)
    return f"{outcome.key}: {scores}, {outcome.seconds:.1f} s"


def _cells(found: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """Put datasets and models in the order of the tables."""
    datasets = datasets_in_order({dataset for dataset, _ in found})
    return [(dataset, model) for dataset in datasets for model in KNOWN_MODELS if (dataset, model) in found]


def _shown_views(run: Run) -> dict[str, ViewResult]:
    """Give what is scored as published, or else the first of what was predicted."""
    source = READINGS[AS_PUBLISHED].get(run.key.model)
    return dict(run.predictions[source.prediction if source else next(iter(run.predictions))])


def plan_text(progress: Progress) -> str:
    """Tell which runs there are, which are done, and how long the others may take."""
    total, done = Counter(key.cell for key in progress.wanted), Counter(run.key.cell for run in progress.runs)
    asked_for = {model for _, model in total}
    models = [model for model in KNOWN_MODELS if model in asked_for or model in MODELS]
    datasets = datasets_in_order({dataset for dataset, _ in total})
    width = max(10, *(len(dataset) + 2 for dataset in datasets))
    lines = [" " * width + "".join(f"{model:>10}" for model in models)]
    for dataset in datasets:
        cells = [(dataset, model) for model in models]
        counts = (f"{done[cell]}/{total[cell]}" if total[cell] else "" for cell in cells)
        lines.append((f"{dataset:{width}}" + "".join(f"{count:>10}" for count in counts)).rstrip())
    each = [counted(len({getattr(key, name) for key in progress.wanted}), name) for name in ("split", "fold", "init")]
    crew = f"with {counted(progress.workers, 'worker')}" if progress.workers else "of work for one core"
    guessed = {key.cell for key in progress.missing} - set(TYPICAL_SECONDS) - set(done)
    how = "very roughly" if guessed else "about"
    first = "" if progress.runs else "; loops are compiled once, which may take a minute more"
    left = f"{how} {duration(progress.seconds_left)} {crew}{first}" if progress.missing else "nothing left to do"
    runs = f"{counted(len(progress.wanted), 'run')} ({', '.join(each)} for each cell)"
    return "\n".join([f"{runs}, {len(progress.runs)} done: {left}.", "", *lines])
