"""Commands in forks of this process: nothing need be imported again, and what is done to a fork stays there."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edgewise.__main__ import main


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
    said = _text(out), _text(err)
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), *said)


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


def _text(number: int) -> str:
    with open(number, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def left_over(folder: Path) -> list[Path]:
    """Find what was begun and not put away."""
    return [path for path in folder.rglob("*") if path.name.endswith(".tmp")]
