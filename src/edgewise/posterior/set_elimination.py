"""Variable elimination inside node sets, for many sets with edges between the same places at a time."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Pair = tuple[int, int]  # places of two nodes in a set

MAX_TABLE_ENTRIES = 1 << 24  # 128 MiB


def elimination_scopes(size: int, links: Sequence[Pair]) -> list[tuple[int, ...]]:
    """Return the places in the table of each eliminated place, which comes last. The one with fewest neighbors is next.

    >>> elimination_scopes(3, [(0, 1), (1, 2)])
    [(1, 0), (2, 1), (2,)]
    """
    neighbors: dict[int, set[int]] = {place: set() for place in range(size)}
    for a, b in links:
        neighbors[a].add(b)
        neighbors[b].add(a)
    scopes = []
    while neighbors:
        place = min(neighbors, key=lambda place: (len(neighbors[place]), place))
        around = neighbors.pop(place)
        for other in around:
            neighbors[other] |= around
            neighbors[other] -= {other, place}
        scopes.append((*sorted(around), place))
    return scopes


def log_partition(
    unaries: Sequence[Float[Tensor, "*batch sets classes"]],
    couplings: Mapping[Pair, Float[Tensor, "*batch couplings classes classes"]],
    scopes: Sequence[tuple[int, ...]],
) -> Float[Tensor, "*batch sets"]:
    """Compute log Σ_y exp(Σ_a U_a(y_a) + Σ_ab T_ab(y_a, y_b)) of each set, eliminating places in the given order.

    There is a coupling for each linked pair of places, one for each set or one for all.
    """
    factors: list[tuple[tuple[int, ...], Tensor]] = [((place,), unary) for place, unary in enumerate(unaries)]
    factors += couplings.items()
    constant = torch.zeros((), dtype=torch.float64, device=unaries[0].device)
    for scope in scopes:
        entering = [_align(table, places, scope) for places, table in factors if scope[-1] in places]
        factors = [factor for factor in factors if scope[-1] not in factor[0]]
        message = torch.stack(torch.broadcast_tensors(*entering)).sum(0).logsumexp(-1)
        if len(scope) > 1:
            factors.append((scope[:-1], message))
        else:
            constant = constant + message
    return constant


def _align(table: Float[Tensor, "*shape"], places: tuple[int, ...], scope: tuple[int, ...]) -> Float[Tensor, "*larger"]:
    """Permute the class dimensions of a table to the order of the scope, with dimensions of 1 for other places."""
    num_lead = table.ndim - len(places)
    order = sorted(range(len(places)), key=lambda k: scope.index(places[k]))
    permuted = table.permute(*range(num_lead), *(num_lead + k for k in order))
    classes = table.shape[-1]
    return permuted.reshape(*table.shape[:num_lead], *(classes if place in places else 1 for place in scope))


def check_entries(entries: int, sets: Int[Tensor, "set sets"]) -> None:
    """Raise ValueError if elimination in sets with the same edges needs too large a table."""
    if entries > MAX_TABLE_ENTRIES:
        shown = sets[:, 0].tolist()
        raise ValueError(
            f"Expected sets whose elimination takes a table of at most {MAX_TABLE_ENTRIES} entries, but the edges "
            f"between the nodes {str(shown[:6])[1:-1]}{', …' if len(shown) > 6 else ''} need {entries:.2g}. Pass "
            "smaller sets, or sets with fewer edges between their nodes."
        )
