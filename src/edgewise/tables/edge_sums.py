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

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.data.edges import EdgeChoice, scored_edges
from edgewise.kernels.dispatch import map_slices
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
from edgewise.kernels.score_sums import sum_independent_edges, sum_same_label
from edgewise.metrics.elements import RECORD_COLUMNS, SAME_LABEL_BITS, SMALL_BITS, recompute_small_outcomes
from edgewise.metrics.sums import FRACTION_BITS, LOW_BITS, carry_tables
from edgewise.tables.node_ids import DenseIds, Ids, JoinedIds, check_kinds
from edgewise.tables.node_table import NodeArrays, as_shared_tensor
from edgewise.tables.parts import Part, PartError, read_ahead
from edgewise.tables.table_columns import id_type, read_ids

Listed = Literal["check", "once", "both"]
Ends = NDArray[np.int64]

ALL_BITS = PRESENT | SCORED | LABELED
MAX_PARTITIONS = 512  # files that are open at a time


class DirectionSums(NamedTuple):
    """Sums over the listings of one direction.

    Attributes
    ----------
    tables
        Tables of agree and disagree.
    same_label
        Table of the event "same label", or zeros if it is not scored.
    degree
        Number of edges of each node in agree and disagree.
    """

    tables: NDArray[np.int64]
    same_label: NDArray[np.int64]
    degree: NDArray[np.integer]

    def plus(self, other: "DirectionSums", sign: int = 1) -> "DirectionSums":
        """Add other sums, or subtract them."""
        n_bins = self.tables.shape[1] - 2
        return DirectionSums(
            _carried(self.tables + sign * other.tables, n_bins),
            _carried(self.same_label + sign * other.same_label, n_bins),
            _add_degrees(self.degree, other.degree, sign),
        )


def _add_degrees(degree: NDArray[np.integer], other: NDArray[np.integer], sign: int) -> NDArray[np.integer]:
    """Add or subtract degrees, in the smallest integers that hold the result, which is not negative."""
    dtype = np.min_scalar_type(int(degree.max(initial=0)) + int(other.max(initial=0)))
    combine = np.add if sign > 0 else np.subtract
    total: NDArray[np.integer] = combine(degree, other, dtype=dtype, casting="unsafe")
    return total


def _carried(tables: NDArray[np.int64], n_bins: int) -> NDArray[np.int64]:
    carried: NDArray[np.int64] = carry_tables(torch.from_numpy(tables), n_bins).numpy()
    return carried


class EdgeCounts(NamedTuple):
    """Numbers of listings: all, of scored edges by direction, and skipped ones with an id without a prediction."""

    listed: int = 0
    forward: int = 0
    backward: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class EdgeSums:
    """Sums over some parts of a list of edges.

    Attributes
    ----------
    forward
        Sums of forward listings, or of all listings if directions are not told apart.
    backward
        Sums of backward listings, or None if they were not computed, because there are forward listings.
    checksums
        One per bucket.
    counts
        Numbers of listings.
    """

    forward: DirectionSums
    backward: DirectionSums | None
    checksums: NDArray[np.uint64]
    counts: EdgeCounts

    def __add__(self, other: "EdgeSums") -> "EdgeSums":
        backward = None
        if self.backward is not None and other.backward is not None:
            backward = self.backward.plus(other.backward)
        return EdgeSums(
            self.forward.plus(other.forward),
            backward,
            self.checksums + other.checksums,
            EdgeCounts(*(a + b for a, b in zip(self.counts, other.counts, strict=True))),
        )

    @property
    def case(self) -> Literal["one direction", "both directions", "mixed"]:
        """How edges are listed."""
        if self.counts.forward == 0 or self.counts.backward == 0:
            return "one direction"
        return "mixed" if self.checksums.any() else "both directions"

    def save(self, file: Path) -> None:
        """Save the sums, with degrees of as few bits as hold them."""
        arrays: dict[str, NDArray[np.generic]] = {"checksums": self.checksums, "counts": np.array(self.counts)}
        for name, sums in (("forward", self.forward), ("backward", self.backward)):
            if sums is not None:
                arrays |= {
                    f"{name}_{key}": value
                    for key, value in sums._replace(degree=compact(sums.degree))._asdict().items()
                }
        with file.open("wb") as stream:
            np.savez(stream, **arrays)

    @classmethod
    def load(cls, file: Path) -> "EdgeSums":
        """Load saved sums."""
        with np.load(file) as arrays:
            parts = [
                DirectionSums(*(arrays[f"{name}_{key}"] for key in DirectionSums._fields))
                if f"{name}_tables" in arrays
                else None
                for name in ("forward", "backward")
            ]
            assert parts[0] is not None
            return cls(parts[0], parts[1], arrays["checksums"], EdgeCounts(*arrays["counts"].tolist()))


