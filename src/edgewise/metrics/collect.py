"""From checked predictions to sums: the one pass over nodes and edges."""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise import kernels
from edgewise.data.edges import EdgeChoice, scored_edges
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.elements import (
    CHUNK_ELEMENTS,
    RECORD,
    Elements,
    Records,
    concatenate,
    joint_elements,
    joint_same_label_elements,
    labels_of,
    node_elements,
    node_records,
    product_elements,
    product_same_label_elements,
)
from edgewise.metrics.scoring_input import Binning, ScoringInput
from edgewise.metrics.sums import (
    FRACTION_BITS,
    LOW_BITS,
    VIEWS,
    Sums,
    bin_boundaries,
    bin_index,
    carried,
    sum_elements,
    sum_groups,
)

Progress = Callable[[int, int], None]  # edges done, edges in all

COMPILED_SLICE = 1 << 24  # edges between two reports of progress


class ScoringTask(NamedTuple):
    """What was given with its nodes reduced to records, and the edges that are to be scored."""

    given: ScoringInput
    records: Records
    keep: Bool[Tensor, " edges"]


class ScoredEdges(NamedTuple):
    """Edges with what is scored of them, and whether their true labels agree."""

    ends: Int[Tensor, "2 edges"]
    elements: Elements
    agree: Bool[Tensor, " edges"]


class ViewElements(NamedTuple):
    """All elements of a view, and the nodes of each: itself, or the two ends of an edge."""

    elements: Elements
    nodes: Int[Tensor, "ends elements"]


def prepare(given: ScoringInput, edge_choice: EdgeChoice) -> ScoringTask:
    """Reduce nodes to records and choose the edges; an edge with an unknown label at an end cannot be scored."""
    keep = scored_edges(given.edge_index, given.mask, edge_choice)
    if edge_choice != "both":
        known = given.y >= 0
        for part in slices(len(keep), CHUNK_ELEMENTS):
            keep[part] &= known[given.edge_index[:, part].long()].all(0)
    return ScoringTask(given, node_records(given.probs, given.y), keep)


def width_sums(task: ScoringTask, binning: Binning, progress: Progress | None = None) -> dict[str, Sums]:
    """Sum every view into bins of equal width, in bounded memory."""
    n_bins, mask, boundaries = binning.n_bins, task.given.mask, bin_boundaries(binning)
    how = n_bins, binning.closed == "right", FRACTION_BITS, LOW_BITS
    if worth_compiling(task.records):
        nodewise = kernels.score_sums.sum_nodes(RECORD, task.records, mask, *how)
    else:
        nodewise = sum_elements(node_elements(task.records[mask]), binning).table
    by_agreement = nodewise.new_zeros(2, n_bins + 2, 4)
    touched = torch.zeros(2, len(mask), dtype=torch.bool, device=mask.device)
    if task.given.joints is None and worth_compiling(task.keep):
        for part in slices(len(task.keep), COMPILED_SLICE):
            edges, keep = task.given.edge_index[:, part], task.keep[part]
            tables = kernels.score_sums.sum_independent_edges(RECORD, task.records, edges, keep, touched, *how)
            by_agreement += carried(tables, n_bins)
            _report(progress, part, task)
    else:
        for ends, elements, agree in edge_chunks(task, progress):
            bins = bin_index(elements.confidence, binning, boundaries)
            by_agreement += sum_groups(elements, bins, (~agree).long(), 2, n_bins)
            touched[0, ends[:, agree].flatten()] = True
            touched[1, ends[:, ~agree].flatten()] = True
    tables = carried(torch.stack((nodewise, by_agreement.sum(0), *by_agreement)), n_bins)
    # For the K index: nodes of the mask that have an edge in each view.
    tables[1:, -1, 1] = (torch.stack((touched.any(0), *touched)) & mask).count_nonzero(1)
    return {view: Sums(table, boundaries) for view, table in zip(VIEWS, tables, strict=True)}


def mass_sums(views: dict[str, ViewElements], mask: Bool[Tensor, " nodes"], binning: Binning) -> dict[str, Sums]:
    """Sum every view into bins of its own that hold equally many elements."""
    sums = {view: sum_elements(elements, binning) for view, (elements, _) in views.items()}
    for view in VIEWS[1:]:
        touched = torch.zeros_like(mask)
        touched[views[view].nodes.flatten()] = True
        sums[view].table[-1, 1] = (touched & mask).count_nonzero()
    return sums


