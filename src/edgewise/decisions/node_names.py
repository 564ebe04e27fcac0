"""Nodes and classes by the names that people gave them, and pairs of nodes at the door."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.arrays import ArrayLike, integers

NameLike = ArrayLike | Sequence[str] | Sequence[int]
PairsLike = ArrayLike | Sequence[tuple[object, object]]


@dataclass(frozen=True, eq=False)
class Names:
    """Names of things that are counted from 0; ``given`` is None where the numbers are the names."""

    count: int
    given: NDArray[Any] | None = None

    def words(self) -> list[str]:
        """Give all names as text."""
        return [str(name) for name in (range(self.count) if self.given is None else self.given.tolist())]


def checked_names(names: NameLike | None, count: int, argument: str, thing: str) -> Names:
    """Check that there is one name a thing, text or a whole number, each of its own."""
    if names is None:
        return Names(count)
    given = _array_of(names)
    if given.shape != (count,):
        raise ValueError(f"Expected {argument} of shape ({count},), one a {thing}, but got shape {tuple(given.shape)}.")
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


def checked_pairs(pairs: PairsLike, nodes: Names) -> Int[Tensor, "2 pairs"]:
    """Check pairs of nodes, given by their names, and give them by their numbers.

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
        columns = integers(pairs.detach(), "pairs").cpu().numpy()
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
