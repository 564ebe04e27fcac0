"""Interface of workers, and outcomes of jobs."""

import traceback
import warnings
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from edgewise.small_samples import SmallSampleWarning

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Finished(Generic[Job, Result]):
    """A job and the value that the function returned."""

    job: Job
    result: Result


@dataclass(frozen=True)
class Failure(Generic[Job]):
    """A job that failed. ``error`` is a traceback, or says how the worker ended."""

    job: Job
    error: str


JobOutcome = Finished[Job, Result] | Failure[Job]
NodeCheck = Callable[[Sequence[Job]], str]  # run on a node: why it must not run these jobs, or ""


class Workers(Protocol):
    """Interface of `LocalProcesses` and `RayCluster`."""

    @property
    def count(self) -> int | None:
        """The number of jobs that run at a time, or None if it is unknown, as on a cluster."""

    def execute(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        check: NodeCheck[Job] | None = None,
        group: Callable[[Job], Hashable] | None = None,
    ) -> Generator[JobOutcome[Job, Result], None, None]:
        """Call a function on each job, with one core per job, and yield outcomes in the order in which they end.

        Closing the generator stops the workers. An exception in the function becomes a `Failure`. The function, jobs
        and results must be picklable. ``check`` is called on every other machine before it runs any of the jobs. Jobs
        of one ``group`` share work, and run in one process where possible.
        """


def attempt(function: Callable[[Job], Result], job: Job) -> JobOutcome[Job, Result]:
    """Run a job in this process, without warnings about small samples, which would be the same for each job."""
    import torch

    torch.set_num_threads(1)  # one core per job
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSampleWarning)
        try:
            return Finished(job, function(job))
        except Exception:
            return Failure(job, traceback.format_exc())
