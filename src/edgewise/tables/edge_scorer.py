"""Exact sums over the edges of a stream, which can be computed part by part, in any order, and added.

Every edge counts once, although many lists have both directions. The sums of a part are those of its forward listings
(low, high); of its backward listings too while it has no forward ones; and checksums of directions (see
`edgewise.kernels.edge_stream`). After all parts have been added, the checksums tell the case:

- There are listings of one direction only: their sums are the result.
- All checksums are 0: each pair is listed equally often in both directions, and forward listings are the result.
- Otherwise, the edges of all buckets with another checksum are read again, put into partitions on disk, and counted
  exactly. Their forward listings are subtracted from the result, and what `scored_edges` selects is added. Sums are
  integers, so this is exact.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.data.edges import EdgeChoice, scored_edges
from edgewise.kernels.edge_stream import (
    BACKWARD,
    BITS_NEEDED,
    BOTH,
    FORWARD,
    LABELED,
    NUM_BUCKETS,
    PRESENT,
    SCORED,
    select_buckets,
    select_edges,
)
from edgewise.kernels.score_sums import sum_edge_slice, sum_same_label
from edgewise.metrics.elements import RECORD_COLUMNS, SAME_LABEL_BITS, SMALL_BITS, recompute_small_outcomes
from edgewise.metrics.sums import FRACTION_BITS, LOW_BITS
from edgewise.tables.edge_sums import DirectionSums, EdgeCounts, EdgeSums, carried, combine_degrees, compact
from edgewise.tables.node_ids import DenseIds, Ids, JoinedIds, check_kinds
from edgewise.tables.node_table import NodeArrays, as_shared_tensor
from edgewise.tables.parts import Part, PartError, map_batches, read_ahead
from edgewise.tables.table_columns import id_type, read_ids
from edgewise.tables.table_jobs import TableJob

Listed = Literal["check", "once", "both"]
Ends = NDArray[np.int64]

ALL_BITS = PRESENT | SCORED | LABELED
MAX_PARTITIONS = (1 << 15) - 1  # numbers of 16 bits
ROWS_PER_SLICE = 1 << 17  # of a batch, whose selected ends stay in the cache
NO_CHECKSUMS = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class EdgeScorer:
    """Options of the sums over edges, without arrays, so that it can be sent to other processes."""

    ids: Ids
    columns: tuple[str, str]
    listed: Listed
    edge_choice: EdgeChoice
    n_bins: int
    right: bool
    same_label: bool
    skip_unknown: bool
    folder: Path | None = field(default=None)  # for joins that do not fit into memory; None is a temporary one

    def __call__(self, job: TableJob, nodes: Mapping[str, Any]) -> EdgeSums:
        """Sum the edges of a job in another process. ``nodes`` are the fields of `NodeArrays`."""
        return self.sum_parts(job.parts, NodeArrays(**nodes), lambda rows: None)

    def sum_parts(self, parts: Sequence[Part], nodes: NodeArrays, report: Callable[[int], None]) -> EdgeSums:
        """Sum the edges of parts in one pass."""
        accumulator = _Accumulator(self, nodes)
        with closing(self._read(parts, nodes)) as batches:  # also after an error, so that nothing reads any more
            for num_rows in map_batches(accumulator.add, batches, torch.get_num_threads()):
                report(num_rows)
        return accumulator.sums()

    def _read(self, parts: Sequence[Part], nodes: NodeArrays) -> "Generator[_EdgeBatch, None, None]":
        """Yield the edges in batches."""
        check_kinds(parts, self.columns, self.ids.kind)
        if isinstance(self.ids, DenseIds):
            yield from read_ahead(self._read_dense(parts))
            return
        ids = self.ids if nodes.ids is None else JoinedIds(self.ids.kind, self.ids.size, nodes.ids)
        for batch in read_ahead(ids.joined(parts, self.columns, (), self.folder)):
            start, end = (batch.column(k).fill_null(-1).to_numpy(zero_copy_only=False) for k in range(2))
            yield _EdgeBatch(start, end, 0, _Place(ids, parts, self, None))

    def _read_dense(self, parts: Sequence[Part]) -> "Iterator[_EdgeBatch]":
        assert isinstance(self.ids, DenseIds)
        types, missing = dict.fromkeys(self.columns, id_type(self.ids.kind)), self.ids.missing(self.skip_unknown)
        for number, part in enumerate(parts):
            for row, batch in part.read_numbered(self.columns, types):
                start, end = (
                    read_ids(batch, name, self.ids.kind, part, row, missing).to_numpy(zero_copy_only=False)
                    for name in self.columns
                )
                yield _EdgeBatch(start, end, self.ids.first, _Place(self.ids, parts[number:], self, row))

    def resolve(
        self,
        parts: Sequence[Part],
        nodes: NodeArrays,
        total: EdgeSums,
        folder: Path,
        max_edges: int,
        report: Callable[[int, int], None],
    ) -> DirectionSums:
        """Count the edges of buckets whose checksum is not 0 exactly, and return the sums of all edges.

        ``report`` is called with the numbers of further rows, and of the parts that have been read.
        """
        wanted = total.checksums != 0
        share = np.count_nonzero(wanted) / NUM_BUCKETS
        num_candidates = share * (total.counts.forward + total.counts.backward)
        num_partitions = min(1 + int(num_candidates / max_edges), MAX_PARTITIONS)
        files = [folder / f"partition-{k:05d}.bin" for k in range(num_partitions)]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            selector = _Selector(self, nodes)
            with closing(self._read(parts, nodes)) as batches:
                for batch in batches:
                    ends, _ = selector.select(batch, 0, batch.num_rows, BOTH, None)
                    partition = np.empty(ends.shape[1], dtype=np.int16)
                    select_buckets(ends[0], ends[1], wanted, num_partitions, partition)
                    order = np.argsort(partition, kind="stable")
                    limits = np.searchsorted(partition[order], np.arange(num_partitions + 1))
                    edges = np.ascontiguousarray(ends[:, order].T)
                    for file, lo, hi in zip(files, limits[:-1], limits[1:], strict=True):
                        if lo < hi:  # files are opened one at a time, as there may be thousands
                            with file.open("ab") as stream:
                                stream.write(edges[lo:hi].data)
                    report(batch.num_rows, len(parts) - len(batch.place.parts))
                report(0, len(parts))
            forward, exact = _Totals(self, nodes), _Totals(self, nodes)
            everything = torch.ones(len(nodes.state), dtype=torch.bool)
            for file in filter(Path.exists, files):
                pairs = torch.from_numpy(np.ascontiguousarray(np.fromfile(file, dtype=np.int64).reshape(-1, 2).T))
                forward.add(pairs[:, pairs[0] < pairs[1]].numpy())
                exact.add(pairs[:, scored_edges(pairs, everything, "all")].numpy())
            minus, plus = (_add_totals([totals], self.n_bins, len(nodes.state)) for totals in (forward, exact))
            return total.forward.plus(minus, -1).plus(plus)
        finally:
            for file in files:
                file.unlink(missing_ok=True)


class _Place(NamedTuple):
    """Where a batch of edges is from: the first of some parts, and its row. After a join both are unknown."""

    ids: Ids
    parts: Sequence[Part]
    scorer: EdgeScorer
    first_row: int | None

    def error(self, position: int, start: Ends, end: Ends) -> PartError:
        """Return an error that names the part, the row and the id of an edge with an unknown end."""
        name, row, node = self.parts[0].name, position, ""
        if self.first_row is not None:
            row += self.first_row
            ends = (int(start[position]), int(end[position]))
            node = ", ".join(map(str, ends))
            return PartError(
                f"Expected predictions for both ends of each edge, but row {row} of {name} is the edge {node}, and one "
                "of them has none. Add predictions, or skip such edges: skip_unknown=True, or --skip-unknown."
            )
        assert isinstance(self.ids, JoinedIds)
        for part in self.parts:
            if found := self.ids.find_unknown(part, self.scorer.columns, self.scorer.folder):
                row, node = found
                return PartError(
                    f"Expected a prediction for both ends of each edge, but {node!r} in row {row} of {part.name} has "
                    "none. Add it, or skip such edges: skip_unknown=True, or --skip-unknown."
                )
        return PartError(f"Expected ids in {name} that stay the same while it is read, but they changed.")


class _EdgeBatch(NamedTuple):
    """Ends of consecutive edges, the number of the first row of the node table, and where the edges are from."""

    start: Ends
    end: Ends
    first: int
    place: _Place

    @property
    def num_rows(self) -> int:
        return len(self.start)


class _Selector:
    """Selects edges of batches into memory that it reuses. Each thread has its own."""

    def __init__(self, scorer: EdgeScorer, nodes: NodeArrays):
        self._skips_unknown, self._state = scorer.skip_unknown, nodes.state
        self._options = (bool((nodes.state != ALL_BITS).any()), *BITS_NEEDED[scorer.edge_choice])
        self._out = np.empty((2, 0), dtype=np.int64)

    def select(
        self, batch: _EdgeBatch, lo: int, hi: int, direction: int, checksums: NDArray[np.uint64] | None
    ) -> tuple[Ends, EdgeCounts]:
        """Return the rows (2, edges) of the scored listings of a direction, until the next call, and counts of all."""
        if self._out.shape[1] < hi - lo:
            self._out = np.empty((2, hi - lo), dtype=np.int64)
        sums = NO_CHECKSUMS if checksums is None else checksums
        num, forward, backward, unknown, position = select_edges(
            batch.start[lo:hi], batch.end[lo:hi], batch.first, self._state, *self._options, direction, sums, *self._out
        )
        if unknown and not self._skips_unknown:
            raise batch.place.error(lo + position, batch.start, batch.end)
        return self._out[:, :num], EdgeCounts(hi - lo, forward, backward, unknown)


class _Accumulator:
    """Sums of the edges of one job, filled batch by batch, by several threads at a time."""

    def __init__(self, scorer: EdgeScorer, nodes: NodeArrays):
        self._scorer, self._nodes = scorer, nodes
        self._unused: list[_ThreadSums] = []  # by threads that work
        self._all: list[_ThreadSums] = []

    def add(self, batch: _EdgeBatch) -> int:
        """Add a batch, and return its number of rows."""
        try:
            own = self._unused.pop()
        except IndexError:
            own = _ThreadSums(self._scorer, self._nodes)
            self._all.append(own)
        own.add(batch, any(sums.counts.forward for sums in tuple(self._all)))
        self._unused.append(own)
        return batch.num_rows

    def sums(self) -> EdgeSums:
        """Return all sums."""
        counts, checksums = EdgeCounts(), np.zeros(NUM_BUCKETS, dtype=np.uint64)
        for sums in self._all:
            counts, checksums = counts.plus(sums.counts), checksums + sums.checksums
        size = self._scorer.n_bins, len(self._nodes.state)
        forward = _add_totals([sums.forward for sums in self._all], *size)
        backward = _add_totals([sums.backward for sums in self._all], *size) if counts.forward == 0 else None
        return EdgeSums(forward, backward, checksums, counts)


class _ThreadSums:
    """The share of one thread in the sums of a job."""

    def __init__(self, scorer: EdgeScorer, nodes: NodeArrays):
        self._listed, self._selector = scorer.listed, _Selector(scorer, nodes)
        self.forward, self.backward = _Totals(scorer, nodes), _Totals(scorer, nodes)
        self.checksums, self.counts = np.zeros(NUM_BUCKETS, dtype=np.uint64), EdgeCounts()

    def add(self, batch: _EdgeBatch, forward_exists: bool) -> None:
        """Add a batch. Backward listings are scored while there are no forward ones."""
        direction = BOTH if self._listed == "once" else FORWARD
        checksums = self.checksums if self._listed == "check" else None
        for lo in range(0, batch.num_rows, ROWS_PER_SLICE):
            hi = min(lo + ROWS_PER_SLICE, batch.num_rows)
            ends, counts = self._selector.select(batch, lo, hi, direction, checksums)
            self.forward.add(ends)
            self.counts = self.counts.plus(counts)
            forward_exists = forward_exists or self.counts.forward > 0
            if checksums is not None and counts.backward and not forward_exists:
                ends, _ = self._selector.select(batch, lo, hi, BACKWARD, None)
                self.backward.add(ends)


class _Totals:
    """Tables and degrees of one direction and thread, which grow. Degrees are allocated when they are first needed.

    Degrees are bytes, so that more of them fit the cache. ``overflows`` has a view and a node for each 256 edges of it.
    """

    def __init__(self, scorer: EdgeScorer, nodes: NodeArrays):
        self._scorer, self._nodes = scorer, nodes
        rows = scorer.n_bins + 2
        self.tables, self.same_label = np.zeros((2, rows, 4), dtype=np.int64), np.zeros((rows, 4), dtype=np.int64)
        self.degree: NDArray[np.uint8] | None = None
        self.overflows: list[NDArray[np.int64]] = []  # rows (2, n) of views and nodes

    def add(self, ends: Ends) -> None:
        """Add edges."""
        scorer, num = self._scorer, ends.shape[1]
        if num == 0:
            return
        if self.degree is None:
            self.degree = np.zeros((2, len(self._nodes.state)), dtype=np.uint8)
        options = scorer.n_bins, scorer.right, FRACTION_BITS, LOW_BITS
        tables, overflows = sum_edge_slice(RECORD_COLUMNS, self._nodes.records, ends[0], ends[1], self.degree, *options)
        self.tables = carried(self.tables + tables, scorer.n_bins)
        if overflows.shape[1]:
            self.overflows.append(overflows)
        if scorer.same_label:
            assert self._nodes.probs is not None
            probs, y = as_shared_tensor(self._nodes.probs), as_shared_tensor(self._nodes.labels)

            def recompute(ends: torch.Tensor, p_outcome: torch.Tensor) -> torch.Tensor:
                return recompute_small_outcomes(probs, ends, y[ends].long(), p_outcome)

            keep = torch.ones(num, dtype=torch.bool)
            table = sum_same_label(
                probs, y, torch.from_numpy(ends), keep, recompute, SAME_LABEL_BITS, SMALL_BITS, *options
            )
            self.same_label = carried(self.same_label + table.numpy(), scorer.n_bins)


def _add_totals(totals: Sequence[_Totals], n_bins: int, num_nodes: int) -> DirectionSums:
    """Add the sums of all threads."""
    tables = sum((part.tables for part in totals), np.zeros((2, n_bins + 2, 4), dtype=np.int64))
    same_label = sum((part.same_label for part in totals), np.zeros((n_bins + 2, 4), dtype=np.int64))
    degree: NDArray[np.integer] = np.zeros((2, num_nodes), dtype=np.uint8)
    for part in totals:
        if part.degree is not None:
            degree = combine_degrees(degree, part.degree, 1)
    if overflows := [found for part in totals for found in part.overflows]:
        views, rows = np.concatenate(overflows, axis=1)
        places, counts = np.unique(views * num_nodes + rows, return_counts=True)
        of_places = degree.reshape(-1)[places] + 256 * counts
        degree = degree.astype(np.promote_types(degree.dtype, np.min_scalar_type(int(of_places.max()))))
        degree.reshape(-1)[places] = of_places
    return DirectionSums(carried(tables, n_bins), carried(same_label, n_bins), compact(degree))
