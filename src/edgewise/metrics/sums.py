"""Exact sums of elements in bins, as integers that can be added in any order.

The sums of one view are an int64 table of n_bins + 2 rows and 4 columns:

    row k < n_bins:  count, correct, confidence (high and low limb) of bin k
    row n_bins:      nll (high and low limb), brier (high and low limb)
    row n_bins + 1:  elements whose true label has probability zero, nodes of the mask with an edge,
                     Σ d² over the degrees of nodes in scored edges (only in the view of all edges), 0

A float64 sum depends on the order of its terms, and so on the number of threads, batches and processes. Instead, each
term x is rounded once to a multiple of 2^-50 (an error below 5·10^-16) and split into a high limb and a low limb of 30
bits. Both are summed as int64:

    x ≈ (high · 2^30 + low) / 2^50

Integer sums are exact in any order. Terms are confidences, Brier scores (at most 2) and negative logarithms of
probabilities (at most 1,490 for a pair of float64 numbers), so high · 2^30 fits int64. With a `carry` after every batch
of fewer than 2^33 terms, sums are exact up to 2^43.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.elements import Elements
from edgewise.metrics.scoring_input import Binning

VIEWS = ("nodewise", "edgewise", "agree", "disagree")
"""Views: nodes, edges, edges whose ends have the same true label, and edges whose ends have different true labels."""

FRACTION_BITS = 50
LOW_BITS = 30
LOW_MASK = (1 << LOW_BITS) - 1


class Sums(NamedTuple):
    """Table of one view, and the boundaries of its bins."""

    table: Int[Tensor, "rows 4"]
    boundaries: Float[Tensor, " limits"]


def bin_boundaries(binning: Binning, confidence: Float[Tensor, " elements"] | None = None) -> Float[Tensor, " limits"]:
    """Compute the boundaries of the bins, including 0 and 1. For equal mass they are quantiles of the confidences.

    Without ties, ⌈kn/m⌉ of n confidences are at most boundary k of m if bins are closed on the right, and ⌊kn/m⌋ are
    below it if bins are closed on the left. Equal confidences are in the same bin, so with many ties some bins are
    empty. Without confidences, bins have equal width.
    """
    if binning.kind == "width" or confidence is None or confidence.numel() == 0:
        return torch.arange(binning.n_bins + 1, dtype=torch.float64) / binning.n_bins
    ordered = confidence.double().sort().values
    rank = torch.arange(1, binning.n_bins, device=ordered.device) * ordered.numel()
    position = (
        (rank + binning.n_bins - 1) // binning.n_bins - 1 if binning.closed == "right" else rank // binning.n_bins
    )
    inner = ordered[position]
    return torch.cat((inner.new_zeros(1), inner, inner.new_ones(1)))


def bin_index(
    confidence: Float[Tensor, " elements"], binning: Binning, boundaries: Float[Tensor, " limits"]
) -> Int[Tensor, " elements"]:
    """Return the bin of each confidence, from 0."""
    confidence = confidence.double().contiguous()
    if binning.kind == "mass":
        inner = boundaries[1:-1].to(confidence.device).contiguous()
        return torch.searchsorted(inner, confidence, right=binning.closed == "left")
    # For a float32 confidence the product, 24 bits times the few bits of m, is exact, and so is the bin.
    scaled = confidence * binning.n_bins
    index = scaled.ceil() - 1 if binning.closed == "right" else scaled.floor()
    return index.long().clamp_(0, binning.n_bins - 1)


def sum_elements(elements: Elements, binning: Binning) -> Sums:
    """Sum elements into one table."""
    boundaries = bin_boundaries(binning, elements.confidence)
    bins = bin_index(elements.confidence, binning, boundaries)
    return Sums(sum_groups(elements, bins, torch.zeros_like(bins), 1, binning.n_bins)[0], boundaries)


def sum_groups(
    elements: Elements, bins: Int[Tensor, " elements"], group: Int[Tensor, " elements"], n_groups: int, n_bins: int
) -> Int[Tensor, "groups rows 4"]:
    """Sum elements into one table per group."""
    if worth_compiling(bins):
        tables = kernels.score_sums.sum_elements(*elements, bins, group, n_groups, n_bins, FRACTION_BITS, LOW_BITS)
        return carry_tables(tables, n_bins)
    tables = torch.zeros(n_groups, n_bins + 2, 4, dtype=torch.long, device=bins.device)
    possible = elements.nll.isfinite()
    counts = torch.stack((torch.ones_like(bins), elements.correct.long()), dim=1)
    in_bin = torch.cat((counts, to_fixed_point(elements.confidence)), dim=1)
    nll = to_fixed_point(torch.where(possible, elements.nll, 0.0))
    totals = torch.cat((nll, to_fixed_point(elements.brier)), dim=1)
    impossible = torch.zeros_like(totals)
    impossible[:, 0] = ~possible
    rows = tables.view(-1, 4)
    first = group * (n_bins + 2)
    rows.index_add_(0, first + bins, in_bin)
    rows.index_add_(0, first + n_bins, totals)
    rows.index_add_(0, first + n_bins + 1, impossible)
    return carry_tables(tables, n_bins)


def sum_in_groups(
    elements: Elements, bins: Int[Tensor, " elements"], group: Int[Tensor, " elements"], n_groups: int, n_bins: int
) -> Int[Tensor, "groups rows 4"]:
    """Sum elements into one table per group, without those that have no group, -1."""
    group = torch.where(group < 0, n_groups, group).long()
    return sum_groups(elements, bins, group, n_groups + 1, n_bins)[:n_groups]


def carry_tables(tables: Int[Tensor, "*tables rows 4"], n_bins: int) -> Int[Tensor, "*tables rows 4"]:
    """Carry the low limbs of all sums, so that equal sums have equal tables."""
    out = tables.clone()
    out[..., : n_bins + 1, 2:] = carry(tables[..., : n_bins + 1, 2:])
    out[..., n_bins, :2] = carry(tables[..., n_bins, :2])
    return out


def to_fixed_point(x: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape 2"]:
    """Round to a multiple of 2^-50 and split into limbs (high, low)."""
    fixed = torch.round(x.double() * 2.0**FRACTION_BITS).long()
    return torch.stack((fixed >> LOW_BITS, fixed & LOW_MASK), dim=-1)


def carry(limbs: Int[Tensor, "*shape 2"]) -> Int[Tensor, "*shape 2"]:
    """Carry low limbs of 2^30 or more into the high limbs, so that equal sums have equal limbs.

    >>> carry(torch.tensor([1, (5 << 30) + 7]))
    tensor([6, 7])
    """
    high, low = limbs.unbind(-1)
    return torch.stack((high + (low >> LOW_BITS), low & LOW_MASK), dim=-1)


def from_fixed_point(limbs: Int[Tensor, "*shape 2"]) -> Float[Tensor, "*shape"]:
    """Return the nearest float64 of each sum.

    >>> from_fixed_point(to_fixed_point(torch.tensor([0.1, 0.2, 0.3]).double()).sum(0))
    tensor(0.6000, dtype=torch.float64)
    """
    pairs = limbs.reshape(-1, 2).tolist()
    # Python integers do not overflow, and their true division rounds correctly.
    floats = [((high << LOW_BITS) + low) / (1 << FRACTION_BITS) for high, low in pairs]
    return torch.tensor(floats, dtype=torch.float64).reshape(limbs.shape[:-1])
