"""Loops that are compiled, and run on slices of a long list side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")


def compiled(function: Function) -> Function:
    """Compile a loop over NumPy arrays at its first call (and keep it on disk) so that it runs without the interpreter."""
    return cast(Function, numba.njit(nogil=True, cache=True)(function))


def in_slices(function: Callable[[int, int], Result], length: int) -> list[Result]:
    """Call ``function(start, stop)`` on slices that cover ``range(length)``, one for each of torch's threads.

    The results come in order. Compiled loops release the interpreter lock, so plain threads are enough; unlike an OpenMP
    pool they survive a fork, and a user who limits torch's threads limits these too.

    >>> sum(in_slices(lambda start, stop: stop - start, 10))
    10
    """
    num = max(1, min(torch.get_num_threads(), length))
    bounds = [length * k // num for k in range(num + 1)]
    if num == 1:
        return [function(0, length)]
    with ThreadPoolExecutor(num) as pool:
        return list(pool.map(function, bounds[:-1], bounds[1:]))
