"""Groups of nodes: their numbers, given groups, and input checks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from edgewise.conversion import as_labels
from edgewise.metrics.groups import GroupKey
from edgewise.suggestions import did_you_mean
from edgewise.validation import ArrayLike, as_numpy, as_tensor, check_integers

MAX_PAIRED_GROUPS = 100  # which have 5,050 pairs, with a table of sums each
MAX_TABLE_ROWS = 5_000_000  # of all tables of one grouping: 160 MB
MAX_EXACT_FLOAT = 2**53  # larger integers are rounded

ORDERED = ("degree", "confidence", "train_distance", "homophily")
ON_OUTCOME = ("true_class", "homophily")  # groups that depend on the true labels
TRAITS = ("predicted_class", "degree", "confidence", "train_distance", *ON_OUTCOME)


class NodeGroups(NamedTuple):
    """Group of each node. Groups are numbered in the order of their keys, and -1 means no group."""

    name: str
    group: Int[Tensor, " nodes"]
    labels: Mapping[GroupKey, str]
    is_ordered: bool = False
    conditions_on_outcome: bool = False

    @property
    def num_tables(self) -> int:
        """Number of groups of edges: one per group if groups are ordered, else one per unordered pair of groups."""
        num = len(self.labels)
        return num if self.is_ordered else num * (num + 1) // 2

    @property
    def for_kernel(self) -> tuple[Int[Tensor, " nodes"], bool, int]:
        """The arguments of the compiled loops."""
        return self.group, self.is_ordered, self.num_tables

    def edge_keys(self) -> list[Any]:
        """Return the key of each group of edges, a key or a pair of keys, in the order of `edge_group`."""
        keys = list(self.labels)
        return keys if self.is_ordered else [(low, keys[k]) for k in range(len(keys)) for low in keys[: k + 1]]

    def edge_group(self, ends: Int[Tensor, "2 edges"]) -> Int[Tensor, " edges"]:
        """Return the group of each edge, or -1 if an end has no group.

        It is the smaller of the groups of the ends if groups are ordered, else the number h (h + 1) / 2 + l of the
        pair of groups l <= h.
        """
        of_ends = self.group[ends]
        low, high = of_ends.amin(0), of_ends.amax(0)
        return low if self.is_ordered else torch.where(low < 0, -1, high * (high + 1) // 2 + low)


def check_grouping_names(
    groups: Mapping[str, ArrayLike] | None, by: str | Sequence[str] | None, train: object
) -> list[str]:
    """Check the names of groupings, and return the traits of ``by`` as a list. None means no traits."""
    if groups is not None and not (isinstance(groups, Mapping) and all(isinstance(name, str) for name in groups)):
        raise ValueError(
            "Expected groups as a dict of names and arrays, one integer or text per node, but got "
            f"{type(groups).__name__}. Pass groups={{'name': array}}."
        )
    traits = [by] if isinstance(by, str) else list(by or ())
    for trait in traits:
        if trait not in TRAITS:
            raise ValueError(
                f"Expected by to hold some of {', '.join(TRAITS)}, but got {trait!r}.{did_you_mean(trait, TRAITS)} For "
                "groups of your own pass groups={'name': array}."
            )
    if repeated := {name for name in traits if traits.count(name) > 1 or name in (groups or {})}:
        raise ValueError(f"Expected each grouping once, but got {sorted(repeated)[0]!r} twice. Rename or omit one.")
    if "train_distance" in traits and train is None:
        raise ValueError(
            "Expected train, the mask of training nodes, for by='train_distance', but got none. Pass train=split.train "
            "(--train FILE on the command line)."
        )
    if train is not None and "train_distance" not in traits:
        raise ValueError("Expected train only with by='train_distance', but got other groups. Add it, or omit train.")
    return traits


def check_size(grouping: NodeGroups, n_bins: int) -> None:
    """Check that the sums of all groups fit into memory."""
    num, name = len(grouping.labels), grouping.name
    if not grouping.is_ordered and num > MAX_PAIRED_GROUPS:
        raise ValueError(
            f"Expected at most {MAX_PAIRED_GROUPS} groups in {name!r}, because edges are scored by pairs of groups, "
            f"but got {num}. Keep the largest: groups={{{name!r}: np.where(np.isin(g, np.argsort(np.bincount(g))"
            f"[-{MAX_PAIRED_GROUPS}:]), g, -1)}} for the groups g of the nodes, numbered from 0."
        )
    if grouping.num_tables * (n_bins + 2) > MAX_TABLE_ROWS:
        most = MAX_TABLE_ROWS // grouping.num_tables - 2
        raise ValueError(
            f"Expected n_bins of at most {most} for the {grouping.num_tables} groups of edges in {name!r}, but got "
            f"{n_bins}. Use fewer bins or fewer groups."
        )


# Groups of the caller


def given_groups(name: str, values: ArrayLike, num_nodes: int, device: torch.device) -> NodeGroups:
    """Convert integers, or text, one per node. -1, NaN and missing text mean no group."""
    argument = f"groups[{name!r}]"
    array = values if isinstance(values, Tensor) else as_numpy(values, argument)
    if not isinstance(array, Tensor) and array.dtype.kind in "USO" and any(isinstance(x, str) for x in array.flat):
        return _text_groups(name, array, num_nodes, device)
    if isinstance(array, Tensor) or array.dtype.kind != "O":
        array = _check_group_numbers(as_tensor(array, argument), argument)
    index = as_labels(array, num_nodes, "nodes", device, argument)
    return number_groups(name, index.long(), str)


def _check_group_numbers(numbers: Tensor, argument: str) -> Tensor:
    """Convert booleans, whose groups are 0 and 1, and whole numbers with NaN, as of a pandas column, to integers."""
    if numbers.dtype == torch.bool:
        return numbers.long()
    if numbers.dtype.is_floating_point:
        known = numbers.double().nan_to_num(-1, math.inf, -math.inf)
        is_whole = (known == known.round()) & (known.abs() <= MAX_EXACT_FLOAT)
        if not bool(is_whole.all()):
            raise ValueError(
                f"Expected {argument} to hold integers or text, but got {float(known[~is_whole][0])!r}. For intervals "
                "of numbers x pass np.where(np.isnan(x), -1, np.digitize(x, limits)) with increasing limits, such as "
                "limits = np.nanquantile(x, [0.25, 0.5, 0.75])."
            )
        numbers = known.long()
    numbers = check_integers(numbers, argument)
    if bool((numbers < -1).any()):
        raise ValueError(
            f"Expected {argument} to hold integers of at least 0, or -1 for no group, but got {int(numbers.min())}. If "
            "negative numbers mean no group, pass np.maximum(x, -1), else np.unique(x, return_inverse=True)[1], for "
            "the groups x of the nodes."
        )
    return numbers


def _text_groups(name: str, array: Any, num_nodes: int, device: torch.device) -> NodeGroups:
    texts = ["" if value is None or value != value else str(value) for value in array.reshape(-1).tolist()]
    if len(texts) != num_nodes:
        raise ValueError(
            f"Expected groups[{name!r}] to hold one group for each of the {num_nodes} nodes, but got shape "
            f"{tuple(array.shape)}. Pass one group for each node, in the order of the rows of probs."
        )
    keys, index = np.unique(np.array(texts, dtype=object), return_inverse=True)
    has_missing = int(len(keys) > 0 and keys[0] == "")
    numbers = torch.from_numpy(index.reshape(-1)).long().to(device) - has_missing
    return NodeGroups(name, numbers, {key: key for key in keys[has_missing:].tolist()})


def number_groups(
    name: str,
    values: Int[Tensor, " nodes"],
    label: Callable[[int], str],
    is_ordered: bool = False,
    conditions_on_outcome: bool = False,
) -> NodeGroups:
    """Assign numbers to the groups that occur, in the order of their values. -1 means no group."""
    keys, index = values.unique(return_inverse=True)
    has_missing = int(len(keys) > 0 and int(keys[0]) < 0)
    labels = {key: label(key) for key in keys[has_missing:].tolist()}
    return NodeGroups(name, index - has_missing, labels, is_ordered, conditions_on_outcome)
