"""Pairwise Markov random fields and algorithms that compute their marginals."""

from edgewise.inference.bethe import bethe_free_energy
from edgewise.inference.exact import exact_marginals
from edgewise.inference.mean_field import mean_field
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.propagation import max_product, sum_product
from edgewise.posterior import Convergence

__all__ = [
    "Convergence",
    "PairwiseMRF",
    "bethe_free_energy",
    "exact_marginals",
    "max_product",
    "mean_field",
    "sum_product",
]
