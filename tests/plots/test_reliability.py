"""`plot_reliability`: drawn lines, bars, bands and labels match the evaluations."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import edgewise as ew
from edgewise.plots.reliability import plot_reliability
from edgewise.plots.reliability_panels import prepare_reliability


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def random_evaluation(seed: int = 0, num_nodes: int = 60, **options: Any) -> ew.Evaluation:
    draw = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(num_nodes, 3, generator=draw, dtype=torch.float64)).softmax(-1)
    y = torch.randint(3, (num_nodes,), generator=draw)
    edge_index = torch.randint(num_nodes, (2, 3 * num_nodes), generator=draw)
    return ew.evaluate(probs, y, edge_index, **options)


def evaluation(p_zero: list[float], y: list[int], *edges: tuple[int, int], **options: Any) -> ew.Evaluation:
    """Evaluate two classes, given each node's probability of class 0."""
    p = torch.tensor(p_zero, dtype=torch.float64)
    edge_index = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    return ew.evaluate(torch.stack((p, 1 - p), dim=1), torch.tensor(y), edge_index, **options)


def agreeing_evaluation() -> ew.Evaluation:
    """Return an evaluation with one edge, whose ends have the same label."""
    return evaluation([0.9, 0.6, 0.2], [0, 0, 1], (0, 1))


def lines(ax: Axes, label: str) -> list[Line2D]:
    return [line for line in ax.lines if str(line.get_label()) == label]


def points(line: Line2D) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])


