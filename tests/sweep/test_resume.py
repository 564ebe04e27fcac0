import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from statistics import median

import psutil
import pytest

from edgewise.sweep import run as run_module
from edgewise.sweep.plan import Plan
from edgewise.sweep.progress import Progress
from edgewise.sweep.result_file import StoreError
from edgewise.sweep.run import read_progress, run_sweep
from edgewise.sweep.runs import Run, RunKey
from edgewise.sweep.sources import Sources
from edgewise.sweep.store import FILE_NAME, Store
from edgewise.version import versions
from edgewise.workers import Failure, Finished, JobOutcome, LocalProcesses
from helpers.in_process_workers import InProcessWorkers
from helpers.processes import are_gone, started, wait_until
from helpers.run_numbers import numbers
from helpers.tiny_datasets import write_planetoid

Outcome = JobOutcome[RunKey, Run]

# --- in this process, with runs from a hat ---


class Hat:
    """Workers that have runs which were done before, but for some that fail; and remember what they were asked for."""

    count = 2

    def __init__(self, runs: Sequence[Run], fails: Sequence[RunKey] = ()):
        self.runs, self.fails, self.asked = {run.key: run for run in runs}, set(fails), []

    def execute(self, function: object, keys: Sequence[RunKey], check: object = None) -> Generator[Outcome, None, None]:
        for key in keys:
            self.asked.append(key)
            yield Failure(key, "Traceback\nOuch: hat") if key in self.fails else Finished(key, self.runs[key])


def do(plan: Plan, folder: Path, root: Path, hat: Hat, limit: int | None = None) -> Progress:
    """Run a sweep, and stop after so many outcomes as if Ctrl-C were pressed."""
    seen: list[Outcome] = []

    def notice(outcome: Outcome) -> None:
        seen.append(outcome)
        if len(seen) == limit:
            raise KeyboardInterrupt

    return run_sweep(plan, folder, Sources(str(root)), hat, lambda progress: notice)


