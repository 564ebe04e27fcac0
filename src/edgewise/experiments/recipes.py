"""How each model of the paper is trained, and which of its predictions are scored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgewise.experiments.misplaced_evidence import posterior_with_misplaced_evidence
from edgewise.models import EPFGNN, GAT, GCN, GMNN
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
}


def hyperparameters(model: str) -> str:
    """Give all hyper-parameters of a model's trainings as JSON, always in the same order."""
    return json.dumps([asdict(recipe.model) for recipe in RECIPES[model]], sort_keys=True)
