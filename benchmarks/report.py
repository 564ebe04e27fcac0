"""Measure the report of the 900 runs of the paper: the whole command, and its reliability diagrams.

python benchmarks/report.py
python benchmarks/report.py --old ../old      # also the command of another checkout, in turn with this one
python benchmarks/report.py --page docs/speed.md

The diagrams are compared with what a user would write: matplotlib axes for each panel, in the automatic layout. Times
are seconds of processor time, the shortest of several repetitions, so other programs hardly change them.
"""

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import speed_page
from matplotlib.figure import Figure

from edgewise.metrics.sums import VIEWS
from edgewise.paper.figures import FIGURE_SUFFIXES, draw_reliability_grid, reliability_panels, save_figure
from edgewise.paper.results import Results
from edgewise.plots.reliability import STRIP_INSIDE_AXES, draw_panels

HERE = Path(__file__).parents[1]
RUNS = HERE / "docs" / "reproduction" / "runs.parquet"
DATASET, READING = "cora", "as_published"
ROWS = ("`edgewise report`, 900 runs", "one figure of it, 16 reliability diagrams", "the same with an axes per diagram")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, metavar="DIR", help="another checkout of edgewise")
    speed_page.add_options(parser)
    options = parser.parse_args()
    results = Results.read(RUNS)
    trees = [HERE, *([options.old] if options.old else [])]
    repeats = 1 if options.quick else 3
    commands = [[run_command(tree) for tree in trees] for _ in range(repeats)]
    whole, *old = (min(seconds) for seconds in zip(*commands, strict=True))
    for seconds in old:
        print(f"edgewise report: {whole:.1f} s, in {options.old} {seconds:.1f} s; ratio {whole / seconds:.2f}")
    drawings = (lambda: draw_reliability_grid(results, READING, DATASET), lambda: draw_plain_grid(results))
    with TemporaryDirectory() as folder:
        figures = [[save_seconds(draw, Path(folder)) for draw in drawings] for _ in range(repeats)]
    one, plain = (min(seconds) for seconds in zip(*figures, strict=True))
    text = as_table(whole, one, plain)
    print(text)
    speed_page.replace_section(options.page, "report", text)


def as_table(whole: float, one: float, plain: float) -> str:
    """Return the table of the page."""
    cells = (f"{whole:.1f}", f"{one:.2f}", f"{plain:.2f}, **{plain / one:.1f} ×**")
    return speed_page.table(("Report", "seconds of processor time"), [*map(list, zip(ROWS, cells, strict=True))])


def run_command(tree: Path) -> float:
    """Run the command of a checkout in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "edgewise", "report", str(RUNS), "--to", folder]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def save_seconds(draw: Callable[[], Figure], folder: Path) -> float:
    """Draw a figure and save it as PDF and PNG."""
    started = process_time()
    figure = draw()
    for suffix in FIGURE_SUFFIXES:
        save_figure(figure, folder / f"figure{suffix}")
    plt.close(figure)
    return process_time() - started


def draw_plain_grid(results: Results) -> Figure:
    """Draw the same panels in matplotlib axes."""
    panels = reliability_panels(results, READING, DATASET)
    figure, grid = plt.subplots(len(panels), len(VIEWS), figsize=(8.4, 2.9 * len(panels)), layout="constrained")
    for axes, of_model in zip(grid, panels.values(), strict=True):
        draw_panels(of_model, axes, STRIP_INSIDE_AXES)
    return figure


if __name__ == "__main__":
    main()
