import os
import signal
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from edgewise.sweep.plan import Plan
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import Sources
from edgewise.workers.jobs import Failure, Job, attempt
from edgewise.workers.local import run_locally
from experiments.numbers import numbers
from experiments.processes import are_gone, is_alive, script
from experiments.tiny import write_planetoid


def test_two_workers_find_what_this_process_finds(job: Job, plan: Plan, undisturbed: list[Run]) -> None:
    assert {run.key for run in undisturbed} == set(plan.runs())
    some = [key for key in plan.runs() if key.init == 0][:4]
    here = numbers(attempt(job, key) for key in some)
    assert here == {key: numbers(undisturbed)[key] for key in some}
    assert len(set(numbers(undisturbed).values())) == plan.size
    assert active_children() == []


def test_nothing_to_do_starts_nothing(job: Job) -> None:
    assert list(run_locally([], job, workers=2)) == []


def test_a_failing_run_costs_only_itself_and_a_worker_that_dies_only_its_run(
    tmp_path: Path, undisturbed: list[Run]
) -> None:
    first, last, other = undisturbed[:3]
    fails = replace(other.key, hyperparameters="[]")
    (without_end,) = Plan(("citeseer",), ("gcn",), splits=1, folds=1, inits=1).runs()
    for dataset in ("cora", "citeseer"):
        write_planetoid(tmp_path, dataset)
    edges = tmp_path / "CiteSeer" / "raw" / "ind.citeseer.graph"
    edges.unlink()
    os.mkfifo(edges)  # who reads it waits for a writer, and there is none
    job = Job(Sources(str(tmp_path)), n_splits=2)
    outcomes = run_locally([fails, first.key, without_end, last.key, without_end], job, workers=1)

    failure = next(outcomes)
    assert isinstance(failure, Failure)
    assert failure.key == fails
    assert failure.error.startswith("Traceback (most recent call last):")
    assert "perform.py" in failure.error
    assert "ValueError: Expected the hyper-parameters of this version" in failure.error.splitlines()[-1]

    assert numbers([next(outcomes)]) == numbers([first])
    (worker,) = active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)  # it has begun the third
    assert next(outcomes) == Failure(
        without_end, "The worker process was ended by SIGKILL. If memory was short, use fewer --workers."
    )
    (successor,) = active_children()
    assert successor.pid is not None
    assert successor.pid != worker.pid
    assert numbers([next(outcomes)]) == numbers([last])

    assert is_alive(successor.pid)
    outcomes.close()  # nobody waits for the fifth
    assert not is_alive(successor.pid)
    assert active_children() == []


@pytest.mark.parametrize("moment", ["at once", "while they work"])
def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path, moment: str) -> None:
    text = """
        import os, sys, time
        from multiprocessing import active_children
        from threading import Thread
        from edgewise.experiments import local
        from edgewise.workers.jobs import Job
        from edgewise.sweep.plan import Plan
        from edgewise.sweep.sources import Sources

        def take_ages(job, key):
            print(os.getpid(), flush=True)
            time.sleep(600)

        def tell_at_once():  # they will be busy with imports
            while len(started := active_children()) < 2:
                time.sleep(0.01)
            print(*(process.pid for process in started), sep="\\n", flush=True)

        local.attempt = take_ages  # workers import this file too, and so do the same

        if __name__ == "__main__":
            if sys.argv[1] == "at once":
                Thread(target=tell_at_once).start()
            list(local.run_locally(Plan().runs(), Job(Sources(), 5), workers=2))
    """
    with script(tmp_path, text, moment) as process:
        assert process.stdout is not None
        workers = [int(process.stdout.readline()) for _ in range(2)]
        assert len(set(workers)) == 2
        assert all(map(is_alive, workers))
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert are_gone(workers, seconds=60)
