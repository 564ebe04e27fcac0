"""One run: train, predict, score."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from edgewise.calibration import Calibrator, known_calibrators
from edgewise.data import Split
from edgewise.metrics import evaluate
from edgewise.models.epfgnn import EPFGNN
from edgewise.models.fitted import Fitted, FittedClassifier
from edgewise.models.gat import GAT
from edgewise.models.gcn import GCN
from edgewise.models.gmnn import GMNN
from edgewise.models.joint_gcn import JointGCN
from edgewise.models.model import Model
from edgewise.paper.misplaced_evidence import posterior_with_misplaced_evidence
from edgewise.paper.readings import CALIBRATED_MODELS, CALIBRATORS
from edgewise.posterior import IndependentPosterior, Posterior
from edgewise.sweep.plan import CALIBRATORS_ENTRY
from edgewise.sweep.runs import Prediction, Run, RunKey, as_prediction
from edgewise.sweep.sources import Task
from edgewise.version import versions

BY_NAME: Mapping[str, Calibrator] = MappingProxyType({name: kind() for name, kind in known_calibrators().items()})


Predict = Callable[[Any], Posterior]  # of what the recipe's model fits


@dataclass(frozen=True)
class Recipe:
    """One training, and the predictions that it gives, by name."""

    model: Model[Any]
    predictions: Mapping[str, Predict]


# EPFGNN is trained twice in a run, by the published schedule of EM and by ours; the pretrained backbone is the same.
RECIPES: Mapping[str, tuple[Recipe, ...]] = {
    "gcn": (Recipe(GCN(), {"product": lambda fitted: fitted.posterior()}),),
    "gat": (Recipe(GAT(), {"product": lambda fitted: fitted.posterior()}),),
    "gmnn": (
        Recipe(
            GMNN(),
            {
                "averaged_logits": lambda fitted: fitted.posterior("averaged_logits"),
                "mixture_product": lambda fitted: IndependentPosterior(fitted.posterior("mixture").node),
                "mixture": lambda fitted: fitted.posterior("mixture"),
            },
        ),
    ),
    "epfgnn": (
        Recipe(
            EPFGNN(schedule="published"),
            {
                "published_misplaced_evidence": posterior_with_misplaced_evidence,
                "published_mean_field": lambda fitted: fitted.posterior("mean_field"),
                "published_sum_product": lambda fitted: fitted.posterior("sum_product"),
            },
        ),
        Recipe(
            EPFGNN(),
            {
                "mean_field": lambda fitted: fitted.posterior("mean_field"),
                "sum_product": lambda fitted: fitted.posterior("sum_product"),
            },
        ),
    ),
    "jointgcn": (Recipe(JointGCN(), {"joint": lambda fitted: fitted.posterior()}),),
}


def hyperparameters(model: str, calibrators: tuple[str, ...] = ()) -> str:
    """Give all hyper-parameters of a model's trainings, and of calibrators, as JSON, always in the same order."""
    described: list[dict[str, Any]] = [asdict(recipe.model) for recipe in RECIPES[model]]
    if calibrators and model in CALIBRATED_MODELS:
        described.append({CALIBRATORS_ENTRY: {name: repr(BY_NAME[name]) for name in calibrators}})
    return json.dumps(described, sort_keys=True)


def calibrators_of(hyperparameters: str) -> tuple[str, ...]:
    """Give the names of the calibrators among hyper-parameters, in the order in which they are known."""
    named = {name for entry in json.loads(hyperparameters) for name in entry.get(CALIBRATORS_ENTRY, ())}
    return tuple(name for name in CALIBRATORS if name in named)


@dataclass(frozen=True)
class FittedFiles:
    """A folder of fitted models; a file's name has a hash of all that its numbers depend on."""

    folder: Path

    def path(self, model: Model[Any], key: RunKey, task: Task) -> Path:
        """Give the file of a run's training: hyper-parameters, graph, split, seed and versions decide which it is."""
        words = [model.name, asdict(model), task.fingerprint(key.split), key.fold, key.seed, versions()]
        digest = sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{key.dataset}-{model.name}-{key.split}-{key.fold}-{key.init}-{digest}.safetensors"

    def fitted(self, model: Model[Any], key: RunKey, task: Task) -> Fitted:
        """Load a trained model, or train and keep it."""
        path = self.path(model, key, task)
        if path.exists():
            return Fitted.load(path)
        fitted: Fitted = model.fit(task.data, task.splits[key.split, key.fold], seed=key.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        fitted.save(path)
        return fitted


def perform(key: RunKey, task: Task, files: FittedFiles | None = None) -> Run:
    """Train as the key says, and score every prediction on the test nodes.

    With ``files``, models that were trained before are taken from there; the seconds of a run still are those that
    training took.
    """
    calibrators = calibrators_of(key.hyperparameters)
    if key.hyperparameters != hyperparameters(key.model, calibrators):
        raise ValueError(f"Expected the hyper-parameters of this version, but got others for {key}.")
    split = task.splits[key.split, key.fold]
    started, saved, epochs = perf_counter(), 0.0, 0
    predictions: dict[str, Prediction] = {}
    for recipe in RECIPES[key.model]:
        began = perf_counter()
        if files is None:
            fitted: Fitted = recipe.model.fit(task.data, split, seed=key.seed)
        else:
            fitted = files.fitted(recipe.model, key, task)
            saved += max(0.0, fitted.history.seconds - (perf_counter() - began))
        epochs += fitted.history.epochs
        named = {name: predict(fitted) for name, predict in recipe.predictions.items()}
        if isinstance(fitted, FittedClassifier):
            named |= _calibrated(fitted, calibrators, task.data, split)
        for name, posterior in named.items():
            scored = evaluate(posterior, task.data.y, task.data.edge_index, mask=split.test, same_label=True)
            predictions[name] = as_prediction(scored)
    seconds = perf_counter() - started + saved
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(key, predictions, seconds, epochs, versions(), finished)


def _calibrated(fitted: FittedClassifier, names: Iterable[str], data: Any, split: Split) -> dict[str, Posterior]:
    """Calibrate what a classifier says, by each calibrator."""
    return {name: BY_NAME[name].fit(fitted, data, split).posterior() for name in names}
