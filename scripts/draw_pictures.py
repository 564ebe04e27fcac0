"""Draw the figures of the documentation.

python scripts/draw_pictures.py            # writes to docs/pictures
python scripts/draw_pictures.py FOLDER
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import edgewise as ew
from edgewise.decisions import selective
from edgewise.models.fitted import FittedClassifier

Floats = Float[np.ndarray, "nodes classes"]
Labels = Int[np.ndarray, " nodes"]
Edges = Int[np.ndarray, "2 edges"]

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
BLUE, ORANGE, RED, INK, PALE = "#56B4E9", "#E69F00", "#D55E00", "#222222", "#D0D0D0"
DOTTED = (0, (1.0, 0.7))
CENTERED: dict[str, Any] = {"ha": "center", "va": "center"}


# --- the four views of the graph of docs/views.md ---


@dataclass(frozen=True)
class Node:
    """Position, true label and predicted probability of label B of a node."""

    place: tuple[float, float]
    label: str
    p_b: float
    is_scored: bool = True

    @property
    def is_correct(self) -> bool:
        """Whether the more probable label is the true label."""
        return (self.p_b > 0.5) == (self.label == "B")

    @property
    def confidence(self) -> float:
        """The probability of the more probable label."""
        return max(self.p_b, 1 - self.p_b)


NODES = {
    "a": Node((-0.95, 0.31), "A", 0.1),
    "b": Node((0.0, 1.0), "A", 0.2),
    "c": Node((0.95, 0.31), "A", 0.6),
    "d": Node((0.59, -0.81), "B", 0.7),
    "e": Node((-0.59, -0.81), "B", 0.9),
    "f": Node((2.05, 0.31), "A", 0.4),
    "g": Node((1.75, -0.81), "B", 0.9, is_scored=False),
}
EDGES = ("ab", "bc", "cd", "de", "ea", "dg", "fg")


def draw_views() -> Figure:
    """Draw the graph once per view, with the scored nodes or edges in color."""
    scored = [edge for edge in EDGES if all(NODES[end].is_scored for end in edge)]
    agree = [edge for edge in scored if NODES[edge[0]].label == NODES[edge[1]].label]
    views = {
        "nodewise": ([name for name, node in NODES.items() if node.is_scored], []),
        "edgewise": ([], scored),
        "agree": ([], agree),
        "disagree": ([], [edge for edge in scored if edge not in agree]),
    }
    fig, axes = plt.subplots(2, 2, figsize=(8, 6.2), layout="constrained")
    for ax, (view, (nodes, edges)) in zip(axes.flat, views.items(), strict=True):
        _draw_view(ax, nodes, edges)
        num_correct = sum(NODES[name].is_correct for name in nodes) + sum(_is_correct(edge) for edge in edges)
        elements, num = ("nodes", len(nodes)) if nodes else ("edges", len(edges))
        ax.set_title(f"{view}: {num_correct} of {num} {elements} correct", loc="left", weight="bold")
    fig.legend(handles=_legend(), loc="outside lower center", ncols=3, frameon=False)
    return fig


def _is_correct(edge: str) -> bool:
    return all(NODES[end].is_correct for end in edge)


def _draw_view(ax: Axes, scored_nodes: Sequence[str], scored_edges: Sequence[str]) -> None:
    for edge in EDGES:
        _draw_edge(ax, edge, edge in scored_edges)
    ends = {end for edge in scored_edges for end in edge}
    for name, node in NODES.items():
        _draw_node(ax, name, node, name in scored_nodes or name in ends)
        if name in scored_nodes:
            x, y = node.place
            away = (1.0, 0.0) if name == "f" else (x, y)  # outward, so that no edge crosses the number
            ax.annotate(f"{node.confidence:.1f}", (x + 0.42 * away[0], y + 0.42 * away[1]), **CENTERED, weight="bold")
    ax.set(aspect="equal", xlim=(-1.45, 2.6), ylim=(-1.25, 1.6))
    ax.axis("off")


def _draw_edge(ax: Axes, edge: str, is_scored: bool) -> None:
    (x0, y0), (x1, y1) = (NODES[end].place for end in edge)
    if not is_scored:
        ax.plot((x0, x1), (y0, y1), color=PALE, linewidth=1.5, zorder=1)
        return
    correct = _is_correct(edge)
    ax.plot(
        (x0, x1), (y0, y1), color=INK if correct else RED, linewidth=3.5, linestyle="-" if correct else DOTTED, zorder=1
    )
    confidence = NODES[edge[0]].confidence * NODES[edge[1]].confidence
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    middle = ((x0 + x1) / 2, (y0 + y1) / 2)
    ax.annotate(f"{confidence:.2f}", middle, **CENTERED, weight="bold", bbox=box, zorder=3)


def _draw_node(ax: Axes, name: str, node: Node, is_highlighted: bool) -> None:
    face = BLUE if node.label == "A" else ORANGE
    marker = "o" if node.is_scored else "s"
    ink, alpha = (INK, 1.0) if is_highlighted else ("#808080", 0.3)
    ax.plot(*node.place, marker, markersize=22, color="white", zorder=3)
    ax.plot(*node.place, marker, markersize=21, color=face, alpha=alpha, markeredgewidth=0, zorder=4)
    if node.is_scored and node.is_correct:
        ax.plot(*node.place, "o", markersize=23, markerfacecolor="none", color=ink, markeredgewidth=2, zorder=4)
    elif node.is_scored:
        ax.plot(*node.place, "x", markersize=23, color=RED, alpha=max(alpha, 0.5), markeredgewidth=3, zorder=4)
    ax.annotate(name, node.place, **CENTERED, color=ink, weight="bold", zorder=5)


def _legend() -> list[Line2D]:
    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 11}
    edge: dict[str, Any] = {"linewidth": 3.5}
    return [
        Line2D([], [], **dot, color=BLUE, label="true label A"),
        Line2D([], [], **dot, color=ORANGE, label="true label B"),
        Line2D([], [], **{**dot, "marker": "s"}, color=ORANGE, alpha=0.4, label="training node, not scored"),
        Line2D([], [], **dot, markerfacecolor="none", color=INK, markeredgewidth=2, label="correct prediction"),
        Line2D([], [], **{**dot, "marker": "x"}, color=RED, markeredgewidth=3, label="wrong prediction"),
        Line2D([], [], **edge, color=INK, label="both ends correct"),
        Line2D([], [], **edge, color=RED, linestyle=DOTTED, label="at least one end wrong"),
    ]


# --- reliability diagrams ---


def draw_labels(probs: Floats, rng: np.random.Generator) -> Labels:
    """Draw the label of each node from its probabilities, which are then calibrated."""
    return np.asarray((probs.cumsum(1) > rng.random((len(probs), 1))).argmax(1))


def draw_over_and_under() -> Figure:
    """Draw an overconfident and an underconfident model, for labels from the probabilities between them."""
    rng = np.random.default_rng(0)
    true = rng.dirichlet([0.6] * 4, size=20_000)
    y, no_edges = draw_labels(true, rng), np.empty((2, 0), dtype=np.int64)
    fig, axes = plt.subplots(1, 2, figsize=(7, 4.2), layout="constrained")
    cases = {
        "overconfident": (2.5, "bars below\nthe diagonal:\naccuracy below\nconfidence", (0.6, 0.05)),
        "underconfident": (0.4, "bars above\nthe diagonal:\naccuracy above\nconfidence", (0.03, 0.72)),
    }
    for ax, (title, (power, text, place)) in zip(axes, cases.items(), strict=True):
        probs = true**power / (true**power).sum(1, keepdims=True)
        ew.plot_reliability(ew.evaluate(probs, y, no_edges), ax=ax, views="nodewise", title=title)
        ax.annotate(text, place, fontsize="small")
    return fig


def draw_gcn() -> Figure:
    """Draw the GCN of docs/start.md."""
    data, split, fitted = _cora_gcn()
    return ew.plot_reliability(ew.evaluate(fitted.posterior(), data.y, data.edge_index, mask=split.test))[0]


def draw_before_and_after() -> Figure:
    """Draw reliability before and after the calibrator of docs/choosing.md."""
    data, split, fitted = _cora_gcn()
    calibrated = ew.StructuredCalibrator().fit(fitted, data, split)
    posteriors = {"GCN": fitted.posterior(), "calibrated": calibrated.posterior()}
    evaluations = {
        name: ew.evaluate(posterior, data.y, data.edge_index, mask=split.test) for name, posterior in posteriors.items()
    }
    return ew.plot_reliability(evaluations, views=("nodewise", "edgewise", "same_label"))[0]


def draw_differences() -> Figure:
    """Draw the comparison of docs/how-sure.md."""
    data, split, fitted = _cora_gcn()
    scaled = ew.TemperatureScaling().fit(fitted, data, split)
    return ew.compare({"gcn": fitted, "temperature": scaled}, data, mask=split.test).plot()[0]


def draw_perfect_model() -> Figure:
    """Draw a perfectly calibrated model, whose labels are drawn from its probabilities, as in docs/views.md."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.5, 0.5, 0.5], size=100_000)
    edges = link_same_prediction(probs, 3, rng)
    ev = ew.evaluate(probs, draw_labels(probs, rng), edges)
    return ew.plot_reliability(ev, views=("edgewise", "same_label", "agree", "disagree"))[0]


