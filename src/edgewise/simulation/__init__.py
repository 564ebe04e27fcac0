"""Graphs whose labels are drawn from a known law, so that the true joints can be computed."""

from edgewise.simulation.draw import synthetic
from edgewise.simulation.gibbs import TruthReport
from edgewise.simulation.synthetic_graph import SyntheticGraph

__all__ = ["SyntheticGraph", "TruthReport", "synthetic"]
