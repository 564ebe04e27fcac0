"""A score is a sum: what a set of scored elements leaves behind, as integers that add in any order.

The sums of one view are an int64 table of n_bins + 2 rows and 4 columns:

    row k < n_bins:  count, correct, confidence (two limbs) of bin k
    row n_bins:      nll (two limbs), brier (two limbs)
    row n_bins + 1:  elements whose true label had probability zero, nodes touched, 0, 0

Tables of batches, chunks, processes and machines are merged by adding them.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.compiled import worth_compiling
from edgewise.metrics.exact import carry, to_limbs

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
        from edgewise.metrics.compiled_sums import sum_elements

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
