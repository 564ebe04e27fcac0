"""How each model is trained, and which of its predictions are scored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgewise.experiments.misplaced_evidence import posterior_with_misplaced_evidence
from edgewise.experiments.plan import CALIBRATORS_ENTRY
from edgewise.experiments.readings import CALIBRATED_MODELS, CALIBRATORS
from edgewise.models import EPFGNN, GAT, GCN, GMNN, JointGCN
from edgewise.models.model import Model
from edgewise.posterior import IndependentPosterior, Posterior

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
        from edgewise.experiments.calibrators import BY_NAME

        described.append({CALIBRATORS_ENTRY: {name: repr(BY_NAME[name]) for name in calibrators}})
    return json.dumps(described, sort_keys=True)


def calibrators_of(hyperparameters: str) -> tuple[str, ...]:
    """Give the names of the calibrators among hyper-parameters, in the order in which they are known."""
    named = {name for entry in json.loads(hyperparameters) for name in entry.get(CALIBRATORS_ENTRY, ())}
    return tuple(name for name in CALIBRATORS if name in named)
