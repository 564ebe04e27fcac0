"""The paper, or what is missing of it: plan, do, write."""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from edgewise.sweep.plan import Plan, estimated_seconds
from edgewise.sweep.runs import Run, RunKey
from edgewise.sweep.sources import Sources
from edgewise.sweep.store import Store
from edgewise.workers.jobs import Failure, Job, Outcome

Execute = Callable[[Sequence[RunKey], Job], Generator[Outcome, None, None]]


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


def planned(plan: Plan, folder: Path, workers: int | None) -> Progress:
    """Tell what `reproduce` would do; nothing is written."""
    runs: list[Run] = []
    if Store.exists(folder):
        with Store.reading(folder) as store:
            runs = store.runs()
    return _progress(plan, runs, workers)


def reproduce(
    plan: Plan,
    folder: Path,
    sources: Sources,
    execute: Execute,
    workers: int | None,
    begin: Callable[[Progress], Callable[[Outcome], object]],
    crew: str = "",
    fitted: Path | None = None,
) -> Progress:
    """Do the runs of a plan that a folder does not have yet; each is written when it ends.

    ``begin`` is told what there is to do, and gives what is called with each outcome. ``crew`` says who does the runs,
    if they are not so many processes of this machine. In the folder ``fitted`` trained models are kept and looked for.
    """
    from edgewise.version import versions

    with Store.writing(folder) as store:
        store.check_resumable(plan.runs(), versions())
        store.check_tasks(row for dataset in plan.datasets for row in sources.task(dataset, plan.splits).rows())
        progress = _progress(plan, store.runs(), workers)
        on_outcome = begin(progress)
        job = Job(sources, plan.splits, None if fitted is None else str(fitted))
        store.begin_command(f"{plan}; {sources}", crew or f"{workers} on this machine")
        with closing(execute(progress.missing, job)) as outcomes:  # a full disk must end the workers too
            for outcome in outcomes:
                if isinstance(outcome, Failure):
                    store.add_failure(outcome.key, outcome.error)
                    progress.failures[outcome.key] = outcome.error
                else:
                    store.add(outcome)
                    progress.runs.append(outcome)
                on_outcome(outcome)
        return progress


def _progress(plan: Plan, runs: list[Run], workers: int | None) -> Progress:
    wanted = plan.runs()
    among = set(wanted)
    return Progress(wanted, [run for run in runs if run.key in among], workers)
