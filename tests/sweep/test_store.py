import math
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgewise
from edgewise.metrics.scores import METRICS
from edgewise.sweep.result_file import APPLICATION_ID, FORMAT_VERSION, StoreError
from edgewise.sweep.runs import Bins, Run, RunKey, ViewResult
from edgewise.sweep.store import FILE_NAME, Store
from helpers.fake_runs import VERSIONS, run_of, task_row
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
    """Ask without our code."""
    connection = sqlite3.connect(folder / FILE_NAME)
    try:
        with connection:
            return connection.execute(query).fetchall()
    finally:
        connection.close()


def same(runs: list[Run], others: list[Run]) -> bool:
    """Compare by text, in which NaN is like NaN and every float is exact."""
    return [repr(run) for run in runs] == [repr(run) for run in others]


# --- what is written is read ---

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
words = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(0, 999)
run_keys = st.builds(RunKey, words, words, words, numbers, numbers, numbers)
predictions = st.dictionaries(words, st.dictionaries(words, results, max_size=2), max_size=2)
positive = st.floats(0, 1e9)
any_runs = st.builds(Run, run_keys, predictions, positive, counts, st.dictionaries(words, words, max_size=2), words)


@settings(max_examples=40)
@given(st.lists(any_runs, max_size=3, unique_by=lambda run: run.key))
def test_runs_come_back_to_the_last_bit(runs: list[Run]) -> None:
    with tempfile.TemporaryDirectory() as name:
        add(Path(name), *runs)
        assert same(sorted(runs_in(Path(name)), key=lambda run: run.key), sorted(runs, key=lambda run: run.key))


def test_runs_come_in_the_order_of_their_keys(folder: Path) -> None:
    runs = [run_of(init, model) for model in ("gat", "gcn") for init in range(3)]
    add(folder, *reversed(runs))
    assert same(runs_in(folder), runs)
    with Store.reading(folder) as store:
        assert store.finished() == {run.key for run in runs}


