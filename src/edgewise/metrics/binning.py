"""Bins of a reliability diagram: where a confidence falls."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.data.options import check_option, check_whole_number

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
