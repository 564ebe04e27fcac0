"""Runs of tables that are stopped, continued, or interrupted, and their memory."""

import errno
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import edgewise as ew
from edgewise.tables.edge_sums import EdgeSums
from edgewise.tables.table_jobs import TableProgress
from helpers.processes import script
from helpers.table_files import Graph, assert_same, cut, prob_lists, write_parts

table_evaluation = import_module("edgewise.tables.table_evaluation")
NUM_PARTS, EDGES_PER_PART = 6, 1_000

RUN = """
    import os, signal, sys
    from importlib import import_module
    import edgewise as ew

    module = import_module("edgewise.tables.table_evaluation")
    module.EDGES_PER_JOB, module.EDGES_PER_NODE_AND_JOB = 1_000, 0
    folder, work, what, rows, number = sys.argv[1:]

    def stop(progress):
        if progress.what == what and progress.rows >= int(rows):
            os.kill(os.getpid(), int(number))

    paths = {name: f"{folder}/{name}" for name in ("probs", "labels", "mask", "edges")}
    ew.evaluate_tables(**paths, work=work or None, progress=stop)
"""


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_evaluation, "EDGES_PER_JOB", EDGES_PER_PART)
    monkeypatch.setattr(table_evaluation, "EDGES_PER_NODE_AND_JOB", 0)


@pytest.fixture(scope="module", params=["integer", "text"])
def graph(request: pytest.FixtureRequest) -> Graph:
    rng, num_nodes = np.random.default_rng(0), 300
    ids = pa.array([f"n{k}" for k in range(num_nodes)]) if request.param == "text" else pa.array(range(num_nodes))
    probs = torch.from_numpy(rng.dirichlet(np.ones(3), num_nodes))
    y, mask = torch.from_numpy(rng.integers(0, 3, num_nodes)), torch.from_numpy(rng.random(num_nodes) < 0.8)
    edges = torch.from_numpy(rng.integers(0, num_nodes, (2, NUM_PARTS * EDGES_PER_PART)))
    return Graph(ids, probs, y, edges, mask)


@pytest.fixture
def paths(graph: Graph, tmp_path: Path) -> dict[str, Path]:
    """Return the folders of tables in six parts each, whose edges are in any direction."""
    folders = {}
    for name, table in graph.tables().items():
        limits = [len(table) * k // NUM_PARTS for k in range(1, NUM_PARTS)]
        folders[name] = write_parts(cut(table, limits), "parquet", tmp_path / name)
    return folders


def stopped_run(tmp_path: Path, work: Path | str, what: str, rows: int, number: signal.Signals) -> int:
    """Evaluate tables in another process, which sends a signal to itself when it has read some rows."""
    with script(tmp_path, RUN, tmp_path, work, what, rows, int(number)) as process:
        _, errors = process.communicate()
        assert errors == "" or "KeyboardInterrupt" in errors, errors
        return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("what", "rows"), [("probabilities", 1), ("edges", 3_001), ("edges again", 2_001)])
def test_killed_run_continues_with_finished_jobs(
    graph: Graph, paths: dict[str, Path], tmp_path: Path, what: str, rows: int
) -> None:
    work = tmp_path / "work"
    assert stopped_run(tmp_path, work, what, rows, signal.SIGKILL) == -signal.SIGKILL
    finished = {file: file.stat().st_mtime_ns for file in work.glob("edges/*.npz")}
    assert len(finished) == {"edges": 3, "edges again": NUM_PARTS}.get(what, 0)
    calls: list[TableProgress] = []
    resumed = ew.evaluate_tables(**paths, work=work, progress=calls.append)
    assert_same(resumed, graph.evaluate())
    assert all(file.stat().st_mtime_ns == time for file, time in finished.items())
    assert ("ids" in {call.what for call in calls}) == (not finished)
    first = next(call for call in calls if call.what == "edges")
    assert first[1:] == (len(finished) * EDGES_PER_PART, NUM_PARTS * EDGES_PER_PART, len(finished), NUM_PARTS)
    again = ew.evaluate_tables(**paths, work=work)
    assert_same(again, resumed)
    assert again.settings.notes == resumed.settings.notes


