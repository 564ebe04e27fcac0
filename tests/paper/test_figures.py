"""Figures of a sweep: drawn lines and points match the runs."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from helpers.fake_results import fake_results

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import Collection
from matplotlib.figure import Figure

from edgewise.metrics.sums import VIEWS
from edgewise.paper.figures import draw_errors, draw_reliability_grid, write_figures
from edgewise.paper.reliability_grid import SIDE, draw_grid
from edgewise.paper.results import Results
from edgewise.plots.reliability_panels import MIN_BIN_COUNT, Panel
from edgewise.plots.style import GRAY


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def collection(figure: Figure, label: str) -> Collection:
    (found,) = (one for one in figure.axes[0].collections if one.get_label() == label)
    return found


def test_grid_has_a_row_per_model_and_a_column_per_view() -> None:
    results = fake_results(("cora",), ("gcn", "gmnn"), splits=1)
    figure = draw_reliability_grid(results, "as_published", "cora")
    shown = texts(figure)
    assert shown[0] == "Cora, as published"
    assert [text for text in shown if text in ("GCN", "GMNN")] == ["GCN", "GMNN"]
    assert [text for text in shown if text in VIEWS] == list(VIEWS)
    for model in ("gcn", "gmnn"):
        for view in VIEWS:
            errors = [one.ece for one in results.views("as_published", "cora", model, view)]  # NaN without elements
            assert f"ECE {np.nanmean(errors):.3f} ± {np.nanstd(errors):.3f}" in shown
    assert len(collection(figure, "mean").get_segments()) == 2 * len(VIEWS)
    assert len(collection(figure, "runs").get_segments()) == 2 * len(VIEWS) * 3
    plt.close(figure)


def test_mean_line_is_the_mean_of_the_bins_of_runs() -> None:
    results = fake_results(("cora",), ("gmnn",), splits=1)
    figure = draw_reliability_grid(results, "as_defined", "cora")
    place = VIEWS.index("edgewise")
    low = collection(figure, "frames").get_segments()[place * 8 + 1][0][1]  # the line of accuracy 0
    points = collection(figure, "mean").get_segments()[place]
    views = results.views("as_defined", "cora", "gmnn", "edgewise")
    count = np.array([view.bins.count for view in views], dtype=float)
    accuracy = np.array([view.bins.correct_sum for view in views]) / np.where(count > 0, count, np.nan)
    large = count.mean(axis=0) >= MIN_BIN_COUNT
    drawn = (points[:, 1] - low) / SIDE
    assert drawn[~np.isnan(drawn)] == pytest.approx(np.nanmean(accuracy[:, large], axis=0))
    plt.close(figure)


def test_bins_with_few_elements_are_hollow_and_without_lines() -> None:
    count = np.array([[100, 3, 100], [80, 0, 100]])
    panel = Panel.from_sums(
        "nodewise", "l1", np.linspace(0, 1, 4), count, count * [0.2, 0.5, 0.8], count * [0.1, 1.0, 0.9], np.zeros(2)
    )
    figure = draw_grid({"GCN": [panel]}, "Cora")
    for label, num_lines in (("mean", 1), ("runs", 2)):
        lines = [path.vertices[:, 1] for path in collection(figure, label).get_paths()]
        assert [np.isnan(line).tolist() for line in lines] == [[False, True, False]] * num_lines
    faces = [line.get_markerfacecolor() for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 1]
    assert faces == ["white"]
    plt.close(figure)


def test_view_without_elements_has_a_text() -> None:
    count = np.zeros((2, 3), dtype=int)
    empty = Panel.from_sums("agree", "l1", np.linspace(0, 1, 4), count, count * 1.0, count, np.full(2, np.nan))
    figure = draw_grid({"GCN": [empty]}, "Texas")
    assert "no edges" in texts(figure)
    figure.draw_without_rendering()
    plt.close(figure)


@pytest.mark.parametrize(
    ("name", "across", "up"),
    [("edge_against_node_ece", "nodewise", "edgewise"), ("agree_against_disagree_ece", "disagree", "agree")],
)
def test_error_figure_has_a_point_per_run(name: str, across: str, up: str) -> None:
    results = fake_results(("cora", "citeseer"), ("gat", "epfgnn"))
    figure = draw_errors(results, "as_published", name)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Cora", "Citeseer"]
    points = next(c for c in figure.axes[1].collections if c.get_label() == "EPFGNN").get_offsets()
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
    assert [text for text in texts(grid) if text in ("GCN", "sage")] == ["GCN", "sage"]
    gcn, sage = errors.axes[0].collections
    assert (gcn.get_label(), sage.get_label()) == ("GCN", "sage")
    assert len(sage.get_offsets()) == 3
    assert mpl.colors.same_color(sage.get_facecolor(), mpl.colors.to_rgba(GRAY, 0.6))
    plt.close("all")