def test_tasks_and_commands_come_back(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.check_tasks([task_row(), task_row(split=1)])
        store.begin_command("bundled data", "2")
        store.add(run_of(0))
        store.add(run_of(1))
        store.begin_command("bundled data again", "1")
    with Store.reading(folder) as store:
        assert repr(store.tasks()) == repr([task_row(), task_row(split=1)])
        first, second = store.commands()
        assert (first.sources, first.workers, first.runs) == ("bundled data", "2", 2)
        assert (second.sources, second.workers, second.runs, second.seconds) == ("bundled data again", "1", 0, 0)
        assert 0 < first.seconds < 60


def test_the_view_has_a_row_for_each_score(folder: Path) -> None:
    runs = [run_of(0), run_of(1)]
    add(folder, *runs)
    rows = sql(folder, "SELECT dataset, model, split, fold, init, prediction, view, metric, value FROM scores")
    found = {row[:8]: row[8] for row in rows}
    expected = {
        ("cora", "gcn", 0, 0, run.key.init, prediction, view, metric): as_sql(getattr(result, metric))
        for run in runs
        for prediction, views in run.predictions.items()
        for view, result in views.items()
        for metric in ("count", *METRICS)
    }
    assert len(rows) == len(found) == 2 * 2 * 5 * 5
    assert found == expected


def test_the_mean_of_an_infinite_score_is_infinite(folder: Path) -> None:
    add(folder, run_of(0), run_of(1))
    query = "SELECT avg(value) FROM scores WHERE view = 'same_label' AND metric = 'nll'"
    assert sql(folder, query) == [(math.inf,)]


def as_sql(value: float) -> object:
    return None if math.isnan(value) else value


def test_a_row_has_what_one_asks_for_first(folder: Path) -> None:
    add(folder, run_of(7, "gmnn", fold=2))
    columns = "dataset, model, hyperparameters, split, fold, init, seed, seconds, epochs"
    (row,) = sql(folder, f"SELECT {columns} FROM runs")
    assert row == ("cora", "gmnn", '[{"hidden": 64}]', 0, 2, 7, 2007, 8.5, 107)


# --- a run is one transaction ---


def test_each_run_is_one_transaction_and_seen_at_once(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.begin_command("bundled data", "1")
        for init in range(3):
            statements: list[str] = []
            store._connection.set_trace_callback(statements.append)
            store.add(run_of(init))
            store._connection.set_trace_callback(None)
            words = [statement.split()[0] for statement in statements]
            assert (words[0], words[-1], words.count("BEGIN"), words.count("COMMIT")) == ("BEGIN", "COMMIT", 1, 1)
            assert sql(folder, "SELECT count(*) FROM runs") == [(init + 1,)]


def test_a_run_is_written_as_a_whole_or_not_at_all(folder: Path) -> None:
    run = run_of(0)
    with Store.writing(folder) as store:
        store.begin_command("bundled data", "1")
        store.add_failure(run.key, "no luck")
        # The failure of a run is deleted after the run is inserted; that shall not work.
        sql(folder, "CREATE TRIGGER no BEFORE DELETE ON failures BEGIN SELECT RAISE(ABORT, 'not today'); END")
        with pytest.raises(StoreError, match="not today"):
            store.add(run)
        assert (store.runs(), store.failures(), store.commands()[0].runs) == ([], {run.key: "no luck"}, 0)
        sql(folder, "DROP TRIGGER no")
        store.add(run)
        assert (len(store.runs()), store.failures(), store.commands()[0].runs) == (1, {}, 1)


def test_a_run_is_never_there_twice(folder: Path) -> None:
    run = run_of(0)
    with Store.writing(folder) as store:
        store.add(run)
        with pytest.raises(StoreError, match=r"UNIQUE.*Finished runs are safe"):
            store.add(replace(run, epochs=1))
        store.add(replace(run, key=replace(run.key, hyperparameters="[]")))  # another run
    assert [found.epochs for found in runs_in(folder)] == [100, 100]


def test_failures_are_kept_until_the_run_is_finished(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.add_failure(run_of(0).key, "first")
        store.add_failure(run_of(0).key, "second")
        store.add_failure(run_of(1).key, "other")
    add(folder, run_of(0))
    with Store.reading(folder) as store:
        assert store.failures() == {run_of(1).key: "other"}
        assert store.finished() == {run_of(0).key}


def test_a_store_is_safe_from_power_cuts_and_open_to_readers(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.add(run_of(0))
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert sql(folder, "PRAGMA journal_mode") == [("wal",)]
    with Store.writing(folder) as store:  # and so it is when it is opened again
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_is_begun_and_gone_on_with(folder: Path) -> None:
    assert not Store.exists(folder)
    add(folder / "deep" / "down", run_of(0))
    add(folder / "deep" / "down", run_of(1))
    assert Store.exists(folder / "deep" / "down")
    assert same(runs_in(folder / "deep" / "down"), [run_of(0), run_of(1)])


# --- files that are not what they should be ---

REFUSED_OPENINGS = [
    pytest.param(lambda folder: Store.reading(folder).close(), id="reading"),
    pytest.param(lambda folder: add(folder), id="writing"),
]


@pytest.mark.parametrize("open_it", REFUSED_OPENINGS)
def test_a_file_of_another_program_is_left_alone(folder: Path, open_it: Callable[[Path], None]) -> None:
    folder.mkdir()
    sql(folder, "CREATE TABLE bookmarks (address TEXT)")
    before = (folder / FILE_NAME).read_bytes()
    with pytest.raises(StoreError, match=r"another program's SQLite file\. Nothing was changed; name another folder"):
        open_it(folder)
    assert (folder / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("open_it", REFUSED_OPENINGS)
def test_another_version_of_the_store_is_left_alone(folder: Path, open_it: Callable[[Path], None]) -> None:
    add(folder, run_of(0))
    assert sql(folder, "PRAGMA application_id") == [(APPLICATION_ID,)]
    sql(folder, f"PRAGMA user_version={FORMAT_VERSION + 1}")
    versions = rf"store of version {FORMAT_VERSION}, but .* has version {FORMAT_VERSION + 1}"
    message = rf"{versions}.*Nothing was changed.*, or name another folder"
    with pytest.raises(StoreError, match=message):
        open_it(folder)
    assert sql(folder, "SELECT count(*) FROM runs") == [(1,)]


def test_runs_of_two_versions_are_not_mixed(folder: Path) -> None:
    add(folder, run_of(0))
    wanted = [run_of(1).key]
    with Store.writing(folder) as store:
        assert store.written_by == edgewise.__version__
        store.check_resumable(wanted, {**VERSIONS, "python": "3.13.0"})
        for name in ("edgewise", "torch"):
            message = (
                rf"store of {name} 9\.9, but .* has runs of {name} .*Nothing was changed; use .*name another --out"
            )
            with pytest.raises(StoreError, match=message):
                store.check_resumable(wanted, {**VERSIONS, name: "9.9"})
        with pytest.raises(StoreError, match=r"runs of cora gcn with the hyper-parameters of this edgewise"):
            store.check_resumable([replace(wanted[0], hyperparameters="[{}]")], VERSIONS)
    assert len(runs_in(folder)) == 1  # to read it is no harm


def test_other_data_under_the_same_name_is_refused(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.check_tasks([task_row("a" * 16), task_row("b" * 16, split=1)])
        store.check_tasks([task_row("a" * 16)])
        message = r"Expected the cora whose runs are in .*split 1 is another.*--data-root and --splits-dir.*--out"
        with pytest.raises(StoreError, match=message):
            store.check_tasks([task_row("a" * 16), task_row("c" * 16, split=1), task_row("d" * 16, split=2)])
        assert [task.fingerprint for task in store.tasks()] == ["a" * 16, "b" * 16]
        store.check_tasks([task_row("d" * 16, split=2)])
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


@pytest.mark.parametrize("open_it", REFUSED_OPENINGS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_told_and_left_alone(folder: Path, damage: str, open_it: Callable[[Path], None]) -> None:
    add(folder, *map(run_of, range(60)))
    file = folder / FILE_NAME
    broken = DAMAGES[damage](file.read_bytes())
    file.write_bytes(broken)
    message = r"whole store, but .*results\.sqlite is damaged: .*Nothing was changed\. Put a copy .*away to start anew"
    with pytest.raises(StoreError, match=message):
        open_it(folder)
    assert file.read_bytes() == broken
    file.unlink()  # the way out
    add(folder, run_of(0))
    assert len(runs_in(folder)) == 1


def files_of(folder: Path) -> dict[str, bytes]:
    names = (FILE_NAME, f"{FILE_NAME}-wal")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def leave_as_a_killed_writer(folder: Path, num_runs: int) -> None:
    """Leave the files as they are while a store is open: some runs are in the log only."""
    *most, last = map(run_of, range(num_runs))
    add(folder.parent / "open", *most)
    with Store.writing(folder.parent / "open") as store:
        store.add(last)
        shutil.copytree(folder.parent / "open", folder)
    (folder / f"{FILE_NAME}-shm").unlink()
    assert len(files_of(folder)[f"{FILE_NAME}-wal"]) > 0


def test_readers_leave_what_a_killed_writer_left(folder: Path) -> None:
    leave_as_a_killed_writer(folder, 60)
    before = files_of(folder)
    for _ in range(2):
        assert same(runs_in(folder), [run_of(init) for init in range(60)])
        assert files_of(folder) == before
    add(folder, run_of(60))  # a writer takes it over
    assert len(runs_in(folder)) == 61


@pytest.mark.parametrize("open_it", REFUSED_OPENINGS)
@pytest.mark.parametrize("damage", ["overwritten", "cut at a page", "cut in a page"])  # of others the log knows better
def test_damage_beside_the_log_of_a_killed_writer_is_left_alone(
    folder: Path, damage: str, open_it: Callable[[Path], None]
) -> None:
    leave_as_a_killed_writer(folder, 60)
    file = folder / FILE_NAME
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    before = files_of(folder)
    with pytest.raises(StoreError, match="is damaged"):
        open_it(folder)
    assert files_of(folder) == before


def test_what_is_read_in_a_snapshot_is_of_one_moment(folder: Path) -> None:
    with Store.writing(folder) as writer:
        writer.begin_command("bundled data", "1")
        writer.add(run_of(0))
        with Store.reading(folder) as reader:
            with reader.snapshot():
                assert len(reader.runs()) == 1
                writer.add(run_of(1))
                assert (len(reader.runs()), reader.commands()[0].runs) == (1, 1)
            assert (len(reader.runs()), reader.commands()[0].runs) == (2, 2)


@pytest.mark.parametrize(
    ("old", "new"), [(b'"brier":0.1', b'"brier";0.1'), (b'"nll"', b'"nil"'), (b'"count"', b"\xff\xfe" * 3 + b"t")]
)
def test_damage_within_a_row_is_told_when_it_is_read(folder: Path, old: bytes, new: bytes) -> None:
    add(folder, run_of(0), run_of(1))
    file = folder / FILE_NAME
    content = file.read_bytes()
    assert old in content
    assert len(old) == len(new)
    file.write_bytes(content.replace(old, new, 1))
    with Store.reading(folder) as store, pytest.raises(StoreError, match=r"results\.sqlite is damaged: .*start anew"):
        store.runs()


def a_file_without_content(folder: Path) -> None:
    (folder / FILE_NAME).touch()


def a_store_whose_writer_was_killed_at_once(folder: Path) -> None:
    sql(folder, "PRAGMA journal_mode=WAL")
    assert (folder / FILE_NAME).stat().st_size > 0


@pytest.mark.parametrize("leave", [a_file_without_content, a_store_whose_writer_was_killed_at_once])
def test_an_empty_file_is_begun_again(folder: Path, leave: Callable[[Path], None]) -> None:
    folder.mkdir()
    leave(folder)
    with pytest.raises(StoreError, match=r"Expected results in .*none.*edgewise reproduce --out"):
        Store.reading(folder)
    add(folder, run_of(0))
    assert same(runs_in(folder), [run_of(0)])


def test_no_results_say_how_to_make_some(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"Expected results in .*none in results\.sqlite.*edgewise reproduce --out"):
        Store.reading(folder)
    assert not folder.exists()


# --- folders that are not what they should be ---


def test_out_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            StoreError, match=r"to be a folder, but .*(is a file|cannot be made: .*)\. Name another --out"
        ):
            add(out)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_lock_that_cannot_be_opened_is_told(folder: Path) -> None:
    (folder / LOCK_NAME).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"Expected to write results\.lock in .*unable to open.*another --out"):
        add(folder)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder below which all users may look; pytest's own are for one."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_where_nothing_can_be_written_one_can_read(open_folder: Path, tmp_path: Path) -> None:
    kept, empty = open_folder / "kept", open_folder / "empty"
    add(kept, run_of(0), run_of(1))
    empty.mkdir()
    for path in (kept, empty):
        path.chmod(0o555)
    (kept / FILE_NAME).chmod(0o444)
    text = """
        import os, sys
        from pathlib import Path
        from edgewise.sweep.store import Store
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write everywhere
        kept, empty = map(Path, sys.argv[1:])
        with Store.reading(kept) as store:
            print(len(store.runs()))
        for folder in (kept, empty, empty / "new"):
            try:
                with Store.writing(folder):
                    print("could write")
            except ValueError as error:
                print(error)
    """
    with script(tmp_path, text, kept, empty) as process:
        out, errors = process.communicate(timeout=300)
    assert errors == ""
    read, *refusals = out.splitlines()
    assert read == "2"
    assert "readonly" in refusals[0]
    assert "Expected to write results.lock in" in refusals[1]
    assert "Name another --out" in refusals[1]
    assert "Expected --out to be a folder" in refusals[2]
    assert "Permission denied" in refusals[2]
    assert sorted(path.name for path in kept.iterdir()) == sorted([FILE_NAME, LOCK_NAME])
    assert list(empty.iterdir()) == []


# --- others at the same time ---

ONLY_WRITER = r"Expected to be the only writer in .*another edgewise reproduce is writing.*Wait for it, or name another"


def test_a_second_writer_is_refused_and_readers_are_not(folder: Path) -> None:
    with Store.writing(folder) as store:
        store.add(run_of(0))
        with pytest.raises(StoreError, match=ONLY_WRITER):
            add(folder, run_of(1))
        assert same(runs_in(folder), [run_of(0)])
        store.add(run_of(2))  # the first goes on
    add(folder, run_of(1))
    assert same(runs_in(folder), [run_of(0), run_of(1), run_of(2)])


def test_an_error_gives_the_lock_back(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), Store.writing(folder):
        raise RuntimeError("mine")
    add(folder, run_of(0))


def test_a_writer_elsewhere_is_read_from_keeps_others_out_and_leaves_no_lock_when_killed(
    folder: Path, tmp_path: Path
) -> None:
    text = """
        import sys, time
        from pathlib import Path
        from edgewise.sweep.store import Store
        from helpers.fake_runs import run_of
        with Store.writing(Path(sys.argv[1])) as store:
            for init in range(100):
                store.add(run_of(init))
                print(init, flush=True)
                sys.stdin.readline()
    """
    with script(tmp_path, text, folder) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "0\n"
        with Store.reading(folder) as reader:  # one that stays open, and one for each look
            for init in range(20):
                assert same(reader.runs(), [run_of(k) for k in range(init + 1)])
                assert same(runs_in(folder), reader.runs())
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == f"{init + 1}\n"
        with pytest.raises(StoreError, match=ONLY_WRITER):
            add(folder)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert same(runs_in(folder), [run_of(init) for init in range(21)])
    add(folder, run_of(21))
    assert len(runs_in(folder)) == 22


# --- full disks ---


def test_a_full_disk_is_told_and_costs_nothing_that_was_there(folder: Path) -> None:
    add(folder, *map(run_of, range(10)))
    with Store.writing(folder) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        limit = f"PRAGMA max_page_count={pages + 3}"  # what SQLite says then is what a full disk makes it say
        store._connection.execute(limit)
        with pytest.raises(StoreError, match=r"disk is full.*Finished runs are safe; free some space and start again"):
            for init in range(10, 1000):
                store.add(run_of(init))
        written = len(store.runs())
        assert 10 <= written < 30
        with pytest.raises(StoreError, match="disk is full"):  # and so on: no transaction was left open
            store.add(run_of(written))
        assert len(store.runs()) == written
        store._connection.execute("PRAGMA max_page_count=1000000")  # there is space again
        store.add(run_of(written))
    assert sql(folder, "PRAGMA quick_check") == [("ok",)]
    add(folder, run_of(written + 1))
    assert same(runs_in(folder), [run_of(init) for init in range(written + 2)])


def test_a_file_that_may_not_grow_is_told_and_costs_nothing_that_was_there(folder: Path, tmp_path: Path) -> None:
    text = """
        import resource, sys
        from pathlib import Path
        from edgewise.sweep.store import Store
        from helpers.fake_runs import run_of
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with Store.writing(Path(sys.argv[1])) as store:
            for init in range(10, 1000):
                try:
                    store.add(run_of(init))
                    print(init, flush=True)
                except ValueError as error:
                    print(error)
                    break
            try:  # nothing of the first try may be in the way of a second
                store.add(run_of(init))
            except ValueError as error:
                print(error)
    """
    add(folder, *map(run_of, range(10)))
    with script(tmp_path, text, folder, (folder / FILE_NAME).stat().st_size + 60_000) as process:
        out, errors = process.communicate(timeout=300)
    *written, message, again = out.splitlines()
    assert errors == ""
    assert 0 < len(written) < 900
    assert message == again
    assert "disk I/O error" in message
    assert "Finished runs are safe" in message
    assert "start again" in message
    assert sql(folder, "PRAGMA quick_check") == [("ok",)]
    assert same(runs_in(folder), [run_of(init) for init in range(10 + len(written))])
    add(folder, run_of(10 + len(written)))
    assert len(runs_in(folder)) == 11 + len(written)
