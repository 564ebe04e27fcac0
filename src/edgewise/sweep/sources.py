"""Where graphs and splits of a sweep come from, and a fingerprint that tells whether they are the same."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.data import Split, dataset_statistics, load_dataset, load_splits, make_splits
from edgewise.data.pyg_files import HETEROPHILOUS
from edgewise.sweep.runs import RunKey
from edgewise.sweep.store import TaskRow
from edgewise.version import versions

if TYPE_CHECKING:
    from torch_geometric.data import Data

FOLDS = 3  # the published splits have three, and so have those that are drawn


@dataclass(frozen=True)
class Sources:
    """Bundled data or files below a folder; splits drawn by a seed, or published ones below a folder."""

    data_root: str | None = None
    splits_dir: str | None = None
    splits_seed: int = 0

    def __post_init__(self) -> None:
        if self.splits_dir and not self.data_root:
            raise ValueError(
                "Expected --data-root with --splits-dir, but got none: published splits number Cora's nodes as "
                "Planetoid's files do, and the bundled copy does not."
            )
        for option, folder in (("--data-root", self.data_root), ("--splits-dir", self.splits_dir)):
            if folder and not Path(folder).expanduser().is_dir():
                raise ValueError(f"Expected a folder for {option}, but there is no {folder}. Check the path.")

    def load(self, dataset: str, n_splits: int) -> "GraphWithSplits":
        """Load a dataset and its splits."""
        data = self.graph(dataset)
        return GraphWithSplits(dataset, data, self._numbered(dataset, data, n_splits))

    def with_full_paths(self) -> "Sources":
        """Name folders in full, for workers that do not start in the folder of the command."""
        folders = (Path(path).expanduser().resolve() if path else None for path in (self.data_root, self.splits_dir))
        data_root, splits_dir = (str(folder) if folder else None for folder in folders)
        return replace(self, data_root=data_root, splits_dir=splits_dir)

    def graph(self, dataset: str) -> "Data":
        """Load a graph, or draw a synthetic one."""
        homophily = homophily_of_name(dataset)
        if homophily is not None:
            return draw_graph(homophily)
        if dataset in HETEROPHILOUS and not self.data_root:
            raise ValueError(
                f"Expected --data-root with {dataset}, but got none: it is not bundled. Its files are read below that "
                "folder, and downloaded there where they are missing."
            )
        return load_dataset(dataset, self.data_root)

    def splits(self, dataset: str, data: "Data", n_splits: int = 5) -> list[Split]:
        """Draw so many splits of a graph, or load all that its folder has."""
        if self.splits_dir is None:
            return make_splits(data.y, n_splits, FOLDS, self.splits_seed)
        return load_splits(_splits_folder(Path(self.splits_dir), dataset), data.num_nodes)

    def _numbered(self, dataset: str, data: "Data", n_splits: int) -> dict[tuple[int, int], Split]:
        by_number = {(split.split, split.fold): split for split in self.splits(dataset, data, n_splits)}
        wanted = [(split, fold) for split in range(n_splits) for fold in range(FOLDS)]
        missing = [key for key in wanted if key not in by_number]
        if missing:
            raise ValueError(
                f"Expected split {missing[0][0]} fold {missing[0][1]} of {dataset} in {self.splits_dir}, but there is "
                f"none: it has {len({split for split, _ in by_number})} splits. Ask for fewer --splits."
            )
        return {key: by_number[key] for key in wanted}

    def __str__(self) -> str:
        data = f"files in {self.data_root}" if self.data_root else "bundled data"
        splits = f"splits in {self.splits_dir}" if self.splits_dir else f"splits drawn with seed {self.splits_seed}"
        return f"{data}, {splits}"


@cache
def load_once(sources: Sources, dataset: str, n_splits: int) -> "GraphWithSplits":
    """Load a graph with its splits; a process keeps those that it has loaded."""
    return sources.load(dataset, n_splits)


@dataclass(frozen=True, eq=False)
class GraphWithSplits:
    """A graph with its splits, by number and fold."""

    dataset: str
    data: "Data"
    splits: dict[tuple[int, int], Split]

    @cached_property
    def graph_fingerprint(self) -> str:
        """The first letters of a hash of features, edges and labels."""
        data = self.data
        return _hash(*(tensor.contiguous().numpy().tobytes() for tensor in (data.x, data.edge_index, data.y)))

    def fingerprint(self, split: int) -> str:
        """Return the first letters of a hash of the graph and of a split's masks."""
        folds = [self.splits[split, fold] for fold in range(FOLDS)]
        masks = [mask.numpy().tobytes() for fold in folds for mask in (fold.train, fold.val, fold.test)]
        return _hash(self.graph_fingerprint.encode(), *masks)

    def rows(self) -> list[TaskRow]:
        """Return what a store remembers of each split: a fingerprint, sizes, and the statistics of its test set."""
        return [self._row(split) for split in sorted({split for split, _ in self.splits})]

    def _row(self, split: int) -> TaskRow:
        size = dataset_statistics(self.data, [self.splits[split, 0]])
        counts = size.nodes, size.directed_edges, size.features, size.classes
        shares = (size.homophily, size.k_edgewise, size.k_agree, size.k_disagree)
        return TaskRow(self.dataset, split, self.fingerprint(split), *counts, *(share.mean for share in shares))


