"""`plot_risk_coverage`: drawn curves match the computed ones."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from edgewise.decisions import risk_coverage, selective
from edgewise.plots.reliability_panels import MIN_BIN_COUNT
from edgewise.plots.risk_coverage_plot import MAX_POINTS, curve_points, plot_risk_coverage

mpl.use("Agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def random_curve(count, seed=0):
    g = np.random.default_rng(seed)
    confidence = g.random(count)
    return risk_coverage(confidence, g.random(count) < confidence)


def test_area_under_the_drawn_steps_is_aurc():
    curve = random_curve(500)
    _, ax = plot_risk_coverage({"nodes": curve})
    line, few, best, _ = ax.get_lines()
    assert line.get_drawstyle() == "steps-pre"  # a step holds for the coverage before its point
    x, y = np.concatenate([few.get_data(), line.get_data()], axis=1)
    assert float(np.diff(x, prepend=0) @ y) == pytest.approx(curve.aurc)
    assert float(np.trapezoid(best.get_ydata(), best.get_xdata())) == pytest.approx(curve.best_aurc, abs=3e-3)


def test_part_of_the_curve_on_few_elements_is_faint():
    curve = random_curve(120)
    _, ax = plot_risk_coverage(curve)
    line, few, *_ = ax.get_lines()
    np.testing.assert_allclose(few.get_xdata() * 120, range(1, MIN_BIN_COUNT))
    np.testing.assert_allclose(line.get_xdata() * 120, range(MIN_BIN_COUNT, 121))
    assert few.get_alpha() < 0.5 and line.get_alpha() is None


@pytest.mark.parametrize("num_curves", [1, 8])
def test_legend_of_a_new_figure_is_below_the_curves(num_curves):
    name = "edges of a graph neural network with a long name"
    curves = {f"{name} {seed}": random_curve(200, seed) for seed in range(num_curves)}
    fig, ax = plot_risk_coverage(curves, title="Risk and coverage of edges, " * 4)
    fig.canvas.draw()
    legend, title = ax.get_legend().get_window_extent(), ax._left_title.get_window_extent()
    assert legend.y1 <= ax.xaxis.label.get_window_extent().y0
    assert title.y0 >= ax.get_window_extent().y1
    for box in (legend, title):
        assert fig.bbox.padded(1).contains(*box.min) and fig.bbox.padded(1).contains(*box.max)


def test_long_curve_is_thinned_and_keeps_its_area():
    curve = random_curve(50_000)
    x, y = curve_points(curve)
    assert len(x) <= MAX_POINTS
    assert x[-1] == 1.0
    assert float(np.diff(x, prepend=0) @ y) == pytest.approx(curve.aurc, abs=1e-3)


def test_all_curves_are_in_one_axes():
    g = np.random.default_rng(1)
    probs, edges = g.dirichlet([1, 1, 1], size=150), g.integers(0, 150, size=(2, 160))
    curves = selective(probs, g.integers(0, 3, 150), edges)
    fig, ax = plot_risk_coverage(curves, title="A title")
    assert [text.get_text().split(":")[0] for text in ax.get_legend().get_texts()] == ["nodes", "edges", "same", "best"]
    assert ax.get_title(loc="left") == "A title"
    assert ax.get_xlim() == (0, 1)
    other_fig, other_ax = plt.subplots()
    assert plot_risk_coverage(curves, ax=other_ax) == (other_fig, other_ax)
    assert fig is not other_fig


def test_single_curve_and_empty_curve():
    _, ax = plot_risk_coverage(random_curve(100))
    assert ax.get_legend().get_texts()[0].get_text().startswith("all: AURC")
    _, ax = plot_risk_coverage({"edges": risk_coverage(np.empty(0), np.empty(0, bool))})
    assert ax.get_legend().get_texts()[0].get_text() == "edges: none"


def test_invalid_curves_raise_value_error():
    with pytest.raises(ValueError, match="got dict"):
        plot_risk_coverage({"nodes": 0.5})
    with pytest.raises(ValueError, match="got list"):
        plot_risk_coverage([random_curve(100)])
