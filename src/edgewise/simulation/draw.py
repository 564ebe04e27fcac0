"""Draw a graph with labels and features from a law that is known in full."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.data.arrays import ArrayLike
from edgewise.simulation.field import LabelField
from edgewise.simulation.gibbs import drawn_labels
from edgewise.simulation.graph import DegreeLaw, Kind, SyntheticGraph
from edgewise.simulation.options import (
    DEFAULT_HOMOPHILY,
    Matrix,
    check_degree,
    check_disorder,
    check_numbers,
    check_options,
    coupling_matrix,
)
from edgewise.simulation.random_graphs import (
    Edges,
    Labels,
    Weights,
    block_edges,
    power_law_weights,
    regular_edges,
)

if TYPE_CHECKING:
    import torch_geometric.data

ENUMERABLE = 1 << 16  # labellings
LABEL_SWEEPS = 1000


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
        How many features; at least one a class. They are normal around means that are orthonormal over the classes.
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
        prior = _free_field(num_nodes, matrix, average_degree, degree_law, wanted, graph_rng)
        labels = _labels_of(prior, label_rng)
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


def _free_field(
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
    told = np.log(np.expm1(weights[edges].prod(0)[:, None, None] * rate))
    return _field(edges, told, weights, rate)


def _field(edges: Edges, coupling: np.ndarray, weight: Weights, rate: Matrix) -> LabelField:
    unary = np.zeros((len(weight), len(rate)))
    return LabelField(*(torch.from_numpy(part) for part in (unary, edges, coupling, weight, rate)))


def _weights(num_nodes: int, degree_law: DegreeLaw, rng: np.random.Generator) -> Weights:
    return power_law_weights(num_nodes, rng) if degree_law == "power_law" else np.ones(num_nodes)


def _labels_of(field: LabelField, rng: np.random.Generator) -> Labels:
    """Draw labels from a field: one of all labellings where they can be listed, else the end of a long chain."""
    if field.num_classes**field.num_nodes > ENUMERABLE:
        return drawn_labels(field, LABEL_SWEEPS, rng)
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
    """Give log p(x_i | y_i), the likeliest label of each node at 0."""
    distance = torch.cdist(x.double(), torch.from_numpy(means), compute_mode="donot_use_mm_for_euclid_dist").square()
    return (distance.amin(1, keepdim=True) - distance) / (2.0 * noise**2)


def _data(x: Tensor, edge_index: Tensor, y: Tensor) -> "torch_geometric.data.Data":
    from torch_geometric.data import Data

    return Data(x=x, edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1), y=y)
