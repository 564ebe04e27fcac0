"""Benchmark datasets: bundled copies, or PyG's raw files."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.data.pyg_files import LOADERS, PLANETOID_NAMES, RawGraph, read_planetoid, read_with_pyg
from edgewise.suggestions import did_you_mean, suggest_keywords

if TYPE_CHECKING:
    import torch_geometric.data


DATASET_NAMES = (*PLANETOID_NAMES, *LOADERS)


@suggest_keywords
def load_dataset(name: str, root: str | Path | None = None) -> "torch_geometric.data.Data":
    """Load a dataset: features ``x``, both directions of each edge once in ``edge_index``, labels ``y``.

    Self-loops are removed, and directed edges (WebKB, Actor, Wikipedia) become undirected.

    Cora, Citeseer and Pubmed are bundled. With ``root`` the files ``ROOT/Cora/raw/ind.cora.*`` are read, and PyG
    downloads them first if they are missing. They are pickles: only arrays, sparse matrices, dictionaries and lists are
    loaded, and no code in them is executed. Both sources hold the same data, but the nodes of Cora have a different
    order (see DATA.md): published splits need Planetoid's.

    The other graphs need ``root``. PyG's loaders read them from these files, and download them first if they are
    missing. No code in them is executed:

    - computers, photo (Amazon): ``ROOT/Photo/raw/amazon_electronics_photo.npz``
    - cs, physics (Coauthor): ``ROOT/CS/raw/ms_academic_cs.npz``
    - dblp, cora-ml, cora-full, citeseer-full, pubmed-full (CitationFull): ``ROOT/dblp/raw/dblp.npz``
    - texas, wisconsin, cornell (WebKB) and actor: ``ROOT/texas/raw/*``
    - chameleon, squirrel (WikipediaNetwork, with the five classes of Geom-GCN): ``ROOT/chameleon/geom_gcn/raw/*``. Many
      of their nodes are duplicates, so test nodes leak into the training set (Platonov et al. 2023). PyG has no version
      without duplicates.
    - roman-empire, amazon-ratings, minesweeper, tolokers, questions (HeterophilousGraphDataset):
      ``ROOT/roman_empire/raw/roman_empire.npz``

    A folder with the name of the class in between is found too, such as ``ROOT/Amazon/Photo/raw``, so one ``root`` can
    hold all datasets.

    The rows of ``x`` are normalized if they are bags of words, that is in all but the last five datasets. The features
    of the last five are unchanged: word embeddings, whose negative entries may cancel in the sum, one-hot vectors, or
    statistics in several units.

    Parameters
    ----------
    name
        Name of a dataset above. Case, and hyphens or underscores, do not matter.
    root
        Folder of the files. By default the bundled copy is loaded.

    Examples
    --------
    >>> data = load_dataset("cora")
    >>> data.num_nodes, data.num_edges, data.num_features
    (2708, 10556, 1433)
    """
    key = canonical_name(name)
    if key not in DATASET_NAMES:
        raise ValueError(
            f"Expected one of the datasets {', '.join(DATASET_NAMES)}, but got {name!r}."
            f"{did_you_mean(key, DATASET_NAMES)} "
            "To use your own graph, pass a torch_geometric Data with x, edge_index and y instead."
        )
    with _quiet_pyg():
        from torch_geometric.data import Data
        from torch_geometric.utils import remove_self_loops, to_undirected

        graph = _read(key, None if root is None else Path(root).expanduser())
        edge_index, _ = remove_self_loops(graph.edge_index)
        edge_index = to_undirected(edge_index, num_nodes=graph.x.shape[0])
    if graph.is_bag_of_words:
        graph.x.div_(_row_divisors(graph.x))  # in place: the features of physics take more than 1 GB
    return Data(x=graph.x, edge_index=edge_index, y=graph.y)


def canonical_name(name: object) -> str:
    """Return the name of a dataset in the form of `DATASET_NAMES`, or "" if it is not a string.

    >>> canonical_name("Roman_Empire")
    'roman-empire'
    """
    return name.lower().replace("_", "-") if isinstance(name, str) else ""


def _read(key: str, root: Path | None) -> RawGraph:
    if key in LOADERS:
        if root is None:
            raise ValueError(
                f"Expected root=DIR for {key}, which is not bundled, but got none. Pass a folder to download to."
            )
        return read_with_pyg(key, root)
    return read_bundled(key) if root is None else read_planetoid(key, root)


def row_normalize(x: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
    """Divide each row by its sum, x_ij / Σ_k x_ik. A row of zeros stays zero.

    Unlike this function, PyG's NormalizeFeatures also subtracts the smallest entry and does not scale rows that sum to
    less than 1. Neither case occurs in bags of words.

    >>> row_normalize(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    return x / _row_divisors(x)


def _row_divisors(x: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes 1"]:
    total = x.sum(dim=1, keepdim=True)
    return torch.where(total == 0, 1, total)


@contextmanager
def _quiet_pyg() -> Iterator[None]:
    """Hide the TorchScript warning of PyG's import, and undo the warning filter that PyG sets for old pickles."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.script.*", DeprecationWarning)
        yield


def read_bundled(key: str) -> RawGraph:
    """Read the bundled copy of a dataset."""
    file = resources.files("edgewise.data").joinpath("bundled", f"{key}.npz")
    with resources.as_file(file) as path, np.load(path, allow_pickle=False) as arrays:
        x = np.zeros(arrays["shape"], dtype=np.float32)
        row = np.repeat(np.arange(len(x)), np.diff(arrays["indptr"]))
        x[row, arrays["indices"]] = arrays.get("values", 1)  # all values are 1 if none are stored
        edges, y = arrays["edges"].astype(np.int64), arrays["y"].astype(np.int64)
    return RawGraph(torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(y))
