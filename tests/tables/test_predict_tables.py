"""`predict_tables` against `predict_edges` on the same pairs in memory, and runs that are stopped and continued."""

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, dataset, parquet

import edgewise as ew
from edgewise.tables import pair_prediction
from helpers.processes import script

IDS = {
    "integer": lambda n: np.arange(n) + 3,
    "far apart": lambda n: (np.arange(n) ** 3 * 1000) - 5,
    "text": lambda n: np.array([f"n {k}" for k in range(n)], dtype=object),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_prediction, "PAIRS_PER_PART", 8)
    monkeypatch.setattr(pair_prediction, "VALUES_PER_CHUNK", 5 * 2 * 3)


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
    return pa.table({name: pa.array(ids[side].tolist(), kind) for name, side in zip(("src", "dst"), pairs, strict=True)})


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
    single=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_random_tables_give_the_bits_of_arrays(
    seed: int, kind: str, num_pairs: int, num_classes: int, suffixes: list[str], single: bool
) -> None:
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(2, 30))
    probs = rng.dirichlet(np.ones(num_classes), num_nodes).astype(np.float32 if single else np.float64)
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
    probs = write_parts(node_table(np.arange(20), rng.dirichlet(np.ones(3), 20), rng), tmp_path / "probs", [".csv"], rng)
    return {"probs": probs, "pairs": tmp_path / "pairs", "out": tmp_path / "out"}
