"""`predict_edges`: label and event probabilities for pairs of nodes, with node ids and class names."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.conversion import EdgesLike, NameLike, Names, as_columns, as_name_array, check_names, is_networkx
from edgewise.decisions.edge_predictions import Column, EdgePredictions, as_array, constant_column
from edgewise.decisions.events import EventLike, PairBeliefs, Progress, check_events, joint_methods, pair_beliefs
from edgewise.posterior import Belief, PairwisePosterior, Posterior, as_posterior
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_integers, check_whole_number


def check_pairs(pairs: EdgesLike, nodes: Names) -> Int[Tensor, "2 pairs"]:
    """Check pairs of node names, in any form that `evaluate` accepts for edges, and return them as node indices."""
    columns = _columns(pairs, nodes)
    indices = _as_indices(columns) if nodes.values is None else _look_up(columns, nodes.values)
    outside = (indices < 0) | (indices >= nodes.count)
    if outside.any():
        side, row = np.argwhere(outside)[0]
        allowed = f"nodes from 0 to {nodes.count - 1}" if nodes.values is None else "ids in node_ids"
        is_shifted = nodes.values is None and (indices.min(), indices.max()) == (1, nodes.count)
        hint = " If nodes are numbered from 1, pass pairs - 1." if is_shifted else ""
        raise ValueError(f"Expected pairs of {allowed}, but pair {row} has {_to_python(columns[side, row])!r}.{hint}")
    loops = np.flatnonzero(indices[0] == indices[1])
    if len(loops):
        row = int(loops[0])
        raise ValueError(
            f"Expected pairs of two different nodes, but pair {row} is {_to_python(columns[0, row])!r} with itself. "
            "Remove such pairs."
        )
    return torch.from_numpy(indices)


def _columns(pairs: EdgesLike, nodes: Names) -> NDArray[Any]:
    if is_networkx(pairs) and nodes.values is not None:
        pairs = list(pairs.edges())
    columns = as_columns(pairs, nodes.count, "pairs")
    if isinstance(columns, Tensor):
        columns = check_integers(columns.detach(), "pairs").cpu().numpy()
    elif columns.dtype.kind in "USO":
        columns = np.stack([as_name_array(column) for column in columns.astype(object)])
    if columns.ndim != 2 or columns.shape[0] != 2:
        hint = ""
        if columns.ndim == 2 and columns.shape[1] == 2:
            hint = " Pass pairs.T, or tuples: [tuple(pair) for pair in pairs]."
        raise ValueError(f"Expected pairs of shape (2, pairs), but got shape {columns.shape}.{hint}")
    return columns


def _as_indices(columns: NDArray[Any]) -> NDArray[np.int64]:
    if columns.dtype.kind not in "iu":
        example = f" such as {_to_python(columns.flat[0])!r}" if columns.size else ""
        raise ValueError(
            f"Expected pairs of integer node indices, but got {columns.dtype.name}{example}. To use other ids, pass "
            "node_ids."
        )
    return columns.astype(np.int64)


def _look_up(columns: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of each name, -1 if it is unknown."""
    import pyarrow as pa
    from pyarrow import compute

    value_set = pa.array(names)
    try:
        if (columns.dtype.kind in "iu") != (names.dtype.kind in "iu"):
            raise pa.ArrowInvalid
        sides = [pa.array(column, value_set.type) for column in columns]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        if columns.size == 0:
            return np.zeros(columns.shape, np.int64)
        raise ValueError(
            f"Expected pairs of ids in node_ids, such as {_to_python(names[0])!r}, but got ids such as "
            f"{_to_python(columns.flat[0])!r}. Convert both to text, or both to integers."
        ) from error
    indices = [compute.index_in(side, value_set=value_set).fill_null(-1).to_numpy() for side in sides]
    return np.stack(indices).astype(np.int64)


def _to_python(name: object) -> object:
    """Convert a NumPy scalar to a Python value, which has a shorter repr."""
    return name.item() if isinstance(name, np.generic) else name


