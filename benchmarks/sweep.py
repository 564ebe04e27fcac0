"""How long the paper takes on this machine: one run of each cell, as many at a time as there are cores, times 75.

python benchmarks/sweep.py
python benchmarks/sweep.py --page docs/speed.md
"""

import argparse
from time import perf_counter

import speed_page

from edgewise.paper.formatting import duration
from edgewise.sweep.plan import Plan
from edgewise.sweep.runs import Run
from edgewise.sweep.sources import Sources
from edgewise.workers.jobs import Job
from edgewise.workers.local import available_cores, run_locally

PAPER = Plan()


def main() -> None:
    """Run each cell once and print the estimate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_option(parser)
    page = parser.parse_args().page
    workers = available_cores()
    cells = Plan(splits=1, folds=1, inits=1)
    each = PAPER.size // cells.size
    print(f"One run of each cell, {workers} at a time; a cell of the paper is {each} runs.\n")
    print(f"{'':18}{'seconds':>10}{'epochs':>10}{'cell, one core':>18}")
    started, work = perf_counter(), 0.0
    for outcome in run_locally(cells.runs(), Job(Sources(), cells.splits), workers):
        if not isinstance(outcome, Run):
            raise SystemExit(f"{outcome.key} failed: {outcome.error}")
        work += outcome.seconds
        name = " ".join(outcome.key.cell)
        print(f"{name:18}{outcome.seconds:10.1f}{outcome.epochs:10}{duration(each * outcome.seconds):>18}", flush=True)
    print(f"\nThis took {duration(perf_counter() - started)}.")
    estimate = f"The paper, {PAPER.size} runs: about {duration(each * work / workers)} on {workers} cores."
    print(estimate)
    speed_page.put(page, "sweep", estimate)


if __name__ == "__main__":
    main()
