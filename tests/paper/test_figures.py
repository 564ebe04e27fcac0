"""Figures of a sweep: drawn lines and points match the runs."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from helpers.fake_results import fake_results

mpl.use("Agg")
import matplotlib.pyplot as plt

from edgewise.paper.figures import draw_errors, draw_reliability_grid, write_figures
from edgewise.paper.results import Results
from edgewise.plots.reliability_panels import MIN_BIN_COUNT
from edgewise.plots.style import GRAY


def test_grid_has_a_row_per_model_and_a_column_per_view() -> None:
    results = fake_results(("cora",), ("gcn", "gmnn"), splits=1)
    figure = draw_reliability_grid(results, "as_published", "cora")
    panels = [ax for ax in figure.findobj(mpl.axes.Axes) if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in panels] == ["nodewise", "edgewise", "agree", "disagree"] * 2
    names = [part.get_suptitle() for part in figure.subfigs[:-1]]
    assert names == ["gcn", "gmnn"]
    plt.close(figure)


def test_mean_line_is_the_mean_of_the_bins_of_runs() -> None:
    results = fake_results(("cora",), ("gmnn",), splits=1)
    figure = draw_reliability_grid(results, "as_defined", "cora")
    (panel,) = (ax for ax in figure.findobj(mpl.axes.Axes) if ax.get_title(loc="left") == "edgewise")
    (line,) = (line for line in panel.get_lines() if line.get_label() == "mean over runs")
    views = results.views("as_defined", "cora", "gmnn", "edgewise")
    count = np.array([view.bins.count for view in views], dtype=float)
    is_drawn = count.mean(axis=0) >= MIN_BIN_COUNT
    assert is_drawn.any() and not is_drawn.all()
    count[count == 0] = np.nan
    accuracy = np.array([view.bins.correct_sum for view in views]) / count
    drawn = np.asarray(line.get_ydata(), dtype=float)
    np.testing.assert_array_equal(np.isnan(drawn), ~is_drawn)
    assert drawn[is_drawn] == pytest.approx(np.nanmean(accuracy[:, is_drawn], axis=0))
    plt.close(figure)


@pytest.mark.parametrize(
    ("name", "across", "up"),
    [("edge_against_node_ece", "nodewise", "edgewise"), ("agree_against_disagree_ece", "disagree", "agree")],
)
def test_error_figure_has_a_point_per_run(name: str, across: str, up: str) -> None:
    results = fake_results(("cora", "citeseer"), ("gat", "epfgnn"))
    figure = draw_errors(results, "as_published", name)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["cora", "citeseer"]
    points = next(c for c in figure.axes[1].collections if c.get_label() == "epfgnn").get_offsets()
    expected = [
        [100 * run.predictions["published_misplaced_evidence"][view].ece for view in (across, up)]
        for run in results.of("citeseer", "epfgnn")
    ]
    assert np.asarray(points) == pytest.approx(np.array(expected))
    plt.close(figure)


def test_figures_are_written_as_pdf_and_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.paper.figures.READINGS", {"as_published": {}})  # one reading is enough
    plt.close("all")  # figures of other tests
    paths = write_figures(fake_results(("cora",), ("gcn",), splits=1), tmp_path / "figures")
    assert len(paths) == 3 * 2
    for path in paths:
        assert path.read_bytes()[:4] == (b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")
    assert not plt.get_fignums()


def test_without_runs_there_are_no_figures(tmp_path: Path) -> None:
    assert write_figures(Results([]), tmp_path) == []


def test_model_outside_the_paper_is_gray() -> None:
    results = fake_results(("cora",), ("sage", "gcn"), splits=1)
    grid = draw_reliability_grid(results, "as_defined", "cora")
    errors = draw_errors(results, "as_defined", "edge_against_node_ece")
    assert [part.get_suptitle() for part in grid.subfigs[:-1]] == ["gcn", "sage"]
    gcn, sage = errors.axes[0].collections
    assert (gcn.get_label(), sage.get_label()) == ("gcn", "sage")
    assert len(sage.get_offsets()) == 3
    assert mpl.colors.same_color(sage.get_facecolor(), mpl.colors.to_rgba(GRAY, 0.6))
    plt.close("all")
