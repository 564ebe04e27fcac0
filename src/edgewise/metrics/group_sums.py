"""Sums of groups of nodes and edges, computed from checked inputs in one pass over the edges, and their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.collect import (
    EDGES_PER_REPORT,
    Progress,
    ScoringTask,
    ViewElements,
    edge_chunks,
    slices,
)
from edgewise.metrics.elements import CHUNK_ELEMENTS, RECORD_COLUMNS, Elements, node_elements
from edgewise.metrics.groups import GROUP_VIEWS, GroupSums
from edgewise.metrics.intervals import node_resampling_intervals
from edgewise.metrics.node_groups import NodeGroups
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import FRACTION_BITS, LOW_BITS, Sums, bin_index, carry_tables, sum_groups


def group_sums(
    task: ScoringTask,
    groupings: Sequence[NodeGroups],
    sums: Mapping[str, Sums],
    binning: Binning,
    progress: Progress | None = None,
) -> list[GroupSums]:
    """Compute the sums of each group, with the bins of the view, in bounded memory."""
    boundaries = {view: sums[view].boundaries for view in GROUP_VIEWS}
    nodes = _node_tables(task, groupings, binning, boundaries["nodewise"])
    edges = _edge_tables(task, groupings, binning, boundaries["edgewise"], progress)
    found = []
    for grouping, of_nodes, of_edges in zip(groupings, nodes, edges, strict=True):
        tables: dict[str, dict[Any, Tensor]] = {
            "nodewise": dict(zip(grouping.labels, of_nodes.cpu(), strict=True)),
            "edgewise": {
                key: table
                for key, table in zip(grouping.edge_keys(), of_edges.cpu(), strict=True)
                if bool(table[: binning.n_bins, 0].any())
            },
        }
        options = grouping.name, grouping.is_ordered, grouping.conditions_on_outcome, grouping.labels
        found.append(GroupSums(*options, tables, boundaries))
    return found


def _node_tables(
    task: ScoringTask, groupings: Sequence[NodeGroups], binning: Binning, boundaries: Tensor
) -> list[Int[Tensor, "groups rows 4"]]:
    totals = [_zero_tables(len(grouping.labels), binning, task) for grouping in groupings]
    for part in slices(len(task.records), CHUNK_ELEMENTS // 10):
        selected = task.inputs.mask[part]
        elements = node_elements(task.records[part][selected])
        bins = bin_index(elements.confidence, binning, boundaries)
        for grouping, total in zip(groupings, totals, strict=True):
            total += _sum_in_groups(elements, bins, grouping.index[part][selected], len(total), binning)
    return [carry_tables(total, binning.n_bins) for total in totals]


def _edge_tables(
    task: ScoringTask,
    groupings: Sequence[NodeGroups],
    binning: Binning,
    boundaries: Tensor,
    progress: Progress | None,
) -> list[Int[Tensor, "groups rows 4"]]:
    n_bins = binning.n_bins
    totals = [_zero_tables(grouping.num_tables, binning, task) for grouping in groupings]
    if task.inputs.joints is None and binning.kind == "width" and worth_compiling(task.keep):
        options = n_bins, binning.closed == "right", FRACTION_BITS, LOW_BITS
        indices = [(grouping.index, grouping.is_ordered, grouping.num_tables) for grouping in groupings]
        for part in slices(len(task.keep), EDGES_PER_REPORT):
            edges, keep = task.inputs.edge_index[:, part], task.keep[part]
            parts = kernels.score_sums.sum_edge_groups(RECORD_COLUMNS, task.records, edges, keep, indices, *options)
            for total, tables in zip(totals, parts, strict=True):
                total += carry_tables(tables, n_bins)
            if progress is not None:
                progress(part.stop, len(task.keep))
    else:
        for ends, elements, _ in edge_chunks(task, progress):
            bins = bin_index(elements.confidence, binning, boundaries)
            for grouping, total in zip(groupings, totals, strict=True):
                total += _sum_in_groups(elements, bins, grouping.edge_group(ends), len(total), binning)
    return [carry_tables(total, n_bins) for total in totals]


def _zero_tables(num: int, binning: Binning, task: ScoringTask) -> Int[Tensor, "groups rows 4"]:
    return torch.zeros(num, binning.n_bins + 2, 4, dtype=torch.long, device=task.records.device)


def _sum_in_groups(
    elements: Elements, bins: Int[Tensor, " elements"], group: Int[Tensor, " elements"], num: int, binning: Binning
) -> Int[Tensor, "groups rows 4"]:
    """Sum elements into one table per group. Those without a group, -1, go to an additional table that is dropped."""
    return sum_groups(elements, bins, torch.where(group < 0, num, group).long(), num + 1, binning.n_bins)[:num]


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
