"""Jobs as tasks of a Ray cluster."""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from edgewise.version import __version__
from edgewise.workers.compiled_cache import claim_for_this_process
from edgewise.workers.outcomes import Failure, Job, JobOutcome, NodeCheck, Result, attempt

if TYPE_CHECKING:
    import ray


RETRIES = 5  # of a job whose worker or node died; an error of the job itself is an outcome
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 180.0  # of a node that has to start Python and to load data
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ADDRESSES = "local, auto, HOST:PORT or ray://HOST:PORT"

# Ray listens on 127.0.0.1 and nowhere else if it finds the first of these when it is imported, whatever its name says.
# A token of our own keeps others out, and Ray from leaving one in the home folder.
OF_OUR_OWN_CLUSTER = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": token_hex(32),
}
OF_ANOTHER_CLUSTER = {"RAY_gcs_server_port_wait_time_s": "1"}  # one attempt to connect, of half a minute, not twenty


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster by its address: "local" is one of this machine, started and stopped; "auto" one that runs here.

    A job whose worker or node dies is done again elsewhere. Nodes must have the same packages as this machine.
    """

    address: str
    count: None = None  # only the cluster knows how many cores it has

    def __str__(self) -> str:
        return f"ray {self.address}"

    def execute(
        self, function: Callable[[Job], Result], jobs: Sequence[Job], check: NodeCheck[Job] | None = None
    ) -> Generator[JobOutcome[Job, Result], None, None]:
        """Call a function on each job, and yield outcomes as they come; see `Workers`.

        All jobs are handed over at once: they are small, and a cluster that grows on demand sees the demand. Each node
        is asked by ``check`` about all jobs before any runs, and about each job that it gets: it may have joined later.
        """
        if not jobs:
            return
        with _connected(self.address):
            import ray
            from ray import cloudpickle

            if check is not None:
                _check_nodes(cloudpickle.dumps((check, list(jobs))))
            run = ray.remote(num_cpus=1, max_retries=RETRIES)(_attempt_on_node)
            running = {run.remote(cloudpickle.dumps((function, check, job))): job for job in jobs}
            while running:
                for ended in ray.wait(list(running))[0]:
                    yield _outcome(ended, running.pop(ended))

    def check_address(self) -> None:
        """Refuse an address where no cluster is; knock before Ray does, which takes minutes to give up."""
        address = self.address
        with _environment(_variables(address)):  # Ray may be imported here for the first time
            try:
                import ray.util
            except ImportError as error:
                raise ValueError(
                    'Expected Ray for --ray, but it is not installed: pip install "edgewise[ray]"'
                ) from error
        if address in ("local", "auto"):
            return
        is_client = address.startswith("ray://")
        host, _, port = address.removeprefix("ray://").rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdecimal():
            raise ValueError(f"Expected {ADDRESSES} for --ray, but got {address!r}.")
        if host in LOOPBACK and not is_client:
            host = ray.util.get_node_ip_address()  # Ray does the same
        try:
            socket.create_connection((host, int(port)), timeout=SECONDS_TO_CONNECT).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, f"{host} port {port}: {error}") from error


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster, or start one, and leave or stop it in the end."""
    with _environment(_variables(address)):
        RayCluster(address).check_address()
        import ray

        dashboard = False if address == "local" else None  # None: as it is
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
        except Exception as error:  # it raises anything
            ray.shutdown()
            raise _no_cluster(address, str(error)) from error
        try:
            yield
        finally:
            ray.shutdown()


def _variables(address: str) -> Mapping[str, str]:
    return OF_OUR_OWN_CLUSTER if address == "local" else OF_ANOTHER_CLUSTER


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while, but for those that are set."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _no_cluster(address: str, reason: str) -> ValueError:
    return ValueError(
        f"Expected a Ray cluster at --ray {address}, but got: {reason.rstrip('.')}. Start one by 'ray start --head', "
        "or use --ray local, or leave --ray out. For a cluster that asks for a token set RAY_AUTH_MODE=token."
    )


def _check_nodes(question: bytes) -> None:
    """Refuse a cluster with a node that must not do these jobs, before any runs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_objection_of_node)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    answers = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(question)
        for node in nodes
    ]
    ready = set(ray.wait(answers, num_returns=len(answers), timeout=SECONDS_TO_ANSWER)[0]) if answers else set()
    for node, answer in zip(nodes, answers, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        if answer not in ready:
            raise ValueError(f"Expected an answer of node {name}, but none came in {SECONDS_TO_ANSWER:.0f} seconds.")
        try:
            objection = ray.get(answer)
        except ray.exceptions.RayError as error:
            # Most often it has no edgewise, and cannot even read the question.
            raise ValueError(
                f"Expected edgewise {__version__} on node {name}, but got: {_last_line(error)}. "
                'Install it there: pip install "edgewise[ray]"'
            ) from error
        if objection:
            raise ValueError(f"{objection} Nothing was run.")


@dataclass(frozen=True)
class _Objection:
    """Why a node must not do a job."""

    reason: str


# What is done on nodes comes as bytes: to read it imports compiled loops, after their folder was chosen.


def _objection_of_node(question: bytes) -> str:
    claim_for_this_process()
    check, jobs = pickle.loads(question)
    return str(check(jobs))


def _attempt_on_node(task: bytes) -> JobOutcome[Any, Any] | _Objection:
    claim_for_this_process()
    function, check, job = pickle.loads(task)
    objection = check([job]) if check is not None else ""
    return _Objection(objection) if objection else attempt(function, job)


def _outcome(ended: "ray.ObjectRef[Any]", job: Job) -> JobOutcome[Job, Any]:
    import ray

    try:
        outcome: JobOutcome[Job, Any] | _Objection = ray.get(ended)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        return Failure(job, f"The job was lost {RETRIES + 1} times, each time with its worker: {_last_line(error)}.")
    except ray.exceptions.RayError as error:
        return Failure(job, f"The job came to no end on the cluster: {_last_line(error)}.")
    if isinstance(outcome, _Objection):  # such a node is quick, and would refuse all that is left
        raise ValueError(
            f"{outcome.reason} What is finished is safe; then start again, and only what is missing is done."
        )
    return outcome


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].rstrip(".")
