"""Graphs of some hundred nodes in Planetoid's files, so that real runs take fractions of a second."""

import pickle
from pathlib import Path

import numpy as np
import scipy.sparse as sp

NUM_NODES, NUM_CLASSES, NUM_WORDS = 520, 3, 24  # PyG's reader takes 500 for validation
NUM_TESTED, NUM_TRAINED = 10, 9  # of Planetoid's own split, which we do not use
SEED = 7  # of a graph on which training stops early
FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def write_planetoid(root: Path, dataset: str = "cora", seed: int = SEED) -> Path:
    """Write a homophilous graph with bags of words as ROOT/Cora/raw/ind.cora.*, the last nodes in a shuffled order."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(NUM_NODES) % NUM_CLASSES)
    x = (rng.random((NUM_NODES, NUM_WORDS)) < word_rates()[y]).astype(np.float32)
    graph = neighbours(rng, y)
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


def word_rates() -> np.ndarray:
    """Give how often each word occurs in each class: each class has favourites, which others use too."""
    favourite = np.arange(NUM_WORDS) % NUM_CLASSES == np.arange(NUM_CLASSES)[:, None]
    return np.where(favourite, 0.3, 0.2)


def neighbours(rng: np.random.Generator, y: np.ndarray) -> dict[int, list[int]]:
    """Draw edges, most of them between nodes of one class."""
    same = y[:, None] == y
    chosen = np.triu(rng.random((NUM_NODES, NUM_NODES)) < np.where(same, 0.018, 0.003), 1)
    return {node: np.flatnonzero(row).tolist() for node, row in enumerate(chosen | chosen.T)}
