"""Which runs make the paper."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from edgewise.data.arrays import check_whole_number
from edgewise.experiments.published import PUBLISHED_DATASETS
from edgewise.experiments.runs import RunKey

DATASETS = tuple(PUBLISHED_DATASETS)
MODELS = ("gcn", "gat", "gmnn", "epfgnn")
FOLDS = 3  # the published splits have three, and so have those that are drawn
MOST = 1000  # splits and initialisations, so that each run has a seed of its own

# Seconds of one run on one core, for an estimate before anything has been measured: the lower quartile of the runs of
# docs/reproduction.md, whose machine was shared.
TYPICAL_SECONDS: Mapping[tuple[str, str], float] = {
    ("cora", "gcn"): 2.3,
    ("cora", "gat"): 5.8,
    ("cora", "gmnn"): 1.8,
    ("cora", "epfgnn"): 3.1,
    ("citeseer", "gcn"): 2.2,
    ("citeseer", "gat"): 4.6,
    ("citeseer", "gmnn"): 2.2,
    ("citeseer", "epfgnn"): 4.0,
    ("pubmed", "gcn"): 22.5,
    ("pubmed", "gat"): 45.5,
    ("pubmed", "gmnn"): 10.9,
    ("pubmed", "epfgnn"): 19.1,
}


@dataclass(frozen=True)
class Plan:
    """Every dataset with every model on so many splits, folds and initialisations: 900 runs are the paper."""

    datasets: tuple[str, ...] = DATASETS
    models: tuple[str, ...] = MODELS
    splits: int = 5
    folds: int = FOLDS
    inits: int = 5

    def __post_init__(self) -> None:
        for option, names, known in (("datasets", self.datasets, DATASETS), ("models", self.models, MODELS)):
            for name in names:
                if name not in known:
                    raise ValueError(f"Expected --{option} from {', '.join(known)}, but got {name!r}.")
            if not names:
                raise ValueError(f"Expected at least one of {', '.join(known)} for --{option}, but got none.")
            object.__setattr__(self, option, tuple(dict.fromkeys(names)))
        check_whole_number("--splits", self.splits, 1, MOST)
        check_whole_number("--folds", self.folds, 1, FOLDS)
        check_whole_number("--inits", self.inits, 1, MOST)

    def __str__(self) -> str:
        each = f"splits {self.splits}, folds {self.folds}, inits {self.inits}"
        return f"{' '.join(self.datasets)}; {' '.join(self.models)}; {each}"

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Datasets and models, the long ones first, so that no worker waits for one of them in the end."""
        cells = [(dataset, model) for dataset in self.datasets for model in self.models]
        return sorted(cells, key=lambda cell: -TYPICAL_SECONDS[cell])

    def runs(self) -> list[RunKey]:
        """Give all runs; every cell gets its first run before any gets its second."""
        from edgewise.experiments.recipes import hyperparameters

        of_model = {model: hyperparameters(model) for model in self.models}
        return [
            RunKey(dataset, model, of_model[model], split, fold, init)
            for init in range(self.inits)
            for split in range(self.splits)
            for fold in range(self.folds)
            for dataset, model in self.cells
        ]

    @property
    def size(self) -> int:
        """How many runs there are."""
        return len(self.datasets) * len(self.models) * self.splits * self.folds * self.inits


def estimated_seconds(
    missing: Iterable[RunKey], measured: Mapping[tuple[str, str], Collection[float]], workers: int
) -> float:
    """Estimate how long the missing runs take: by the median of their cell's finished runs, else by a typical one.

    Typical seconds are those of another machine, so they are scaled by how this one does in the cells that have run.
    The median, because the first run of a worker loads and compiles.
    """
    usual = {cell: median(seconds) for cell, seconds in measured.items() if seconds}
    ours, typical = sum(usual.values()), sum(TYPICAL_SECONDS[cell] for cell in usual)
    pace = ours / typical if usual else 1.0
    counts = Counter(key.cell for key in missing)
    total = sum(count * usual.get(cell, pace * TYPICAL_SECONDS[cell]) for cell, count in counts.items())
    return total / workers
