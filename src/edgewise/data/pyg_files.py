"""What the files of a dataset hold, before anything is normalised."""

import io
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from zipfile import is_zipfile

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.files.arrays import check_memory, in_one_line
from edgewise.files.pickles import NamedOnly, check_memo
from edgewise.validation import checked_edges


class RawGraph(NamedTuple):
    """Features, edges in one direction or both, and labels."""

    x: Float[Tensor, "nodes features"]
    edge_index: Int[Tensor, "2 edges"]
    y: Int[Tensor, " nodes"]
    is_bag_of_words: bool = True  # a feature tells whether, or how often, a word occurs


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


# By the name of the dataset: the class of torch_geometric.datasets that reads it.
HETEROPHILOUS: Mapping[str, str] = MappingProxyType(
    {
        "texas": "WebKB",
        "wisconsin": "WebKB",
        "cornell": "WebKB",
        "actor": "Actor",
        "chameleon": "WikipediaNetwork",
        "squirrel": "WikipediaNetwork",
        "roman-empire": "HeterophilousGraphDataset",
        "amazon-ratings": "HeterophilousGraphDataset",
        "minesweeper": "HeterophilousGraphDataset",
        "tolokers": "HeterophilousGraphDataset",
        "questions": "HeterophilousGraphDataset",
    }
)
BAGS_OF_WORDS = ("WebKB", "Actor", "WikipediaNetwork")
NAMED = 3  # of the files that are missing


def read_heterophilous(key: str, root: Path) -> RawGraph:
    """Read the raw files as PyG's loader does, after downloading what is missing; nothing else is written."""
    reader = _reader(key, root)
    paths = [Path(path) for path in reader.raw_paths]
    if missing := [path for path in paths if not path.exists()]:
        _download_missing(reader, missing)
    try:
        _check_archives(paths)
        reader.process()
        return _checked(reader.graph, HETEROPHILOUS[key] in BAGS_OF_WORDS)
    except Exception as error:  # each damage has its own class
        raise ValueError(
            f"Expected the files of {key} in {paths[0].parent}, but they cannot be read "
            f"({type(error).__name__}: {in_one_line(error)}). Delete them to have them downloaded again."
        ) from error


def _reader(key: str, root: Path) -> Any:
    """Make a loader of PyG that waits until it is told to download and to read, and keeps what it would write.

    Chameleon and Squirrel are read as Geom-GCN prepared them, PyG's default: else their label is a real number, the
    traffic of a page, and there are no classes. Actor's loader knows no folder of its own, so it gets one.
    """
    from torch_geometric import datasets

    loader = getattr(datasets, HETEROPHILOUS[key])
    waiting = {"has_download": False, "has_process": False, "load": lambda self, path: None, "save": _keep}
    arguments = (str(root / key),) if loader is datasets.Actor else (str(root), key)
    return type(loader.__name__, (loader,), waiting)(*arguments)


def _keep(reader: Any, graphs: Sequence[Any], path: str) -> None:
    (reader.graph,) = graphs


def _download_missing(reader: Any, missing: Sequence[Path]) -> None:
    try:
        reader.download()
    except Exception as error:  # no network, no right to write, no such address: each has its own class
        names = ", ".join(path.name for path in missing[:NAMED])
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise FileNotFoundError(
            f"Expected the files {names}{more} in {missing[0].parent}, but they are missing, and downloading them from "
            f"{reader.url if hasattr(reader, 'url') else reader.processed_url} failed ({type(error).__name__}: "
            f"{error}). Put them there, or try again where there is a network."
        ) from error


def _check_archives(paths: Sequence[Path]) -> None:
    """Refuse half an archive: NumPy would, and leave it open."""
    for path in paths:
        if path.suffix == ".npz" and not is_zipfile(path):
            raise ValueError(f"{path.name} is no archive of arrays, or not a whole one")


def _checked(graph: Any, is_bag_of_words: bool) -> RawGraph:
    """Refuse what no loader notices: numbers that do not fit each other, as in a file that lost its end."""
    x, y = graph.x.float(), graph.y.long()
    if x.ndim != 2 or 0 in x.shape or y.shape != x.shape[:1]:
        raise ValueError(f"features of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)} do not fit")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("some features are not finite")
    if not 0 <= int(y.min()) <= int(y.max()) < len(y):
        raise ValueError(f"labels go from {int(y.min())} to {int(y.max())}")
    return RawGraph(x, checked_edges(graph.edge_index.long(), len(y)), y, is_bag_of_words)
