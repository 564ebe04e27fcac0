"""How models are trained for the paper where that is not their default, and the paper's plan.

The published EPFGNN rows come from another schedule of EM, and from inference with evidence at the wrong nodes.
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
from edgewise.sweep.plan import Plan, Predictions, Training
from edgewise.sweep.sources import FOLDS

FORBIDDEN_ENERGY = 1e5  # that wrong labels were meant to have
MAX_ENERGY = 20.0
MAX_SWEEPS = 100


def posterior_with_misplaced_evidence(fitted: FittedEPFGNN) -> IndependentPosterior:
    """Infer as the published LBP rows did: max-product, and each edge's joint the product of its ends."""
    beliefs, _ = max_product(mrf_with_misplaced_evidence(fitted), max_sweeps=MAX_SWEEPS)
    return IndependentPosterior(beliefs.node)


def mrf_with_misplaced_evidence(fitted: FittedEPFGNN) -> PairwiseMRF:
    """Put evidence where the published code put it.

    There, in `loopy_bp` of the EPFGNN in src/model/model.py, the energies of all labels of a training node are raised,
    and then that of its own label is to be put back; but the k-th training node's is written to row k. So training
    nodes have no evidence of their own. The first nodes of the graph, as many as there are training nodes, have the
    energy of one label replaced by that of a training node: tested ones are moved towards a stranger's label, or away
    from it, and training nodes among them are all but clamped to it. Which nodes these are depends on how nodes are
    numbered, and bundled Cora is numbered differently from Planetoid's.
    """
    energy, known, labels = -fitted.unary, fitted.known, fitted.known_labels
    of_truth = energy[known, labels]
    energy[known] = FORBIDDEN_ENERGY
    energy[torch.arange(len(known), device=known.device), labels] = of_truth
    least = energy.amin(dim=1, keepdim=True)
    unary = -(energy - least).clamp(max=MAX_ENERGY)
    return PairwiseMRF(unary, fitted.edge_index, fitted.coupling, edge_scale=fitted.edge_scale)


def published_epfgnn_predictions(fitted: FittedEPFGNN) -> Predictions:
    """Return what the published rows are made of, before what the model offers itself."""
    return {"published_misplaced_evidence": partial(posterior_with_misplaced_evidence, fitted), **fitted.predictions()}


# EPFGNN is trained twice in a run, by the published schedule of EM and by ours; the pretrained backbone is the same.
RECIPES: Mapping[str, tuple[Training, ...]] = {
    "epfgnn": (Training(EPFGNN(schedule="published"), published_epfgnn_predictions), Training(EPFGNN())),
}


def paper_plan(
    datasets: Iterable[str] = DATASETS,
    models: Iterable[str] = MODELS,
    splits: int = 5,
    folds: int = FOLDS,
    inits: int = 5,
    calibrators: Iterable[str] = (),
) -> Plan:
    """Plan runs by the paper's protocol: 900 of them are the paper. Calibrators are put in the order of its tables."""
    named = list(calibrators)
    if "all" in named:
        named = [name for name in (*named, *known_calibrators()) if name != "all"]
    ordered = tuple(sort_known_first(CALIBRATORS, named))
    return Plan(tuple(datasets), tuple(models), splits, folds, inits, ordered, RECIPES)
