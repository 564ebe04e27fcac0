"""Invalid tables: one line that names the part, and the row if there is one, and nothing is left behind."""

import re
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, dataset, parquet

import edgewise as ew

IDS = {"integer": [0, 1, 2, 3], "sparse": [-(10**9), 5, 10**12, 77], "text": ["a", "b", "007", "né"]}
NEW = {"integer": 99, "sparse": 99, "text": "new"}
TYPES = {"integer": pa.int64(), "sparse": pa.int64(), "text": pa.string()}


@pytest.fixture(params=["integer-parquet", "integer-csv", "sparse-csv", "text-parquet"])
def form(request: pytest.FixtureRequest) -> tuple[str, str]:
    return tuple(request.param.split("-"))


@pytest.fixture
def kind(form: tuple[str, str]) -> str:
    return form[0]


@pytest.fixture
def suffix(form: tuple[str, str]) -> str:
    return form[1]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert gettempdir() == str(folder)
    return folder


class Tables:
    """Tables of two parts each. A test replaces rows of second parts."""

    def __init__(self, kind: str, suffix: str, folder: Path):
        self.kind, self.suffix, self.folder = kind, suffix, folder
        a, b, c, d = IDS[kind]
        self.parts = {
            "probs": [self.probs([a, b], [[0.5, 0.5], [0.25, 0.75]]), self.probs([c, d], [[1.0, 0.0], [0.75, 0.25]])],
            "labels": [self.rows(nid=[a, b], label=[0, 1]), self.rows(nid=[c, d], label=[0, 0])],
            "mask": [self.rows(nid=[a, b], mask=[True, True]), self.rows(nid=[c, d], mask=[True, False])],
            "edges": [self.rows(src=[a, b], dst=[b, c]), self.rows(src=[c, d, a], dst=[d, a, c])],
        }

    def probs(self, ids: list[Any], probs: list[Any]) -> pa.Table:
        if self.suffix == "parquet":
            return self.rows(nid=ids, pred=probs)
        return self.rows(nid=ids, p0=[row[0] for row in probs], p1=[row[1] for row in probs])

    def rows(self, **columns: list[Any]) -> pa.Table:
        types = {name: TYPES[self.kind] for name in ("nid", "src", "dst") if name in columns}
        return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})

    def name(self, table: str) -> str:
        """The name of the second part."""
        return f"{table}-1.{self.suffix}"

    def paths(self) -> dict[str, Path]:
        for table, parts in self.parts.items():
            (self.folder / table).mkdir(exist_ok=True)
            for k, part in enumerate(parts):
                file = self.folder / table / f"{table}-{k}.{self.suffix}"
                if self.suffix == "parquet":
                    parquet.write_table(part, file)
                else:
                    csv.write_csv(part, file)
        return {table: self.folder / table for table in self.parts}


@pytest.fixture
def tables(kind: str, suffix: str, tmp_path: Path, scratch: Path) -> Tables:
    return Tables(kind, suffix, tmp_path)


def assert_refused(tables: Tables, *facts: object, **options: Any) -> str:
    """Check that the tables are refused in one line with all facts, and that no file is left."""
    message = assert_paths_refused(tables.paths(), *facts, **options)
    assert list((tables.folder / "scratch").iterdir()) == []
    return message


