"""Workers block SIGINT and SIGTERM, so that only the driver handles Ctrl-C."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from helpers.processes import script, wait_until_ended

BLOCKED = (signal.SIGINT, signal.SIGTERM)
HANG_IN_TWO_WORKERS = """
    import os, signal, sys
    from edgewise.workers import LocalProcesses

    def hang(job):
        print(os.getpid(), flush=True)
        signal.pause()

    if __name__ == "__main__":
        sys.path.insert(0, sys.argv[1])
        list(LocalProcesses(2).execute(hang, [1, 2]))
"""


@pytest.mark.skipif(not psutil.LINUX, reason="needs /proc")
def test_all_workers_block_signals_and_end_with_the_interrupted_driver(tmp_path: Path) -> None:
    with script(tmp_path, HANG_IN_TWO_WORKERS, Path(__file__).parent / "stub_torch") as process:
        assert process.stdout and process.stderr
        workers = [int(process.stdout.readline()) for _ in range(2)]
        for pid in workers:
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert all(int(status["SigBlk"], 16) & (1 << (number - 1)) for number in BLOCKED), status["SigBlk"]
            os.kill(pid, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
        assert wait_until_ended(workers)
        assert process.stderr.read().count("Traceback") == 1  # of the driver, none of workers
