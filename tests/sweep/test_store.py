import math
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgewise
from edgewise.metrics.scores import METRICS
from edgewise.metrics.sums import VIEWS
from edgewise.sweep.result_file import APPLICATION_ID, FORMAT_VERSION, StoreError
from edgewise.sweep.runs import SAME_LABEL, Bins, Run, RunKey, ViewResult
from edgewise.sweep.store import FILE_NAME, Store
from helpers.fake_runs import VERSIONS, make_run, make_task
from helpers.forked_commands import in_fork
from helpers.processes import script

LOCK_NAME = "results.lock"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results"


def add(folder: Path, *runs: Run) -> None:
    with Store.writing(folder) as store:
        for run in runs:
            store.add(run)


def runs_in(folder: Path) -> list[Run]:
    with Store.reading(folder) as store:
        return store.runs()


def sql(folder: Path, query: str) -> list[tuple[object, ...]]:
    """Run an SQL query without the code under test."""
    connection = sqlite3.connect(folder / FILE_NAME)
    try:
        with connection:
            return connection.execute(query).fetchall()
    finally:
        connection.close()


def same(runs: list[Run], others: list[Run]) -> bool:
    """Compare as text, in which NaN equals NaN and floats are exact."""
    return [repr(run) for run in runs] == [repr(run) for run in others]


# --- round trips ---