def assert_paths_refused(paths: dict[str, Any], *facts: object, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        ew.evaluate_tables(**paths, **options)
    message = str(caught.value)
    assert "\n" not in message and all(re.search(rf"(?<!\w){re.escape(str(fact))}(?!\d)", message) for fact in facts), (
        message
    )
    return message


def test_tables_of_the_tests_are_valid(tables: Tables) -> None:
    scores = ew.evaluate_tables(**tables.paths(), same_label=True)
    assert (scores.nodewise.count, scores.edgewise.count) == (3, 3)
    assert list((tables.folder / "scratch").iterdir()) == []


# --- ids ---


def test_edge_with_unknown_id(tables: Tables, kind: str) -> None:
    a, b, new = IDS[kind][0], IDS[kind][1], NEW[kind]
    tables.parts["edges"][1] = tables.rows(src=[a, b, a], dst=[b, new, a])
    assert_refused(tables, tables.name("edges"), "row 1", new)
    scores = ew.evaluate_tables(**tables.paths(), skip_unknown=True)
    assert scores.edgewise.count == 3 and "skipped edges without a prediction for both ends: 1" in "\n".join(
        scores.settings.notes
    )


def test_label_of_unknown_id(tables: Tables, kind: str) -> None:
    tables.parts["labels"][1] = tables.rows(nid=[IDS[kind][2], NEW[kind]], label=[0, 1])
    tables.parts["mask"][1] = tables.rows(nid=[IDS[kind][2]], mask=[True])
    assert_refused(tables, tables.name("labels"), "row 1")
    scores = ew.evaluate_tables(**tables.paths(), skip_unknown=True)
    assert scores.nodewise.count == 3
    assert "skipped labels without a prediction: 1" in scores.settings.notes


@pytest.mark.parametrize("without", ["prediction", "label"])
def test_mask_with_unknown_id(tables: Tables, kind: str, without: str) -> None:
    node = NEW[kind] if without == "prediction" else IDS[kind][3]
    if without == "label":
        tables.parts["labels"][1] = tables.rows(nid=IDS[kind][2:], label=[0, -1])
    tables.parts["mask"][1] = tables.rows(nid=[IDS[kind][2], node], mask=[True, True])
    assert_refused(tables, tables.name("mask"), "row 1")
    scores = ew.evaluate_tables(**tables.paths(), skip_unknown=True)
    assert scores.nodewise.count == 3 and "skipped nodes of the mask without a prediction or a label: 1" in "\n".join(
        scores.settings.notes
    )


@pytest.mark.parametrize("same_part", [True, False])
def test_node_with_two_predictions(tables: Tables, kind: str, same_part: bool) -> None:
    first, third, fourth = IDS[kind][0], IDS[kind][2], IDS[kind][3]
    again = third if same_part else first
    tables.parts["probs"][1] = tables.probs([third, fourth, again], [[1.0, 0.0]] * 3)
    assert_refused(tables, tables.name("probs"), "row 2", again)


@pytest.mark.parametrize("same_part", [True, False])
@pytest.mark.parametrize("table", ["labels", "mask"])
def test_node_twice(tables: Tables, kind: str, table: str, same_part: bool) -> None:
    first, third, fourth = IDS[kind][0], IDS[kind][2], IDS[kind][3]
    again = third if same_part else first
    values = {"labels": {"label": [0, 0, 1]}, "mask": {"mask": [True] * 3}}[table]
    tables.parts[table][1] = tables.rows(nid=[third, fourth, again], **values)
    assert_refused(tables, tables.name(table), "row 2", again)


@pytest.mark.parametrize("table", ["probs", "labels", "mask", "edges"])
def test_empty_id(tables: Tables, kind: str, table: str) -> None:
    first, second = IDS[kind][:2]
    tables.parts[table][1] = {
        "probs": lambda: tables.probs([first, None], [[1.0, 0.0]] * 2),
        "labels": lambda: tables.rows(nid=[first, None], label=[0, 1]),
        "mask": lambda: tables.rows(nid=[first, None], mask=[True, True]),
        "edges": lambda: tables.rows(src=[first, second], dst=[second, None]),
    }[table]()
    assert_refused(tables, tables.name(table), "row 1")


def test_empty_ids_are_skipped_like_unknown_ones(tables: Tables, kind: str) -> None:
    first, second, third, fourth = IDS[kind]
    tables.parts["edges"][1] = tables.rows(src=[first, None], dst=[third, second])
    tables.parts["labels"][1] = tables.rows(nid=[third, fourth, None], label=[0, 0, 1])
    scores = ew.evaluate_tables(**tables.paths(), skip_unknown=True)
    assert {"skipped edges without a prediction for both ends: 1", "skipped labels without a prediction: 1"} <= {
        *scores.settings.notes
    }


@pytest.mark.parametrize("table", ["probs", "labels", "mask", "edges"])
def test_ids_of_mixed_kind(tables: Tables, kind: str, table: str) -> None:
    other = "text" if kind != "text" else "integer"
    mixed = Tables(other, tables.suffix, tables.folder)
    tables.parts[table][1] = mixed.parts[table][1]
    if (other, tables.suffix) == ("integer", "csv"):  # text like 7 is text, too
        facts = () if table == "probs" else ("row 0",)
        assert table == "probs" or assert_refused(tables, tables.name(table), *facts)
    else:
        assert_refused(tables, tables.name(table), "text", "integer")


@pytest.mark.parametrize("first_block", [True, False])
def test_padded_numbers_in_text_files_are_no_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_block: bool
) -> None:
    tables = Tables("integer", "csv", tmp_path)
    paths = tables.paths()
    text = "src,dst\n" + ("" if first_block else "1,2\n" * 100) + "1,007\n"
    (paths["edges"] / "edges-1.csv").write_text(text)
    monkeypatch.setattr("edgewise.tables.parts.CSV_BLOCK_BYTES", 50)
    assert_paths_refused(paths, "edges-1.csv", *(() if first_block else ("row 100", "007")))


