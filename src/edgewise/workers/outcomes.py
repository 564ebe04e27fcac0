"""What all workers have in common: a function, jobs, and an outcome of each job."""

import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Finished(Generic[Job, Result]):
    """A job with what its function returned."""

    job: Job
    result: Result


@dataclass(frozen=True)
class Failure(Generic[Job]):
    """A job that did not finish, and why: a traceback, or what happened to its worker."""

    job: Job
    error: str


JobOutcome = Finished[Job, Result] | Failure[Job]
NodeCheck = Callable[[Sequence[Job]], str]  # why these jobs must not run on the machine that asks; "" if they may


class Workers(Protocol):
    """Who does jobs. Both kinds, `LocalProcesses` and `RayCluster`, are used in the same way."""

    @property
    def count(self) -> int | None:
        """How many jobs run at a time; None where only a cluster knows."""

    def execute(
        self, function: Callable[[Job], Result], jobs: Sequence[Job], check: NodeCheck[Job] | None = None
    ) -> Generator[JobOutcome[Job, Result], None, None]:
        """Call a function on each job, one core per job, and yield outcomes as they come.

        Closing the generator ends the workers. An error of the function is a `Failure`. The function, jobs and results
        must be picklable. Machines other than this one are asked by ``check`` before they get any of the jobs.
        """


def attempt(function: Callable[[Job], Result], job: Job) -> JobOutcome[Job, Result]:
    """Do a job in this process."""
    import torch

    torch.set_num_threads(1)  # one core per job
    try:
        return Finished(job, function(job))
    except Exception:
        return Failure(job, traceback.format_exc())
