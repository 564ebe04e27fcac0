"""Where chance comes from: initialization, dropout and sampling have seeds of their own."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgewise.validation import check_seed


class Seeds(NamedTuple):
    """One seed for each thing that is drawn, so that another initialization leaves dropout as it was.

    ``fit(…, seed=3)`` is short for ``seed=Seeds(3, 3, 3)``.

    Attributes
    ----------
    initialization
        Of weights.
    dropout
        Of what is dropped.
    sampling
        Of the labels that GMNN draws, and of the folds that JointGCN deals.

    Examples
    --------
    >>> Seeds(initialization=3)
    Seeds(initialization=3, dropout=0, sampling=0)
    """

    initialization: int = 0
    dropout: int = 0
    sampling: int = 0


def as_seeds(seed: "int | Seeds") -> Seeds:
    """Take one seed for everything, or one for each."""
    seeds = seed if isinstance(seed, Seeds) else Seeds(seed, seed, seed)
    for name, value in seeds._asdict().items():
        check_seed(value, f"the seed of {name}" if isinstance(seed, Seeds) else "seed")
    return seeds


def generator(seed: int, purpose: str) -> torch.Generator:
    """Make a generator for one purpose; what others draw does not move it."""
    return torch.Generator().manual_seed(_word(seed, purpose))


def dropout_key(seed: int, purpose: str) -> int:
    """Return the key of all masks of one phase of training."""
    return _word(seed, purpose)


def _word(seed: int, purpose: str) -> int:
    words = np.random.SeedSequence([int(seed), *purpose.encode()]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def glorot(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw uniformly from ±√(6 / (rows + columns)) of the last two dimensions (Glorot and Bengio 2010)."""
    bound = (6.0 / (shape[-2] + shape[-1])) ** 0.5
    drawn = torch.empty(shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    return drawn.to(dtype)  # so that weights of both dtypes are the same, but for rounding


class Initializer:
    """Draws initial weights one after the other, of a dtype and on a device."""

    def __init__(self, draws: torch.Generator, dtype: torch.dtype, device: torch.device):
        self._draws, self._dtype, self._device = draws, dtype, device

    def glorot(self, *shape: int) -> Tensor:
        """Draw a matrix by `glorot`."""
        return glorot(shape, self._draws, self._dtype).to(self._device)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros, for a bias."""
        return torch.zeros(shape, dtype=self._dtype, device=self._device)
