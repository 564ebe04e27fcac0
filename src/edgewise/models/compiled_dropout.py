"""Dropout in compiled loops, which hash as `edgewise.models.dropout` says."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.compiled import vectorised
from edgewise.models.dropout import FIRST, GOLDEN, LEVELS, SECOND

Array = NDArray[Any]

# The loop spells them out.
if (GOLDEN, FIRST, SECOND, LEVELS) != (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xFFFF + 1):
    raise ImportError("Expected the numbers of compiled_dropout.py to be those of dropout.py. Change both.")


def keep_compiled(num: int, start: int, dropped_levels: int) -> Tensor:
    """Give 1 for each of ``num`` entries that is kept, 0 for others."""
    keep = np.empty((num + 3) // 4 * 4, dtype=np.uint8)
    _keep(np.array([start, dropped_levels], dtype=np.uint64), keep)
    return torch.from_numpy(keep[:num])


@vectorised
def _keep(start_and_levels: Array, keep: Array) -> None:
    """Hash four places at once; unsigned numbers come in an array, so that they stay unsigned."""
    word, dropped_levels = start_and_levels[0], start_and_levels[1]
    for k in range(len(keep) // 4):
        word += np.uint64(0x9E3779B97F4A7C15)
        z = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        keep[4 * k] = (z & np.uint64(0xFFFF)) >= dropped_levels
        keep[4 * k + 1] = ((z >> np.uint64(16)) & np.uint64(0xFFFF)) >= dropped_levels
        keep[4 * k + 2] = ((z >> np.uint64(32)) & np.uint64(0xFFFF)) >= dropped_levels
        keep[4 * k + 3] = (z >> np.uint64(48)) >= dropped_levels
