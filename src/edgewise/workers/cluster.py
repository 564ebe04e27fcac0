"""Workers as tasks on a Ray cluster."""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from edgewise.version import __version__
from edgewise.workers.compiled_cache import claim_for_this_process
from edgewise.workers.outcomes import Failure, Job, JobOutcome, NodeCheck, Result, attempt

if TYPE_CHECKING:
    import ray


MAX_RETRIES = 5  # of a job whose worker or node died; an exception in the job is not retried
CONNECT_TIMEOUT_SECONDS = 30.0
NODE_CHECK_TIMEOUT_SECONDS = 600.0  # a node starts Python and loads the data
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ADDRESS_FORMATS = "local, auto, HOST:PORT or ray://HOST:PORT"

# Environment variables for a cluster that we start. If Ray finds the first one when it is imported, it listens on
# 127.0.0.1 only, in spite of the name. The token keeps others out, and Ray from writing a token to the home folder.
LOCAL_CLUSTER_VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": token_hex(32),
    "RAY_gcs_server_port_wait_time_s": "600",  # seconds; on a busy machine, processes start slowly
    "RAY_worker_register_timeout_seconds": "600",
}
# Environment variables for a running cluster: one attempt to connect, of half a minute, instead of twenty.
RUNNING_CLUSTER_VARIABLES = {"RAY_gcs_server_port_wait_time_s": "1"}


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster by address: "local" starts and stops one on this machine, "auto" finds a running one.

    A job whose worker or node dies is retried elsewhere. Nodes must have the same packages as this machine.
    """

    address: str
    count: None = None  # the number of cores is unknown and may change

    def __str__(self) -> str:
        return f"ray {self.address}"

    def execute(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        check: NodeCheck[Job] | None = None,
        group: Callable[[Job], Hashable] | None = None,
        shared: object = None,
    ) -> Generator[JobOutcome[Job, Result], None, None]:
        """Call a function on each job and yield outcomes, see `Workers`.

        All jobs are submitted at once: they are small, and a cluster that scales on demand sees the demand. ``check``
        is called on each node with all jobs before any runs, and again with each job, as nodes may join later. Ray
        chooses the process of each job, so ``group`` is not used. ``shared`` is a second argument of the function, such
        as large arrays, which every node copies once.
        """
        if not jobs:
            return
        with _connected(self.address):
            import ray
            from ray import cloudpickle

            if check is not None:
                _check_nodes(cloudpickle.dumps((check, list(jobs))))
            run = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_attempt_on_node)
            arguments = () if shared is None else (ray.put(shared),)
            running = {run.remote(cloudpickle.dumps((function, check, job)), *arguments): job for job in jobs}
            while running:
                for ended in ray.wait(list(running))[0]:
                    yield _outcome(ended, running.pop(ended))

    def check_address(self) -> None:
        """Raise ValueError if no cluster answers at the address. Ray itself would try for minutes."""
        address = self.address
        is_client = address.startswith("ray://")
        host, _, port = address.removeprefix("ray://").rpartition(":")
        host = host.strip("[]")
        if address not in ("local", "auto") and not (host and port.isdecimal()):
            raise ValueError(f"Expected {ADDRESS_FORMATS} for --ray, but got {address!r}.")
        with _default_environment(_variables(address)):  # read by Ray at its first import
            try:
                import ray.util
            except ImportError as error:
                raise ValueError(
                    'Expected Ray for --ray, but it is not installed. Install it: pip install "edgewise[ray]"'
                ) from error
        if address in ("local", "auto"):
            return
        if host in LOOPBACK_HOSTS and not is_client:
            host = ray.util.get_node_ip_address()  # Ray does the same
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster_error(address, f"{host} port {port}: {error}") from error


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster or start one, and disconnect or stop it afterwards."""
    with _default_environment(_variables(address)):
        RayCluster(address).check_address()
        import ray

        if ray.is_initialized():  # by the caller, who also ends it
            yield
            return
        dashboard = False if address == "local" else None  # None: do not change it
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
        except Exception as error:  # ray.init raises many types
            ray.shutdown()
            raise _no_cluster_error(address, str(error)) from error
        try:
            yield
        finally:
            ray.shutdown()


def _variables(address: str) -> Mapping[str, str]:
    return LOCAL_CLUSTER_VARIABLES if address == "local" else RUNNING_CLUSTER_VARIABLES


@contextmanager
def _default_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within this context, except those that are set already."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _no_cluster_error(address: str, reason: str) -> ValueError:
    return ValueError(
        f"Expected a Ray cluster at --ray {address}, but got: {reason.rstrip('.')}. Start one with 'ray start --head', "
        "or use --ray local, or omit --ray. If the cluster requires a token, set RAY_AUTH_MODE=token."
    )


def _check_nodes(check_and_jobs: bytes) -> None:
    """Raise ValueError if a node must not run these jobs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    check_task = ray.remote(num_cpus=0)(_check_on_node)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    answers = [
        check_task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            check_and_jobs
        )
        for node in nodes
    ]
    ready = (
        set(ray.wait(answers, num_returns=len(answers), timeout=NODE_CHECK_TIMEOUT_SECONDS)[0]) if answers else set()
    )
    for node, answer in zip(nodes, answers, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        if answer not in ready:
            raise ValueError(
                f"Expected an answer of node {name}, but got none in {NODE_CHECK_TIMEOUT_SECONDS:.0f} seconds. "
                "Check the node."
            )
        try:
            reason = ray.get(answer)
        except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
            continue  # it has left the cluster since it was listed, so it runs no job
        except ray.exceptions.RayError as error:
            # Most often edgewise is not installed there, so the arguments cannot be unpickled.
            raise ValueError(
                f"Expected edgewise {__version__} on node {name}, but got: {_last_line(error)}. "
                'Install it there: pip install "edgewise[ray]"'
            ) from error
        if reason:
            raise ValueError(f"{reason} Nothing was run.")


@dataclass(frozen=True)
class _Refusal:
    """The reason why a node must not run a job."""

    reason: str


# Arguments arrive as bytes, because unpickling imports compiled functions, whose cache folder must be chosen first.


def _check_on_node(check_and_jobs: bytes) -> str:
    claim_for_this_process()
    check, jobs = pickle.loads(check_and_jobs)
    return str(check(jobs))


def _attempt_on_node(task: bytes, *shared: Any) -> JobOutcome[Any, Any] | _Refusal:
    claim_for_this_process()
    function, check, job = pickle.loads(task)
    reason = check([job]) if check is not None else ""
    return _Refusal(reason) if reason else attempt(lambda job: function(job, *shared), job)


def _outcome(ended: "ray.ObjectRef[Any]", job: Job) -> JobOutcome[Job, Any]:
    import ray

    try:
        outcome: JobOutcome[Job, Any] | _Refusal = ray.get(ended)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        return Failure(job, f"The worker of this job died {MAX_RETRIES + 1} times: {_last_line(error)}.")
    except ray.exceptions.RayError as error:
        return Failure(job, f"The cluster could not finish this job: {_last_line(error)}.")
    if isinstance(outcome, _Refusal):  # the node would quickly fail all remaining jobs
        raise ValueError(f"{outcome.reason} Fix this and run the command again to continue.")
    return outcome


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].rstrip(".")
