"""Workers hear nothing of Ctrl-C: the command ends them, and they print no traceback."""

import signal
from pathlib import Path

import psutil
import pytest

from experiments.processes import script

START_TWO = """
    from multiprocessing import get_context
    from time import sleep

    from edgewise.workers.local import ctrl_c_kept_from_children

    if __name__ == "__main__":
        for _ in range(2):
            process = get_context("spawn").Process(target=sleep, args=(600,), daemon=True)
            with ctrl_c_kept_from_children():
                process.start()
            print(process.pid, flush=True)
        input()
"""


@pytest.mark.skipif(not psutil.LINUX, reason="needs /proc")
def test_the_first_worker_too(tmp_path: Path) -> None:
    with script(tmp_path, START_TWO) as process:
        assert process.stdout and process.stdin
        for pid in (process.stdout.readline().strip() for _ in range(2)):
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert int(status["SigBlk"], 16) & (1 << (signal.SIGINT - 1)), status["SigBlk"]
