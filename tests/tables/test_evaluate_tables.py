"""Scores of tables equal those of the same data in memory to the last bit, however the tables are cut into parts."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import dataset

import edgewise as ew
from edgewise.tables.table_jobs import TableProgress
from helpers.table_files import FORMATS, Graph, assert_same, cut, prob_columns, prob_text, write_parts

table_evaluation = import_module("edgewise.tables.table_evaluation")
ID_KINDS = ("dense", "shifted", "gaps", "sparse", "large", "text", "zeros")
DIRECTIONS = ("once", "backward", "both", "mixed", "unequal", "any")


@contextmanager
def small_chunks() -> Iterator[None]:
    """Read chunks of a few rows, so that each table has many jobs, batches and partitions."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"EDGES_PER_JOB": 5, "EDGES_PER_NODE_AND_JOB": 0, "NODES_PER_CHUNK": 4}
        for name, size in sizes.items():
            patch.setattr(table_evaluation, name, size)
        patch.setattr("edgewise.tables.edge_jobs.EDGES_PER_PARTITION", 3)
        patch.setattr("edgewise.tables.parts.ROWS_PER_BATCH", 3)
        patch.setattr("edgewise.tables.node_ids.ROWS_PER_JOINED_BATCH", 3)
        patch.setattr("edgewise.tables.node_builder.PROBS_PER_BATCH", 6)
        patch.setattr("edgewise.tables.edge_scorer.ROWS_PER_SLICE", 2)
        yield


def make_ids(kind: str, num_nodes: int, rng: np.random.Generator) -> pa.Array:
    numbers = {
        "dense": lambda: np.arange(num_nodes),
        "shifted": lambda: np.arange(num_nodes) - 3,
        "gaps": lambda: rng.choice(2 * num_nodes, num_nodes, replace=False),
        "sparse": lambda: rng.choice(10**6, num_nodes, replace=False) * 10_007 - 10**9,
        "large": lambda: 2**63 - 1 - rng.choice(10**6, num_nodes, replace=False),
    }
    if kind in numbers:
        return pa.array(rng.permutation(numbers[kind]()))
    names = [f"{k:04d}" if kind == "zeros" else f"né {k}" for k in rng.permutation(num_nodes)]
    return pa.array(names, pa.string())


