"""Runs on real Ray clusters, whose nodes are all on this machine. Slow: starting a cluster takes half a minute."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgewise.paper.recipes import paper_plan
from edgewise.sweep import sources
from edgewise.sweep.own_models import read_own_models
from edgewise.sweep.plan import Plan
from edgewise.sweep.run import Runner, run_sweep
from edgewise.sweep.runs import Run, RunKey
from edgewise.sweep.sources import Sources
from edgewise.sweep.store import Store
from edgewise.version import versions
from edgewise.workers import JobOutcome, LocalProcesses, RayCluster
from helpers.processes import is_alive, script, wait_until, wait_until_ended
from helpers.ray_nodes import MARKS, SETTINGS, is_running_a_job, kill_node, ray, ray_settings, raylet, two_nodes
from helpers.run_numbers import numbers

pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with ray_settings():
        yield


@pytest.fixture(scope="module")
def nodes() -> Iterator[SimpleNamespace]:
    with two_nodes() as nodes:
        yield nodes


def expected_of(full_runs: list[Run], keys: list) -> dict:
    return {key: text for key, text in numbers(full_runs).items() if key in keys}


# --- a running cluster with several nodes ---


def test_other_package_version_on_a_node_is_refused_before_any_run(
    nodes: SimpleNamespace, root: Path, full_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes.address.startswith("127.0.0.1:")
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.setattr(sources, "versions", lambda: {**versions(), "scipy": "9.9.9"})
    with pytest.raises(ValueError, match=rf"scipy 9\.9\.9 .* node .* has {versions()['scipy']}\..*Nothing was run"):
        run_sweep(full_plan, tmp_path, Sources(str(root)), RayCluster("auto"), lambda _: print)
    assert not ray.is_initialized()


@pytest.mark.usefixtures("forget_own_models")
def test_model_in_a_file_that_the_nodes_do_not_have(nodes: SimpleNamespace, root: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "graph_sage.py"
    path = tmp_path / "sage_for_ray.py"
    path.write_text(example.read_text(encoding="utf-8") + "\n\nsage = ew.Network(GraphSAGE, max_epochs=5)\n")
    (sage,) = read_own_models([f"{path}:sage"]).values()
    path.unlink()
    plan = paper_plan(("cora",), ("gcn", sage), 1, 1, 1, ("temperature",))
    progress = run_sweep(plan, tmp_path, Sources(str(root)), RayCluster(nodes.address), lambda _: print)
    assert progress.missing == [], progress.failures
    runner = Runner(Sources(str(root)), 1, plan.recipes, plan.calibrators)
    local = [outcome.result for outcome in LocalProcesses(1).execute(runner, plan.runs())]
    assert numbers(progress.runs) == numbers(local)


def test_killed_node_loses_no_run(
    nodes: SimpleNamespace, root: Path, full_plan: Plan, full_runs: list[Run], tmp_path: Path
) -> None:
    small = replace(full_plan, splits=1, inits=2)
    seen: list[JobOutcome[RunKey, Run]] = []

    def kill_in_the_middle(outcome: JobOutcome[RunKey, Run]) -> None:
        seen.append(outcome)
        if len(seen) == 2:
            node = raylet(nodes.first)
            assert wait_until(lambda: is_running_a_job(node))
            kill_node(nodes.first)

    workers = RayCluster(nodes.address)
    progress = run_sweep(small, tmp_path, Sources(str(root)), workers, lambda _: kill_in_the_middle)
    assert progress.missing == []
    assert is_alive(raylet(nodes.second).pid)
    assert not ray.is_initialized()
    with Store.reading(tmp_path) as store:
        runs = store.runs()
        assert [(command.runs, command.workers) for command in store.commands()] == [
            (small.size, f"ray {nodes.address}")
        ]
        assert store.failures() == {}
    assert len(runs) == small.size
    assert numbers(runs) == expected_of(full_runs, small.runs())  # the same as in local processes


# --- a local cluster ---


def test_local_cluster_listens_on_loopback_only_and_leaves_no_process(
    root: Path, tmp_path: Path, full_plan: Plan, full_runs: list[Run]
) -> None:
    text = """
        import json, os, sys
        import psutil
        from pathlib import Path
        from edgewise.sweep.plan import Plan
        from edgewise.sweep.run import run_sweep
        from edgewise.sweep.sources import Sources
        from edgewise.workers import RayCluster
        from edgewise.workers.cluster import LOCAL_CLUSTER_VARIABLES
        from helpers.run_numbers import numbers
        from helpers.processes import is_alive

        def hosts_of(process):
            try:
                listening = (c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)
                return {connection.laddr.ip for connection in listening}
            except psutil.Error:
                if is_alive(process.pid):  # else it has ended
                    raise
                return set()

        def inspect(outcome):
            if not pids:
                started = psutil.Process().children(recursive=True)
                pids.extend(process.pid for process in started)
                hosts.update(*map(hosts_of, started))

        os.chdir(sys.argv[1])  # paths may be relative
        hosts, pids, workers = set(), [], RayCluster("local")
        workers.check_address()  # as the command does first
        plan = Plan(("cora",), ("gcn",), splits=2, folds=1, inits=1)
        runs = run_sweep(plan, Path(sys.argv[2]), Sources("."), workers, lambda _: inspect).runs
        results = {str(key): text for key, text in numbers(runs).items()}
        left = [name for name in LOCAL_CLUSTER_VARIABLES if name in os.environ]
        print(json.dumps([results, sorted(hosts), pids, left]))
    """
    with script(tmp_path, text, root, tmp_path / "out", without=SETTINGS) as process:
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        results, hosts, pids, left = json.loads(out)
        assert len(pids) >= 3
        assert wait_until_ended(pids)
    keys = [key for key in full_plan.runs() if (key.model, key.fold, key.init) == ("gcn", 0, 0)]
    assert len(keys) == 2
    assert results == {str(key): text for key, text in expected_of(full_runs, keys).items()}
    assert hosts
    assert set(hosts) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert left == []
