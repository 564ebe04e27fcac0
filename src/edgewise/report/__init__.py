"""What a person looks at: figures drawn from evaluations."""

from edgewise.report.reliability import plot_reliability

__all__ = ["plot_reliability"]
