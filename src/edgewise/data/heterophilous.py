"""Graphs whose neighbours often differ in label: from the files of PyG's loaders, which are downloaded by users."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import is_zipfile

import torch

from edgewise.data.arrays import checked_edges
from edgewise.data.files.problem import in_one_line
from edgewise.data.raw_graph import RawGraph

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
        _download(reader, missing)
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


def _download(reader: Any, missing: Sequence[Path]) -> None:
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
