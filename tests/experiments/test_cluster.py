import json
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgewise.sweep.plan import Plan
from edgewise.sweep.reproduce import reproduce
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import Sources
from edgewise.sweep.store import Store
from edgewise.version import versions
from edgewise.workers import cluster
from edgewise.workers.cluster import run_on_ray
from edgewise.workers.jobs import Failure, Job, Outcome
from experiments.numbers import numbers
from experiments.processes import are_gone, is_alive, script, wait_until
from experiments.tiny import write_planetoid

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
    nodes: SimpleNamespace, job: Job, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes.address.startswith("127.0.0.1:")
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.setattr(cluster, "versions", lambda: {**versions(), "edgewise": "9.9.9"})
    message = rf"Expected edgewise 9\.9\.9 on every node, but node .* has {versions()['edgewise']}\..*Nothing was run"
    with pytest.raises(ValueError, match=message):
        next(run_on_ray(plan.runs(), job, "auto"))
    assert not ray.is_initialized()


def test_a_node_that_is_killed_costs_nothing(
    nodes: SimpleNamespace, job: Job, plan: Plan, undisturbed: list[Run], tmp_path: Path
) -> None:
    small = replace(plan, splits=1, inits=2)
    seen: list[Outcome] = []

    def kill_in_the_middle(outcome: Outcome) -> None:
        seen.append(outcome)
        if len(seen) == 2:
            node = raylet(nodes.first)
            assert wait_until(lambda: is_at_a_run(node), seconds=180)
            for process in (node, *node.children(recursive=True)):  # all that would go with a machine
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    execute = partial(run_on_ray, address=nodes.address)
    progress = reproduce(small, tmp_path, job.sources, execute, None, lambda _: kill_in_the_middle, "ray")
    assert progress.missing == []
    assert is_alive(raylet(nodes.second).pid)
    assert not ray.is_initialized()
    with Store.reading(tmp_path) as store:
        found = store.runs()
        assert [(command.runs, command.workers) for command in store.commands()] == [(small.size, "ray")]
        assert store.failures() == {}
    assert len(found) == small.size
    assert numbers(found) == expected_of(undisturbed, small.runs())  # the same table as the local one


# --- a cluster of our own ---


def test_a_local_cluster_listens_to_nobody_else_and_leaves_nothing(
    root: Path, tmp_path: Path, job: Job, plan: Plan, undisturbed: list[Run]
) -> None:
    text = """
        import json, os, sys
        import psutil
        from edgewise.workers.jobs import Job
        from edgewise.workers.cluster import OF_OUR_OWN_CLUSTER, check_address, run_on_ray
        from edgewise.sweep.plan import Plan
        from edgewise.sweep.sources import Sources
        from experiments.numbers import numbers
        from experiments.processes import is_alive

        def hosts_of(process):
            try:
                listening = (c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)
                return {connection.laddr.ip for connection in listening}
            except psutil.Error:
                if is_alive(process.pid):  # else it has ended meanwhile
                    raise
                return set()

        os.chdir(sys.argv[1])  # folders may be given from here
        keys = Plan(("cora",), ("gcn", "gmnn"), splits=2, folds=3, inits=2).runs()[:3]
        found, hosts, pids = [], set(), []
        check_address("local")  # as the command does before all else
        for outcome in run_on_ray(keys, Job(Sources("."), n_splits=2), "local"):
            found.append(outcome)
            if not pids:
                started = psutil.Process().children(recursive=True)
                pids = [process.pid for process in started]
                hosts = set().union(*map(hosts_of, started))
        told = {str(key): text for key, text in numbers(found).items()}
        left = [name for name in OF_OUR_OWN_CLUSTER if name in os.environ]
        print(json.dumps([told, sorted(hosts), pids, left]))
    """
    with script(tmp_path, text, root, without=SETTINGS) as process:
        out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    found, hosts, pids, left = json.loads(out)
    assert found == {str(key): text for key, text in expected_of(undisturbed, plan.runs()[:3]).items()}
    assert hosts
    assert set(hosts) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(pids) >= 3
    assert are_gone(pids, seconds=180)
    assert left == []