def elements_by_view(task: ScoringTask, progress: Progress | None = None) -> dict[str, ViewElements]:
    """Collect the elements of every view at once: about 50 bytes an edge, twice."""
    mask, parts = task.given.mask, list(edge_chunks(task, progress))
    ends, agree = torch.cat([part.ends for part in parts], dim=1), torch.cat([part.agree for part in parts])
    edges = concatenate([part.elements for part in parts])
    return {
        "nodewise": ViewElements(node_elements(task.records[mask]), mask.nonzero().T),
        "edgewise": ViewElements(edges, ends),
        "agree": ViewElements(edges.select(agree), ends[:, agree]),
        "disagree": ViewElements(edges.select(~agree), ends[:, ~agree]),
    }


def same_label_sums(task: ScoringTask, binning: Binning, progress: Progress | None = None) -> Sums:
    """Sum the event "both ends have the same label", whose probability is Σ_l q(l, l)."""
    return _sum_chunks(_same_label_chunks(task, progress), binning)


def node_set_sums(task: ScoringTask, sets: Int[Tensor, "set sets"], edge_choice: EdgeChoice, binning: Binning) -> Sums:
    """Sum sets of nodes: right if all nodes are, confidence = the largest entry of the joint.

    Sets are chosen as edges are: by how many of their nodes are in the mask; all labels must be known.
    """
    inside, chosen = task.given.mask[sets], (task.given.y >= 0)[sets].all(0)
    if edge_choice != "all":
        chosen &= inside.all(0) if edge_choice == "both" else inside.any(0)
    return _sum_chunks(_node_set_chunks(task, sets[:, chosen]), binning)


def _sum_chunks(chunks: Iterable[Elements], binning: Binning) -> Sums:
    """Sum elements that come in chunks; bins of equal mass have to wait for all of them."""
    if binning.kind == "mass":
        return sum_elements(concatenate(list(chunks)), binning)
    total = reduce(torch.add, (sum_elements(elements, binning).table for elements in chunks))
    return Sums(carried(total, binning.n_bins), bin_boundaries(binning))


def edge_chunks(task: ScoringTask, progress: Progress | None = None) -> Iterator[ScoredEdges]:
    """Go through the scored edges in chunks that fit the outer cache."""
    joints = task.given.joints
    per_edge = 10 if joints is None else task.given.probs.shape[1] ** 2
    for ends, positions in _kept_chunks(task, per_edge, progress):
        start, end = task.records[ends[0]], task.records[ends[1]]
        elements = (
            product_elements(start, end) if joints is None else joint_elements(joints(ends, positions), start, end)
        )
        yield ScoredEdges(ends, elements, labels_of(start) == labels_of(end))


def _same_label_chunks(task: ScoringTask, progress: Progress | None) -> Iterator[Elements]:
    probs, y, joints = task.given.probs, task.given.y, task.given.joints
    per_edge = 2 * probs.shape[1] if joints is None else 2 * probs.shape[1] ** 2
    if joints is None and worth_compiling(probs) and worth_compiling(task.keep):
        per_edge = 10  # no (edges, C) is made, and longer chunks are worth compiled loops
    for ends, positions in _kept_chunks(task, per_edge, progress):
        labels = y[ends].long()
        if joints is None:
            yield product_same_label_elements(probs, ends, labels)
        else:
            yield joint_same_label_elements(joints(ends, positions), labels)


def _node_set_chunks(task: ScoringTask, sets: Int[Tensor, "set sets"]) -> Iterator[Elements]:
    joints, num_classes = task.given.joints, task.given.probs.shape[1]
    per_set = 5 * len(sets) if joints is None else num_classes ** len(sets)
    for part in slices(sets.shape[1], CHUNK_ELEMENTS // per_set):
        ends = [task.records[node] for node in sets[:, part]]
        if joints is None:
            yield product_elements(*ends)
        else:
            positions = torch.arange(part.start, part.stop, device=sets.device)
            yield joint_elements(joints(sets[:, part], positions), *ends)


def _kept_chunks(task: ScoringTask, per_edge: int, progress: Progress | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ends, positions in the list) of edges to score, so many that ``per_edge`` numbers each fit the cache."""
    for part in slices(len(task.keep), CHUNK_ELEMENTS // per_edge):
        positions = part.start + task.keep[part].nonzero().squeeze(1)
        yield task.given.edge_index[:, positions].long(), positions
        _report(progress, part, task)


def _report(progress: Progress | None, part: slice, task: ScoringTask) -> None:
    if progress is not None:
        progress(part.stop, len(task.keep))


def slices(length: int, step: int) -> Iterator[slice]:
    """Cut ``range(length)``; an empty one gives one empty slice, so that whoever concatenates has something."""
    step = max(1, step)
    for lo in range(0, max(1, length), step):
        yield slice(lo, min(lo + step, length))
