"""Where it is decided whether an operation runs as a compiled loop, and on how many threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import unwrap
from itertools import pairwise
from typing import TypeVar, cast

import torch
from torch import Tensor

MIN_PARALLEL_OPERATIONS = 1 << 23  # about a millisecond of work; for less, waking another thread costs more
MIN_COMPILED_LENGTH = 1 << 17  # elements; for fewer, loading numba (about a second) costs more than it saves

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")


def compiled(function: Function) -> Function:
    """Compile a loop over NumPy arrays at its first call, keep it on disk, and let it run without the interpreter.

    What is kept on disk is thrown away when the loop's own file changes, and only then. So a loop takes its constants
    as arguments, or from its own file.
    """
    return _compile(function)


def vectorized(function: Function) -> Function:
    """Compile a loop as `compiled` does, so that it suits vector instructions.

    Products and sums may be fused, and a division by zero is no error.
    """
    return _compile(function, error_model="numpy", fastmath={"contract"})


def vectorized_sums(function: Function) -> Function:
    """Compile a loop as `vectorized` does, and let its sums be added in another order: always the same."""
    return _compile(function, error_model="numpy", fastmath={"contract", "reassoc"})


def _compile(function: Function, **options: object) -> Function:
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
    return known and runs_compiled(tensor.device) and tensor.numel() >= MIN_COMPILED_LENGTH


def choose_implementation(
    device: torch.device, by_loops: Callable[..., Result], by_tensors: Callable[..., Result]
) -> Callable[..., Result]:
    """Choose between an operation's compiled loops and its plain twin in tensors, which runs on any device."""
    return by_loops if runs_compiled(device) else by_tensors


def map_slices(
    function: Callable[[int, int], Result], length: int, others: ThreadPoolExecutor | None = None
) -> list[Result]:
    """Call ``function(start, stop)`` on slices that cover ``range(length)``, one for each of torch's threads.

    The results come in order. Compiled loops release the interpreter lock, so plain threads are enough; unlike an
    OpenMP pool they survive a fork, and a user who limits torch's threads limits these too. Who calls often brings
    ``worker_threads()`` along.

    >>> sum(map_slices(lambda start, stop: stop - start, 10))
    10
    """
    num = max(1, min(torch.get_num_threads(), length))
    bounds = [length * k // num for k in range(num + 1)]
    if num == 1:
        return [function(0, length)]
    if others is None:
        with worker_threads() as brief:
            return map_slices(function, length, brief)
    rest = others.map(function, bounds[1:-1], bounds[2:])
    return [function(bounds[0], bounds[1]), *rest]


def worker_threads() -> ThreadPoolExecutor:
    """Start the threads that work beside the caller's."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1))


class Threads:
    """Threads that stay for many calls of short loops; a loop is shared among them only if there is enough to do."""

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self._others = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def run(self, function: Callable[[int, int], object], length: int, work: int) -> None:
        """Call ``function(start, stop)`` on slices that cover ``range(length)``; ``work`` is about its operations.

        >>> Threads(2).run(lambda start, stop: print(start, stop), 10, work=10)
        0 10
        """
        num = min(self.num_threads, length) if work >= MIN_PARALLEL_OPERATIONS else 1
        if self._others is None or num <= 1:
            function(0, length)
            return
        bounds = [length * k // num for k in range(num + 1)]
        rest = [self._others.submit(function, lo, hi) for lo, hi in pairwise(bounds[1:])]
        function(bounds[0], bounds[1])
        for other in rest:
            other.result()
