"""What may be asked of a synthetic graph: checked at the door, and turned into a coupling."""

from typing import get_args

import numpy as np
from jaxtyping import Float

from edgewise.data.arrays import ArrayLike, as_tensor
from edgewise.data.options import check_number, check_option, check_whole_number
from edgewise.simulation.graph import DegreeLaw, Kind
from edgewise.simulation.homophily import branching, coupling_of, homophily_limits
from edgewise.simulation.random_graphs import Edges

DEFAULT_HOMOPHILY = 0.8
LARGEST_COUPLING = 50.0

Matrix = Float[np.ndarray, "classes classes"]


def coupling_matrix(homophily: float | None, coupling: float | ArrayLike | None, num_classes: int) -> Matrix:
    """Give J (C, C) of what was asked for."""
    if coupling is None:
        strength = coupling_of(DEFAULT_HOMOPHILY if homophily is None else homophily, num_classes)
        return strength * np.eye(num_classes)
    if homophily is not None:
        raise ValueError("Expected either homophily or coupling, but got both. Each follows from the other.")
    if isinstance(coupling, int | float):
        matrix = np.diag(np.full(num_classes, float(coupling)))
    else:
        matrix = as_tensor(coupling, "coupling").cpu().double().numpy()
    if matrix.shape != (num_classes, num_classes) or not np.array_equal(matrix, matrix.T):
        raise ValueError(
            f"Expected coupling as a number or a symmetric matrix ({num_classes}, {num_classes}), but got shape "
            f"{matrix.shape}{'' if matrix.shape != (num_classes, num_classes) else ' that is not symmetric'}."
        )
    if not (np.abs(matrix) <= LARGEST_COUPLING).all():
        raise ValueError(f"Expected couplings from {-LARGEST_COUPLING} to {LARGEST_COUPLING}, but got {matrix}.")
    return matrix


def check_options(num_nodes: int, num_classes: int, kind: str, degree_law: str, num_features: int, seed: int) -> None:
    """Refuse sizes, a seed and names that do not exist."""
    check_whole_number("num_nodes", num_nodes, 2, 10**8)
    check_whole_number("num_classes", num_classes, 2, 1000)
    check_whole_number("num_features", num_features, num_classes, 10**6)
    check_whole_number("seed", seed, 0, 2**63 - 1)
    check_option("kind", kind, get_args(Kind))
    check_option("degree_law", degree_law, get_args(DegreeLaw))


def check_numbers(homophily: float | None, average_degree: float, feature_noise: float) -> None:
    """Refuse numbers outside their range."""
    if homophily is not None:
        check_number("homophily", homophily, above=0, below=1)
    check_number("average_degree", average_degree, above=0)
    check_number("feature_noise", feature_noise, above=0)


def check_degree(num_nodes: int, kind: str, degree_law: str, average_degree: float) -> None:
    """Refuse degrees that no simple graph of the kind has."""
    if average_degree > num_nodes - 1:
        raise ValueError(
            f"Expected average_degree of at most {num_nodes - 1}, the number of other nodes, but got {average_degree}."
        )
    if degree_law != "regular":
        return
    if kind == "block_model":
        raise ValueError(
            "Expected degree_law poisson or power_law for a block model, but got 'regular': edges of a block model are "
            "independent. Use kind='mrf'."
        )
    if average_degree != round(average_degree) or round(average_degree) * num_nodes % 2:
        raise ValueError(
            f"Expected a whole average_degree, and an even number of ends of edges, for a regular graph, but got "
            f"degree {average_degree} of {num_nodes} nodes."
        )


def check_disorder(homophily: float, num_classes: int, edges: Edges, num_nodes: int) -> None:
    """Refuse a homophily that labels of an MRF on this graph could not have while all classes live."""
    degrees = np.bincount(edges.flatten(), minlength=num_nodes)
    least, largest = homophily_limits(num_classes, branching(degrees))
    if not least < homophily < largest:
        what = "one label takes over" if homophily >= largest else "labels freeze"
        raise ValueError(
            f"Expected homophily from {least:.2f} to {largest:.2f} for an MRF of {num_classes} classes on this graph, "
            f"but got {homophily}: beyond, {what}. Use kind='block_model', a lower average_degree, or coupling= to "
            "have it nevertheless."
        )
