"""Groups of nodes by a trait: class, degree, confidence, distance from training nodes, local homophily."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.conversion import as_mask, check_names
from edgewise.data.edges import connected_components, scored_edges
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.collect import ScoringTask, slices
from edgewise.metrics.elements import CHUNK_ELEMENTS, CONFIDENCE
from edgewise.metrics.node_groups import ON_OUTCOME, ORDERED, NodeGroups, check_size, given_groups, number_groups
from edgewise.metrics.scoring_input import Binning, Closed
from edgewise.metrics.sums import bin_boundaries, bin_index
from edgewise.validation import ArrayLike

NUM_CONFIDENCE_GROUPS = 10
NUM_HOMOPHILY_GROUPS = 5
FAR, UNREACHABLE = 3, 4  # groups of train_distance: 3 and more edges, and no path


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
        found.append(number_groups(trait, values, label, trait in ORDERED, trait in ON_OUTCOME))
    for grouping in found:
        check_size(grouping, binning.n_bins)
    return found


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
        mask = as_mask(train, len(inputs.y), inputs.y.device, "train")
        return _train_distance(inputs.edge_index, mask), _distance_label
    if trait == "degree":
        return _count_neighbors(task)[0].double().frexp().exponent.long(), _degree_label
    known, same = _count_neighbors(task)[1:]
    fifth = (NUM_HOMOPHILY_GROUPS * same // known.clamp(min=1)).clamp(max=NUM_HOMOPHILY_GROUPS - 1)
    group = torch.where((known > 0) & (inputs.y >= 0), fifth, -1)
    return group, lambda k: _interval_label(k, NUM_HOMOPHILY_GROUPS)


def _count_neighbors(task: ScoringTask) -> Int[Tensor, "3 nodes"]:
    """Count the edges of each node, those to known labels, and those to the same label.

    Edges are counted as in the scores: an edge listed in both directions once, parallel edges separately, and no
    self-loops. But all edges count, not only the scored ones.
    """
    y, edge_index, mask = task.inputs.y, task.inputs.edge_index, task.inputs.mask
    keep = task.keep if bool(mask.all()) else scored_edges(edge_index, mask, "all")
    if worth_compiling(keep):
        return kernels.node_trait_loops.count_neighbors(edge_index, keep, y)
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
        return kernels.node_trait_loops.train_distance(edge_index, train, FAR, UNREACHABLE)
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
