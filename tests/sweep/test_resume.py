"""Resuming a sweep after interruptions, failures and kills."""

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

from edgewise.paper import recipes as paper_recipes
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
from helpers import forked_commands
from helpers.forked_commands import in_fork
from helpers.processes import started, wait_until, wait_until_ended
from helpers.run_numbers import numbers
from helpers.tiny_datasets import write_planetoid

Outcome = JobOutcome[RunKey, Run]

# --- in this process, with runs that are finished already ---


class FinishedRunWorkers:
    """Workers that return finished runs, except for some that fail, and record the requested keys."""

    count = 2

    def __init__(self, runs: Sequence[Run], failing: Sequence[RunKey] = ()):
        self.runs, self.failing, self.requested = {run.key: run for run in runs}, set(failing), []

    def execute(self, function: object, keys: Sequence[RunKey], *_: object) -> Generator[Outcome, None, None]:
        for key in keys:
            self.requested.append(key)
            yield Failure(key, "Traceback\nOuch: no luck") if key in self.failing else Finished(key, self.runs[key])


def sweep(plan: Plan, folder: Path, root: Path, workers: FinishedRunWorkers, limit: int | None = None) -> Progress:
    """Run a sweep, and raise KeyboardInterrupt after ``limit`` outcomes."""
    outcomes: list[Outcome] = []

    def on_outcome(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) == limit:
            raise KeyboardInterrupt

    return run_sweep(plan, folder, Sources(str(root)), workers, lambda progress: on_outcome)


def stored(folder: Path) -> list[tuple[object, ...]]:
    """Read all columns of all runs except times, without the code under test."""
    connection = sqlite3.connect(folder / FILE_NAME)
    try:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM runs")]
    finally:
        connection.close()
    return sorted(tuple(value for name, value in row.items() if name not in ("seconds", "finished")) for row in rows)


def stored_rows_of(runs: Sequence[Run], folder: Path) -> list[tuple[object, ...]]:
    """Write runs without interruption, and read their rows."""
    with Store.writing(folder) as store:
        for run in runs:
            store.add(run)
    return stored(folder)


def test_resume_skips_finished_runs(tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]) -> None:
    small = replace(plan, models=("gcn",), splits=1)
    workers, folder = FinishedRunWorkers(finished_runs), tmp_path / "results"
    assert sweep(small, folder, root, workers).missing == []
    assert workers.requested == small.runs()
    with pytest.raises(KeyboardInterrupt):
        sweep(plan, folder, root, workers, limit=5)
    assert sweep(plan, folder, root, workers).missing == []
    assert sorted(workers.requested) == sorted(plan.runs())  # each once
    assert stored(folder) == stored_rows_of(finished_runs, tmp_path / "uninterrupted")
    with Store.reading(folder) as store:
        assert [command.runs for command in store.commands()] == [3, 5, plan.size - 8]
        assert [(task.dataset, task.split) for task in store.tasks()] == [("cora", 0), ("cora", 1)]


def test_resume_after_kills_at_any_sql_statement(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]
) -> None:
    folder, finished = tmp_path / "results", 0
    for limit in range(1, 1000):  # the sweep is killed before its first SQL statement, then before its second, …
        num_statements = 0

        def kill_at_limit(statement: str, limit: int = limit) -> None:
            nonlocal num_statements
            num_statements += 1
            if num_statements == limit:
                os.kill(os.getpid(), signal.SIGKILL)

        def sweep_and_kill(on_statement: object = kill_at_limit) -> None:
            initialize = Store.__init__

            def initialize_with_trace(store: Store, folder: Path, connection: sqlite3.Connection) -> None:
                initialize(store, folder, connection)
                connection.set_trace_callback(on_statement)

            pytest.MonkeyPatch().setattr(Store, "__init__", initialize_with_trace)
            sweep(plan, folder, root, FinishedRunWorkers(finished_runs))

        ended = in_fork(sweep_and_kill)
        before, finished = finished, num_rows(folder)
        assert before <= finished  # nothing is lost
        if ended.code != -signal.SIGKILL:
            break
    assert (ended.code, ended.stderr) == (0, "")
    assert limit > 10 and 0 < before < plan.size
    assert stored(folder) == stored_rows_of(finished_runs, tmp_path / "uninterrupted")
    with Store.reading(folder) as store:
        assert sum(command.runs for command in store.commands()) == plan.size  # each run once


def test_read_progress_writes_nothing(tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]) -> None:
    folder = tmp_path / "results"
    assert read_progress(plan, folder, 1).missing == plan.runs()
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt):
        sweep(plan, folder, root, FinishedRunWorkers(finished_runs), limit=4)
    before = (folder / FILE_NAME).read_bytes()
    progress = read_progress(plan, folder, 2)
    assert progress.missing == plan.runs()[4:]
    assert progress.seconds_left > 0
    assert progress.seconds_left == pytest.approx(read_progress(plan, folder, 1).seconds_left / 2)
    assert read_progress(replace(plan, models=("epfgnn",)), folder, 1).runs == []  # runs of other plans do not count
    assert (folder / FILE_NAME).read_bytes() == before


