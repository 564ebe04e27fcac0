"""Sums of all views, computed from checked inputs in one pass over nodes and edges."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.data.edges import EdgeChoice, scored_edges
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.elements import (
    CHUNK_ELEMENTS,
    RECORD_COLUMNS,
    SAME_LABEL_BITS,
    SMALL_BITS,
    Elements,
    Records,
    concatenate,
    decode_labels,
    joint_elements,
    joint_same_label_elements,
    node_elements,
    node_records,
    product_elements,
    product_same_label_elements,
    recompute_small_outcomes,
)
from edgewise.metrics.forecasts import Keys, pack_elements
from edgewise.metrics.scoring_input import Binning, ScoringInput
from edgewise.metrics.sums import (
    FRACTION_BITS,
    LOW_BITS,
    VIEWS,
    Sums,
    bin_boundaries,
    bin_index,
    carry_tables,
    sum_elements,
    sum_groups,
    sum_in_groups,
)

if TYPE_CHECKING:
    from edgewise.metrics.node_groups import NodeGroups

Progress = Callable[[int, int], None]  # (processed edges, all edges)

EDGES_PER_REPORT = 1 << 24  # between two calls of ``progress``, in compiled loops


class ScoringTask(NamedTuple):
    """Checked inputs, the records of all nodes, and the mask of scored edges."""

    inputs: ScoringInput
    records: Records
    keep: Bool[Tensor, " edges"]


class ScoredEdges(NamedTuple):
    """End nodes and elements of scored edges, and whether their ends have the same label."""

    ends: Int[Tensor, "2 edges"]
    elements: Elements
    agree: Bool[Tensor, " edges"]


class ViewElements(NamedTuple):
    """All elements of a view, and the nodes of each element: one node, or the two ends of an edge."""

    elements: Elements
    nodes: Int[Tensor, "ends elements"]


def prepare(inputs: ScoringInput, edge_choice: EdgeChoice) -> ScoringTask:
    """Compute the records of nodes and select the scored edges. Both ends of a scored edge have known labels."""
    keep = scored_edges(inputs.edge_index, inputs.mask, edge_choice)
    if edge_choice != "both":
        is_labeled = inputs.y >= 0
        for part in slices(len(keep), CHUNK_ELEMENTS):
            keep[part] &= is_labeled[inputs.edge_index[:, part].long()].all(0)
    return ScoringTask(inputs, node_records(inputs.probs, inputs.y, inputs.predictions), keep)


def collect_sums(
    task: ScoringTask,
    binning: Binning,
    edge_choice: EdgeChoice,
    same_label: bool,
    node_sets: Int[Tensor, "set sets"] | None,
    progress: Progress | None = None,
    views: Mapping[str, ViewElements] | None = None,
    groupings: Sequence["NodeGroups"] = (),
    keys: Mapping[str, Keys] | None = None,
) -> tuple[dict[str, Sums], list[Int[Tensor, "tables rows 4"]]]:
    """Compute the sums of all views, of the event and of the node sets if they are scored, and of groups of edges.

    ``views`` are the elements of the views, if they were computed before. Only bins of equal mass need them, and then
    there are no tables of groups. ``keys`` are filled with packed confidences, see `width_sums`.
    """
    keys, edge_tables = keys or {}, list[Tensor]()
    if binning.kind == "mass":
        sums = mass_sums(views or elements_by_view(task, progress), task.inputs.mask, binning)
    else:
        sums, edge_tables = width_sums(task, binning, groupings, progress, keys.get("edgewise"))
    if same_label:
        sums["same_label"] = same_label_sums(task, binning, progress, keys.get("same_label"))
    if node_sets is not None:
        sums["node_sets"] = node_set_sums(task, node_sets, edge_choice, binning)
    return sums, edge_tables


def width_sums(
    task: ScoringTask,
    binning: Binning,
    groupings: Sequence["NodeGroups"] = (),
    progress: Progress | None = None,
    keys: Keys | None = None,
) -> tuple[dict[str, Sums], list[Int[Tensor, "tables rows 4"]]]:
    """Compute the sums of all views, and one table per group of edges of each grouping, in one pass over the edges.

    ``keys`` (scored edges,) is filled with the packed confidences of edges. Edges of group 1 agree.
    """
    n_bins, mask, boundaries = binning.n_bins, task.inputs.mask, bin_boundaries(binning)
    options = n_bins, binning.closed == "right", FRACTION_BITS, LOW_BITS
    if worth_compiling(mask):
        nodewise = carry_tables(kernels.score_sums.sum_nodes(RECORD_COLUMNS, task.records, mask, *options), n_bins)
    else:
        nodewise = _sum_chunks(_node_chunks(task), binning).table
    by_agreement = nodewise.new_zeros(2, n_bins + 2, 4)  # agree, disagree
    by_group = [nodewise.new_zeros(grouping.num_tables, n_bins + 2, 4) for grouping in groupings]
    # Number of edges of each node in agree and disagree, counted by each thread.
    degrees = torch.zeros(torch.get_num_threads(), 2, len(mask), dtype=torch.int32, device=mask.device)
    if task.inputs.joints is None and worth_compiling(task.keep):
        for part in slices(len(task.keep), EDGES_PER_REPORT):
            edges, keep = task.inputs.edge_index[:, part], task.keep[part]
            groups, unfilled = [group.for_kernel for group in groupings], _remaining(keys, task.keep[: part.start])
            parts = kernels.score_sums.sum_independent_edges(
                RECORD_COLUMNS, task.records, edges, keep, degrees, groups, *options, unfilled
            )
            for total, tables in zip((by_agreement, *by_group), parts, strict=True):
                total += carry_tables(tables, n_bins)
            _report(progress, part, task)
    else:
        num_packed = 0
        for ends, elements, agree in edge_chunks(task, progress):
            if keys is not None:
                keys[num_packed : num_packed + len(agree)] = pack_elements(elements, agree)
                num_packed += len(agree)
            bins = bin_index(elements.confidence, binning, boundaries)
            by_agreement += sum_groups(elements, bins, (~agree).long(), 2, n_bins)
            for total, grouping in zip(by_group, groupings, strict=True):
                total += sum_in_groups(elements, bins, grouping.edge_group(ends), len(total), n_bins)
            for view, selected in enumerate((agree, ~agree)):
                nodes = ends[:, selected].flatten()
                degrees[0, view].index_add_(0, nodes, torch.ones_like(nodes, dtype=degrees.dtype))
    tables = carry_tables(torch.stack((nodewise, by_agreement.sum(0), *by_agreement)), n_bins)
    add_degrees(tables, degrees.sum(0), mask)
    sums = {view: Sums(table, boundaries) for view, table in zip(VIEWS, tables, strict=True)}
    return sums, [carry_tables(tables, n_bins) for tables in by_group]


def add_degrees(
    tables: Int[Tensor, "views rows 4"], degree: Int[Tensor, "2 nodes"], mask: Bool[Tensor, " nodes"]
) -> None:
    """Set what the tables of all views know of degrees: nodes of the mask with an edge, for the K index, and Σ d²."""
    by_view = torch.stack((degree.sum(0), *degree))
    tables[1:, -1, 1] = ((by_view > 0) & mask).count_nonzero(1)
    tables[1, -1, 2] = by_view[0].square().sum()


def mass_sums(views: Mapping[str, ViewElements], mask: Bool[Tensor, " nodes"], binning: Binning) -> dict[str, Sums]:
    """Compute the sums of all views with bins of equal mass, separate for each view."""
    sums = {view: sum_elements(elements, binning) for view, (elements, _) in views.items()}
    for view in VIEWS[1:]:
        has_edge = torch.zeros_like(mask)
        has_edge[views[view].nodes.flatten()] = True
        sums[view].table[-1, 1] = (has_edge & mask).count_nonzero()
    sums["edgewise"].table[-1, 2] = views["edgewise"].nodes.flatten().bincount().square().sum()
    return sums


def same_label_elements(task: ScoringTask, progress: Progress | None = None) -> Elements:
    """Return the elements of the event "both ends have the same label", in the order of the edgewise view."""
    return concatenate(list(_same_label_chunks(task, progress)))


def elements_by_view(task: ScoringTask, progress: Progress | None = None) -> dict[str, ViewElements]:
    """Return the elements of all views. They take about 100 bytes of memory per edge."""
    mask, parts = task.inputs.mask, list(edge_chunks(task, progress))
    ends, agree = torch.cat([part.ends for part in parts], dim=1), torch.cat([part.agree for part in parts])
    edges = concatenate([part.elements for part in parts])
    return {
        "nodewise": ViewElements(node_elements(task.records[mask]), mask.nonzero().T),
        "edgewise": ViewElements(edges, ends),
        "agree": ViewElements(edges.select(agree), ends[:, agree]),
        "disagree": ViewElements(edges.select(~agree), ends[:, ~agree]),
    }


def pack_edges(task: ScoringTask) -> Keys:
    """Return the packed confidences of edges. Edges of group 1 agree."""
    return np.concatenate([pack_elements(elements, agree) for _, elements, agree in edge_chunks(task)])


def same_label_sums(
    task: ScoringTask, binning: Binning, progress: Progress | None = None, keys: Keys | None = None
) -> Sums:
    """Compute the sums of the event "both ends have the same label" with probability Σ_l q(l, l).

    ``keys`` (scored edges,) is filled with the packed probabilities of the event.
    """
    (probs, y, edge_index, _, joints, *_), n_bins = task.inputs, binning.n_bins
    if joints is None and binning.kind == "width" and worth_compiling(probs) and worth_compiling(task.keep):
        total = torch.zeros(n_bins + 2, 4, dtype=torch.long)

        def recompute(ends: Tensor, p_outcome: Tensor) -> Tensor:
            return recompute_small_outcomes(probs, ends.long(), y[ends.long()].long(), p_outcome)

        options = recompute, SAME_LABEL_BITS, SMALL_BITS, n_bins, binning.closed == "right", FRACTION_BITS, LOW_BITS
        for part in slices(len(task.keep), EDGES_PER_REPORT):
            remaining = _remaining(keys, task.keep[: part.start])
            table = kernels.score_sums.sum_same_label(
                probs, y, edge_index[:, part], task.keep[part], *options, remaining
            )
            total += carry_tables(table, n_bins)
            _report(progress, part, task)
        return Sums(carry_tables(total, n_bins), bin_boundaries(binning))
    return _sum_chunks(_pack_chunks(_same_label_chunks(task, progress), keys), binning)


def _remaining(keys: Keys | None, processed: Bool[Tensor, " edges"]) -> Keys | None:
    """Return the keys of the edges after the processed ones."""
    return None if keys is None else keys[int(processed.count_nonzero()) :]


def _pack_chunks(chunks: Iterable[Elements], keys: Keys | None) -> Iterator[Elements]:
    """Yield the chunks, and fill the keys with their packed elements."""
    num_packed = 0
    for elements in chunks:
        if keys is not None:
            keys[num_packed : num_packed + len(elements.correct)] = pack_elements(elements)
            num_packed += len(elements.correct)
        yield elements


def node_set_sums(task: ScoringTask, sets: Int[Tensor, "set sets"], edge_choice: EdgeChoice, binning: Binning) -> Sums:
    """Compute the sums of node sets. A set is correct if all its nodes are. Its confidence is that of `joint_elements`.

    ``edge_choice`` selects sets like edges, by the number of nodes in the mask. All labels of a set must be known.
    """
    in_mask, selected = task.inputs.mask[sets], (task.inputs.y >= 0)[sets].all(0)
    if edge_choice != "all":
        selected &= in_mask.all(0) if edge_choice == "both" else in_mask.any(0)
    return _sum_chunks(_node_set_chunks(task, sets[:, selected]), binning)


def _sum_chunks(chunks: Iterable[Elements], binning: Binning) -> Sums:
    """Sum chunks of elements. Bins of equal mass need all elements at once."""
    if binning.kind == "mass":
        return sum_elements(concatenate(list(chunks)), binning)
    total = reduce(torch.add, (sum_elements(elements, binning).table for elements in chunks))
    return Sums(carry_tables(total, binning.n_bins), bin_boundaries(binning))


def edge_chunks(task: ScoringTask, progress: Progress | None = None) -> Iterator[ScoredEdges]:
    """Yield the scored edges in chunks that fit the last-level cache."""
    per_edge = 10 if task.inputs.joints is None else task.inputs.probs.shape[1] ** 2
    for ends, positions in _scored_edge_chunks(task, per_edge, progress):
        start, end = task.records.index_select(0, ends[0]), task.records.index_select(0, ends[1])
        yield ScoredEdges(
            ends, _set_elements(task, ends, positions, start, end), decode_labels(start) == decode_labels(end)
        )


def _set_elements(
    task: ScoringTask, nodes: Int[Tensor, "set sets"], positions: Int[Tensor, " sets"], *records: Records
) -> Elements:
    """Compute the elements of edges or node sets, by their products or by their joints."""
    joints, predictions = task.inputs.joints, task.inputs.predictions
    if joints is None:
        return product_elements(*records)
    given = None if predictions is None else predictions[nodes].long()
    return joint_elements(joints(nodes, positions), *records, predictions=given)


def _node_chunks(task: ScoringTask) -> Iterator[Elements]:
    for part in slices(len(task.records), CHUNK_ELEMENTS // 10):
        yield node_elements(task.records[part][task.inputs.mask[part]])


def _same_label_chunks(task: ScoringTask, progress: Progress | None) -> Iterator[Elements]:
    probs, y, joints = task.inputs.probs, task.inputs.y, task.inputs.joints
    per_edge = 2 * probs.shape[1] if joints is None else 2 * probs.shape[1] ** 2
    for ends, positions in _scored_edge_chunks(task, per_edge, progress):
        labels = y[ends].long()
        if joints is None:
            yield product_same_label_elements(probs, ends, labels)
        else:
            yield joint_same_label_elements(joints(ends, positions), labels)


def _node_set_chunks(task: ScoringTask, sets: Int[Tensor, "set sets"]) -> Iterator[Elements]:
    per_set = 5 * len(sets) if task.inputs.joints is None else task.inputs.probs.shape[1] ** len(sets)
    for part in slices(sets.shape[1], CHUNK_ELEMENTS // per_set):
        records = [task.records.index_select(0, node) for node in sets[:, part]]
        positions = torch.arange(part.start, part.stop, device=sets.device)
        yield _set_elements(task, sets[:, part], positions, *records)


def _scored_edge_chunks(task: ScoringTask, per_edge: int, progress: Progress | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ends, positions in edge_index) of scored edges. ``per_edge`` numbers per edge of a chunk fit the cache."""
    for part in slices(len(task.keep), CHUNK_ELEMENTS // per_edge):
        positions = part.start + task.keep[part].nonzero().squeeze(1)
        yield task.inputs.edge_index[:, positions].long(), positions
        _report(progress, part, task)


def _report(progress: Progress | None, part: slice, task: ScoringTask) -> None:
    if progress is not None:
        progress(part.stop, len(task.keep))


def slices(length: int, step: int) -> Iterator[slice]:
    """Yield slices of ``range(length)``, at least one, so that results can be concatenated."""
    step = max(1, step)
    for lo in range(0, max(1, length), step):
        yield slice(lo, min(lo + step, length))
