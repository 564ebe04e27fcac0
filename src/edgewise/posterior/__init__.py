"""What a model believes about the labels of a graph: each node's marginal, and the joint of nodes."""

from edgewise.posterior.belief import MAX_ENTRIES, MAX_SET, Convergence, Posterior
from edgewise.posterior.independent import Belief, HasPosterior, IndependentPosterior, as_posterior
from edgewise.posterior.mixture import MixturePosterior
from edgewise.posterior.pairwise import PairwisePosterior

__all__ = [
    "MAX_ENTRIES",
    "MAX_SET",
    "Belief",
    "Convergence",
    "HasPosterior",
    "IndependentPosterior",
    "MixturePosterior",
    "PairwisePosterior",
    "Posterior",
    "as_posterior",
]