def compact(degree: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return degrees in the smallest integers that hold them."""
    largest = int(degree.max(initial=0))
    return degree.astype(np.min_scalar_type(largest))


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

    def sum_parts(self, parts: Sequence[Part], nodes: NodeArrays, report: Callable[[int], None]) -> EdgeSums:
        """Sum the edges of parts in one pass."""
        accumulator = _Accumulator(self, nodes)
        with closing(self._read(parts, nodes)) as batches:  # also after an error, so that nothing reads any more
            for start, end, first, locate in batches:
                accumulator.add(start, end, first, locate)
                report(len(start))
        return accumulator.sums()

    def _read(
        self, parts: Sequence[Part], nodes: NodeArrays
    ) -> Generator[tuple[Ends, Ends, int, "_Place"], None, None]:
        """Yield ends of edges, the number of the first row, and where they are from."""
        check_kinds(parts, self.columns, self.ids.kind)
        if isinstance(self.ids, DenseIds):
            yield from read_ahead(self._read_dense(parts))
            return
        ids = self.ids if nodes.ids is None else JoinedIds(self.ids.kind, self.ids.size, nodes.ids)
        for batch in read_ahead(ids.joined(parts, self.columns, (), self.folder)):
            start, end = (batch.column(k).fill_null(-1).to_numpy(zero_copy_only=False) for k in range(2))
            yield start, end, 0, _Place(ids, parts, self, None)

    def _read_dense(self, parts: Sequence[Part]) -> Iterator[tuple[Ends, Ends, int, "_Place"]]:
        assert isinstance(self.ids, DenseIds)
        types, missing = dict.fromkeys(self.columns, id_type(self.ids.kind)), self.ids.missing(self.skip_unknown)
        for part in parts:
            row = getattr(part, "first_row", 0)
            for batch in part.read(self.columns, types):
                start, end = (
                    read_ids(batch, name, self.ids.kind, part, row, missing).to_numpy(zero_copy_only=False)
                    for name in self.columns
                )
                yield start, end, self.ids.first, _Place(self.ids, [part], self, row)
                row += batch.num_rows

    def resolve(
        self,
        parts: Sequence[Part],
        nodes: NodeArrays,
        total: EdgeSums,
        folder: Path,
        max_edges: int,
        report: Callable[[int], None],
    ) -> DirectionSums:
        """Count the edges of buckets whose checksum is not 0 exactly, and return the sums of all edges."""
        wanted = total.checksums != 0
        share = np.count_nonzero(wanted) / NUM_BUCKETS
        num_candidates = share * (total.counts.forward + total.counts.backward)
        num_partitions = min(1 + int(num_candidates / max_edges), MAX_PARTITIONS)
        files = [folder / f"partition-{k:05d}.bin" for k in range(num_partitions)]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            selector = _Accumulator(self, nodes)
            streams = [file.open("wb") for file in files]
            batches = self._read(parts, nodes)
            try:
                for start, end, first, locate in batches:
                    ends = selector.select(start, end, first, BOTH, locate)
                    partition = np.empty(ends.shape[1], dtype=np.int16)
                    select_buckets(ends[0], ends[1], wanted, num_partitions, partition)
                    order = np.argsort(partition, kind="stable")
                    limits = np.searchsorted(partition[order], np.arange(num_partitions + 1))
                    for stream, lo, hi in zip(streams, limits[:-1], limits[1:], strict=True):
                        np.ascontiguousarray(ends[:, order[lo:hi]].T).tofile(stream)
                    report(len(start))
            finally:
                batches.close()
                for stream in streams:
                    stream.close()
            forward, exact = _Accumulator(self, nodes), _Accumulator(self, nodes)
            everything = torch.ones(len(nodes.state), dtype=torch.bool)
            for file in files:
                edges = torch.from_numpy(np.ascontiguousarray(np.fromfile(file, dtype=np.int64).reshape(-1, 2).T))
                forward.score(edges[:, edges[0] < edges[1]].numpy())
                exact.score(edges[:, scored_edges(edges, everything, "all")].numpy())
            return total.forward.plus(forward.direction_sums(), -1).plus(exact.direction_sums())
        finally:
            for file in files:
                file.unlink(missing_ok=True)


class _Place(NamedTuple):
    """Where a batch of edges is from, for messages. After a join the row is unknown."""

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


class _Accumulator:
    """Sums of the edges of one job, filled batch by batch."""

    def __init__(self, scorer: EdgeScorer, nodes: NodeArrays):
        self._scorer, self._nodes = scorer, nodes
        self._records, self._bits = as_shared_tensor(nodes.records), BITS_NEEDED[scorer.edge_choice]
        self._reads_state = bool((nodes.state != ALL_BITS).any())
        self._forward, self._backward = self._new(), self._new()
        self._checksums = np.zeros((torch.get_num_threads(), NUM_BUCKETS), dtype=np.uint64)
        self._counts = EdgeCounts()

    def _new(self) -> "_Totals":
        return _Totals(self._scorer, len(self._nodes.state))

    def add(self, start: Ends, end: Ends, first: int, place: _Place) -> None:
        """Add a batch."""
        listed = self._scorer.listed
        checks = listed == "check"
        before = self._counts
        self.score(self.select(start, end, first, BOTH if listed == "once" else FORWARD, place, checks))
        if checks and self._counts.forward == 0 and self._counts.backward > before.backward:
            ends = self.select(start, end, first, BACKWARD, place, count=False)
            self._add(ends, self._backward)

    def select(
        self,
        start: Ends,
        end: Ends,
        first: int,
        direction: int,
        place: _Place,
        checks: bool = False,
        count: bool = True,
    ) -> Ends:
        """Return the rows (2, edges) of the listings of a direction that are scored."""
        out, state, options = (
            np.empty((2, len(start)), dtype=np.int64),
            self._nodes.state,
            (self._reads_state, *self._bits),
        )
        unused = list(self._checksums)

        def select_slice(lo: int, hi: int) -> tuple[int, tuple[int, ...]]:
            own = unused.pop()
            ends, outs = (start[lo:hi], end[lo:hi]), (out[0, lo:hi], out[1, lo:hi])
            found = select_edges(*ends, first, state, *options, direction, own if checks else own[:0], *outs)
            unused.append(own)
            return lo, found

        parts = map_slices(select_slice, len(start))
        for lo, (_, _, _, unknown, position) in parts:
            if unknown and not self._scorer.skip_unknown:
                raise place.error(lo + position, start, end)
        if count:
            sums = np.array([found[1:4] for _, found in parts]).sum(0).tolist()
            self._counts = EdgeCounts(*(a + b for a, b in zip(self._counts, (len(start), *sums), strict=True)))
        return (
            np.concatenate([out[:, lo : lo + found[0]] for lo, found in parts], axis=1)
            if len(parts) > 1
            else out[:, : parts[0][1][0]]
        )

    def score(self, ends: Ends) -> None:
        """Add selected listings to the sums of forward ones."""
        self._add(ends, self._forward)

    def _add(self, ends: Ends, totals: "_Totals") -> None:
        totals.add(torch.from_numpy(ends), self._records, self._nodes)

    def direction_sums(self) -> DirectionSums:
        """Return the sums of what was scored."""
        return self._forward.sums()

    def sums(self) -> EdgeSums:
        """Return all sums."""
        backward = self._backward.sums() if self._counts.forward == 0 else None
        checksums: NDArray[np.uint64] = self._checksums.sum(0, dtype=np.uint64)
        return EdgeSums(self._forward.sums(), backward, checksums, self._counts)


class _Totals:
    """Tables and degrees of one direction, which grow. They are allocated when they are first needed."""

    def __init__(self, scorer: EdgeScorer, num_nodes: int):
        self._scorer, self._num_nodes = scorer, num_nodes
        rows = scorer.n_bins + 2
        self._tables, self._same_label = (
            torch.zeros(2, rows, 4, dtype=torch.long),
            torch.zeros(rows, 4, dtype=torch.long),
        )
        self._degrees: torch.Tensor | None = None

    def add(self, ends: torch.Tensor, records: torch.Tensor, nodes: NodeArrays) -> None:
        scorer = self._scorer
        if ends.shape[1] == 0:
            return
        if self._degrees is None:
            self._degrees = torch.zeros(torch.get_num_threads(), 2, self._num_nodes, dtype=torch.int32)
        keep = torch.ones(ends.shape[1], dtype=torch.bool)
        options = scorer.n_bins, scorer.right, FRACTION_BITS, LOW_BITS
        (tables,) = sum_independent_edges(RECORD_COLUMNS, records, ends, keep, self._degrees, (), *options)
        self._tables += carry_tables(tables, scorer.n_bins)
        if scorer.same_label:
            assert nodes.probs is not None
            probs, y = as_shared_tensor(nodes.probs), as_shared_tensor(nodes.labels)

            def recompute(ends: torch.Tensor, p_outcome: torch.Tensor) -> torch.Tensor:
                return recompute_small_outcomes(probs, ends, y[ends].long(), p_outcome)

            bits = SAME_LABEL_BITS, SMALL_BITS
            table = sum_same_label(probs, y, ends, keep, recompute, *bits, *options)
            self._same_label += carry_tables(table, scorer.n_bins)

    def sums(self) -> DirectionSums:
        n_bins = self._scorer.n_bins
        degree = np.zeros((2, self._num_nodes), dtype=np.uint8)
        if self._degrees is not None:
            degree = compact(self._degrees.sum(0, dtype=torch.int32).numpy())
        tables = (_carried(table.numpy(), n_bins) for table in (self._tables, self._same_label))
        return DirectionSums(*tables, degree)
