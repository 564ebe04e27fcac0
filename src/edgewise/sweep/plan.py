"""Which runs make the paper, and what else can be run by its protocol."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from edgewise.data.datasets import canonical_name
from edgewise.data.pyg_files import HETEROPHILOUS
from edgewise.paper.published import PUBLISHED_DATASETS
from edgewise.paper.readings import CALIBRATORS, KNOWN_MODELS, MODELS
from edgewise.sweep.runs import RunKey
from edgewise.sweep.sources import FOLDS, homophily_of_name, synthetic_name
from edgewise.validation import check_whole_number

# The paper's; what --datasets is when it is left out.
DATASETS = tuple(PUBLISHED_DATASETS)
# All that have names of their own; there is also a synthetic graph for each homophily.
KNOWN_DATASETS = (*DATASETS, *HETEROPHILOUS)
CALIBRATORS_ENTRY = "calibrators"  # of hyper-parameters: what calibrates is named there
MOST = 1000  # splits and initialisations, so that each run has a seed of its own


@dataclass(frozen=True)
class Plan:
    """Every dataset with every model on so many splits, folds and initialisations: 900 runs are the paper."""

    datasets: tuple[str, ...] = DATASETS
    models: tuple[str, ...] = MODELS
    splits: int = 5
    folds: int = FOLDS
    inits: int = 5
    calibrators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, names, known in (("datasets", self.datasets, DATASETS), ("models", self.models, MODELS)):
            if not names:
                raise ValueError(f"Expected at least one of {', '.join(known)} for --{option}, but got none.")
        object.__setattr__(self, "datasets", tuple(dict.fromkeys(map(_known_dataset, self.datasets))))
        object.__setattr__(self, "models", tuple(dict.fromkeys(map(_known_model, self.models))))
        object.__setattr__(self, "calibrators", _known_calibrators(self.calibrators))
        check_whole_number("--splits", self.splits, 1, MOST)
        check_whole_number("--folds", self.folds, 1, FOLDS)
        check_whole_number("--inits", self.inits, 1, MOST)

    def __str__(self) -> str:
        each = f"splits {self.splits}, folds {self.folds}, inits {self.inits}"
        calibrated = f"; calibrators {' '.join(self.calibrators)}" if self.calibrators else ""
        return f"{' '.join(self.datasets)}; {' '.join(self.models)}; {each}{calibrated}"

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Datasets and models, the long ones first, so that no worker waits for one of them in the end."""
        cells = [(dataset, model) for dataset in self.datasets for model in self.models]
        return sorted(cells, key=lambda cell: -typical_seconds(cell))

    def runs(self) -> list[RunKey]:
        """Give all runs; every cell gets its first run before any gets its second."""
        from edgewise.sweep.run import hyperparameters

        of_model = {model: hyperparameters(model, self.calibrators) for model in self.models}
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


def _known_dataset(name: str) -> str:
    """Write the name of a dataset as results have it, or refuse it."""
    canonical = canonical_name(name)
    homophily = homophily_of_name(canonical)
    if homophily is not None:
        return synthetic_name(homophily)
    if canonical not in KNOWN_DATASETS:
        raise ValueError(
            f"Expected --datasets from {', '.join(KNOWN_DATASETS)}, or synthetic-H with a homophily H between 0 and 1 "
            f"such as synthetic-0.3, but got {name!r}."
        )
    return canonical


def _known_model(name: str) -> str:
    if name not in KNOWN_MODELS:
        raise ValueError(f"Expected --models from {', '.join(KNOWN_MODELS)}, but got {name!r}.")
    return name


def _known_calibrators(names: tuple[str, ...]) -> tuple[str, ...]:
    """Put names of calibrators in order; "all" is short for all of them."""
    for name in names:
        if name not in (*CALIBRATORS, "all"):
            raise ValueError(f"Expected --calibrators from {', '.join(CALIBRATORS)}, or all, but got {name!r}.")
    return tuple(name for name in CALIBRATORS if name in names or "all" in names)


def datasets_in_order(names: Collection[str]) -> list[str]:
    """Put names of datasets in order: the paper's, other known ones, then synthetic ones by their homophily."""
    place = {name: number for number, name in enumerate(KNOWN_DATASETS)}
    return sorted(names, key=lambda name: (place.get(name, len(place)), homophily_of_name(name) or 0.0, name))


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

# The same for graphs that the paper has not, in times of Pubmed: not of their own runs, but of epochs of GCN and GAT on
# random graphs of their size, so they may be wrong by a factor of three. A model that the paper has not counts as an
# EPFGNN.
TIMES_OF_PUBMED: Mapping[str, float] = {
    "texas": 0.1,
    "wisconsin": 0.1,
    "cornell": 0.1,
    "actor": 0.7,
    "chameleon": 0.6,
    "squirrel": 1.9,
    "roman-empire": 1.2,
    "amazon-ratings": 2.1,
    "minesweeper": 0.6,
    "tolokers": 6.4,
    "questions": 8.4,
}
SYNTHETIC_TIMES = 0.2


def typical_seconds(cell: tuple[str, str]) -> float:
    """Give about how long a run of a dataset and a model takes on one core."""
    dataset, model = cell
    like = model if ("pubmed", model) in TYPICAL_SECONDS else "epfgnn"
    times = TIMES_OF_PUBMED.get(dataset, SYNTHETIC_TIMES)
    return TYPICAL_SECONDS.get((dataset, like), times * TYPICAL_SECONDS["pubmed", like])


def estimated_seconds(
    missing: Iterable[RunKey], measured: Mapping[tuple[str, str], Collection[float]], workers: int
) -> float:
    """Estimate how long the missing runs take: by the median of their cell's finished runs, else by a typical one.

    Typical seconds are those of another machine, so they are scaled by how this one does in the cells that have run.
    The median, because the first run of a worker loads and compiles.
    """
    usual = {cell: median(seconds) for cell, seconds in measured.items() if seconds}
    ours, typical = sum(usual.values()), sum(map(typical_seconds, usual))
    pace = ours / typical if usual else 1.0
    counts = Counter(key.cell for key in missing)
    total = sum(count * usual.get(cell, pace * typical_seconds(cell)) for cell, count in counts.items())
    return total / workers
