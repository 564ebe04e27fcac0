"""`predict_tables` against `predict_edges` on the same pairs in memory, and runs that are stopped and continued."""

import signal
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, dataset, parquet

import edgewise as ew
from edgewise.tables import pair_parts, pair_prediction
from edgewise.tables.table_jobs import TableProgress
from helpers.processes import script

IDS = {
    "integer": lambda n: np.arange(n) + 3,
    "far apart": lambda n: (np.arange(n) ** 3 * 1000) - 5,
    "text": lambda n: np.array([f"n {k}" for k in range(n)], dtype=object),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_prediction, "PAIRS_PER_PART", 8)
    monkeypatch.setattr(pair_parts, "VALUES_PER_CHUNK", 5 * 2 * 3)


def random_pairs(num_nodes: int, num_pairs: int, rng: np.random.Generator) -> np.ndarray:
    """Draw pairs of two different nodes, some of them twice."""
    start = rng.integers(0, num_nodes, num_pairs)
    return np.stack([start, (start + rng.integers(1, num_nodes, num_pairs)) % num_nodes])


def write_parts(table: pa.Table, folder: Path, suffixes: Sequence[str], rng: np.random.Generator) -> Path:
    """Write a table as files with random numbers of rows, one per suffix, in this order."""
    folder.mkdir()
    ends = [0, *sorted(rng.integers(0, table.num_rows + 1, len(suffixes) - 1).tolist()), table.num_rows]
    for k, suffix in enumerate(suffixes):
        part, file = table.slice(ends[k], ends[k + 1] - ends[k]), folder / f"{k}{suffix}"
        if suffix == ".csv":
            csv.write_csv(part, file)
        else:
            parquet.write_table(part, file, row_group_size=int(rng.integers(1, 12)))
    return folder


def node_table(ids: np.ndarray, probs: np.ndarray, rng: np.random.Generator) -> pa.Table:
    order = rng.permutation(len(ids))
    return pa.table({"nid": pa.array(ids[order].tolist()), "pred": list(probs[order])})


def pair_table(ids: np.ndarray, pairs: np.ndarray) -> pa.Table:
    kind = pa.array(ids.tolist()).type
    return pa.table(
        {name: pa.array(ids[side].tolist(), kind) for name, side in zip(("src", "dst"), pairs, strict=True)}
    )


def assert_same(out: Path, expected: ew.EdgePredictions) -> None:
    """Compare all columns to the last bit, their types, and the metadata."""
    found, table = parquet.read_table(out), expected.to_arrow()
    assert found.schema.equals(table.schema)
    assert found.equals(table)
    assert table.schema.metadata.items() <= found.schema.metadata.items()


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(sorted(IDS)),
    num_pairs=st.integers(0, 60),
    num_classes=st.integers(1, 5),
    suffixes=st.lists(st.sampled_from([".parquet", ".csv"]), min_size=1, max_size=4),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
