"""From checked predictions to sums: the one pass over nodes and edges."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import EdgeChoice, scored_edges
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.elements import (
    CHUNK_ELEMENTS,
    Records,
    joint_elements,
    joint_event_elements,
    labels_of,
    node_elements,
    node_records,
    product_elements,
    product_event_elements,
)
from edgewise.metrics.scoring_input import ScoringInput
from edgewise.metrics.sums import (
    AGREE,
    DISAGREE,
    EDGEWISE,
    NODEWISE,
    Binning,
    Elements,
    carried,
    empty_tables,
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


def prepare(given: ScoringInput, edges: EdgeChoice) -> ScoringTask:
    """Reduce nodes to records and choose the edges; an edge with an unknown label at an end cannot be scored."""
    keep = scored_edges(given.edge_index, given.mask, edges)
    if edges != "both":
        known = given.y >= 0
        for part in slices(len(keep), CHUNK_ELEMENTS):
            keep[part] &= known[given.edge_index[:, part].long()].all(0)
    return ScoringTask(given, node_records(given.probs, given.y), keep)


def width_tables(task: ScoringTask, binning: Binning, progress: Progress | None = None) -> Int[Tensor, "tables rows 4"]:
    """Sum every view into bins of equal width, in bounded memory."""
    tables = empty_tables(binning.n_bins, task.records.device)
    boundaries = binning.boundaries(task.records[:0, 0])
    if worth_compiling(task.records):
        from edgewise.kernels.score_sums import sum_nodes

        tables[NODEWISE] = sum_nodes(task.records, task.given.mask, binning)
    else:
        tables[NODEWISE] = sum_one(all_nodes(task), binning, boundaries)
    touched = torch.zeros(2, len(task.records), dtype=torch.bool, device=task.records.device)
    by_agreement = tables[AGREE : DISAGREE + 1]
    if task.given.joints is None and worth_compiling(task.keep):
        _sum_long_list(task, binning, by_agreement, touched, progress)
    else:
        for edges in edge_chunks(task, progress):
            bins = binning.index(edges.elements.confidence, boundaries)
            by_agreement += sum_groups(edges.elements, bins, (~edges.agree).long(), 2, binning.n_bins)
            _touch(touched, edges)
    tables[EDGEWISE] = tables[AGREE] + tables[DISAGREE]
    _count_touched(tables, touched, task.given.mask)
    return carried(tables, binning.n_bins)


def mass_tables(
    nodes: Elements, edges: ScoredEdges, mask: Bool[Tensor, " nodes"], binning: Binning
) -> tuple[Int[Tensor, "tables rows 4"], Float[Tensor, "tables limits"]]:
    """Sum every view into bins of its own that hold equally many elements, and give their boundaries."""
    everything = torch.ones_like(edges.agree)
    tables = empty_tables(binning.n_bins, mask.device)
    limits = torch.zeros(len(tables), binning.n_bins + 1, dtype=torch.float64, device=mask.device)
    views = [nodes] + [edges.elements.select(chosen) for chosen in (everything, edges.agree, ~edges.agree)]
    for view, elements in enumerate(views):
        limits[view] = binning.boundaries(elements.confidence)
        tables[view] = sum_one(elements, binning, limits[view])
    touched = torch.zeros(2, len(mask), dtype=torch.bool, device=mask.device)
    _touch(touched, edges)
    _count_touched(tables, touched, mask)
    return tables, limits


def same_label_table(
    task: ScoringTask, binning: Binning, progress: Progress | None = None
) -> tuple[Int[Tensor, "rows 4"], Float[Tensor, " limits"]]:
    """Sum the event "both ends have the same label", whose probability is Σ_l q(l, l)."""
    return one_table(_same_label_chunks(task, progress), binning, task.records.device)


def one_table(
    chunks: Iterable[Elements], binning: Binning, device: torch.device
) -> tuple[Int[Tensor, "rows 4"], Float[Tensor, " limits"]]:
    """Sum elements that come in chunks; bins of equal mass have to wait for all of them."""
    boundaries = binning.boundaries(torch.empty(0, dtype=torch.float64, device=device))
    table = empty_tables(binning.n_bins, device)[0]
    if binning.kind == "width":
        for elements in chunks:
            table += sum_one(elements, binning, boundaries)
    else:
        elements = concatenate(list(chunks))
        boundaries = binning.boundaries(elements.confidence)
        table = sum_one(elements, binning, boundaries)
    return carried(table, binning.n_bins), boundaries


def all_nodes(task: ScoringTask) -> Elements:
    """Give the elements of all nodes of the mask."""
    return node_elements(task.records[task.given.mask])


def all_edges(task: ScoringTask, progress: Progress | None = None) -> ScoredEdges:
    """Give all scored edges at once: about 50 bytes an edge."""
    parts = list(edge_chunks(task, progress))
    ends = torch.cat([part.ends for part in parts], dim=1)
    return ScoredEdges(ends, concatenate([part.elements for part in parts]), torch.cat([part.agree for part in parts]))


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
            yield product_event_elements(probs, ends, labels)
        else:
            yield joint_event_elements(joints(ends, positions), labels)


def _kept_chunks(task: ScoringTask, per_edge: int, progress: Progress | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Give (ends, positions in the list) of edges to score, so many that ``per_edge`` numbers each fit the cache."""
    num_edges = len(task.keep)
    for part in slices(num_edges, CHUNK_ELEMENTS // per_edge):
        positions = part.start + task.keep[part].nonzero().squeeze(1)
        yield task.given.edge_index[:, positions].long(), positions
        if progress is not None:
            progress(part.stop, num_edges)


def slices(length: int, step: int) -> Iterator[slice]:
    """Cut ``range(length)``; an empty one gives one empty slice, so that whoever concatenates has something."""
    step = max(1, step)
    for lo in range(0, max(1, length), step):
        yield slice(lo, min(lo + step, length))


def _sum_long_list(
    task: ScoringTask, binning: Binning, by_agreement: Tensor, touched: Tensor, progress: Progress | None
) -> None:
    from edgewise.kernels.score_sums import sum_product_edges

    num_edges, edge_index = len(task.keep), task.given.edge_index
    for part in slices(num_edges, COMPILED_SLICE):
        by_agreement += sum_product_edges(task.records, edge_index[:, part], task.keep[part], touched, binning)
        if progress is not None:
            progress(part.stop, num_edges)


def sum_one(elements: Elements, binning: Binning, boundaries: Float[Tensor, " limits"]) -> Int[Tensor, "rows 4"]:
    """Sum elements into one table."""
    bins = binning.index(elements.confidence, boundaries)
    return sum_groups(elements, bins, torch.zeros_like(bins), 1, binning.n_bins)[0]


def _touch(touched: Bool[Tensor, "2 nodes"], edges: ScoredEdges) -> None:
    """Note the ends of agreeing edges in row 0 and those of disagreeing edges in row 1."""
    touched[0, edges.ends[:, edges.agree].flatten()] = True
    touched[1, edges.ends[:, ~edges.agree].flatten()] = True


def _count_touched(tables: Tensor, touched: Bool[Tensor, "2 nodes"], mask: Bool[Tensor, " nodes"]) -> None:
    """Count the nodes of the mask that have an edge in each view, for the K index."""
    inside = touched & mask
    tables[EDGEWISE, -1, 1] = (inside[0] | inside[1]).count_nonzero()
    tables[AGREE, -1, 1] = inside[0].count_nonzero()
    tables[DISAGREE, -1, 1] = inside[1].count_nonzero()


def concatenate(parts: list[Elements]) -> Elements:
    """Put elements one after another."""
    return Elements(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def node_set_table(
    task: ScoringTask, sets: Int[Tensor, "set sets"], choice: EdgeChoice, binning: Binning
) -> tuple[Int[Tensor, "rows 4"], Float[Tensor, " limits"]]:
    """Sum sets of nodes: right if all nodes are, confidence = the largest entry of the joint."""
    chosen = sets[:, _scored(task, sets, choice)]
    return one_table(_chunks(task, chosen), binning, task.records.device)


def _scored(task: ScoringTask, sets: Int[Tensor, "set sets"], choice: EdgeChoice) -> Bool[Tensor, " sets"]:
    """Choose sets as edges are chosen: by how many of their nodes are in the mask; all labels must be known."""
    inside, known = task.given.mask[sets], (task.given.y >= 0)[sets].all(0)
    if choice == "both":
        return known & inside.all(0)
    return known & inside.any(0) if choice == "any" else known


def _chunks(task: ScoringTask, sets: Int[Tensor, "set sets"]) -> Iterator[Elements]:
    joints, num_classes = task.given.joints, task.given.probs.shape[1]
    per_set = 5 * len(sets) if joints is None else num_classes ** len(sets)
    for part in slices(sets.shape[1], CHUNK_ELEMENTS // per_set):
        ends = [task.records[node] for node in sets[:, part]]
        if joints is None:
            yield product_elements(*ends)
        else:
            positions = torch.arange(part.start, part.stop, device=sets.device)
            yield joint_elements(joints(sets[:, part], positions), *ends)
