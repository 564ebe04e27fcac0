"""What the rows of a study say: does a better score mean joints that are nearer to the truth."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from edgewise.files.output import replace_file
from edgewise.paper.study import GraphKey, StudyRow
from edgewise.paper.study_predictors import PREDICTORS, REFERENCE_PREDICTORS, TRAINED_PREDICTORS
from edgewise.plots.style import BLACK, BLUE, GREEN, OCHRE, ORANGE, PURPLE, SKY, VERMILION

SCORE_NAMES = {
    "edge_ece": "edge ECE",
    "edge_ece_expected": "edge ECE, expected",
    "same_ece": "P(same) ECE",
    "agree_ece": "agree ECE",
    "disagree_ece": "disagree ECE",
    "node_ece": "node ECE",
    "node_nll": "node NLL",
    "edge_brier": "edge Brier",
    "edge_nll": "edge NLL",
}
RESAMPLES = 2000

Values = NDArray[np.float64]
Cases = Sequence[tuple[Values, Values]]  # of each graph: a metric and a distance of its predictors


@dataclass(frozen=True)
class Agreement:
    """How well the order of predictors by a metric is that by their distance from the truth, both names of scores.

    ``right`` is the share of pairs of predictors, on the same graph, of which the one with the better score is the
    nearer, with its 95% interval over graphs; ``rank`` is Spearman's correlation within a graph, averaged over graphs,
    ``rank_overall`` that over all rows.
    """

    metric: str
    distance: str
    right: float
    interval: tuple[float, float]
    rank: float
    rank_overall: float
    pairs: int


def agreement(rows: Sequence[StudyRow], metric: str, distance: str) -> Agreement:
    """Compare two orders of the predictors of each graph."""
    cases = _by_graph(rows, metric, distance)
    counts = np.array([_right_pairs(*case) for case in cases]).reshape(-1, 2)
    ranks = np.array([rank_correlation(*case) for case in cases])
    all_metric, all_distance = (np.concatenate([case[k] for case in cases] or [np.zeros(0)]) for k in (0, 1))
    return Agreement(
        metric,
        distance,
        _share(counts),
        _interval(counts),
        float(np.nanmean(ranks)) if np.isfinite(ranks).any() else float("nan"),
        rank_correlation(all_metric, all_distance),
        int(counts[:, 1].sum()),
    )


def rank_correlation(a: Values, b: Values) -> float:
    """Return Spearman's rank correlation, equal values sharing their rank; NaN where all are equal.

    >>> rank_correlation(np.array([1.0, 2.0, np.inf]), np.array([0.0, 5.0, 7.0]))
    1.0
    """
    if any(len(np.unique(values)) < 2 for values in (a, b)):
        return float("nan")
    return float(spearmanr(a, b).statistic)


def excess_edge_nll(rows: Sequence[StudyRow]) -> list[tuple[StudyRow, float]]:
    """Return all rows but the truth's, each with its edge NLL above that of the true joints on the same labels."""
    least = {row.graph: row.scores["edge_nll"] for row in chosen(rows, ["truth"])}
    others = [row for row in rows if row.predictor != "truth" and row.graph in least]
    return [(row, row.scores["edge_nll"] - least[row.graph]) for row in others]


def chosen(rows: Sequence[StudyRow], predictors: Sequence[str]) -> list[StudyRow]:
    """Return the rows of some predictors."""
    return [row for row in rows if row.predictor in predictors]


def count_graphs_below_truth(rows: Sequence[StudyRow], predictor: str, metric: str) -> tuple[int, int]:
    """Count the graphs on which a predictor scores better than the true joints do, and those that have both."""
    of_truth, of_predictor = (
        {row.graph: row.scores[metric] for row in chosen(rows, [name])} for name in ("truth", predictor)
    )
    both = of_truth.keys() & of_predictor.keys()
    return sum(of_predictor[graph] < of_truth[graph] for graph in both), len(both)


def mean_score(rows: Sequence[StudyRow], predictor: str, score: str) -> float:
    """Return the mean of a score over the graphs."""
    return float(np.mean([row.scores[score] for row in chosen(rows, [predictor])]))