@suggest_keywords
def predict_edges(
    posterior: Belief,
    pairs: EdgesLike,
    events: Iterable[EventLike] = ("same", "both_correct"),
    *,
    node_ids: NameLike | None = None,
    class_names: NameLike | None = None,
    top: int = 1,
    clamp: bool = False,
    progress: Progress | None = None,
) -> EdgePredictions:
    """Predict pairs of nodes: their most likely labels and the probabilities of events.

    Parameters
    ----------
    posterior
        A `Posterior`, anything with ``posterior()``, or probabilities (N, C), whose joints are products. A
        `PairwisePosterior` has joints for its edges. For other pairs the product of the node marginals is used, unless
        ``clamp`` is set, and the column ``method`` says so.
    pairs
        An array or nested lists (2, M), like edge_index, a list of M tuples, or any other form that `evaluate` accepts
        for edges. Each pair becomes one row, in this order.
    events
        "same", "different", "both_correct" (each node has the argmax label of its marginal), "both=A", "any=A",
        "only_one=A" for a class A, or (name, booleans (C, C)) that are True where labels (start, end) belong to the
        event.
    node_ids
        Text or integers (N,), used in ``pairs`` and in the table. By default 0, …, N - 1.
    class_names
        Text or integers (C,), used in the table and in ``events``. By default 0, …, C - 1.
    top
        The number of most likely label pairs to list.
    clamp
        Compute the joints of pairs that are not edges of a `PairwisePosterior` by clamping, which takes a run of belief
        propagation for each label of a clamped node. ``posterior.clamping_cost(pairs)`` estimates the time.
    progress
        Called with (finished pairs, all pairs) after each chunk.

    Returns
    -------
    EdgePredictions
        The table. ``print`` shows its first rows, ``write`` saves it.

    Examples
    --------
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5]])
    >>> print(predict_edges(probs, [("x17", "x20"), ("y3", "x20")], node_ids=["x17", "x20", "y3"]))
    start  end  start_predicted  end_predicted  start_label  end_label  P(labels)  P(same)  P(both_correct)   method
      x17  x20                0              0            0          0     0.7200   0.7400           0.7200  product
       y3  x20                0              0            0          0     0.4000   0.5000           0.4000  product
    <BLANKLINE>
    convergence: nothing to converge
    """
    belief = as_posterior(posterior)
    nodes = check_names(node_ids, belief.num_nodes, "node_ids", "node")
    classes = check_names(class_names, belief.num_classes, "class_names", "class")
    checked_events = check_events(events, belief.num_classes, classes.as_text())
    check_whole_number("top", top, 1, belief.num_classes**2)
    ends = check_pairs(pairs, nodes)
    convergence = _describe_convergence(belief)
    beliefs = pair_beliefs(belief, ends, checked_events, top, progress, clamp=clamp)
    event_probability = zip(checked_events, beliefs.event_probability, strict=True)
    table = {
        **_nodes_and_labels(ends, belief.node.argmax(-1).cpu(), beliefs, nodes, classes),
        **{f"P({event.name})": Column(as_array(p)) for event, p in event_probability},
        "method": Column(as_array(beliefs.method), np.array(joint_methods(belief, clamp), dtype=object)),
        "convergence": constant_column(convergence, ends.shape[1]),
    }
    return EdgePredictions(table, convergence, checked_events, belief.node.detach(), ends)


def _nodes_and_labels(
    ends: Int[Tensor, "2 pairs"], predicted: Int[Tensor, " nodes"], beliefs: PairBeliefs, nodes: Names, classes: Names
) -> dict[str, Column]:
    """Return the first columns: the nodes, the argmax of their marginals, and the most likely label pairs."""
    sides = ("start", "end")
    table = {side: Column(as_array(ends[k]), nodes.values) for k, side in enumerate(sides)}
    for k, side in enumerate(sides):
        table[f"{side}_predicted"] = Column(as_array(predicted[ends[k]].int()), classes.values)
    for rank, (labels, probability) in enumerate(zip(beliefs.labels, beliefs.label_probability, strict=True), start=1):
        suffix = "" if rank == 1 else f"_{rank}"
        for k, side in enumerate(sides):
            table[f"{side}_label{suffix}"] = Column(as_array(labels[k]), classes.values)
        table[f"P(labels{suffix})"] = Column(as_array(probability))
    return table


def _describe_convergence(belief: Posterior) -> str:
    convergence = belief.convergence
    if convergence is None:
        return "not recorded" if isinstance(belief, PairwisePosterior) else "nothing to converge"
    if not convergence:
        return convergence.advice or f"did not converge: the residual is {convergence.residual:.2g}"
    if convergence.sweeps == 0:
        return "exact"
    return f"converged in {convergence.sweeps} sweeps, residual {convergence.residual:.2g}"
