"""The picture of a study: scores against the distance from the truth, and how often each score is right."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgewise.experiments.study_answer import SCORE_NAMES, above_truth, agreement, chosen
from edgewise.experiments.study_predictors import LEARNT, REFERENCES
from edgewise.experiments.study_rows import Row
from edgewise.replace_file import replace_file
from edgewise.report.colours import BLACK, BLUE, GREEN, OCHRE, ORANGE, PURPLE, SKY, VERMILION

# References are hollow, trained models are filled. More markers than colours: a ninth model looks like no other.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, OCHRE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
TITLE: Mapping[str, Any] = {"fontsize": "medium", "loc": "left"}
LEAST = 1e-4  # what is smaller is drawn here


def write_study_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw the picture and save it."""
    figure = draw_study(rows)
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150))
    plt.close(figure)


def draw_study(rows: Sequence[Row]) -> Figure:
    """Draw edge ECE against KL, edge NLL above the truth's against KL, and how often each score is right."""
    figure, (ece, nll, bars) = plt.subplots(
        1, 3, figsize=(13.0, 4.9), layout="constrained", width_ratios=(1.0, 1.0, 0.85)
    )
    above = above_truth(rows)
    others = [row for row, _ in above]
    _scatter(ece, others, [row.scores["edge_ece"] for row in others])
    _scatter(nll, others, [excess for _, excess in above])
    ece.set_ylabel("edge ECE")
    ece.set_title("Edge ECE against the distance from the truth", **TITLE)
    nll.set_ylabel("edge NLL above the truth's, nats")
    nll.set_title("Edge NLL against the distance from the truth", **TITLE)
    nll.axline((LEAST, LEAST), (1.0, 1.0), color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    _bars(bars, rows)
    handles, labels = ece.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize="small", markerscale=1.4
    )
    return figure


class Style(NamedTuple):
    """How the points of a predictor look."""

    marker: str
    face: str
    edge: str


def _styles() -> dict[str, Style]:
    colours, markers = cycle(COLOURS), cycle(MARKERS)
    trained = {name: Style(marker, c, c) for name, marker, c in zip(LEARNT, markers, colours, strict=False)}
    references = [name for name in REFERENCES if name != "truth"]
    return trained | {name: Style(marker, "none", "0.25") for name, marker in zip(references, MARKERS, strict=False)}


def _scatter(ax: Axes, rows: Sequence[Row], heights: Sequence[float]) -> None:
    """Draw a point for each graph and predictor, on logarithmic axes."""
    for predictor, style in _styles().items():
        points = [
            (row.scores["edge_kl"], height)
            for row, height in zip(rows, heights, strict=True)
            if row.predictor == predictor
        ]
        if points:
            x, y = np.maximum(np.array(points).T, LEAST)
            ax.scatter(
                x,
                y,
                s=22,
                marker=style.marker,
                facecolors=style.face,
                edgecolors=style.edge,
                linewidths=0.8,
                alpha=0.75,
                label=predictor,
            )
    ax.set(xscale="log", yscale="log", xlabel="KL of the test edges from the truth, nats")
    ax.spines[["top", "right"]].set_visible(False)


def _bars(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw for each score how often it tells which of two trained models is the nearer to the truth."""
    learnt = chosen(rows, list(LEARNT))
    values = [agreement(learnt, metric, "edge_kl") for metric in SCORE_NAMES]
    right = 100 * np.array([value.right for value in values])
    limits = 100 * np.array([value.interval for value in values])
    places = np.arange(len(values))[::-1]
    proper = ["nll" in metric or "brier" in metric for metric in SCORE_NAMES]
    ax.barh(places, right, color=[BLUE if is_proper else ORANGE for is_proper in proper], height=0.65)
    if np.isfinite(limits).all():
        ax.hlines(places, limits[:, 0], limits[:, 1], color="0.2", linewidth=1.2)
    for place, value in zip(places, right, strict=True):
        ax.text(2.0, place, f"{value:.0f}%", va="center", color="white", fontsize="small", fontweight="bold")
    ax.axvline(50.0, color="0.6", linewidth=0.8, linestyle="--")
    ax.set_yticks(places, list(SCORE_NAMES.values()))
    ax.set(xlim=(0, 100), xlabel="of pairs of trained models, percent")
    ax.set_title("How often the better score is the nearer", **TITLE)
    ax.spines[["top", "right"]].set_visible(False)
