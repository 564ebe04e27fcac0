"""Finding the parts of tables: folders, globs, URLs, lists, and the columns of known producers."""

from collections.abc import Iterator
from pathlib import Path
from threading import active_count

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import edgewise as ew
from edgewise.tables.part_search import find_parts
from edgewise.tables.parts import READ_AHEAD, read_ahead
from helpers.table_files import assert_same

FILES = ["a/x-0.parquet", "a/x-1.parquet", "a/b/x-2.parquet", "a/b/y-3.parquet", "x-4.parquet", "z[1]-5.parquet"]
HIDDEN = ["a/_SUCCESS", "a/.x-9.parquet", "a/_temporary/x-9.parquet", "a/notes.txt"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [*FILES, *HIDDEN]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            parquet.write_table(pa.table({"src": [0, 1], "dst": [1, 2]}), file)
        else:
            file.write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "numbers"),
    [
        ("a/b", "23"),
        ("a/b/", "23"),
        ("x-4.parquet", "4"),
        ("./x-4.parquet", "4"),
        ("*.parquet", "45"),
        ("./*.parquet", "45"),
        ("a/*.parquet", "01"),
        ("a/x-?.parquet", "01"),
        ("a/x-[!0].parquet", "1"),
        ("a/*/x-*.parquet", "2"),
        ("*/x-*.parquet", "01"),
        ("a/**/*.parquet", "0123"),
        ("a/**/3.parquet", None),
        ("**/y*.parquet", "3"),
        ("z[1]-5.parquet", "5"),
    ],
)
@pytest.mark.parametrize("form", ["relative", "absolute", "url"])
def test_places(folder: Path, place: str, numbers: str | None, form: str) -> None:
    if form != "relative":
        place = str(folder / place)
    if form == "url":
        place = f"file://{place}"
    if numbers is None:
        with pytest.raises(ValueError, match="there are none"):
            find_parts(place, "edges")
        return
    parts = find_parts(place, "edges")
    assert "".join(sorted(part.name[-9] for part in parts)) == numbers
    assert all(part.num_rows == 2 and part.version and part.num_bytes > 0 for part in parts)
    if form != "relative":
        assert all(part.name.startswith("file:///" if form == "url" else "/") for part in parts)
        assert all(Path(part.name.removeprefix("file://")).exists() for part in parts)


def test_lists_of_places(folder: Path) -> None:
    parts = find_parts(["x-4.parquet", folder / "a" / "b"], "edges")
    assert [part.name[-9] for part in parts] == ["4", "2", "3"]


def test_folders_of_a_partitioned_table(tmp_path: Path) -> None:
    table = pa.table({"nid": [0, 1, 2], "pred": [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]], "day": [1, 2, 2]})
    dataset.write_dataset(
        table, tmp_path / "probs=1", format="parquet", partitioning=["day"], partitioning_flavor="hive"
    )
    labels = pa.table({"nid": [0, 1, 2], "label": [0, 1, 1]})
    scores = ew.evaluate_tables(tmp_path / "probs=1", labels)
    assert (scores.nodewise.count, scores.nodewise.accuracy) == (3, 2 / 3)
    with_days = dataset.dataset(tmp_path / "probs=1", partitioning="hive")
    assert_same(ew.evaluate_tables(with_days, labels), scores)


def test_keys_and_wildcards_in_names_of_folders(tmp_path: Path) -> None:
    """DuckDB must not take them for columns and wildcards."""
    folder = tmp_path / "a[1]*" / "src=5"
    folder.mkdir(parents=True)
    small, large = pa.array([1, 2], pa.int32()), pa.array([10**12, 1])
    parquet.write_table(pa.table({"src": small, "dst": small}), folder / "0.parquet")
    parquet.write_table(pa.table({"src": large, "dst": large}), folder / "1.parquet")
    probs = pa.table({"nid": [1, 2, 10**12], "pred": [[0.5, 0.5]] * 3})
    labels = pa.table({"nid": [1, 2, 10**12], "label": [0, 0, 0]})
    scores = ew.evaluate_tables(probs, labels, folder, work=None)
    assert scores.settings.notes[1].startswith("4 rows of edges")


