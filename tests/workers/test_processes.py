"""Workers as local processes: outcomes, failures, and how workers end."""

import os
import signal
from itertools import islice
from multiprocessing import active_children
from pathlib import Path

import pytest

from edgewise.workers import Failure, Finished, LocalProcesses, available_cores
from edgewise.workers import processes as module
from helpers.processes import is_alive, script, wait_until_ended
from helpers.worker_jobs import Report, work


@pytest.mark.usefixtures("stub_torch")
def test_each_job_runs_once_in_a_process_with_one_thread() -> None:
    outcomes = list(LocalProcesses(2).execute(work, [*range(6), "where", "where"]))
    assert sorted((outcome.job, outcome.result) for outcome in outcomes if outcome.job != "where") == [
        (number, number**2) for number in range(6)
    ]
    reports = [outcome.result for outcome in outcomes if outcome.job == "where"]
    assert all(isinstance(report, Report) and report.threads == 1 for report in reports)
    assert os.getpid() not in {report.pid for report in reports}
    assert active_children() == []


@pytest.mark.slow
def test_workers_use_one_thread_of_torch_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with script(tmp_path, "import torch; print(torch.get_num_threads())") as process:
        if process.communicate()[0] == "1\n":
            pytest.skip("torch has one thread on this machine anyway")
    outcomes = list(LocalProcesses(2).execute(work, ["where"] * 4))
    assert [outcome.result.threads for outcome in outcomes] == [1] * 4


def test_no_jobs_start_no_process() -> None:
    assert list(LocalProcesses(2).execute(work, [])) == []


@pytest.mark.usefixtures("stub_torch")
def test_exceptions_and_unpicklable_results_are_failures() -> None:
    failed, unpicklable, finished = LocalProcesses(1).execute(work, ["fail", "unpicklable", 3])
    assert isinstance(failed, Failure) and failed.job == "fail"
    assert failed.error.startswith("Traceback (most recent call last):")
    assert failed.error.splitlines()[-1] == "ValueError: no luck"
    assert isinstance(unpicklable, Failure) and "pickle" in unpicklable.error
    assert finished == Finished(3, 9)


@pytest.mark.usefixtures("stub_torch")
def test_dead_worker_fails_its_job_and_is_replaced_with_the_same_cache_folder() -> None:
    before, killed, ended, after = LocalProcesses(1).execute(work, ["where", "die", "exit", "where"])
    assert isinstance(killed, Failure) and killed.job == "die"
    assert "SIGKILL" in killed.error and "fewer workers" in killed.error
    assert isinstance(ended, Failure) and ended.job == "exit"
    assert "exit code 3" in ended.error and "fewer workers" not in ended.error
    assert isinstance(before, Finished) and isinstance(after, Finished)
    assert before.result.pid != after.result.pid
    assert before.result.cache_folder == after.result.cache_folder


@pytest.mark.usefixtures("stub_torch")
def test_many_dead_workers_in_a_row_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONSECUTIVE_DEATHS", 2)
    outcomes = LocalProcesses(1).execute(work, ["die"] * 9)
    assert len(list(islice(outcomes, 2))) == 2
    with pytest.raises(ValueError, match=r"2 in a row died\..*SIGKILL"):
        next(outcomes)
    assert active_children() == []


@pytest.mark.usefixtures("stub_torch")
def test_closing_the_generator_kills_busy_workers() -> None:
    outcomes = LocalProcesses(2).execute(work, [1, "hang", "hang"])
    assert next(outcomes) == Finished(1, 1)
    pids = [process.pid for process in active_children()]
    assert len(pids) == 2
    outcomes.close()
    assert not any(map(is_alive, pids))
    assert active_children() == []


@pytest.mark.usefixtures("stub_torch")
def test_keyboard_interrupt_in_the_consumer_kills_workers() -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in LocalProcesses(1).execute(work, [1, "hang"]):
            raise KeyboardInterrupt
    assert active_children() == []


@pytest.mark.parametrize("moment", ["during start", "during work"])
def test_workers_end_if_the_driver_is_killed(tmp_path: Path, moment: str) -> None:
    text = """
        import os, signal, sys, time
        from multiprocessing import active_children
        from threading import Thread
        from edgewise.workers import LocalProcesses

        def hang(job):
            print(os.getpid(), flush=True)
            signal.pause()

        def print_started():  # the workers are still importing
            while len(started := active_children()) < 2:
                time.sleep(0.01)
            print(*(process.pid for process in started), sep="\\n", flush=True)

        if __name__ == "__main__":
            sys.path.insert(0, sys.argv[2])
            if sys.argv[1] == "during start":
                Thread(target=print_started).start()
            list(LocalProcesses(2).execute(hang, range(4)))
    """
    with script(tmp_path, text, moment, Path(__file__).parent / "stub_torch") as process:
        assert process.stdout is not None
        workers = [int(process.stdout.readline()) for _ in range(2)]
        assert len(set(workers)) == 2
        assert all(map(is_alive, workers))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert wait_until_ended(workers)


def test_available_cores_are_at_least_one() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
