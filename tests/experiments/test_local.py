import json
import os
import signal
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest

from edgewise.experiments.attempts import Failure, Job, attempt
from edgewise.experiments.local import run_locally
from edgewise.experiments.plan import Plan
from edgewise.experiments.runs import Run
from experiments.numbers import numbers
from experiments.processes import are_gone, is_alive, script


def test_two_workers_find_what_this_process_finds(job: Job, plan: Plan, undisturbed: list[Run]) -> None:
    assert {run.key for run in undisturbed} == set(plan.runs())
    some = [key for key in plan.runs() if key.init == 0][:4]
    here = numbers(attempt(job, key) for key in some)
    assert here == {key: numbers(undisturbed)[key] for key in some}
    assert len(set(numbers(undisturbed).values())) == plan.size
    assert active_children() == []


def test_nothing_to_do_starts_nothing(job: Job) -> None:
    assert list(run_locally([], job, workers=2)) == []


def test_a_failing_run_costs_only_itself_and_a_worker_that_dies_only_its_run(job: Job, undisturbed: list[Run]) -> None:
    first, last, other = undisturbed[:3]
    fails = replace(other.key, hyperparameters="[]")
    (takes_long,) = Plan(("cora",), ("gat",), splits=1, folds=1, inits=1).runs()
    outcomes = run_locally([fails, first.key, takes_long, last.key, takes_long], job, workers=1)

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
        takes_long, "The worker process was ended by SIGKILL. If memory was short, use fewer --workers."
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
def test_workers_end_with_a_driver_that_is_killed(root: Path, tmp_path: Path, moment: str) -> None:
    text = """
        import json, sys
        from multiprocessing import active_children
        from threading import Timer
        from edgewise.experiments.attempts import Job
        from edgewise.experiments.local import run_locally
        from edgewise.experiments.plan import Plan
        from edgewise.experiments.sources import Sources

        def tell():
            print(json.dumps([process.pid for process in active_children()]), flush=True)

        if __name__ == "__main__":
            if sys.argv[2] == "at once":
                Timer(0.5, tell).start()  # they are busy with imports
            keys = Plan(("cora",), ("gcn", "gat"), splits=2).runs()
            for outcome in run_locally(keys, Job(Sources(sys.argv[1]), 2), workers=2):
                tell()
    """
    with script(tmp_path, text, root, moment) as process:
        assert process.stdout is not None
        workers = json.loads(process.stdout.readline())
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert are_gone(workers, seconds=30)
