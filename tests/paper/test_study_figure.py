"""The figure of the study."""

from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.transforms import Bbox

from edgewise.paper.study_predictors import PREDICTORS, TRAINED_PREDICTORS
from edgewise.paper.study_report import SCORE_NAMES, agreement, draw_study, select_rows, write_study_figure
from helpers.fake_study import row

mpl.use("Agg")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    metrics = [*SCORE_NAMES, "edge_kl"]
    return [
        row(name, seed, **dict(zip(metrics, rng.random(len(metrics)), strict=True)))
        for seed in range(4)
        for name in PREDICTORS
    ]


@pytest.fixture(scope="module")
def figure(rows):
    figure = draw_study(rows)
    figure.draw_without_rendering()
    plt.close(figure)
    return figure


def test_scatter_has_a_point_per_graph_and_predictor_but_the_truth(rows, figure):
    ece, nll, *_ = figure.axes
    for ax in (ece, nll):
        points = [part for part in ax.collections if isinstance(part, PathCollection)]
        names = [str(part.get_label()) for part in points]
        assert [name.lower() for name in names] == [name for name in PREDICTORS if name != "truth"]
        assert {"GCN", "GCN, temperature", "GMNN averaged logits", "true marginals"} < set(names)
        assert sum(len(part.get_offsets()) for part in points) == 4 * (len(PREDICTORS) - 1)
    gat = next(part for part in ece.collections if part.get_label() == "GAT")
    expected = [(found.scores["edge_kl"], found.scores["edge_ece"]) for found in select_rows(rows, ["gat"])]
    np.testing.assert_allclose(gat.get_offsets(), expected)


def test_predictors_differ_in_marker_or_color(figure):
    points = [part for part in figure.axes[0].collections if isinstance(part, PathCollection)]
    styles = {
        (part.get_facecolor().tobytes(), part.get_edgecolor().tobytes(), part.get_paths()[0].vertices.tobytes())
        for part in points
    }
    assert len(styles) == len(PREDICTORS) - 1


def test_bars_are_the_concordances(rows, figure):
    bars = figure.axes[2].patches
    expected = [
        100 * agreement(select_rows(rows, list(TRAINED_PREDICTORS)), metric, "edge_kl").concordance
        for metric in SCORE_NAMES
    ]
    np.testing.assert_allclose([bar.get_width() for bar in bars], expected)
    assert [label.get_text() for label in figure.axes[2].get_yticklabels()] == list(SCORE_NAMES.values())


def test_axes_are_inside_the_figure_and_do_not_overlap(figure):
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [ax.get_tightbbox() for ax in figure.axes]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    for box, other in combinations(boxes, 2):
        assert Bbox.intersection(box, other) is None
    _, _, bars, corner = figure.axes
    assert corner.get_legend().get_window_extent().x0 >= bars.get_window_extent().x1


def test_figure_of_one_graph_is_written(rows, tmp_path):
    before = plt.get_fignums()
    write_study_figure([found for found in rows if found.graph.seed == 0], tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes()[1:4] == b"PNG"
    assert plt.get_fignums() == before
