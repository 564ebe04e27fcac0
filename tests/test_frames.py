"""`to_frame` of everything that holds a table, and `Evaluation.plot`."""

import math
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

import edgewise as ew

PROBS = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]
EDGES = np.array([[0, 1], [1, 2]])


def evaluation(**options: object) -> ew.Evaluation:
    return ew.evaluate(np.array(PROBS), np.array([0, 0, 1]), EDGES, **options)


def history() -> ew.History:
    return ew.History([3.0, 2.0, 1.0], [3.5, 2.5, 2.6], [0.1, 0.5, 0.4], 3, 0.25, [("first", 2), ("second", 1)], 2)


def test_frame_of_an_evaluation_has_a_row_per_view_with_its_scores():
    ev = evaluation(same_label=True, node_sets=np.array([[0], [1], [2]]))
    frame = ev.to_frame()
    assert list(frame.index) == ["nodewise", "edgewise", "agree", "disagree", "same_label", "node_sets"]
    for view in frame.index:
        scores = getattr(ev, view)
        for name in ("count", "nll", "brier", "ece", "debiased_l2", "overconfidence", "underconfidence"):
            assert frame.loc[view, name] == pytest.approx(getattr(scores, name), nan_ok=True), (view, name)
    assert frame.loc["edgewise", "accuracy"] == ev.edgewise.accuracy
    assert math.isnan(frame.loc["same_label", "accuracy"])
    assert frame.loc["same_label", "probability"] == pytest.approx(ev.same_label.probability)
    assert frame["count"].dtype == np.int64
    assert not any("reliability" in name or name.endswith(("_low", "_high")) for name in frame.columns)


def test_frame_of_an_evaluation_has_intervals_if_they_were_computed():
    ev = evaluation(same_label=True, n_resamples=40)
    frame = ev.to_frame()
    assert frame.loc["nodewise", "nll_low"] == ev.intervals["nodewise"]["nll"].low
    assert frame.loc["agree", "ece_high"] == pytest.approx(ev.intervals["agree"]["ece"].high, nan_ok=True)
    assert frame.loc["same_label", "nll_low"] == ev.intervals["same_label"]["nll"].low


def test_frame_of_an_empty_evaluation_has_nan_scores():
    frame = ew.evaluate(np.array(PROBS), np.array([0, 0, 1]), np.empty((2, 0), np.int64)).to_frame()
    assert frame.loc["edgewise", "count"] == 0 and math.isnan(frame.loc["edgewise", "ece"])


def test_frame_of_pairs_equals_the_columns():
    table = ew.predict_edges(np.array(PROBS), EDGES, ["same"], class_names=["<a>", "b"])
    frame = table.to_frame()
    assert list(frame.columns) == list(table.table) and len(frame) == 2
    for name in frame.columns:
        assert frame[name].tolist() == table[name].tolist()


def test_frame_of_a_curve_has_a_row_per_threshold():
    curve = ew.risk_coverage(np.repeat([0.9, 0.8, 0.8, 0.6], 25), np.repeat([True, True, False, False], 25))
    frame = curve.to_frame()
    assert frame["selected"].tolist() == [25, 75, 100]
    assert frame["risk"].tolist() == pytest.approx([0, 1 / 3, 1 / 2])


def test_frame_of_a_history_has_a_row_per_epoch():
    frame = history().to_frame()
    assert frame["epoch"].tolist() == [1, 2, 3]
    assert frame["phase"].tolist() == ["first", "first", "second"]
    assert frame["kept"].tolist() == [False, True, False]
    assert frame["val_loss"].tolist() == [3.5, 2.5, 2.6]


def test_frame_without_pandas_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        history().to_frame()


def test_plot_draws_what_plot_reliability_draws():
    ev = evaluation(same_label=True)
    for options in ({}, {"views": "edgewise", "title": "mine"}, {"views": ("same_label", "agree")}):
        figures = [ev.plot(**options), ew.plot_reliability(ev, **options)]
        titles, heights = zip(
            *(([ax.get_title(loc="left") for ax in axes], fig.get_figheight()) for fig, axes in figures), strict=True
        )
        assert titles[0] == titles[1] and heights[0] == heights[1]
    _, ax = plt.subplots()
    _, axes = ev.plot(ax=ax, views="nodewise")
    assert axes[0] is ax
    plt.close("all")