def link_same_prediction(probs: Floats, num_each: int, rng: np.random.Generator) -> Edges:
    """Link each node to `num_each` nodes with the same predicted class, independently of the labels."""
    order = np.argsort(probs.argmax(1), kind="stable")
    steps = rng.integers(1, 100, size=(num_each, len(probs)))
    ends = order[(np.arange(len(probs)) + steps) % len(probs)]
    return np.stack([np.tile(order, num_each), ends.ravel()])


def draw_noise() -> Figure:
    """Draw the measured ECE of a perfectly calibrated model against the number of scored nodes."""
    rng = np.random.default_rng(0)
    sizes = [50, 100, 200, 500, 1000, 2000, 5000, 10_000]
    no_edges = np.empty((2, 0), dtype=np.int64)
    errors = []
    for size in sizes:
        probs = rng.dirichlet([0.5] * 4, size=(200, size))
        errors.append([ew.evaluate(p, draw_labels(p, rng), no_edges).nodewise.ece for p in probs])
    low, middle, high = np.quantile(errors, [0.025, 0.5, 0.975], axis=1)
    fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ax.fill_between(sizes, low, high, color="#0072B2", alpha=0.25, linewidth=0, label="95% of 200 draws")
    ax.plot(sizes, middle, color="#0072B2", marker="o", label="median")
    ax.set(xscale="log", xlabel="scored nodes", ylabel="measured ECE, 15 bins", ylim=(0, None))
    ax.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
    ax.minorticks_off()
    ax.set_title("A perfectly calibrated model", loc="left", weight="bold")
    ax.legend(frameon=False)
    return fig


