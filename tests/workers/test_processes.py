import os
import signal
from itertools import islice
from multiprocessing import active_children
from pathlib import Path

import pytest

from edgewise.workers import Failure, Finished, LocalProcesses, available_cores
from edgewise.workers import processes as module
from helpers.processes import are_gone, is_alive, script
from helpers.worker_jobs import Report, work


def test_each_job_is_done_once_by_so_many_processes_of_one_thread() -> None:
    outcomes = list(LocalProcesses(2).execute(work, [*range(6), "where", "where"]))
    assert sorted((outcome.job, outcome.result) for outcome in outcomes if outcome.job != "where") == [
        (number, number**2) for number in range(6)
    ]
    reports = [outcome.result for outcome in outcomes if outcome.job == "where"]
    assert all(isinstance(report, Report) and report.threads == 1 for report in reports)
    assert os.getpid() not in {report.pid for report in reports}
    assert active_children() == []


def test_no_jobs_start_no_process() -> None:
    assert list(LocalProcesses(2).execute(work, [])) == []


def test_a_job_that_fails_costs_only_itself() -> None:
    failed, unpicklable, fine = LocalProcesses(1).execute(work, ["fail", "unpicklable", 3])
    assert isinstance(failed, Failure) and failed.job == "fail"
    assert failed.error.startswith("Traceback (most recent call last):")
    assert failed.error.splitlines()[-1] == "ValueError: no luck"
    assert isinstance(unpicklable, Failure) and "pickle" in unpicklable.error
    assert fine == Finished(3, 9)


def test_a_worker_that_dies_costs_its_job_and_another_takes_its_place_and_cache() -> None:
    before, killed, ended, after = LocalProcesses(1).execute(work, ["where", "die", "exit", "where"])
    assert killed == Failure("die", "The worker process was ended by SIGKILL. If memory was short, use fewer workers.")
    assert ended == Failure("exit", "The worker process ended with exit code 3.")
    assert isinstance(before, Finished) and isinstance(after, Finished)
    assert before.result.pid != after.result.pid
    assert before.result.cache_folder == after.result.cache_folder


def test_workers_that_only_die_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEATHS", 2)
    outcomes = LocalProcesses(1).execute(work, ["die"] * 9)
    assert len(list(islice(outcomes, 2))) == 2
    with pytest.raises(ValueError, match=r"2 in a row died\. The worker process was ended by SIGKILL"):
        next(outcomes)
    assert active_children() == []


def test_closing_the_generator_ends_workers_that_are_busy() -> None:
    outcomes = LocalProcesses(2).execute(work, [1, "hang", "hang"])
    assert next(outcomes) == Finished(1, 1)
    pids = [process.pid for process in active_children()]
    assert len(pids) == 2
    outcomes.close()
    assert not any(map(is_alive, pids))
    assert active_children() == []


def test_ctrl_c_in_the_consumer_ends_workers() -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in LocalProcesses(2).execute(work, [1, "hang"]):
            raise KeyboardInterrupt
    assert active_children() == []


@pytest.mark.parametrize("moment", ["at once", "while they work"])
def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path, moment: str) -> None:
    text = """
        import os, sys, time
        from multiprocessing import active_children
        from threading import Thread
        from edgewise.workers import LocalProcesses

        def take_ages(job):
            print(os.getpid(), flush=True)
            time.sleep(600)

        def tell_at_once():  # they will be busy with imports
            while len(started := active_children()) < 2:
                time.sleep(0.01)
            print(*(process.pid for process in started), sep="\\n", flush=True)

        if __name__ == "__main__":
            if sys.argv[1] == "at once":
                Thread(target=tell_at_once).start()
            list(LocalProcesses(2).execute(take_ages, range(4)))
    """
    with script(tmp_path, text, moment) as process:
        assert process.stdout is not None
        workers = [int(process.stdout.readline()) for _ in range(2)]
        assert len(set(workers)) == 2
        assert all(map(is_alive, workers))
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert are_gone(workers, seconds=60)


def test_cores_are_those_that_this_process_may_use() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
