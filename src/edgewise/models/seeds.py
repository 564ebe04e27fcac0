"""Random seeds, with separate ones for initialization, dropout and sampling."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgewise.validation import check_seed

Weights = dict[str, Tensor]


class Seeds(NamedTuple):
    """Independent seeds, so that for example the initialization can change while the dropout masks stay the same.

    ``fit(…, seed=3)`` is short for ``seed=Seeds(3, 3, 3)``.

    Attributes
    ----------
    initialization
        Seed of the initial weights.
    dropout
        Seed of the dropout masks.
    sampling
        Seed of the labels that GMNN samples, and of the folds of JointGCN.

    Examples
    --------
    >>> Seeds(initialization=3)
    Seeds(initialization=3, dropout=0, sampling=0)
    """

    initialization: int = 0
    dropout: int = 0
    sampling: int = 0


def as_seeds(seed: "int | Seeds") -> Seeds:
    """Expand a single seed to `Seeds`, and check all of them."""
    seeds = seed if isinstance(seed, Seeds) else Seeds(seed, seed, seed)
    for name, value in seeds._asdict().items():
        check_seed(value, f"the {name} seed" if isinstance(seed, Seeds) else "seed")
    return seeds


def derive_seeds(seeds: Seeds, purpose: str) -> Seeds:
    """Return seeds for one of several trainings, independent of those for other purposes."""
    return Seeds(*(_hash_seed(seed, purpose) for seed in seeds))


def generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator for one purpose, independent of the generators for other purposes."""
    return torch.Generator().manual_seed(_hash_seed(seed, purpose))


_lock = RLock()  # held while the global generators have another state than the caller's


class RandomState:
    """A state of torch's global generators, for code that draws from them.

    Each block that uses the state continues where the previous one ended. The state of the caller does not change. The
    generators are those of all threads, so the blocks of several threads run one after the other.
    """

    def __init__(self, seed: int, purpose: str, device: torch.device):
        self._cuda = [device] if device.type == "cuda" else []
        with _lock, torch.random.fork_rng(self._cuda):
            torch.default_generator.manual_seed(_hash_seed(seed, purpose))
            for cuda in self._cuda:
                with torch.cuda.device(cuda):
                    torch.cuda.manual_seed(_hash_seed(seed, purpose))
            self._states = self._current()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Let the global generators have this state within a ``with`` block."""
        with _lock, torch.random.fork_rng(self._cuda):
            torch.set_rng_state(self._states[0])
            for cuda, state in zip(self._cuda, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, cuda)
            yield
            self._states = self._current()

    def _current(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(cuda) for cuda in self._cuda)]


def dropout_key(seed: int, purpose: str) -> int:
    """Return the key of all dropout masks of one training phase."""
    return _hash_seed(seed, purpose)


def _hash_seed(seed: int, purpose: str) -> int:
    """Hash a seed and a purpose to a non-negative 63-bit integer."""
    words = np.random.SeedSequence([int(seed), *purpose.encode()]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def glorot(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw from U(-b, b), b = √(6 / (rows + columns)), with the last two dimensions (Glorot and Bengio 2010)."""
    bound = (6.0 / (shape[-2] + shape[-1])) ** 0.5
    weight = torch.empty(shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    return weight.to(dtype)  # the same weights in float32 and float64, up to rounding


class Initializer:
    """Draws initial weights in order, with a given dtype and device."""

    def __init__(self, draws: torch.Generator, dtype: torch.dtype, device: torch.device):
        self._draws, self._dtype, self._device = draws, dtype, device

    def glorot(self, *shape: int) -> Tensor:
        """Draw a Glorot-uniform matrix, see `glorot`."""
        return glorot(shape, self._draws, self._dtype).to(self._device)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros, as for a bias."""
        return torch.zeros(shape, dtype=self._dtype, device=self._device)
