"""Graphs with a few hundred nodes in the file formats of PyG, so that real runs take fractions of a second."""

import pickle
from pathlib import Path

import numpy as np
import scipy.sparse as sp

NUM_NODES, NUM_CLASSES, NUM_WORDS = 520, 3, 24  # PyG's reader uses 500 nodes for validation
NUM_TEST, NUM_TRAIN = 10, 9  # of Planetoid's own split, which we do not use
SEED, TEXAS_SEED = 7, 3  # graphs on which training stops early
FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def write_planetoid(root: Path, dataset: str = "cora", seed: int = SEED) -> Path:
    """Write a homophilous graph with bag-of-words features as ROOT/Cora/raw/ind.cora.*, the last nodes shuffled."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(NUM_NODES) % NUM_CLASSES)
    x = (rng.random((NUM_NODES, NUM_WORDS)) < word_rates()[y]).astype(np.float32)
    graph = neighbors(rng, y)
    num_other = NUM_NODES - NUM_TEST
    test_nodes = rng.permutation(np.arange(num_other, NUM_NODES))
    words, labels = sp.csr_matrix(x), np.eye(NUM_CLASSES, dtype=np.int32)[y]
    parts = {"x": words[:NUM_TRAIN], "y": labels[:NUM_TRAIN], "allx": words[:num_other], "ally": labels[:num_other]}
    parts |= {"tx": words[test_nodes], "ty": labels[test_nodes], "graph": graph}
    raw = root / FOLDERS[dataset] / "raw"
    raw.mkdir(parents=True)
    for part, content in parts.items():
        (raw / f"ind.{dataset}.{part}").write_bytes(pickle.dumps(content))
    (raw / f"ind.{dataset}.test.index").write_text("".join(f"{node}\n" for node in test_nodes))
    return root


def write_texas(root: Path, seed: int = TEXAS_SEED) -> Path:
    """Write a graph with the class sizes of Texas as ROOT/texas/raw/*. No link connects nodes of the same label."""
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
    """Return the rate of each word in each class: a third of the words is more frequent in the class."""
    favorite = np.arange(NUM_WORDS) % NUM_CLASSES == np.arange(NUM_CLASSES)[:, None]
    return np.where(favorite, 0.3, 0.2)


def neighbors(rng: np.random.Generator, y: np.ndarray) -> dict[int, list[int]]:
    """Draw edges, most of them between nodes of the same class."""
    same = y[:, None] == y
    chosen = np.triu(rng.random((NUM_NODES, NUM_NODES)) < np.where(same, 0.018, 0.003), 1)
    return {node: np.flatnonzero(row).tolist() for node, row in enumerate(chosen | chosen.T)}
