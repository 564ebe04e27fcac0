"""What a cluster says without one; real clusters are in tests/sweep/test_ray.py."""

import pickle
import socket
import sys
import time

import pytest

from edgewise.workers import Failure, Finished, RayCluster, cluster
from helpers.worker_jobs import work

JOBS = [1, 2, 3]


def test_nothing_to_do_needs_no_cluster() -> None:
    assert list(RayCluster("127.0.0.1:1").execute(work, [])) == []


def test_without_ray_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there
    with pytest.raises(ValueError, match=r'Expected Ray for --ray, .*not installed: pip install "edgewise\[ray\]"'):
        next(RayCluster("local").execute(work, JOBS))


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_answers_is_told_at_once(scheme: str) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")
    with socket.socket() as taken:  # but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(ValueError, match=rf"Ray cluster at --ray {address}, but got: .*refused.*ray start --head"):
            next(RayCluster(address).execute(work, JOBS))
    assert time.monotonic() - start < 600


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", ":6379", "127.0.0.1:port", "ray://", "ray://host"])
def test_what_is_no_address_is_told(address: str) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")
    with pytest.raises(ValueError, match=r"Expected local, auto, HOST:PORT or ray://HOST:PORT for --ray, but got"):
        next(RayCluster(address).execute(work, JOBS))


# --- what is done on a node, and what comes of it ---


@pytest.fixture
def on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process's cache where it is."""
    monkeypatch.setattr(cluster, "claim_for_this_process", lambda: None)


def no_odd_jobs(jobs: list[int]) -> str:
    return next((f"Expected even jobs, but got {job}." for job in jobs if job % 2), "")


@pytest.mark.usefixtures("on_a_node")
def test_a_node_does_what_it_has_no_objection_to() -> None:
    assert cluster._attempt_on_node(pickle.dumps((work, None, 3))) == Finished(3, 9)
    assert cluster._attempt_on_node(pickle.dumps((work, no_odd_jobs, 4))) == Finished(4, 16)
    objection = cluster._attempt_on_node(pickle.dumps((work, no_odd_jobs, 3)))
    assert objection == cluster._Objection("Expected even jobs, but got 3.")
    assert cluster._objection_of_node(pickle.dumps((no_odd_jobs, [2, 4]))) == ""
    assert cluster._objection_of_node(pickle.dumps((no_odd_jobs, [2, 5]))) == "Expected even jobs, but got 5."


@pytest.fixture
def ray() -> object:
    return pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")


def test_a_job_that_was_lost_too_often_is_told(ray: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(reference: object) -> None:
        raise ray.exceptions.WorkerCrashedError

    monkeypatch.setattr(ray, "get", lost)
    failure = cluster._outcome(object(), 1)
    assert isinstance(failure, Failure) and failure.job == 1
    assert failure.error.startswith("The job was lost 6 times, each time with its worker: The worker died unexpectedly")


def test_a_job_that_comes_to_no_end_is_told(ray: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(reference: object) -> None:
        raise ray.exceptions.ObjectLostError("ab" * 14, None, "")

    monkeypatch.setattr(ray, "get", broken)
    failure = cluster._outcome(object(), 1)
    assert isinstance(failure, Failure)
    assert failure.error.startswith("The job came to no end on the cluster: ")


def test_a_node_that_objects_in_the_middle_ends_all_and_fails_no_job(
    ray: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get", lambda reference: cluster._Objection("Expected torch 2 on every node."))
    with pytest.raises(
        ValueError, match=r"Expected torch 2 on every node\. What is finished is safe; then start again"
    ):
        cluster._outcome(object(), 1)
