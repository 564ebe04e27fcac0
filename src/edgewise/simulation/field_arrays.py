"""A field as compiled loops read it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.simulation.field import LabelField

Array = NDArray[Any]


class FieldArrays(NamedTuple):
    """Who may change, and of each node its potentials, neighbours and edges.

    The neighbours of node i are ``neighbour[begin[i]:begin[i + 1]]``, by the edges at the same places of ``edge``.
    """

    free: Array
    unary: Array
    begin: Array
    neighbour: Array
    edge: Array
    coupling: Array  # (E or 1, C, C)
    weight: Array
    rate: Array


def field_arrays(field: LabelField) -> FieldArrays:
    """List the neighbours of each node, and the nodes that have a choice."""
    low, high = field.edge_index.numpy()
    start, end = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.argsort(start, kind="stable")
    begin = np.zeros(field.num_nodes + 1, dtype=np.int64)
    begin[1:] = np.bincount(start, minlength=field.num_nodes).cumsum()
    free = (field.unary.isfinite().sum(1) > 1).numpy().nonzero()[0]
    parts = (field.unary, field.coupling, field.weight, field.rate)
    unary, coupling, weight, rate = (np.ascontiguousarray(part.double().numpy()) for part in parts)
    return FieldArrays(free, unary, begin, end[order], order % max(1, len(low)), coupling, weight, rate)