def draw_risk_coverage() -> Figure:
    """Draw the curves of docs/decisions.md."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.4, 0.4, 0.4], size=6000)
    labels = np.array([rng.choice(3, p=p) for p in probs])
    edges = rng.integers(0, 6000, size=(2, 20_000))
    test = np.arange(6000) >= 3000
    return ew.plot_risk_coverage(selective(probs, labels, edges, mask=test, events=["same"]))[0]


def _cora_gcn() -> tuple[Any, ew.Split, FittedClassifier]:
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    return data, split, ew.GCN().fit(data, split, seed=0)


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "views.png": draw_views,
    "over_and_under.png": draw_over_and_under,
    "gcn.png": draw_gcn,
    "perfect_model.png": draw_perfect_model,
    "noise.png": draw_noise,
    "before_and_after.png": draw_before_and_after,
    "differences.png": draw_differences,
    "risk_coverage.png": draw_risk_coverage,
}


def main() -> None:
    """Draw all figures."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=PICTURES, help="the output folder")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    for name, draw in DRAWINGS.items():
        # Without the version of matplotlib in the metadata, equal figures are equal files.
        draw().savefig(folder / name, dpi=150, bbox_inches="tight", metadata={"Software": None})
        print(f"Wrote {folder / name}.")


if __name__ == "__main__":
    main()
