"""Structured uncertainty on graphs: whether probabilities are right, for nodes and for pairs of neighbours.

dataset → split → probabilities → evaluate → scores → table, JSON, reliability diagram
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgewise.data import Split, load_dataset, load_splits, make_splits
    from edgewise.metrics import METRICS, VIEWS, Evaluation, evaluate
    from edgewise.metrics.module import GraphCalibration
    from edgewise.report.reliability import plot_reliability

__version__ = "0.1.0"

# Where each public name lives. They are imported when first used: `import edgewise` is quick, and whoever only scores
# predictions never waits for matplotlib or torch_geometric.
_HOMES = {
    "METRICS": "edgewise.metrics",
    "VIEWS": "edgewise.metrics",
    "Evaluation": "edgewise.metrics",
    "GraphCalibration": "edgewise.metrics.module",
    "Split": "edgewise.data",
    "evaluate": "edgewise.metrics",
    "load_dataset": "edgewise.data",
    "load_splits": "edgewise.data",
    "make_splits": "edgewise.data",
    "plot_reliability": "edgewise.report.reliability",
}

__all__ = [
    "METRICS",
    "VIEWS",
    "Evaluation",
    "GraphCalibration",
    "Split",
    "evaluate",
    "load_dataset",
    "load_splits",
    "make_splits",
    "plot_reliability",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
