"""Groups of nodes by a trait (degree, confidence, …) or given as arrays, and their input checks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.conversion import as_labels, as_mask
from edgewise.data.edges import connected_components, scored_edges
from edgewise.metrics.collect import ScoringTask, slices
from edgewise.metrics.elements import CHUNK_ELEMENTS, CONFIDENCE
from edgewise.metrics.groups import GroupKey
from edgewise.metrics.scoring_input import Binning, Closed
from edgewise.metrics.sums import bin_boundaries, bin_index
from edgewise.suggestions import did_you_mean
from edgewise.validation import ArrayLike, as_numpy, as_tensor, check_integers

MAX_PAIRED_GROUPS = 100  # which have 5,050 pairs, with a table of sums each
MAX_TABLE_ROWS = 5_000_000  # of all tables of one grouping: 160 MB
NUM_CONFIDENCE_GROUPS = 10
NUM_HOMOPHILY_GROUPS = 5
FAR, UNREACHABLE = 3, 4  # groups of train_distance: 3 and more edges, and no path

ORDERED = ("degree", "confidence", "train_distance", "homophily")
ON_OUTCOME = ("true_class", "homophily")  # groups that depend on the true labels
TRAITS = ("predicted_class", "degree", "confidence", "train_distance", *ON_OUTCOME)


class NodeGroups(NamedTuple):
    """Group of each node. Groups are numbered in the order of their keys, and -1 means no group."""

    name: str
    index: Int[Tensor, " nodes"]
    labels: Mapping[GroupKey, str]
    is_ordered: bool = False
    conditions_on_outcome: bool = False

    @property
    def num_tables(self) -> int:
        """Number of groups of edges: one per group if groups are ordered, else one per unordered pair of groups."""
        num = len(self.labels)
        return num if self.is_ordered else num * (num + 1) // 2

    def edge_keys(self) -> list[Any]:
        """Return the key of each group of edges, a key or a pair of keys, in the order of `edge_group`."""
        keys = list(self.labels)
        return keys if self.is_ordered else [(low, keys[k]) for k in range(len(keys)) for low in keys[: k + 1]]

    def edge_group(self, ends: Int[Tensor, "2 edges"]) -> Int[Tensor, " edges"]:
        """Return the group of each edge, or -1 if an end has no group.

        It is the smaller of the groups of the ends if groups are ordered, else the number h (h + 1) / 2 + l of the
        pair of groups l <= h.
        """
        of_ends = self.index[ends]
        low, high = of_ends.amin(0), of_ends.amax(0)
        return low if self.is_ordered else torch.where(low < 0, -1, high * (high + 1) // 2 + low)


def check_grouping_names(groups: Mapping[str, ArrayLike] | None, by: str | Sequence[str], train: object) -> list[str]:
    """Check the names of groupings, and return the traits of ``by`` as a list."""
    if groups is not None and not (isinstance(groups, Mapping) and all(isinstance(name, str) for name in groups)):
        raise ValueError(
            "Expected groups as a dict of names and arrays, one integer or text per node, but got "
            f"{type(groups).__name__}. Pass groups={{'name': array}}."
        )
    traits = [by] if isinstance(by, str) else list(by)
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
            "Expected train, the mask of training nodes, for by='train_distance', but got none. Pass train=split.train."
        )
    if train is not None and "train_distance" not in traits:
        raise ValueError("Expected train only with by='train_distance', but got other groups. Add it, or omit train.")
    return traits


def node_groups(
    task: ScoringTask,
    binning: Binning,
    groups: Mapping[str, ArrayLike] | None,
    traits: Sequence[str],
    train: ArrayLike | None,
    class_names: Sequence[str] | None,
) -> list[NodeGroups]:
    """Return the groups of all nodes in each grouping: the given groups, then the traits."""
    found = [
        _given_groups(name, values, len(task.inputs.y), task.keep.device) for name, values in (groups or {}).items()
    ]
    found += [_trait_groups(trait, task, binning.closed, train, class_names) for trait in traits]
    for grouping in found:
        _check_size(grouping, binning.n_bins)
    return found


def _check_size(grouping: NodeGroups, n_bins: int) -> None:
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


def _given_groups(name: str, values: ArrayLike, num_nodes: int, device: torch.device) -> NodeGroups:
    """Convert integers, or text, one per node. A negative number and missing text mean no group."""
    argument = f"groups[{name!r}]"
    array = values if isinstance(values, Tensor) else as_numpy(values, argument)
    if not isinstance(array, Tensor) and array.dtype.kind in "USO" and any(isinstance(x, str) for x in array.flat):
        return _text_groups(name, array, num_nodes, device)
    if isinstance(array, Tensor) or array.dtype.kind != "O":
        array = _check_group_numbers(as_tensor(array, argument), argument)
    index = as_labels(array, num_nodes, "nodes", device, argument)
    return _number_groups(name, index.long(), str)


def _check_group_numbers(numbers: Tensor, argument: str) -> Tensor:
    """Convert booleans, whose groups are 0 and 1, and all negative numbers to -1."""
    if numbers.dtype == torch.bool:
        return numbers.long()
    if numbers.dtype.is_floating_point and numbers.numel():
        raise ValueError(
            f"Expected {argument} to hold integers or text, but got dtype {numbers.dtype}. For intervals of a number "
            f"pass np.digitize({argument}, limits)."
        )
    return check_integers(numbers, argument).clamp(min=-1)


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


def _number_groups(name: str, values: Int[Tensor, " nodes"], label: Callable[[int], str]) -> NodeGroups:
    """Assign numbers to the groups that occur, in the order of their values. -1 means no group."""
    keys, index = values.unique(return_inverse=True)
    has_missing = int(len(keys) > 0 and int(keys[0]) < 0)
    labels = {key: label(key) for key in keys[has_missing:].tolist()}
    return NodeGroups(name, index - has_missing, labels, name in ORDERED, name in ON_OUTCOME)


# Traits


def _trait_groups(
    trait: str, task: ScoringTask, closed: Closed, train: ArrayLike | None, class_names: Sequence[str] | None
) -> NodeGroups:
    inputs = task.inputs
    if trait in ("predicted_class", "true_class"):
        predicted = inputs.probs.argmax(1) if inputs.predictions is None else inputs.predictions
        classes = inputs.y if trait == "true_class" else predicted
        return _number_groups(trait, classes.long(), lambda k: str(k) if class_names is None else class_names[k])
    if trait == "confidence":
        tenths = Binning(NUM_CONFIDENCE_GROUPS, "width", closed)
        group = bin_index(task.records[:, CONFIDENCE], tenths, bin_boundaries(tenths))
        return _number_groups(trait, group, lambda k: _interval_label(k, NUM_CONFIDENCE_GROUPS))
    if trait == "train_distance":
        assert train is not None
        mask = as_mask(train, len(inputs.y), inputs.y.device, "train")
        return _number_groups(trait, _train_distance(inputs.edge_index, mask), _distance_label)
    if trait == "degree":
        return _number_groups(trait, _count_neighbors(task)[0].double().frexp().exponent.long(), _degree_label)
    known, same = _count_neighbors(task)[1:]
    fifth = (NUM_HOMOPHILY_GROUPS * same // known.clamp(min=1)).clamp(max=NUM_HOMOPHILY_GROUPS - 1)
    group = torch.where((known > 0) & (inputs.y >= 0), fifth, -1)
    return _number_groups(trait, group, lambda k: _interval_label(k, NUM_HOMOPHILY_GROUPS))


def _count_neighbors(task: ScoringTask) -> Int[Tensor, "3 nodes"]:
    """Count the edges of each node, those to known labels, and those to the same label.

    Edges are counted as in the scores: an edge listed in both directions once, parallel edges separately, and no
    self-loops. But all edges count, not only the scored ones.
    """
    y, edge_index, mask = task.inputs.y, task.inputs.edge_index, task.inputs.mask
    keep = task.keep if bool(mask.all()) else scored_edges(edge_index, mask, "all")
    counts = torch.zeros(3, len(y), dtype=torch.long, device=y.device)
    for part in slices(len(keep), CHUNK_ELEMENTS // 4):
        ends = edge_index[:, part][:, keep[part]].long()
        labels = y[ends]
        same = labels[0] == labels[1]
        for node, other in ((0, 1), (1, 0)):
            ones = torch.stack((torch.ones_like(same), labels[other] >= 0, same)).long()
            counts.index_add_(1, ends[node], ones)
    return counts


def _train_distance(edge_index: Int[Tensor, "2 edges"], train: Bool[Tensor, " nodes"]) -> Int[Tensor, " nodes"]:
    """Return the number of edges to the nearest training node: 0, 1, 2, `FAR` for more, or `UNREACHABLE`."""
    distance = torch.where(train, 0, UNREACHABLE)
    for hop in range(1, FAR):
        reached = distance < hop
        for part in slices(edge_index.shape[1], CHUNK_ELEMENTS // 4):
            ends = edge_index[:, part].long()
            for start, end in (ends, ends.flip(0)):
                near = end[reached[start]]
                distance[near] = distance[near].clamp(max=hop)
    others = distance == UNREACHABLE
    if bool(others.any()) and bool(train.any()):
        # All reached nodes become one node, number N, so that only edges of other nodes remain.
        num_nodes = len(train)
        number = torch.where(others, torch.arange(num_nodes, device=train.device), num_nodes)
        parts = []
        for part in slices(edge_index.shape[1], CHUNK_ELEMENTS // 4):
            ends = number[edge_index[:, part].long()]
            parts.append(ends[:, ends[0] != ends[1]])
        edges = torch.cat(parts, dim=1)
        component = connected_components(edges, num_nodes + 1)
        distance[others & (component[:-1] == component[-1])] = FAR
    return distance


def _degree_label(exponent: int) -> str:
    """Return the degrees of a group, such as 4 to 7."""
    return str(exponent) if exponent < 2 else f"{1 << (exponent - 1)} to {(1 << exponent) - 1}"


def _distance_label(distance: int) -> str:
    return {FAR: f"{FAR} or more", UNREACHABLE: "unreachable"}.get(distance, str(distance))


def _interval_label(k: int, num: int) -> str:
    return f"{k / num:g} to {(k + 1) / num:g}"
