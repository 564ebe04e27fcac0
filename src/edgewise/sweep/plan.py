"""Which runs a sweep has: datasets, models, calibrators, and how often each is run."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgewise.calibration import known_calibrators
from edgewise.data.datasets import DATASET_NAMES, canonical_name
from edgewise.models import known_models
from edgewise.models.fitted import FittedClassifier
from edgewise.models.model import Model
from edgewise.posterior import Posterior
from edgewise.sweep.progress import models_in_order, typical_seconds
from edgewise.sweep.runs import RunKey
from edgewise.sweep.sources import FOLDS, homophily_of_name, synthetic_name
from edgewise.validation import check_whole_number

CALIBRATORS_ENTRY = "calibrators"  # of hyper-parameters: what calibrates is named there
MAX_REPEATS = 1000  # splits and initializations, so that each run has a seed of its own

Predictions = Mapping[str, Callable[[], Posterior]]  # by name; each is computed when it is called


def own_predictions(fitted: Any) -> Predictions:
    """Return what a fitted model itself offers to be scored."""
    return dict(fitted.predictions())


@dataclass(frozen=True)
class Training:
    """A model with its hyper-parameters, and what is predicted by it when it is trained."""

    model: Model[Any]
    predictions: Callable[[Any], Predictions] = own_predictions

    @property
    def is_calibrated(self) -> bool:
        """Whether calibrators are applied: there must be logits, of independent nodes."""
        return issubclass(self.model.fitted, FittedClassifier)


Recipes = Mapping[str, tuple[Training, ...]]  # by model: trainings of one run, where they are not the model's default


def trainings_of(model: str, recipes: Recipes) -> tuple[Training, ...]:
    """Return the trainings of a model's run."""
    return recipes[model] if model in recipes else (Training(known_models()[model]()),)


def hyperparameters(model: str, recipes: Recipes, calibrators: tuple[str, ...] = ()) -> str:
    """Write all hyper-parameters of a model's trainings, and of calibrators, as JSON, always in the same order."""
    trainings = trainings_of(model, recipes)
    described: list[dict[str, Any]] = [asdict(training.model) for training in trainings]
    if calibrators and any(training.is_calibrated for training in trainings):
        known = known_calibrators()
        described.append({CALIBRATORS_ENTRY: {name: repr(known[name]()) for name in calibrators}})
    return json.dumps(described, sort_keys=True)


def calibrators_of(hyperparameters: str) -> set[str]:
    """Return the names of the calibrators among hyper-parameters."""
    return {name for entry in json.loads(hyperparameters) for name in entry.get(CALIBRATORS_ENTRY, ())}


@dataclass(frozen=True)
class Plan:
    """Every dataset with every model on so many splits, folds and initializations.

    Calibrators, of which "all" names all, are added to runs of models that have logits; their order is that of the
    predictions. ``recipes`` say how models are trained for which there is more to do than their default.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    splits: int = 5
    folds: int = FOLDS
    inits: int = 5
    calibrators: tuple[str, ...] = ()
    recipes: Recipes = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option, names, known in (("datasets", self.datasets, DATASET_NAMES), ("models", self.models, _models())):
            if not names:
                raise ValueError(f"Expected at least one of {', '.join(known)} for --{option}, but got none.")
        object.__setattr__(self, "datasets", tuple(dict.fromkeys(map(_known_dataset, self.datasets))))
        object.__setattr__(self, "models", tuple(dict.fromkeys(map(_known_model, self.models))))
        object.__setattr__(self, "calibrators", _known_calibrators(self.calibrators))
        check_whole_number("--splits", self.splits, 1, MAX_REPEATS)
        check_whole_number("--folds", self.folds, 1, FOLDS)
        check_whole_number("--inits", self.inits, 1, MAX_REPEATS)

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
        """List all runs; every cell gets its first run before any gets its second."""
        of_model = {model: hyperparameters(model, self.recipes, self.calibrators) for model in self.models}
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


def _models() -> list[str]:
    return models_in_order(known_models())


def _known_dataset(name: str) -> str:
    """Write the name of a dataset as results have it, or refuse it."""
    canonical = canonical_name(name)
    homophily = homophily_of_name(canonical)
    if homophily is not None:
        return synthetic_name(homophily)
    if canonical not in DATASET_NAMES:
        raise ValueError(
            f"Expected --datasets from {', '.join(DATASET_NAMES)}, or synthetic-H with a homophily H between 0 and 1 "
            f"such as synthetic-0.3, but got {name!r}."
        )
    return canonical


def _known_model(name: str) -> str:
    if name not in known_models():
        raise ValueError(f"Expected --models from {', '.join(_models())}, but got {name!r}.")
    return name


def _known_calibrators(names: Iterable[str]) -> tuple[str, ...]:
    """Check names of calibrators; "all" is short for those that are not named."""
    known: Collection[str] = known_calibrators()
    checked: dict[str, None] = {}
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"Expected --calibrators from {', '.join(known)}, or all, but got {name!r}.")
        checked.update(dict.fromkeys(known if name == "all" else [name]))
    return tuple(checked)
