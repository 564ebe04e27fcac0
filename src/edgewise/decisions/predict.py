"""Predict pairs of nodes by one call, in the names of nodes and classes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.decisions.edge_predictions import Column, EdgePredictions, as_array, constant_column
from edgewise.decisions.events import EventLike, PairBeliefs, Progress, check_events, methods_of, pair_beliefs
from edgewise.posterior import Belief, PairwisePosterior, Posterior, as_posterior
from edgewise.validation import ArrayLike, check_integers, check_whole_number

NameLike = ArrayLike | Sequence[str] | Sequence[int]
PairsLike = ArrayLike | Sequence[tuple[object, object]]


@dataclass(frozen=True, eq=False)
class Names:
    """Names of things that are counted from 0; ``given`` is None where the numbers are the names."""

    count: int
    given: NDArray[Any] | None = None

    def as_text(self) -> list[str]:
        """Return all names as text."""
        return [str(name) for name in (range(self.count) if self.given is None else self.given.tolist())]


def check_names(names: NameLike | None, count: int, argument: str, thing: str) -> Names:
    """Check that there is one name per thing, text or a whole number, and that all differ."""
    if names is None:
        return Names(count)
    given = _array_of(names)
    if given.shape != (count,):
        shape = tuple(given.shape)
        raise ValueError(f"Expected {argument} of shape ({count},), one per {thing}, but got shape {shape}.")
    if given.dtype.kind == "O" and (kinds := {type(name).__name__ for name in given} - {"str"}):
        raise ValueError(
            f"Expected {argument} to be all text or all whole numbers, but got {' and '.join(sorted(kinds))}."
        )
    if len(set(given.tolist())) < count:
        twice = next(name for name, times in Counter(given.tolist()).items() if times > 1)
        raise ValueError(f"Expected {argument} that differ, but {twice!r} is there twice. Rename one.")
    return Names(count, given)


def _array_of(names: object) -> NDArray[Any]:
    """Keep text as Python's own, so that a table of long ids needs no room for the longest in each row."""
    if isinstance(names, Tensor):
        names = names.detach().cpu().numpy()
    array = names if isinstance(names, np.ndarray) else np.asarray(names, dtype=object)
    if array.dtype.kind == "O" and array.size and all(isinstance(name, np.integer | int) for name in array.flat):
        array = np.array(array.tolist())
    if array.dtype.kind in "iu":
        return array if array.dtype == np.uint64 else array.astype(np.int64)
    return array.astype(object)


def check_pairs(pairs: PairsLike, nodes: Names) -> Int[Tensor, "2 pairs"]:
    """Check pairs of nodes given by their names, and return their numbers.

    An array or tensor holds pairs as columns (2, pairs), as edge_index does; a list holds a pair in each entry.
    """
    columns = _columns(pairs)
    numbers = _numbers(columns) if nodes.given is None else _looked_up(columns, nodes.given)
    outside = (numbers < 0) | (numbers >= nodes.count)
    if outside.any():
        side, row = np.argwhere(outside)[0]
        known = f"nodes from 0 to {nodes.count - 1}" if nodes.given is None else "known ids"
        raise ValueError(f"Expected pairs of {known}, but pair {row} has {_plain(columns[side, row])!r}. Correct it.")
    alone = np.flatnonzero(numbers[0] == numbers[1])
    if len(alone):
        row = int(alone[0])
        raise ValueError(
            f"Expected pairs of two nodes, but pair {row} is {_plain(columns[0, row])!r} with itself. Leave such pairs "
            "out."
        )
    return torch.from_numpy(numbers)


def _columns(pairs: PairsLike) -> NDArray[Any]:
    if isinstance(pairs, Tensor):
        columns = check_integers(pairs.detach(), "pairs").cpu().numpy()
    elif isinstance(pairs, np.ndarray):
        columns = pairs
    else:
        rows = [tuple(pair) if isinstance(pair, Sequence) and not isinstance(pair, str) else (pair,) for pair in pairs]
        if any(len(row) != 2 for row in rows):
            row = next(k for k, pair in enumerate(rows) if len(pair) != 2)
            raise ValueError(f"Expected a list of pairs of nodes, but entry {row} is {pairs[row]!r}.")
        columns = _array_of([*zip(*rows, strict=True)] if rows else np.empty((2, 0), np.int64))
    if columns.ndim != 2 or columns.shape[0] != 2:
        hint = " Pass pairs.T." if columns.ndim == 2 and columns.shape[1] == 2 else ""
        raise ValueError(f"Expected pairs of shape (2, pairs), but got shape {columns.shape}.{hint}")
    return columns


