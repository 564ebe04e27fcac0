"""Plots of evaluations: reliability diagrams and risk-coverage curves."""

from edgewise.plots.reliability import plot_reliability
from edgewise.plots.risk_coverage_plot import plot_risk_coverage

__all__ = ["plot_reliability", "plot_risk_coverage"]
