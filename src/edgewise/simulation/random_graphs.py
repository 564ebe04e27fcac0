"""Random simple graphs with a degree law, with and without blocks."""

import numpy as np
from jaxtyping import Float, Int

EXPONENT = 2.5  # of the power law: P(degree > k) falls like k^(1 - exponent)
MAX_ROUNDS = 1000

Edges = Int[np.ndarray, "2 edges"]
Labels = Int[np.ndarray, " nodes"]
Weights = Float[np.ndarray, " nodes"]
Rates = Float[np.ndarray, "classes classes"]


def power_law_weights(num_nodes: int, rng: np.random.Generator) -> Weights:
    """Draw weights of mean 1 whose tail falls like a power law, cut off at √N so that no edge is certain."""
    weights = rng.random(num_nodes) ** (-1.0 / (EXPONENT - 1.0))
    weights = np.minimum(weights, np.sqrt(num_nodes))
    normalized: Weights = weights / weights.mean()
    return normalized


def block_edges(labels: Labels, weights: Weights, rates: Rates, rng: np.random.Generator) -> Edges:
    """Draw each pair as an edge with probability 1 - exp(-w_i w_j R(y_i, y_j)), in O(N + E).

    A pair is an edge if it is hit at all by Poisson(w_i w_j R) throws: for two classes together a Poisson number of
    throws, both ends chosen in proportion to their weights. Throws at a node and itself are lost.
    """
    thrown = []
    members = [np.flatnonzero(labels == label) for label in range(len(rates))]
    totals = np.array([weights[nodes].sum() for nodes in members])
    for low, some in enumerate(members):
        for high in range(low, len(members)):
            expected = rates[low, high] * totals[low] * totals[high] * (0.5 if low == high else 1.0)
            num = rng.poisson(expected)
            thrown.append(np.stack([_draw_nodes(nodes, weights, num, rng) for nodes in (some, members[high])]))
    return _simple(np.concatenate(thrown, axis=1), len(labels))


def regular_edges(num_nodes: int, degree: int, rng: np.random.Generator) -> Edges:
    """Draw a graph of equal degrees: match stubs, then exchange ends with random edges until it is simple.

    It is close to uniform over such graphs, not exactly so. Of a dense graph the pairs without an edge are drawn.
    """
    if 2 * degree > num_nodes - 1:
        without = regular_edges(num_nodes, num_nodes - 1 - degree, rng)
        low, high = np.triu_indices(num_nodes, 1)
        is_edge = ~np.isin(low * num_nodes + high, without[0] * num_nodes + without[1])
        return np.stack([low[is_edge], high[is_edge]])
    edges = rng.permutation(np.repeat(np.arange(num_nodes), degree)).reshape(2, -1)
    for _ in range(MAX_ROUNDS):
        bad = _repeated(edges, num_nodes)
        if not len(bad):
            return _simple(edges, num_nodes)
        for edge, other in zip(bad, rng.integers(edges.shape[1], size=len(bad)), strict=True):
            edges[1, [edge, other]] = edges[1, [other, edge]]
    raise ValueError(
        f"Expected a regular graph that can be drawn at random, but {num_nodes} nodes of degree {degree} are too "
        "dense. Use a lower average_degree."
    )


def _draw_nodes(nodes: Labels, weights: Weights, num: int, rng: np.random.Generator) -> Labels:
    """Draw nodes in proportion to their weights."""
    if not num:
        return np.zeros(0, dtype=np.int64)
    limits = weights[nodes].cumsum()
    place = np.searchsorted(limits, rng.random(num) * limits[-1], side="right")
    chosen: Labels = nodes[np.minimum(place, len(nodes) - 1)]
    return chosen


def _simple(pairs: Edges, num_nodes: int) -> Edges:
    """Leave out loops and repetitions; sort by (low, high)."""
    low, high = pairs.min(0), pairs.max(0)
    keys = np.unique((low * num_nodes + high)[low < high])
    return np.stack([keys // num_nodes, keys % num_nodes])


def _repeated(edges: Edges, num_nodes: int) -> Int[np.ndarray, " some"]:
    """Find self-loops, and all but one of each set of parallel edges."""
    low, high = edges.min(0), edges.max(0)
    first = np.zeros(edges.shape[1], dtype=bool)
    first[np.unique(low * num_nodes + high, return_index=True)[1]] = True
    places: Int[np.ndarray, " some"] = np.flatnonzero(~first | (low == high))
    return places