scores = st.floats(min_value=0) | st.just(math.nan)  # infinity among them
counts = st.integers(0, 2**53)
results = st.builds(
    ViewResult,
    counts,
    scores,
    scores,
    scores,
    scores,
    st.builds(Bins, st.lists(counts), st.lists(st.floats(0, 1e12)), st.lists(counts)),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(0, 999)
run_keys = st.builds(RunKey, texts, texts, texts, numbers, numbers, numbers)
other_views = texts.filter(lambda name: name not in (*VIEWS, SAME_LABEL))  # some of these without the rest would raise
predictions = st.dictionaries(texts, st.dictionaries(other_views, results, max_size=2), max_size=2)
positive = st.floats(0, 1e9)
any_runs = st.builds(Run, run_keys, predictions, positive, counts, st.dictionaries(texts, texts, max_size=2), texts)


@given(st.lists(any_runs, max_size=3, unique_by=lambda run: run.key))
def test_round_trip_of_runs_is_exact(runs: list[Run]) -> None:
    with tempfile.TemporaryDirectory() as name:
        add(Path(name), *runs)
        assert same(sorted(runs_in(Path(name)), key=lambda run: run.key), sorted(runs, key=lambda run: run.key))


def test_runs_are_sorted_by_key(folder: Path) -> None:
    runs = [make_run(init, model) for model in ("gat", "gcn") for init in range(3)]
    add(folder, *reversed(runs))
    assert same(runs_in(folder), runs)
    with Store.reading(folder) as store:
        assert store.finished() == {run.key for run in runs}


def test_round_trip_of_tasks_and_commands(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.check_tasks([make_task(), make_task(split=1)])
        store.begin_command("bundled data", "2")
        store.add(make_run(0))
        store.add(make_run(1))
        store.begin_command("bundled data again", "1")
    with Store.reading(folder) as store:
        assert repr(store.tasks()) == repr([make_task(), make_task(split=1)])
        first, second = store.commands()
        assert (first.sources, first.workers, first.runs) == ("bundled data", "2", 2)
        assert (second.sources, second.workers, second.runs, second.seconds) == ("bundled data again", "1", 0, 0)
        assert first.seconds > 0


def test_view_scores_has_one_row_per_score(folder: Path) -> None:
    runs = [make_run(0), make_run(1)]
    add(folder, *runs)
    rows = sql(folder, "SELECT dataset, model, split, fold, init, prediction, view, metric, value FROM scores")
    values = {row[:8]: row[8] for row in rows}
    expected = {
        ("cora", "gcn", 0, 0, run.key.init, prediction, view, metric): as_sql(getattr(result, metric))
        for run in runs
        for prediction, views in run.predictions.items()
        for view, result in views.items()
        for metric in ("count", *METRICS)
    }
    assert len(rows) == len(values) == 2 * 2 * 5 * 5
    assert values == expected


def test_sql_mean_of_an_infinite_score_is_infinite(folder: Path) -> None:
    add(folder, make_run(0), make_run(1))
    query = "SELECT avg(value) FROM scores WHERE view = 'same_label' AND metric = 'nll'"
    assert sql(folder, query) == [(math.inf,)]


def as_sql(value: float) -> object:
    return None if math.isnan(value) else value


def test_columns_of_a_run(folder: Path) -> None:
    add(folder, make_run(7, "gmnn", fold=2))
    columns = "dataset, model, hyperparameters, split, fold, init, seed, seconds, epochs"
    (row,) = sql(folder, f"SELECT {columns} FROM runs")
    assert row == ("cora", "gmnn", '[{"hidden": 64}]', 0, 2, 7, 2007, 8.5, 107)


# --- transactions ---


def test_each_run_is_one_transaction_and_visible_to_readers(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.begin_command("bundled data", "1")
        for init in range(3):
            statements: list[str] = []
            store._connection.set_trace_callback(statements.append)
            store.add(make_run(init))
            store._connection.set_trace_callback(None)
            verbs = [statement.split()[0] for statement in statements]
            assert (verbs[0], verbs[-1], verbs.count("BEGIN"), verbs.count("COMMIT")) == ("BEGIN", "COMMIT", 1, 1)
            assert sql(folder, "SELECT count(*) FROM runs") == [(init + 1,)]


def test_failed_transaction_writes_nothing(folder: Path) -> None:
    run = make_run(0)
    with Store.writing(folder) as store:
        store.begin_command("bundled data", "1")
        store.add_failure(run.key, "no luck")
        # A trigger makes the DELETE fail, which follows the INSERT of the run.
        sql(folder, "CREATE TRIGGER fail BEFORE DELETE ON failures BEGIN SELECT RAISE(ABORT, 'trigger failed'); END")
        with pytest.raises(StoreError, match="trigger failed"):
            store.add(run)
        assert (store.runs(), store.failures(), store.commands()[0].runs) == ([], {run.key: "no luck"}, 0)
        sql(folder, "DROP TRIGGER fail")
        store.add(run)
        assert (len(store.runs()), store.failures(), store.commands()[0].runs) == (1, {}, 1)


def test_adding_a_run_twice_raises(folder: Path) -> None:
    run = make_run(0)
    with Store.writing(folder) as store:
        store.add(run)
        with pytest.raises(StoreError, match="UNIQUE"):
            store.add(replace(run, epochs=1))
        store.add(replace(run, key=replace(run.key, hyperparameters="[]")))  # another run
    assert [stored.epochs for stored in runs_in(folder)] == [100, 100]


def test_failures_are_kept_until_the_run_finishes(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.add_failure(make_run(0).key, "first")
        store.add_failure(make_run(0).key, "second")
        store.add_failure(make_run(1).key, "other")
    add(folder, make_run(0))
    with Store.reading(folder) as store:
        assert store.failures() == {make_run(1).key: "other"}
        assert store.finished() == {make_run(0).key}


def test_store_uses_full_synchronization_and_write_ahead_logging(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.add(make_run(0))
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert sql(folder, "PRAGMA journal_mode") == [("wal",)]
    with Store.writing(folder) as store:  # also if it exists already
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_store_is_created_and_extended(folder: Path) -> None:
    assert not Store.exists(folder)
    add(folder / "deep" / "down", make_run(0))
    add(folder / "deep" / "down", make_run(1))
    assert Store.exists(folder / "deep" / "down")
    assert same(runs_in(folder / "deep" / "down"), [make_run(0), make_run(1)])


# --- other and damaged files ---

OPENINGS = [
    pytest.param(lambda folder: Store.reading(folder).close(), id="reading"),
    pytest.param(lambda folder: add(folder), id="writing"),
]


@pytest.mark.parametrize("open_it", OPENINGS)
def test_file_of_another_program_is_not_changed(folder: Path, open_it: Callable[[Path], None]) -> None:
    folder.mkdir()
    sql(folder, "CREATE TABLE bookmarks (address TEXT)")
    before = (folder / FILE_NAME).read_bytes()
    with pytest.raises(StoreError, match=r"another program's SQLite file\..* another folder"):
        open_it(folder)
    assert (folder / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("open_it", OPENINGS)
def test_store_of_another_format_version_is_not_changed(folder: Path, open_it: Callable[[Path], None]) -> None:
    add(folder, make_run(0))
    assert sql(folder, "PRAGMA application_id") == [(APPLICATION_ID,)]
    sql(folder, f"PRAGMA user_version={FORMAT_VERSION + 1}")
    versions = rf"version {FORMAT_VERSION}, but .* has version {FORMAT_VERSION + 1}"
    with pytest.raises(StoreError, match=rf"{versions}.* another folder"):
        open_it(folder)
    assert sql(folder, "SELECT count(*) FROM runs") == [(1,)]


def test_runs_of_other_versions_or_hyperparameters_are_refused(folder: Path) -> None:
    add(folder, make_run(0))
    requested = [make_run(1).key]
    with Store.writing(folder) as store:
        assert store.written_by == edgewise.__version__
        store.check_resumable(requested, {**VERSIONS, "python": "3.13.0"})
        for name in ("edgewise", "torch"):
            with pytest.raises(StoreError, match=rf"{name} 9\.9, but .* has runs of {name} .*another --out"):
                store.check_resumable(requested, {**VERSIONS, name: "9.9"})
        with pytest.raises(StoreError, match=r"cora gcn .*hyperparameters"):
            store.check_resumable([replace(requested[0], hyperparameters="[{}]")], VERSIONS)
    assert len(runs_in(folder)) == 1  # reading is allowed


def test_other_graph_or_split_of_the_same_name_is_refused(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.check_tasks([make_task("a" * 16), make_task("b" * 16, split=1)])
        store.check_tasks([make_task("a" * 16)])
        with pytest.raises(StoreError, match=r"cora .*split 1 .*--data-root and --splits-dir.*--out"):
            store.check_tasks([make_task("a" * 16), make_task("c" * 16, split=1), make_task("d" * 16, split=2)])
        assert [task.fingerprint for task in store.tasks()] == ["a" * 16, "b" * 16]
        store.check_tasks([make_task("d" * 16, split=2)])
        assert [task.split for task in store.tasks()] == [0, 1, 2]


def overwritten_in_the_middle(content: bytes) -> bytes:
    start = len(content) // 2
    return content[:start] + b"\xa5" * 5000 + content[start + 5000 :]


def without_its_first_page(content: bytes) -> bytes:
    return b"\0" * 4096 + content[4096:]


DAMAGES = {
    "overwritten": overwritten_in_the_middle,
    "header lost": without_its_first_page,
    "cut at a page": lambda content: content[: 4096 * (len(content) // 8192)],
    "cut in a page": lambda content: content[: len(content) // 2 + 1000],
    "text": lambda content: b"Dear diary, " * 1000,
    "a word": lambda content: b"hello",
}


@pytest.mark.parametrize("open_it", OPENINGS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_raises_and_is_not_changed(folder: Path, damage: str, open_it: Callable[[Path], None]) -> None:
    add(folder, *map(make_run, range(60)))
    file = folder / FILE_NAME
    broken = DAMAGES[damage](file.read_bytes())
    file.write_bytes(broken)
    with pytest.raises(StoreError, match=r"results\.sqlite is damaged: .*move results\.sqlite"):
        open_it(folder)
    assert file.read_bytes() == broken
    file.unlink()  # the fix in the message
    add(folder, make_run(0))
    assert len(runs_in(folder)) == 1


def files_of(folder: Path) -> dict[str, bytes]:
    names = (FILE_NAME, f"{FILE_NAME}-wal")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def leave_as_a_killed_writer(folder: Path, num_runs: int) -> None:
    """Copy the files of an open store, so that some runs are only in the log."""
    *most, last = map(make_run, range(num_runs))
    add(folder.parent / "open", *most)
    with Store.writing(folder.parent / "open") as store:
        store.add(last)
        shutil.copytree(folder.parent / "open", folder)
    (folder / f"{FILE_NAME}-shm").unlink()
    assert len(files_of(folder)[f"{FILE_NAME}-wal"]) > 0


def test_readers_do_not_change_the_files_of_a_killed_writer(folder: Path) -> None:
    leave_as_a_killed_writer(folder, 60)
    before = files_of(folder)
    for _ in range(2):
        assert same(runs_in(folder), [make_run(init) for init in range(60)])
        assert files_of(folder) == before
    add(folder, make_run(60))  # a writer continues
    assert len(runs_in(folder)) == 61


@pytest.mark.parametrize("open_it", OPENINGS)
@pytest.mark.parametrize("damage", ["overwritten", "cut at a page", "cut in a page"])  # the log repairs other damage
def test_damaged_file_with_the_log_of_a_killed_writer_is_not_changed(
    folder: Path, damage: str, open_it: Callable[[Path], None]
) -> None:
    leave_as_a_killed_writer(folder, 60)
    file = folder / FILE_NAME
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    before = files_of(folder)
    with pytest.raises(StoreError, match="is damaged"):
        open_it(folder)
    assert files_of(folder) == before


def test_reads_in_a_snapshot_see_one_state(folder: Path) -> None:
    with Store.writing(folder) as writer:
        writer.begin_command("bundled data", "1")
        writer.add(make_run(0))
        with Store.reading(folder) as reader:
            with reader.snapshot():
                assert len(reader.runs()) == 1
                writer.add(make_run(1))
                assert (len(reader.runs()), reader.commands()[0].runs) == (1, 1)
            assert (len(reader.runs()), reader.commands()[0].runs) == (2, 2)


@pytest.mark.parametrize(
    ("old", "new"), [(b'"brier":0.1', b'"brier";0.1'), (b'"nll"', b'"nil"'), (b'"count"', b"\xff\xfe" * 3 + b"t")]
)
def test_damaged_row_raises_when_it_is_read(folder: Path, old: bytes, new: bytes) -> None:
    add(folder, make_run(0), make_run(1))
    file = folder / FILE_NAME
    content = file.read_bytes()
    assert old in content
    assert len(old) == len(new)
    file.write_bytes(content.replace(old, new, 1))
    with Store.reading(folder) as store, pytest.raises(StoreError, match=r"results\.sqlite is damaged"):
        store.runs()


def leave_empty_file(folder: Path) -> None:
    (folder / FILE_NAME).touch()


def leave_store_without_tables(folder: Path) -> None:
    sql(folder, "PRAGMA journal_mode=WAL")
    assert (folder / FILE_NAME).stat().st_size > 0


@pytest.mark.parametrize("leave", [leave_empty_file, leave_store_without_tables])
def test_empty_file_is_replaced_by_a_new_store(folder: Path, leave: Callable[[Path], None]) -> None:
    folder.mkdir()
    leave(folder)
    with pytest.raises(StoreError, match="edgewise reproduce --out"):
        Store.reading(folder)
    add(folder, make_run(0))
    assert same(runs_in(folder), [make_run(0)])


def test_missing_results_raise_with_the_command_that_creates_them(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"results\.sqlite.*edgewise reproduce --out"):
        Store.reading(folder)
    assert not folder.exists()


# --- folders ---


def test_out_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"to be a folder, but .*(is a file|Not a directory)"):
            add(out)
    assert (tmp_path / "file").read_text() == "mine"


def test_lock_file_that_cannot_be_opened_raises(folder: Path) -> None:
    (folder / LOCK_NAME).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"results\.lock .*unable to open"):
        add(folder)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that all users may read. Those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_read_only_folder_can_be_read_and_not_written(open_folder: Path) -> None:
    kept, empty = open_folder / "kept", open_folder / "empty"
    add(kept, make_run(0), make_run(1))
    empty.mkdir()
    for path in (kept, empty):
        path.chmod(0o555)
    (kept / FILE_NAME).chmod(0o444)

    def read_and_write() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write everywhere
        print(len(runs_in(kept)))
        for folder in (kept, empty, empty / "new"):
            try:
                with Store.writing(folder):
                    print("could write")
            except ValueError as error:
                print(error)

    ended = in_fork(read_and_write)
    assert (ended.code, ended.stderr) == (0, "")
    read, *messages = ended.stdout.splitlines()
    assert read == "2"
    assert len(messages) == 3
    assert "readonly" in messages[0]
    assert "results.lock" in messages[1] and "another --out" in messages[1]
    assert "Permission denied" in messages[2] and "another --out" in messages[2]
    assert sorted(path.name for path in kept.iterdir()) == sorted([FILE_NAME, LOCK_NAME])
    assert list(empty.iterdir()) == []


# --- concurrent processes ---

ONLY_WRITER = "another edgewise reproduce is writing"


def test_second_writer_is_refused_but_readers_are_not(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.add(make_run(0))
        with pytest.raises(StoreError, match=ONLY_WRITER):
            add(folder, make_run(1))
        assert same(runs_in(folder), [make_run(0)])
        store.add(make_run(2))  # the first writer continues
    add(folder, make_run(1))
    assert same(runs_in(folder), [make_run(0), make_run(1), make_run(2)])


def test_exception_releases_the_lock(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), Store.writing(folder):
        raise RuntimeError("mine")
    add(folder, make_run(0))


def test_readers_see_the_rows_of_another_process_whose_lock_ends_when_it_is_killed(
    folder: Path, tmp_path: Path
) -> None:
    text = """
        import sys
        from pathlib import Path
        from edgewise.sweep.store import Store
        from helpers.fake_runs import make_run
        with Store.writing(Path(sys.argv[1])) as store:
            for init in range(100):
                store.add(make_run(init))
                print(init, flush=True)
                sys.stdin.readline()
    """
    with script(tmp_path, text, folder) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "0\n"
        with Store.reading(folder) as reader:  # one reader stays open, and a new one for each check
            for init in range(20):
                assert same(reader.runs(), [make_run(k) for k in range(init + 1)])
                assert same(runs_in(folder), reader.runs())
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == f"{init + 1}\n"
        with pytest.raises(StoreError, match=ONLY_WRITER):
            add(folder)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert same(runs_in(folder), [make_run(init) for init in range(21)])
    add(folder, make_run(21))
    assert len(runs_in(folder)) == 22


# --- full disks ---


def test_full_disk_raises_and_loses_no_finished_run(folder: Path) -> None:
    add(folder, *map(make_run, range(10)))
    with Store.writing(folder) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        limit = f"PRAGMA max_page_count={pages + 3}"  # gives the same SQLite error as a full disk
        store._connection.execute(limit)
        with pytest.raises(StoreError, match="disk is full"):
            for init in range(10, 1000):
                store.add(make_run(init))
        written = len(store.runs())
        assert 10 <= written < 30
        with pytest.raises(StoreError, match="disk is full"):  # again: no transaction was left open
            store.add(make_run(written))
        assert len(store.runs()) == written
        store._connection.execute("PRAGMA max_page_count=1000000")  # there is space again
        store.add(make_run(written))
    assert sql(folder, "PRAGMA quick_check") == [("ok",)]
    add(folder, make_run(written + 1))
    assert same(runs_in(folder), [make_run(init) for init in range(written + 2)])


def test_file_size_limit_raises_and_loses_no_finished_run(folder: Path) -> None:
    add(folder, *map(make_run, range(10)))
    max_bytes = (folder / FILE_NAME).stat().st_size + 60_000

    def write_until_the_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with Store.writing(folder) as store:
            for init in range(10, 1000):
                try:
                    store.add(make_run(init))
                    print(init)
                except ValueError as error:
                    print(error)
                    break
            try:  # the first failure must not affect a second attempt
                store.add(make_run(init))
            except ValueError as error:
                print(error)

    ended = in_fork(write_until_the_limit)
    assert (ended.code, ended.stderr) == (0, "")
    *written, message, again = ended.stdout.splitlines()
    assert 0 < len(written) < 900
    assert message == again
    assert "disk I/O error" in message
    assert sql(folder, "PRAGMA quick_check") == [("ok",)]
    assert same(runs_in(folder), [make_run(init) for init in range(10 + len(written))])
    add(folder, make_run(10 + len(written)))
    assert len(runs_in(folder)) == 11 + len(written)
