"""The command line: each command parses, calls one function, and prints.

Help must come at once: what imports torch, pyarrow, rich or matplotlib is imported by the function that needs it.
"""

from edgewise.cli import calibrate, datasets, evaluate, predict, report, reproduce, study
from edgewise.cli.app import app

__all__ = ["app", "calibrate", "datasets", "evaluate", "predict", "report", "reproduce", "study"]
