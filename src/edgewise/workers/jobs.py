"""One run as workers do it, wherever they are: what they are told, and what they give back."""

import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgewise.sweep.runs import Run, RunKey
from edgewise.sweep.sources import Sources, Task


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and why."""

    key: RunKey
    error: str


Outcome = Run | Failure


@dataclass(frozen=True)
class Job:
    """What a worker needs to know besides the key."""

    sources: Sources
    n_splits: int
    fitted: str | None = None  # a folder to keep trained models in


@cache
def task_of(job: Job, dataset: str) -> Task:
    """Load a graph with its splits; a process keeps those that it has loaded."""
    return job.sources.task(dataset, job.n_splits)


def attempt(job: Job, key: RunKey) -> Outcome:
    """Do a run; an error of it is an outcome too."""
    import torch

    from edgewise.sweep.run import FittedFiles, perform

    torch.set_num_threads(1)  # one run a core
    try:
        files = None if job.fitted is None else FittedFiles(Path(job.fitted))
        return perform(key, task_of(job, key.dataset), files)
    except Exception:
        return Failure(key, traceback.format_exc())
