"""Which runs make the paper, and what else can be run by its protocol."""

from collections.abc import Collection
from dataclasses import dataclass

from edgewise.data.datasets import canonical_name
from edgewise.data.heterophilous import HETEROPHILOUS
from edgewise.data.options import check_whole_number
from edgewise.experiments.published import PUBLISHED_DATASETS
from edgewise.experiments.readings import CALIBRATORS, KNOWN_MODELS, MODELS
from edgewise.experiments.run_times import typical_seconds
from edgewise.experiments.runs import RunKey
from edgewise.experiments.synthetic_graphs import homophily_of_name, synthetic_name

# The paper's; what --datasets is when it is left out.
DATASETS = tuple(PUBLISHED_DATASETS)
# All that have names of their own; there is also a synthetic graph for each homophily.
KNOWN_DATASETS = (*DATASETS, *HETEROPHILOUS)
CALIBRATORS_ENTRY = "calibrators"  # of hyper-parameters: what calibrates is named there
FOLDS = 3  # the published splits have three, and so have those that are drawn
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
        from edgewise.experiments.recipes import hyperparameters

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