def bars(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def strip(ax: Axes) -> Axes:
    (inset,) = ax.child_axes
    assert isinstance(inset, Axes)
    return inset


def texts(ax: Axes) -> str:
    return " ".join(text.get_text() for text in ax.texts)


# --- one run ---


def test_line_shows_accuracy_at_mean_confidence_and_skips_empty_bins() -> None:
    ev = random_evaluation(num_nodes=25)
    _, axes = plot_reliability(ev)
    some_bin_was_empty = False
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        sums = ev[view].reliability
        (line,) = lines(ax, "filled bin")
        for k, (x, y) in enumerate(points(line)):
            count = int(sums.count[k])
            if count == 0:
                some_bin_was_empty = True
                assert np.isnan(x) and np.isnan(y)
            else:
                assert x == pytest.approx(float(sums.confidence_sum[k]) / count)
                assert y == pytest.approx(float(sums.correct_sum[k]) / count)
    assert some_bin_was_empty


def test_gap_bars_span_diagonal_to_accuracy() -> None:
    ev = random_evaluation()
    _, axes = plot_reliability(ev)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        sums = ev[view].reliability
        confidence, accuracy = sums.confidence[sums.filled].numpy(), sums.accuracy[sums.filled].numpy()
        drawn = sorted((bar.get_x() + bar.get_width() / 2, bar.get_y(), bar.get_height()) for bar in bars(ax))
        np.testing.assert_allclose(drawn, np.column_stack([confidence, confidence, accuracy - confidence]))


def test_strip_shows_the_fraction_of_each_filled_bin() -> None:
    ev = random_evaluation(num_nodes=25)
    _, axes = plot_reliability(ev)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        sums = ev[view].reliability
        drawn = bars(strip(ax))
        fraction = sums.count[sums.filled].numpy() / ev[view].count
        np.testing.assert_allclose([bar.get_height() for bar in drawn], fraction)
        center = ((sums.boundaries[1:] + sums.boundaries[:-1]) / 2)[sums.filled].numpy()
        np.testing.assert_allclose([bar.get_x() + bar.get_width() / 2 for bar in drawn], center)
        assert strip(ax).get_ylim()[1] >= fraction.max()
    assert len({strip(ax).get_ylim() for ax in axes}) == 1


def test_panel_header_has_view_count_and_ece_with_norm() -> None:
    ev = random_evaluation(norm="l2")
    _, axes = plot_reliability(ev)
    assert [ax.get_title(loc="left") for ax in axes] == list(ew.VIEWS)
    assert texts(axes[0]) == f"60 nodes\nECE (l2) {ev.nodewise.ece:.3f}"
    assert texts(axes[1]) == f"{ev.edgewise.count} edges\nECE (l2) {ev.edgewise.ece:.3f}"


def test_count_of_one_is_singular() -> None:
    _, axes = plot_reliability(agreeing_evaluation(), views="agree")
    assert texts(axes[0]).startswith("1 edge\n")


def test_panels_are_square_with_a_diagonal() -> None:
    fig, axes = plot_reliability(random_evaluation())
    fig.canvas.draw()
    for ax in axes:
        (diagonal,) = lines(ax, "perfect calibration")
        np.testing.assert_array_equal(points(diagonal), [[0, 0], [1, 1]])
        box = ax.get_window_extent()
        assert box.width == pytest.approx(box.height)


def test_zero_width_bins_do_not_break_the_line() -> None:
    # Three of four nodes tie, so the quantiles of 4 bins coincide.
    ev = evaluation([0.6, 0.6, 0.6, 0.9], [0, 0, 1, 0], binning="mass", n_bins=4)
    _, axes = plot_reliability(ev, views="nodewise")
    (line,) = lines(axes[0], "filled bin")
    np.testing.assert_allclose(points(line), [[0.6, 2 / 3], [0.9, 1]])


# --- empty views ---


def test_empty_view_has_a_panel_with_a_message_only() -> None:
    _, axes = plot_reliability(agreeing_evaluation())
    disagree = axes[3]
    assert disagree.get_title(loc="left") == "disagree"
    assert texts(disagree).strip() == "no edges"
    assert not disagree.lines and not disagree.patches and not disagree.collections and not disagree.child_axes
    assert all(ax.lines for ax in axes[:3])


def test_y_label_is_on_the_first_nonempty_panel() -> None:
    _, axes = plot_reliability(agreeing_evaluation(), views=("disagree", "agree", "edgewise"))
    assert [ax.get_ylabel() for ax in axes] == ["", "accuracy", ""]


def test_only_empty_views_can_be_drawn() -> None:
    empty = evaluation([0.9], [0], mask=torch.tensor([False]))
    fig, axes = plot_reliability([empty, empty])
    fig.canvas.draw()
    assert [texts(ax).strip() for ax in axes] == ["no nodes", "no edges", "no edges", "no edges"]


# --- many runs ---

NUM_RUNS = 5


@pytest.fixture
def runs() -> list[ew.Evaluation]:
    return [random_evaluation(seed, num_nodes=25) for seed in range(NUM_RUNS)]


def by_bin(runs: list[ew.Evaluation], view: str) -> list[list[tuple[float, float]]]:
    """List (confidence, accuracy) of the runs that fill each bin."""
    sums = [run[view].reliability for run in runs]
    return [
        [(float(run.confidence[k]), float(run.accuracy[k])) for run in sums if run.count[k]]
        for k in range(len(sums[0].count))
    ]


def test_each_run_is_a_gray_line(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        drawn = lines(ax, f"each of {NUM_RUNS} runs") + lines(ax, "_run")
        assert len(drawn) == NUM_RUNS
        for line, run in zip(drawn, runs, strict=True):
            sums = run[view].reliability
            np.testing.assert_array_equal(points(line), torch.stack((sums.confidence, sums.accuracy), dim=1).numpy())


def test_mean_is_over_runs_with_a_nonempty_bin(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        (line,) = lines(ax, "mean over runs")
        filled = by_bin(runs, view)
        expected = [np.mean(of_bin, axis=0) if of_bin else (np.nan, np.nan) for of_bin in filled]
        np.testing.assert_allclose(points(line), expected)
        partly = [mean for mean, of_bin in zip(expected, filled, strict=True) if 0 < len(of_bin) < NUM_RUNS]
        hollow = [points(line) for line in lines(ax, "bin empty in some runs")]
        np.testing.assert_allclose(np.concatenate([*hollow, np.empty((0, 2))]), np.reshape(partly, (-1, 2)))


def test_band_is_mean_plus_minus_population_std(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        (band,) = [artist for artist in ax.collections if isinstance(artist, PolyCollection)]
        vertices = np.concatenate([np.asarray(path.vertices) for path in band.get_paths()])
        drawn = {(round(x, 9), round(y, 9)) for x, y in vertices.tolist()}
        expected = set()
        for of_bin in filter(None, by_bin(runs, view)):
            (x, mean), std = np.mean(of_bin, axis=0), np.std(of_bin, axis=0)[1]
            expected |= {(round(x, 9), round(mean - std, 9)), (round(x, 9), round(mean + std, 9))}
        assert drawn == expected


def test_isolated_bin_has_its_own_band_and_marker() -> None:
    # Confidence 0.55 and 0.95 only: with ten bins neither has a neighbor.
    labels = ([0, 0, 0], [0, 1, 0], [1, 1, 0])
    evs = [evaluation([0.55, 0.55, 0.95], y, n_bins=10) for y in labels]
    _, axes = plot_reliability(evs, views="nodewise")
    ax = axes[0]
    _, alone = ax.collections
    mean, std = 0.5, float(np.std([1, 0.5, 0]))
    low_and_high = [[[0.55, mean - std], [0.55, mean + std]], [[0.95, 1], [0.95, 1]]]
    np.testing.assert_allclose([np.asarray(path.vertices) for path in alone.get_paths()], np.array(low_and_high))
    assert all(line.get_markevery() == [5, 9] for line in lines(ax, "_run"))


def test_header_of_several_runs_has_count_range_and_ece_mean_std(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs, views="edgewise")
    ece = [run.edgewise.ece for run in runs]
    counts = [run.edgewise.count for run in runs]
    assert min(counts) < max(counts)
    text = f"{min(counts)}–{max(counts)} edges\nECE (l1) {np.mean(ece):.3f} ± {np.std(ece):.3f}"
    assert texts(axes[0]) == text
    fraction = np.mean([run.edgewise.reliability.count.numpy() / run.edgewise.count for run in runs], axis=0)
    np.testing.assert_allclose([bar.get_height() for bar in bars(strip(axes[0]))], fraction[fraction > 0])


def test_run_with_an_empty_view_is_excluded_from_that_view() -> None:
    both = evaluation([0.9, 0.6, 0.2], [0, 0, 1], (0, 1), (1, 2))
    (panel,) = prepare_reliability([both, agreeing_evaluation()], "disagree")
    np.testing.assert_array_equal(panel.fraction, both.disagree.reliability.count.numpy())
    _, axes = plot_reliability([both, agreeing_evaluation()], views="disagree")
    assert texts(axes[0]) == f"0–1 edge\nECE (l1) {both.disagree.ece:.3f} ± 0.000"


def test_list_of_one_run_is_drawn_as_one_run() -> None:
    _, axes = plot_reliability([random_evaluation()])
    assert lines(axes[0], "filled bin")


# --- same label ---


def test_same_label_panel_has_its_own_axis_labels() -> None:
    ev = random_evaluation(same_label=True)
    assert ev.same_label is not None
    _, axes = plot_reliability(ev, views=(*ew.VIEWS, "same_label"))
    assert len(axes) == 5
    assert [ax.get_ylabel() for ax in axes] == ["accuracy", "", "", "", "observed frequency"]
    assert [strip(ax).get_xlabel() for ax in axes] == [*["confidence"] * 4, "predicted probability"]
    (line,) = lines(axes[4], "filled bin")
    sums = ev.same_label.reliability
    np.testing.assert_array_equal(points(line), torch.stack((sums.confidence, sums.accuracy), dim=1).numpy())


def test_missing_same_label_scores_raise_value_error() -> None:
    with pytest.raises(ValueError, match="same_label=True"):
        plot_reliability(random_evaluation(), views="same_label")


# --- figures and axes ---


@pytest.mark.parametrize("views", ["edgewise", ("edgewise",)])
def test_given_axes_is_used_and_no_figure_is_created(views: str | tuple[str]) -> None:
    fig, ax = plt.subplots()
    other = plt.figure()
    drawn_fig, axes = plot_reliability(random_evaluation(), ax=ax, views=views, title="mine")
    assert drawn_fig is fig and axes.shape == (1,) and axes[0] is ax
    assert plt.get_fignums() == [fig.number, other.number] and plt.gcf() is other
    assert ax.get_title(loc="left") == "mine\nedgewise" and ax.get_xlabel() == "confidence"
    fig.canvas.draw()
    strip_box, box = strip(ax).get_window_extent(), ax.get_window_extent()
    assert box.padded(1e-6).contains(*strip_box.min) and box.padded(1e-6).contains(*strip_box.max)
    # Below accuracy 0, so that it does not cover the diagram.
    assert strip_box.y1 <= ax.transData.transform((0, 0))[1] + 1e-6


@pytest.mark.parametrize("n_bins", [1, 2, 5, 15, 40, 200])
def test_tick_labels_of_strip_and_panel_do_not_overlap(n_bins: int) -> None:
    fig, ax = plt.subplots(figsize=(2.2, 2.6), layout="constrained")
    plot_reliability(random_evaluation(n_bins=n_bins), ax=ax, views="edgewise")
    fig.canvas.draw()
    zero, (percent_zero, percent) = ax.get_yticklabels()[0], strip(ax).get_yticklabels()
    assert zero.get_text() == "0" and percent_zero.get_text().rstrip("0.%") == ""
    assert zero.get_window_extent().y0 >= percent.get_window_extent().y1
    assert percent.get_window_extent().y0 >= percent_zero.get_window_extent().y1
    assert float(percent.get_text().rstrip("%")) / 100 == pytest.approx(strip(ax).get_yticks()[1])


def test_grid_of_axes_is_filled_by_rows_and_labeled_on_the_left() -> None:
    fig, grid = plt.subplots(2, 2, sharex=True, sharey=True)
    drawn_fig, axes = plot_reliability(agreeing_evaluation(), ax=grid)
    assert drawn_fig is fig and list(axes) == list(grid.flat)
    assert [ax.get_ylabel() for ax in axes] == ["accuracy", "", "accuracy", ""]
    fig.canvas.draw()


def test_axes_in_a_subfigure_without_pyplot() -> None:
    fig = Figure()
    grid = fig.add_subfigure(fig.add_gridspec(1, 1)[0]).subplots(1, 2)
    drawn_fig, axes = plot_reliability(random_evaluation(), ax=list(grid), views=ew.VIEWS[:2])
    assert drawn_fig is fig and len(axes) == 2
    assert plt.get_fignums() == []


def test_new_figure_has_title_legend_and_page_width() -> None:
    fig, axes = plot_reliability(random_evaluation(), title="GCN on Cora")
    assert plt.gcf() is fig and axes.shape == (4,)
    assert fig.get_suptitle() == "GCN on Cora"
    assert fig.get_figwidth() == 8
    (legend,) = fig.legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries == ["perfect calibration", "filled bin", "gap: overconfident", "gap: underconfident"]


@pytest.mark.parametrize("font_size", [7, 10, 18])
def test_panels_title_and_legend_do_not_overlap(runs: list[ew.Evaluation], font_size: int) -> None:
    with plt.rc_context({"font.size": font_size}):
        fig, axes = plot_reliability(runs, title="GCN on Cora")
        fig.canvas.draw()
        top, bottom = fig.texts[0].get_window_extent().y0, fig.legends[0].get_window_extent().y1
        boxes = [ax.get_tightbbox() for ax in axes]
        assert max(box.y1 for box in boxes) <= top and min(box.y0 for box in boxes) >= bottom
        assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))


def test_rc_params_are_unchanged(runs: list[ew.Evaluation]) -> None:
    with plt.style.context("dark_background"):
        before = dict(plt.rcParams)
        fig, axes = plot_reliability(runs)
        plot_reliability(runs[0])
        assert dict(plt.rcParams) == before
        assert axes[0].get_facecolor() == (0, 0, 0, 1)
        fig.canvas.draw()


def test_mean_is_lighter_on_a_dark_background(runs: list[ew.Evaluation]) -> None:
    def mean_color(style: Any) -> object:
        with plt.rc_context(style):
            _, axes = plot_reliability(runs, views="nodewise")
            return lines(axes[0], "mean over runs")[0].get_color()

    assert mean_color({}) == mean_color({"axes.facecolor": "none"})
    assert mean_color({"axes.facecolor": "none", "figure.facecolor": "none"}) == mean_color({})
    assert mean_color({"axes.facecolor": "black"}) != mean_color({})


# --- invalid input ---


def test_invalid_evaluations_raise_value_error() -> None:
    ev = random_evaluation()
    not_an_evaluation: Any = ev.to_dict()
    with pytest.raises(ValueError, match="got none"):
        plot_reliability([])
    with pytest.raises(ValueError, match="dict at index 1"):
        plot_reliability([ev, not_an_evaluation])
    with pytest.raises(ValueError, match=r"15.* and .*10"):
        plot_reliability([ev, random_evaluation(n_bins=10)])
    with pytest.raises(ValueError, match=r"l1.* and .*l2"):
        plot_reliability([ev, random_evaluation(norm="l2")])
    with pytest.raises(ValueError, match="binning='width'"):
        plot_reliability([random_evaluation(binning="mass")] * 2)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("views", ["edges", ("nodewise", "edges")])
def test_unknown_view_raises_value_error(views: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="same_label, but got 'edges'"):
        plot_reliability(random_evaluation(), views=views)


def test_empty_views_raise_value_error() -> None:
    with pytest.raises(ValueError, match="at least one view"):
        plot_reliability(random_evaluation(), views=())


def test_wrong_number_or_type_of_axes_raises_value_error() -> None:
    ev, (_, grid) = random_evaluation(), plt.subplots(1, 3)
    not_axes: Any = "right"
    with pytest.raises(ValueError, match=r"1 axes for 4 views.*views='edgewise'"):
        plot_reliability(ev, ax=grid[0])
    with pytest.raises(ValueError, match="3 axes for 4 views"):
        plot_reliability(ev, ax=grid)
    with pytest.raises(ValueError, match="str at index 1"):
        plot_reliability(ev, ax=[grid[0], not_axes], views=ew.VIEWS[:2])
    assert not any(ax.lines for ax in grid)
