"""Exact sums over the two directions of listed edges, which are added in any order, and saved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.metrics.sums import carry_tables


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
            carried(self.tables + sign * other.tables, n_bins),
            carried(self.same_label + sign * other.same_label, n_bins),
            combine_degrees(self.degree, other.degree, sign),
        )


def combine_degrees(degree: NDArray[np.integer], other: NDArray[np.integer], sign: int) -> NDArray[np.integer]:
    """Add or subtract degrees, in the smallest integers that hold the result, which is not negative."""
    dtype = np.min_scalar_type(int(degree.max(initial=0)) + int(other.max(initial=0)))
    combine = np.add if sign > 0 else np.subtract
    total: NDArray[np.integer] = combine(degree, other, dtype=dtype, casting="unsafe")
    return total


def carried(tables: NDArray[np.int64], n_bins: int) -> NDArray[np.int64]:
    """Return tables whose limbs are carried, so that equal sums have equal tables."""
    carried: NDArray[np.int64] = carry_tables(torch.from_numpy(tables), n_bins).numpy()
    return carried


class EdgeCounts(NamedTuple):
    """Numbers of listings: all, of scored edges by direction, and skipped ones with an id without a prediction."""

    listed: int = 0
    forward: int = 0
    backward: int = 0
    unknown: int = 0

    def plus(self, other: "EdgeCounts") -> "EdgeCounts":
        """Add other counts."""
        return EdgeCounts(*(a + b for a, b in zip(self, other, strict=True)))


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
            self.counts.plus(other.counts),
        )

    @property
    def case(self) -> Literal["one direction", "both directions", "mixed"]:
        """How edges are listed."""
        if self.counts.forward == 0 or self.counts.backward == 0:
            return "one direction"
        return "mixed" if self.checksums.any() else "both directions"

    def save(self, file: Path) -> None:
        """Save the sums, with degrees of as few bits as hold them."""
        arrays: dict[str, Any] = {"checksums": self.checksums, "counts": np.array(self.counts)}
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
