"""Bins of a reliability diagram: where a confidence falls."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.kernels.dispatch import worth_compiling
from edgewise.validation import check_option, check_whole_number

Kind = Literal["width", "mass"]
Closed = Literal["right", "left"]

MAX_BINS = 1_000_000


@dataclass(frozen=True)
class Binning:
    """How confidences are binned: m bins of equal width or equal mass, closed on the right or on the left.

    Right-closed bins of equal width: bin k = {(k-1)/m < c <= k/m}; 0 belongs to the first bin and 1 to the last.
    """

    n_bins: int = 15
    kind: Kind = "width"
    closed: Closed = "right"

    def __post_init__(self) -> None:
        check_whole_number("n_bins", self.n_bins, 1, MAX_BINS)
        check_option("binning", self.kind, get_args(Kind))
        check_option("closed", self.closed, get_args(Closed))

    def boundaries(self, confidence: Float[Tensor, " elements"]) -> Float[Tensor, " limits"]:
        """Give the limits of the bins, 0 and 1 included; those of equal mass are quantiles of the confidences.

        Of n confidences in order, ⌈kn/m⌉ are at most boundary k of m if bins are closed on the right, and ⌊kn/m⌋ are
        below it if they are closed on the left. Equal confidences share a bin, whatever their order, so with many
        ties some bins stay empty.
        """
        if self.kind == "width" or confidence.numel() == 0:
            return torch.arange(self.n_bins + 1, dtype=torch.float64, device=confidence.device) / self.n_bins
        ordered = confidence.double().sort().values
        rank = torch.arange(1, self.n_bins, device=ordered.device) * ordered.numel()
        place = (rank + self.n_bins - 1) // self.n_bins - 1 if self.closed == "right" else rank // self.n_bins
        inner = ordered[place]
        return torch.cat((inner.new_zeros(1), inner, inner.new_ones(1)))

    def index(
        self, confidence: Float[Tensor, " elements"], boundaries: Float[Tensor, " limits"]
    ) -> Int[Tensor, " elements"]:
        """Give the bin of each confidence, counted from 0."""
        confidence = confidence.double().contiguous()
        if self.kind == "mass":
            return torch.searchsorted(boundaries[1:-1].contiguous(), confidence, right=self.closed == "left")
        # For a float32 confidence the product is exact, and so is the bin: 24 bits times the few bits of m.
        scaled = confidence * self.n_bins
        index = scaled.ceil() - 1 if self.closed == "right" else scaled.floor()
        return index.long().clamp_(0, self.n_bins - 1)


FRACTION_BITS = 50
LOW_BITS = 30
LOW_MASK = (1 << LOW_BITS) - 1


def to_limbs(x: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape 2"]:
    """Round to a multiple of 2^-50 and split: (high, low)."""
    fixed = torch.round(x.double() * 2.0**FRACTION_BITS).long()
    return torch.stack((fixed >> LOW_BITS, fixed & LOW_MASK), dim=-1)


def carry(limbs: Int[Tensor, "*shape 2"]) -> Int[Tensor, "*shape 2"]:
    """Bring the low limbs back below 2^30; equal sums have equal limbs afterwards.

    >>> carry(torch.tensor([1, (5 << 30) + 7]))
    tensor([6, 7])
    """
    high, low = limbs.unbind(-1)
    return torch.stack((high + (low >> LOW_BITS), low & LOW_MASK), dim=-1)


def to_floats(limbs: Int[Tensor, "*shape 2"]) -> Float[Tensor, "*shape"]:
    """Give the float64 nearest to each sum.

    >>> to_floats(to_limbs(torch.tensor([0.1, 0.2, 0.3]).double()).sum(0))
    tensor(0.6000, dtype=torch.float64)
    """
    pairs = limbs.reshape(-1, 2).tolist()
    # Python integers have no width, and their true division rounds correctly.
    floats = [((high << LOW_BITS) + low) / (1 << FRACTION_BITS) for high, low in pairs]
    return torch.tensor(floats, dtype=torch.float64).reshape(limbs.shape[:-1])


VIEWS = ("nodewise", "edgewise", "agree", "disagree")
"""What is scored: nodes, edges, edges whose true labels agree, and those whose true labels differ."""

NODEWISE, EDGEWISE, AGREE, DISAGREE = range(len(VIEWS))
# Behind the tables of the views are those of the event "both ends have the same label" and of sets of nodes.
SAME_LABEL, NODE_SETS = len(VIEWS), len(VIEWS) + 1
NUM_TABLES = len(VIEWS) + 2


class Elements(NamedTuple):
    """What is scored of each node or edge; nll is infinite where the true label had probability zero."""

    confidence: Float[Tensor, " elements"]
    correct: Bool[Tensor, " elements"]
    nll: Float[Tensor, " elements"]
    brier: Float[Tensor, " elements"]

    def select(self, chosen: Bool[Tensor, " elements"]) -> "Elements":
        """Keep the chosen elements."""
        return Elements(*(column[chosen] for column in self))


def sum_groups(
    elements: Elements, bins: Int[Tensor, " elements"], group: Int[Tensor, " elements"], n_groups: int, n_bins: int
) -> Int[Tensor, "groups rows 4"]:
    """Sum elements into the table of their group."""
    if worth_compiling(bins):
        from edgewise.kernels.score_sums import sum_elements

        return carried(sum_elements(elements, bins, group, n_groups, n_bins), n_bins)
    table = torch.zeros(n_groups, n_bins + 2, 4, dtype=torch.long, device=bins.device)
    possible = elements.nll.isfinite()
    counts = torch.stack((torch.ones_like(bins), elements.correct.long()), dim=1)
    in_bin = torch.cat((counts, to_limbs(elements.confidence)), dim=1)
    nll = to_limbs(torch.where(possible, elements.nll, 0.0))
    over_bins = torch.cat((nll, to_limbs(elements.brier)), dim=1)
    impossible = torch.zeros_like(over_bins)
    impossible[:, 0] = ~possible
    rows = table.view(-1, 4)
    first = group * (n_bins + 2)
    rows.index_add_(0, first + bins, in_bin)
    rows.index_add_(0, first + n_bins, over_bins)
    rows.index_add_(0, first + n_bins + 1, impossible)
    return carried(table, n_bins)


def carried(tables: Int[Tensor, "*tables rows 4"], n_bins: int) -> Int[Tensor, "*tables rows 4"]:
    """Carry every sum's low limb: equal sums then have equal tables."""
    out = tables.clone()
    out[..., : n_bins + 1, 2:] = carry(tables[..., : n_bins + 1, 2:])
    out[..., n_bins, :2] = carry(tables[..., n_bins, :2])
    return out


def empty_tables(n_bins: int, device: torch.device | str = "cpu") -> Int[Tensor, "tables rows 4"]:
    """Give the sums of nothing."""
    return torch.zeros(NUM_TABLES, n_bins + 2, 4, dtype=torch.long, device=device)