def test_ids_beyond_64_bits(tmp_path: Path) -> None:
    edges = tmp_path / "edges.parquet"
    parquet.write_table(pa.table({"src": pa.array([1, 2**64 - 1], pa.uint64()), "dst": [0, 1]}), edges)
    for kind in ("integer", "sparse"):
        paths = Tables(kind, "parquet", tmp_path).paths()
        assert_paths_refused({**paths, "edges": edges}, "edges.parquet", 2**64 - 1)


# --- values ---


@pytest.mark.parametrize(
    ("row", "fact"), [([0.5, 0.6], "1.1"), ([float("nan"), 1.0], "nan"), ([1.5, -0.5], "-0.5"), ([None, 1.0], "empty")]
)
def test_invalid_probabilities(tables: Tables, kind: str, row: list[float], fact: str) -> None:
    tables.parts["probs"][1] = tables.probs(IDS[kind][2:], [[1.0, 0.0], row])
    message = assert_refused(tables, tables.name("probs"), "row 1")
    assert fact in message.lower()


@pytest.mark.parametrize("label", [2, -2, 0.5, 2**40, float("inf")])
def test_labels_out_of_range(tables: Tables, kind: str, label: float) -> None:
    tables.parts["labels"][1] = tables.rows(nid=IDS[kind][2:], label=pa.array([None, label], pa.float64()))
    assert_refused(tables, tables.name("labels"), "row 1", label)


def test_labels_out_of_the_names_of_classes(tables: Tables, kind: str) -> None:
    ids = IDS[kind]
    tables.parts["labels"] = [tables.rows(nid=ids[:2], label=["x", "y"]), tables.rows(nid=ids[2:], label=["x", "z"])]
    assert_refused(tables, tables.name("labels"), "row 1", "z", class_names=["x", "y"])
    assert_refused(tables, "class_names", class_names=["x", "y", "z"])
    assert "labels-" in assert_refused(tables, "class_names")


def test_mask_that_is_no_mask(tables: Tables, kind: str) -> None:
    tables.parts["mask"][1] = tables.rows(nid=IDS[kind][2:], mask=[1, 2])
    assert_refused(tables, tables.name("mask"))


# --- schemas and files ---


@pytest.mark.parametrize("table", ["probs", "labels", "mask", "edges"])
@pytest.mark.parametrize("position", [0, 1])
def test_part_without_a_column(tables: Tables, table: str, position: int) -> None:
    part = tables.parts[table][1]
    tables.parts[table][1] = part.rename_columns(
        ["other" if k == position else name for k, name in enumerate(part.column_names)]
    )
    assert_refused(tables, tables.name(table), part.column_names[position])


@pytest.mark.parametrize("suffix", ["parquet"])
@pytest.mark.parametrize(
    ("probs", "fact"),
    [
        ([[0.5, 0.25, 0.25]] * 2, "3"),
        ([[0.5, 0.5], [0.5, 0.25, 0.25]], "row 1"),
        (pa.array([[1.0, 0.0]] * 2, pa.list_(pa.float32())), "float32"),
        ([["a", "b"]] * 2, "string"),
        ([0, 1], "int64"),
        ([None, [0.5, 0.5]], "row 0"),
    ],
)
def test_part_with_other_probabilities(tables: Tables, kind: str, probs: Any, fact: str) -> None:
    tables.parts["probs"][1] = tables.rows(nid=IDS[kind][2:], pred=probs)
    assert_refused(tables, tables.name("probs"), fact)


@pytest.mark.parametrize("suffix", ["csv"])
def test_lists_in_text_that_are_no_numbers(tables: Tables, kind: str) -> None:
    ids = IDS[kind]
    tables.parts["probs"] = [
        tables.rows(nid=ids[:2], pred=["0.5;0.5", "[1;0]"]),
        tables.rows(nid=ids[2:], pred=["0.5;0.5", "0.5;x"]),
    ]
    assert_refused(tables, tables.name("probs"), "row 1", "0.5;x")


