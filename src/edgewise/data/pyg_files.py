"""What the files of a dataset hold, before anything is normalized.

PyG's loaders name the files, download them, and read those that are text or plain arrays. Planetoid's files are
pickles: these are read here, so that nothing is unpickled that was not checked.
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
    is_bag_of_words: bool = True  # a feature tells whether, or how often, a word occurs


PLANETOID_NAMES = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def read_planetoid(key: str, root: Path) -> RawGraph:
    """Read the raw files, after downloading what is missing; nothing else is written, as root may be read-only."""
    loader = _waiting_loader("Planetoid", str(root), PLANETOID_NAMES[key])
    raw = Path(loader.raw_dir)
    _download_missing(loader, "Planetoid files", "leave root out to use the bundled copy")
    try:
        return _checked(_planetoid_graph(key, raw), is_bag_of_words=True)
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(
            f"Expected the Planetoid files of {key} in {raw}, but they cannot be read "
            f"({type(error).__name__}: {one_line_message(error)}). Delete them to have them downloaded again."
        ) from error


def _planetoid_graph(key: str, raw: Path) -> RawGraph:
    """Put the parts together: known nodes come first, and row i of the tested ones is node test_index[i]."""
    test_index = torch.tensor([int(node) for node in (raw / f"ind.{key}.test.index").read_text().split()])
    allx, tx, ally, ty = (_read_matrix(raw / f"ind.{key}.{part}") for part in ("allx", "tx", "ally", "ty"))
    first, last = int(test_index.min()), int(test_index.max())
    if first < 0 or len(test_index) != len(tx):
        raise ValueError(f"the test index has {len(test_index)} nodes from {first} on, and tx has {len(tx)} rows")
    in_order = test_index.sort().values
    if key == "citeseer":  # isolated nodes are not in the index; they have no features, and the first label
        tx, ty = (_spread(rows, in_order - first, last - first + 1) for rows in (tx, ty))
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


def _spread(rows: Float[Tensor, "rows columns"], places: Int[Tensor, " rows"], count: int) -> Tensor:
    spread = torch.zeros(count, rows.shape[1])
    spread[places] = rows
    return spread


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
MAX_NAMED = 3  # of the files that are missing


def read_heterophilous(key: str, root: Path) -> RawGraph:
    """Read the raw files as PyG's loader does, after downloading what is missing; nothing else is written.

    Chameleon and Squirrel are read as Geom-GCN prepared them, PyG's default: else their label is a real number, the
    traffic of a page, and there are no classes. Actor's loader knows no folder of its own, so it gets one.
    """
    name = HETEROPHILOUS[key]
    loader = _waiting_loader(name, *((str(root / key),) if name == "Actor" else (str(root), key)))
    _download_missing(loader, "files", "try again where there is a network")
    paths = [Path(path) for path in loader.raw_paths]
    try:
        _check_archives(paths)
        loader.process()
        return _checked(loader.graph, name in BAGS_OF_WORDS)
    except Exception as error:  # each damage has its own class
        raise ValueError(
            f"Expected the files of {key} in {paths[0].parent}, but they cannot be read "
            f"({type(error).__name__}: {one_line_message(error)}). Delete them to have them downloaded again."
        ) from error


def _waiting_loader(name: str, *arguments: str) -> Any:
    """Make a loader of PyG that waits until it is told to download and to read, and keeps what it would write."""
    from torch_geometric import datasets

    loader = getattr(datasets, name)
    waiting = {"has_download": False, "has_process": False, "load": lambda self, path: None, "save": _keep}
    return type(name, (loader,), waiting)(*arguments)


def _keep(loader: Any, graphs: Sequence[Any], path: str) -> None:
    (loader.graph,) = graphs


def _download_missing(loader: Any, what: str, way_out: str) -> None:
    """Let PyG download the files if one is missing; it reads none of them."""
    missing = [path for path in map(Path, loader.raw_paths) if not path.exists()]
    if not missing:
        return
    try:
        Path(loader.raw_dir).mkdir(parents=True, exist_ok=True)
        loader.download()
    except Exception as error:  # no network, no right to write, no such address: each has its own class
        names = ", ".join(path.name for path in missing[:MAX_NAMED])
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        raise FileNotFoundError(
            f"Expected the {what} {names}{more} in {missing[0].parent}, but they are missing, and downloading them "
            f"from {loader.url if hasattr(loader, 'url') else loader.processed_url} failed ({type(error).__name__}: "
            f"{error}). Put them there, or {way_out}."
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
    return RawGraph(x, check_edges(graph.edge_index.long(), len(y)), y, is_bag_of_words)
