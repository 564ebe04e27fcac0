"""Draw a graph with labels and features from a law that is known in full."""

from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from edgewise.simulation.field import LabelField
from edgewise.simulation.gibbs import draw_labels
from edgewise.simulation.random_graphs import Edges, Labels, Weights, block_edges, power_law_weights, regular_edges
from edgewise.simulation.synthetic_graph import DegreeLaw, Kind, SyntheticGraph
from edgewise.validation import ArrayLike, as_tensor, check_number, check_option, check_seed, check_whole_number

if TYPE_CHECKING:
    import torch_geometric.data

DEFAULT_HOMOPHILY = 0.8
MAX_COUPLING = 50.0
MAX_LABELINGS = 1 << 16  # that are listed
LABEL_SWEEPS = 1000

Matrix = Float[np.ndarray, "classes classes"]


def synthetic(
    num_nodes: int = 1000,
    num_classes: int = 3,
    *,
    kind: Kind = "block_model",
    homophily: float | None = None,
    coupling: float | ArrayLike | None = None,
    average_degree: float = 4.0,
    degree_law: DegreeLaw = "poisson",
    num_features: int = 16,
    feature_noise: float = 1.0,
    seed: int = 0,
) -> SyntheticGraph:
    """Draw a graph whose true joints are known.

    Parameters
    ----------
    num_nodes
        How many nodes.
    num_classes
        How many labels a node may have.
    kind
        "block_model": labels first, each class as likely as any other; then each pair is an edge with probability
        1 - exp(-w_i w_j R(y_i, y_j)), R ∝ exp J. "mrf": the graph first, whatever the labels; then labels from
        p(y) ∝ exp(Σ_edges J(y_i, y_j)), exactly on tiny graphs, elsewhere by a long Gibbs chain.
    homophily
        The share of edges whose ends agree, in expectation; 0.8 unless a coupling is given. 1 / num_classes is none,
        less is heterophily. On a random graph an MRF cannot have any homophily: from some on one label takes over
        (or, far below, labels freeze), which is refused with the limit.
    coupling
        Instead of homophily: a Potts coupling J for equal labels, or a symmetric matrix (C, C). Nothing is refused, so
        look at ``class_shares``.
    average_degree
        How many edges a node has on average. A small graph of many edges has some fewer than asked for, since there are
        no parallel ones.
    degree_law
        "poisson" (all nodes alike), "power_law" (tail exponent 2.5), and, of an MRF, "regular".
    num_features
        How many features; at least one per class. They are normal around means that are orthonormal over the classes.
    feature_noise
        Their standard deviation.
    seed
        Of graph, labels and features.

    Returns
    -------
    SyntheticGraph
        The graph as ``data``, and its ``truth()``.

    Raises
    ------
    ValueError
        If there is no such graph, or if one label of an MRF would take over.

    Examples
    --------
    >>> graph = synthetic(300, 2, homophily=0.9, seed=1)
    >>> graph
    SyntheticGraph(block_model, nodes=300, edges=588, classes=2, homophily=0.91, feature_noise=1)
    >>> posterior, report = graph.truth(sweeps=100)
    >>> posterior.joint(graph.edge_index).shape
    torch.Size([588, 2, 2])
    """
    check_options(num_nodes, num_classes, kind, degree_law, num_features, seed)
    check_numbers(homophily, average_degree, feature_noise)
    check_degree(num_nodes, kind, degree_law, average_degree)
    matrix = coupling_matrix(homophily, coupling, num_classes)
    graph_rng, label_rng, feature_rng = (np.random.default_rng([seed, stage]) for stage in range(3))
    if kind == "mrf":
        wanted = None if coupling is not None else DEFAULT_HOMOPHILY if homophily is None else homophily
        prior = _mrf_field(num_nodes, matrix, average_degree, degree_law, wanted, graph_rng)
        labels = _draw_from(prior, label_rng)
    else:
        labels = label_rng.integers(num_classes, size=num_nodes)
        prior = _block_field(labels, matrix, average_degree, degree_law, graph_rng)
    means = _orthonormal(num_classes, num_features, feature_rng)
    x = torch.from_numpy(means[labels] + feature_noise * feature_rng.standard_normal((num_nodes, num_features))).float()
    return SyntheticGraph(
        data=_data(x, prior.edge_index, torch.from_numpy(labels)),
        field=LabelField(
            prior.unary + _log_likelihoods(x, means, feature_noise),
            prior.edge_index,
            prior.coupling,
            prior.weight,
            prior.rate,
        ),
        kind=kind,
        coupling=torch.from_numpy(matrix),
        average_degree=average_degree,
        degree_law=degree_law,
        feature_means=torch.from_numpy(means),
        feature_noise=feature_noise,
        seed=seed,
    )


def _mrf_field(
    num_nodes: int,
    coupling: Matrix,
    average_degree: float,
    degree_law: DegreeLaw,
    homophily: float | None,
    rng: np.random.Generator,
) -> LabelField:
    """Draw a graph without regard to labels, and put an MRF on it."""
    if degree_law == "regular":
        edges = regular_edges(num_nodes, round(average_degree), rng)
    else:
        weights = _weights(num_nodes, degree_law, rng)
        rates = np.array([[average_degree / num_nodes]])
        edges = block_edges(np.zeros(num_nodes, dtype=np.int64), weights, rates, rng)
    if homophily is not None:
        check_disorder(homophily, len(coupling), edges, num_nodes)
    return _field(edges, coupling[None], np.zeros(num_nodes), np.zeros_like(coupling))