@settings(max_examples=30, deadline=None)
def test_random_tables_give_the_bits_of_arrays(
    seed: int, kind: str, num_pairs: int, num_classes: int, suffixes: list[str], dtype: type
) -> None:
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(2, 30))
    probs = rng.dirichlet(np.ones(num_classes), num_nodes).astype(dtype)
    pairs, ids = random_pairs(num_nodes, num_pairs, rng), IDS[kind](num_nodes)
    matrix = rng.random((num_classes, num_classes)) < 0.5
    names = [f"class {k}" for k in range(num_classes)] if rng.random() < 0.5 else None
    event = f"only_one={names[-1] if names else num_classes - 1}"
    options = {"events": ["different", event, ("mine", matrix)], "class_names": names, "top": min(2, num_classes**2)}
    with TemporaryDirectory() as folder:
        tables = [
            write_parts(node_table(ids, probs, rng), Path(folder) / "probs", [".parquet"] * 2, rng),
            write_parts(pair_table(ids, pairs), Path(folder) / "pairs", suffixes, rng),
        ]
        result = ew.predict_tables(*tables, Path(folder) / "out", **options)
        assert_same(result.folder, ew.predict_edges(probs, ids[pairs], node_ids=ids, **options))
        assert (result.num_pairs, result.num_skipped) == (num_pairs, 0)
        assert result.num_parts == len(list(result.folder.iterdir())) >= num_pairs / 8


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Return folders with 100 pairs of 20 nodes in 5 parts, of which each becomes 3 parts."""
    rng = np.random.default_rng(0)
    (tmp_path / "pairs").mkdir()
    table = pair_table(np.arange(20), random_pairs(20, 100, rng))
    for k in range(5):
        parquet.write_table(table.slice(20 * k, 20), tmp_path / "pairs" / f"{k}.parquet")
    order, probs = rng.permutation(20), rng.dirichlet(np.ones(3), 20)
    nodes = pa.table({"nid": order, **{f"p{k}": probs[order, k] for k in range(3)}})
    folder = write_parts(nodes, tmp_path / "probs", [".csv"], rng)
    return {"probs": folder, "pairs": tmp_path / "pairs", "out": tmp_path / "out"}


def expected(tables: dict[str, Path]) -> ew.EdgePredictions:
    probs = csv_probs(tables["probs"])
    pairs = parquet.read_table(tables["pairs"])
    return ew.predict_edges(probs, np.stack([column.to_numpy() for column in pairs.columns]))


def csv_probs(folder: Path) -> np.ndarray:
    table = csv.read_csv(folder / "0.csv").sort_by("nid").drop_columns("nid")
    return np.stack([column.to_numpy() for column in table.columns], axis=1)


def test_result_is_readable_by_others(tables: dict[str, Path]) -> None:
    result, table = ew.predict_tables(**tables), expected(tables)
    assert (result.folder, result.num_pairs, result.num_parts) == (tables["out"], 100, 15)
    assert str(result).startswith("100 pairs in 15 parts")
    assert sorted(path.name for path in result.folder.iterdir()) == [f"part-{k:05d}.parquet" for k in range(15)]
    assert_same(result.folder, table)
    assert dataset.dataset(result.folder).count_rows() == 100
    query = f"SELECT * FROM read_parquet('{result.folder}/*.parquet')"
    for frame in (pd.read_parquet(result.folder), duckdb.sql(query).df()):
        assert list(frame.columns) == list(table.table)
        np.testing.assert_array_equal(frame["P(same)"].to_numpy(), table["P(same)"])


def test_tables_in_memory_and_datasets(tables: dict[str, Path], tmp_path: Path) -> None:
    pairs = parquet.read_table(tables["pairs"])
    for k, source in enumerate((pairs, dataset.dataset(tables["pairs"]), sorted(tables["pairs"].iterdir()))):
        assert_same(ew.predict_tables(tables["probs"], source, tmp_path / str(k)).folder, expected(tables))


def test_columns_are_told_and_ids_are_normalized(tmp_path: Path) -> None:
    probs = pa.table({"name": ["a", "b"], "yes": [0.899, 0.2], "no": [0.1, 0.8]})
    pairs = pa.table({"weight": [1.5], "from_name": ["b"], "to_name": ["a"]})
    columns = {"id": "name", "probs": ["yes", "no"], "src": "from_name", "dst": "to_name"}
    with pytest.raises(ValueError, match="sum"):
        ew.predict_tables(probs, pairs, tmp_path, columns=columns)
    result = ew.predict_tables(probs, pairs, tmp_path, columns=columns, normalize=True)
    belief = np.array([[0.899 / 0.999, 0.1 / 0.999], [0.2, 0.8]])
    table = parquet.read_table(result.folder).to_pydict()
    assert (table["start"], table["end"]) == (["b"], ["a"])
    assert table["P(same)"] == pytest.approx([(belief[0] * belief[1]).sum()])


def add_pair(tables: dict[str, Path], start: int, end: int, row: int = 19) -> None:
    """Replace a pair of the last part."""
    file = tables["pairs"] / "4.parquet"
    table = parquet.read_table(file).to_pydict()
    table["src"][row], table["dst"][row] = start, end
    parquet.write_table(pa.table(table), file)


@pytest.mark.parametrize(("pair", "found"), [((0, 99), "99"), ((-1, 0), "-1"), ((7, 7), "7.*itself")])
def test_wrong_pair_is_named_and_no_part_is_visible(tables: dict[str, Path], pair: tuple[int, int], found: str) -> None:
    add_pair(tables, *pair)
    with pytest.raises(ValueError, match=rf"row 19 of .*4\.parquet.*{found}"):
        ew.predict_tables(**tables)
    assert [path.name for path in tables["out"].iterdir()] == ["_edgewise"]
    assert dataset.dataset(tables["out"]).files == []
    assert not list(tables["out"].rglob("*.tmp"))


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_row_of_an_unknown_id_counts_all_row_groups(kind: str, tmp_path: Path) -> None:
    ids = IDS[kind](50)
    pairs = pair_table(ids, random_pairs(49, 40, np.random.default_rng(0)))
    pairs = pa.concat_tables([pairs, pair_table(ids, np.array([[0], [49]]))])
    parquet.write_table(pairs, tmp_path / "pairs.parquet", row_group_size=3)
    probs = pa.table({"nid": pa.array(ids[:49].tolist()), "pred": [[0.5, 0.5]] * 49})
    with pytest.raises(ValueError, match=rf"row 40 of .*pairs\.parquet.*'{ids[49]}'"):
        ew.predict_tables(probs, tmp_path / "pairs.parquet", tmp_path / "out")


@pytest.mark.parametrize("kind", sorted(IDS))
def test_unknown_ids_are_skipped_and_counted(kind: str, tmp_path: Path) -> None:
    rng, ids = np.random.default_rng(1), IDS[kind](30)
    probs, pairs = rng.dirichlet(np.ones(3), 30), random_pairs(30, 100, rng)
    known = rng.random(30) < 0.6
    kept = known[pairs].all(0)
    nodes = node_table(ids[known], probs[known], rng)
    result = ew.predict_tables(nodes, pair_table(ids, pairs), tmp_path, skip_unknown=True)
    assert (result.num_pairs, result.num_skipped) == (kept.sum(), (~kept).sum())
    assert str(result.num_skipped) in str(result)
    assert_same(tmp_path, ew.predict_edges(probs, ids[pairs[:, kept]], node_ids=ids))


@pytest.mark.parametrize("kind", sorted(IDS))
def test_empty_ids_are_named_or_skipped(kind: str, tmp_path: Path) -> None:
    ids = IDS[kind](3).tolist()
    probs = pa.table({"nid": ids, "pred": [[0.5, 0.5]] * 3})
    pairs = pa.table({"src": [ids[0], None, ids[2], ids[1]], "dst": [ids[1], ids[1], None, ids[2]]})
    with pytest.raises(ValueError, match=r"empty in row [12]"):
        ew.predict_tables(probs, pairs, tmp_path)
    result = ew.predict_tables(probs, pairs, tmp_path, skip_unknown=True)
    assert (result.num_pairs, result.num_skipped) == (2, 2)
    assert parquet.read_table(tmp_path)["start"].to_pylist() == ids[:2]


def test_node_with_itself_is_skipped(tmp_path: Path) -> None:
    probs = pa.table({"nid": [0, 1], "pred": [[0.5, 0.5]] * 2})
    pairs = pa.table({"src": [5, 1, 0], "dst": [5, 1, 1]})
    result = ew.predict_tables(probs, pairs, tmp_path, skip_unknown=True)
    assert (result.num_pairs, result.num_skipped, result.num_parts) == (1, 2, 1)
    assert parquet.read_table(tmp_path)["start"].to_pylist() == [0]


def interrupt_after(num_pairs: int) -> object:
    def stop(progress: TableProgress) -> None:
        if progress.what == "pairs" and progress.rows >= num_pairs:
            raise KeyboardInterrupt

    return stop


def times(folder: Path) -> list[int]:
    return sorted(path.stat().st_mtime_ns for path in folder.glob("*.parquet"))


def test_second_call_predicts_nothing(tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = ew.predict_tables(**tables)
    before = times(first.folder)
    monkeypatch.setattr(pair_prediction, "build_node_table", None)
    assert ew.predict_tables(**tables) == first
    assert times(first.folder) == before


CHANGES = {
    "pairs": lambda tables: add_pair(tables, 0, 1),
    "probs": lambda tables: (tables["probs"] / "0.csv").touch(),
    "events": lambda tables: tables.update(events=["different"]),
    "top": lambda tables: tables.update(top=2),
    "class_names": lambda tables: tables.update(class_names=["a", "b", "c"]),
    "skip_unknown": lambda tables: tables.update(skip_unknown=True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_finished", [False, True])
def test_other_tables_and_options_are_refused(tables: dict[str, Path], change: str, is_finished: bool) -> None:
    if is_finished:
        ew.predict_tables(**tables)
    else:
        with pytest.raises(KeyboardInterrupt):
            ew.predict_tables(**tables, progress=interrupt_after(50))
    before = sorted(tables["out"].rglob("*"))
    CHANGES[change](tables)
    with pytest.raises(ValueError, match="another folder" if is_finished else rf"{change} changed.*another folder"):
        ew.predict_tables(**tables)
    assert sorted(tables["out"].rglob("*")) == before


def test_other_table_in_memory_is_refused(tmp_path: Path) -> None:
    probs = pa.table({"nid": [0, 1, 2], "pred": [[0.5, 0.5]] * 3})
    ew.predict_tables(probs, pa.table({"src": [0], "dst": [1]}), tmp_path)
    with pytest.raises(ValueError, match="another folder"):
        ew.predict_tables(probs, pa.table({"src": [0], "dst": [2]}), tmp_path)


def test_removed_part_is_noticed(tables: dict[str, Path]) -> None:
    ew.predict_tables(**tables)
    (tables["out"] / "part-00014.parquet").unlink()
    with pytest.raises(ValueError, match="removed"):
        ew.predict_tables(**tables)


@pytest.mark.parametrize("out", ["probs", "s3://bucket/out"])
def test_other_places_are_refused(tables: dict[str, Path], out: str) -> None:
    with pytest.raises(ValueError, match=r"Expected .*folder"):
        ew.predict_tables(tables["probs"], tables["pairs"], tables["probs"] if out == "probs" else out)
    assert [path.name for path in tables["probs"].iterdir()] == ["0.csv"]
    assert not Path("s3:").exists()


@pytest.mark.parametrize("options", [{"events": "same"}, {"events": ["some"]}, {"top": 10}, {"class_names": ["a"]}])
def test_wrong_options_are_refused_before_the_folder_is_made(tables: dict[str, Path], options: dict) -> None:
    with pytest.raises(ValueError, match="Expected"):
        ew.predict_tables(**tables, **options)
    assert not tables["out"].exists()


def test_stop_while_parts_are_moved(tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rename, moved = Path.rename, []

    def stop(path: Path, target: Path) -> Path:
        moved.append(path)
        if len(moved) == 4:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            ew.predict_tables(**tables)
    assert len(list(tables["out"].glob("*.parquet"))) == 3
    monkeypatch.setattr(pair_prediction, "build_node_table", None)
    assert_same(ew.predict_tables(**tables).folder, expected(tables))


KILLED = """
    import os, signal, sys
    from edgewise.tables import pair_prediction
    import edgewise as ew

    pair_prediction.PAIRS_PER_PART = 8

    def kill(progress):
        if progress.what == "pairs" and progress.rows >= 50:
            os.kill(os.getpid(), signal.SIGKILL)

    ew.predict_tables(*sys.argv[1:], progress=kill)
"""


def test_killed_run_continues(tables: dict[str, Path], tmp_path: Path) -> None:
    with script(tmp_path, KILLED, *tables.values()) as process:
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
    unfinished = tables["out"] / "_edgewise"
    (unfinished / ".0123.tmp").write_bytes(b"half a part")
    finished = {path.stat().st_mtime_ns for path in unfinished.glob("*.parquet")}
    assert len(finished) == 8  # 8, 8 and 4 pairs of a file make a part, so one of three files is not finished
    calls: list[TableProgress] = []
    result = ew.predict_tables(**tables, progress=calls.append)
    pairs = [call for call in calls if call.what == "pairs"]
    assert pairs[0] == ("pairs", 56, 100, 2, 5)
    assert pairs[-1] == ("pairs", 100, 100, 5, 5)
    assert finished <= set(times(result.folder))
    assert_same(result.folder, expected(tables))
    assert result.num_parts == len(list(result.folder.iterdir())) == 15