@pytest.mark.parametrize("suffix", ["parquet"])
@pytest.mark.parametrize("table", ["labels", "edges"])
@pytest.mark.parametrize("damage", ["truncated", "inside", "empty", "text"])
def test_damaged_parquet_part(tables: Tables, table: str, damage: str) -> None:
    paths = tables.paths()
    file = paths[table] / tables.name(table)
    content = file.read_bytes()
    new = {
        "truncated": content[: len(content) // 2],
        "inside": content[:4] + b"\xff" * 100 + content[104:],
        "empty": b"",
        "text": b"nid,label\n0,1\n",
    }
    file.write_bytes(new[damage])
    assert_paths_refused(paths, tables.name(table))
    assert list((tables.folder / "scratch").iterdir()) == []


@pytest.mark.parametrize("content", ["", "src,dst\n0,1\n0,1,2\n", "\n\n"])
def test_damaged_text_part(tmp_path: Path, content: str) -> None:
    paths = Tables("integer", "csv", tmp_path).paths()
    (paths["edges"] / "edges-1.csv").write_text(content)
    assert_paths_refused(paths, "edges-1.csv")


def test_empty_parts_are_no_error(tables: Tables) -> None:
    expected = ew.evaluate_tables(**tables.paths())
    for parts in tables.parts.values():
        parts.insert(0, parts[0].slice(0, 0))
        parts.append(parts[0])
    assert ew.evaluate_tables(**tables.paths()).to_dict() == expected.to_dict()


def test_tables_without_rows(tables: Tables) -> None:
    for table, parts in tables.parts.items():
        tables.parts[table] = [part.slice(0, 0) for part in parts]
    scores = ew.evaluate_tables(**tables.paths(), same_label=True)
    assert (scores.nodewise.count, scores.edgewise.count, scores.same_label.count) == (0, 0, 0)


def test_edges_without_predictions(tables: Tables) -> None:
    tables.parts["probs"] = [part.slice(0, 0) for part in tables.parts["probs"]]
    assert_refused(tables, "labels-0", "row 0")


# --- places ---


def test_folder_of_two_tables(tmp_path: Path) -> None:
    paths = Tables("integer", "parquet", tmp_path).paths()
    message = assert_paths_refused({**paths, "edges": tmp_path}, "edges", "labels", "mask", "probs")
    glob = re.search(r"such as (\S+)\.$", message)[1]  # the way out works
    assert ew.evaluate_tables(glob, paths["labels"]).nodewise.count == 4
    with_keys = tmp_path / "all"
    for table in ("edges", "mask"):
        (with_keys / table / "day=1").mkdir(parents=True)
        (paths[table] / f"{table}-0.parquet").rename(with_keys / table / "day=1" / "0.parquet")
    assert_paths_refused({**paths, "edges": with_keys}, "edges", "mask")


@pytest.mark.parametrize("place", ["nothing", "empty", "empty/*.parquet", "text.txt", "file:///nothing", "ftp://x/y"])
def test_no_files(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("0,1\n")
    paths = Tables("integer", "parquet", tmp_path).paths()
    assert_paths_refused({**paths, "edges": place}, place)


@pytest.mark.parametrize("table", [1, None, [1, 2], {"src": [0]}, pa.array([1])])
def test_what_is_no_table(tmp_path: Path, table: Any) -> None:
    paths = Tables("integer", "parquet", tmp_path).paths()
    assert_paths_refused({**paths, "labels": table}, "labels", type(table).__name__)


def test_filtered_dataset(tmp_path: Path) -> None:
    paths = Tables("integer", "parquet", tmp_path).paths()
    edges = dataset.dataset(paths["edges"]).filter(dataset.field("src") > 1)
    assert_paths_refused({**paths, "edges": edges}, "filter")


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY0:SECRET0@bucket/edges",
        "s3://bucket/edges?access_key=KEY0&secret_key=SECRET0",
        "s3://bucket/edges/*.parquet?region=x&session_token=SECRET0",
        "gs://bucket/edges?Password=SECRET0",
    ],
)
def test_secrets_in_urls_are_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    paths = Tables("integer", "parquet", tmp_path).paths()
    message = assert_paths_refused({**paths, "edges": url}, "AWS_SECRET_ACCESS_KEY")
    assert "KEY0" not in message and "SECRET0" not in message


def test_list_in_one_direction_is_not_in_both(tables: Tables) -> None:
    assert_refused(tables, "listed", listed="both")
