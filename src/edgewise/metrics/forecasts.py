"""Forecasts of binary events and their outcomes, packed into one integer each, and their isotonic regression.

The bits of a float64 in [0, 1], read as an integer, are ordered as the numbers are, and their first two bits are 0. So
a key, these bits shifted by two, has room for two flags: 2 if the event did not occur, and 1 if the element is in group
1, such as edges whose ends have the same label. Eight bytes per element are enough for all views of edges, and one sort
of integers, in place, orders them all. In a tie, the elements whose event occurred come first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise import kernels
from edgewise.kernels.dispatch import worth_compiling
from edgewise.metrics.elements import Elements

Keys = NDArray[np.uint64]

GROUP, MISSED, FLAG_BITS = np.uint64(1), np.uint64(2), np.uint64(2)


def pack(forecast: Float[Tensor, " elements"], occurred: Bool[Tensor, " elements"]) -> Keys:
    """Return the keys of elements in group 0. Forecasts above 1 by a rounding error become 1."""
    keys = forecast.double().clamp(0.0, 1.0).cpu().numpy().view(np.uint64) << FLAG_BITS
    keys |= np.where(occurred.cpu().numpy(), np.uint64(0), MISSED)
    return keys


def pack_elements(elements: Elements, in_group: Bool[Tensor, " elements"] | None = None) -> Keys:
    """Return the keys of elements, whose event is that the prediction is correct, and their groups."""
    keys = pack(elements.confidence, elements.correct)
    if in_group is not None:
        keys |= in_group.cpu().numpy().astype(np.uint64)
    return keys


def unpack(keys: Keys) -> tuple[Float[np.ndarray, " elements"], Bool[np.ndarray, " elements"]]:
    """Return forecasts, and whether the event occurred."""
    return _forecasts(keys), keys & MISSED == 0


def split_groups(keys: Keys) -> tuple[Keys, Keys]:
    """Return the keys of group 0 and of group 1, in the same order."""
    in_group = keys & GROUP == GROUP
    return keys[~in_group], keys[in_group]


def _are_many(keys: Keys) -> bool:
    return worth_compiling(torch.from_numpy(keys))


@dataclass(frozen=True, eq=False)
class IsotonicFit:
    """Blocks in which the isotonic regression of the outcome on the forecast is constant: the fraction of events.

    ``first`` and ``last`` are the lowest and the highest forecast of a block.
    """

    count: Int[np.ndarray, " blocks"]
    events: Int[np.ndarray, " blocks"]
    first: Float[np.ndarray, " blocks"]
    last: Float[np.ndarray, " blocks"]

    @property
    def frequency(self) -> Float[np.ndarray, " blocks"]:
        """Fraction of events of each block, increasing."""
        return np.asarray(self.events / self.count)


def fit_isotonic(keys: Keys, selections: Sequence[tuple[int, ...]] = ((0, 1),)) -> list[IsotonicFit]:
    """Fit each selection of groups of sorted keys by pooling adjacent violators, with ties pooled."""
    if _are_many(keys):
        fits = kernels.isotonic_blocks.fit_isotonic(keys, selections)
    else:
        fits = [_pool_violators(keys[np.isin(keys & GROUP, groups)]) for groups in selections]
    return [
        IsotonicFit(count, events, *(_forecasts(ends) for ends in (first, last))) for count, events, first, last in fits
    ]


def _forecasts(keys: Keys) -> Float[np.ndarray, " elements"]:
    return (keys >> FLAG_BITS).view(np.float64)


def _pool_violators(keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64], Keys, Keys]:
    """Return the number of elements and of events of each block, and its first and last key, with scipy."""
    from scipy.optimize import isotonic_regression

    forecast, occurred = unpack(keys)
    if len(keys) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), keys, keys
    starts = np.flatnonzero(np.diff(forecast, prepend=-1.0))  # of ties
    count, events = np.diff(starts, append=len(keys)), np.add.reduceat(occurred, starts, dtype=np.int64)
    blocks = isotonic_regression(events / count, weights=count).blocks[:-1]
    count, events = np.add.reduceat(count, blocks), np.add.reduceat(events, blocks)
    stop = np.cumsum(count)
    return count, events, keys[stop - count], keys[stop - 1]


@dataclass(frozen=True)
class ScoreSums:
    """Sums of the scores of forecasts: Σ (forecast - outcome)², -Σ log P(outcome), and outcomes of probability zero.

    The sum of logarithms is without these outcomes.
    """

    squares: float
    logs: float
    zeros: int

    def __add__(self, other: "ScoreSums") -> "ScoreSums":
        return ScoreSums(self.squares + other.squares, self.logs + other.logs, self.zeros + other.zeros)


def sum_scores(keys: Keys) -> tuple[ScoreSums, ScoreSums]:
    """Sum the scores of the forecasts of group 0 and of group 1."""
    if _are_many(keys):
        first, second = kernels.isotonic_blocks.sum_scores(keys)
        return ScoreSums(*first), ScoreSums(*second)
    zeros, ones = split_groups(keys)
    return _sum_scores(zeros), _sum_scores(ones)


def _sum_scores(keys: Keys) -> ScoreSums:
    forecast, occurred = unpack(keys)
    p = np.where(occurred, forecast, 1.0 - forecast)
    possible = p > 0
    logs = torch.from_numpy(p[possible]).log()
    return ScoreSums(float(np.square(1.0 - p).sum()), -float(logs.sum()), int((~possible).sum()))
