"""Counter-based dropout: a hash of (key, draw, index) decides whether an entry is kept.

So the mask does not depend on threads, devices or other random numbers. The hash is splitmix64 (Steele, Lea, Flood
2014). Each 64-bit word decides four entries, with 16 bits each.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from edgewise.kernels.dispatch import choose_implementation, vectorized

INCREMENT, MULTIPLIER_1, MULTIPLIER_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64
LEVELS = 1 << 16  # values of the 16 bits that decide an entry

Array = NDArray[Any]


class Dropout:
    """Dropout masks for numbered draws, and the factor 1 / (1 - rate) for kept entries.

    >>> Dropout(0.5, key=1).keep(8, draw=0, device=torch.device("cpu")).tolist()
    [0, 0, 1, 0, 1, 0, 0, 1]
    """

    def __init__(self, rate: float, key: int):
        self.rate, self._key = rate, key
        self.dropped_levels = min(round(rate * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.dropped_levels)  # 1 / (1 - rate), with the rate rounded to 16 bits

    def keep(self, num: int, draw: int, device: torch.device) -> UInt8[Tensor, " {num}"]:
        """Return a mask of ``num`` entries: 1 for kept entries, 0 for dropped entries."""
        keep: Tensor = choose_implementation(device, keep_compiled, keep_tensors)(
            num, self.initial_state(draw), self.dropped_levels, device
        )
        return keep

    def initial_state(self, draw: int) -> int:
        """Return the initial state of splitmix64 for a draw: a hash of the key and the number of the draw."""
        return _mix((self._key + (draw + 1) * INCREMENT) % (1 << 64))


NO_DROPOUT = Dropout(0.0, key=0)


def apply_dropout(x: Float[Tensor, "*shape"], dropout: Dropout, draw: int) -> Float[Tensor, "*shape"]:
    """Set random entries to zero and scale the other entries."""
    if dropout.rate == 0.0:
        return x
    keep = dropout.keep(x.numel(), draw, x.device).view(x.shape)
    return x * (keep.to(x.dtype) * dropout.scale)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * MULTIPLIER_1) % (1 << 64)
    z = ((z ^ (z >> 27)) * MULTIPLIER_2) % (1 << 64)
    return z ^ (z >> 31)


def keep_tensors(num: int, state: int, dropped_levels: int, device: torch.device) -> UInt8[Tensor, " {num}"]:
    """Compute a mask with int64 tensors, whose products wrap around."""
    words = torch.arange(1, (num + 3) // 4 + 1, device=device) * _signed(INCREMENT) + _signed(state)
    words = (words ^ _shift(words, 30)) * _signed(MULTIPLIER_1)
    words = (words ^ _shift(words, 27)) * _signed(MULTIPLIER_2)
    words = words ^ _shift(words, 31)
    levels = torch.stack([_shift(words, 16 * lane) & (LEVELS - 1) for lane in range(4)], dim=1)
    return (levels.flatten()[:num] >= dropped_levels).to(torch.uint8)


def _signed(word: int) -> int:
    """Reinterpret an unsigned 64-bit integer as a signed one."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shift(words: Tensor, by: int) -> Tensor:
    """Shift to the right without sign extension."""
    return (words >> by) & ((1 << (64 - by)) - 1) if by else words


def keep_compiled(num: int, state: int, dropped_levels: int, device: torch.device) -> UInt8[Tensor, " {num}"]:
    """Compute a mask with a compiled loop."""
    keep = np.empty((num + 3) // 4 * 4, dtype=np.uint8)
    _keep(np.array([state, dropped_levels], dtype=np.uint64), keep)
    return torch.from_numpy(keep[:num])


@vectorized
def _keep(state_and_levels: Array, keep: Array) -> None:
    """Decide four entries per hash. Unsigned integers are passed in an array, because numba makes scalars signed."""
    word, dropped_levels = state_and_levels[0], state_and_levels[1]
    mask = np.uint64(LEVELS - 1)
    for k in range(len(keep) // 4):
        word += np.uint64(INCREMENT)
        z = (word ^ (word >> np.uint64(30))) * np.uint64(MULTIPLIER_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(MULTIPLIER_2)
        z = z ^ (z >> np.uint64(31))
        keep[4 * k] = (z & mask) >= dropped_levels
        keep[4 * k + 1] = ((z >> np.uint64(16)) & mask) >= dropped_levels
        keep[4 * k + 2] = ((z >> np.uint64(32)) & mask) >= dropped_levels
        keep[4 * k + 3] = (z >> np.uint64(48)) >= dropped_levels
