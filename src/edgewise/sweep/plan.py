"""Plan of a sweep: datasets, models, calibrators, and the number of splits, folds and initializations."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgewise.calibration import known_calibrators
from edgewise.data.datasets import DATASET_NAMES, canonical_name
from edgewise.data.pyg_files import PLANETOID_NAMES
from edgewise.models import known_models
from edgewise.models.fitted import FittedClassifier
from edgewise.models.mixture_model import MixtureModel
from edgewise.models.model import Classifier, Model
from edgewise.models.spn import SPN
from edgewise.posterior import Posterior
from edgewise.suggestions import did_you_mean
from edgewise.sweep.estimates import TYPICAL_SECONDS, typical_seconds
from edgewise.sweep.own_models import OwnModel
from edgewise.sweep.runs import RunKey
from edgewise.sweep.sources import FOLDS, homophily_of_name, synthetic_name
from edgewise.validation import check_whole_number

CALIBRATORS_ENTRY = "calibrators"  # key of the calibrators in the hyperparameters
FULL_TRAINING = (Classifier, MixtureModel, SPN)  # models that train a classifier up to its own limits
SOURCE_ENTRY = "source_sha256"  # key of the hash of the file of a model
MAX_REPEATS = 1000  # of splits and of initializations, so that seeds are unique, see `RunKey.seed`

Predictions = Mapping[str, Callable[[], Posterior]]  # by name; a prediction is computed when it is called


def own_predictions(fitted: Any) -> Predictions:
    """Return the predictions that a fitted model defines itself."""
    return dict(fitted.predictions())


@dataclass(frozen=True)
class Training:
    """A model with its hyperparameters, and the predictions to score after training.

    ``source_hash`` is that of the file of an `OwnModel`.
    """

    model: Model[Any]
    predictions: Callable[[Any], Predictions] = own_predictions
    source_hash: str = ""

    @property
    def is_calibrated(self) -> bool:
        """Whether calibrators are applied. They need logits of independent nodes."""
        return issubclass(self.model.fitted, FittedClassifier)

    def hyperparameters(self) -> dict[str, Any]:
        """Return all that the fitted model depends on, besides data, split and seed, as values that JSON can hold."""
        options = self.model.hyperparameters()
        return options | {SOURCE_ENTRY: self.source_hash} if self.source_hash else options


# By model: the trainings of one run, or a model in a file. Other models are trained with their defaults.
Recipes = Mapping[str, tuple[Training, ...] | OwnModel]


def has_weight_decay(dataset: str) -> bool:
    """Whether models are trained with their weight decay on a dataset; else it is 0.

    As in the scripts of GATS (Hsu et al. 2022), it is 5e-4 on Cora, Citeseer and Pubmed, and 0 on all other datasets.
    Synthetic graphs, which are as large as Cora, have that of Cora.
    """
    return dataset in PLANETOID_NAMES or homophily_of_name(dataset) is not None


def trainings_of(dataset: str, model: str, recipes: Recipes) -> tuple[Training, ...]:
    """Return the trainings of one run of a model on a dataset."""
    trainings = _trainings(model, recipes)
    return trainings if has_weight_decay(dataset) else tuple(map(_without_weight_decay, trainings))


def _trainings(model: str, recipes: Recipes) -> tuple[Training, ...]:
    """Return the trainings of a model with its weight decay."""
    recipe = recipes.get(model)
    if isinstance(recipe, OwnModel):
        return (Training(recipe.load(), source_hash=recipe.source_hash),)
    return (Training(known_models()[model]()),) if recipe is None else recipe


def _without_weight_decay(training: Training) -> Training:
    return replace(training, model=training.model.with_weight_decay(0.0))


def hyperparameters(dataset: str, model: str, recipes: Recipes, calibrators: tuple[str, ...] = ()) -> str:
    """Return all hyperparameters of a model's trainings and of calibrators as JSON with sorted keys."""
    trainings = trainings_of(dataset, model, recipes)
    entries: list[dict[str, Any]] = [training.hyperparameters() for training in trainings]
    if calibrators and any(training.is_calibrated for training in trainings):
        kinds = known_calibrators()
        entries.append({CALIBRATORS_ENTRY: {name: repr(kinds[name]()) for name in calibrators}})
    return json.dumps(entries, sort_keys=True)


def calibrators_of(hyperparameters: str) -> set[str]:
    """Return the names of the calibrators in hyperparameters given as JSON."""
    return {name for entry in json.loads(hyperparameters) for name in entry.get(CALIBRATORS_ENTRY, ())}


