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

import edgewise as ew
from helpers.table_files import FORMATS, Graph, assert_same, cut, prob_columns, prob_text, write_parts

table_evaluation = import_module("edgewise.tables.table_evaluation")
ID_KINDS = ("dense", "shifted", "gaps", "sparse", "large", "text", "zeros")
DIRECTIONS = ("once", "backward", "both", "mixed", "unequal", "any")


@contextmanager
def small_chunks() -> Iterator[None]:
    """Read chunks of a few rows, so that each table has many jobs, batches and partitions."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"EDGES_PER_JOB": 5, "EDGES_PER_NODE_AND_JOB": 0, "EDGES_PER_PARTITION": 3, "NODES_PER_CHUNK": 4}
        for name, size in sizes.items():
            patch.setattr(table_evaluation, name, size)
        for module in ("parts", "node_ids"):
            patch.setattr(import_module(f"edgewise.tables.{module}"), "ROWS_PER_BATCH", 3)
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
