"""Cora, Citeseer and Pubmed from Planetoid's own files, through PyG."""

import io
import warnings
from math import prod
from pathlib import Path

from edgewise.data.files.memory import check_memory
from edgewise.data.pickles import NamedOnly, check_memo
from edgewise.data.raw_graph import RawGraph

PLANETOID_NAMES = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
# What arrays, sparse matrices and adjacency lists are pickled with, by old and new versions of Python, NumPy and SciPy.
ADMITTED = {
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")),
    *((module, "csr_matrix") for module in ("scipy.sparse.csr", "scipy.sparse._csr")),
    *((module, "list") for module in ("__builtin__", "builtins")),
    ("collections", "defaultdict"),
}
PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def read_planetoid(key: str, root: Path) -> RawGraph:
    """Read the raw files without PyG's Planetoid class: that also writes below root, which may be read-only."""
    from torch_geometric.io import read_planetoid_data

    raw = root / PLANETOID_NAMES[key] / "raw"
    if missing := [name for part in PLANETOID_PARTS if not (raw / (name := f"ind.{key}.{part}")).exists()]:
        _download(key, root, f"Expected the Planetoid files {', '.join(missing)} in {raw}, but they are missing")
    try:
        for part in PLANETOID_PARTS[:-1]:
            _check_pickle(raw / f"ind.{key}.{part}")
        data = read_planetoid_data(str(raw), key)
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(
            f"Expected the Planetoid files of {key} in {raw}, but they cannot be read "
            f"({type(error).__name__}: {error}). Delete them to have them downloaded again."
        ) from error
    return RawGraph(data.x, data.edge_index, data.y)


def _check_pickle(path: Path) -> None:
    """Refuse a file that asks for anything else, or whose matrix would lead SciPy out of its memory."""
    stream = io.BytesIO(path.read_bytes())
    check_memo(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old names of modules
        content = NamedOnly(stream, ADMITTED).load()
    if hasattr(content, "check_format"):
        content.check_format(full_check=True)
        check_memory(8 * prod(content.shape), path)


def _download(key: str, root: Path, complaint: str) -> None:
    from torch_geometric.datasets import Planetoid

    try:
        Planetoid(str(root), PLANETOID_NAMES[key])
    except Exception as error:  # no network, no right to write, no such address: each has its own class
        raise FileNotFoundError(
            f"{complaint}, and downloading them failed ({type(error).__name__}: {error}). "
            "Put them there, or leave root out to use the bundled copy."
        ) from error
