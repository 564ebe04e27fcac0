"""Tables whose rows are scored or predicted by tasks on a Ray cluster, also if a node dies or the driver is killed."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import compute as pc
from pyarrow import parquet

import edgewise as ew
from edgewise.tables.table_jobs import TableProgress
from helpers.processes import is_alive, script, wait_until
from helpers.ray_nodes import (
    MARKS,
    is_running_a_job,
    kill_node,
    ray,
    ray_settings,
    raylet,
    running_worker,
    two_nodes,
)

pytestmark = MARKS
NUM_PARTS, EDGES_PER_PART = 6, 400_000


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    with ray_settings():
        yield


@pytest.fixture(scope="module")
def nodes() -> Iterator[SimpleNamespace]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("edgewise.tables.table_evaluation"), "EDGES_PER_JOB", EDGES_PER_PART)


@pytest.fixture(scope="module", params=["integer", "text"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, rng = tmp_path_factory.mktemp(request.param), np.random.default_rng(0)
    num_nodes, num_classes = 20_000, 4
    probs = rng.dirichlet(np.ones(num_classes), num_nodes)
    ids = (
        pa.array(np.arange(num_nodes)) if request.param == "integer" else pa.array([f"n{k}" for k in range(num_nodes)])
    )
    paths = {name: folder / name for name in ("probs", "labels", "edges")}
    for path in paths.values():
        path.mkdir()
    parquet.write_table(pa.table({"nid": ids, "pred": list(probs)}), paths["probs"] / "0.parquet")
    labels = rng.integers(0, num_classes, num_nodes)
    parquet.write_table(pa.table({"nid": ids, "label": labels}), paths["labels"] / "0.parquet")
    for k in range(NUM_PARTS):
        start, end = (ids.take(pa.array(rng.integers(0, num_nodes, EDGES_PER_PART))) for _ in range(2))
        parquet.write_table(pa.table({"src": start, "dst": end}), paths["edges"] / f"{k}.parquet")
    return paths


def assert_same(first: ew.Evaluation, second: ew.Evaluation) -> None:
    assert all(torch.equal(sums.table, second._sums[view].table) for view, sums in first._sums.items())
    assert first.settings.notes == second.settings.notes


def test_cluster_gives_the_bits_of_one_process(nodes: SimpleNamespace, tables: dict[str, Path]) -> None:
    on_cluster = ew.evaluate_tables(**tables, ray=nodes.address, same_label=True)
    assert_same(on_cluster, ew.evaluate_tables(**tables, same_label=True))
    assert not ray.is_initialized()


def test_bad_part_is_named(nodes: SimpleNamespace, tables: dict[str, Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    ids = parquet.read_table(tables["probs"]).column("nid")
    unknown = ids.slice(0, 2).to_pylist() + ([10**9] if pa.types.is_integer(ids.type) else ["unknown"])
    parquet.write_table(pa.table({"src": unknown, "dst": ids.slice(0, 3)}), bad)
    parts = [*sorted(tables["edges"].iterdir()), bad]
    with pytest.raises(ValueError, match=r"row 2 .*bad\.parquet|row 2 of .*bad\.parquet"):
        ew.evaluate_tables(tables["probs"], tables["labels"], parts, ray=nodes.address)


def test_sums_of_a_single_job_are_read_only(nodes: SimpleNamespace, tables: dict[str, Path]) -> None:
    edges = sorted(tables["edges"].iterdir())[0]
    paths = tables["probs"], tables["labels"], edges
    assert_same(
        ew.evaluate_tables(*paths, ray=nodes.address, same_label=True), ew.evaluate_tables(*paths, same_label=True)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # options of Ray Data that Ray itself sets
def test_ray_dataset(nodes: SimpleNamespace, tables: dict[str, Path]) -> None:
    with_paths = ew.evaluate_tables(**tables)
    ray.init(nodes.address, log_to_driver=False)
    try:
        datasets = {name: ray.data.read_parquet(str(path)) for name, path in tables.items()}
        assert_same(ew.evaluate_tables(**datasets, ray=nodes.address), with_paths)
        assert ray.is_initialized()  # by the caller, who also ends it
    finally:
        ray.shutdown()


def test_killed_driver_continues_with_finished_jobs(
    nodes: SimpleNamespace, tables: dict[str, Path], tmp_path: Path
) -> None:
    text = """
        import os, signal, sys
        from importlib import import_module
        import edgewise as ew

        module = import_module("edgewise.tables.table_evaluation")
        module.EDGES_PER_JOB = int(sys.argv[1])
        folder, work, address = sys.argv[2:]

        def kill_after_two_jobs(progress):
            if progress.what == "edges" and progress.parts == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        paths = [f"{folder}/{name}" for name in ("probs", "labels", "edges")]
        ew.evaluate_tables(*paths, work=work, ray=address, progress=kill_after_two_jobs)
    """
    work, folder = tmp_path / "work", tables["edges"].parent
    with script(tmp_path, text, EDGES_PER_PART, folder, work, nodes.address) as process:
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
    finished = {path: path.stat().st_mtime_ns for path in (work / "edges").iterdir()}
    assert 1 <= len(finished) < NUM_PARTS
    resumed = ew.evaluate_tables(**tables, work=work, ray=nodes.address)
    assert all(path.stat().st_mtime_ns == time for path, time in finished.items())
    assert_same(resumed, ew.evaluate_tables(**tables))


def test_pairs_are_predicted_with_the_bits_of_one_process(
    nodes: SimpleNamespace, tables: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job has pairs for two files, and they are in order."""
    monkeypatch.setattr(import_module("edgewise.tables.pair_prediction"), "PAIRS_PER_PART", EDGES_PER_PART // 2)
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for file in sorted(tables["edges"].iterdir())[:3]:
        table = parquet.read_table(file)
        parquet.write_table(table.filter(pc.not_equal(table["src"], table["dst"])), pairs / file.name)
    on_cluster = ew.predict_tables(tables["probs"], pairs, tmp_path / "cluster", ray=nodes.address)
    here = ew.predict_tables(tables["probs"], pairs, tmp_path / "here")
    assert on_cluster == replace(here, folder=on_cluster.folder)
    assert here.num_parts == 6
    assert parquet.read_table(on_cluster.folder).equals(parquet.read_table(here.folder), check_metadata=True)
    assert parquet.read_table(here.folder, columns=["start", "end"]).equals(
        parquet.read_table(pairs).rename_columns(["start", "end"])
    )


def test_bad_pair_is_named(nodes: SimpleNamespace, tables: dict[str, Path], tmp_path: Path) -> None:
    ids = parquet.read_table(tables["probs"]).column("nid")
    bad = pa.table({"src": ids.take([0, 1, 2]), "dst": ids.take([1, 0, 2])})
    parquet.write_table(bad, tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=r"row 2 of .*bad\.parquet.*itself"):
        ew.predict_tables(tables["probs"], tmp_path / "bad.parquet", tmp_path / "out", ray=nodes.address)


def test_killed_worker_loses_no_job(nodes: SimpleNamespace, tables: dict[str, Path]) -> None:
    killed: list[int] = []

    def kill_once(progress: TableProgress) -> None:
        def kill() -> bool:
            if (worker := running_worker(raylet(nodes.second))) is None:
                return False
            worker.kill()
            killed.append(worker.pid)
            return True

        if progress.what == "edges" and progress.rows and not killed:
            assert wait_until(kill)

    assert_same(ew.evaluate_tables(**tables, ray=nodes.address, progress=kill_once), ew.evaluate_tables(**tables))
    assert len(killed) == 1


def test_killed_node_loses_no_job(nodes: SimpleNamespace, tables: dict[str, Path]) -> None:
    if not is_alive(raylet(nodes.first).pid):
        pytest.skip("the node was killed with the other kind of ids")
    seen: list[tuple[int, int]] = []

    def kill_in_the_middle(progress: TableProgress) -> None:
        if progress.what == "edges" and progress.rows:
            seen.append((progress.parts, progress.rows))
            if len(seen) == 1:
                assert wait_until(lambda: is_running_a_job(raylet(nodes.first)))
                kill_node(nodes.first)

    on_cluster = ew.evaluate_tables(**tables, ray=nodes.address, progress=kill_in_the_middle)
    assert seen == [(k, k * EDGES_PER_PART) for k in range(1, NUM_PARTS + 1)]
    assert_same(on_cluster, ew.evaluate_tables(**tables))
    assert_same(ew.evaluate_tables(**tables, ray=nodes.address), on_cluster)  # Ray may still list the dead node
