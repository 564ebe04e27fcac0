"""Graphs whose labels are drawn from a known law, so that the true joints can be computed."""

from edgewise.simulation.draw import synthetic
from edgewise.simulation.graph import SyntheticGraph
from edgewise.simulation.truth_report import TruthReport

__all__ = ["SyntheticGraph", "TruthReport", "synthetic"]
