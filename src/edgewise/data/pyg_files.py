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

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
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
    folders = (root, root / "Planetoid")
    loader = _first_with_files([_deferred_loader("Planetoid", str(one), PLANETOID_NAMES[key]) for one in folders])
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


class LoaderOf(NamedTuple):
    """A class of torch_geometric.datasets, and its name of the dataset."""

    class_name: str
    pyg_name: str


# Datasets that are not bundled. Bags of words come first.
BAG_OF_WORDS_CLASSES = ("WebKB", "Actor", "WikipediaNetwork", "Amazon", "Coauthor", "CitationFull")
LOADERS: Mapping[str, LoaderOf] = MappingProxyType(
    {
        "texas": LoaderOf("WebKB", "texas"),
        "wisconsin": LoaderOf("WebKB", "wisconsin"),
        "cornell": LoaderOf("WebKB", "cornell"),
        "actor": LoaderOf("Actor", ""),
        "chameleon": LoaderOf("WikipediaNetwork", "chameleon"),
        "squirrel": LoaderOf("WikipediaNetwork", "squirrel"),
        "computers": LoaderOf("Amazon", "computers"),
        "photo": LoaderOf("Amazon", "photo"),
        "cs": LoaderOf("Coauthor", "cs"),
        "physics": LoaderOf("Coauthor", "physics"),
        "dblp": LoaderOf("CitationFull", "dblp"),
        "cora-ml": LoaderOf("CitationFull", "cora_ml"),
        "cora-full": LoaderOf("CitationFull", "cora"),
        "citeseer-full": LoaderOf("CitationFull", "citeseer"),
        "pubmed-full": LoaderOf("CitationFull", "pubmed"),
        "roman-empire": LoaderOf("HeterophilousGraphDataset", "roman-empire"),
        "amazon-ratings": LoaderOf("HeterophilousGraphDataset", "amazon-ratings"),
        "minesweeper": LoaderOf("HeterophilousGraphDataset", "minesweeper"),
        "tolokers": LoaderOf("HeterophilousGraphDataset", "tolokers"),
        "questions": LoaderOf("HeterophilousGraphDataset", "questions"),
    }
)
MAX_LISTED_FILES = 3  # in the message about missing files


def read_with_pyg(key: str, root: Path) -> RawGraph:
    """Read the raw files with PyG's loader. Missing files are downloaded, and no other file is written.

    Chameleon and Squirrel are read in Geom-GCN's preprocessing, PyG's default. Otherwise their label would be a real
    number, the traffic of a page, instead of a class.
    """
    class_name, pyg_name = LOADERS[key]
    # Actor's loader has no subfolder of its own, so it gets one.
    roots = [root / key, root / class_name, root] if class_name == "Actor" else [root, root / class_name]
    names = (pyg_name,) if pyg_name else ()
    loader = _first_with_files([_deferred_loader(class_name, str(folder), *names) for folder in roots])
    _download_missing(loader, "files", "try again with a network connection")
    paths = [Path(path) for path in loader.raw_paths]
    try:
        _check_archives(paths)
        loader.process()
        return _check_graph(loader.graph, class_name in BAG_OF_WORDS_CLASSES)
    except Exception as error:  # damaged files raise many kinds of exceptions
        raise ValueError(
            f"Expected the files of {key} in {paths[0].parent}, but they cannot be read "
            f"({type(error).__name__}: {one_line_message(error)}). Delete them to have them downloaded again."
        ) from error


def _first_with_files(loaders: Sequence[Any]) -> Any:
    """Return the first loader that has any of its files, or the first one."""
    return next((loader for loader in loaders if any(Path(path).exists() for path in loader.raw_paths)), loaders[0])


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
    """Raise ValueError for a truncated archive, where NumPy would leave the file open, and for bad sparse matrices."""
    for path in paths:
        if path.suffix != ".npz":
            continue
        if not is_zipfile(path):
            raise ValueError(f"{path.name} is not a complete archive of arrays")
        with np.load(path, allow_pickle=False) as arrays:
            for name in ("adj", "attr"):
                if f"{name}_indptr" in arrays:
                    _check_sparse_matrix(name, arrays, path)


def _check_sparse_matrix(name: str, arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Raise ValueError for indices out of range. Without this check, SciPy would write outside of the dense matrix."""
    from scipy.sparse import csr_matrix

    shape = tuple(arrays[f"{name}_shape"].tolist())
    data, indices, indptr = (arrays[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    csr_matrix((data, indices, indptr), shape=shape).check_format(full_check=True)
    if name == "attr":  # made dense
        check_memory(4 * prod(shape), path)


def _check_graph(graph: Any, is_bag_of_words: bool) -> RawGraph:
    """Raise ValueError for inconsistent sizes, as in a truncated file, which loaders do not check."""
    x, y = graph.x.float(), graph.y.long()
    if x.ndim != 2 or 0 in x.shape or y.shape != x.shape[:1]:
        raise ValueError(f"features of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)} do not match")
    if not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):  # the sum needs no copy of x
        raise ValueError("some features are not finite")
    if not 0 <= int(y.min()) <= int(y.max()) < len(y):
        raise ValueError(f"labels range from {int(y.min())} to {int(y.max())}")
    return RawGraph(x, check_edges(graph.edge_index.long(), len(y)), y, is_bag_of_words)