def stored(folder: Path) -> list[tuple[object, ...]]:
    """Give all columns of all runs but those that tell of time, without our code."""
    connection = sqlite3.connect(folder / FILE_NAME)
    try:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM runs")]
    finally:
        connection.close()
    return sorted(tuple(value for name, value in row.items() if name not in ("seconds", "finished")) for row in rows)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, undisturbed: list[Run]) -> list[tuple[object, ...]]:
    """The rows of a sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Store.writing(folder) as store:
        for run in undisturbed:
            store.add(run)
    return stored(folder)


def test_resume_skips_finished_runs(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run], expected: list[tuple[object, ...]]
) -> None:
    small = replace(plan, models=("gcn",), splits=1)
    hat = Hat(undisturbed)
    assert do(small, tmp_path, root, hat).missing == []
    assert hat.asked == small.runs()
    with pytest.raises(KeyboardInterrupt):
        do(plan, tmp_path, root, hat, limit=5)
    assert do(plan, tmp_path, root, hat).missing == []
    assert sorted(hat.asked) == sorted(plan.runs())  # each once
    assert stored(tmp_path) == expected
    with Store.reading(tmp_path) as store:
        assert [command.runs for command in store.commands()] == [9, 5, plan.size - 14]
        assert [(task.dataset, task.split) for task in store.tasks()] == [("cora", 0), ("cora", 1)]


def test_the_plan_is_told_without_a_trace(tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run]) -> None:
    folder = tmp_path / "results"
    assert read_progress(plan, folder, 1).missing == plan.runs()
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt):
        do(plan, folder, root, Hat(undisturbed), limit=4)
    before = (folder / FILE_NAME).read_bytes()
    progress = read_progress(plan, folder, 2)
    assert progress.missing == plan.runs()[4:]
    assert progress.seconds_left > 0
    assert progress.seconds_left == pytest.approx(read_progress(plan, folder, 1).seconds_left / 2)
    assert read_progress(replace(plan, models=("epfgnn",)), folder, 1).runs == []  # those of others do not count
    assert (folder / FILE_NAME).read_bytes() == before


def test_failures_are_kept_and_tried_again(tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run]) -> None:
    fail = plan.runs()[1::7]
    progress = do(plan, tmp_path, root, Hat(undisturbed, fail))
    assert list(progress.failures) == progress.missing == fail
    assert progress.seconds_left == 0  # nothing is under way
    with Store.reading(tmp_path) as store:
        assert store.failures() == dict.fromkeys(fail, "Traceback\nOuch: hat")
    hat = Hat(undisturbed)
    assert do(plan, tmp_path, root, hat).failures == {}
    assert hat.asked == fail
    with Store.reading(tmp_path) as store:
        assert store.failures() == {}
        assert len(store.runs()) == plan.size


def test_other_data_is_refused_before_any_run(tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run]) -> None:
    with pytest.raises(KeyboardInterrupt):
        do(plan, tmp_path / "results", root, Hat(undisturbed), limit=2)
    other, hat = write_planetoid(tmp_path / "other", seed=1), Hat(undisturbed)
    with pytest.raises(StoreError, match=r"Expected the cora whose runs are in .*results\.sqlite, but its graph or"):
        do(plan, tmp_path / "results", other, hat)
    assert hat.asked == []
    do(plan, tmp_path / "results", root, hat)


@pytest.mark.parametrize("package", ["edgewise", "torch", "scipy", "numba"])
def test_runs_of_other_versions_are_refused_before_any_run(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        do(plan, tmp_path, root, Hat(undisturbed), limit=2)
    monkeypatch.setattr(run_module, "versions", lambda: {**versions(), package: "9.9.9"})
    hat = Hat(undisturbed)
    with pytest.raises(
        StoreError, match=rf"store of {package} 9\.9\.9, but .* has runs of {package} .*name another --out"
    ):
        do(plan, tmp_path, root, hat)
    assert hat.asked == []


def test_a_version_that_runs_do_not_name_is_not_compared(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run]
) -> None:
    """Earlier versions did not record that of scipy; their stores can be gone on with, and reported."""
    first, second = plan.runs()[:2]
    done = {run.key: run for run in undisturbed}
    without = {name: version for name, version in versions().items() if name != "scipy"}
    with Store.writing(tmp_path) as store:
        for key in (first, second):
            store.add(replace(done[key], versions=without))
    hat = Hat(undisturbed)
    assert do(plan, tmp_path, root, hat).missing == []
    assert hat.asked == plan.runs()[2:]
    with Store.reading(tmp_path) as store:
        assert sum("scipy" in run.versions for run in store.runs()) == plan.size - 2


def test_runs_of_other_hyperparameters_are_refused(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run]
) -> None:
    run = next(run for run in undisturbed if run.key.model == "gmnn")
    with Store.writing(tmp_path) as store:
        store.add(replace(run, key=replace(run.key, hyperparameters="[{}]")))
    hat = Hat(undisturbed)
    with pytest.raises(StoreError, match=r"runs of cora gmnn with the hyper-parameters of this edgewise.*--out"):
        do(plan, tmp_path, root, hat)
    assert hat.asked == []
    do(replace(plan, models=("gcn",)), tmp_path, root, hat)  # which has none of them


def test_an_error_of_the_writer_ends_the_workers(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, run: Run) -> None:
        raise StoreError("The disk is full.")

    ended = []

    class Watched(Hat):
        def execute(self, *args: object) -> Generator[Outcome, None, None]:
            try:
                yield from super().execute(*args)
            finally:
                ended.append("workers")

    monkeypatch.setattr(Store, "add", full)
    with pytest.raises(StoreError, match="full"):
        run_sweep(plan, tmp_path, Sources(str(root)), Watched(undisturbed), lambda progress: lambda outcome: None)
    assert ended == ["workers"]


def test_any_number_of_workers_finds_the_same_numbers(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run]
) -> None:
    """``undisturbed`` had two; here is one, and this process."""
    small = replace(plan, splits=1, inits=1, folds=2)
    expected = {key: text for key, text in numbers(undisturbed).items() if key in small.runs()}
    for workers in (LocalProcesses(1), InProcessWorkers()):
        folder = tmp_path / type(workers).__name__
        run_sweep(small, folder, Sources(str(root)), workers, lambda progress: lambda outcome: None)
        with Store.reading(folder) as store:
            assert numbers(store.runs()) == expected
    assert active_children() == []
    assert len(set(numbers(undisturbed).values())) == plan.size  # and no two runs of the plan are alike


# --- as a command, which is killed ---


def command(out: Path, root: Path, plan: Plan, workers: int = 2) -> list[str]:
    of_plan = ["--datasets", *plan.datasets, "--models", *plan.models, "--splits", plan.splits, "--inits", plan.inits]
    options = ["--out", out, "--data-root", root, *of_plan, "--workers", workers]
    return [sys.executable, "-m", "edgewise", "reproduce", *map(str, options)]


def num_rows(out: Path) -> int:
    """Count finished runs, of which there are none before the table is there."""
    if not (out / FILE_NAME).exists():
        return 0
    connection = sqlite3.connect(f"file:{out / FILE_NAME}?mode=ro", uri=True, timeout=60)
    try:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError as error:
        # The last two of a journal that a kill left, which only a writer may roll back.
        assert any(words in str(error) for words in ("no such table", "unable to open", "readonly"))
        return 0
    finally:
        connection.close()


def kill_when(process: subprocess.Popen[bytes], out: Path, new_rows: int | None, pause: float) -> None:
    """Kill the command, and only it, some time after so many runs have been written, or while it starts."""
    before = num_rows(out)
    if new_rows is None:
        wait_until(lambda: num_rows(out) > before, seconds=pause)
    else:
        assert wait_until(lambda: num_rows(out) >= before + new_rows or process.poll() is not None, seconds=300)
        time.sleep(pause)
    workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert process.poll() is None  # it was at work
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert are_gone(workers, seconds=60)


def test_a_sweep_that_is_killed_ten_times_ends_as_if_it_had_not_been(
    tmp_path: Path, root: Path, plan: Plan, undisturbed: list[Run], expected: list[tuple[object, ...]]
) -> None:
    seed = random.randrange(10**6)
    print("seed of the moments:", seed)  # shown if the test fails
    out, log, moments = tmp_path / "results", tmp_path / "log", random.Random(seed)
    run_seconds = median(run.seconds for run in undisturbed)  # the first compiles too
    # New rows to wait for, None for a kill while it starts; then some seconds more. In the time of a run there are at
    # most two more rows, so the ten kills leave some of the 36.
    kills = [(None, moments.uniform(0.1, 4)) for _ in range(5)] + [
        (new_rows, moments.uniform(0, run_seconds)) for new_rows in (1, 1, 2, 2, 3)
    ]
    moments.shuffle(kills)
    left = []
    for new_rows, pause in kills:
        with started(command(out, root, plan, workers=1), log) as process:  # most of the time goes to imports
            kill_when(process, out, new_rows, pause)
        left.append(plan.size - num_rows(out))
    assert len(left) == 10
    assert left == sorted(left, reverse=True)  # nothing that was there was lost
    assert 0 < left[-1] <= plan.size - 9  # there was work left for the last command, and work done before

    with started(command(out, root, plan), log) as process:
        assert process.wait(timeout=1800) == 0, log.read_text()
    assert stored(out) == expected  # every run once, and each with the same numbers
    with Store.reading(out) as store:
        assert store.failures() == {}
        done = [entry.runs for entry in store.commands()]
        assert sum(done) == plan.size
        assert done[-1] == left[-1]  # and none of them twice


def test_ctrl_c_leaves_a_store_to_go_on_with(tmp_path: Path, root: Path, plan: Plan) -> None:
    out, log = tmp_path / "results", tmp_path / "log"
    with started(command(out, root, plan), log) as process:
        assert wait_until(lambda: num_rows(out) >= 2 or process.poll() is not None, seconds=300)
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)  # all get it, as from a terminal
        assert process.wait(timeout=600) == 130
    assert are_gone(workers, seconds=60)
    text = log.read_text()
    assert "Finished runs are safe; start the same command again to go on." in text
    assert "Traceback" not in text
    with Store.reading(out) as store:
        assert 2 <= len(store.runs()) < plan.size
        assert store.failures() == {}
    with Store.writing(out) as store:
        store.check_resumable(plan.runs(), versions())


def test_a_second_command_is_refused_while_the_first_runs(tmp_path: Path, root: Path, plan: Plan) -> None:
    with Store.writing(tmp_path):
        refused = subprocess.run(
            command(tmp_path, root, plan), capture_output=True, text=True, check=False, timeout=300
        )
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("edgewise: Expected to be the only writer in")
