"""Sums of groups of nodes and edges, and their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.metrics.collect import ScoringTask, ViewElements
from edgewise.metrics.elements import node_elements
from edgewise.metrics.groups import GROUP_VIEWS, GroupKey, GroupSums
from edgewise.metrics.intervals import node_resampling_intervals, resampled_nodes
from edgewise.metrics.node_groups import NodeGroups, given_groups
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import Sums, bin_boundaries, bin_index, sum_in_groups
from edgewise.validation import ArrayLike


def group_sums(
    task: ScoringTask,
    groupings: Sequence[NodeGroups],
    sums: Mapping[str, Sums],
    edge_tables: Sequence[Int[Tensor, "tables rows 4"]],
    binning: Binning,
) -> list[GroupSums]:
    """Compute the sums of the nodes of each group, with the bins of the view, and add those of the edges."""
    boundaries = {view: sums[view].boundaries for view in GROUP_VIEWS}
    of_nodes = _node_tables(task, groupings, boundaries["nodewise"], binning)
    found = []
    for grouping, nodes, edges in zip(groupings, of_nodes, edge_tables, strict=True):
        options = grouping.name, grouping.is_ordered, grouping.conditions_on_outcome, grouping.labels
        found.append(_named_sums(GroupSums(*options, {}, boundaries), grouping.edge_keys(), nodes, edges))
    return found


def _node_tables(
    task: ScoringTask, groupings: Sequence[NodeGroups], boundaries: Float[Tensor, " limits"], binning: Binning
) -> list[Int[Tensor, "groups rows 4"]]:
    mask = task.inputs.mask
    elements = node_elements(task.records[mask])
    bins = bin_index(elements.confidence, binning, boundaries)
    return [
        sum_in_groups(elements, bins, grouping.group[mask], len(grouping.labels), binning.n_bins)
        for grouping in groupings
    ]


def _named_sums(empty: GroupSums, edge_keys: Sequence[Any], nodes: Tensor, edges: Tensor) -> GroupSums:
    """Name the tables of nodes and of edges. Groups of edges without edges are left out."""
    of_edges = {k: table for k, table in zip(edge_keys, edges.cpu(), strict=True) if bool(table[:-2, 0].any())}
    of_nodes = dict(zip(empty.labels, nodes.cpu(), strict=True))
    return empty._replace(tables={"nodewise": of_nodes, "edgewise": of_edges})


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
        found.append(NodeGroups(name, keys[grouping.group], {k: str(k) for k in range(num)}))
    return found


def stack_group_tables(
    task: ScoringTask, groupings: Sequence[NodeGroups], edge_tables: Sequence[Tensor], binning: Binning
) -> Int[Tensor, "tables rows 4"]:
    """Return the tables of all groupings: those of the nodes, then those of the edges, of each."""
    of_nodes = _node_tables(task, groupings, bin_boundaries(binning), binning)
    parts = [part for pair in zip(of_nodes, edge_tables, strict=True) for part in pair]
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
        found.append(_named_sums(GroupSums(name, False, False, labels, {}, boundaries), keys, nodes, edges))
    return found
