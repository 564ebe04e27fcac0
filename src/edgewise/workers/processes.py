"""Workers as local processes."""

import os
import signal
import traceback
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from threading import Thread
from typing import Any, Generic

from edgewise.workers.compiled_cache import claim_cache_folder, inherited_by_children
from edgewise.workers.outcomes import Failure, Job, JobOutcome, NodeCheck, Result, attempt

MAX_CONSECUTIVE_DEATHS = 10  # of workers; more than that is not caused by single jobs


@dataclass(frozen=True)
class LocalProcesses:
    """Worker processes on this machine, one core each.

    If a worker dies, its job fails and a new worker is started. Workers end with this process, even if it is killed.
    Workers block SIGINT and SIGTERM, so that only this process handles them.
    """

    count: int

    def __str__(self) -> str:
        return f"{self.count} on this machine"

    def execute(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        check: NodeCheck[Job] | None = None,
        group: Callable[[Job], Hashable] | None = None,
    ) -> Generator[JobOutcome[Job, Result], None, None]:
        """Call a function on each job and yield outcomes, see `Workers`. ``check`` is not called on this machine.

        `choose_job` keeps jobs of a group together.
        """
        waiting = list(jobs)
        workers: list[_Worker[Job, Result]] = []

        def send_next_job(worker: _Worker[Job, Result]) -> None:
            groups = [group(job) if group else None for job in waiting]
            chosen = choose_job(groups, worker.group, {other.group for other in workers if other is not worker})
            worker.group = groups[chosen]
            worker.send(waiting.pop(chosen))

        deaths = 0  # of workers since one last finished a job
        try:
            for _ in range(min(self.count, len(jobs))):
                workers.append(_Worker(function))
                send_next_job(workers[-1])
            while busy := [worker for worker in workers if worker.is_busy]:
                ready = wait([worker.connection for worker in busy])
                for worker in (worker for worker in busy if worker.connection in ready):
                    outcome = worker.receive()
                    deaths = 0 if worker.is_alive else deaths + 1
                    if not worker.is_alive and deaths < MAX_CONSECUTIVE_DEATHS:
                        worker.start()
                    if waiting and worker.is_alive:
                        send_next_job(worker)
                    yield outcome
                    _check_deaths(deaths, outcome)
        finally:
            for worker in workers:
                worker.stop()


def choose_job(groups: Sequence[Hashable], own: Hashable, others: Set[Hashable]) -> int:
    """Return the index of a worker's next job: the first of its group, or of a group without workers, or the last job.

    >>> groups = ["a", "b", "b", "c"]
    >>> choose_job(groups, "b", {"a"}), choose_job(groups, "d", {"a"}), choose_job(groups, "d", {"a", "b", "c"})
    (1, 1, 3)
    """
    of_own = [k for k, group in enumerate(groups) if group == own]
    without_workers = [k for k, group in enumerate(groups) if group not in others]
    return [*of_own, *without_workers, len(groups) - 1][0]


class _Worker(Generic[Job, Result]):
    """A process that runs one job at a time, with its own cache folder for compiled functions."""

    def __init__(self, function: Callable[[Job], Result]):
        self._function = function
        self._jobs: list[Job] = []  # the running job, if any
        self.group: Hashable = None  # of the last job
        self._cache_folder = claim_cache_folder()
        self.start()

    def start(self) -> None:
        context = get_context("spawn")  # forking a process with threads may deadlock
        self.connection, worker_end = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(worker_end, self._function), daemon=True)
        with block_signals_in_children(), inherited_by_children(self._cache_folder):
            self._process.start()
        worker_end.close()  # else the connection would stay open when the worker dies
        self.is_alive = True

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def send(self, job: Job) -> None:
        self._jobs.append(job)
        with suppress(OSError):  # the worker died, which `receive` reports
            self.connection.send(job)

    def receive(self) -> JobOutcome[Job, Result]:
        job = self._jobs.pop()
        try:
            outcome: JobOutcome[Job, Result] = self.connection.recv()
        except (EOFError, OSError):
            self.is_alive = False
            self._process.join()
            self.connection.close()
            return Failure(job, _exit_reason(self._process.exitcode or 0))
        return outcome

    def stop(self) -> None:
        self._process.kill()  # a worker has nothing to clean up
        self._process.join()
        self.connection.close()
        if self._cache_folder is not None:
            self._cache_folder.release()


@contextmanager
def block_signals_in_children() -> Iterator[None]:
    """Block SIGINT and SIGTERM within this context, so that processes started in it inherit the block.

    This process receives pending signals afterwards. So Ctrl-C neither prints the traceback of a worker nor interrupts
    its start.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows: workers receive Ctrl-C and end
        yield
        return
    ensure_running()  # starting the resource tracker later would unblock the signals before the first child starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_deaths(deaths: int, outcome: JobOutcome[Any, Any]) -> None:
    if deaths >= MAX_CONSECUTIVE_DEATHS and isinstance(outcome, Failure):
        raise ValueError(f"Expected workers that finish jobs, but {deaths} in a row died. Last error: {outcome.error}")


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"The worker process ended with exit code {code}."
    hint = " If memory ran out, use fewer workers." if -code == signal.SIGKILL else ""
    return f"The worker process was killed by {signal.Signals(-code).name}.{hint}"


def _serve(connection: Connection, function: Callable[[Job], object]) -> None:
    Thread(target=_exit_with_parent, daemon=True).start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            connection.send(attempt(function, job))
        except Exception:  # the outcome cannot be pickled
            connection.send(Failure(job, traceback.format_exc()))


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
