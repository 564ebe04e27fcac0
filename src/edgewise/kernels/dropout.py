"""Dropout that is a function of its place: an entry is kept or not by a hash of (key, draw, place).

So what is dropped depends neither on threads nor on devices nor on what else was drawn. The hash is the finalizer of
splitmix64 (Steele, Lea, Flood 2014); each of its words decides four entries by 16 bits each.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import choose_implementation, vectorized

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
LEVELS = 1 << 16

Array = NDArray[Any]


class Dropout:
    """Which entries are kept in each draw, and the factor that makes up for the others.

    >>> Dropout(0.5, key=1).keep(8, draw=0, device=torch.device("cpu")).tolist()
    [0, 0, 1, 0, 1, 0, 0, 1]
    """

    def __init__(self, rate: float, key: int):
        self.rate, self._key = rate, key
        self.dropped_levels = min(round(rate * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.dropped_levels)  # 1 / (1 - rate), to what 16 bits can tell

    def keep(self, num: int, draw: int, device: torch.device) -> UInt8[Tensor, " {num}"]:
        """Return 1 for each of ``num`` entries that is kept, 0 for others."""
        keep: Tensor = choose_implementation(device, keep_compiled, keep_tensors)(
            num, self.start(draw), self.dropped_levels, device
        )
        return keep

    def start(self, draw: int) -> int:
        """Hash the key with the number of a draw: where the words of this draw begin."""
        return _mix((self._key + (draw + 1) * GOLDEN) % (1 << 64))


NO_DROPOUT = Dropout(0.0, key=0)


def apply_dropout(x: Float[Tensor, "*shape"], dropout: Dropout, draw: int) -> Float[Tensor, "*shape"]:
    """Set some entries to zero and scale the others."""
    if dropout.rate == 0.0:
        return x
    keep = dropout.keep(x.numel(), draw, x.device).view(x.shape)
    return x * (keep.to(x.dtype) * dropout.scale)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * FIRST) % (1 << 64)
    z = ((z ^ (z >> 27)) * SECOND) % (1 << 64)
    return z ^ (z >> 31)


def keep_tensors(num: int, start: int, dropped_levels: int, device: torch.device) -> UInt8[Tensor, " {num}"]:
    """Do with tensors, whose integers wrap around, what the compiled loop does."""
    words = torch.arange(1, (num + 3) // 4 + 1, device=device) * _signed(GOLDEN) + _signed(start)
    words = (words ^ _shift(words, 30)) * _signed(FIRST)
    words = (words ^ _shift(words, 27)) * _signed(SECOND)
    words = words ^ _shift(words, 31)
    levels = torch.stack([_shift(words, 16 * lane) & (LEVELS - 1) for lane in range(4)], dim=1)
    return (levels.flatten()[:num] >= dropped_levels).to(torch.uint8)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _shift(words: Tensor, by: int) -> Tensor:
    """Shift to the right without the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1) if by else words


def keep_compiled(num: int, start: int, dropped_levels: int, device: torch.device) -> UInt8[Tensor, " {num}"]:
    """Hash place by place, on the CPU."""
    keep = np.empty((num + 3) // 4 * 4, dtype=np.uint8)
    _keep(np.array([start, dropped_levels], dtype=np.uint64), keep)
    return torch.from_numpy(keep[:num])


@vectorized
def _keep(start_and_levels: Array, keep: Array) -> None:
    """Hash four places at once; unsigned numbers come in an array, so that they stay unsigned."""
    word, dropped_levels = start_and_levels[0], start_and_levels[1]
    mask = np.uint64(LEVELS - 1)
    for k in range(len(keep) // 4):
        word += np.uint64(GOLDEN)
        z = (word ^ (word >> np.uint64(30))) * np.uint64(FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
        z = z ^ (z >> np.uint64(31))
        keep[4 * k] = (z & mask) >= dropped_levels
        keep[4 * k + 1] = ((z >> np.uint64(16)) & mask) >= dropped_levels
        keep[4 * k + 2] = ((z >> np.uint64(32)) & mask) >= dropped_levels
        keep[4 * k + 3] = (z >> np.uint64(48)) >= dropped_levels
