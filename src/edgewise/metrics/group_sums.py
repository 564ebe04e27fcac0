"""Sums of groups of nodes and edges, and their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.metrics.collect import ScoringTask, ViewElements
from edgewise.metrics.elements import node_elements
from edgewise.metrics.groups import GROUP_VIEWS, GroupSums
from edgewise.metrics.intervals import node_resampling_intervals
from edgewise.metrics.node_groups import NodeGroups
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import Sums, bin_index, sum_in_groups


def group_sums(
    task: ScoringTask,
    groupings: Sequence[NodeGroups],
    sums: Mapping[str, Sums],
    edge_tables: Sequence[Int[Tensor, "tables rows 4"]],
    binning: Binning,
) -> list[GroupSums]:
    """Compute the sums of the nodes of each group, with the bins of the view, and add those of the edges."""
    boundaries, n_bins = {view: sums[view].boundaries for view in GROUP_VIEWS}, binning.n_bins
    elements = node_elements(task.records[task.inputs.mask]) if groupings else None
    found = []
    for grouping, of_edges in zip(groupings, edge_tables, strict=True):
        assert elements is not None
        bins = bin_index(elements.confidence, binning, boundaries["nodewise"])
        of_nodes = sum_in_groups(elements, bins, grouping.index[task.inputs.mask], len(grouping.labels), n_bins)
        tables: dict[str, dict[Any, Tensor]] = {
            "nodewise": dict(zip(grouping.labels, of_nodes.cpu(), strict=True)),
            "edgewise": {
                key: table
                for key, table in zip(grouping.edge_keys(), of_edges.cpu(), strict=True)
                if bool(table[:n_bins, 0].any())
            },
        }
        options = grouping.name, grouping.is_ordered, grouping.conditions_on_outcome, grouping.labels
        found.append(GroupSums(*options, tables, boundaries))
    return found


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
    for grouping, sums in zip(groupings, found, strict=True):
        position = {"nodewise": list(sums.labels), "edgewise": grouping.edge_keys()}
        group = {
            "nodewise": grouping.index[views["nodewise"].nodes[0]],
            "edgewise": grouping.edge_group(views["edgewise"].nodes),
        }
        parts: dict[str, ViewElements] = {"edgewise": views["edgewise"]}
        tables: dict[str, Sums] = {"edgewise": Sums(torch.empty(0, 4).long(), sums.boundaries["edgewise"])}
        names: dict[tuple[str, Any], str] = {}
        for view in GROUP_VIEWS:
            elements, nodes = views[view]
            for key in sums.tables[view]:
                selected = group[view] == position[view].index(key)
                names[view, key] = name = f"{view} {len(names)}"
                parts[name] = ViewElements(elements.select(selected), nodes[:, selected])
                tables[name] = Sums(sums.tables[view][key], sums.boundaries[view])
        options = mask, binning, norm, n_resamples, confidence_level, seed
        intervals = node_resampling_intervals(parts, tables, *options)
        results.append(sums._replace(intervals={place: intervals[name] for place, name in names.items()}))
    return results
