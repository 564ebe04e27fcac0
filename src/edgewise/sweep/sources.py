"""Graphs and splits of a sweep, and fingerprints to compare them."""

import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from edgewise.data import Split, dataset_statistics, load_dataset, load_splits, make_splits
from edgewise.data.datasets import DATASET_NAMES, canonical_name
from edgewise.data.pyg_files import LOADERS
from edgewise.data.splits import split_files
from edgewise.models.task import Task, prepare_task
from edgewise.sweep.runs import RunKey
from edgewise.sweep.store import TaskRow
from edgewise.version import versions

if TYPE_CHECKING:
    from torch_geometric.data import Data

FOLDS = 3  # of published splits, and of random ones


@dataclass(frozen=True)
class Sources:
    """The sources of graphs and splits: bundled data or files, random or published splits."""

    data_root: str | None = None
    splits_dir: str | None = None
    splits_seed: int = 0

    def __post_init__(self) -> None:
        if self.splits_dir and not self.data_root:
            raise ValueError(
                "Expected --data-root with --splits-dir, but got none: published splits use the node order of the raw "
                "files, and the bundled Cora has another. Pass the folder of the raw files."
            )
        for option, folder in (("--data-root", self.data_root), ("--splits-dir", self.splits_dir)):
            if folder and not Path(folder).expanduser().is_dir():
                raise ValueError(f"Expected a folder for {option}, but {folder} does not exist. Check the path.")

    def load(self, dataset: str, n_splits: int) -> "GraphWithSplits":
        """Load a dataset and its splits."""
        data = self.graph(dataset)
        return GraphWithSplits(dataset, data, self._splits_by_number(dataset, data, n_splits))

    def with_absolute_paths(self) -> "Sources":
        """Return a copy with absolute paths, for workers that start in another folder."""
        folders = (Path(path).expanduser().resolve() if path else None for path in (self.data_root, self.splits_dir))
        data_root, splits_dir = (str(folder) if folder else None for folder in folders)
        return replace(self, data_root=data_root, splits_dir=splits_dir)

    def graph(self, dataset: str) -> "Data":
        """Load a graph, or draw a synthetic one if the name is synthetic-H."""
        homophily = homophily_of_name(dataset)
        if homophily is not None:
            return draw_graph(homophily)
        self._check_root(dataset)
        return load_dataset(dataset, self.data_root)

    def _check_root(self, dataset: str) -> None:
        if dataset in LOADERS and not self.data_root:
            raise ValueError(
                f"Expected --data-root with {dataset}, but got none: this dataset is not bundled. Pass a folder; "
                "missing files are downloaded to it."
            )

    def splits(self, dataset: str, data: "Data", n_splits: int = 5) -> list[Split]:
        """Draw ``n_splits`` random splits of a graph, or load all published ones."""
        if self.splits_dir is None:
            return make_splits(data.y, n_splits, FOLDS, self.splits_seed)
        return load_splits(self._splits_folders([dataset])[dataset], data.num_nodes)

    def describe_splits(self, datasets: Collection[str]) -> str:
        """Return the source of the splits of each dataset as text. Raise ValueError if a folder is missing for one."""
        for dataset in datasets:
            self._check_root(dataset)
        if self.splits_dir is None:
            return f"splits: random, seed {self.splits_seed}"
        folders, width = self._splits_folders(datasets), max(map(len, datasets))
        lines = ["published splits:"]
        for dataset, folder in folders.items():
            files = split_files(folder)
            lines.append(f"  {dataset:{width}}  {len(files)} in {files[0][1].parent}")
        return "\n".join(lines)

    def _splits_folders(self, datasets: Collection[str]) -> dict[str, Path]:
        """Return the subfolder of each dataset in the folder of published splits, ignoring case, - and _."""
        root = Path(self.splits_dir or "").expanduser()
        inner = {_letters(path.name): path for path in sorted(root.iterdir()) if path.is_dir()}
        if missing := [dataset for dataset in datasets if _letters(dataset) not in inner]:
            found = ", ".join(path.name for path in inner.values()) or "no folders"
            raise ValueError(
                f"Expected a folder {' and a folder '.join(missing)} in --splits-dir, but {root} has {found}. Check "
                "the path. For random splits, run these datasets without --splits-dir; --out may be the same."
            )
        return {dataset: inner[_letters(dataset)] for dataset in datasets}

    def _splits_by_number(self, dataset: str, data: "Data", n_splits: int) -> dict[tuple[int, int], Split]:
        by_number = {(split.split, split.fold): split for split in self.splits(dataset, data, n_splits)}
        requested = [(split, fold) for split in range(n_splits) for fold in range(FOLDS)]
        missing = [key for key in requested if key not in by_number]
        if missing:
            raise ValueError(
                f"Expected split {missing[0][0]} fold {missing[0][1]} of {dataset} in {self.splits_dir}, but it "
                f"has {len({split for split, _ in by_number})} splits. Reduce --splits."
            )
        return {key: by_number[key] for key in requested}

    def __str__(self) -> str:
        data = f"files in {self.data_root}" if self.data_root else "bundled data"
        splits = f"splits in {self.splits_dir}" if self.splits_dir else f"splits drawn with seed {self.splits_seed}"
        return f"{data}, {splits}"


