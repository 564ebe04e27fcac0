"""Outputs of training pipelines, read as they come: the layouts that the documentation of GraphStorm describes.

GraphStorm's remapping of results writes ``predict-00000_00000.parquet`` and so on into a folder per type of nodes, with
the columns pred (lists of 32-bit numbers) and nid, or CSV files with lists such as 0.25;0.75 and any delimiter. Columns
may be renamed, as in nid,~id. Predictions for edges have the columns pred, src_nid and dst_nid in a folder per type.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import edgewise as ew
from helpers.table_files import Graph, assert_same

NUM_CHUNKS = 3


@pytest.fixture(params=["text", "integer"])
def graph(request: pytest.FixtureRequest) -> Graph:
    rng, num_nodes = np.random.default_rng(0), 30
    ids = pa.array([f"n{k}" for k in range(num_nodes)]) if request.param == "text" else pa.array(range(100, 130))
    probs = torch.from_numpy(rng.dirichlet(np.ones(3), num_nodes)).float()
    y, edges = (torch.from_numpy(rng.integers(0, high, size)) for high, size in ((3, num_nodes), (num_nodes, (2, 80))))
    return Graph(ids, probs, y, edges, torch.ones(num_nodes, dtype=torch.bool))


def write_parquet(data: dict[str, np.ndarray], file: Path) -> None:
    columns = {name: list(values) if values.ndim == 2 else values for name, values in data.items()}
    parquet.write_table(pa.Table.from_arrays([pa.array(column) for column in columns.values()], [*columns]), file)


def csv_writer(delimiter: str) -> Callable[[dict[str, np.ndarray], Path], None]:
    def write(data: dict[str, np.ndarray], file: Path) -> None:
        columns = {
            name: [";".join(map(str, row)) for row in values.tolist()] if values.ndim == 2 else values.tolist()
            for name, values in data.items()
        }
        pd.DataFrame(columns).to_csv(file.with_suffix(".csv"), index=False, sep=delimiter)

    return write


def write_chunks(data: dict[str, np.ndarray], folder: Path, write: Callable = write_parquet) -> Path:
    """Write predictions as several chunks of several workers."""
    folder.mkdir(parents=True)
    length = len(next(iter(data.values())))
    for k, rows in enumerate(np.array_split(np.arange(length), 2 * NUM_CHUNKS)):
        chunk = {name: values[rows] for name, values in data.items()}
        write(chunk, folder / f"predict-{k // NUM_CHUNKS:05d}_{k % NUM_CHUNKS:05d}.parquet")
    return folder


def node_predictions(graph: Graph) -> dict[str, np.ndarray]:
    order = np.random.default_rng(1).permutation(len(graph.ids))
    return {"pred": graph.probs.numpy()[order], "nid": graph.ids.to_numpy(zero_copy_only=False)[order]}


def edge_predictions(graph: Graph) -> dict[str, np.ndarray]:
    src, dst = (graph.ids.to_numpy(zero_copy_only=False)[ends] for ends in graph.edges.numpy())
    return {"pred": np.full((len(src), 2), 0.5, dtype=np.float32), "src_nid": src, "dst_nid": dst}


def score(graph: Graph, probs: object, **options: object) -> ew.Evaluation:
    tables = graph.tables()
    return ew.evaluate_tables(
        probs, tables["labels"], options.pop("edges", tables["edges"]), same_label=True, **options
    )


def test_parquet_of_one_type_of_nodes(graph: Graph, tmp_path: Path) -> None:
    folder = write_chunks(node_predictions(graph), tmp_path / "predictions" / "paper")
    (tmp_path / "predictions" / "result_info.json").write_text("{}")
    (folder / "predict-00000.pt").write_bytes(b"kept with --preserve-input")
    for place in (folder, tmp_path / "predictions", folder / "predict-*.parquet"):
        assert_same(score(graph, place), graph.evaluate())


def test_parquet_of_several_types_and_tasks(graph: Graph, tmp_path: Path) -> None:
    root = tmp_path / "predictions"
    task = "node_classification-paper-venue"
    folder = write_chunks(node_predictions(graph), root / task / "paper")
    write_chunks(node_predictions(graph), root / task / "author")
    write_chunks(edge_predictions(graph), root / "edge_regression-paper_cite_paper-year" / "paper_cite_paper")
    assert_same(score(graph, folder), graph.evaluate())
    with pytest.raises(ValueError, match=r"author, paper.* or a glob, such as"):
        score(graph, root / task)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv(graph: Graph, tmp_path: Path, delimiter: str) -> None:
    folder = write_chunks(node_predictions(graph), tmp_path / "paper", csv_writer(delimiter))
    graph.probs = graph.probs.double()  # digits of 32-bit numbers, read with 64 bits
    assert_same(score(graph, folder), graph.evaluate())


@pytest.mark.parametrize("write", [write_parquet, csv_writer(",")])
def test_renamed_columns(graph: Graph, tmp_path: Path, write: Callable) -> None:
    data = node_predictions(graph)
    folder = write_chunks({"pred": data["pred"], "~id": data["nid"]}, tmp_path / "paper", write)
    told = write_chunks({"venue:Float[]": data["pred"], "paper": data["nid"]}, tmp_path / "told", write)
    if write is not write_parquet:
        graph.probs = graph.probs.double()
    assert_same(score(graph, folder), graph.evaluate())
    columns = {"probs.id": "paper", "probs.probs": "venue:Float[]"}
    assert_same(score(graph, told, columns=columns), graph.evaluate())


@pytest.mark.parametrize("names", [("src_nid", "dst_nid"), ("~from", "~to")])
@pytest.mark.parametrize("write", [write_parquet, csv_writer(",")])
def test_edges_with_predictions(graph: Graph, tmp_path: Path, names: tuple[str, str], write: Callable) -> None:
    data = edge_predictions(graph)
    renamed = {"pred": data["pred"], names[0]: data["src_nid"], names[1]: data["dst_nid"]}
    edges = write_chunks(renamed, tmp_path / "paper_cite_paper", write)
    probs = write_chunks(node_predictions(graph), tmp_path / "paper")
    assert_same(score(graph, probs, edges=edges), graph.evaluate())


def test_predicted_classes_and_raw_results_are_refused(graph: Graph, tmp_path: Path) -> None:
    data = node_predictions(graph)
    classes = write_chunks({**data, "pred": data["pred"].argmax(1)}, tmp_path / "classes")
    with pytest.raises(ValueError, match="return_proba: true"):
        score(graph, classes)
    raw = tmp_path / "raw"
    raw.mkdir()
    torch.save(graph.probs, raw / "predict-00000.pt")
    torch.save(torch.arange(30), raw / "predict_nids-00000.pt")
    with pytest.raises(ValueError, match=r"end in \.parquet"):
        score(graph, raw)


# --- shards of other pipelines ---


@pytest.mark.parametrize(
    ("probs", "labels", "edges"),
    [
        (("node_id", "probs"), ("node_id", "y"), ("source", "target")),
        (("id", "prob"), ("id", "target"), ("u", "v")),
        (("ID", "Predictions"), ("ID", "Label"), ("SRC", "DST")),
        (("ids", "probabilities"), ("node", "class"), ("source_id_int", "dest_id_int")),
    ],
)
def test_columns_are_found_by_well_known_names(
    graph: Graph, probs: tuple[str, str], labels: tuple[str, str], edges: tuple[str, str]
) -> None:
    tables = graph.tables()
    renamed = {
        "probs": tables["probs"].rename_columns(list(probs)).append_column("split", [["test"] * 30]),
        "labels": tables["labels"].rename_columns(list(labels)),
        "edges": tables["edges"].rename_columns(list(edges)).append_column("weight", [[1.0] * 80]),
    }
    assert_same(ew.evaluate_tables(**renamed, same_label=True), graph.evaluate())


@pytest.mark.parametrize("pattern", ["p{}", "p_{}", "prob{}", "probs_{}", "pred_{}", "P{}"])
@pytest.mark.parametrize("first", [0, 1])
def test_columns_of_classes_are_found_in_their_order(graph: Graph, pattern: str, first: int) -> None:
    tables, order = graph.tables(), [2, 0, 1]
    columns = {pattern.format(k + first): graph.probs[:, k].numpy() for k in order}
    tables["probs"] = pa.table({"nid": graph.ids, **columns})
    assert_same(ew.evaluate_tables(**tables, same_label=True), graph.evaluate())


@pytest.mark.parametrize("text", ["0,1\n1,2\n", "0 1\n1 2\n", "a,b\nb,c\n", "-1\t2\n2\t3\n"])
@pytest.mark.parametrize("table", ["edges", "mask"])
def test_text_without_names_of_columns_is_refused(graph: Graph, tmp_path: Path, text: str, table: str) -> None:
    """The first row would be lost."""
    file, tables = tmp_path / "table.csv", graph.tables()
    file.write_text(text if table == "edges" else "".join(f"{line.split(',')[0]}\n" for line in text.splitlines()))
    with pytest.raises(ValueError, match=r"table\.csv"):
        ew.evaluate_tables(**{**tables, table: file})
