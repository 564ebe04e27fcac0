"""Draw a graph with labels and features from a known distribution."""

from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from edgewise.simulation.field import LabelDistribution
from edgewise.simulation.gibbs import gibbs_sample
from edgewise.simulation.random_graphs import Edges, Labels, Weights, block_edges, power_law_weights, regular_edges
from edgewise.simulation.synthetic_graph import DegreeLaw, Kind, SyntheticGraph
from edgewise.suggestions import suggest_keywords
from edgewise.validation import ArrayLike, as_tensor, check_number, check_option, check_seed, check_whole_number

if TYPE_CHECKING:
    import torch_geometric.data

DEFAULT_HOMOPHILY = 0.8
MAX_COUPLING = 50.0
MAX_LABELINGS = 1 << 16  # up to which labels are drawn exactly, by enumeration
LABEL_SWEEPS = 1000  # of the Gibbs chain that draws labels otherwise

Matrix = Float[np.ndarray, "classes classes"]


@suggest_keywords
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
    """Draw a random graph with labels and features whose true joints can be computed.

    Parameters
    ----------
    num_nodes
        Number of nodes.
    num_classes
        Number of classes.
    kind
        "block_model" draws uniform labels first. Then each pair is an edge with probability
        1 - exp(-w_i w_j R(y_i, y_j)), where R ∝ exp J. "mrf" draws the graph first, independently of labels, then
        labels from p(y) ∝ exp(Σ_edges J(y_i, y_j)): exactly on tiny graphs, otherwise with a long Gibbs chain.
    homophily
        Expected fraction of edges whose ends have the same label. Default: 0.8, unless ``coupling`` is passed. With
        1 / num_classes labels of neighbors are independent, less is heterophily. The range that an MRF on a random
        graph can have is limited: above it one label takes over, below it labels freeze. A value outside the range
        raises a ValueError that names the limits.
    coupling
        Alternative to ``homophily``: a Potts coupling J of equal labels, or a symmetric matrix J of shape (C, C). No
        limits are checked, so check ``class_shares``.
    average_degree
        Expected number of neighbors of a node. Small dense graphs have fewer edges, because parallel edges are removed.
    degree_law
        Degree distribution: "poisson", "power_law" (tail exponent 2.5), or "regular" (MRFs only).
    num_features
        Number of features, at least ``num_classes``. Features are normally distributed around class means, which are
        orthonormal.
    feature_noise
        Standard deviation of the features.
    seed
        Random seed of the graph, labels and features.

    Returns
    -------
    SyntheticGraph
        The graph as ``data``, and its true posterior by ``truth()``.

    Raises
    ------
    ValueError
        If no such graph exists, or if an MRF cannot have the homophily.

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
        target = None if coupling is not None else DEFAULT_HOMOPHILY if homophily is None else homophily
        prior = _mrf_prior(num_nodes, matrix, average_degree, degree_law, target, graph_rng)
        labels = _draw_labels(prior, label_rng)
    else:
        labels = label_rng.integers(num_classes, size=num_nodes)
        prior = _block_model_prior(labels, matrix, average_degree, degree_law, graph_rng)
    means = _orthonormal_means(num_classes, num_features, feature_rng)
    x = torch.from_numpy(means[labels] + feature_noise * feature_rng.standard_normal((num_nodes, num_features))).float()
    return SyntheticGraph(
        data=_make_data(x, prior.edge_index, torch.from_numpy(labels)),
        field=LabelDistribution(
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


def _mrf_prior(
    num_nodes: int,
    coupling: Matrix,
    average_degree: float,
    degree_law: DegreeLaw,
    homophily: float | None,
    rng: np.random.Generator,
) -> LabelDistribution:
    """Draw a graph independently of labels and return the MRF of labels on it."""
    if degree_law == "regular":
        edges = regular_edges(num_nodes, round(average_degree), rng)
    else:
        weights = _weights(num_nodes, degree_law, rng)
        rates = np.array([[average_degree / num_nodes]])
        edges = block_edges(np.zeros(num_nodes, dtype=np.int64), weights, rates, rng)
    if homophily is not None:
        check_homophily_limits(homophily, len(coupling), edges, num_nodes)
    return _label_distribution(edges, coupling[None], np.zeros(num_nodes), np.zeros_like(coupling))


def _block_model_prior(
    labels: Labels, coupling: Matrix, average_degree: float, degree_law: DegreeLaw, rng: np.random.Generator
) -> LabelDistribution:
    """Draw a graph given labels and return P(labels | graph), which couples all pairs.

    A pair has an edge with probability 1 - exp(-r), where r = w_i w_j R(y_i, y_j). So log P(graph | y) is
    Σ_edges log(exp r - 1) - Σ_pairs r.
    """
    weights = _weights(len(labels), degree_law, rng)
    affinity = np.exp(coupling)
    rate = average_degree / len(labels) * affinity / affinity.mean()
    edges = block_edges(labels, weights, rate, rng)
    edge_coupling = np.log(np.expm1(weights[edges].prod(0)[:, None, None] * rate))
    return _label_distribution(edges, edge_coupling, weights, rate)


def _label_distribution(edges: Edges, coupling: np.ndarray, weight: Weights, rate: Matrix) -> LabelDistribution:
    unary = np.zeros((len(weight), len(rate)))
    return LabelDistribution(*(torch.from_numpy(part) for part in (unary, edges, coupling, weight, rate)))


def _weights(num_nodes: int, degree_law: DegreeLaw, rng: np.random.Generator) -> Weights:
    return power_law_weights(num_nodes, rng) if degree_law == "power_law" else np.ones(num_nodes)


def _draw_labels(distribution: LabelDistribution, rng: np.random.Generator) -> Labels:
    """Draw labels: exactly if all labelings can be enumerated, otherwise with a long Gibbs chain."""
    if distribution.num_classes**distribution.num_nodes > MAX_LABELINGS:
        return gibbs_sample(distribution, LABEL_SWEEPS, rng)
    labelings = np.indices([distribution.num_classes] * distribution.num_nodes).reshape(distribution.num_nodes, -1)
    low, high = distribution.edge_index.numpy()
    score = distribution.coupling[0].numpy()[labelings[low], labelings[high]].sum(0)
    cumulative = np.exp(score - score.max()).cumsum()
    chosen: Labels = labelings[:, np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")]
    return chosen


def _orthonormal_means(
    num_classes: int, num_features: int, rng: np.random.Generator
) -> Float[np.ndarray, "classes features"]:
    q, _ = np.linalg.qr(rng.standard_normal((num_features, num_classes)))
    return np.ascontiguousarray(q.T)


def _log_likelihoods(
    x: Float[Tensor, "nodes features"], means: Float[np.ndarray, "classes features"], noise: float
) -> Float[Tensor, "nodes classes"]:
    """Compute log p(x_i | y_i), shifted so that the most likely label of each node has 0."""
    distance = torch.cdist(x.double(), torch.from_numpy(means), compute_mode="donot_use_mm_for_euclid_dist").square()
    return (distance.amin(1, keepdim=True) - distance) / (2.0 * noise**2)


def _make_data(x: Tensor, edge_index: Tensor, y: Tensor) -> "torch_geometric.data.Data":
    from torch_geometric.data import Data

    return Data(x=x, edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1), y=y)


def potts_coupling(homophily: float, num_classes: int) -> float:
    """Compute J = log(h (C - 1) / (1 - h)), the Potts coupling for which P(same label) of an isolated edge is h.

    >>> round(potts_coupling(0.8, 2), 4), potts_coupling(0.25, 4)
    (1.3863, 0.0)
    """
    return float(np.log(homophily * (num_classes - 1) / (1.0 - homophily)))


def mean_excess_degree(degrees: NDArray[np.int64]) -> float:
    """Compute the mean excess degree Σ k (k - 1) / Σ k: further edges at an end of a random edge. 0 without edges."""
    total = int(degrees.sum())
    return float((degrees * (degrees - 1)).sum() / total) if total else 0.0


def homophily_limits(num_classes: int, excess_degree: float) -> tuple[float, float]:
    """Compute the smallest and largest homophily of the disordered phase of a Potts model on a random graph.

    Let b be the mean excess degree. Above the largest homophily one label takes over: on a (b + 1)-regular random graph
    for exp J above (C - 2) / ((C - 1)^(1 - 2 / (b + 1)) - 1), or its limit for C = 2. Below the smallest the
    model is a spin glass: b λ² > 1, where λ = (h C - 1) / (C - 1). For b ≤ 1 the graph is nearly a forest, in which
    each edge has the homophily of an isolated edge.

    >>> homophily_limits(3, 0.9)
    (0.0, 1.0)
    >>> low, high = homophily_limits(2, 2.0)
    >>> round(low, 4), round(high, 4)
    (0.1464, 0.75)
    """
    if excess_degree <= 1.0:
        return 0.0, 1.0
    degree, others = excess_degree + 1.0, num_classes - 1
    if num_classes == 2:
        affinity = degree / (degree - 2.0)
    else:
        affinity = (num_classes - 2) / (others ** (1.0 - 2.0 / degree) - 1.0)
    least = (1.0 - others / np.sqrt(excess_degree)) / num_classes
    return max(0.0, float(least)), float(affinity / (affinity + others))


def coupling_matrix(homophily: float | None, coupling: float | ArrayLike | None, num_classes: int) -> Matrix:
    """Return J of shape (C, C) for the requested homophily or coupling."""
    if coupling is None:
        value = potts_coupling(DEFAULT_HOMOPHILY if homophily is None else homophily, num_classes)
        return value * np.eye(num_classes)
    if homophily is not None:
        raise ValueError("Expected either homophily or coupling, but got both. Pass one of them.")
    if isinstance(coupling, int | float):
        matrix = np.diag(np.full(num_classes, float(coupling)))
    else:
        matrix = as_tensor(coupling, "coupling").cpu().double().numpy()
    if matrix.shape != (num_classes, num_classes) or not np.array_equal(matrix, matrix.T):
        raise ValueError(
            f"Expected coupling to be a number or a symmetric matrix ({num_classes}, {num_classes}), but got "
            f"shape {matrix.shape}{'' if matrix.shape != (num_classes, num_classes) else ' that is not symmetric'}. "
            "Use (coupling + coupling.T) / 2 to make a square matrix symmetric."
        )
    if not (np.abs(matrix) <= MAX_COUPLING).all():
        raise ValueError(
            f"Expected couplings from {-MAX_COUPLING} to {MAX_COUPLING}, but got {matrix}. Use smaller couplings."
        )
    return matrix


def check_options(num_nodes: int, num_classes: int, kind: str, degree_law: str, num_features: int, seed: int) -> None:
    """Raise ValueError for an invalid size, seed, kind or degree distribution."""
    check_whole_number("num_nodes", num_nodes, 2, 10**8)
    check_whole_number("num_classes", num_classes, 2, 1000)
    check_whole_number("num_features", num_features, num_classes, 10**6)
    check_seed(seed)
    check_option("kind", kind, get_args(Kind))
    check_option("degree_law", degree_law, get_args(DegreeLaw))


def check_numbers(homophily: float | None, average_degree: float, feature_noise: float) -> None:
    """Raise ValueError for a number outside its range."""
    if homophily is not None:
        check_number("homophily", homophily, above=0, below=1)
    check_number("average_degree", average_degree, above=0)
    check_number("feature_noise", feature_noise, above=0)


def check_degree(num_nodes: int, kind: str, degree_law: str, average_degree: float) -> None:
    """Raise ValueError for degrees that no simple graph of the kind can have."""
    if average_degree > num_nodes - 1:
        raise ValueError(
            f"Expected average_degree to be at most {num_nodes - 1}, the number of other nodes, but got "
            f"{average_degree}. Use a lower average_degree or more nodes."
        )
    if degree_law != "regular":
        return
    if kind == "block_model":
        raise ValueError(
            "Expected degree_law 'poisson' or 'power_law' for a block model, whose edges are independent, but got "
            "'regular'. Use kind='mrf' for regular graphs."
        )
    if average_degree != round(average_degree) or round(average_degree) * num_nodes % 2:
        raise ValueError(
            f"Expected an integer average_degree with an even product average_degree * num_nodes for a regular graph, "
            f"but got {average_degree} * {num_nodes}. Use an even integer average_degree."
        )


def check_homophily_limits(homophily: float, num_classes: int, edges: Edges, num_nodes: int) -> None:
    """Raise ValueError for a homophily that an MRF on this graph cannot have without one label taking over."""
    degrees = np.bincount(edges.flatten(), minlength=num_nodes)
    least, largest = homophily_limits(num_classes, mean_excess_degree(degrees))
    if not least < homophily < largest:
        problem = "one label takes over" if homophily >= largest else "labels freeze"
        raise ValueError(
            f"Expected homophily from {least:.2f} to {largest:.2f} for an MRF of {num_classes} classes on this graph, "
            f"but got {homophily}, for which {problem}. Use kind='block_model' or a lower average_degree, or pass "
            "coupling= to skip this check."
        )
