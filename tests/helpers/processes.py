"""Starting scripts and commands as processes, and checking that processes have ended."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from threading import Timer

import psutil

TESTS = Path(__file__).parents[1]
HANG_SECONDS = 1500  # a process that runs longer is assumed to hang, and is killed
SESSION_VARIABLE = "EDGEWISE_TEST_SESSION"  # inherited by all processes that a test session starts
PR_SET_PDEATHSIG = 1

PREPARE_SCRIPT = """
if __name__ == "__main__":
    import signal
    from helpers.processes import die_with_parent
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a shell runs the tests in the background
    die_with_parent()
"""


@contextmanager
def script(folder: Path, text: str, *args: object, without: Container[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a Python script that may import test helpers, without some environment variables.

    The script and the processes that it started are killed at the end, or if it hangs.
    """
    file = folder / "script.py"
    file.write_text(PREPARE_SCRIPT + dedent(text))
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(file), *map(str, args)]
    environment = {name: value for name, value in os.environ.items() if name not in without}
    with subprocess.Popen(command, env={**environment, "PYTHONPATH": path}, start_new_session=True, **pipes) as process:
        timer = Timer(HANG_SECONDS, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            timer.join()
            _kill_group(process)


@contextmanager
def started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in its own process group, as a terminal does. At the end, the group is killed."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, preexec_fn=_prepare_command
        )
    try:
        yield process
    finally:
        _kill_group(process)
        process.wait()


def _prepare_command() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as above
    die_with_parent()


def die_with_parent() -> None:
    """Let the system kill this process when its parent ends, in case the tests themselves are killed."""
    if psutil.LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(process: subprocess.Popen) -> None:
    """Kill a process and its group, which outlives the process if others in it still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = HANG_SECONDS) -> bool:
    """Wait until a condition is true. Return False if it is still false after the time limit."""
    end = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_ended(pids: Iterable[int]) -> bool:
    """Wait until processes have ended. Kill those that hang, and return False."""
    pids = list(pids)
    ended = wait_until(lambda: not any(map(is_alive, pids)))
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGKILL)
    return ended


def leftover_processes(session: str) -> list[psutil.Process]:
    """Return all running processes that this process or its descendants started in a test session.

    Descendants whose parent has ended are found by `SESSION_VARIABLE`. The resource tracker of multiprocessing ends
    with this process, and is left out.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    left = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in own and process.environ().get(SESSION_VARIABLE) == session:
                left[process.pid] = process
    return [process for process in left.values() if is_alive(process.pid) and not _is_resource_tracker(process)]


def _is_resource_tracker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("resource_tracker" in argument for argument in process.cmdline())
    return True  # it has ended meanwhile