@cache
def load_once(sources: Sources, dataset: str, n_splits: int) -> "GraphWithSplits":
    """Load a graph with its splits, cached per process."""
    return sources.load(dataset, n_splits)


@lru_cache(maxsize=1)
def prepare_once(sources: Sources, dataset: str, n_splits: int, split: int, fold: int) -> Task:
    """Prepare a graph and split for training, cached until another one is prepared in this process."""
    graph = load_once(sources, dataset, n_splits)
    return prepare_task(graph.data, graph.splits[split, fold], directed="refuse", num_classes=None, device="cpu")


@dataclass(frozen=True, eq=False)
class GraphWithSplits:
    """A graph with its splits by (split, fold)."""

    dataset: str
    data: "Data"
    splits: dict[tuple[int, int], Split]

    @cached_property
    def graph_fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 of features, edges and labels."""
        data = self.data
        return _hash(*(tensor.reshape(-1).numpy().data for tensor in (data.x, data.edge_index, data.y)))

    def fingerprint(self, split: int) -> str:
        """Return the first 16 hex digits of the SHA-256 of the graph and the masks of a split."""
        folds = [self.splits[split, fold] for fold in range(FOLDS)]
        masks = [mask.numpy().tobytes() for fold in folds for mask in (fold.train, fold.val, fold.test)]
        return _hash(self.graph_fingerprint.encode(), *masks)

    def rows(self) -> list[TaskRow]:
        """Return one row per split: its fingerprint, sizes, and the statistics of its test set."""
        return [self._row(split) for split in sorted({split for split, _ in self.splits})]

    def _row(self, split: int) -> TaskRow:
        size = dataset_statistics(self.data, [self.splits[split, 0]])
        counts = size.nodes, size.directed_edges, size.features, size.classes
        fractions = (size.homophily, size.k_edgewise, size.k_agree, size.k_disagree)
        folds = [self.splits[key] for key in self.splits if key[0] == split]
        sizes = (fmean(int(getattr(fold, part).sum()) for fold in folds) for part in ("train", "test"))
        return TaskRow(
            self.dataset, split, self.fingerprint(split), *counts, *(fraction.mean for fraction in fractions), *sizes
        )


@dataclass(frozen=True)
class EnvironmentCheck:
    """Check that a cluster node has the package versions, graphs and splits of the machine that started the sweep.

    The numbers of a run depend on all of them. ``fingerprints`` are by dataset and split.
    """

    sources: Sources
    n_splits: int
    versions: Mapping[str, str]
    fingerprints: Mapping[tuple[str, int], str]

    @classmethod
    def of_this_machine(cls, sources: Sources, n_splits: int, tasks: Iterable[TaskRow]) -> "EnvironmentCheck":
        """Return the check for the versions of this machine. Python's version is left out: it changes no numbers."""
        packages = {name: version for name, version in versions().items() if name != "python"}
        return cls(sources, n_splits, packages, {(task.dataset, task.split): task.fingerprint for task in tasks})

    def __call__(self, keys: Sequence[RunKey]) -> str:
        """Return the first difference that matters to these runs, or "" if there is none."""
        node = f"node {platform.node()}"
        for option, folder in (("--data-root", self.sources.data_root), ("--splits-dir", self.sources.splits_dir)):
            if folder and not Path(folder).is_dir():
                return f"Expected the folder {folder} of {option} on every node, but {node} lacks it. Copy it there."
        pairs = [(name, version, versions().get(name)) for name, version in self.versions.items()]
        for dataset in dict.fromkeys(key.dataset for key in keys):
            try:
                graph = load_once(self.sources, dataset, self.n_splits)
                for (name, split), expected in self.fingerprints.items():
                    if name == dataset:
                        pairs.append((f"{dataset} split {split}", expected, graph.fingerprint(split)))
            except Exception as error:
                return f"Expected to load {dataset} on {node}, but got: {error}"
        for name, expected, actual in pairs:
            if actual != expected:
                return f"Expected {name} {expected} on every node, but {node} has {actual}. Use the same on every node."
        return ""