def _block_field(
    labels: Labels, coupling: Matrix, average_degree: float, degree_law: DegreeLaw, rng: np.random.Generator
) -> LabelField:
    """Draw a graph given labels; as a law of the labels given the graph it couples all pairs.

    A pair has an edge with probability 1 - exp(-r), r = w_i w_j R(y_i, y_j): so log P(graph | y) is
    Σ_edges log(exp r - 1) - Σ_pairs r.
    """
    weights = _weights(len(labels), degree_law, rng)
    affinity = np.exp(coupling)
    rate = average_degree / len(labels) * affinity / affinity.mean()
    edges = block_edges(labels, weights, rate, rng)
    edge_coupling = np.log(np.expm1(weights[edges].prod(0)[:, None, None] * rate))
    return _field(edges, edge_coupling, weights, rate)


def _field(edges: Edges, coupling: np.ndarray, weight: Weights, rate: Matrix) -> LabelField:
    unary = np.zeros((len(weight), len(rate)))
    return LabelField(*(torch.from_numpy(part) for part in (unary, edges, coupling, weight, rate)))


def _weights(num_nodes: int, degree_law: DegreeLaw, rng: np.random.Generator) -> Weights:
    return power_law_weights(num_nodes, rng) if degree_law == "power_law" else np.ones(num_nodes)


def _draw_from(field: LabelField, rng: np.random.Generator) -> Labels:
    """Draw labels from a field: one of all labelings where they can be listed, else the end of a long chain."""
    if field.num_classes**field.num_nodes > MAX_LABELINGS:
        return draw_labels(field, LABEL_SWEEPS, rng)
    every = np.indices([field.num_classes] * field.num_nodes).reshape(field.num_nodes, -1)
    low, high = field.edge_index.numpy()
    score = field.coupling[0].numpy()[every[low], every[high]].sum(0)
    weight = np.exp(score - score.max()).cumsum()
    chosen: Labels = every[:, np.searchsorted(weight, rng.random() * weight[-1], side="right")]
    return chosen


def _orthonormal(
    num_classes: int, num_features: int, rng: np.random.Generator
) -> Float[np.ndarray, "classes features"]:
    q, _ = np.linalg.qr(rng.standard_normal((num_features, num_classes)))
    return np.ascontiguousarray(q.T)


def _log_likelihoods(
    x: Float[Tensor, "nodes features"], means: Float[np.ndarray, "classes features"], noise: float
) -> Float[Tensor, "nodes classes"]:
    """Compute log p(x_i | y_i), with 0 for the likeliest label of each node."""
    distance = torch.cdist(x.double(), torch.from_numpy(means), compute_mode="donot_use_mm_for_euclid_dist").square()
    return (distance.amin(1, keepdim=True) - distance) / (2.0 * noise**2)


def _data(x: Tensor, edge_index: Tensor, y: Tensor) -> "torch_geometric.data.Data":
    from torch_geometric.data import Data

    return Data(x=x, edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1), y=y)


def potts_coupling(homophily: float, num_classes: int) -> float:
    """J = log(h (C - 1) / (1 - h)), the Potts coupling under which the ends of a lone edge agree with probability h.

    >>> round(potts_coupling(0.8, 2), 4), potts_coupling(0.25, 4)
    (1.3863, 0.0)
    """
    return float(np.log(homophily * (num_classes - 1) / (1.0 - homophily)))


def branching(degrees: NDArray[np.int64]) -> float:
    """Compute how many further edges an end of a random edge has, Σ k (k - 1) / Σ k; 0 without edges."""
    total = int(degrees.sum())
    return float((degrees * (degrees - 1)).sum() / total) if total else 0.0


def homophily_limits(num_classes: int, branching: float) -> tuple[float, float]:
    """Compute the least and the largest homophily that a Potts model on a random graph can have without order.

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


def coupling_matrix(homophily: float | None, coupling: float | ArrayLike | None, num_classes: int) -> Matrix:
    """Compute J (C, C) from the homophily or the coupling that was asked for."""
    if coupling is None:
        strength = potts_coupling(DEFAULT_HOMOPHILY if homophily is None else homophily, num_classes)
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
    if not (np.abs(matrix) <= MAX_COUPLING).all():
        raise ValueError(f"Expected couplings from {-MAX_COUPLING} to {MAX_COUPLING}, but got {matrix}.")
    return matrix


def check_options(num_nodes: int, num_classes: int, kind: str, degree_law: str, num_features: int, seed: int) -> None:
    """Refuse sizes, a seed and names that do not exist."""
    check_whole_number("num_nodes", num_nodes, 2, 10**8)
    check_whole_number("num_classes", num_classes, 2, 1000)
    check_whole_number("num_features", num_features, num_classes, 10**6)
    check_seed(seed)
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
