"""Posteriors over the labels of a graph: node marginals, and joints of edges and node sets."""

from edgewise.posterior.belief import MAX_ENTRIES, MAX_SET, Posterior
from edgewise.posterior.diagnostics import ClampingCost, Convergence, Sample, Sampling, SlowClampingWarning
from edgewise.posterior.independent import Belief, HasPosterior, IndependentPosterior, as_posterior
from edgewise.posterior.mixture import MixturePosterior
from edgewise.posterior.pairwise import PairwisePosterior

__all__ = [
    "MAX_ENTRIES",
    "MAX_SET",
    "Belief",
    "ClampingCost",
    "Convergence",
    "HasPosterior",
    "IndependentPosterior",
    "MixturePosterior",
    "PairwisePosterior",
    "Posterior",
    "Sample",
    "Sampling",
    "SlowClampingWarning",
    "as_posterior",
]