def test_failed_runs_are_stored_and_retried(tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]) -> None:
    failing = plan.runs()[1::7]
    progress = sweep(plan, tmp_path, root, FinishedRunWorkers(finished_runs, failing))
    assert list(progress.failures) == progress.missing == failing
    assert progress.seconds_left == 0  # failed runs are not retried by this command
    with Store.reading(tmp_path) as store:
        assert store.failures() == dict.fromkeys(failing, "Traceback\nOuch: no luck")
    workers = FinishedRunWorkers(finished_runs)
    assert sweep(plan, tmp_path, root, workers).failures == {}
    assert workers.requested == failing
    with Store.reading(tmp_path) as store:
        assert store.failures() == {}
        assert len(store.runs()) == plan.size


def test_other_data_is_refused_before_any_run(tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(plan, tmp_path / "results", root, FinishedRunWorkers(finished_runs), limit=2)
    other, workers = write_planetoid(tmp_path / "other", seed=1), FinishedRunWorkers(finished_runs)
    with pytest.raises(StoreError, match=r"cora .*results\.sqlite, but its graph or split"):
        sweep(plan, tmp_path / "results", other, workers)
    assert workers.requested == []
    sweep(plan, tmp_path / "results", root, workers)


@pytest.mark.parametrize("package", ["edgewise", "torch", "scipy", "numba"])
def test_runs_of_other_versions_are_refused_before_any_run(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        sweep(plan, tmp_path, root, FinishedRunWorkers(finished_runs), limit=2)
    monkeypatch.setattr(run_module, "versions", lambda: {**versions(), package: "9.9.9"})
    workers = FinishedRunWorkers(finished_runs)
    with pytest.raises(StoreError, match=rf"{package} 9\.9\.9, but .* has runs of {package} .*another --out"):
        sweep(plan, tmp_path, root, workers)
    assert workers.requested == []


def test_version_that_stored_runs_do_not_record_is_not_compared(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]
) -> None:
    """Earlier versions of edgewise did not record that of scipy."""
    first, second = plan.runs()[:2]
    run_of = {run.key: run for run in finished_runs}
    without_scipy = {name: version for name, version in versions().items() if name != "scipy"}
    with Store.writing(tmp_path) as store:
        for key in (first, second):
            store.add(replace(run_of[key], versions=without_scipy))
    workers = FinishedRunWorkers(finished_runs)
    assert sweep(plan, tmp_path, root, workers).missing == []
    assert workers.requested == plan.runs()[2:]
    with Store.reading(tmp_path) as store:
        assert sum("scipy" in run.versions for run in store.runs()) == plan.size - 2


def test_runs_of_other_hyperparameters_are_refused(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]
) -> None:
    run = next(run for run in finished_runs if run.key.model == "gmnn")
    with Store.writing(tmp_path) as store:
        store.add(replace(run, key=replace(run.key, hyperparameters="[{}]")))
    workers = FinishedRunWorkers(finished_runs)
    with pytest.raises(StoreError, match=r"cora gmnn .*hyperparameters.*--out"):
        sweep(plan, tmp_path, root, workers)
    assert workers.requested == []
    sweep(replace(plan, models=("gcn",)), tmp_path, root, workers)  # has none of them


def test_error_of_the_writer_stops_the_workers(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(self: Store, run: Run) -> None:
        raise StoreError("The disk is full.")

    ended = []

    class RecordingWorkers(FinishedRunWorkers):
        def execute(self, *args: object) -> Generator[Outcome, None, None]:
            try:
                yield from super().execute(*args)
            finally:
                ended.append("workers")

    monkeypatch.setattr(Store, "add", raise_disk_full)
    workers = RecordingWorkers(finished_runs)
    with pytest.raises(StoreError, match="The disk is full"):
        run_sweep(plan, tmp_path, Sources(str(root)), workers, lambda progress: lambda outcome: None)
    assert ended == ["workers"]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_worker_processes_compute_the_same_numbers_as_this_process(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run], num_workers: int
) -> None:
    small = replace(plan, splits=1, folds=2)
    expected = {key: text for key, text in numbers(finished_runs).items() if key in small.runs()}
    run_sweep(small, tmp_path, Sources(str(root)), LocalProcesses(num_workers), lambda progress: lambda outcome: None)
    with Store.reading(tmp_path) as store:
        assert numbers(store.runs()) == expected
    assert active_children() == []
    assert len(set(numbers(finished_runs).values())) == plan.size  # no two runs are alike


# --- as a command ---


def reproduce_args(out: Path, root: Path, plan: Plan, workers: int = 2) -> list[str]:
    of_plan = ["--datasets", *plan.datasets, "--models", *plan.models, "--splits", plan.splits, "--inits", plan.inits]
    return ["reproduce", *map(str, ["--out", out, "--data-root", root, *of_plan, "--workers", workers])]