@pytest.mark.parametrize("row_groups", [1, 3, 100])
def test_parquet_files_are_split_at_row_groups(tmp_path: Path, row_groups: int) -> None:
    file = tmp_path / "edges.parquet"
    parquet.write_table(pa.table({"src": range(100), "dst": range(100)}), file, row_group_size=-(-100 // row_groups))
    parts = find_parts(file, "edges", max_rows=40)
    assert [row for part in parts for batch in part.read(["src"]) for row in batch["src"].to_pylist()] == [*range(100)]
    assert [part.first_row for part in parts] == {1: [0], 3: [0, 34, 68], 100: [0, 40, 80]}[row_groups]
    assert all(part.num_rows == sum(batch.num_rows for batch in part.read(["src"])) for part in parts)
    assert sum(part.num_bytes for part in parts) <= file.stat().st_size


# --- reading ahead ---


class Source:
    """Numbers that count how many were read, and whether reading ended."""

    def __init__(self, length: int, error: Exception | None = None):
        self.num_read, self.ended, self._length, self._error = 0, False, length, error

    def batches(self) -> Iterator[int]:
        try:
            for k in range(self._length):
                self.num_read += 1
                yield k
            if self._error:
                raise self._error
        finally:
            self.ended = True


def test_batches_are_read_ahead_in_order() -> None:
    source, before = Source(100), active_count()
    for k, number in enumerate(read_ahead(source.batches())):
        assert number == k
        assert source.num_read <= k + 2 + READ_AHEAD  # memory is bounded
    assert (k, source.ended, active_count()) == (99, True, before)


def test_errors_of_reading_are_raised_after_the_batches_before() -> None:
    source, seen, before = Source(5, KeyError("broken")), [], active_count()
    with pytest.raises(KeyError, match="broken"):
        seen.extend(read_ahead(source.batches()))
    assert (source.ended, active_count()) == (True, before)
    assert Source(0).num_read == len(list(read_ahead(Source(0).batches())))


@pytest.mark.parametrize("num_used", [1, 3])
def test_closing_ends_reading(num_used: int) -> None:
    source, before = Source(100), active_count()
    batches = read_ahead(source.batches())
    assert [next(batches) for _ in range(num_used)] == list(range(num_used))
    batches.close()
    del batches
    assert (source.ended, active_count()) == (True, before)
    assert source.num_read <= num_used + 2 + READ_AHEAD


@pytest.mark.parametrize("ids", [[0, 1, 2], ["a", "b", "c"]])
def test_nothing_reads_edges_after_an_error(ids: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.tables.parts.ROWS_PER_BATCH", 10)
    monkeypatch.setattr("edgewise.tables.node_ids.ROWS_PER_JOINED_BATCH", 10)
    file, unknown = tmp_path / "edges.parquet", 9 if ids[0] == 0 else "new"
    parquet.write_table(pa.table({"src": [unknown] + [ids[0]] * 9_999, "dst": [ids[1]] * 10_000}), file)
    probs, labels = pa.table({"nid": ids, "pred": [[0.5, 0.5]] * 3}), pa.table({"nid": ids, "label": [0, 0, 1]})
    before = active_count()
    with pytest.raises(ValueError, match="row 0") as caught:
        ew.evaluate_tables(probs, labels, file)
    assert active_count() == before and caught.value.__traceback__ is not None  # which keeps what the frames have


@pytest.mark.parametrize("kind", ["integer", "sparse", "text"])
def test_columns_whose_names_differ_in_case_only(tmp_path: Path, kind: str) -> None:
    a, b, c = {"integer": [0, 1, 2], "sparse": [0, 10**9, 7], "text": ["a", "b", "c"]}[kind]
    parquet.write_table(pa.table({"NID": [0, 0, 1], "nid": [a, b, c]}), tmp_path / "labels.parquet")
    parquet.write_table(pa.table({"SRC": [a, a], "src": [b, c], "dst": [c, b]}), tmp_path / "edges.parquet")
    probs = pa.table({"nid": [a, b, c], "pred": [[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]]})
    columns = {"labels.id": "nid", "label": "NID", "src": "src", "dst": "dst"}
    ev = ew.evaluate_tables(probs, tmp_path / "labels.parquet", tmp_path / "edges.parquet", columns=columns)
    assert (ev.edgewise.count, ev.disagree.count) == (1, 1)  # b and c, in both directions


@pytest.mark.parametrize("table", ["labels", "edges"])
def test_two_columns_of_one_name(tmp_path: Path, table: str) -> None:
    names = {"labels": ["nid", "label", "label"], "edges": ["src", "dst", "src"]}[table]
    tables = {
        "probs": pa.table({"nid": [0, 1], "pred": [[0.75, 0.25]] * 2}),
        "labels": pa.table({"nid": [0, 1], "label": [0, 1]}),
        "edges": pa.table({"src": [0], "dst": [1]}),
    }
    numbers = pa.array([0, 1])
    parquet.write_table(pa.table([numbers] * 3, names=names), tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=f"twice.parquet.* {names[2]}"):
        ew.evaluate_tables(**tables | {table: tmp_path / "twice.parquet"})
    parquet.write_table(tables[table], tmp_path / "once.parquet")
    files = [tmp_path / "once.parquet", tmp_path / "twice.parquet"]
    with pytest.raises(ValueError, match=r"twice\.parquet"):
        ew.evaluate_tables(**tables | {table: files})


def test_ids_above_63_bits_are_named_by_their_row() -> None:
    probs = pa.table({"nid": [0, 1], "pred": [[0.75, 0.25]] * 2})
    edges = pa.table({"src": pa.array([0, 1, 2**63], pa.uint64()), "dst": [1, 0, 1]})
    with pytest.raises(ValueError, match="column src of edges, row 2"):
        ew.evaluate_tables(probs, pa.table({"nid": [0, 1], "label": [0, 1]}), edges)


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_empty_value_of_a_dictionary_is_a_missing_id(kind: str) -> None:
    a, b = {"integer": [0, 1], "text": ["a", "b"]}[kind]
    probs = pa.table({"nid": [a, b], "pred": [[0.75, 0.25]] * 2})
    labels = pa.table({"nid": [a, b], "label": [0, 1]})
    ends = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([a, None]))
    edges = pa.table({"src": ends, "dst": [b, a]})
    with pytest.raises(ValueError, match="column src is empty in row 1"):
        ew.evaluate_tables(probs, labels, edges)
    assert ew.evaluate_tables(probs, labels, edges, skip_unknown=True).edgewise.count == 1


@pytest.mark.parametrize("value", [2, 256, 300, -1, 2**64 - 1])
def test_other_numbers_in_a_mask_are_refused(value: int) -> None:
    tables = pa.table({"nid": [0], "pred": [[1.0]]}), pa.table({"nid": [0], "label": [0]})
    number_type = pa.uint64() if value > 2**63 else pa.int64()
    mask = pa.table({"nid": [0], "mask": pa.array([value], number_type)})
    with pytest.raises(ValueError, match="booleans, or 0 and 1, in column mask of mask"):
        ew.evaluate_tables(*tables, mask=mask)


def test_types_of_ids_differ_between_parts(tmp_path: Path) -> None:
    types = {"int32": pa.int32(), "int64": pa.int64(), "uint64": pa.uint64()}
    ids = {"int32": 5, "int64": 10**12, "uint64": 7}
    (tmp_path / "labels").mkdir()
    (tmp_path / "edges").mkdir()
    for name, id_type in types.items():
        column = pa.array([ids[name]], id_type)
        parquet.write_table(pa.table({"nid": column, "label": [0]}), tmp_path / f"labels/{name}.parquet")
        parquet.write_table(pa.table({"src": column, "dst": pa.array([11])}), tmp_path / f"edges/{name}.parquet")
    probs = pa.table({"nid": [5, 7, 10**12, 11], "pred": [[0.75, 0.25]] * 4})
    ev = ew.evaluate_tables(probs, tmp_path / "labels", tmp_path / "edges", edge_choice="any", skip_unknown=True)
    assert (ev.nodewise.count, ev.edgewise.count) == (3, 0)
    labels = pa.table({"nid": [5, 7, 10**12, 11], "label": [0, 0, 0, 0]})
    assert ew.evaluate_tables(probs, labels, tmp_path / "edges").edgewise.count == 3


def test_ids_at_the_ends_of_64_bits() -> None:
    for first, num_edges in ((-(2**63), 3), (2**63 - 3, 2)):  # a parallel edge, and one in both directions
        ids = pa.array([first, first + 1, first + 2], pa.int64())
        probs = pa.table({"nid": ids, "pred": [[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]]})
        labels = pa.table({"nid": ids, "label": [0, 1, 1]})
        others = pa.array([None, -(2**63), 2**63 - 1, 0], pa.int64())
        edges = pa.table({"src": pa.concat_arrays([ids[:2], others]), "dst": ids.take(pa.array([1, 2, 1, 1, 1, 1]))})
        ev = ew.evaluate_tables(probs, labels, edges, skip_unknown=True)
        assert ev.edgewise.count == num_edges
        assert "skipped edges without a prediction for both ends: 3" in ev.settings.notes
