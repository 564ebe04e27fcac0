"""Graphs of some hundred nodes in the files of PyG's loaders, so that real runs take fractions of a second."""

import pickle
from pathlib import Path

import numpy as np
import scipy.sparse as sp

NUM_NODES, NUM_CLASSES, NUM_WORDS = 520, 3, 24  # PyG's reader takes 500 for validation
NUM_TESTED, NUM_TRAINED = 10, 9  # of Planetoid's own split, which we do not use
SEED, TEXAS_SEED = 7, 3  # of graphs on which training stops early
FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def write_planetoid(root: Path, dataset: str = "cora", seed: int = SEED) -> Path:
    """Write a homophilous graph with bags of words as ROOT/Cora/raw/ind.cora.*, the last nodes in a shuffled order."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(NUM_NODES) % NUM_CLASSES)
    x = (rng.random((NUM_NODES, NUM_WORDS)) < word_rates()[y]).astype(np.float32)
    graph = neighbors(rng, y)
    num_known = NUM_NODES - NUM_TESTED
    tested = rng.permutation(np.arange(num_known, NUM_NODES))
    words, labels = sp.csr_matrix(x), np.eye(NUM_CLASSES, dtype=np.int32)[y]
    parts = {"x": words[:NUM_TRAINED], "y": labels[:NUM_TRAINED], "allx": words[:num_known], "ally": labels[:num_known]}
    parts |= {"tx": words[tested], "ty": labels[tested], "graph": graph}
    raw = root / FOLDERS[dataset] / "raw"
    raw.mkdir(parents=True)
    for part, content in parts.items():
        (raw / f"ind.{dataset}.{part}").write_bytes(pickle.dumps(content))
    (raw / f"ind.{dataset}.test.index").write_text("".join(f"{node}\n" for node in tested))
    return root


def write_texas(root: Path, seed: int = TEXAS_SEED) -> Path:
    """Write a graph of Texas's classes as ROOT/texas/raw/*: links have directions, and no two ends have one label."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(5), [33, 1, 18, 101, 30]))
    x = rng.random((len(y), NUM_WORDS)) < np.where(np.arange(NUM_WORDS) % 5 == y[:, None], 0.4, 0.1)
    start, end = rng.integers(len(y), size=(2, 900))
    links = [(a, b) for a, b in zip(start, end, strict=True) if y[a] != y[b]] + [(0, 0)]
    raw = root / "texas" / "raw"
    raw.mkdir(parents=True)
    nodes = (f"{node}\t{','.join(str(int(word)) for word in x[node])}\t{y[node]}\n" for node in range(len(y)))
    (raw / "out1_node_feature_label.txt").write_text("node_id\tfeature\tlabel\n" + "".join(nodes))
    (raw / "out1_graph_edges.txt").write_text("node_id\tnode_id\n" + "".join(f"{a}\t{b}\n" for a, b in links))
    for number in range(10):  # Geom-GCN's splits, which we do not use
        masks = {f"{part}_mask": np.ones(len(y)) for part in ("train", "val", "test")}
        np.savez(raw / f"texas_split_0.6_0.2_{number}.npz", **masks)
    return root


def word_rates() -> np.ndarray:
    """Give how often each word occurs in each class: each class has favorites, which others use too."""
    favorite = np.arange(NUM_WORDS) % NUM_CLASSES == np.arange(NUM_CLASSES)[:, None]
    return np.where(favorite, 0.3, 0.2)


def neighbors(rng: np.random.Generator, y: np.ndarray) -> dict[int, list[int]]:
    """Draw edges, most of them between nodes of one class."""
    same = y[:, None] == y
    chosen = np.triu(rng.random((NUM_NODES, NUM_NODES)) < np.where(same, 0.018, 0.003), 1)
    return {node: np.flatnonzero(row).tolist() for node, row in enumerate(chosen | chosen.T)}