@dataclass(frozen=True)
class SameEverywhere:
    """Tells on a node of a cluster what is not as it is where the sweep was started, since numbers depend on it.

    These are the versions of packages, and fingerprints of graphs and splits by dataset and number of the split.
    """

    sources: Sources
    n_splits: int
    versions: Mapping[str, str]
    fingerprints: Mapping[tuple[str, int], str]

    @classmethod
    def as_here(cls, sources: Sources, n_splits: int, tasks: Iterable[TaskRow]) -> "SameEverywhere":
        """Expect what is here; a patch of Python changes no number."""
        packages = {name: version for name, version in versions().items() if name != "python"}
        return cls(sources, n_splits, packages, {(task.dataset, task.split): task.fingerprint for task in tasks})

    def __call__(self, keys: Sequence[RunKey]) -> str:
        """Return the first objection to doing these runs here; none if all is as expected."""
        node = f"node {platform.node()}"
        for option, folder in (("--data-root", self.sources.data_root), ("--splits-dir", self.sources.splits_dir)):
            if folder and not Path(folder).is_dir():
                return f"Expected the folder {folder} of {option} on every node, but {node} has none. Copy it there."
        pairs = [(name, version, versions().get(name)) for name, version in self.versions.items()]
        for dataset in dict.fromkeys(key.dataset for key in keys):
            try:
                graph = load_once(self.sources, dataset, self.n_splits)
                for (name, split), expected in self.fingerprints.items():
                    if name == dataset:
                        pairs.append((f"{dataset} split {split}", expected, graph.fingerprint(split)))
            except Exception as error:
                return f"Expected to load {dataset} on {node}, but got: {error}"
        for name, expected, found in pairs:
            if found != expected:
                return f"Expected {name} {expected} on every node, but {node} has {found}. Make them the same."
        return ""


def _hash(*parts: bytes) -> str:
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _splits_folder(folder: Path, dataset: str) -> Path:
    """Find the folder of a dataset, whatever its letters are."""
    of_dataset = [inner for inner in sorted(folder.glob("*")) if inner.name.lower() == dataset]
    if not of_dataset:
        raise ValueError(f"Expected a folder {dataset} in --splits-dir, but {folder} has none.")
    return of_dataset[0]


PREFIX = "synthetic-"
NUM_NODES, NUM_CLASSES = 2000, 4
AVERAGE_DEGREE = 4.0  # about Cora's
NUM_FEATURES, FEATURE_NOISE = 16, 1.0  # features alone tell the class of about six nodes in ten
SEED = 0  # of the graph; splits and initializations have their own
SIZE_IN_WORDS = (
    f"{NUM_NODES:,} nodes in {NUM_CLASSES} classes, {AVERAGE_DEGREE:g} edges a node, and {NUM_FEATURES} normal features"
)


def homophily_of_name(name: str) -> float | None:
    """Read the homophily in a name, between 0 and 1; None if it is the name of nothing.

    >>> homophily_of_name("synthetic-0.3"), homophily_of_name("synthetic-2"), homophily_of_name("cora")
    (0.3, None, None)
    """
    try:
        homophily = float(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else 0.0
    except ValueError:
        return None
    return homophily if 0.0 < homophily < 1.0 else None


def synthetic_name(homophily: float) -> str:
    """Write a homophily as a name, always the same way.

    >>> synthetic_name(0.30)
    'synthetic-0.3'
    """
    return f"{PREFIX}{homophily}"


def draw_graph(homophily: float) -> "Data":
    """Draw the graph of a homophily: the same one each time."""
    from edgewise.simulation import synthetic

    graph = synthetic(
        NUM_NODES,
        NUM_CLASSES,
        kind="block_model",
        homophily=homophily,
        average_degree=AVERAGE_DEGREE,
        num_features=NUM_FEATURES,
        feature_noise=FEATURE_NOISE,
        seed=SEED,
    )
    return graph.data
