"""Runs on real Ray clusters, whose nodes are all on this machine."""

import json
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgewise.sweep import sources
from edgewise.sweep.plan import Plan
from edgewise.sweep.run import run_sweep
from edgewise.sweep.runs import Run, RunKey
from edgewise.sweep.sources import Sources
from edgewise.sweep.store import Store
from edgewise.version import versions
from edgewise.workers import JobOutcome, RayCluster
from helpers.processes import are_gone, is_alive, script, wait_until
from helpers.run_numbers import numbers

SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on 127.0.0.1 only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # leave none in the home folder
}
with pytest.MonkeyPatch.context() as patch:
    for name, value in SETTINGS.items():
        patch.setenv(name, value)  # Ray reads the first when it is imported
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")

pytestmark = pytest.mark.filterwarnings(
    "ignore:subprocess .* is still running:ResourceWarning",  # Ray leaves those that it started to themselves
    "ignore:unclosed .*socket:ResourceWarning",
)
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    """Let Ray keep its files in a folder that goes with the tests; its path must be short."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, value in {**SETTINGS, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def nodes() -> Iterator[SimpleNamespace]:
    """Start a head, which runs no tasks, and two nodes of one core each, on the loopback interface."""
    from ray.cluster_utils import Cluster

    quick_to_notice = {"health_check_period_ms": 500}  # that a node has died
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick_to_notice, **SMALL})
    try:
        first, second = (started.add_node(num_cpus=1, **SMALL) for _ in range(2))
        yield SimpleNamespace(address=started.address, first=first, second=second)
    finally:
        ray.shutdown()
        started.shutdown()


def raylet(node: object) -> psutil.Process:
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def is_at_a_run(node: psutil.Process) -> bool:
    for process in node.children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "_attempt_on_node" in process.name():
                return True
    return False


def expected_of(undisturbed: list[Run], keys: list) -> dict:
    return {key: text for key, text in numbers(undisturbed).items() if key in keys}


# --- a cluster of several nodes ---


def test_another_version_on_the_nodes_is_refused_before_any_run(
    nodes: SimpleNamespace, root: Path, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes.address.startswith("127.0.0.1:")
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.setattr(sources, "versions", lambda: {**versions(), "scipy": "9.9.9"})
    message = rf"Expected scipy 9\.9\.9 on every node, but node .* has {versions()['scipy']}\..*Nothing was run"
    with pytest.raises(ValueError, match=message):
        run_sweep(plan, tmp_path, Sources(str(root)), RayCluster("auto"), lambda _: print)
    assert not ray.is_initialized()


def test_a_node_that_is_killed_costs_nothing(
    nodes: SimpleNamespace, root: Path, plan: Plan, undisturbed: list[Run], tmp_path: Path
) -> None:
    small = replace(plan, splits=1, inits=2)
    seen: list[JobOutcome[RunKey, Run]] = []

    def kill_in_the_middle(outcome: JobOutcome[RunKey, Run]) -> None:
        seen.append(outcome)
        if len(seen) == 2:
            node = raylet(nodes.first)
            assert wait_until(lambda: is_at_a_run(node), seconds=600)
            for process in (node, *node.children(recursive=True)):  # all that would go with a machine
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    workers = RayCluster(nodes.address)
    progress = run_sweep(small, tmp_path, Sources(str(root)), workers, lambda _: kill_in_the_middle)
    assert progress.missing == []
    assert is_alive(raylet(nodes.second).pid)
    assert not ray.is_initialized()
    with Store.reading(tmp_path) as store:
        found = store.runs()
        assert [(command.runs, command.workers) for command in store.commands()] == [
            (small.size, f"ray {nodes.address}")
        ]
        assert store.failures() == {}
    assert len(found) == small.size
    assert numbers(found) == expected_of(undisturbed, small.runs())  # the same table as the local one


# --- a cluster of our own ---


def test_a_local_cluster_listens_to_nobody_else_and_leaves_nothing(
    root: Path, tmp_path: Path, plan: Plan, undisturbed: list[Run]
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
                if is_alive(process.pid):  # else it has ended meanwhile
                    raise
                return set()

        def look(outcome):
            if not pids:
                started = psutil.Process().children(recursive=True)
                pids.extend(process.pid for process in started)
                hosts.update(*map(hosts_of, started))

        os.chdir(sys.argv[1])  # folders may be given from here
        hosts, pids, workers = set(), [], RayCluster("local")
        workers.check_address()  # as the command does before all else
        plan = Plan(("cora",), ("gcn",), splits=2, folds=1, inits=1)
        found = run_sweep(plan, Path(sys.argv[2]), Sources("."), workers, lambda _: look).runs
        told = {str(key): text for key, text in numbers(found).items()}
        left = [name for name in LOCAL_CLUSTER_VARIABLES if name in os.environ]
        print(json.dumps([told, sorted(hosts), pids, left]))
    """
    with script(tmp_path, text, root, tmp_path / "out", without=SETTINGS) as process:
        out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    found, hosts, pids, left = json.loads(out)
    keys = [key for key in plan.runs() if (key.model, key.fold, key.init) == ("gcn", 0, 0)]
    assert len(keys) == 2
    assert found == {str(key): text for key, text in expected_of(undisturbed, keys).items()}
    assert hosts
    assert set(hosts) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(pids) >= 3
    assert are_gone(pids, seconds=600)
    assert left == []
