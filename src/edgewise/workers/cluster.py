"""Runs as tasks of a Ray cluster; this process gets what they find, and is the only one that writes."""

import logging
import os
import platform
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from edgewise.sweep.runs import RunKey
from edgewise.version import versions
from edgewise.workers.jobs import Failure, Job, Outcome, attempt, task_of

if TYPE_CHECKING:
    import ray


RETRIES = 5  # of a run whose worker or node died; an error of the run itself is an outcome
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 180.0  # of a node that has to start Python and load the graphs
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

Surroundings = tuple[tuple[str, str], ...]  # names and values


def run_on_ray(keys: Sequence[RunKey], job: Job, address: str) -> Generator[Outcome, None, None]:
    """Do runs as tasks of a Ray cluster, one core each, and give their outcomes as they come.

    With the address "local" a cluster of this machine is started, and stopped in the end; "auto" is one that runs here
    already. A run whose worker or node dies is done again elsewhere. Nodes must have the same packages and data as
    this machine. All runs are handed over at once: a key is a kilobyte, and a cluster that grows on demand sees the
    demand.
    """
    if not keys:
        return
    job = _with_full_paths(job)
    with _connected(address):
        import ray

        expected = {dataset: _surroundings(job, dataset) for dataset in sorted({key.dataset for key in keys})}
        _check_nodes(job, expected)
        run = ray.remote(num_cpus=1, max_retries=RETRIES)(_attempt_on_node)
        running = {run.remote(job, key, expected[key.dataset]): key for key in keys}
        while running:
            for ended in ray.wait(list(running))[0]:
                yield _outcome(ended, running.pop(ended))


def _with_full_paths(job: Job) -> Job:
    """Name folders in full: tasks do not start in the folder of the command."""
    sources = job.sources
    folders = (Path(path).expanduser().resolve() if path else None for path in (sources.data_root, sources.splits_dir))
    data_root, splits_dir = (str(folder) if folder else None for folder in folders)
    return replace(job, sources=replace(sources, data_root=data_root, splits_dir=splits_dir))


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster, or start one, and leave or stop it in the end."""
    with _environment(_variables(address)):
        check_address(address)
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


def check_address(address: str) -> None:
    """Refuse an address where no cluster is; knock before Ray does, which takes minutes to give up."""
    with _environment(_variables(address)):  # Ray may be imported here for the first time
        try:
            import ray.util
        except ImportError as error:
            raise ValueError('Expected Ray for --ray, but it is not installed: pip install "edgewise[ray]"') from error
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


def _no_cluster(address: str, reason: str) -> ValueError:
    return ValueError(
        f"Expected a Ray cluster at --ray {address}, but got: {reason.rstrip('.')}. Start one by 'ray start --head', "
        "or use --ray local, or leave --ray out. For a cluster that asks for a token set RAY_AUTH_MODE=token."
    )


def _surroundings(job: Job, dataset: str) -> Surroundings:
    """Give what the numbers of a run depend on besides its key: versions, and fingerprints of the data."""
    packages = tuple((name, version) for name, version in versions().items() if name != "python")
    task = task_of(job, dataset)
    return (*packages, *((f"{dataset} split {split}", task.fingerprint(split)) for split in range(job.n_splits)))


def _check_nodes(job: Job, expected: Mapping[str, Surroundings]) -> None:
    """Refuse a cluster with a node whose numbers may differ, before any run."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_first_objection)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    answers = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            job, expected
        )
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
                f"Expected edgewise {versions()['edgewise']} on node {name}, but got: {_last_line(error)}. "
                'Install it there: pip install "edgewise[ray]"'
            ) from error
        if objection:
            raise ValueError(f"{objection} Nothing was run.")


def _first_objection(job: Job, expected: Mapping[str, Surroundings]) -> str:
    objections = (_objection(job, dataset, surroundings) for dataset, surroundings in expected.items())
    return next(filter(None, objections), "")


def _objection(job: Job, dataset: str, expected: Surroundings) -> str:
    """Say, on a node, what is not as it is where the command was given; nothing if all is."""
    node = f"node {platform.node()}"
    for option, folder in (("--data-root", job.sources.data_root), ("--splits-dir", job.sources.splits_dir)):
        if folder and not Path(folder).is_dir():
            return f"Expected the folder {folder} of {option} on every node, but {node} has none. Copy it there."
    try:
        found = dict(_surroundings(job, dataset))
    except Exception as error:
        return f"Expected to load {dataset} on {node}, but got: {error}"
    for name, value in expected:
        if found.get(name) != value:
            return f"Expected {name} {value} on every node, but {node} has {found.get(name)}. Make them the same."
    return ""


@dataclass(frozen=True)
class _Objection:
    """Why a node must not do runs."""

    reason: str


def _attempt_on_node(job: Job, key: RunKey, expected: Surroundings) -> Outcome | _Objection:
    # A node may have joined after the others were looked at.
    objection = _objection(job, key.dataset, expected)
    return _Objection(objection) if objection else attempt(job, key)


def _outcome(ended: "ray.ObjectRef[Outcome | _Objection]", key: RunKey) -> Outcome:
    import ray

    try:
        outcome: Outcome | _Objection = ray.get(ended)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        return Failure(key, f"The run was lost {RETRIES + 1} times, each time with its worker: {_last_line(error)}.")
    except ray.exceptions.RayError as error:
        return Failure(key, f"The run came to no end on the cluster: {_last_line(error)}.")
    if isinstance(outcome, _Objection):  # such a node is quick, and would refuse all that is left
        raise ValueError(
            f"{outcome.reason} Finished runs are safe; then start again, and only what is missing is done."
        )
    return outcome


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].rstrip(".")
