"""Structured uncertainty on graphs: whether probabilities are right, for nodes and for pairs of neighbours.

dataset → split → model.fit → posterior → evaluate → scores → table, JSON, reliability diagram
"""

from importlib import import_module
from typing import TYPE_CHECKING

from edgewise.version import __version__

if TYPE_CHECKING:
    from edgewise.data import Split, load_dataset, load_splits, make_splits
    from edgewise.inference import (
        Convergence,
        PairwiseMRF,
        bethe_free_energy,
        exact_marginals,
        max_product,
        mean_field,
        sum_product,
    )
    from edgewise.metrics import METRICS, VIEWS, Evaluation, evaluate
    from edgewise.metrics.module import GraphCalibration
    from edgewise.models import EPFGNN, GAT, GCN, GMNN, Epoch, Fitted, History, Seeds, wrap
    from edgewise.posterior import IndependentPosterior, MixturePosterior, PairwisePosterior, Posterior
    from edgewise.report.reliability import plot_reliability

# Where each public name lives. They are imported when first used: `import edgewise` is quick, and whoever only scores
# predictions never waits for matplotlib or torch_geometric.
_HOMES = {
    "EPFGNN": "edgewise.models",
    "GAT": "edgewise.models",
    "GCN": "edgewise.models",
    "GMNN": "edgewise.models",
    "METRICS": "edgewise.metrics",
    "VIEWS": "edgewise.metrics",
    "Convergence": "edgewise.inference",
    "Epoch": "edgewise.models",
    "Evaluation": "edgewise.metrics",
    "Fitted": "edgewise.models",
    "GraphCalibration": "edgewise.metrics.module",
    "History": "edgewise.models",
    "IndependentPosterior": "edgewise.posterior",
    "MixturePosterior": "edgewise.posterior",
    "PairwiseMRF": "edgewise.inference",
    "PairwisePosterior": "edgewise.posterior",
    "Posterior": "edgewise.posterior",
    "Seeds": "edgewise.models",
    "Split": "edgewise.data",
    "bethe_free_energy": "edgewise.inference",
    "evaluate": "edgewise.metrics",
    "exact_marginals": "edgewise.inference",
    "load_dataset": "edgewise.data",
    "load_splits": "edgewise.data",
    "make_splits": "edgewise.data",
    "max_product": "edgewise.inference",
    "mean_field": "edgewise.inference",
    "plot_reliability": "edgewise.report.reliability",
    "sum_product": "edgewise.inference",
    "wrap": "edgewise.models",
}

__all__ = [
    "EPFGNN",
    "GAT",
    "GCN",
    "GMNN",
    "METRICS",
    "VIEWS",
    "Convergence",
    "Epoch",
    "Evaluation",
    "Fitted",
    "GraphCalibration",
    "History",
    "IndependentPosterior",
    "MixturePosterior",
    "PairwiseMRF",
    "PairwisePosterior",
    "Posterior",
    "Seeds",
    "Split",
    "__version__",
    "bethe_free_energy",
    "evaluate",
    "exact_marginals",
    "load_dataset",
    "load_splits",
    "make_splits",
    "max_product",
    "mean_field",
    "plot_reliability",
    "sum_product",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
