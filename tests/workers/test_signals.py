"""Workers hear nothing of Ctrl-C: the command ends them, and they print no traceback."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from helpers.processes import are_gone, script

BLOCKED = (signal.SIGINT, signal.SIGTERM)
WAIT_IN_TWO_WORKERS = """
    import os, time
    from edgewise.workers import LocalProcesses

    def wait(job):
        print(os.getpid(), flush=True)
        time.sleep(600)

    if __name__ == "__main__":
        list(LocalProcesses(2).execute(wait, [1, 2]))
"""


@pytest.mark.skipif(not psutil.LINUX, reason="needs /proc")
def test_signals_are_blocked_in_each_worker_from_its_start(tmp_path: Path) -> None:
    with script(tmp_path, WAIT_IN_TWO_WORKERS) as process:
        assert process.stdout and process.stderr
        workers = [int(process.stdout.readline()) for _ in range(2)]
        for pid in workers:
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert all(int(status["SigBlk"], 16) & (1 << (number - 1)) for number in BLOCKED), status["SigBlk"]
            os.kill(pid, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) != 0
        assert are_gone(workers, seconds=60)
        assert process.stderr.read().count("Traceback") == 1  # that of the script, none of workers
