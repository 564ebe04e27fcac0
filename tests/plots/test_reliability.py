"""`plot_reliability`: drawn lines, bars, bands and labels match the evaluations."""

from collections.abc import Iterator
from itertools import combinations
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
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import edgewise as ew
from edgewise.plots.reliability import plot_reliability
from edgewise.plots.reliability_panels import MIN_BIN_COUNT, elements_name, prepare_reliability
from edgewise.plots.style import wrap_text


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


def texts(ax: Axes) -> list[str]:
    """Return the texts in an axes, from top to bottom."""
    return [text.get_text() for text in reversed(ax.texts)]


ONE_RUN, ONE_RUN_SMALL = "bin of 10 or more", "bin of fewer than 10"
MEAN, MEAN_SMALL = "mean over runs", "fewer than 10 per run"


def assert_drawn(ax: Axes, label: str, small_label: str, bins: list[tuple[float, float, float]]) -> None:
    """Check that bins (count, x, y) are on the line, or hollow if they are small, or nowhere if they are empty."""
    (line,) = lines(ax, label)
    on_line = [(x, y) if count >= MIN_BIN_COUNT else (np.nan, np.nan) for count, x, y in bins]
    np.testing.assert_allclose(points(line), on_line)
    hollow = [points(small) for small in lines(ax, small_label)]
    expected = [(x, y) for count, x, y in bins if 0 < count < MIN_BIN_COUNT]
    np.testing.assert_allclose(np.concatenate([*hollow, np.empty((0, 2))]), np.reshape(expected, (-1, 2)))


# --- one run ---


def test_line_shows_accuracy_at_mean_confidence_of_bins_that_are_not_small() -> None:
    ev = random_evaluation()
    _, axes = plot_reliability(ev)
    counts = []
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        sums = ev[view].reliability
        bins = []
        for count, confidence_sum, correct_sum in zip(sums.count, sums.confidence_sum, sums.correct_sum, strict=True):
            n = float(count)
            bins.append((n, float(confidence_sum) / n, float(correct_sum) / n) if n else (0.0, np.nan, np.nan))
            counts.append(n)
        assert_drawn(ax, ONE_RUN, ONE_RUN_SMALL, bins)
    assert min(counts) == 0 and any(0 < n < MIN_BIN_COUNT for n in counts) and max(counts) >= MIN_BIN_COUNT


def test_small_bins_are_hollow_and_the_line_does_not_reach_them() -> None:
    # 10 nodes of confidence 0.75 and 2 wrong ones of confidence 0.55, in neighboring bins of width 0.2.
    ev = evaluation([0.75] * 10 + [0.55] * 2, [0] * 10 + [1] * 2, n_bins=5)
    _, axes = plot_reliability(ev, views="nodewise")
    (line,), (small,) = lines(axes[0], ONE_RUN), lines(axes[0], ONE_RUN_SMALL)
    drawn = points(line)
    np.testing.assert_allclose(drawn[~np.isnan(drawn).any(axis=1)], [[0.75, 1]])
    np.testing.assert_allclose(points(small), [[0.55, 0]])
    assert small.get_linestyle() == "None" and small.get_markerfacecolor() == axes[0].get_facecolor()[:3]
    faint, solid = sorted(bar.get_facecolor()[3] for bar in bars(axes[0]))
    assert faint < solid / 2


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


def test_header_counts_one_node_in_the_singular() -> None:
    _, axes = plot_reliability(evaluation([0.75], [0], n_bins=5), views="nodewise")
    assert any("1 node" in text and "1 nodes" not in text for text in texts(axes[0]))


@pytest.mark.parametrize(
    ("view", "count", "name"), [("nodewise", 2, "nodes"), ("edgewise", 1, "edge"), ("node_sets", 0, "sets")]
)
def test_elements_are_named_by_view_and_count(view: str, count: int, name: str) -> None:
    assert elements_name(view, count) == name