@pytest.mark.slow
@pytest.mark.parametrize(("what", "rows"), [("edges", 2_001), ("edges again", 1)])
def test_interrupt_removes_temporary_files(
    paths: dict[str, Path], tmp_path: Path, what: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    assert stopped_run(tmp_path, "", what, rows, signal.SIGINT) == -signal.SIGINT
    assert [file for file in scratch.rglob("*") if "edgewise" in file.name] == []


def test_interrupt_leaves_nothing_half_written(graph: Graph, paths: dict[str, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"

    def interrupt(progress: TableProgress) -> None:
        if progress.what == "edges again" and progress.rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ew.evaluate_tables(**paths, work=work, progress=interrupt)
    written = {file.relative_to(work).as_posix() for file in work.rglob("*") if file.is_file()}
    nodes = {"nodes/ids.parquet"} if pa.types.is_string(graph.ids.type) else set()
    nodes |= {f"nodes/{name}" for name in ("labels.npy", "nodes.json", "records.npy", "state.npy")}
    assert written == {"plan.json", *nodes, *(f"edges/job-{k:05d}.npz" for k in range(NUM_PARTS))}
    assert_same(ew.evaluate_tables(**paths, work=work), graph.evaluate())


@pytest.mark.parametrize("change", ["content", "time", "part", "option"])
def test_changed_inputs_are_refused(paths: dict[str, Path], tmp_path: Path, change: str) -> None:
    work, options, changed = tmp_path / "work", {}, "edges"
    ew.evaluate_tables(**paths, work=work, norm="l1")
    part = paths["edges"] / "part-003.parquet"
    if change == "content":
        parquet.write_table(parquet.read_table(part).slice(1), part)
    elif change == "time":
        part.touch()
    elif change == "part":
        part.unlink()
    else:
        options = {"edge_choice": "any", "n_bins": 3, "columns": {"src": "dst", "dst": "src"}}
        changed = "bins, columns, options"
    with pytest.raises(ValueError, match=f"{work} .*{changed} changed"):
        ew.evaluate_tables(**paths, work=work, **options)
    (tmp_path / "other").mkdir()
    ew.evaluate_tables(**paths, work=tmp_path / "other", norm="l2", **options)  # the way out works


def test_folder_with_other_files_is_refused(paths: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="holds other files"):
        ew.evaluate_tables(**paths, work=paths["edges"])


HOLD = """
    import sys
    from importlib import import_module
    import edgewise as ew

    import_module("edgewise.tables.table_evaluation").EDGES_PER_JOB = 1_000
    folder, work = sys.argv[1:]

    def wait(progress):
        print("working", flush=True)
        sys.stdin.read()

    ew.evaluate_tables(f"{folder}/probs", f"{folder}/labels", work=work, progress=wait)
"""


def test_second_run_in_a_folder_is_refused_until_the_first_one_ends(
    graph: Graph, paths: dict[str, Path], tmp_path: Path
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    scored = {name: paths[name] for name in ("probs", "labels")}
    with script(tmp_path, HOLD, tmp_path, work) as process:
        assert process.stdout.readline() == "working\n"
        with pytest.raises(ValueError, match=f"no other run in {work}.*work \\(--work\\)"):
            ew.evaluate_tables(**scored, work=work)
        process.kill()
        process.communicate()
    assert ew.evaluate_tables(**scored, work=work).nodewise.count == ew.evaluate(graph.probs, graph.y).nodewise.count

    def second(progress: TableProgress) -> None:
        with pytest.raises(ValueError, match=f"no other run in {out}.*out \\(--out\\)"):
            ew.predict_tables(paths["probs"], paths["probs"], out, columns={"src": "nid", "dst": "nid"})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ew.predict_tables(paths["probs"], paths["edges"], out, progress=second, skip_unknown=True)


def test_file_systems_without_locks_are_used(
    graph: Graph, paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert_same(ew.evaluate_tables(**paths, work=tmp_path / "work"), graph.evaluate())


def test_leftovers_of_a_killed_run_are_removed(graph: Graph, paths: dict[str, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    ew.evaluate_tables(**paths, work=work)
    kept = {file for file in work.rglob("*") if file.is_file()}
    (work / "resolved.npz").unlink()
    for name in ("duckdb/spill.tmp", "nodes/duckdb/spill.tmp", "partitions/partition-00000.bin", "edges/.1.tmp"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(bytes(1600))
    assert_same(ew.evaluate_tables(**paths, work=work), graph.evaluate())
    assert {file for file in work.rglob("*") if file.is_file()} == kept


@contextmanager
def limited_files(num_bytes: int) -> Iterator[None]:
    """Limit the size of files that this process writes, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("given", ["work", "temporary"])
@pytest.mark.parametrize("what", ["nodes", "partitions"])
def test_full_disk_is_one_line_that_names_the_folder(what: str, given: str, tmp_path: Path) -> None:
    num_nodes, num_edges = {"nodes": (20_000, 10), "partitions": (100, 60_000)}[what]
    ends = np.random.default_rng(0).integers(0, num_nodes, (2, num_edges))
    tables = {
        "probs": pa.table({"nid": range(num_nodes), "pred": [[0.75, 0.25]] * num_nodes}),
        "labels": pa.table({"nid": range(num_nodes), "label": [0] * num_nodes}),
        "edges": pa.table({"src": ends[0], "dst": ends[1]}),
    }
    paths = {name: write_parts([table], "parquet", tmp_path / name) for name, table in tables.items()}
    work = tmp_path / "work" if given == "work" else None
    # Records of 20,000 nodes take 800 kB, a job with few nodes 530 kB, and the ends of 60,000 edges 960 kB.
    with limited_files(700_000), pytest.raises(ValueError, match="Expected space for intermediate results") as error:
        ew.evaluate_tables(**paths, work=work)
    assert "\n" not in str(error.value)
    assert str(work or "edgewise-") in str(error.value) and "File too large" in str(error.value)
    assert (
        ew.evaluate_tables(**paths, work=work).edgewise.count
        == ew.evaluate(np.tile([0.75, 0.25], (num_nodes, 1)), np.zeros(num_nodes, dtype=int), ends).edgewise.count
    )


def test_more_partitions_than_open_files(graph: Graph, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.tables.edge_jobs.EDGES_PER_PARTITION", 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))  # of about 400 partitions
    try:
        assert_same(ew.evaluate_tables(**paths), graph.evaluate())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_url_as_folder_is_refused(paths: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="local folder"):
        ew.evaluate_tables(**paths, work="s3://bucket/work")


def test_tables_in_memory_are_refused_for_runs_to_continue(
    graph: Graph, paths: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="labels in files"):
        ew.evaluate_tables(**paths | {"labels": graph.tables()["labels"]}, work=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_sums_of_jobs_add_up_in_any_order(graph: Graph, paths: dict[str, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    ew.evaluate_tables(**paths, work=work)
    jobs = [EdgeSums.load(file) for file in sorted(work.glob("edges/*.npz"))]
    assert len(jobs) == NUM_PARTS

    def merge(order: list[EdgeSums]) -> list[list[object]]:
        total = order[0]
        for job in order[1:]:
            total = total + job
        return [array.tolist() for array in (*total.forward, total.checksums)] + [[*total.counts]]

    expected = merge(jobs)
    assert all(merge(list(order)) == expected for order in list(permutations(jobs))[::60])
    grouped = [jobs[0] + jobs[1], jobs[2] + (jobs[3] + jobs[4]), jobs[5]]
    assert merge(grouped) == expected


@pytest.mark.parametrize("edges_per_job", [1, 2_500, 10**9])
def test_any_number_of_jobs_gives_the_same_bits(
    graph: Graph, paths: dict[str, Path], edges_per_job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_evaluation, "EDGES_PER_JOB", edges_per_job)
    assert_same(ew.evaluate_tables(**paths), graph.evaluate())


MEASURE = """
    import re, sys
    from pathlib import Path
    import edgewise as ew

    folder = sys.argv[1]
    for name in ("short", "long"):
        ew.evaluate_tables(f"{folder}/probs", f"{folder}/labels", f"{folder}/{name}")
        # ru_maxrss would have the memory of the process that started this one, too.
        print(int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "directions"), [("integer", "both"), ("text", "any")])
def test_memory_does_not_depend_on_the_number_of_edges(kind: str, directions: str, tmp_path: Path) -> None:
    """The short table has 10^7 edges. The other 3·10^7 edges of the long one alone would take 480 MB as numbers."""
    rng, num_nodes, num_edges, copies = np.random.default_rng(0), 1_000, 1_000_000, {"short": 10, "long": 40}
    ids = pa.array([f"node-{k}" for k in range(num_nodes)]) if kind == "text" else pa.array(range(num_nodes))
    probs = torch.from_numpy(rng.dirichlet(np.ones(3), num_nodes))
    write_parts([pa.table({"nid": ids, "pred": prob_lists(probs)})], "parquet", tmp_path / "probs")
    write_parts([pa.table({"nid": ids, "y": rng.integers(0, 3, num_nodes)})], "parquet", tmp_path / "labels")
    start, end = rng.integers(0, num_nodes, (2, num_edges))
    if directions == "both":
        start[num_edges // 2 :], end[num_edges // 2 :] = end[: num_edges // 2], start[: num_edges // 2]
    edges = pa.table({"src": ids.take(pa.array(start)), "dst": ids.take(pa.array(end))})
    file = write_parts([edges], "parquet", tmp_path / "edges") / "part-000.parquet"
    for name, number in copies.items():
        (tmp_path / name).mkdir()
        for k in range(number):
            (tmp_path / name / f"{k}.parquet").hardlink_to(file)
    with script(tmp_path, MEASURE, tmp_path) as process:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
    short, long = map(int, output.split())
    assert long < min(short + 300, 1_500), (short, long)  # MiB, of which the imported libraries take about 350


def test_join_of_a_table_in_memory_holds_the_nodes_and_not_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.tables.node_ids.ENGINE_MEMORY", "20MB")
    rng, num_nodes, num_edges = np.random.default_rng(0), 50, 200_000
    probs, labels = rng.dirichlet(np.ones(4), num_nodes), rng.integers(0, 4, num_nodes)
    ends = rng.integers(0, num_nodes, (2, num_edges))
    ids = pa.array([f"node number {k}" for k in range(num_nodes)])
    ev = ew.evaluate_tables(
        pa.table({"nid": ids, "pred": probs.tolist()}),
        pa.table({"nid": ids, "label": labels}),
        pa.table({"src": ids.take(pa.array(ends[0])), "dst": ids.take(pa.array(ends[1]))}),
    )
    assert ev.edgewise.count == ew.evaluate(probs, labels, ends).edgewise.count
