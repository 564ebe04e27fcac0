"""`EdgePredictions` written to files, read back by pandas and pyarrow, and printed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from edgewise.decisions import Threshold, edge_predictions, predict_edges

IDS = ["a,b", 'quo"te', "line\nbreak", "ünïcode", "null", "7"]


def predictions(num_pairs=5, **options):
    g = torch.Generator().manual_seed(0)
    node = torch.randn(6, 3, generator=g, dtype=torch.float64).softmax(-1)
    pairs = [(IDS[k % 6], IDS[(k + 1 + k // 6) % 6]) for k in range(num_pairs)]
    names = ["ham", "spam", "egg, fried"]
    return predict_edges(node, pairs, ["same", "any=spam"], node_ids=IDS, class_names=names, top=2, **options)


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path, keep_default_na=False)
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["pairs"])


@pytest.mark.parametrize("batch", [2, 1 << 16])
@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_written_table_is_read_back_exactly(ending, batch, tmp_path, monkeypatch):
    monkeypatch.setattr(edge_predictions, "BATCH_ROWS", batch)
    table = predictions().select("same", Threshold(0.3, "by hand"))
    table.write(tmp_path / f"table.{ending}")
    again = read(tmp_path / f"table.{ending}")
    assert list(again) == list(table.columns)
    for name, column in table.columns.items():
        assert again[name].tolist() == column.tolist(), name
    assert again["selected"].dtype == bool
    assert [file.name for file in tmp_path.iterdir()] == [f"table.{ending}"]


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_empty_table_keeps_its_columns(ending, tmp_path):
    table = predict_edges(np.full((2, 2), 0.5), np.empty((2, 0), np.int64))
    table.write(str(tmp_path / f"table.{ending}"))
    again = read(tmp_path / f"table.{ending}")
    assert len(again) == len(table) == 0
    assert str(predictions(0).to_arrow().schema.field("start").type) == "string"
    if ending != "json":
        assert list(again) == list(table.columns)


def test_columns_keep_their_types_and_metadata_holds_convergence(tmp_path):
    table = predict_edges(np.full((3, 2), 0.5), [(0, 2)])
    table.write(tmp_path / "table.parquet")
    schema = parquet.read_schema(tmp_path / "table.parquet")
    assert [schema.field(name).type for name in ("start", "start_label", "P(same)")] == [
        pa.int64(),
        pa.int32(),
        pa.float64(),
    ]
    assert schema.metadata[b"convergence"] == b"nothing to converge"
    arrow = table.to_arrow()
    assert arrow.num_rows == 1
    assert arrow.column_names == list(table.columns)
    table.write(tmp_path / "table.json")
    document = json.loads((tmp_path / "table.json").read_text())
    assert document["convergence"] == "nothing to converge"
    assert document["pairs"][0]["start"] == 0


def test_unknown_file_extension_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"table\.xlsx"):
        predictions().write(tmp_path / "table.xlsx")


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_failed_write_keeps_the_old_file(ending, tmp_path, monkeypatch):
    path = tmp_path / f"table.{ending}"
    path.write_text("old")
    monkeypatch.setattr(edge_predictions, "BATCH_ROWS", 2)
    table = predictions()
    batches = edge_predictions.EdgePredictions._batches

    def full_disk(self, rows):
        yield next(batches(self, rows))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edge_predictions.EdgePredictions, "_batches", full_disk)
    with pytest.raises(ValueError, match="No space left on device"):
        table.write(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_str_shows_the_first_rows():
    text = str(predictions(23))
    assert "… and 13 more" in text
    assert len(text.splitlines()) > 12
    assert "P(any=spam)" in text
    assert repr(predictions()).startswith("EdgePredictions(pairs=5")
    short = str(predict_edges(np.array([[0.9, 0.1], [0.8, 0.2]]), [(0, 1)]))
    assert "more" not in short
    assert "0.7200" in short
    assert "0.7400" in short


def test_unknown_column_or_event_raises():
    with pytest.raises(KeyError, match="start, end"):
        predictions()["P(different)"]
    with pytest.raises(ValueError, match=r"events=\('different',\)"):
        predictions().select("different", Threshold(0.5, "by hand"))


def test_outcomes_cover_the_pairs_inside_the_mask():
    node = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    table = predict_edges(node, [(0, 1), (1, 3), (2, 3), (0, 2)], ["same", "both_correct", "any=1"])
    y, mask = np.array([0, 1, -1, 0]), np.array([True, True, False, True])
    for event, expected in {"same": [False, False], "both_correct": [True, False], "any=1": [True, True]}.items():
        probability, occurred = table.outcomes(event, y, mask)
        assert probability.tolist() == table[f"P({event})"][:2].tolist()
        assert occurred.tolist() == expected
    with pytest.raises(ValueError, match="node 2"):
        table.outcomes("same", y)


def test_pair_in_both_directions_counts_once_for_symmetric_events():
    node = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    first_is_1 = ("first is 1", np.array([[False, False], [True, True]]))
    both = [(0, 1), (1, 0), (2, 1), (2, 1), (1, 2), (2, 0)]
    table = predict_edges(node, both, ["same", "both_correct", first_is_1])
    y = np.array([0, 1, 1])
    for event in ("same", "both_correct"):
        once = predict_edges(node, [(0, 1), (2, 1), (2, 1), (2, 0)], [event]).outcomes(event, y)
        assert [part.tolist() for part in table.outcomes(event, y)] == [part.tolist() for part in once]
    assert table.outcomes("first is 1", y)[1].tolist() == [False, True, True, True, True, True]
