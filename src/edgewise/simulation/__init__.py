"""Synthetic graphs with labels from a known distribution, whose true joints can be computed."""

from edgewise.simulation.draw import synthetic
from edgewise.simulation.gibbs import TruthReport
from edgewise.simulation.synthetic_graph import SyntheticGraph

__all__ = ["SyntheticGraph", "TruthReport", "synthetic"]
