"""Other processes: Python scripts, and whether they still live."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import dedent
from threading import Timer

import psutil

TESTS = Path(__file__).parents[1]
DEADLINE = 300  # seconds, after which a script is taken to hang


@contextmanager
def script(folder: Path, text: str, *args: object, without: Container[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a script, which may import from the tests, without some variables; killed in the end, or if it hangs."""
    file = folder / "script.py"
    file.write_text(dedent(text))
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(file), *map(str, args)]
    environment = {name: value for name, value in os.environ.items() if name not in without}
    with subprocess.Popen(command, env={**environment, "PYTHONPATH": path}, **pipes) as process:
        deadline = Timer(DEADLINE, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            deadline.join()
            process.kill()


@contextmanager
def started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a group of processes of its own, as a terminal does; in the end it is killed."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            start_new_session=True,
            # A shell that runs the tests in the background lets them ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait for something to become true; tell whether it did in time."""
    end = time.monotonic() + seconds
    while not (so := is_so()) and time.monotonic() < end:
        time.sleep(0.01)
    return so


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended may wait to be counted by its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def are_gone(pids: Iterable[int], seconds: float) -> bool:
    """Wait for processes to end; kill those that do not."""
    pids = list(pids)
    gone = wait_until(lambda: not any(map(is_alive, pids)), seconds)
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGKILL)
    return gone
