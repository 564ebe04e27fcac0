from pathlib import Path

import pytest

from edgewise.sweep.plan import Plan
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import Sources
from edgewise.workers.jobs import Job
from edgewise.workers.local import run_locally
from experiments.tiny import write_planetoid
from one_thread import one_thread

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Cora in Planetoid's files."""
    return write_planetoid(tmp_path_factory.mktemp("planetoid"))


@pytest.fixture(scope="session")
def job(root: Path) -> Job:
    return Job(Sources(str(root)), n_splits=2)


PLAN = Plan(("cora",), ("gcn", "gmnn"), splits=2, folds=3, inits=3)


@pytest.fixture(scope="session")
def plan() -> Plan:
    """Runs of about a third of a second."""
    return PLAN


@pytest.fixture(scope="session")
def undisturbed(job: Job) -> list[Run]:
    """Do the runs of the plan in two worker processes, and nothing happens."""
    runs = list(run_locally(PLAN.runs(), job, workers=2))
    assert all(isinstance(run, Run) for run in runs)
    return runs