def test_ctrl_c_saves_finished_runs_and_says_how_to_continue(
    tmp_path: Path, root: Path, plan: Plan, finished_runs: list[Run]
) -> None:
    class InterruptedWorkers(FinishedRunWorkers):
        def __init__(self, count: int):
            super().__init__(finished_runs)

        def execute(self, *args: object) -> Generator[Outcome, None, None]:
            for number, outcome in enumerate(super().execute(*args)):
                if number == 2:
                    signal.raise_signal(signal.SIGINT)
                yield outcome

    def before() -> None:
        patch = pytest.MonkeyPatch()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
        patch.setattr("edgewise.workers.LocalProcesses", InterruptedWorkers)
        patch.setattr(paper_recipes, "RECIPES", plan.recipes)

    ended = forked_commands.command(*reproduce_args(tmp_path, root, plan), before=before)
    assert ended.code == 130, ended.stderr
    assert "Finished runs are saved" in ended.stderr and "Traceback" not in ended.stderr
    with Store.reading(tmp_path) as store:
        assert [run.key for run in sorted(store.runs(), key=lambda run: plan.runs().index(run.key))] == plan.runs()[:2]
        assert store.failures() == {}


def command(*args: object, **options: int) -> list[str]:
    return [sys.executable, "-m", "edgewise", *reproduce_args(*args, **options)]


def num_rows(out: Path) -> int:
    """Return the number of finished runs, 0 if the table does not exist yet."""
    if not (out / FILE_NAME).exists():
        return 0
    connection = sqlite3.connect(f"file:{out / FILE_NAME}?mode=ro", uri=True, timeout=600)
    try:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError as error:
        # The last two occur with the journal of a killed writer, which only a writer may roll back.
        assert any(words in str(error) for words in ("no such table", "unable to open", "readonly"))
        return 0
    finally:
        connection.close()


def kill_when(process: subprocess.Popen[bytes], out: Path, new_rows: int | None, pause: float) -> None:
    """Kill only the command, some time after a number of new rows were written, or while it starts."""
    before = num_rows(out)
    if new_rows is None:
        wait_until(lambda: num_rows(out) > before, seconds=pause)
    else:
        assert wait_until(lambda: num_rows(out) >= before + new_rows or process.poll() is not None)
        time.sleep(pause)
    workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert process.poll() is None  # it was working
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert wait_until_ended(workers)


@pytest.mark.slow
def test_sweep_killed_ten_times_has_the_results_of_an_uninterrupted_one(
    tmp_path: Path, root: Path, full_plan: Plan, full_runs: list[Run]
) -> None:
    seed = random.randrange(10**6)
    print("seed of the moments:", seed)  # shown if the test fails
    out, log, rng = tmp_path / "results", tmp_path / "log", random.Random(seed)
    run_seconds = median(run.seconds for run in full_runs)  # the first run also compiles
    # Number of new rows to wait for, or None for a kill while it starts; then a pause in seconds. During a run, at most
    # two more rows are written, so the ten kills leave some of the 36 runs.
    kills = [(None, rng.uniform(0.1, 4)) for _ in range(5)] + [
        (new_rows, rng.uniform(0, run_seconds)) for new_rows in (1, 1, 2, 2, 3)
    ]
    rng.shuffle(kills)
    left = []
    for new_rows, pause in kills:
        with started(command(out, root, full_plan, workers=1), log) as process:  # most of the time goes to imports
            kill_when(process, out, new_rows, pause)
        left.append(full_plan.size - num_rows(out))
    assert len(left) == 10
    assert left == sorted(left, reverse=True)  # nothing is lost
    assert 0 < left[-1] <= full_plan.size - 9  # some runs were finished, and some are left for the last command

    with started(command(out, root, full_plan), log) as process:
        assert process.wait() == 0, log.read_text()
    assert stored(out) == stored_rows_of(full_runs, tmp_path / "uninterrupted")
    with Store.reading(out) as store:
        assert store.failures() == {}
        runs_of_commands = [entry.runs for entry in store.commands()]
        assert sum(runs_of_commands) == full_plan.size
        assert runs_of_commands[-1] == left[-1]  # none of them twice


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_the_workers_and_keeps_finished_runs(
    tmp_path: Path, root: Path, full_plan: Plan
) -> None:
    out, log = tmp_path / "results", tmp_path / "log"
    with started(command(out, root, full_plan), log) as process:
        assert wait_until(lambda: num_rows(out) >= 2 or process.poll() is not None)
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(workers) >= 2
        os.killpg(process.pid, signal.SIGINT)  # the whole group receives it, as from a terminal
        assert process.wait() == 130
        assert wait_until_ended(workers)
    text = log.read_text()
    assert "Finished runs are saved" in text and "Traceback" not in text
    with Store.reading(out) as store:
        assert 2 <= len(store.runs()) < full_plan.size
        assert store.failures() == {}
    with Store.writing(out) as store:
        store.check_resumable(full_plan.runs(), versions())
