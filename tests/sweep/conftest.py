from pathlib import Path

import pytest

from edgewise.paper.recipes import RECIPES
from edgewise.sweep.plan import Plan
from edgewise.sweep.run import Runner
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import Sources
from edgewise.workers import Finished, LocalProcesses
from helpers.one_thread import one_thread
from helpers.quick_recipes import QUICK_RECIPES
from helpers.tiny_datasets import write_planetoid

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Cora in Planetoid's files."""
    return write_planetoid(tmp_path_factory.mktemp("planetoid"))


@pytest.fixture(scope="session")
def plan() -> Plan:
    """Twelve runs that each take a few hundredths of a second."""
    return Plan(("cora",), ("gcn", "gmnn"), splits=2, folds=3, inits=1, recipes=QUICK_RECIPES)


@pytest.fixture(scope="session")
def runner(root: Path, plan: Plan) -> Runner:
    return Runner(Sources(str(root)), plan.splits, plan.recipes)


@pytest.fixture(scope="session")
def finished_runs(runner: Runner, plan: Plan) -> list[Run]:
    """All runs of the plan, run in this process."""
    return [runner(key) for key in plan.runs()]


@pytest.fixture(scope="session")
def full_plan() -> Plan:
    """Runs with the hyperparameters of the paper, for commands and clusters. Each takes about a third of a second."""
    return Plan(("cora",), ("gcn", "gmnn"), splits=2, folds=3, inits=3, recipes=RECIPES)


@pytest.fixture(scope="session")
def full_runs(root: Path, full_plan: Plan) -> list[Run]:
    """All runs of the full plan, run in two worker processes without interruption."""
    runner = Runner(Sources(str(root)), full_plan.splits, full_plan.recipes)
    outcomes = list(LocalProcesses(2).execute(runner, full_plan.runs()))
    assert all(isinstance(outcome, Finished) for outcome in outcomes)
    return [outcome.result for outcome in outcomes]
