"""How strongly neighbours must be coupled for the homophily that is wanted, and when one label would take over."""

import numpy as np
from numpy.typing import NDArray


def coupling_of(homophily: float, num_classes: int) -> float:
    """Give the Potts coupling J under which the ends of a lone edge agree with probability h: log(h (C - 1) / (1 - h)).

    >>> round(coupling_of(0.8, 2), 4), coupling_of(0.25, 4)
    (1.3863, 0.0)
    """
    return float(np.log(homophily * (num_classes - 1) / (1.0 - homophily)))


def branching(degrees: NDArray[np.int64]) -> float:
    """Give how many further edges an end of a random edge has, Σ k (k - 1) / Σ k; 0 without edges."""
    total = int(degrees.sum())
    return float((degrees * (degrees - 1)).sum() / total) if total else 0.0


def homophily_limits(num_classes: int, branching: float) -> tuple[float, float]:
    """Give the least and the largest homophily that a Potts model on a random graph can have without order.

    Above the largest one label takes over: on a (b + 1)-regular random graph from exp J = (C - 2) / ((C - 1)^(1 - 2 /
    (b + 1)) - 1) on. Below the least the graph is frustrated (a spin glass): b λ² > 1, where λ = (h C - 1) / (C - 1).
    With b ≤ 1 the graph is nearly a forest, where each edge has the homophily of a lone edge.

    >>> homophily_limits(3, 0.9)
    (0.0, 1.0)
    >>> low, high = homophily_limits(2, 2.0)
    >>> round(low, 4), round(high, 4)
    (0.1464, 0.75)
    """
    if branching <= 1.0:
        return 0.0, 1.0
    degree, others = branching + 1.0, num_classes - 1
    if num_classes == 2:
        affinity = degree / (degree - 2.0)
    else:
        affinity = (num_classes - 2) / (others ** (1.0 - 2.0 / degree) - 1.0)
    least = (1.0 - others / np.sqrt(branching)) / num_classes
    return max(0.0, float(least)), float(affinity / (affinity + others))
