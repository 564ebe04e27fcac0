"""The dot plot of groups."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import edgewise as ew
from helpers.random_predictions import random_case


@pytest.fixture
def ev():
    probs, y, edge_index, _ = random_case(0, 200, 400)
    yield ew.evaluate(probs, y, edge_index, by=("degree", "true_class"), n_resamples=40)
    plt.close("all")


@pytest.mark.parametrize("view", ["nodewise", "edgewise"])
def test_dots_are_at_the_errors_with_intervals_and_counts_the_worst_at_the_top(ev, view):
    groups = ev.groups["degree"]
    _, ax = groups.plot(view=view)
    shown = groups.nonempty(view)
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [float(dot.get_xdata()[0]) for dot in dots] == [scores.ece for scores in shown]
    assert [int(dot.get_ydata()[0]) for dot in dots] == list(range(len(shown)))
    assert ax.yaxis_inverted()
    bars = [tuple(line.get_xdata()) for line in ax.lines if line.get_linewidth() == 2]
    assert bars == [(scores.intervals["ece"].low, scores.intervals["ece"].high) for scores in shown]
    assert [label.get_text() for label in ax.get_yticklabels()] == [scores.group for scores in shown]
    (counts,) = ax.child_axes
    assert [label.get_text() for label in counts.get_yticklabels()] == [f"{scores.count:,}" for scores in shown]
    hollow = [dot.get_markerfacecolor() == "none" for dot in dots]
    assert hollow == [scores.is_small for scores in shown] and any(hollow)


def test_groups_that_depend_on_the_labels_are_marked(ev):
    texts = {name: [text.get_text() for text in ev.groups[name].plot()[1].texts] for name in ev.groups}
    assert any("true labels" in text for text in texts["true_class"])
    assert not any("true labels" in text for text in texts["degree"])


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_errors_by_chance_are_drawn_only_with_l1(norm):
    probs, y, edge_index, _ = random_case(0, 50, 80)
    _, ax = ew.evaluate(probs, y, edge_index, by="degree", norm=norm).groups["degree"].plot()
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert ("mean by chance" in names) == (norm == "l1")
    assert any(line.get_linewidth() == 1.5 and len(line.get_xdata()) == 2 for line in ax.lines) == (norm == "l1")
    assert any("l1" in text.get_text() for text in ax.texts) == (norm != "l1")
    plt.close("all")


def test_plot_in_given_axes_with_a_limit_and_without_groups(ev):
    fig, ax = plt.subplots()
    assert ew.plot_groups(ev.groups["degree"], ax=ax, max_groups=2) == (fig, ax)
    assert len(ax.get_yticklabels()) == 2
    nothing = ew.evaluate(np.array([[0.5, 0.5]]), np.array([0]), groups={"none": [-1]}).groups["none"]
    nothing.plot()[0].canvas.draw()
    with pytest.raises(ValueError, match="view"):
        ev.groups["degree"].plot(view="nodes")