def _by_graph(rows: Sequence[StudyRow], metric: str, distance: str) -> Cases:
    graphs: dict[GraphKey, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        graphs[row.graph].append((row.scores[metric], row.scores[distance]))
    finished = (np.array(values) for values in graphs.values())
    return [(values[:, 0], values[:, 1]) for values in finished if np.isfinite(values[:, 0]).any()]


def _right_pairs(metric: Values, distance: Values) -> tuple[int, int]:
    """Count the pairs that both put in the same order, and all that differ in both."""
    right = total = 0
    for a, b in combinations(range(len(metric)), 2):
        if metric[a] != metric[b] and distance[a] != distance[b]:
            total += 1
            right += (metric[a] < metric[b]) == (distance[a] < distance[b])
    return right, total


def _share(counts: NDArray[np.int64]) -> float:
    right, total = counts.sum(0)
    return float(right / total) if total else float("nan")


def _interval(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Resample graphs: pairs of one graph hang together."""
    if len(counts) < 2:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    sums = counts[drawn].sum(1)
    low, high = np.quantile(sums[:, 0] / np.maximum(1, sums[:, 1]), [0.025, 0.975])
    return float(low), float(high)


PREDICTORS_WITHOUT_TRUTH = tuple(name for name in PREDICTORS if name != "truth")
EVIDENCE_WORDS = ((0.6, "hardly any"), (0.8, "weak"), (0.9, "fair"), (1.01, "strong"))


def study_text(rows: Sequence[StudyRow]) -> str:
    """Return the table of predictors, the table of scores, and the answer."""
    return "\n".join([*_predictor_lines(rows), "", *_agreement_lines(rows), "", study_answer(rows)])


def study_page(rows: Sequence[StudyRow]) -> str:
    """Return the same as Markdown, with the picture."""
    graphs = len({row.graph for row in rows})
    return "\n".join(
        [
            "# Are calibrated joints near the true ones?",
            "",
            f"{graphs} synthetic graphs whose true joints, given the training labels, are known. One point of the "
            "picture is one predictor on one graph.",
            "",
            *(f"{sentence}\n" for sentence in study_answer(rows).splitlines()),
            "![Edge ECE and edge NLL against the distance from the truth](study.png)",
            "",
            "```text",
            *_predictor_lines(rows),
            "",
            *_agreement_lines(rows),
            "```",
            "",
        ]
    )


def study_answer(rows: Sequence[StudyRow]) -> str:
    """Answer the question of the study, with numbers from the rows."""
    learned = chosen(rows, list(TRAINED_PREDICTORS))
    ece, noiseless, nll = (agreement(learned, m, "edge_kl") for m in ("edge_ece", "edge_ece_expected", "edge_nll"))
    return "\n".join(
        [
            "Does a lower edge ECE mean a joint nearer to the truth? "
            f"Of two models trained on the same graph, the one with the lower edge ECE is the nearer one (KL) in "
            f"{_percent(ece)} of {ece.pairs} pairs: {_evidence_word(ece)} evidence. "
            f"By the edge NLL it is {_percent(nll)}.",
            f"Had each label its true probability, so that no chance is left, the edge ECE would be right in "
            f"{_percent(noiseless)}: {_cause(ece, noiseless)}.",
            _excess_sentence(rows),
            _counterexample_sentence(rows),
        ]
    )


def _cause(ece: Agreement, noiseless: Agreement) -> str:
    gained, left = noiseless.right - ece.right, 1.0 - noiseless.right
    return (
        "most of its mistakes are noise" if gained > left else "its mistakes are its own, not those of a small sample"
    )


def _excess_sentence(rows: Sequence[StudyRow]) -> str:
    above = excess_edge_nll(rows)
    kl, excess = np.array([row.scores["edge_kl"] for row, _ in above]), np.array([nll for _, nll in above])
    finite = np.isfinite(kl) & np.isfinite(excess)
    gap = np.abs(kl[finite] - excess[finite])
    return (
        f"The edge NLL above that of the true joints is the KL divergence, up to the labels that were drawn: they "
        f"differ by {gap.mean():.3f} nats in the mean, while KL goes from {kl.min():.3f} to {kl[finite].max():.2f} "
        f"(rank correlation {rank_correlation(kl, excess):.3f})."
    )


def _counterexample_sentence(rows: Sequence[StudyRow]) -> str:
    parts = []
    for name in ("base rate", "features alone"):
        lower, graphs = count_graphs_below_truth(rows, name, "edge_ece")
        parts.append(
            f"{name!r} has a lower edge ECE than the true joints themselves on {lower} of {graphs} graphs, at a mean "
            f"KL of {mean_score(rows, name, 'edge_kl'):.2f} nats"
        )
    return f"Counter-examples: {'; '.join(parts)}."


def _evidence_word(value: Agreement) -> str:
    return next((word for limit, word in EVIDENCE_WORDS if value.right < limit), "no")


def _percent(value: Agreement) -> str:
    low, high = value.interval
    interval = "" if np.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * value.right:.0f}%{interval}"


def _predictor_lines(rows: Sequence[StudyRow]) -> list[str]:
    """Return the means over graphs of each predictor, the nearest to the truth first."""
    names = ("edge_kl", "edge_tv", "edge_nll", "edge_brier", "edge_ece", "same_ece", "node_ece")
    heads = ("KL", "TV", "NLL", "Brier", "edge ECE", "same ECE", "node ECE")
    lines = [f"{'mean over graphs':32}" + "".join(f"{head:>10}" for head in heads)]
    there = [name for name in PREDICTORS if chosen(rows, [name])]
    there.sort(key=lambda name: mean_score(rows, name, "edge_kl"))
    return lines + [
        f"{name:32}" + "".join(f"{mean_score(rows, name, score):10.3f}" for score in names) for name in there
    ]


def _agreement_lines(rows: Sequence[StudyRow]) -> list[str]:
    """Return for each score how well it orders models, and all predictors but the truth."""
    sets = {"trained models": list(TRAINED_PREDICTORS), "all but the truth": list(PREDICTORS_WITHOUT_TRUTH)}
    lines = [f"{'':22}" + "".join(f"{name:^34}" for name in sets)]
    lines.append(f"{'score':22}" + f"{'nearer by KL':>16}{'rank KL':>9}{'rank TV':>9}" * len(sets))
    for metric, name in SCORE_NAMES.items():
        cells = ""
        for predictors in sets.values():
            kl, tv = (agreement(chosen(rows, predictors), metric, distance) for distance in ("edge_kl", "edge_tv"))
            cells += f"{_percent(kl):>16}{kl.rank:9.2f}{tv.rank:9.2f}"
        lines.append(f"{name:22}{cells}")
    return lines


# References are hollow, trained models are filled. More markers than colors: a ninth model looks like no other.
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, OCHRE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
TITLE: Mapping[str, Any] = {"fontsize": "medium", "loc": "left"}
MIN_SHOWN = 1e-4  # what is smaller is drawn here


def write_study_figure(rows: Sequence[StudyRow], path: Path) -> None:
    """Draw the picture and save it."""
    figure = draw_study(rows)
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150))
    plt.close(figure)


def draw_study(rows: Sequence[StudyRow]) -> Figure:
    """Draw edge ECE against KL, edge NLL above the truth's against KL, and how often each score is right."""
    figure, (ece, nll, bars) = plt.subplots(
        1, 3, figsize=(13.0, 4.9), layout="constrained", width_ratios=(1.0, 1.0, 0.85)
    )
    above = excess_edge_nll(rows)
    others = [row for row, _ in above]
    _scatter(ece, others, [row.scores["edge_ece"] for row in others])
    _scatter(nll, others, [excess for _, excess in above])
    ece.set_ylabel("edge ECE")
    ece.set_title("Edge ECE against the distance from the truth", **TITLE)
    nll.set_ylabel("edge NLL above the truth's, nats")
    nll.set_title("Edge NLL against the distance from the truth", **TITLE)
    nll.axline((MIN_SHOWN, MIN_SHOWN), (1.0, 1.0), color="0.6", linewidth=0.8, linestyle="--", zorder=0)
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
    colors, markers = cycle(COLORS), cycle(MARKERS)
    trained = {name: Style(marker, c, c) for name, marker, c in zip(TRAINED_PREDICTORS, markers, colors, strict=False)}
    references = [name for name in REFERENCE_PREDICTORS if name != "truth"]
    return trained | {name: Style(marker, "none", "0.25") for name, marker in zip(references, MARKERS, strict=False)}


def _scatter(ax: Axes, rows: Sequence[StudyRow], heights: Sequence[float]) -> None:
    """Draw a point for each graph and predictor, on logarithmic axes."""
    for predictor, style in _styles().items():
        points = [
            (row.scores["edge_kl"], height)
            for row, height in zip(rows, heights, strict=True)
            if row.predictor == predictor
        ]
        if points:
            x, y = np.maximum(np.array(points).T, MIN_SHOWN)
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


def _bars(ax: Axes, rows: Sequence[StudyRow]) -> None:
    """Draw for each score how often it tells which of two trained models is the nearer to the truth."""
    learned = chosen(rows, list(TRAINED_PREDICTORS))
    values = [agreement(learned, metric, "edge_kl") for metric in SCORE_NAMES]
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