@dataclass(frozen=True)
class Plan:
    """Every dataset with every model on a number of splits, folds and initializations.

    ``calibrators`` are applied to models that have logits, and their predictions are stored in this order; "all"
    means every calibrator. ``recipes`` define the trainings of models that are not trained with their defaults, and
    models of other names.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    splits: int = 5
    folds: int = FOLDS
    inits: int = 5
    calibrators: tuple[str, ...] = ()
    recipes: Recipes = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option, names, valid in (("datasets", self.datasets, DATASET_NAMES), ("models", self.models, _models())):
            if not names:
                raise ValueError(f"Expected at least one of {', '.join(valid)} for --{option}, but got none.")
        object.__setattr__(self, "datasets", tuple(dict.fromkeys(map(_canonical_dataset, self.datasets))))
        object.__setattr__(self, "models", tuple(dict.fromkeys(map(self._check_model, self.models))))
        object.__setattr__(self, "calibrators", _expand_calibrators(self.calibrators))
        check_whole_number("--splits", self.splits, 1, MAX_REPEATS)
        check_whole_number("--folds", self.folds, 1, FOLDS)
        check_whole_number("--inits", self.inits, 1, MAX_REPEATS)

    def __str__(self) -> str:
        each = f"splits {self.splits}, folds {self.folds}, inits {self.inits}"
        calibrated = f"; calibrators {' '.join(self.calibrators)}" if self.calibrators else ""
        return f"{' '.join(self.datasets)}; {' '.join(self.models)}; {each}{calibrated}"

    def runs(self) -> list[RunKey]:
        """Return all runs, those that share work one after the other, see `RunKey.group`.

        Every cell gets its first run before any cell gets its second. Large datasets come first, so that no long run
        is left for a single worker at the end. In a group the models that train a classifier up to its own limits
        come last: they continue the pretraining of other models.
        """
        hyperparameters_of = {
            (dataset, model): hyperparameters(dataset, model, self.recipes, self.calibrators)
            for dataset in self.datasets
            for model in self.models
        }
        datasets = sorted(
            self.datasets, key=lambda dataset: -sum(typical_seconds((dataset, model)) for model in self.models)
        )
        models = sorted(self.models, key=self._trains_fully)
        return [
            RunKey(dataset, model, hyperparameters_of[dataset, model], split, fold, init)
            for init in range(self.inits)
            for split in range(self.splits)
            for fold in range(self.folds)
            for dataset in datasets
            for model in models
        ]

    @property
    def size(self) -> int:
        """The number of runs."""
        return len(self.datasets) * len(self.models) * self.splits * self.folds * self.inits

    def _trains_fully(self, model: str) -> bool:
        return all(isinstance(training.model, FULL_TRAINING) for training in _trainings(model, self.recipes))

    def _check_model(self, name: str) -> str:
        if name not in self.recipes and name not in known_models():
            names = _models()
            raise ValueError(
                f"Expected --models from {', '.join(names)}, or FILE.py:NAME, but got {name!r}."
                f"{did_you_mean(name, names)}"
            )
        return name


def sort_models(names: Iterable[str]) -> list[str]:
    """Sort names of models in the order of `TYPICAL_SECONDS`. Others follow in the order given."""
    position = {model: number for number, model in enumerate(dict.fromkeys(model for _, model in TYPICAL_SECONDS))}
    return sorted(names, key=lambda name: position.get(name, len(position)))


def _models() -> list[str]:
    return sort_models(known_models())


def _canonical_dataset(name: str) -> str:
    """Return the canonical name of a dataset. Raise ValueError if it is unknown."""
    canonical = canonical_name(name)
    homophily = homophily_of_name(canonical)
    if homophily is not None:
        return synthetic_name(homophily)
    if canonical not in DATASET_NAMES:
        raise ValueError(
            f"Expected --datasets from {', '.join(DATASET_NAMES)}, or synthetic-H with a homophily H between 0 and 1 "
            f"such as synthetic-0.3, but got {name!r}.{did_you_mean(canonical, DATASET_NAMES)}"
        )
    return canonical


def _expand_calibrators(names: Iterable[str]) -> tuple[str, ...]:
    """Check names of calibrators, and replace "all" by every calibrator that is not named yet."""
    valid: Collection[str] = known_calibrators()
    checked: dict[str, None] = {}
    for name in names:
        if name not in (*valid, "all"):
            hint = did_you_mean(name, (*valid, "all"))
            raise ValueError(f"Expected --calibrators from {', '.join(valid)}, or all, but got {name!r}.{hint}")
        checked.update(dict.fromkeys(valid if name == "all" else [name]))
    return tuple(checked)
