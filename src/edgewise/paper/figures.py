"""Figures of a sweep: reliability diagrams, scatter plots of calibration errors, and calibrators."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgewise.files.output import replace_file
from edgewise.metrics.sums import VIEWS
from edgewise.paper.formatting import READING_NAMES, display_name, row_style
from edgewise.paper.readings import AS_PUBLISHED, READINGS
from edgewise.paper.reliability_grid import draw_grid
from edgewise.paper.results import Results
from edgewise.paper.score_rows import UNCALIBRATED, Score, calibrated_runs, calibrator_rows
from edgewise.plots.reliability_panels import Panel
from edgewise.plots.style import BLUE, VERMILION, legend_entries
from edgewise.sweep.runs import ViewResult

FIGURE_SUFFIXES = (".pdf", ".png")
DATASETS_PER_ROW = 4
# By file name: the views of x and y, and their axis labels.
ERROR_PAIRS = {
    "edge_against_node_ece": ("nodewise", "edgewise", "node ECE", "edge ECE"),
    "agree_against_disagree_ece": ("disagree", "agree", "disagree ECE", "agree ECE"),
}


def write_figures(results: Results, folder: Path) -> list[Path]:
    """Draw all figures and save each as PDF and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in sweep_figures(results):
        if figure.get_layout_engine():  # layout is slower than drawing, so do it once for both files
            figure.draw_without_rendering()
            figure.set_layout_engine(None)
        for suffix in FIGURE_SUFFIXES:
            paths.append(folder / f"{name}{suffix}")
            save_figure(figure, paths[-1])
        plt.close(figure)
    return paths


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure atomically, in the format of the suffix."""
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150))


def sweep_figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield each figure with its file name."""
    for reading in READINGS:
        datasets = figure_datasets(results, reading)
        for dataset in datasets:
            yield f"reliability_{dataset}_{reading}", draw_reliability_grid(results, reading, dataset)
        for name in ERROR_PAIRS if datasets else ():
            yield f"{name}_{reading}", draw_errors(results, reading, name)
    if calibrated_runs(results):
        yield "calibrators", draw_calibrators(results)


def figure_datasets(results: Results, reading: str) -> list[str]:
    """Return the datasets drawn in a reading. Only those of the paper have a published procedure."""
    return results.paper_datasets if reading == AS_PUBLISHED else results.datasets


def draw_reliability_grid(results: Results, reading: str, dataset: str) -> Figure:
    """Draw a row of reliability diagrams per model."""
    panels = reliability_panels(results, reading, dataset)
    return draw_grid(panels, f"{display_name(dataset)}, {READING_NAMES[reading]}")


def reliability_panels(results: Results, reading: str, dataset: str) -> dict[str, list[Panel]]:
    """Return the panels of all views for each model that has runs, by display name."""
    models = [model for model in results.models if results.views(reading, dataset, model, "nodewise")]
    return {
        display_name(model): [_panel(view, results.views(reading, dataset, model, view)) for view in VIEWS]
        for model in models
    }


def _panel(view: str, results: Sequence[ViewResult]) -> Panel:
    bins = [result.bins for result in results]
    return Panel.from_sums(
        view,
        "l1",
        np.linspace(0, 1, len(bins[0].count) + 1),
        np.array([of_run.count for of_run in bins]),
        np.array([of_run.confidence_sum for of_run in bins]),
        np.array([of_run.correct_sum for of_run in bins]),
        np.array([result.ece for result in results]),
    )


def draw_errors(results: Results, reading: str, name: str) -> Figure:
    """Draw one calibration error against another, with a point per run and a panel per dataset."""
    x_view, y_view, x_name, y_name = ERROR_PAIRS[name]
    datasets = figure_datasets(results, reading)
    columns = min(DATASETS_PER_ROW, len(datasets))
    lines = -(-len(datasets) // DATASETS_PER_ROW)
    size = max(6.0, 3.4 * columns), 0.6 + 3.3 * lines  # the title needs six inches
    fig, grid = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in grid.flat[len(datasets) :]:
        ax.remove()
    for ax, dataset in zip(grid.flat, datasets, strict=False):
        errors = {
            model: np.array(
                [[100 * one.ece for one in results.views(reading, dataset, model, view)] for view in (x_view, y_view)]
            )
            for model in results.models
        }
        _draw_points(ax, errors)
        _format_axes(ax, dataset, x_name)
        if not any(np.isfinite(pairs).all(axis=0).any() for pairs in errors.values()):
            _mark_empty(ax)
    for ax in grid[:, 0]:
        ax.set_ylabel(f"{y_name}, percent")
    entries = legend_entries(fig.axes)
    names = [name for name in map(display_name, results.models) if name in entries]
    handles = [entries[name] for name in names]
    fig.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, markerscale=1.6)
    fig.suptitle(f"{y_name[0].upper()}{y_name[1:]} against {x_name} of each run, {READING_NAMES[reading]}")
    return fig