def test_panel_header_has_view_count_and_ece_with_norm() -> None:
    ev = random_evaluation(norm="l2")
    _, axes = plot_reliability(ev)
    assert [ax.get_title(loc="left") for ax in axes] == list(ew.VIEWS)
    assert texts(axes[0]) == ["60 nodes", f"ECE (l2) {ev.nodewise.ece:.3f}"]
    assert texts(axes[1]) == [f"{ev.edgewise.count} edges", f"ECE (l2) {ev.edgewise.ece:.3f}"]


def test_count_of_one_is_singular() -> None:
    _, axes = plot_reliability(agreeing_evaluation(), views="agree")
    assert texts(axes[0])[0] == "1 edge"


def test_panels_are_square_with_a_diagonal() -> None:
    fig, axes = plot_reliability(random_evaluation())
    fig.canvas.draw()
    for ax in axes:
        (diagonal,) = lines(ax, "perfect calibration")
        np.testing.assert_array_equal(points(diagonal), [[0, 0], [1, 1]])
        box = ax.get_window_extent()
        assert box.width == pytest.approx(box.height)


def test_zero_width_bins_do_not_break_the_line() -> None:
    # Three of each four nodes tie, so the quantiles of 4 bins coincide.
    ev = evaluation([0.6, 0.6, 0.6, 0.9] * 10, [0, 0, 1, 0] * 10, binning="mass", n_bins=4)
    _, axes = plot_reliability(ev, views="nodewise")
    (line,) = lines(axes[0], ONE_RUN)
    np.testing.assert_allclose(points(line), [[0.6, 2 / 3], [0.9, 1]])


# --- empty views ---


def test_empty_view_has_a_panel_with_a_message_only() -> None:
    _, axes = plot_reliability(agreeing_evaluation())
    disagree = axes[3]
    assert disagree.get_title(loc="left") == "disagree"
    assert texts(disagree) == ["no edges"]
    assert not disagree.lines and not disagree.patches and not disagree.collections and not disagree.child_axes
    assert all(ax.lines for ax in axes[:3])


def test_y_label_is_on_the_first_nonempty_panel() -> None:
    _, axes = plot_reliability(agreeing_evaluation(), views=("disagree", "agree", "edgewise"))
    assert [ax.get_ylabel() for ax in axes] == ["", "accuracy", ""]


def test_only_empty_views_can_be_drawn() -> None:
    with pytest.warns(UserWarning, match="mask"):
        empty = evaluation([0.9], [0], mask=torch.tensor([False]))
    fig, axes = plot_reliability([empty, empty])
    fig.canvas.draw()
    assert [texts(ax) for ax in axes] == [["no nodes"], ["no edges"], ["no edges"], ["no edges"]]


# --- many runs ---

NUM_RUNS = 5


@pytest.fixture
def runs() -> list[ew.Evaluation]:
    return [random_evaluation(seed) for seed in range(NUM_RUNS)]


def by_bin(runs: list[ew.Evaluation], view: str) -> list[tuple[float, list[tuple[float, float]]]]:
    """List the mean count of each bin, and (confidence, accuracy) of the runs that fill it."""
    sums = [run[view].reliability for run in runs]
    return [
        (
            sum(int(run.count[k]) for run in sums) / len(runs),
            [(float(run.confidence[k]), float(run.accuracy[k])) for run in sums if run.count[k]],
        )
        for k in range(len(sums[0].count))
    ]


