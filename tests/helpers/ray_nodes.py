"""Ray clusters for tests: a head that runs no tasks and two nodes of one core, on the loopback interface."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import psutil
import pytest

SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on 127.0.0.1 only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # so that Ray writes none to the home folder
    "RAY_gcs_server_port_wait_time_s": "600",  # seconds; on a busy machine, processes start slowly
    "RAY_worker_register_timeout_seconds": "600",
}
with pytest.MonkeyPatch.context() as patch:
    for name, value in SETTINGS.items():
        patch.setenv(name, value)  # Ray reads the first when it is imported
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")

MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:subprocess .* is still running:ResourceWarning",  # Ray does not wait for the processes that it started
        "ignore:unclosed .*socket:ResourceWarning",
    ),
]
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def ray_settings() -> Iterator[None]:
    """Let Ray use a temporary folder, whose path must be short."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, value in {**SETTINGS, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def two_nodes() -> Iterator[SimpleNamespace]:
    """Start the cluster, and yield its address and its nodes."""
    from ray.cluster_utils import Cluster

    config = {"health_check_period_ms": 500}  # notice soon that a node has died
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": config, **SMALL})
    try:
        first, second = (started.add_node(num_cpus=1, **SMALL) for _ in range(2))
        yield SimpleNamespace(address=started.address, first=first, second=second)
    finally:
        ray.shutdown()
        started.shutdown()


def raylet(node: object) -> psutil.Process:
    """Return the process that manages a node."""
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def running_worker(node: psutil.Process) -> psutil.Process | None:
    """Return a worker of the node that runs a task of `RayCluster`, or None."""
    for process in node.children():
        with suppress(psutil.NoSuchProcess):  # it has ended
            if "_attempt_on_node" in process.name():
                return process
    return None


def is_running_a_job(node: psutil.Process) -> bool:
    """Return whether a worker of the node runs a task of `RayCluster`."""
    return running_worker(node) is not None


def kill_node(node: object) -> None:
    """Kill all processes of a node."""
    manager = raylet(node)
    for process in (manager, *manager.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