def _draw_points(ax: Axes, errors: Mapping[str, np.ndarray]) -> None:
    """Draw the two errors of each run, by model."""
    for model, (x, y) in errors.items():
        style = row_style(model)
        if len(x):
            ax.scatter(x, y, s=14, c=style.color, marker=style.marker, alpha=0.6, linewidths=0, label=style.label)


def _mark_empty(ax: Axes) -> None:
    """Replace the ticks by a text if no run has both errors."""
    ax.set(xticks=[], yticks=[])
    ax.text(0.5, 0.5, "nothing to score", transform=ax.transAxes, ha="center", va="center", backgroundcolor="white")


def _format_axes(ax: Axes, dataset: str, x_name: str) -> None:
    """Set equal limits from zero on both axes, and draw the line of equal errors."""
    limit = max(ax.get_xlim()[1], ax.get_ylim()[1])
    ax.set(xlim=(0, limit), ylim=(0, limit), xlabel=f"{x_name}, percent", aspect="equal")
    ax.set_title(display_name(dataset), loc="left", fontsize="medium")
    ax.axline((0, 0), slope=1, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    ax.spines[["top", "right"]].set_visible(False)


# By label: view, color, marker, and vertical offset in the line of a calibrator.
CALIBRATOR_ERRORS = {"node ECE": ("nodewise", BLUE, "o", -0.15), "edge ECE": ("edgewise", VERMILION, "s", 0.15)}


def draw_calibrators(results: Results) -> Figure:
    """Draw a panel per dataset and model, with a line per calibrator and a dot with mean ± std per error."""
    calibrators = [UNCALIBRATED, *results.calibrators]
    panels: dict[tuple[str, str], dict[str, Sequence[Score]]] = {}
    for row in calibrator_rows(results, [(view, "ece") for view, *_ in CALIBRATOR_ERRORS.values()]):
        panels.setdefault((row.dataset, row.model), {})[row.name] = row.scores
    datasets, models = (list(dict.fromkeys(cell[index] for cell in panels)) for index in (0, 1))
    columns = min(DATASETS_PER_ROW, len(datasets))
    lines = [datasets[start : start + columns] for start in range(0, len(datasets), columns)]
    size = max(6.0, 1.3 + 2.9 * columns), 0.8 + 2.7 * len(lines) * len(models)  # the title needs six inches
    fig, grid = plt.subplots(len(lines) * len(models), columns, figsize=size, layout="constrained", squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    for row_axes, (line, model) in zip(grid, product(lines, models), strict=True):
        drawn = [(ax, dataset) for ax, dataset in zip(row_axes, line, strict=False) if (dataset, model) in panels]
        for column, (ax, dataset) in enumerate(drawn):
            _draw_calibrator_panel(ax, panels[dataset, model], calibrators)
            ax.set_yticks(range(len(calibrators)), [display_name(name) for name in calibrators] if column == 0 else [])
            ax.set_title(f"{display_name(dataset)}, {display_name(model)}", loc="left", fontsize="medium")
            handles = ax.get_legend_handles_labels()
    fig.legend(*handles, loc="outside lower center", ncols=2, frameon=False)
    fig.suptitle("Calibration errors by calibrator, mean ± std over runs")
    return fig


def _draw_calibrator_panel(ax: Axes, scores: Mapping[str, Sequence[Score]], calibrators: Sequence[str]) -> None:
    """Draw one panel, calibrators from top to bottom, with a dashed line at the uncalibrated error."""
    ax.set_axis_on()
    for index, (name, (_, color, marker, offset)) in enumerate(CALIBRATOR_ERRORS.items()):
        errors = {calibrator: of_row[index] for calibrator, of_row in scores.items() if of_row[index].runs}
        ax.errorbar(
            [100 * score.mean for score in errors.values()],
            np.array([calibrators.index(calibrator) for calibrator in errors]) + offset,
            xerr=[100 * score.std for score in errors.values()],
            fmt=marker,
            color=color,
            ms=5,
            lw=1.4,
            label=name,
        ).lines[0].set_markeredgecolor("white")
        if UNCALIBRATED in errors:
            ax.axvline(100 * errors[UNCALIBRATED].mean, color=color, lw=0.8, ls="--", alpha=0.7, zorder=0)
    ax.set_ylim(len(calibrators) - 0.5, -0.5)
    ax.set_xlim(0, None)
    ax.grid(axis="y", color="0.92", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel("ECE, percent")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
