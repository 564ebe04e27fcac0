"""Training recipes of the paper that differ from the defaults, and the plan of its runs.

The published EPFGNN rows use a different EM schedule, and inference with evidence at the wrong nodes.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import torch

from edgewise.calibration import known_calibrators
from edgewise.inference import PairwiseMRF, max_product
from edgewise.models.epfgnn import EPFGNN, FittedEPFGNN
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import CALIBRATORS, MODELS, sort_known_first
from edgewise.posterior import IndependentPosterior
from edgewise.sweep.own_models import OwnModel
from edgewise.sweep.plan import Plan, Predictions, Training
from edgewise.sweep.sources import FOLDS

FORBIDDEN_ENERGY = 1e5  # intended energy of the wrong labels of training nodes
MAX_ENERGY = 20.0
MAX_SWEEPS = 100


def posterior_with_misplaced_evidence(fitted: FittedEPFGNN) -> IndependentPosterior:
    """Infer as the published LBP rows did: max-product with misplaced evidence, and product joints."""
    beliefs, _ = max_product(mrf_with_misplaced_evidence(fitted), max_sweeps=MAX_SWEEPS, damping=0.0)
    return IndependentPosterior(beliefs.node)


def mrf_with_misplaced_evidence(fitted: FittedEPFGNN) -> PairwiseMRF:
    """Return the MRF with the evidence where the published code puts it.

    In `loopy_bp` of the EPFGNN in src/model/model.py of the published code, the energies of all labels of the training
    nodes are raised, and the energy of the true label is meant to be restored. But that of the k-th training node is
    written to row k, not to the row of the node. So training nodes have no evidence of their own. With n training
    nodes, each of the first n nodes of the graph has the energy of one label replaced by that of a training node. Test
    nodes among them are pushed towards or away from an unrelated label, and training nodes among them are almost
    clamped to it. Which nodes are affected depends on the node order, and the bundled Cora is ordered differently from
    Planetoid's.
    """
    energy, known, labels = -fitted.unary, fitted.known, fitted.known_labels
    true_energy = energy[known, labels]
    energy[known] = FORBIDDEN_ENERGY
    energy[torch.arange(len(known), device=known.device), labels] = true_energy
    lowest = energy.amin(dim=1, keepdim=True)
    unary = -(energy - lowest).clamp(max=MAX_ENERGY)
    return PairwiseMRF(unary, fitted.edge_index, fitted.coupling, edge_scale=fitted.edge_scale)


def published_epfgnn_predictions(fitted: FittedEPFGNN) -> Predictions:
    """Return the prediction of the published LBP rows, followed by the predictions of the model itself."""
    return {"published_misplaced_evidence": partial(posterior_with_misplaced_evidence, fitted), **fitted.predictions()}


# EPFGNN is trained twice per run, by the published EM schedule and by ours, with the same pretrained backbone.
RECIPES: Mapping[str, tuple[Training, ...]] = {
    "epfgnn": (Training(EPFGNN(schedule="published"), published_epfgnn_predictions), Training(EPFGNN())),
}


def paper_plan(
    datasets: Iterable[str] = DATASETS,
    models: Iterable[str | OwnModel] = MODELS,
    splits: int = 5,
    folds: int = FOLDS,
    inits: int = 5,
    calibrators: Iterable[str] = (),
) -> Plan:
    """Return a plan by the paper's protocol, by default its 900 runs. Calibrators are sorted as in the tables."""
    models, names = list(models), list(calibrators)
    if "all" in names:
        names = [name for name in (*names, *known_calibrators()) if name != "all"]
    ordered = tuple(sort_known_first(CALIBRATORS, names))
    own = {model.name: model for model in models if isinstance(model, OwnModel)}
    model_names = tuple(model.name if isinstance(model, OwnModel) else model for model in models)
    return Plan(tuple(datasets), model_names, splits, folds, inits, ordered, {**RECIPES, **own})
