"""Ray workers without a cluster. Tests with real clusters are in tests/sweep/test_ray.py."""

import pickle
import socket
import sys

import pytest

from edgewise.workers import Failure, Finished, RayCluster, cluster
from helpers.worker_jobs import work

JOBS = [1, 2, 3]


def test_no_jobs_need_no_cluster() -> None:
    assert list(RayCluster("127.0.0.1:1").execute(work, [])) == []


def test_missing_ray_raises_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r'pip install "edgewise\[ray\]"'):
        next(RayCluster("local").execute(work, JOBS))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_address_without_a_cluster_raises(scheme: str) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")
    with socket.socket() as taken:  # but it does not listen
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"{address}.*refused.*ray start --head"):
            next(RayCluster(address).execute(work, JOBS))


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", ":6379", "127.0.0.1:port", "ray://", "ray://host"])
def test_invalid_address_raises(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT .* for --ray"):
        next(RayCluster(address).execute(work, JOBS))


# --- tasks on a node, and their outcomes ---


@pytest.fixture
def keep_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not change the cache folder of this process."""
    monkeypatch.setattr(cluster, "claim_for_this_process", lambda: None)


def refuse_odd_jobs(jobs: list[int]) -> str:
    return next((f"Expected even jobs, but got {job}." for job in jobs if job % 2), "")


@pytest.mark.usefixtures("keep_cache_folder")
def test_node_runs_only_jobs_that_pass_the_check() -> None:
    assert cluster._attempt_on_node(pickle.dumps((work, None, 3))) == Finished(3, 9)
    assert cluster._attempt_on_node(pickle.dumps((work, refuse_odd_jobs, 4))) == Finished(4, 16)
    refusal = cluster._attempt_on_node(pickle.dumps((work, refuse_odd_jobs, 3)))
    assert refusal == cluster._Refusal("Expected even jobs, but got 3.")
    assert cluster._check_on_node(pickle.dumps((refuse_odd_jobs, [2, 4]))) == ""
    assert cluster._check_on_node(pickle.dumps((refuse_odd_jobs, [2, 5]))) == "Expected even jobs, but got 5."


@pytest.fixture
def ray() -> object:
    return pytest.importorskip("ray", reason="needs Ray: pip install 'edgewise[ray]'")


@pytest.mark.slow
def test_job_whose_worker_died_too_often_fails(ray: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(reference: object) -> None:
        raise ray.exceptions.WorkerCrashedError

    monkeypatch.setattr(ray, "get", lost)
    failure = cluster._outcome(object(), 1)
    assert isinstance(failure, Failure) and failure.job == 1
    assert "6 times" in failure.error and "The worker died unexpectedly" in failure.error


@pytest.mark.slow
def test_job_that_the_cluster_cannot_finish_fails(ray: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(reference: object) -> None:
        raise ray.exceptions.ObjectLostError("ab" * 14, None, "")

    monkeypatch.setattr(ray, "get", broken)
    failure = cluster._outcome(object(), 1)
    assert isinstance(failure, Failure) and failure.job == 1
    assert "The cluster could not finish" in failure.error and "have been lost" in failure.error


@pytest.mark.slow
def test_refusal_by_a_node_stops_the_sweep_and_fails_no_job(ray: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda reference: cluster._Refusal("Expected torch 2 on every node."))
    with pytest.raises(ValueError, match=r"Expected torch 2 on every node\..*again to continue"):
        cluster._outcome(object(), 1)
