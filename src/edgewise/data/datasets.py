"""Cora, Citeseer and Pubmed, from the bundled files or from Planetoid's own."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    import torch_geometric.data

PLANETOID_NAMES = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def load_dataset(name: str, root: str | Path | None = None) -> "torch_geometric.data.Data":
    """Load a dataset: row-normalised features ``x``, both directions of each edge in ``edge_index``, labels ``y``.

    Without ``root`` the bundled copy is read. With it, the files ``ROOT/Cora/raw/ind.cora.*`` are read through PyG, and
    downloaded first where they are missing. They are pickles, which PyG trusts: so should you. The two ways give the
    same numbers, but Cora's nodes come in another order (see DATA.md): published splits need Planetoid's.

    >>> data = load_dataset("cora")
    >>> data.num_nodes, data.num_edges, data.num_features
    (2708, 10556, 1433)
    """
    key = name.lower() if isinstance(name, str) else ""
    if key not in PLANETOID_NAMES:
        raise ValueError(
            f"Expected one of the datasets {', '.join(PLANETOID_NAMES)}, but got {name!r}. "
            "A graph of your own needs no loading: any torch_geometric Data with x, edge_index and y does as it is."
        )
    with _quiet_pyg():
        from torch_geometric.data import Data
        from torch_geometric.utils import to_undirected

        graph = _read_bundled(key) if root is None else _read_planetoid(key, Path(root).expanduser())
        edge_index = to_undirected(graph.edge_index, num_nodes=graph.x.shape[0])
    return Data(x=row_normalise(graph.x), edge_index=edge_index, y=graph.y)


def row_normalise(x: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
    """Divide each row by its sum, x_ij / Σ_k x_ik; a row of zeros stays zero.

    PyG's NormalizeFeatures also shifts by the least entry and leaves rows alone that sum to less than 1. Neither occurs
    in these datasets, and neither is row normalisation.

    >>> row_normalise(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = x.sum(dim=1, keepdim=True)
    return x / torch.where(total == 0, 1, total)


class _Graph(NamedTuple):
    """What a file holds, before normalisation; edges in one direction or both."""

    x: Float[Tensor, "nodes features"]
    edge_index: Int[Tensor, "2 edges"]
    y: Int[Tensor, " nodes"]


def _read_bundled(key: str) -> _Graph:
    file = resources.files("edgewise.data").joinpath("bundled", f"{key}.npz")
    with resources.as_file(file) as path, np.load(path, allow_pickle=False) as arrays:
        x = np.zeros(arrays["shape"], dtype=np.float32)
        row = np.repeat(np.arange(len(x)), np.diff(arrays["indptr"]))
        x[row, arrays["indices"]] = arrays.get("values", 1)  # all are 1 where none are stored
        edges, y = arrays["edges"].astype(np.int64), arrays["y"].astype(np.int64)
    return _Graph(torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(y))


def _read_planetoid(key: str, root: Path) -> _Graph:
    """Read the raw files without PyG's Planetoid class: that also writes below root, which may be read-only."""
    from torch_geometric.io import read_planetoid_data

    raw = root / PLANETOID_NAMES[key] / "raw"
    if missing := [name for part in PLANETOID_PARTS if not (raw / (name := f"ind.{key}.{part}")).exists()]:
        _download(key, root, f"Expected the Planetoid files {', '.join(missing)} in {raw}, but they are missing")
    try:
        data = read_planetoid_data(str(raw), key)
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(
            f"Expected the Planetoid files of {key} in {raw}, but they cannot be read "
            f"({type(error).__name__}: {error}). Delete them to have them downloaded again."
        ) from error
    return _Graph(data.x, data.edge_index, data.y)


def _download(key: str, root: Path, complaint: str) -> None:
    from torch_geometric.datasets import Planetoid

    try:
        Planetoid(str(root), PLANETOID_NAMES[key])
    except Exception as error:  # no network, no right to write, no such address: each has its own class
        raise FileNotFoundError(
            f"{complaint}, and downloading them failed ({type(error).__name__}: {error}). "
            "Put them there, or leave root out to use the bundled copy."
        ) from error


@contextmanager
def _quiet_pyg() -> Iterator[None]:
    """Hide that PyG compiles TorchScript when imported, and undo the filter it sets when it reads old pickles."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.script.*", DeprecationWarning)
        yield