def test_each_run_is_a_gray_line(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        drawn = lines(ax, f"each of {NUM_RUNS} runs") + lines(ax, "_run")
        assert len(drawn) == NUM_RUNS
        for line, run in zip(drawn, runs, strict=True):
            sums = run[view].reliability
            accuracy = sums.accuracy.where(sums.count >= MIN_BIN_COUNT, torch.nan)
            np.testing.assert_array_equal(points(line), torch.stack((sums.confidence, accuracy), dim=1).numpy())


def test_mean_is_over_runs_with_a_nonempty_bin(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        bins = []
        for mean_count, of_bin in by_bin(runs, view):
            x, y = np.mean(of_bin, axis=0) if of_bin else (np.nan, np.nan)
            bins.append((mean_count, float(x), float(y)))
        assert_drawn(ax, MEAN, MEAN_SMALL, bins)


def test_band_is_mean_plus_minus_population_std_of_bins_that_are_not_small(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability(runs)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        (band,) = [artist for artist in ax.collections if isinstance(artist, PolyCollection)]
        vertices = [np.asarray(path.vertices) for path in band.get_paths()]
        drawn = {(round(x, 9), round(y, 9)) for x, y in np.concatenate([*vertices, np.empty((0, 2))]).tolist()}
        expected = set()
        for mean_count, of_bin in by_bin(runs, view):
            if mean_count >= MIN_BIN_COUNT:
                (x, mean), std = np.mean(of_bin, axis=0), np.std(of_bin, axis=0)[1]
                expected |= {(round(x, 9), round(mean - std, 9)), (round(x, 9), round(mean + std, 9))}
        assert drawn == expected


def test_isolated_bin_has_its_own_band_and_marker() -> None:
    # Confidence 0.55 and 0.95 only: with ten bins neither has a neighbor.
    labels = ([0, 0, 0], [0, 1, 0], [1, 1, 0])
    evs = [evaluation([0.55, 0.55, 0.95] * 10, y * 10, n_bins=10) for y in labels]
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
    assert texts(axes[0]) == [f"{min(counts)}–{max(counts)} edges", f"ECE (l1) {np.mean(ece):.3f} ± {np.std(ece):.3f}"]
    fraction = np.mean([run.edgewise.reliability.count.numpy() / run.edgewise.count for run in runs], axis=0)
    np.testing.assert_allclose([bar.get_height() for bar in bars(strip(axes[0]))], fraction[fraction > 0])


def test_run_with_an_empty_view_is_excluded_from_that_view() -> None:
    both = evaluation([0.9, 0.6, 0.2], [0, 0, 1], (0, 1), (1, 2))
    (panel,) = prepare_reliability([both, agreeing_evaluation()], "disagree")
    np.testing.assert_array_equal(panel.fraction, both.disagree.reliability.count.numpy())
    _, axes = plot_reliability([both, agreeing_evaluation()], views="disagree")
    assert texts(axes[0]) == ["0–1 edge", f"ECE (l1) {both.disagree.ece:.3f} ± 0.000"]


def test_list_of_one_run_is_drawn_as_one_run() -> None:
    _, axes = plot_reliability([random_evaluation()])
    assert lines(axes[0], ONE_RUN)


# --- several models in the same panels ---


def test_mapping_draws_a_line_per_name_in_the_same_panels(runs: list[ew.Evaluation]) -> None:
    before, after = runs[:2]
    fig, axes = plot_reliability({"GCN": before, "calibrated": after})
    assert len(axes) == 4
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        for name, ev in (("GCN", before), ("calibrated", after)):
            sums = ev[view].reliability
            expected = torch.stack((sums.confidence, sums.accuracy), dim=1)
            expected[sums.count < MIN_BIN_COUNT] = torch.nan
            (line,) = lines(ax, name)
            np.testing.assert_array_equal(points(line), expected.numpy())
        gcn, calibrated = lines(ax, "GCN")[0], lines(ax, "calibrated")[0]
        assert gcn.get_color() != calibrated.get_color() and gcn.get_marker() != calibrated.get_marker()
        assert not bars(ax)
        scores = [f"{name} {ev[view].ece:.3f}" for name, ev in (("GCN", before), ("calibrated", after))]
        assert texts(ax)[1:] == scores and texts(ax)[0].endswith("ECE (l1):")
        for outline, ev in zip(strip(ax).patches, (before, after), strict=True):
            assert isinstance(outline, StepPatch)
            np.testing.assert_allclose(outline.get_data().values, ev[view].reliability.count / ev[view].count)
    entries = [text.get_text() for text in fig.legends[0].get_texts()]
    assert entries == ["perfect calibration", ONE_RUN_SMALL]  # the names are in the panels


def test_mapping_of_lists_draws_means_and_bands(runs: list[ew.Evaluation]) -> None:
    _, axes = plot_reliability({"GCN": runs[:3], "GAT": runs[3:]}, views="edgewise")
    (mean,) = lines(axes[0], "GAT")
    (alone,) = lines(plot_reliability(runs[3:], views="edgewise")[1][0], MEAN)
    np.testing.assert_array_equal(points(mean), points(alone))
    assert len([artist for artist in axes[0].collections if isinstance(artist, PolyCollection)]) == 2
    ece = [run.edgewise.ece for run in runs[3:]]
    assert texts(axes[0])[-1] == f"GAT {np.mean(ece):.3f} ± {np.std(ece):.3f}"


def test_mapping_of_one_name_shows_the_name() -> None:
    ev = random_evaluation()
    _, axes = plot_reliability({"GCN": ev}, views="nodewise")
    assert texts(axes[0]) == ["60 nodes, ECE (l1):", f"GCN {ev.nodewise.ece:.3f}"]


def test_model_without_elements_in_a_view_does_not_hide_the_other() -> None:
    both = evaluation([0.9, 0.6, 0.2], [0, 0, 1], (0, 1), (1, 2))
    fig, axes = plot_reliability({"one": agreeing_evaluation(), "two": both}, views="disagree")
    fig.canvas.draw()
    assert texts(axes[0]) == ["0–1 edge, ECE (l1):", "one nan", f"two {both.disagree.ece:.3f}"]


def test_invalid_mappings_raise_value_error() -> None:
    ev = random_evaluation()
    with pytest.raises(ValueError, match="got none"):
        plot_reliability({})
    with pytest.raises(ValueError, match=r"15.* and .*10"):
        plot_reliability({"GCN": ev, "GAT": random_evaluation(n_bins=10)})
    not_an_evaluation: Any = ev.to_dict()
    with pytest.raises(ValueError, match="mapping of names"):
        plot_reliability({"GCN": ev, "GAT": 0.5})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="got a str at index 0"):
        plot_reliability({"GCN": not_an_evaluation})
    assert plt.get_fignums() == []


def test_each_model_keeps_its_own_equal_mass_bins() -> None:
    evs = {str(seed): random_evaluation(seed, binning="mass", n_bins=4) for seed in range(2)}
    _, axes = plot_reliability(evs, views="edgewise")
    for name, ev in evs.items():
        sums = ev.edgewise.reliability
        np.testing.assert_allclose(points(lines(axes[0], name)[0])[:, 0], sums.confidence.numpy())


# --- same label ---


def test_same_label_panel_has_its_own_axis_labels() -> None:
    ev = random_evaluation()
    assert ev.same_label is not None
    _, axes = plot_reliability(ev, views=(*ew.VIEWS, "same_label"))
    assert len(axes) == 5
    assert [ax.get_ylabel() for ax in axes] == ["accuracy", "", "", "", "observed frequency"]
    assert [strip(ax).get_xlabel() for ax in axes] == [*["confidence"] * 4, "predicted probability"]
    sums = ev.same_label.reliability
    bins = torch.stack((sums.count, sums.confidence, sums.accuracy), dim=1)
    assert_drawn(axes[4], ONE_RUN, ONE_RUN_SMALL, [(n, x, y) for n, x, y in bins.tolist()])


def test_missing_same_label_scores_raise_value_error() -> None:
    with pytest.raises(ValueError, match="same_label=False"):
        plot_reliability(random_evaluation(same_label=False), views="same_label")


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
    assert entries == ["perfect calibration", ONE_RUN, ONE_RUN_SMALL, "gap: overconfident", "gap: underconfident"]


def boxes_of_texts(fig: Figure) -> dict[str, Bbox]:
    """Return the boxes of all texts outside the panels: titles, headers, labels of axes and ticks, legend entries."""
    texts = [text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip()]
    inside = [text for ax in fig.axes for inset in ax.child_axes for text in inset.texts]
    return {
        f"{index} {text.get_text()!r}": text.get_window_extent()
        for index, text in enumerate(texts)
        if text not in inside
    }


def assert_nothing_overlaps(fig: Figure, tolerance: float = 1.0) -> None:
    """Check that no two texts overlap, that no text is on a panel, and that all are in the figure."""
    fig.canvas.draw()
    boxes = boxes_of_texts(fig)
    panels = {f"panel {index}": ax.get_window_extent() for index, ax in enumerate(fig.axes)}
    for (one, box), (other, box_of_other) in combinations((boxes | panels).items(), 2):
        both = Bbox.intersection(box, box_of_other)
        assert both is None or min(both.size) <= tolerance, f"{one} overlaps with {other}"
    for name, box in boxes.items():
        whole = fig.bbox.padded(tolerance)
        assert whole.contains(*box.min) and whole.contains(*box.max), f"{name} is cut off"


LONG_NAME = "temperature scaling of a graph convolutional network"
LONG_TITLE = "Citations among papers on machine learning, test nodes of the first of fifteen splits, one seed"


@pytest.mark.parametrize(
    ("font_size", "views"), [(10, "edgewise"), (7, ew.VIEWS), (18, ew.VIEWS), (10, (*ew.VIEWS, "same_label"))]
)
def test_texts_of_a_new_figure_do_not_overlap(font_size: int, views: str | tuple[str, ...]) -> None:
    one, two = random_evaluation(), random_evaluation(1)
    several: tuple[Any, ...] = (one, {"GCN": one, LONG_NAME: [one, two]})
    for evaluations in several:
        with plt.rc_context({"font.size": font_size}):
            fig, _ = plot_reliability(evaluations, views=views, title=LONG_TITLE)
            assert_nothing_overlaps(fig)


@pytest.mark.parametrize(("rows", "columns", "size"), [(1, 4, (5, 4)), (1, 4, (8, 4)), (2, 2, (5, 7)), (2, 2, (9, 8))])
@pytest.mark.parametrize("evaluations", [["GCN"], ["GCN", LONG_NAME]], ids=["one", "two"])
def test_texts_above_given_axes_do_not_overlap(
    evaluations: list[str], rows: int, columns: int, size: tuple[float, float]
) -> None:
    fig, grid = plt.subplots(rows, columns, figsize=size, layout="constrained")
    named = {name: random_evaluation(seed) for seed, name in enumerate(evaluations)}
    plot_reliability(named if len(named) > 1 else named["GCN"], ax=grid, title="GCN on a citation dataset")
    assert_nothing_overlaps(fig)


def test_rows_of_panels_in_subfigures_do_not_overlap(runs: list[ew.Evaluation]) -> None:
    fig = plt.figure(figsize=(8, 7), layout="constrained")
    for part, name in zip(fig.subfigures(2, 1), ("GCN", "GMNN"), strict=True):
        part.suptitle(name)
        plot_reliability(runs, ax=part.subplots(1, 4))
    assert_nothing_overlaps(fig)


def test_long_word_is_broken_where_no_space_is() -> None:
    font = FontProperties(size=10)
    lines_of_word = wrap_text("x" * 100, 72, font)
    assert len(lines_of_word) > 1 and "".join(lines_of_word) == "x" * 100
    assert wrap_text("short", 72, font) == ["short"]
    assert wrap_text("two words", 40, font) == ["two", "words"]


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
            return lines(axes[0], MEAN)[0].get_color()

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


def test_isotonic_curve_and_its_band_are_drawn_for_one_decomposed_run() -> None:
    ev = random_evaluation(decompose=True, n_resamples=40)
    _, axes = ew.plot_reliability(ev)
    for view, ax in zip(ew.VIEWS, axes, strict=True):
        (line,) = lines(ax, "isotonic fit")
        curve = ev[view].curve
        assert curve is not None
        np.testing.assert_allclose(points(line), np.stack([curve.forecast, curve.frequency], axis=1))
        assert [c.get_label() for c in ax.collections].count("band of the fit") == 1
    _, axes = ew.plot_reliability([ev, ev])
    assert not lines(axes[0], "isotonic fit")