def _numbers(columns: NDArray[Any]) -> NDArray[np.int64]:
    if columns.dtype.kind not in "iu":
        example = f" such as {_plain(columns.flat[0])!r}" if columns.size else ""
        raise ValueError(
            f"Expected pairs of nodes counted from 0, but got {columns.dtype.name}{example}. For ids of your own pass "
            "node_ids."
        )
    return columns.astype(np.int64)


def _looked_up(columns: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int64]:
    """Find names by hashing; -1 for one that is unknown."""
    import pyarrow as pa
    from pyarrow import compute

    known = pa.array(names)
    try:
        if (columns.dtype.kind in "iu") != (names.dtype.kind in "iu"):
            raise pa.ArrowInvalid
        sides = [pa.array(column, known.type) for column in columns]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        if columns.size == 0:
            return np.zeros(columns.shape, np.int64)
        raise ValueError(
            f"Expected pairs in the ids of node_ids, such as {_plain(names[0])!r}, but got some such as "
            f"{_plain(columns.flat[0])!r}. Text is no number: make both the same."
        ) from error
    found = [compute.index_in(side, value_set=known).fill_null(-1).to_numpy() for side in sides]
    return np.stack(found).astype(np.int64)


def _plain(name: object) -> object:
    """Show a NumPy scalar as Python does."""
    return name.item() if isinstance(name, np.generic) else name


def predict_edges(
    posterior: Belief,
    pairs: PairsLike,
    events: Iterable[EventLike] = ("same", "both_correct"),
    *,
    node_ids: NameLike | None = None,
    class_names: NameLike | None = None,
    top: int = 1,
    progress: Progress | None = None,
) -> EdgePredictions:
    """Tell what is believed about pairs of nodes: their most likely labels, and how probable events are.

    Parameters
    ----------
    posterior
        A `Posterior`, anything with ``posterior()``, or probabilities (N, C), whose joints are products. A pairwise
        field knows the joints of its edges; for another pair the product of the node marginals stands in, and
        ``method`` says so in its row.
    pairs
        An array (2, M), like edge_index, or a list of M pairs; each becomes a row, in this order.
    events
        "same", "different", "both_correct" (both nodes are what each is predicted to be by itself), "both=A", "any=A",
        "only_one=A" for a class A, or (name, booleans (C, C)) that are True where labels (start, end) belong to it.
    node_ids
        Text or whole numbers (N,): ``pairs`` are given in them, and the table shows them. By default nodes are counted
        from 0.
    class_names
        Text or whole numbers (C,), for labels in the table and in events. By default classes are counted from 0.
    top
        How many pairs of labels to list.
    progress
        Called with the number of pairs done and of all, some thousand pairs at a time.

    Returns
    -------
    EdgePredictions
        The table; ``print`` shows its first rows, ``write`` puts it on disk.

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
    asked = check_events(events, belief.num_classes, classes.as_text())
    check_whole_number("top", top, 1, belief.num_classes**2)
    ends = check_pairs(pairs, nodes)
    convergence = _describe_convergence(belief)
    beliefs = pair_beliefs(belief, ends, asked, top, progress)
    table = {
        **_nodes_and_labels(ends, belief.node.argmax(-1).cpu(), beliefs, nodes, classes),
        **{f"P({event.name})": Column(as_array(p)) for event, p in zip(asked, beliefs.event_probability, strict=True)},
        "method": Column(as_array(beliefs.method), np.array(methods_of(belief), dtype=object)),
        "convergence": constant_column(convergence, ends.shape[1]),
    }
    return EdgePredictions(table, convergence, asked, belief.node.detach(), ends)


def _nodes_and_labels(
    ends: Int[Tensor, "2 pairs"], predicted: Int[Tensor, " nodes"], beliefs: PairBeliefs, nodes: Names, classes: Names
) -> dict[str, Column]:
    """Make the first columns: the nodes, what each is predicted to be alone, and the likeliest labels of both."""
    sides = ("start", "end")
    table = {side: Column(as_array(ends[k]), nodes.given) for k, side in enumerate(sides)}
    for k, side in enumerate(sides):
        table[f"{side}_predicted"] = Column(as_array(predicted[ends[k]].int()), classes.given)
    for rank, (labels, probability) in enumerate(zip(beliefs.labels, beliefs.label_probability, strict=True), start=1):
        suffix = "" if rank == 1 else f"_{rank}"
        for k, side in enumerate(sides):
            table[f"{side}_label{suffix}"] = Column(as_array(labels[k]), classes.given)
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
