"""A figure of what calibrators do to the errors of nodes and of edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgewise.experiments.runs import Run
from edgewise.report.calibrator_rows import calibrated_predictions, calibrated_runs
from edgewise.report.colours import BLUE, VERMILION
from edgewise.report.results import Results, Summary, runs_with, summarised
from edgewise.report.words import label

# The view, a colour and a marker, and how far beneath the middle of a line.
ERRORS = {"node ECE": ("nodewise", BLUE, "o", -0.15), "edge ECE": ("edgewise", VERMILION, "s", 0.15)}
ACROSS = 4  # datasets side by side


@dataclass(frozen=True)
class CalibratorPanel:
    """The errors of a model on a dataset, by calibrator, in percent; None where no run has one."""

    title: str
    calibrators: Sequence[str]
    errors: dict[str, list[Summary | None]]


def calibrator_panel(dataset: str, model: str, runs: Sequence[Run], named: Mapping[str, str]) -> CalibratorPanel:
    """Give mean and std over the runs for each of some predictions, which are named by their calibrator."""
    errors = {
        name: [
            summarised(100 * run.predictions[one][view].ece for run in runs_with(one, runs)) for one in named.values()
        ]
        for name, (view, *_) in ERRORS.items()
    }
    return CalibratorPanel(f"{label(dataset)}, {label(model)}", [label(name) for name in named], errors)


def draw_calibrators(results: Results) -> Figure:
    """Draw a panel for each dataset and model: a line a calibrator, each error as a dot with mean ± std."""
    cells = calibrated_runs(results)
    named = calibrated_predictions([run for runs in cells.values() for run in runs])
    panels = {cell: calibrator_panel(*cell, runs, named) for cell, runs in cells.items()}
    datasets, models = (list(dict.fromkeys(cell[place] for cell in panels)) for place in (0, 1))
    columns = min(ACROSS, len(datasets))
    lines = [datasets[start : start + columns] for start in range(0, len(datasets), columns)]
    size = max(6.0, 1.3 + 2.9 * columns), 0.8 + 2.7 * len(lines) * len(models)  # the title needs six inches
    fig, grid = plt.subplots(len(lines) * len(models), columns, figsize=size, layout="constrained", squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    for row, (line, model) in zip(grid, product(lines, models), strict=True):
        drawn = [
            (ax, panels[dataset, model]) for ax, dataset in zip(row, line, strict=False) if (dataset, model) in panels
        ]
        for place, (ax, panel) in enumerate(drawn):
            _draw(ax, panel, is_named=place == 0)
            handles = ax.get_legend_handles_labels()
    fig.legend(*handles, loc="outside lower center", ncols=2, frameon=False)
    fig.suptitle("Calibration errors by calibrator, mean ± std over runs")
    return fig


def _draw(ax: Axes, panel: CalibratorPanel, is_named: bool) -> None:
    """Draw one panel, calibrators from the top down; a dashed line goes down from the error without one."""
    ax.set_axis_on()
    for name, found in panel.errors.items():
        _, colour, marker, beneath = ERRORS[name]
        known = [(place, one) for place, one in enumerate(found) if one is not None]
        means = [one.mean for _, one in known]
        places = np.array([place for place, _ in known]) + beneath
        bars = ax.errorbar(
            means, places, xerr=[one.std for _, one in known], fmt=marker, color=colour, ms=5, lw=1.4, label=name
        )
        bars.lines[0].set_markeredgecolor("white")
        if found[0] is not None:
            ax.axvline(found[0].mean, color=colour, linewidth=0.8, linestyle="--", alpha=0.7, zorder=0)
    ax.set_yticks(range(len(panel.calibrators)), panel.calibrators if is_named else [])
    ax.set_ylim(len(panel.calibrators) - 0.5, -0.5)
    ax.set_xlim(0, None)
    ax.grid(axis="y", color="0.92", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel("ECE, percent")
    ax.set_title(panel.title, loc="left", fontsize="medium")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
