"""Sums of groups of nodes and edges, and their intervals.

The last row of a table (see `edgewise.metrics.sums`) holds more sums of its group. For nodes: Σ y and Σ y² of their
true labels, which show whether all labels of a group are equal. For edges: the covariance of edges that share a node.

Let edges be right independently of each other but for shared nodes, as if both ends of an edge were right with their
confidences c_i and c_j, independently. Then the edges (i, j) and (i, k) have the covariance c_j c_k c_i (1 - c_i). Its
sum over the pairs of edges of one group in the same bin is

    Σ_i c_i (1 - c_i) Σ_bins ((Σ_j c_j)² - Σ_j c_j²)

where j are the neighbors of node i by an edge in the group and in the bin. To sum integers, exactly and in any order,
c_j is rounded to a multiple of 2^-6 and c_i (1 - c_i) to one of 2^-14. Bins are chosen by confidences rounded to
multiples of 2^-10. The sum fits int64 as long as the squared degrees have a sum below 5·10^11.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.collect import ScoringTask, ViewElements
from edgewise.metrics.elements import CONFIDENCE, node_elements
from edgewise.metrics.groups import COVARIANCE_BITS, GROUP_VIEWS, GroupSums
from edgewise.metrics.intervals import node_resampling_intervals, resampled_nodes
from edgewise.metrics.node_groups import GroupKey, NodeGroups, given_groups
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import Sums, bin_boundaries, bin_index, sum_in_groups
from edgewise.validation import ArrayLike

LEVEL_BITS = 10  # of confidences that choose the bin of an edge
TERM_BITS = 6  # of confidences in covariances


def group_sums(
    task: ScoringTask,
    groupings: Sequence[NodeGroups],
    sums: Mapping[str, Sums],
    edge_tables: Sequence[Int[Tensor, "tables rows 4"]],
    binning: Binning,
) -> list[GroupSums]:
    """Compute the sums of the nodes of each group, with the bins of the view, and add those of the edges."""
    boundaries = {view: sums[view].boundaries for view in GROUP_VIEWS}
    node_tables = _node_tables(task, groupings, boundaries["nodewise"], binning)
    covariances = sum_covariances(task, groupings, boundaries["edgewise"], binning)
    found = []
    for grouping, nodes, edges, covariance in zip(groupings, node_tables, edge_tables, covariances, strict=True):
        edges[:, -1, 2] = covariance
        options = grouping.name, grouping.is_ordered, grouping.is_given, grouping.conditions_on_outcome, grouping.labels
        found.append(_named_sums(GroupSums(*options, {}, boundaries), grouping.edge_keys(), nodes, edges))
    return found


def _node_tables(
    task: ScoringTask, groupings: Sequence[NodeGroups], boundaries: Float[Tensor, " limits"], binning: Binning
) -> list[Int[Tensor, "groups rows 4"]]:
    if not groupings:
        return []
    mask = task.inputs.mask
    elements, labels = node_elements(task.records[mask]), task.inputs.y[mask].long()
    bins = bin_index(elements.confidence, binning, boundaries)
    powers, found = torch.stack((labels, labels.square()), dim=1), []
    for grouping in groupings:
        group = grouping.group[mask]
        tables = sum_in_groups(elements, bins, group, len(grouping.labels), binning.n_bins)
        tables[:, -1, 1:3].index_add_(0, group[group >= 0], powers[group >= 0])
        found.append(tables)
    return found


def sum_covariances(
    task: ScoringTask, groupings: Sequence[NodeGroups], boundaries: Float[Tensor, " limits"], binning: Binning
) -> list[Int[Tensor, " tables"]]:
    """Sum the covariances of edges that share a node, in each group of edges, as multiples of 2^-26."""
    if not groupings:
        return []
    confidence, edge_index, keep = task.records[:, CONFIDENCE].clamp(0, 1), task.inputs.edge_index, task.keep
    levels = torch.arange(2**LEVEL_BITS + 1, device=keep.device).double() / 2**LEVEL_BITS
    bin_table = bin_index((levels[:, None] * levels).flatten(), binning, boundaries).view(len(levels), -1)
    level, term = ((confidence * 2**bits).round().long() for bits in (LEVEL_BITS, TERM_BITS))
    weight = (confidence * (1 - confidence) * 2 ** (COVARIANCE_BITS - 2 * TERM_BITS)).round().long()
    if worth_compiling(keep):
        groups, nodes = [grouping.for_kernel for grouping in groupings], (level, bin_table, weight, term)
        return kernels.group_loops.sum_covariances(*nodes, edge_index, keep, groups, binning.n_bins)
    ends = edge_index[:, keep].long()
    bins = bin_table[level[ends[0]], level[ends[1]]]
    return [_covariances(grouping, ends, bins, weight, term, binning.n_bins) for grouping in groupings]


def _covariances(
    grouping: NodeGroups,
    ends: Int[Tensor, "2 edges"],
    bins: Int[Tensor, " edges"],
    weight: Int[Tensor, " nodes"],
    term: Int[Tensor, " nodes"],
    n_bins: int,
) -> Int[Tensor, " tables"]:
    group, num_nodes = grouping.edge_group(ends), max(1, len(term))
    slot = (group * n_bins + bins)[group >= 0].repeat(2)
    node, other = torch.cat((ends, ends.flip(0)), dim=1)[:, (group >= 0).repeat(2)]
    slots, index = (slot * num_nodes + node).unique(return_inverse=True)
    total, squares = term.new_zeros(2, len(slots))
    total.index_add_(0, index, term[other])
    squares.index_add_(0, index, term[other].square())
    pairs = weight[slots % num_nodes] * (total.square() - squares)
    return term.new_zeros(grouping.num_tables).index_add_(0, slots // num_nodes // n_bins, pairs)


def _named_sums(empty: GroupSums, edge_keys: Sequence[Any], nodes: Tensor, edges: Tensor) -> GroupSums:
    """Name the tables of nodes and of edges. Groups of edges without edges are left out."""
    edge_sums = {k: table for k, table in zip(edge_keys, edges.cpu(), strict=True) if bool(table[:-2, 0].any())}
    node_sums = dict(zip(empty.labels, nodes.cpu(), strict=True))
    return empty._replace(tables={"nodewise": node_sums, "edgewise": edge_sums})


def mass_edge_tables(
    edges: ViewElements, groupings: Sequence[NodeGroups], binning: Binning, boundaries: Float[Tensor, " limits"]
) -> list[Int[Tensor, "tables rows 4"]]:
    """Sum the edges of each group with the bins of equal mass of all edges."""
    bins = bin_index(edges.elements.confidence, binning, boundaries)
    return [
        sum_in_groups(edges.elements, bins, grouping.edge_group(edges.nodes), grouping.num_tables, binning.n_bins)
        for grouping in groupings
    ]


def group_intervals(
    views: Mapping[str, ViewElements],
    found: Sequence[GroupSums],
    groupings: Sequence[NodeGroups],
    mask: Bool[Tensor, " nodes"],
    binning: Binning,
    norm: Norm,
    n_resamples: int,
    confidence_level: float,
    seed: int,
) -> list[GroupSums]:
    """Return the sums with intervals of each group by resampling nodes, with the same resamples as for the views."""
    results = []
    edges = views["edgewise"]
    population = resampled_nodes(mask, edges.nodes)  # of the views
    nowhere = torch.zeros_like(edges.elements.confidence, dtype=torch.bool)
    none = ViewElements(edges.elements.select(nowhere), edges.nodes[:, nowhere])
    for grouping, sums in zip(groupings, found, strict=True):
        keys = {"nodewise": list(sums.labels), "edgewise": grouping.edge_keys()}
        position = {view: {key: n for n, key in enumerate(keys[view])} for view in GROUP_VIEWS}
        group = {
            "nodewise": grouping.group[views["nodewise"].nodes[0]],
            "edgewise": grouping.edge_group(views["edgewise"].nodes),
        }
        parts: dict[str, ViewElements] = {"edgewise": none}
        tables: dict[str, Sums] = {"edgewise": Sums(torch.empty(0, 4).long(), sums.boundaries["edgewise"])}
        names: dict[tuple[str, Any], str] = {}
        for view in GROUP_VIEWS:
            elements, nodes = views[view]
            for key in sums.tables[view]:
                selected = group[view] == position[view][key]
                names[view, key] = name = f"{view} {len(names)}"
                parts[name] = ViewElements(elements.select(selected), nodes[:, selected])
                tables[name] = Sums(sums.tables[view][key], sums.boundaries[view])
        options = population, binning, norm, n_resamples, confidence_level, seed
        intervals = node_resampling_intervals(parts, tables, *options)
        results.append(sums._replace(intervals={place: intervals[name] for place, name in names.items()}))
    return results


# Groups over batches, whose numbers are fixed in advance


def count_group_tables(counts: Mapping[str, int]) -> int:
    """Return the number of tables of all groupings: one per group of nodes and one per pair of groups."""
    return sum(num + num * (num + 1) // 2 for num in counts.values())


def numbered_groups(
    groups: Mapping[str, ArrayLike] | None, counts: Mapping[str, int], num_nodes: int, device: torch.device
) -> list[NodeGroups]:
    """Check the groups of a batch: integers below the number of groups of each grouping, or -1 for none."""
    if set(groups or {}) != set(counts):
        raise ValueError(
            f"Expected groups with the names {list(counts)} in every batch, but got {list(groups or {})}. They are the "
            "names of GraphCalibration(groups={'name': number of groups})."
        )
    found = []
    for name, num in counts.items():
        grouping = given_groups(name, (groups or {})[name], num_nodes, device)
        outside = [key for key in grouping.labels if not isinstance(key, int) or key >= num]
        if outside:
            raise ValueError(
                f"Expected groups[{name!r}] to hold integers from 0 to {num - 1}, or -1 for none, but got "
                f"{outside[0]!r}. Number the groups from 0, and pass their number to GraphCalibration(groups=)."
            )
        keys = torch.tensor([*grouping.labels, -1], device=device)
        found.append(grouping._replace(group=keys[grouping.group], labels={k: str(k) for k in range(num)}))
    return found


def stack_group_tables(
    task: ScoringTask, groupings: Sequence[NodeGroups], edge_tables: Sequence[Tensor], binning: Binning
) -> Int[Tensor, "tables rows 4"]:
    """Return the tables of all groupings: those of the nodes, then those of the edges, of each."""
    boundaries = bin_boundaries(binning)
    node_tables, covariances = (
        tables(task, groupings, boundaries, binning) for tables in (_node_tables, sum_covariances)
    )
    for tables, covariance in zip(edge_tables, covariances, strict=True):
        tables[:, -1, 2] = covariance
    parts = [part for pair in zip(node_tables, edge_tables, strict=True) for part in pair]
    return torch.cat([torch.zeros(0, binning.n_bins + 2, 4, dtype=torch.long, device=task.records.device), *parts])


def unstack_group_tables(
    tables: Int[Tensor, "tables rows 4"], counts: Mapping[str, int], binning: Binning
) -> list[GroupSums]:
    """Return the sums of all groupings, from the tables of `stack_group_tables`."""
    found, boundaries = [], dict.fromkeys(GROUP_VIEWS, bin_boundaries(binning))
    for name, num in counts.items():
        nodes, edges, tables = tables.split([num, num * (num + 1) // 2, len(tables) - num - num * (num + 1) // 2])
        labels: dict[GroupKey, str] = {k: str(k) for k in range(num)}
        keys = NodeGroups(name, torch.empty(0).long(), labels).edge_keys()
        found.append(_named_sums(GroupSums(name, False, True, False, labels, {}, boundaries), keys, nodes, edges))
    return found
