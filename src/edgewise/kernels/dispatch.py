"""Loops that are compiled, and run on slices of a long list side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import unwrap
from itertools import pairwise
from typing import TypeVar, cast

import torch
from torch import Tensor

WORTH_SHARING = 1 << 23  # operations, about a millisecond of them, from which on it pays to wake another thread
LONG = 1 << 17  # numbers from which on compiled loops pay for the second that it takes to load them

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")


def compiled(function: Function) -> Function:
    """Compile a loop over NumPy arrays at its first call, keep it on disk, and let it run without the interpreter.

    What is kept on disk is thrown away when the loop's own file changes, and only then. So a file of compiled loops
    spells out the constants that it uses, and compares them with those of other files when it is imported.
    """
    return _compiled(function)


def vectorised(function: Function) -> Function:
    """Compile a loop as `compiled` does, so that it suits vector instructions.

    Products and sums may be fused, and a division by zero is no error.
    """
    return _compiled(function, error_model="numpy", fastmath={"contract"})


def vectorised_sums(function: Function) -> Function:
    """Compile a loop as `vectorised` does, and let its sums be added in another order: always the same."""
    return _compiled(function, error_model="numpy", fastmath={"contract", "reassoc"})


def _compiled(function: Function, **options: object) -> Function:
    import numba

    function = unwrap(function)  # from the checks of shapes that tests wrap around it
    try:
        loop = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # there is no folder to keep it in
        loop = numba.njit(nogil=True, **options)(function)
    return cast(Function, loop)


def runs_compiled(device: torch.device) -> bool:
    """Tell whether compiled loops reach the memory of a device."""
    return device.type == "cpu"


def worth_compiling(tensor: Tensor) -> bool:
    """Tell whether a compiled loop over a tensor pays: it is long, on the CPU, and of a dtype that such loops know."""
    known = tensor.dtype not in (torch.float16, torch.bfloat16)
    return known and runs_compiled(tensor.device) and tensor.numel() >= LONG


def in_slices(
    function: Callable[[int, int], Result], length: int, others: ThreadPoolExecutor | None = None
) -> list[Result]:
    """Call ``function(start, stop)`` on slices that cover ``range(length)``, one for each of torch's threads.

    The results come in order. Compiled loops release the interpreter lock, so plain threads are enough; unlike an
    OpenMP pool they survive a fork, and a user who limits torch's threads limits these too. Who calls often brings
    ``other_threads()`` along.

    >>> sum(in_slices(lambda start, stop: stop - start, 10))
    10
    """
    num = max(1, min(torch.get_num_threads(), length))
    bounds = [length * k // num for k in range(num + 1)]
    if num == 1:
        return [function(0, length)]
    if others is None:
        with other_threads() as brief:
            return in_slices(function, length, brief)
    rest = others.map(function, bounds[1:-1], bounds[2:])
    return [function(bounds[0], bounds[1]), *rest]


class Crew:
    """Threads that stay for many calls of short loops, each of which is worth sharing only if there is enough to do."""

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self._others = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def share(self, function: Callable[[int, int], object], length: int, work: int) -> None:
        """Call ``function(start, stop)`` on slices that cover ``range(length)``; ``work`` is about its operations.

        >>> Crew(2).share(lambda start, stop: print(start, stop), 10, work=10)
        0 10
        """
        num = min(self.num_threads, length) if work >= WORTH_SHARING else 1
        if self._others is None or num <= 1:
            function(0, length)
            return
        bounds = [length * k // num for k in range(num + 1)]
        rest = [self._others.submit(function, lo, hi) for lo, hi in pairwise(bounds[1:])]
        function(bounds[0], bounds[1])
        for other in rest:
            other.result()


def other_threads() -> ThreadPoolExecutor:
    """Give the threads that work beside the caller's."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1))