def list_edges(directions: str, edges: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the listings of edges, some of which are parallel or self-loops."""
    low, high = edges.min(0), edges.max(0)
    if directions == "once":
        return np.stack([low, high])
    if directions == "backward":
        return np.stack([high, low])
    if directions == "any":
        return edges
    listed = np.concatenate([edges, edges[::-1]], axis=1)
    if directions == "mixed" and listed.shape[1]:
        listed = np.delete(listed, rng.integers(listed.shape[1]), axis=1)
    if directions == "unequal":
        listed = np.concatenate([listed, edges[:, : edges.shape[1] // 2], edges[:, : edges.shape[1] // 3]], axis=1)
    return listed


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, str]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_nodes, num_edges, num_classes = draw(st.integers(1, 12)), draw(st.integers(0, 30)), draw(st.integers(2, 4))
    logits = draw(st.sampled_from([0.1, 2.0, 40.0])) * torch.from_numpy(rng.normal(size=(num_nodes, num_classes)))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.float16]))
    y = rng.integers(0, num_classes, num_nodes)
    mask = rng.random(num_nodes) < 0.7
    if draw(st.booleans()):  # some labels outside the mask are missing
        y[~mask & (rng.random(num_nodes) < 0.5)] = -1
    directions = draw(st.sampled_from(DIRECTIONS))
    edges = list_edges(directions, rng.integers(0, num_nodes, (2, num_edges)), rng)
    edges = edges[:, rng.permutation(edges.shape[1])]
    ids = make_ids(draw(st.sampled_from(ID_KINDS)), num_nodes, rng)
    graph = Graph(ids, logits.softmax(-1).to(dtype), *map(torch.from_numpy, (y, edges, mask)))
    return graph, directions


@pytest.mark.filterwarnings("ignore::edgewise.small_samples.SmallSampleWarning")
@given(
    case=graphs(),
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(FORMATS), min_size=4, max_size=4),
    row_group_size=st.sampled_from([1, 4, 1 << 20]),
    options=st.fixed_dictionaries(
        {
            "edge_choice": st.sampled_from(["both", "any", "all"]),
            "closed": st.sampled_from(["right", "left"]),
            "n_bins": st.sampled_from([1, 10, 15]),
            "same_label": st.booleans(),
            "norm": st.sampled_from(["l1", "l2", "max"]),
        }
    ),
    missing=st.sampled_from(["absent", "-1", "empty"]),
    booleans=st.booleans(),
    lists=st.booleans(),
    small=st.booleans(),
)
def test_any_partition_gives_the_bits_of_memory(
    case, seed, kinds, row_group_size, options, missing, booleans, lists, small
) -> None:
    graph, directions = case
    if kinds[0] in ("csv", "tsv"):  # numbers in text have 64 bits
        probs = graph.probs.double()
        graph = replace(graph, probs=probs / probs.sum(1, keepdim=True))
    rng, tables = np.random.default_rng(seed), graph.tables()
    if missing != "absent":
        labels = np.where(graph.y >= 0, graph.y, -1)
        tables["labels"] = pa.table({"nid": graph.ids, "y": pa.array(labels, mask=(labels < 0) & (missing == "empty"))})
    if booleans:
        tables["mask"] = pa.table({"nid": graph.ids, "mask": graph.mask.numpy()})
    if not lists:
        tables["probs"] = prob_columns(tables["probs"], graph.probs.shape[1])
    with TemporaryDirectory() as folder, small_chunks() if small else nullcontext():
        for (name, table), kind in zip(tables.items(), kinds, strict=True):
            if name == "probs" and lists and kind in ("csv", "tsv"):
                table = prob_text(table)
            table = table.take(rng.permutation(len(table)))
            parts = cut(table, rng.integers(0, len(table) + 1, rng.integers(0, 4)).tolist())
            tables[name] = write_parts(parts, kind, Path(folder) / name, row_group_size)
        scores = ew.evaluate_tables(**tables, **options)
        reference = graph.evaluate(**options)
        assert_same(scores, reference)
        assert set(scores._sums) == set(reference._sums)
        assert str(scores.to_dict()["edgewise"]) == str(reference.to_dict()["edgewise"])
        if directions in ("once", "both"):
            assert_same(ew.evaluate_tables(**tables, **options, listed=directions), reference)


@pytest.mark.filterwarnings("ignore::edgewise.small_samples.SmallSampleWarning")
@given(case=graphs(), seed=st.integers(0, 2**32), choice=st.sampled_from(["both", "any", "all"]), small=st.booleans())
def test_skipping_unknown_ids_scores_the_rest(case, seed, choice, small) -> None:
    """Nodes without predictions are left out with their labels, edges and rows of the mask."""
    graph, rng = case[0], np.random.default_rng(seed)
    tables, kept = graph.tables(), rng.random(len(graph.ids)) < 0.7
    kept[rng.integers(len(kept))] = True
    rows, number = np.flatnonzero(kept), torch.from_numpy(np.cumsum(kept) - 1)
    tables["probs"] = tables["probs"].take(rows)
    known = torch.from_numpy(kept)[graph.edges].all(0)
    rest = Graph(
        graph.ids.take(rows), graph.probs[rows], graph.y[rows], number[graph.edges[:, known]], graph.mask[rows]
    )
    with small_chunks() if small else nullcontext():
        scores = ew.evaluate_tables(**tables, edge_choice=choice, same_label=True, skip_unknown=True)
        assert_same(scores, rest.evaluate(edge_choice=choice))
        skipped = {
            "edges": int((~known).sum()),
            "labels": int((graph.y >= 0)[~kept].sum()),
            "nodes": int(graph.mask[~kept].sum()),
        }
        notes = [note.split() for note in scores.settings.notes if note.startswith("skipped")]
        assert [(words[1], int(words[-1])) for words in notes] == [found for found in skipped.items() if found[1]]
        if any(skipped.values()):
            with pytest.raises(ValueError, match=r"row \d+ of|row \d+ has"):
                ew.evaluate_tables(**tables, edge_choice=choice)


@given(
    case=graphs(), seed=st.integers(0, 2**32), table=st.sampled_from(["probs", "labels", "mask"]), small=st.booleans()
)
def test_double_ids_are_found_at_their_second_row(case, seed, table, small) -> None:
    graph, rng = case[0], np.random.default_rng(seed)
    graph.y, graph.mask = graph.y.clamp(min=0), torch.ones_like(graph.mask)
    tables, num_nodes = graph.tables(), len(graph.ids)
    order = rng.permutation(num_nodes)
    second = rng.integers(1, num_nodes + 1)
    order = np.insert(order, second, order[rng.integers(second)])
    limits = sorted(rng.integers(0, num_nodes + 2, 2).tolist())
    with TemporaryDirectory() as folder, small_chunks() if small else nullcontext():
        parts = cut(tables[table].take(order), limits)
        tables[table] = write_parts(parts, "parquet", Path(folder) / table)
        part = np.searchsorted(limits, second, side="right")
        row = second - [0, *limits][part]
        with pytest.raises(ValueError, match=rf"row {row} of .*/part-00{part}\.parquet .*{graph.ids[order[second]]}"):
            ew.evaluate_tables(**tables)


def random_graph(num_nodes: int, num_edges: int, kind: str = "dense", seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    probs = torch.from_numpy(rng.dirichlet(np.full(5, 0.4), num_nodes))
    y, mask = rng.integers(0, 5, num_nodes), rng.random(num_nodes) < 0.6
    edges = rng.integers(0, num_nodes, (2, num_edges))
    return Graph(make_ids(kind, num_nodes, rng), probs, *map(torch.from_numpy, (y, edges, mask)))


@pytest.mark.parametrize("kind", ["dense", "text"])
def test_long_tables_give_the_bits_of_memory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, the same numbers are computed by compiled loops over arrays of other lengths, in another order."""
    monkeypatch.setattr(table_evaluation, "EDGES_PER_JOB", 100_000)
    monkeypatch.setattr(table_evaluation, "NODES_PER_CHUNK", 7_777)
    monkeypatch.setattr("edgewise.tables.parts.ROWS_PER_BATCH", 30_011)
    graph, rng = random_graph(50_000, 400_000, kind), np.random.default_rng(1)
    tables = {}
    for name, table in graph.tables().items():
        parts = cut(table.take(rng.permutation(len(table))), rng.integers(0, len(table), 3).tolist())
        tables[name] = write_parts(parts, "parquet", tmp_path / name, 20_000)
    for choice in ("both", "any"):
        options = {"edge_choice": choice, "same_label": True}
        assert_same(ew.evaluate_tables(**tables, **options), graph.evaluate(**options))


@pytest.mark.slow
def test_joins_of_a_stream_need_memory_for_nodes_only() -> None:
    """A hash table of the edges, instead of the nodes, would not fit into the memory of DuckDB."""
    graph = random_graph(20_000, 2_400_000, "text")
    assert_same(ew.evaluate_tables(**graph.tables()), graph.evaluate())


# --- each edge once ---


@pytest.mark.parametrize("backward", [True, False])
def test_one_unequal_pair_among_many_is_found_and_counted(backward: bool, tmp_path: Path) -> None:
    """All edges are in both directions, except for one that is listed once more, in a part of its own."""
    graph = random_graph(3_000, 20_000)
    graph.mask[:] = True
    graph.edges = graph.edges[:, graph.edges[0] != graph.edges[1]]
    one = graph.edges[:, :1].sort(0, descending=backward).values
    num_edges = 2 * graph.edges.shape[1]
    graph.edges = torch.cat([graph.edges, graph.edges.flip(0), one], dim=1)
    tables = graph.tables()
    tables["edges"] = write_parts(cut(tables["edges"], [num_edges // 2, num_edges]), "parquet", tmp_path / "edges")
    scores = ew.evaluate_tables(**tables)
    assert_same(scores, graph.evaluate())
    assert "listed in mixed directions" in scores.settings.notes[1]
    (tmp_path / "edges" / "part-002.parquet").unlink()
    without = ew.evaluate_tables(**tables)
    assert "each edge listed in both directions" in without.settings.notes[1]
    assert without.edgewise.count == scores.edgewise.count - 1 == num_edges / 2


@pytest.mark.parametrize(
    ("pairs", "case", "count"),
    [
        ([(0, 1), (1, 2)], "in one direction", 2),
        ([(1, 0), (2, 1), (2, 1)], "in one direction", 3),
        ([(0, 1), (1, 0), (2, 1), (1, 2), (2, 2)], "in both directions", 2),
        ([(0, 1), (1, 0), (2, 1)], "mixed directions", 2),
        ([(0, 1), (2, 1)], "mixed directions", 2),
        ([(0, 1), (0, 1), (0, 1), (1, 0), (2, 1)], "mixed directions", 4),
        ([(2, 2)], "in one direction", 0),
    ],
)
@pytest.mark.parametrize("text", [True, False])
def test_report_says_how_edges_are_listed(
    pairs: list[tuple[int, int]], case: str, count: int, text: bool, tmp_path: Path
) -> None:
    ids = pa.array(["a", "b", "c"]) if text else pa.array([10, 11, 12])
    probs = pa.table({"nid": ids, "pred": [[0.75, 0.25]] * 3})
    labels = pa.table({"nid": ids, "label": [0, 0, 1]})
    start, end = (ids.take(pa.array(column)) for column in zip(*pairs, strict=True))
    rows = [pa.table({"src": start[k : k + 1], "dst": end[k : k + 1]}) for k in range(len(pairs))]
    edges = write_parts(rows, "parquet", tmp_path / "edges")
    scores = ew.evaluate_tables(probs, labels, edges)
    assert scores.edgewise.count == count
    assert scores.settings.notes[1].startswith(f"{len(pairs)} rows of edges") and case in scores.settings.notes[1]
    once = ew.evaluate_tables(probs, labels, edges, listed="once")
    assert once.edgewise.count == sum(i != j for i, j in pairs) and "without a check" in once.settings.notes[1]


# --- progress ---


@pytest.mark.parametrize("kind", ["dense", "sparse", "text"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_progress_counts_all_rows(kind: str, suffix: str, tmp_path: Path) -> None:
    graph = random_graph(40, 200, kind)
    graph.edges = torch.cat([graph.edges, graph.edges[:, :50].flip(0)], dim=1)
    tables = graph.tables()
    num_rows = {
        "ids": 40,
        **({"ids again": 40} if kind != "text" else {}),
        "labels": 40,
        "mask": len(tables["mask"]),
        "probabilities": 40,
        "edges": 250,
        "edges again": 250,
    }
    tables["probs"] = prob_columns(tables["probs"], 5)
    paths = {name: write_parts(cut(table, [13]), suffix, tmp_path / name) for name, table in tables.items()}
    calls: dict[str, list[TableProgress]] = {}
    with small_chunks():
        ew.evaluate_tables(**paths, progress=lambda state: calls.setdefault(state.what, []).append(state))
    assert list(calls) == list(num_rows)
    for what, reports in calls.items():
        _, rows, totals, parts, num_parts = zip(*reports, strict=True)
        assert set(num_parts) == {2} and parts[0] == 0 and parts[-1] == 2 and list(parts) == sorted(parts)
        assert 1 in parts or (kind != "dense" and what in ("labels", "mask", "edges again"))  # joined at once
        assert rows[0] == 0 and rows[-1] == num_rows[what] and list(rows) == sorted(rows) and len(rows) > 2
        known = suffix == "parquet" or what == "edges again"
        assert set(totals) == {num_rows[what] if known else None}


def test_empty_mask_warns() -> None:
    graph = random_graph(5, 5)
    graph.mask[:] = False
    with pytest.warns(ew.SmallSampleWarning, match="none of the 5 nodes"):
        assert ew.evaluate_tables(**graph.tables()).nodewise.count == 0


def test_one_class() -> None:
    probs = pa.table({"nid": [0, 1], "pred": [[1.0], [1.0]]})
    scores = ew.evaluate_tables(probs, pa.table({"nid": [0, 1], "label": [0, 0]}), pa.table({"src": [0], "dst": [1]}))
    assert (scores.nodewise.accuracy, scores.edgewise.nll) == (1, 0)


# --- types ---


@pytest.mark.parametrize(
    "id_type",
    [
        pa.int8(),
        pa.uint8(),
        pa.int32(),
        pa.uint64(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.int64()),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["memory", "parquet", "mixed"])
def test_types_of_ids(id_type: pa.DataType, where: str, tmp_path: Path) -> None:
    graph = random_graph(40, 100)
    if "string" in str(id_type):
        graph.ids = graph.ids.cast(pa.string())
    tables = graph.tables()
    for name, plain in tables.items():
        typed = plain
        for position, column in enumerate(plain.column_names):
            if column in ("nid", "src", "dst"):
                ids = plain[column].combine_chunks()
                ids = ids.dictionary_encode() if pa.types.is_dictionary(id_type) else ids.cast(id_type)
                typed = typed.set_column(position, column, ids)
        first, second = cut(typed, [20])
        if where == "mixed":  # another type of the same kind
            second = plain.slice(20)
        tables[name] = typed if where == "memory" else write_parts([first, second], "parquet", tmp_path / name)
    assert_same(ew.evaluate_tables(**tables), graph.evaluate())


@pytest.mark.parametrize("list_type", [pa.large_list, lambda value: pa.list_(value, 5)], ids=["large_list", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_types_of_lists(list_type, dtype: torch.dtype, tmp_path: Path) -> None:
    graph = random_graph(40, 100)
    graph.probs = graph.probs.to(dtype)
    tables = graph.tables()
    lists = pa.array(tables["probs"]["pred"].to_pylist(), list_type(tables["probs"]["pred"].type.value_type))
    tables["probs"] = write_parts([pa.table({"nid": graph.ids, "pred": lists})], "parquet", tmp_path / "probs")
    assert_same(ew.evaluate_tables(**tables, same_label=True), graph.evaluate())


def test_tables_in_memory_of_any_form() -> None:
    graph = random_graph(40, 100, "text")
    tables = graph.tables()
    forms = {
        "probs": tables["probs"].combine_chunks().to_batches()[0],
        "labels": dataset.dataset(tables["labels"]),
        "mask": pa.concat_tables(cut(tables["mask"], [3, 5])),
        "edges": dataset.dataset(cut(tables["edges"], [1, 1, 60])),
    }
    assert_same(ew.evaluate_tables(**forms), graph.evaluate())


@pytest.mark.parametrize("kind", ["dense", "text"])
def test_names_of_classes(kind: str) -> None:
    graph, names = random_graph(40, 100, kind), ["zero", "1", "two", "3rd", "né"]
    tables = graph.tables()
    labels = [names[label] for label in tables["labels"]["label"].to_pylist()]
    for column in (pa.array(labels), pa.array(labels).dictionary_encode()):
        tables["labels"] = tables["labels"].set_column(1, "label", column)
        assert_same(ew.evaluate_tables(**tables, class_names=names), graph.evaluate())
    with pytest.raises(ValueError, match="different"):
        ew.evaluate_tables(**tables, class_names=["zero", *names[:4]])


@pytest.mark.parametrize("label_type", [pa.int8(), pa.uint64(), pa.float32(), pa.bool_()], ids=str)
def test_types_of_labels(label_type: pa.DataType) -> None:
    graph = random_graph(40, 100)
    graph.y %= 2
    graph.y[~graph.mask] = -1
    tables = graph.tables()
    labels = pa.array(graph.y.numpy(), mask=(graph.y < 0).numpy()).cast(label_type)
    tables["labels"] = pa.table({"nid": graph.ids, "y": labels})
    assert_same(ew.evaluate_tables(**tables), graph.evaluate())


def test_normalize() -> None:
    graph = random_graph(40, 100)
    graph.probs *= torch.linspace(1 - 1e-5, 1 + 1e-5, 40).unsqueeze(1)
    tables = graph.tables()
    assert_same(ew.evaluate_tables(**tables, normalize=True, same_label=True), graph.evaluate(normalize=True))
