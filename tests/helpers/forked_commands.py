"""Commands in forks of this process: nothing need be imported again, and what is done to a fork stays there."""

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

DEADLINE = 600  # seconds, after which a command is taken to hang


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int  # below 0 if a signal ended it
    stdout: str
    stderr: str


def command(*args: object, before: Callable[[], object] = lambda: None) -> Ended:
    """Run a command in a fork, after something was done to the fork."""
    (out, out_there), (err, err_there) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: this process may have threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(out_there, 1)
            os.dup2(err_there, 2)
            code = _code([str(arg) for arg in args], before)
        finally:  # whatever happens, the fork is not the one to go on with the tests
            os._exit(code)
    os.close(out_there)
    os.close(err_there)
    said = read_to_the_end(pid, out, err)
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), *(part.decode(errors="replace") for part in said))


def _code(args: list[str], before: Callable[[], object]) -> int:
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.unraisablehook = sys.__unraisablehook__  # pytest's own would wait for the end of the test
    try:
        before()
        sys.argv = ["edgewise", *args]
        main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    return 1


def read_to_the_end(pid: int, *numbers: int) -> list[bytes]:
    """Read what a process says until nobody has the other sides of the files any more; if it hangs, it is killed."""
    said, end = dict.fromkeys(numbers, b""), time.monotonic() + DEADLINE
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
                with suppress(OSError):  # which is how Linux tells it of a terminal
                    part = os.read(key.fd, 65536)
                said[key.fd] += part
                if not part:
                    still_open.unregister(key.fd)
    for number in numbers:
        os.close(number)
    return list(said.values())


def left_over(folder: Path) -> list[Path]:
    """Find what was begun and not put away."""
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
