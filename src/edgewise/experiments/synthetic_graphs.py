"""Synthetic graphs of experiments: block models of one size, whose names tell their homophily (synthetic-0.3)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_geometric.data import Data

PREFIX = "synthetic-"
NUM_NODES, NUM_CLASSES = 2000, 4
AVERAGE_DEGREE = 4.0  # about Cora's
NUM_FEATURES, FEATURE_NOISE = 16, 1.0  # features alone tell the class of about six nodes in ten
SEED = 0  # of the graph; splits and initialisations have their own
SIZE_IN_WORDS = (
    f"{NUM_NODES:,} nodes in {NUM_CLASSES} classes, {AVERAGE_DEGREE:g} edges a node, and {NUM_FEATURES} normal features"
)


def homophily_of_name(name: str) -> float | None:
    """Read the homophily in a name, between 0 and 1; None if it is the name of nothing.

    >>> homophily_of_name("synthetic-0.3"), homophily_of_name("synthetic-2"), homophily_of_name("cora")
    (0.3, None, None)
    """
    try:
        homophily = float(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else 0.0
    except ValueError:
        return None
    return homophily if 0.0 < homophily < 1.0 else None


def synthetic_name(homophily: float) -> str:
    """Write a homophily as a name, always the same way.

    >>> synthetic_name(0.30)
    'synthetic-0.3'
    """
    return f"{PREFIX}{homophily}"


def draw_graph(homophily: float) -> "Data":
    """Draw the graph of a homophily: the same one each time."""
    from edgewise.simulation import synthetic

    graph = synthetic(
        NUM_NODES,
        NUM_CLASSES,
        kind="block_model",
        homophily=homophily,
        average_degree=AVERAGE_DEGREE,
        num_features=NUM_FEATURES,
        feature_noise=FEATURE_NOISE,
        seed=SEED,
    )
    return graph.data
