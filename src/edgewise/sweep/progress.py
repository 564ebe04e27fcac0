"""How far a sweep is, how long the rest takes, and how that is shown: a table on a terminal, lines elsewhere."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBars
from rich.table import Table

from edgewise.data.datasets import DATASET_NAMES
from edgewise.sweep.runs import Run, RunKey, ViewResult
from edgewise.sweep.sources import homophily_of_name
from edgewise.workers.outcomes import Failure, JobOutcome

# --- estimates ---

# Seconds of one run on one core, for an estimate before anything has been measured: the lower quartile of the runs of
# docs/reproduction.md, whose machine was shared.
TYPICAL_SECONDS: Mapping[tuple[str, str], float] = {
    ("cora", "gcn"): 2.3,
    ("cora", "gat"): 5.8,
    ("cora", "gmnn"): 1.8,
    ("cora", "epfgnn"): 3.1,
    ("citeseer", "gcn"): 2.2,
    ("citeseer", "gat"): 4.6,
    ("citeseer", "gmnn"): 2.2,
    ("citeseer", "epfgnn"): 4.0,
    ("pubmed", "gcn"): 22.5,
    ("pubmed", "gat"): 45.5,
    ("pubmed", "gmnn"): 10.9,
    ("pubmed", "epfgnn"): 19.1,
}

# The same for other graphs, in times of Pubmed: not of their own runs, but of epochs of GCN and GAT on random graphs of
# their size, so they may be wrong by a factor of three. Another model counts as an EPFGNN.
TIMES_OF_PUBMED: Mapping[str, float] = {
    "texas": 0.1,
    "wisconsin": 0.1,
    "cornell": 0.1,
    "actor": 0.7,
    "chameleon": 0.6,
    "squirrel": 1.9,
    "roman-empire": 1.2,
    "amazon-ratings": 2.1,
    "minesweeper": 0.6,
    "tolokers": 6.4,
    "questions": 8.4,
}
SYNTHETIC_TIMES = 0.2


def typical_seconds(cell: tuple[str, str]) -> float:
    """Return about how long a run of a dataset and a model takes on one core."""
    dataset, model = cell
    like = model if ("pubmed", model) in TYPICAL_SECONDS else "epfgnn"
    times = TIMES_OF_PUBMED.get(dataset, SYNTHETIC_TIMES)
    return TYPICAL_SECONDS.get((dataset, like), times * TYPICAL_SECONDS["pubmed", like])


def estimated_seconds(
    missing: Iterable[RunKey], measured: Mapping[tuple[str, str], Collection[float]], workers: int
) -> float:
    """Estimate how long the missing runs take: by the median of their cell's finished runs, else by a typical one.

    Typical seconds are those of another machine, so they are scaled by how this one does in the cells that have run.
    The median, because the first run of a worker loads and compiles.
    """
    usual = {cell: median(seconds) for cell, seconds in measured.items() if seconds}
    ours, typical = sum(usual.values()), sum(map(typical_seconds, usual))
    pace = ours / typical if usual else 1.0
    counts = Counter(key.cell for key in missing)
    total = sum(count * usual.get(cell, pace * typical_seconds(cell)) for cell, count in counts.items())
    return total / workers


@dataclass(frozen=True)
class Progress:
    """How far a sweep is: what was asked for, what is there, and what is missing."""

    wanted: list[RunKey]
    runs: list[Run]
    workers: int | None  # None where it is a cluster that knows
    failures: dict[RunKey, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[RunKey]:
        """The runs that are still to be done, in their order."""
        done = {run.key for run in self.runs}
        return [key for key in self.wanted if key not in done]

    @property
    def seconds_left(self) -> float:
        """An estimate of the time that the missing runs take; on one core, where nobody knows how many there are."""
        measured: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run in self.runs:
            measured[run.key.cell].append(run.seconds)
        left = [key for key in self.missing if key not in self.failures]
        return estimated_seconds(left, measured, self.workers or 1)


# --- names and numbers in words ---


def datasets_in_order(names: Collection[str]) -> list[str]:
    """Put names of datasets in order: known ones, then synthetic ones by their homophily."""
    place = {name: number for number, name in enumerate(DATASET_NAMES)}
    return sorted(names, key=lambda name: (place.get(name, len(place)), homophily_of_name(name) or 0.0, name))


def models_in_order(names: Iterable[str]) -> list[str]:
    """Put names of models in the order of those that were measured; others follow as they come."""
    place = {model: number for number, model in enumerate(dict.fromkeys(model for _, model in TYPICAL_SECONDS))}
    return sorted(names, key=lambda name: place.get(name, len(place)))


def counted(count: int, name: str) -> str:
    """Write a number of things, in the plural but for one."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> duration(42), duration(95), duration(4000)
    ('42 s', '1 min 35 s', '1 h 06 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plan_text(progress: Progress) -> str:
    """Tell which runs there are, which are done, and how long the others may take."""
    total, done = Counter(key.cell for key in progress.wanted), Counter(run.key.cell for run in progress.runs)
    datasets, models = _datasets_and_models(progress)
    width = max(10, *(len(dataset) + 2 for dataset in datasets))
    lines = [" " * width + "".join(f"{model:>10}" for model in models)]
    for dataset in datasets:
        cells = [(dataset, model) for model in models]
        counts = (f"{done[cell]}/{total[cell]}" if total[cell] else "" for cell in cells)
        lines.append((f"{dataset:{width}}" + "".join(f"{count:>10}" for count in counts)).rstrip())
    each = [counted(len({getattr(key, name) for key in progress.wanted}), name) for name in ("split", "fold", "init")]
    workers = f"with {counted(progress.workers, 'worker')}" if progress.workers else "of work for one core"
    guessed = {key.cell for key in progress.missing} - set(TYPICAL_SECONDS) - set(done)
    how = "very roughly" if guessed else "about"
    first = "" if progress.runs else "; loops are compiled once, which may take a minute more"
    left = f"{how} {duration(progress.seconds_left)} {workers}{first}" if progress.missing else "nothing left to do"
    runs = f"{counted(len(progress.wanted), 'run')} ({', '.join(each)} for each cell)"
    return "\n".join([f"{runs}, {len(progress.runs)} done: {left}.", "", *lines])


def _datasets_and_models(progress: Progress) -> tuple[list[str], list[str]]:
    cells = dict.fromkeys(key.cell for key in progress.wanted)
    models = dict.fromkeys(model for _, model in cells)
    return datasets_in_order({dataset for dataset, _ in cells}), models_in_order(models)


# --- while it runs ---

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

    def show(self, outcome: JobOutcome[RunKey, Run]) -> None:
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
        datasets, models = _datasets_and_models(self._sweep)
        for cell in ((dataset, model) for dataset in datasets for model in models):
            if cell in self._total:
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


def _line(outcome: JobOutcome[RunKey, Run]) -> str:
    if isinstance(outcome, Failure):
        return f"{outcome.job} failed: {outcome.error.strip().splitlines()[-1]}"
    run = outcome.result
    views = _shown_views(run)
    scores = ", ".join(f"{view} {metric} {100 * views[view][metric]:.1f}" for view, metric in SHOWN)
    return f"{run.key}: {scores}, {run.seconds:.1f} s"


def _shown_views(run: Run) -> Mapping[str, ViewResult]:
    """Return the scores of the first prediction, which is the one that the others are compared with."""
    return next(iter(run.predictions.values()))
