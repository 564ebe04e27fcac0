"""The field that the published EPFGNN rows were inferred from: labels of training nodes at the wrong nodes."""

import torch

from edgewise.inference import PairwiseMRF, max_product
from edgewise.models.epfgnn import FittedEPFGNN
from edgewise.posterior import IndependentPosterior

FORBIDDEN = 1e5  # the energy that wrong labels were meant to have
LARGEST_ENERGY = 20.0
SWEEPS = 100


def posterior_with_misplaced_evidence(fitted: FittedEPFGNN) -> IndependentPosterior:
    """Infer as the published LBP rows did: max-product, and each edge's joint the product of its ends."""
    beliefs, _ = max_product(field_with_misplaced_evidence(fitted), max_sweeps=SWEEPS)
    return IndependentPosterior(beliefs.node)


def field_with_misplaced_evidence(fitted: FittedEPFGNN) -> PairwiseMRF:
    """Put evidence where the published code put it.

    There, in `loopy_bp` of the EPFGNN in src/model/model.py, the energies of all labels of a training node are raised,
    and then that of its own label is to be put back; but the k-th training node's is written to row k. So training
    nodes have no evidence of their own. The first nodes of the graph, as many as there are training nodes, have the
    energy of one label replaced by that of a training node: tested ones are moved towards a stranger's label, or away
    from it, and training nodes among them are all but clamped to it. Which nodes these are depends on how nodes are
    numbered, and bundled Cora is numbered otherwise than Planetoid's.
    """
    energy, known, labels = -fitted.unary, fitted.known, fitted.known_labels
    of_truth = energy[known, labels]
    energy[known] = FORBIDDEN
    energy[torch.arange(len(known), device=known.device), labels] = of_truth
    least = energy.amin(dim=1, keepdim=True)
    unary = -(energy - least).clamp(max=LARGEST_ENERGY)
    return PairwiseMRF(unary, fitted.edge_index, fitted.coupling, edge_scale=fitted.edge_scale)
