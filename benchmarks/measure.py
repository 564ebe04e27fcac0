"""Measure the time and peak memory of a call."""

import ctypes
import gc
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

GIB = 1 << 30


@dataclass(frozen=True)
class Cost:
    """The best time of several repeats, and the peak memory above that before the call."""

    seconds: float
    peak_bytes: int


def measure(function: Callable[[], object], repeats: int = 3) -> Cost:
    """Measure the peak memory of a first call, then the time of `repeats` more; infinite for no repeats."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory must not hide new allocations
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status("VmRSS")
    function()
    peak_bytes = max(1, _status("VmHWM") - before)
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        function()
        seconds.append(perf_counter() - start)
    return Cost(min(seconds, default=float("inf")), peak_bytes)


def split_call(run: Callable[[int], object], few: int, many: int, repeats: int) -> tuple[float, float]:
    """Return the seconds of one step and of the rest of a call, from calls with few and with many steps.

    The calls alternate, so that a change of the machine's speed affects both.
    """
    seconds: dict[int, list[float]] = {few: [], many: []}
    run(few)
    for _ in range(repeats):
        for num, measured in seconds.items():
            begin = perf_counter()
            run(num)
            measured.append(perf_counter() - begin)
    step = (min(seconds[many]) - min(seconds[few])) / (many - few)
    return step, min(seconds[few]) - few * step


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"Expected {field} in /proc/self/status, but it is missing.")


def environment(*packages: str) -> str:
    """Return a line with the processor and the versions of Python and of packages."""
    versions = (f"{name} {version(name)}" for name in packages)
    return ", ".join([_processor(), f"Python {platform.python_version()}", *versions])


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{len(os.sched_getaffinity(0))} cores of {next(names, platform.machine())}"
