"""Pairwise Markov random fields and algorithms that compute their marginals."""

from edgewise.inference.bethe import bethe_free_energy
from edgewise.inference.exact import exact_marginals
from edgewise.inference.infer import infer, map_labels
from edgewise.inference.junction_tree import ExactPosterior
from edgewise.inference.mean_field import mean_field
from edgewise.inference.mrf import PairwiseMRF
from edgewise.inference.propagation import max_product, sum_product
from edgewise.inference.tree_reweighted import tree_reweighted
from edgewise.inference.uai import read_uai, write_uai
from edgewise.posterior import Convergence

__all__ = [
    "Convergence",
    "ExactPosterior",
    "PairwiseMRF",
    "bethe_free_energy",
    "exact_marginals",
    "infer",
    "map_labels",
    "max_product",
    "mean_field",
    "read_uai",
    "sum_product",
    "tree_reweighted",
    "write_uai",
]
