from pathlib import Path

import pytest

from edgewise.paper.recipes import RECIPES
from edgewise.sweep.plan import Plan
from edgewise.sweep.run import Runner
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import Sources
from edgewise.workers import Finished, LocalProcesses
from helpers.one_thread import one_thread
from helpers.tiny_datasets import write_planetoid

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Cora in Planetoid's files."""
    return write_planetoid(tmp_path_factory.mktemp("planetoid"))


PLAN = Plan(("cora",), ("gcn", "gmnn"), splits=2, folds=3, inits=3, recipes=RECIPES)


@pytest.fixture(scope="session")
def plan() -> Plan:
    """Runs of about a third of a second."""
    return PLAN


@pytest.fixture(scope="session")
def runner(root: Path) -> Runner:
    return Runner(Sources(str(root)), PLAN.splits, RECIPES)


@pytest.fixture(scope="session")
def undisturbed(runner: Runner) -> list[Run]:
    """Do the runs of the plan in two worker processes, and nothing happens."""
    outcomes = list(LocalProcesses(2).execute(runner, PLAN.runs()))
    assert all(isinstance(outcome, Finished) for outcome in outcomes)
    return [outcome.result for outcome in outcomes]