# --- no cluster ---


def test_nothing_to_do_needs_no_cluster(job: Job) -> None:
    assert list(run_on_ray([], job, "127.0.0.1:1")) == []


def test_without_ray_the_way_to_install_it_is_told(job: Job, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there
    with pytest.raises(ValueError, match=r'Expected Ray for --ray, .*not installed: pip install "edgewise\[ray\]"'):
        next(run_on_ray(plan.runs(), job, "local"))


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_answers_is_told_at_once(job: Job, plan: Plan, scheme: str) -> None:
    with socket.socket() as taken:  # but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(ValueError, match=rf"Ray cluster at --ray {address}, but got: .*refused.*ray start --head"):
            next(run_on_ray(plan.runs(), job, address))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", ":6379", "127.0.0.1:port", "ray://", "ray://host"])
def test_what_is_no_address_is_told(job: Job, plan: Plan, address: str) -> None:
    with pytest.raises(ValueError, match=r"Expected local, auto, HOST:PORT or ray://HOST:PORT for --ray, but got"):
        next(run_on_ray(plan.runs(), job, address))


# --- what a node says of itself ---


def expected_here(job: Job) -> cluster.Surroundings:
    return cluster._surroundings(job, "cora")


def test_a_node_like_this_one_does_the_run(job: Job, plan: Plan, undisturbed: list[Run]) -> None:
    key = plan.runs()[0]
    outcome = cluster._attempt_on_node(job, key, expected_here(job))
    assert numbers([outcome]) == expected_of(undisturbed, [key])


def test_a_node_without_the_data_says_so_and_writes_nothing(job: Job, plan: Plan, tmp_path: Path) -> None:
    key, there = plan.runs()[0], tmp_path / "not" / "there"
    there.mkdir(parents=True)  # it is where the command is given
    without_data, without_splits = Job(Sources(str(there)), 2), Job(Sources(job.sources.data_root, str(there)), 2)
    shutil.rmtree(there.parent)  # but not here
    objection = cluster._attempt_on_node(without_data, key, expected_here(job))
    assert isinstance(objection, cluster._Objection)
    assert f"Expected the folder {there} of --data-root on every node, but node" in objection.reason
    assert not there.parent.exists()
    assert f"the folder {there} of --splits-dir" in cluster._objection(without_splits, "cora", expected_here(job))


def test_a_node_with_other_data_or_packages_says_so(job: Job, plan: Plan, tmp_path: Path) -> None:
    other = Job(Sources(str(write_planetoid(tmp_path, seed=1))), 2)
    assert "Expected cora split 0" in cluster._objection(other, "cora", expected_here(job))
    newer = tuple((name, "99.0" if name == "torch" else value) for name, value in expected_here(job))
    assert "Expected torch 99.0 on every node, but node" in cluster._objection(job, "cora", newer)
    assert cluster._objection(job, "cora", expected_here(job)) == ""
    assert "python" not in dict(expected_here(job))  # its last digit changes no number


def test_a_run_that_was_lost_too_often_is_told(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(reference: object) -> None:
        raise ray.exceptions.WorkerCrashedError

    monkeypatch.setattr(ray, "get", lost)
    failure = cluster._outcome(object(), plan.runs()[0])
    assert isinstance(failure, Failure)
    assert failure.key == plan.runs()[0]
    assert failure.error.startswith("The run was lost 6 times, each time with its worker: The worker died unexpectedly")


def test_a_run_that_comes_to_no_end_is_told(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(reference: object) -> None:
        raise ray.exceptions.ObjectLostError("ab" * 14, None, "")

    monkeypatch.setattr(ray, "get", broken)
    failure = cluster._outcome(object(), plan.runs()[0])
    assert isinstance(failure, Failure)
    assert failure.error.startswith("The run came to no end on the cluster: ")


def test_a_node_that_objects_in_the_middle_ends_the_sweep_and_fails_no_run(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get", lambda reference: cluster._Objection("Expected torch 2 on every node."))
    with pytest.raises(ValueError, match=r"Expected torch 2 on every node\. Finished runs are safe; then start again"):
        cluster._outcome(object(), plan.runs()[0])
