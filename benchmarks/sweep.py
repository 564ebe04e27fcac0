"""Estimate the time of all runs of the paper from one run of each cell, one per core at a time, as in a sweep.

python benchmarks/sweep.py
python benchmarks/sweep.py --page docs/speed.md
"""

import argparse
from time import perf_counter

import speed_page

from edgewise.paper.recipes import RECIPES, paper_plan
from edgewise.representation import format_duration
from edgewise.sweep.run import Runner
from edgewise.sweep.sources import Sources
from edgewise.workers import Failure, LocalProcesses, available_cores

PAPER = paper_plan()


def main() -> None:
    """Run each cell once and print the estimate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speed_page.add_options(parser, quick=False)
    page = parser.parse_args().page
    workers = available_cores()
    cells = paper_plan(splits=1, folds=1, inits=1)
    each = PAPER.size // cells.size
    print(f"One run of each cell, {workers} at a time; a cell of the paper is {each} runs.\n")
    print(f"{'':18}{'seconds':>10}{'epochs':>10}{'cell, one core':>18}")
    started, work = perf_counter(), 0.0
    runner = Runner(Sources(), cells.splits, RECIPES)
    for outcome in LocalProcesses(workers).execute(runner, cells.runs(), group=lambda key: key.group):
        if isinstance(outcome, Failure):
            raise SystemExit(f"{outcome.job} failed: {outcome.error}")
        run = outcome.result
        work += run.seconds
        name = " ".join(run.key.cell)
        print(f"{name:18}{run.seconds:10.1f}{run.epochs:10}{format_duration(each * run.seconds):>18}", flush=True)
    print(f"\nThis took {format_duration(perf_counter() - started)}.")
    estimate = f"The paper, {PAPER.size} runs: about {format_duration(each * work / workers)} on {workers} cores."
    print(estimate)
    speed_page.replace_section(page, "sweep", estimate)


if __name__ == "__main__":
    main()
