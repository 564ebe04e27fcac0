"""Random simple graphs: degree-corrected block models and regular graphs."""

import numpy as np
from jaxtyping import Float, Int

POWER_LAW_EXPONENT = 2.5  # P(degree > k) ∝ k^(1 - exponent)
MAX_REWIRING_ROUNDS = 1000

Edges = Int[np.ndarray, "2 edges"]
Labels = Int[np.ndarray, " nodes"]
Weights = Float[np.ndarray, " nodes"]
Rates = Float[np.ndarray, "classes classes"]


def power_law_weights(num_nodes: int, rng: np.random.Generator) -> Weights:
    """Draw weights with a power-law tail, truncated at √N so that no edge is certain, and divide them by their mean."""
    weights = rng.random(num_nodes) ** (-1.0 / (POWER_LAW_EXPONENT - 1.0))
    weights = np.minimum(weights, np.sqrt(num_nodes))
    normalized: Weights = weights / weights.mean()
    return normalized


def block_edges(labels: Labels, weights: Weights, rates: Rates, rng: np.random.Generator) -> Edges:
    """Draw each pair as an edge with probability 1 - exp(-w_i w_j R(y_i, y_j)), in O(N + E).

    A pair is an edge if Poisson(w_i w_j R) is positive. For each pair of classes, the total number of draws is Poisson
    distributed, and each draw selects both ends in proportion to their weights. Repeated pairs and self-loops are
    removed.
    """
    pairs = []
    members = [np.flatnonzero(labels == label) for label in range(len(rates))]
    totals = np.array([weights[nodes].sum() for nodes in members])
    for low, low_members in enumerate(members):
        for high in range(low, len(members)):
            expected = rates[low, high] * totals[low] * totals[high] * (0.5 if low == high else 1.0)
            num = rng.poisson(expected)
            pairs.append(np.stack([_draw_nodes(nodes, weights, num, rng) for nodes in (low_members, members[high])]))
    return _simplify(np.concatenate(pairs, axis=1), len(labels))


def regular_edges(num_nodes: int, degree: int, rng: np.random.Generator) -> Edges:
    """Draw a regular graph: pair half-edges at random, then swap ends with random edges until the graph is simple.

    The distribution is close to uniform over regular graphs, but not exactly uniform. For a dense graph the complement
    is drawn.
    """
    if 2 * degree > num_nodes - 1:
        complement = regular_edges(num_nodes, num_nodes - 1 - degree, rng)
        low, high = np.triu_indices(num_nodes, 1)
        is_edge = ~np.isin(low * num_nodes + high, complement[0] * num_nodes + complement[1])
        return np.stack([low[is_edge], high[is_edge]])
    edges = rng.permutation(np.repeat(np.arange(num_nodes), degree)).reshape(2, -1)
    for _ in range(MAX_REWIRING_ROUNDS):
        bad = _find_invalid_edges(edges, num_nodes)
        if not len(bad):
            return _simplify(edges, num_nodes)
        for edge, other in zip(bad, rng.integers(edges.shape[1], size=len(bad)), strict=True):
            edges[1, [edge, other]] = edges[1, [other, edge]]
    raise ValueError(
        f"Expected a degree for which a random regular graph can be drawn, but drawing one with {num_nodes} nodes of "
        f"degree {degree} failed. Use a lower average_degree."
    )


def _draw_nodes(nodes: Labels, weights: Weights, num: int, rng: np.random.Generator) -> Labels:
    """Draw nodes in proportion to their weights."""
    if not num:
        return np.zeros(0, dtype=np.int64)
    cumulative = weights[nodes].cumsum()
    index = np.searchsorted(cumulative, rng.random(num) * cumulative[-1], side="right")
    chosen: Labels = nodes[np.minimum(index, len(nodes) - 1)]
    return chosen


def _simplify(pairs: Edges, num_nodes: int) -> Edges:
    """Remove self-loops and repeated edges, and sort by (low, high)."""
    low, high = pairs.min(0), pairs.max(0)
    keys = np.unique((low * num_nodes + high)[low < high])
    return np.stack([keys // num_nodes, keys % num_nodes])


def _find_invalid_edges(edges: Edges, num_nodes: int) -> Int[np.ndarray, " invalid"]:
    """Return the indices of self-loops and of all but one of each set of parallel edges."""
    low, high = edges.min(0), edges.max(0)
    first = np.zeros(edges.shape[1], dtype=bool)
    first[np.unique(low * num_nodes + high, return_index=True)[1]] = True
    invalid: Int[np.ndarray, " invalid"] = np.flatnonzero(~first | (low == high))
    return invalid
