"""Jobs in processes of this machine."""

import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
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

MAX_DEATHS = 10  # of workers in a row: so many are not the fault of jobs


@dataclass(frozen=True)
class LocalProcesses:
    """Worker processes of this machine, one core each.

    A worker that dies costs its job, which fails, and another takes its place. Workers end with this process, even if
    it is killed, and Ctrl-C reaches this process alone.
    """

    count: int

    def __str__(self) -> str:
        return f"{self.count} on this machine"

    def execute(
        self, function: Callable[[Job], Result], jobs: Sequence[Job], check: NodeCheck[Job] | None = None
    ) -> Generator[JobOutcome[Job, Result], None, None]:
        """Call a function on each job, and yield outcomes as they come; see `Workers`. There is nothing to check."""
        waiting = list(reversed(jobs))
        workers: list[_Worker[Job, Result]] = []
        deaths = 0  # since a worker last finished a job
        try:
            for _ in range(min(self.count, len(jobs))):
                workers.append(_Worker(function))
                workers[-1].give(waiting.pop())
            while busy := [worker for worker in workers if worker.is_busy]:
                ready = wait([worker.connection for worker in busy])
                for worker in (worker for worker in busy if worker.connection in ready):
                    outcome = worker.take()
                    deaths = 0 if worker.is_alive else deaths + 1
                    if not worker.is_alive and deaths < MAX_DEATHS:
                        worker.start()
                    if waiting and worker.is_alive:
                        worker.give(waiting.pop())
                    yield outcome
                    _check_deaths(deaths, outcome)
        finally:
            for worker in workers:
                worker.stop()


class _Worker(Generic[Job, Result]):
    """A process that does one job after another, and has a folder of its own for compiled loops."""

    def __init__(self, function: Callable[[Job], Result]):
        self._function = function
        self._jobs: list[Job] = []  # the one that it does, if any
        self._cache_folder = claim_cache_folder()
        self.start()

    def start(self) -> None:
        context = get_context("spawn")  # a fork of a process with threads may hang
        self.connection, there = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_work, args=(there, self._function), daemon=True)
        with signals_kept_from_children(), inherited_by_children(self._cache_folder):
            self._process.start()
        there.close()  # so that the end of the worker is the end of its connection
        self.is_alive = True

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def give(self, job: Job) -> None:
        self._jobs.append(job)
        with suppress(OSError):  # it has died, which `take` will see
            self.connection.send(job)

    def take(self) -> JobOutcome[Job, Result]:
        job = self._jobs.pop()
        try:
            outcome: JobOutcome[Job, Result] = self.connection.recv()
        except (EOFError, OSError):
            self.is_alive = False
            self._process.join()
            self.connection.close()
            return Failure(job, _cause_of_death(self._process.exitcode or 0))
        return outcome

    def stop(self) -> None:
        self._process.kill()  # it has nothing to put away
        self._process.join()
        self.connection.close()
        if self._cache_folder is not None:
            self._cache_folder.release()


@contextmanager
def signals_kept_from_children() -> Iterator[None]:
    """Block SIGINT and SIGTERM: what is started meanwhile keeps them blocked, and this process gets them afterwards.

    So a worker neither prints a traceback at Ctrl-C nor is left half started by it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where they see Ctrl-C and end
        yield
        return
    ensure_running()  # which would unblock them again, and the first child would see them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_deaths(deaths: int, outcome: JobOutcome[Any, Any]) -> None:
    if deaths >= MAX_DEATHS and isinstance(outcome, Failure):
        raise ValueError(f"Expected workers that finish jobs, but {deaths} in a row died. {outcome.error}")


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"The worker process ended with exit code {code}."
    hint = " If memory was short, use fewer workers." if -code == signal.SIGKILL else ""
    return f"The worker process was ended by {signal.Signals(-code).name}.{hint}"


def _work(connection: Connection, function: Callable[[Job], object]) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            connection.send(attempt(function, job))
        except Exception:  # what came out cannot be pickled
            connection.send(Failure(job, traceback.format_exc()))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