def _hash(*parts: bytes | memoryview) -> str:
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _letters(name: str) -> str:
    """Return the name of a dataset in lower case, without - and _, such as corafull."""
    return canonical_name(name).replace("-", "")


def sort_datasets(names: Collection[str]) -> list[str]:
    """Sort names of datasets in the order of `DATASET_NAMES`. Others follow, synthetic ones by their homophily."""
    position = {name: number for number, name in enumerate(DATASET_NAMES)}
    return sorted(names, key=lambda name: (position.get(name, len(position)), homophily_of_name(name) or 0.0, name))


# --- synthetic graphs ---

SYNTHETIC_PREFIX = "synthetic-"
NUM_NODES, NUM_CLASSES = 2000, 4
AVERAGE_DEGREE = 4.0  # similar to Cora
NUM_FEATURES, FEATURE_NOISE = 16, 1.0  # the features alone determine the class of about 60% of the nodes
GRAPH_SEED = 0  # splits and initializations have their own seeds
SYNTHETIC_GRAPH_DESCRIPTION = (
    f"{NUM_NODES:,} nodes in {NUM_CLASSES} classes, average degree {AVERAGE_DEGREE:g}, {NUM_FEATURES} normal features"
)


def homophily_of_name(name: str) -> float | None:
    """Return the homophily H of a name synthetic-H with 0 < H < 1, or None for other names.

    >>> homophily_of_name("synthetic-0.3"), homophily_of_name("synthetic-2"), homophily_of_name("cora")
    (0.3, None, None)
    """
    try:
        homophily = float(name.removeprefix(SYNTHETIC_PREFIX)) if name.startswith(SYNTHETIC_PREFIX) else 0.0
    except ValueError:
        return None
    return homophily if 0.0 < homophily < 1.0 else None


def synthetic_name(homophily: float) -> str:
    """Return the canonical name synthetic-H of a homophily.

    >>> synthetic_name(0.30)
    'synthetic-0.3'
    """
    return f"{SYNTHETIC_PREFIX}{homophily}"


def draw_graph(homophily: float) -> "Data":
    """Draw the synthetic graph of a homophily with a fixed seed."""
    from edgewise.simulation import synthetic

    graph = synthetic(
        NUM_NODES,
        NUM_CLASSES,
        kind="block_model",
        homophily=homophily,
        average_degree=AVERAGE_DEGREE,
        num_features=NUM_FEATURES,
        feature_noise=FEATURE_NOISE,
        seed=GRAPH_SEED,
    )
    return graph.data
