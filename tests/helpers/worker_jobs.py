"""Jobs for the workers of tests."""

import os
import signal
from pathlib import Path
from threading import Event
from typing import NamedTuple

from helpers.processes import wait_until


class Report(NamedTuple):
    """The process that ran a job."""

    pid: int
    cache_folder: str | None
    threads: int


def work(job: object) -> object:
    """Run a job: square an integer, or behave as the name of the job says."""
    import torch

    match job:
        case "where":
            return Report(os.getpid(), os.environ.get("NUMBA_CACHE_DIR"), torch.get_num_threads())
        case "fail":
            raise ValueError("no luck")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "hang":
            Event().wait()
        case "unpicklable":
            return lambda: None
        case int():
            return job * job
    return None


def cache_statistics(job: object) -> tuple[int, int]:
    """Call a compiled function, and return how often it was loaded from the cache and how often compiled."""
    from compiled_example import double

    assert double(21) == 42
    return sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values())


def cache_statistics_of_two_workers(started: Path) -> tuple[str, tuple[int, int]]:
    """Wait until two workers have started such a job, and return the cache folder and statistics of this one."""
    (started / str(os.getpid())).touch()
    assert wait_until(lambda: len(list(started.iterdir())) == 2)
    return Path(os.environ["NUMBA_CACHE_DIR"]).name, cache_statistics(started)
