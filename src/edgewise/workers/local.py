"""Runs in processes of this machine; this process gets what they find, and is the only one that writes."""

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from threading import Thread

from edgewise.sweep.runs import RunKey
from edgewise.workers.jobs import Failure, Job, Outcome, attempt

MOST_DEATHS = 10  # of workers in a row: then it is not the runs


def run_locally(keys: Sequence[RunKey], job: Job, workers: int) -> Generator[Outcome, None, None]:
    """Do runs in worker processes, and give their outcomes as they come.

    A worker that dies costs its run, which fails, and another takes its place. Workers end with this process, even if
    it is killed.
    """
    waiting = list(reversed(keys))
    crew: list[_Worker] = []
    deaths = 0  # since a worker last did what it was told
    try:
        for _ in range(min(workers, len(keys))):
            crew.append(_Worker(job))
            crew[-1].give(waiting.pop())
        while busy := [worker for worker in crew if worker.key is not None]:
            ready = wait([worker.connection for worker in busy])
            for worker in (worker for worker in busy if worker.connection in ready):
                outcome = worker.take()
                deaths = deaths + 1 if worker.has_died else 0
                if worker.has_died:
                    _check_deaths(deaths, outcome)
                    crew[crew.index(worker)] = worker = _Worker(job)
                if waiting:
                    worker.give(waiting.pop())
                yield outcome
    finally:
        for worker in crew:
            worker.stop()


class _Worker:
    """A process that does one run after another."""

    def __init__(self, job: Job):
        context = get_context("spawn")  # a fork of a process with threads may hang
        self.connection, there = context.Pipe()
        self.key: RunKey | None = None
        self.has_died = False
        self._process: SpawnProcess = context.Process(target=_work, args=(there, job), daemon=True)
        with ctrl_c_kept_from_children():
            self._process.start()
        there.close()  # so that the end of the worker is the end of its connection

    def give(self, key: RunKey) -> None:
        self.key = key
        with suppress(OSError):  # it has died, which `take` will see
            self.connection.send(key)

    def take(self) -> Outcome:
        key, self.key = self.key, None
        assert key is not None
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self.has_died = True
            self._process.join()
            self.connection.close()
            return Failure(key, _cause_of_death(self._process.exitcode or 0))
        return outcome

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self.connection.close()


@contextmanager
def ctrl_c_kept_from_children() -> Iterator[None]:
    """Block SIGINT for a moment: what is started in it keeps it blocked, and here it comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where they see it and end
        yield
        return
    ensure_running()  # which would unblock it again, and the first child would see it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_deaths(deaths: int, outcome: Outcome) -> None:
    if deaths > MOST_DEATHS and isinstance(outcome, Failure):
        raise ValueError(f"Expected workers that do runs, but {deaths} in a row died. {outcome.error}")


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"The worker process ended with exit code {code}."
    hint = " If memory was short, use fewer --workers." if -code == signal.SIGKILL else ""
    return f"The worker process was ended by {signal.Signals(-code).name}.{hint}"


def _work(connection: Connection, job: Job) -> None:
    Thread(target=end_with_parent, daemon=True).start()
    while True:
        try:
            key = connection.recv()
        except EOFError:
            return
        connection.send(attempt(job, key))


def end_with_parent() -> None:
    """Wait for the end of the process that started this one, and end too."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
