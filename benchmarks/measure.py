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
