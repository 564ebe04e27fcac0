"""Raw files of datasets, read through PyG's loaders.

PyG's loaders name the files, download them, and read text and plain arrays. Planetoid's files are pickles: this module
reads them itself, so that only checked content is unpickled.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from zipfile import is_zipfile

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.files.arrays import check_memory, one_line_message
from edgewise.files.pickles import unpickle_arrays_and_lists
from edgewise.validation import check_edges


class RawGraph(NamedTuple):
    """Features, edges in one direction or both, and labels."""

    x: Float[Tensor, "nodes features"]
    edge_index: Int[Tensor, "2 edges"]
    y: Int[Tensor, " nodes"]
    is_bag_of_words: bool = True  # features are the presence or the count of words


PLANETOID_NAMES = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def read_planetoid(key: str, root: Path) -> RawGraph:
    """Read the raw files. Missing files are downloaded, and no other file is written because root may be read-only."""
    loader = _deferred_loader("Planetoid", str(root), PLANETOID_NAMES[key])
    raw = Path(loader.raw_dir)
    _download_missing(loader, "Planetoid files", "leave root out to use the bundled copy")
    try:
        return _check_graph(_planetoid_graph(key, raw), is_bag_of_words=True)
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(
            f"Expected the Planetoid files of {key} in {raw}, but they cannot be read "
            f"({type(error).__name__}: {one_line_message(error)}). Delete them to have them downloaded again."
        ) from error


def _planetoid_graph(key: str, raw: Path) -> RawGraph:
    """Assemble the graph: the nodes of allx come first, and row i of tx is node test_index[i]."""
    test_index = torch.tensor([int(node) for node in (raw / f"ind.{key}.test.index").read_text().split()])
    allx, tx, ally, ty = (_read_matrix(raw / f"ind.{key}.{part}") for part in ("allx", "tx", "ally", "ty"))
    first, last = int(test_index.min()), int(test_index.max())
    if first < 0 or len(test_index) != len(tx):
        raise ValueError(f"the test index has {len(test_index)} nodes starting at {first}, and tx has {len(tx)} rows")
    in_order = test_index.sort().values
    if key == "citeseer":  # isolated nodes are not in the index: they get zero features and label 0
        tx, ty = (_scatter_rows(rows, in_order - first, last - first + 1) for rows in (tx, ty))
    x, y = torch.cat([allx, tx]), torch.cat([ally, ty]).max(dim=1).indices
    x[test_index], y[test_index] = x[in_order], y[in_order]
    neighbors = unpickle_arrays_and_lists((raw / f"ind.{key}.graph").read_bytes())
    sources = [node for node, targets in neighbors.items() for _ in targets]
    targets = [target for targets in neighbors.values() for target in targets]
    return RawGraph(x, torch.tensor([sources, targets]), y)


def _read_matrix(path: Path) -> Float[Tensor, "rows columns"]:
    matrix = unpickle_arrays_and_lists(path.read_bytes())
    check_memory(8 * prod(matrix.shape), path)
    return torch.from_numpy(matrix.toarray() if hasattr(matrix, "toarray") else matrix).float()


def _scatter_rows(rows: Float[Tensor, "rows columns"], index: Int[Tensor, " rows"], num_rows: int) -> Tensor:
    out = torch.zeros(num_rows, rows.shape[1])
    out[index] = rows
    return out


# Name of the dataset -> class of torch_geometric.datasets.
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
BAG_OF_WORDS_CLASSES = ("WebKB", "Actor", "WikipediaNetwork")
MAX_LISTED_FILES = 3  # in the message about missing files


def read_heterophilous(key: str, root: Path) -> RawGraph:
    """Read the raw files with PyG's loader. Missing files are downloaded, and no other file is written.

    Chameleon and Squirrel are read in Geom-GCN's preprocessing, PyG's default. Otherwise their label would be a real
    number, the traffic of a page, instead of a class. Actor's loader has no subfolder of its own, so it gets one.
    """
    name = HETEROPHILOUS[key]
    loader = _deferred_loader(name, *((str(root / key),) if name == "Actor" else (str(root), key)))
    _download_missing(loader, "files", "try again with a network connection")
    paths = [Path(path) for path in loader.raw_paths]
    try:
        _check_archives(paths)
        loader.process()
        return _check_graph(loader.graph, name in BAG_OF_WORDS_CLASSES)
    except Exception as error:  # damaged files raise many kinds of exceptions
        raise ValueError(
            f"Expected the files of {key} in {paths[0].parent}, but they cannot be read "
            f"({type(error).__name__}: {one_line_message(error)}). Delete them to have them downloaded again."
        ) from error


def _deferred_loader(name: str, *arguments: str) -> Any:
    """Create a PyG loader that neither downloads nor processes on creation and keeps the graph in memory."""
    from torch_geometric import datasets

    loader = getattr(datasets, name)
    overrides = {"has_download": False, "has_process": False, "load": lambda self, path: None, "save": _keep_graph}
    return type(name, (loader,), overrides)(*arguments)


def _keep_graph(loader: Any, graphs: Sequence[Any], path: str) -> None:
    (loader.graph,) = graphs


def _download_missing(loader: Any, files: str, hint: str) -> None:
    """Download the files with PyG if one is missing, without reading them."""
    missing = [path for path in map(Path, loader.raw_paths) if not path.exists()]
    if not missing:
        return
    try:
        Path(loader.raw_dir).mkdir(parents=True, exist_ok=True)
        loader.download()
    except Exception as error:  # no network, no write permission, unknown address, …
        names = ", ".join(path.name for path in missing[:MAX_LISTED_FILES])
        more = f" and {len(missing) - MAX_LISTED_FILES} more" if len(missing) > MAX_LISTED_FILES else ""
        raise FileNotFoundError(
            f"Expected the {files} {names}{more} in {missing[0].parent}, but they are missing, and downloading them "
            f"from {loader.url if hasattr(loader, 'url') else loader.processed_url} failed ({type(error).__name__}: "
            f"{error}). Copy them there, or {hint}."
        ) from error


def _check_archives(paths: Sequence[Path]) -> None:
    """Raise ValueError for a truncated archive. NumPy would raise too, but leave the file open."""
    for path in paths:
        if path.suffix == ".npz" and not is_zipfile(path):
            raise ValueError(f"{path.name} is not a complete archive of arrays")


def _check_graph(graph: Any, is_bag_of_words: bool) -> RawGraph:
    """Raise ValueError for inconsistent sizes, as in a truncated file, which loaders do not check."""
    x, y = graph.x.float(), graph.y.long()
    if x.ndim != 2 or 0 in x.shape or y.shape != x.shape[:1]:
        raise ValueError(f"features of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)} do not match")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("some features are not finite")
    if not 0 <= int(y.min()) <= int(y.max()) < len(y):
        raise ValueError(f"labels range from {int(y.min())} to {int(y.max())}")
    return RawGraph(x, check_edges(graph.edge_index.long(), len(y)), y, is_bag_of_words)
