"""Groups of nodes: given groups, and groups by class, degree, confidence, distance from training nodes, homophily."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.conversion import as_labels, as_mask, check_names
from edgewise.data.edges import connected_components, scored_edges
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.collect import ScoringTask, slices
from edgewise.metrics.elements import CHUNK_ELEMENTS, CONFIDENCE
from edgewise.metrics.scoring_input import Binning, Closed
from edgewise.metrics.sums import bin_boundaries, bin_index
from edgewise.suggestions import did_you_mean
from edgewise.validation import ArrayLike, as_numpy, as_tensor, check_integers

MAX_PAIRED_GROUPS = 100  # which have 5,050 pairs, with a table of sums each
MAX_TABLE_ROWS = 5_000_000  # of all tables of one grouping: 160 MB
MAX_EXACT_FLOAT = 2**53  # larger integers are rounded

GroupKey = int | str
NUM_CONFIDENCE_GROUPS = 10
NUM_HOMOPHILY_GROUPS = 5
FAR, UNREACHABLE = 3, 4  # groups of train_distance: 3 and more edges, and no path

ORDERED = ("degree", "confidence", "train_distance", "homophily")
ON_OUTCOME = ("true_class", "homophily")  # groups that depend on the true labels
TRAITS = ("predicted_class", "degree", "confidence", "train_distance", *ON_OUTCOME)


class NodeGroups(NamedTuple):
    """Group of each node. Groups are numbered in the order of their keys, and -1 means no group."""

    name: str
    group: Int[Tensor, " nodes"]
    labels: Mapping[GroupKey, str]
    is_ordered: bool = False
    is_given: bool = True
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
        low, high = self.group[ends].aminmax(dim=0)
        return low if self.is_ordered else torch.where(low < 0, -1, high * (high + 1) // 2 + low)


def check_grouping_names(
    groups: Mapping[str, ArrayLike] | None, by: str | Sequence[str] | None, train: object
) -> list[str]:
    """Check the names of groupings, and return the traits of ``by`` as a list. None means no traits."""
    if groups is not None and not isinstance(groups, Mapping):
        raise ValueError(
            "Expected groups as a dict of names and arrays, one integer or text per node, but got "
            f"{type(groups).__name__}. Pass groups={{'name': array}}."
        )
    check_names_of_groupings(groups or {})
    if by is not None and not isinstance(by, str | list | tuple | set | frozenset):
        raise ValueError(
            f"Expected by as one of {', '.join(TRAITS)}, or a list of them, but got {type(by).__name__} {by!r}. Pass "
            "by='degree', or for groups of your own groups={'name': array}."
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
        got = f"by={traits!r}" if traits else "no by"
        raise ValueError(
            f"Expected train only with by='train_distance', but got train and {got}. Pass "
            f"by={[*traits, 'train_distance']!r}, or omit train."
        )
    return traits


def check_names_of_groupings(names: Iterable[object]) -> None:
    """Check that names of groupings are text that can be printed."""
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                f"Expected names of groupings as text, but got {name!r} in groups. Pass groups={{'name': …}}."
            )


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
        given_groups(name, values, len(task.inputs.y), task.keep.device) for name, values in (groups or {}).items()
    ]
    for trait in traits:
        values, label = _trait_groups(trait, task, binning.closed, train, class_names)
        found.append(
            number_groups(trait, values, label)._replace(
                is_ordered=trait in ORDERED, is_given=False, conditions_on_outcome=trait in ON_OUTCOME
            )
        )
    for grouping in found:
        check_size(grouping, binning.n_bins)
    return found


def check_size(grouping: NodeGroups, n_bins: int) -> None:
    """Check that the sums of all groups fit into memory."""
    num, name = len(grouping.labels), grouping.name
    if not grouping.is_ordered and num > MAX_PAIRED_GROUPS:
        raise ValueError(
            f"Expected at most {MAX_PAIRED_GROUPS} groups in {name!r}, because edges are scored by pairs of groups, "
            f"but got {num}. Keep the largest: names, g, counts = np.unique(groups, return_inverse=True, "
            f"return_counts=True), then groups={{{name!r}: np.where(np.isin(g, counts.argsort()[-{MAX_PAIRED_GROUPS}:])"
            ", names[g].astype(str), '')} for the array groups, one per node."
        )
    if grouping.num_tables * (n_bins + 2) > MAX_TABLE_ROWS:
        most = MAX_TABLE_ROWS // grouping.num_tables - 2
        raise ValueError(
            f"Expected n_bins of at most {most} for the {grouping.num_tables} groups of edges in {name!r}, but got "
            f"{n_bins}. Use fewer bins or fewer groups."
        )


# Given groups


def given_groups(name: str, values: ArrayLike, num_nodes: int, device: torch.device) -> NodeGroups:
    """Convert integers, or text, one per node. -1, NaN and missing text mean no group."""
    argument = f"groups[{name!r}]"
    array = values if isinstance(values, Tensor) else as_numpy(values, argument)
    if not isinstance(array, Tensor) and array.dtype.kind in "mM":
        raise ValueError(
            f"Expected {argument} to hold integers or text, but got {array.dtype}, times. Pass parts of them as text, "
            "such as np.datetime_as_string(x, unit='Y') for the years of times x."
        )
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


def number_groups(name: str, values: Int[Tensor, " nodes"], label: Callable[[int], str]) -> NodeGroups:
    """Assign numbers to the groups that occur, in the order of their values. -1 means no group."""
    keys, index = values.unique(return_inverse=True)
    has_missing = int(len(keys) > 0 and int(keys[0]) < 0)
    labels = {key: label(key) for key in keys[has_missing:].tolist()}
    return NodeGroups(name, index - has_missing, labels)


# Groups by a trait


def _trait_groups(
    trait: str, task: ScoringTask, closed: Closed, train: ArrayLike | None, class_names: Sequence[str] | None
) -> tuple[Int[Tensor, " nodes"], Callable[[int], str]]:
    """Return the number of each node's group, or -1 for none, and the label of a number."""
    inputs = task.inputs
    if trait in ("predicted_class", "true_class"):
        predicted = inputs.probs.argmax(1) if inputs.predictions is None else inputs.predictions
        classes = inputs.y if trait == "true_class" else predicted
        names = check_names(class_names, inputs.probs.shape[1], "class_names", "class").as_text()
        return classes.long(), lambda k: names[k]
    if trait == "confidence":
        tenths = Binning(NUM_CONFIDENCE_GROUPS, "width", closed)
        group = bin_index(task.records[:, CONFIDENCE], tenths, bin_boundaries(tenths))
        return group, lambda k: _interval_label(k, NUM_CONFIDENCE_GROUPS)
    if trait == "train_distance":
        assert train is not None
        mask = _train_mask(train, inputs.y)
        return _train_distance(inputs.edge_index, mask), _distance_label
    if trait == "degree":
        return _count_neighbors(task)[0].double().frexp().exponent.long(), _degree_label
    known, same = _count_neighbors(task)[1:]
    fifth = (NUM_HOMOPHILY_GROUPS * same // known.clamp(min=1)).clamp(max=NUM_HOMOPHILY_GROUPS - 1)
    group = torch.where((known > 0) & (inputs.y >= 0), fifth, -1)
    return group, lambda k: _interval_label(k, NUM_HOMOPHILY_GROUPS)


def _train_mask(train: ArrayLike, y: Int[Tensor, " nodes"]) -> Bool[Tensor, " nodes"]:
    values = as_tensor(train, "train")
    if values.dim() == 1 and len(values) != len(y):
        raise ValueError(
            f"Expected train as a mask of the {len(y)} nodes, but got {len(values)} values. For "
            f"a list of nodes pass np.isin(np.arange({len(y)}), nodes)."
        )
    return as_mask(train, len(y), y.device, "train")


def _count_neighbors(task: ScoringTask) -> Int[Tensor, "3 nodes"]:
    """Count the edges of each node, those to known labels, and those to the same label.

    Edges are counted as in the scores: an edge listed in both directions once, parallel edges separately, and no
    self-loops. But all edges count, not only the scored ones.
    """
    y, edge_index, mask = task.inputs.y, task.inputs.edge_index, task.inputs.mask
    keep = task.keep if bool(mask.all()) else scored_edges(edge_index, mask, "all")
    if worth_compiling(keep):
        return kernels.group_loops.count_neighbors(edge_index, keep, y)
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
    if worth_compiling(edge_index):
        return kernels.group_loops.train_distance(edge_index, train, FAR, UNREACHABLE)
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
