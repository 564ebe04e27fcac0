"""Compilation of loops with numba, choice between compiled loops and tensors, and threads."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import unwrap
from itertools import pairwise
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

MIN_PARALLEL_OPERATIONS = 1 << 23  # about a millisecond of work; for less, waking another thread costs more
MIN_COMPILED_LENGTH = 1 << 17  # elements; for fewer, loading numba (about a second) costs more than it saves

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")


def compiled(function: Function) -> Function:
    """Compile a loop over NumPy arrays on its first call, cache it on disk, and release the GIL while it runs.

    The cache is invalidated only when the source file of the loop changes. So a loop must take constants as arguments
    or from its own file, and may call compiled functions of its own file only.
    """
    return _compile(function)


def vectorized(function: Function) -> Function:
    """Compile a loop as `compiled` does, with options that allow SIMD instructions.

    Multiplications and additions may be fused, and a division by zero does not raise.
    """
    return _compile(function, error_model="numpy", fastmath={"contract"})


def vectorized_sums(function: Function) -> Function:
    """Compile a loop as `vectorized` does, and also allow reordered sums. The order is the same in every run."""
    return _compile(function, error_model="numpy", fastmath={"contract", "reassoc"})


def _compile(function: Function, **options: object) -> Function:
    import numba

    function = unwrap(function)  # remove the shape checks that tests wrap around it
    try:
        loop = numba.njit(nogil=True, cache=True, no_cfunc_wrapper=True, **options)(function)
        _clear_unreadable_cache(loop)
    except (RuntimeError, OSError):  # no writable cache folder
        loop = numba.njit(nogil=True, **options)(function)
    if hasattr(loop, "compile"):  # not if NUMBA_DISABLE_JIT is set
        loop.compile = _pause_garbage_collection(loop.compile)
    return cast(Function, loop)


def _pause_garbage_collection(compile_signature: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Return a function that compiles without garbage collection, which takes an eighth of the time of a first call."""

    def compile_paused(signature: Any) -> Result:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return compile_signature(signature)
        finally:
            if was_enabled:
                gc.enable()

    return compile_paused


def _clear_unreadable_cache(loop: Any) -> None:
    """Clear the cache of a loop if its index cannot be unpickled.

    The index refers to the classes of arguments by name. Numba unpickles it before it compares time stamps, so the
    index of an older version of the package, with a class that no longer exists, would make the first call fail.
    """
    index_file = getattr(getattr(loop, "_cache", None), "_cache_file", None)  # None if NUMBA_DISABLE_JIT is set
    if index_file is None:
        return
    try:
        index_file._load_index()
    except (AttributeError, ImportError, EOFError, UnpicklingError):
        loop._cache.flush()


def runs_compiled(device: torch.device) -> bool:
    """Return whether compiled loops can run on a device."""
    return device.type == "cpu"


def worth_compiling(tensor: Tensor) -> bool:
    """Return whether a tensor is long enough for compiled loops, on the CPU, and of a dtype that numba supports."""
    supported = tensor.dtype not in (torch.float16, torch.bfloat16)
    return supported and runs_compiled(tensor.device) and tensor.numel() >= MIN_COMPILED_LENGTH


def choose_implementation(
    device: torch.device, compiled: Callable[..., Result], tensors: Callable[..., Result]
) -> Callable[..., Result]:
    """Return the compiled implementation of an operation on the CPU, else its implementation with tensors."""
    return compiled if runs_compiled(device) else tensors


def map_slices(
    function: Callable[[int, int], Result], length: int, workers: ThreadPoolExecutor | None = None
) -> list[Result]:
    """Call ``function(start, stop)`` on slices that cover ``range(length)``, one slice per torch thread.

    Return the results in order. Compiled loops release the GIL, so Python threads run them in parallel. Unlike an
    OpenMP pool, Python threads work after a fork. ``torch.set_num_threads`` limits their number. Pass
    ``worker_threads()`` as ``workers`` to reuse threads in many calls.

    >>> sum(map_slices(lambda start, stop: stop - start, 10))
    10
    """
    num = max(1, min(torch.get_num_threads(), length))
    bounds = [length * k // num for k in range(num + 1)]
    if num == 1:
        return [function(0, length)]
    if workers is None:
        with worker_threads() as workers:
            return map_slices(function, length, workers)
    rest = workers.map(function, bounds[1:-1], bounds[2:])
    return [function(bounds[0], bounds[1]), *rest]


def worker_threads() -> ThreadPoolExecutor:
    """Start one thread less than torch has; the calling thread also works."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1))


class Threads:
    """A thread pool for many calls of short loops, which are split among threads only if they are long enough."""

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self._workers = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def run(self, function: Callable[[int, int], object], length: int, work: int) -> None:
        """Call ``function(start, stop)`` on slices that cover ``range(length)``.

        ``work`` is the approximate number of operations of all calls together.

        >>> Threads(2).run(lambda start, stop: print(start, stop), 10, work=10)
        0 10
        """
        num = min(self.num_threads, length) if work >= MIN_PARALLEL_OPERATIONS else 1
        if self._workers is None or num <= 1:
            function(0, length)
            return
        bounds = [length * k // num for k in range(num + 1)]
        futures = [self._workers.submit(function, lo, hi) for lo, hi in pairwise(bounds[1:])]
        function(bounds[0], bounds[1])
        for future in futures:
            future.result()
