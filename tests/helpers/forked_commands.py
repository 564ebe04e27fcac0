"""Functions and commands in forks of this process: nothing is imported again, and changes stay in the fork."""

import os
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from edgewise.__main__ import main
from helpers.processes import HANG_SECONDS


class Ended(NamedTuple):
    """Exit code and output of a fork."""

    code: int  # negative if a signal ended it
    stdout: str
    stderr: str


def command(*args: object, before: Callable[[], object] = lambda: None, terminal: bool = False) -> Ended:
    """Run a command in a fork, after calling ``before`` there. With ``terminal``, its stderr is a terminal."""

    def run() -> None:
        before()
        sys.argv = ["edgewise", *map(str, args)]
        main()

    return in_fork(run, terminal=terminal)


def in_fork(function: Callable[[], object], *, terminal: bool = False) -> Ended:
    """Call a function in a fork. With ``terminal``, its stderr is a terminal."""
    (out, out_write), (err, err_write) = os.pipe(), os.openpty() if terminal else os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns if the process has threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(out_write, 1)
            os.dup2(err_write, 2)
            code = _exit_code(function)
        finally:  # the fork must never continue with the tests
            os._exit(code)
    os.close(out_write)
    os.close(err_write)
    output = read_to_end(pid, out, err)
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), *(part.decode(errors="replace") for part in output))


def _exit_code(function: Callable[[], object]) -> int:
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.unraisablehook = sys.__unraisablehook__  # pytest's hook would wait for the end of the test
    code = 0
    try:
        function()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def read_to_end(pid: int, *numbers: int) -> list[bytes]:
    """Read file descriptors until they are closed. Kill the process if it hangs."""
    output, end = dict.fromkeys(numbers, b""), time.monotonic() + HANG_SECONDS
    with selectors.DefaultSelector() as still_open:
        for number in numbers:
            still_open.register(number, selectors.EVENT_READ)
        while still_open.get_map():
            ready = still_open.select(max(0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                break
            for key, _ in ready:
                part = b""
                with suppress(OSError):  # raised on Linux if a terminal is closed
                    part = os.read(key.fd, 65536)
                output[key.fd] += part
                if not part:
                    still_open.unregister(key.fd)
    for number in numbers:
        os.close(number)
    return list(output.values())


def temporary_files(folder: Path) -> list[Path]:
    """Return temporary files that were not removed."""
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
