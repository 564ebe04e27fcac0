"""Report of the study: whether a better score means joints closer to the truth, as text, Markdown and figure."""

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
from edgewise.paper.formatting import display_name
from edgewise.paper.study import GraphKey, StudyRow
from edgewise.paper.study_predictors import PREDICTORS, REFERENCE_PREDICTORS, TRAINED_PREDICTORS
from edgewise.plots.style import BLACK, BLUE, GREEN, OCHRE, ORANGE, PURPLE, SKY, VERMILION

SCORE_NAMES = {
    "edge_ece": "edge ECE",
    "edge_ece_expected": "edge ECE, expected",
    "same_ece": "same label ECE",
    "agree_ece": "agree ECE",
    "disagree_ece": "disagree ECE",
    "node_ece": "node ECE",
    "node_nll": "node NLL",
    "edge_brier": "edge Brier",
    "edge_nll": "edge NLL",
}
BOOTSTRAP_RESAMPLES = 2000

Values = NDArray[np.float64]
Cases = Sequence[tuple[Values, Values]]  # per graph: a metric and a distance of its predictors


@dataclass(frozen=True)
class Agreement:
    """Agreement between the order of predictors by a metric and by their distance from the truth.

    ``concordance`` is the fraction of pairs of predictors on the same graph in which the one with the better score is
    closer to the truth, with a 95% bootstrap interval over graphs. ``rank`` is Spearman's correlation within a graph,
    averaged over graphs, and ``rank_overall`` that over all rows.
    """

    metric: str
    distance: str
    concordance: float
    interval: tuple[float, float]
    rank: float
    rank_overall: float
    pairs: int


def agreement(rows: Sequence[StudyRow], metric: str, distance: str) -> Agreement:
    """Compare the orders of the predictors of each graph by a metric and by a distance."""
    cases = _by_graph(rows, metric, distance)
    counts = np.array([_count_concordant(*case) for case in cases]).reshape(-1, 2)
    ranks = np.array([rank_correlation(*case) for case in cases])
    all_metric, all_distance = (np.concatenate([case[k] for case in cases] or [np.zeros(0)]) for k in (0, 1))
    return Agreement(
        metric,
        distance,
        _concordance(counts),
        _interval(counts),
        float(np.nanmean(ranks)) if np.isfinite(ranks).any() else float("nan"),
        rank_correlation(all_metric, all_distance),
        int(counts[:, 1].sum()),
    )


def rank_correlation(a: Values, b: Values) -> float:
    """Return Spearman's rank correlation with average ranks for ties; NaN if all values are equal.

    >>> rank_correlation(np.array([1.0, 2.0, np.inf]), np.array([0.0, 5.0, 7.0]))
    1.0
    """
    if any(len(np.unique(values)) < 2 for values in (a, b)):
        return float("nan")
    return float(spearmanr(a, b).statistic)


def excess_edge_nll(rows: Sequence[StudyRow]) -> list[tuple[StudyRow, float]]:
    """Return all rows but the truth's, each with its edge NLL minus that of the true joints on the same labels."""
    of_truth = {row.graph: row.scores["edge_nll"] for row in select_rows(rows, ["truth"])}
    others = [row for row in rows if row.predictor != "truth" and row.graph in of_truth]
    return [(row, row.scores["edge_nll"] - of_truth[row.graph]) for row in others]


def select_rows(rows: Sequence[StudyRow], predictors: Sequence[str]) -> list[StudyRow]:
    """Return the rows of the given predictors."""
    return [row for row in rows if row.predictor in predictors]


def count_graphs_below_truth(rows: Sequence[StudyRow], predictor: str, metric: str) -> tuple[int, int]:
    """Return on how many graphs a predictor has a lower metric than the true joints, and the number of graphs."""
    of_truth, of_predictor = (
        {row.graph: row.scores[metric] for row in select_rows(rows, [name])} for name in ("truth", predictor)
    )
    both = of_truth.keys() & of_predictor.keys()
    return sum(of_predictor[graph] < of_truth[graph] for graph in both), len(both)


def mean_score(rows: Sequence[StudyRow], predictor: str, score: str) -> float:
    """Return the mean of a score over the graphs."""
    return float(np.mean([row.scores[score] for row in select_rows(rows, [predictor])]))


def _by_graph(rows: Sequence[StudyRow], metric: str, distance: str) -> Cases:
    graphs: dict[GraphKey, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        graphs[row.graph].append((row.scores[metric], row.scores[distance]))
    finished = (np.array(values) for values in graphs.values())
    return [(values[:, 0], values[:, 1]) for values in finished if np.isfinite(values[:, 0]).any()]


def _count_concordant(metric: Values, distance: Values) -> tuple[int, int]:
    """Return the number of concordant pairs, and of all pairs without ties."""
    concordant = total = 0
    for a, b in combinations(range(len(metric)), 2):
        if metric[a] != metric[b] and distance[a] != distance[b]:
            total += 1
            concordant += (metric[a] < metric[b]) == (distance[a] < distance[b])
    return concordant, total


def _concordance(counts: NDArray[np.int64]) -> float:
    concordant, total = counts.sum(0)
    return float(concordant / total) if total else float("nan")


def _interval(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return a 95% bootstrap interval that resamples graphs, because pairs of one graph are dependent."""
    if len(counts) < 2:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(0).integers(len(counts), size=(BOOTSTRAP_RESAMPLES, len(counts)))
    sums = counts[drawn].sum(1)
    low, high = np.quantile(sums[:, 0] / np.maximum(1, sums[:, 1]), [0.025, 0.975])
    return float(low), float(high)


PREDICTORS_WITHOUT_TRUTH = tuple(name for name in PREDICTORS if name != "truth")
EVIDENCE_WORDS = ((0.6, "hardly any"), (0.8, "weak"), (0.9, "fair"), (1.01, "strong"))


def study_text(rows: Sequence[StudyRow]) -> str:
    """Return the table of predictors, the table of scores, and the conclusions."""
    return "\n".join([*_predictor_lines(rows), "", *_agreement_lines(rows), "", study_answer(rows)])


def study_page(rows: Sequence[StudyRow]) -> str:
    """Return the same as Markdown, with the figure."""
    graphs = len({row.graph for row in rows})
    return "\n".join(
        [
            "# Are calibrated joints close to the true ones?",
            "",
            f"{graphs} synthetic graphs with known true joints given the training labels. Each point in the figure is "
            "one predictor on one graph.",
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
    """Return the conclusions of the study, with numbers from the rows."""
    trained = select_rows(rows, list(TRAINED_PREDICTORS))
    ece, noiseless, nll = (agreement(trained, m, "edge_kl") for m in ("edge_ece", "edge_ece_expected", "edge_nll"))
    return "\n".join(
        [
            "Does a lower edge ECE mean a joint closer to the truth? "
            f"Of two models trained on the same graph, the one with the lower edge ECE is closer by KL in "
            f"{_percent(ece)} of {ece.pairs} pairs: {_evidence_word(ece)} evidence. "
            f"By the edge NLL, the better model is closer in {_percent(nll)}.",
            f"With true probabilities in place of drawn labels, which removes sampling noise, the edge ECE is right in "
            f"{_percent(noiseless)}: {_describe_cause(ece, noiseless)}.",
            _excess_sentence(rows),
            _counterexample_sentence(rows),
        ]
    )


def _describe_cause(ece: Agreement, noiseless: Agreement) -> str:
    gained, remaining = noiseless.concordance - ece.concordance, 1.0 - noiseless.concordance
    return "most of its errors are noise" if gained > remaining else "most of its errors are not due to noise"


def _excess_sentence(rows: Sequence[StudyRow]) -> str:
    excesses = excess_edge_nll(rows)
    kl, excess = np.array([row.scores["edge_kl"] for row, _ in excesses]), np.array([nll for _, nll in excesses])
    finite = np.isfinite(kl) & np.isfinite(excess)
    gap = np.abs(kl[finite] - excess[finite])
    return (
        f"The excess of the edge NLL over that of the true joints estimates the KL divergence: they differ by "
        f"{gap.mean():.3f} nats on average, while KL ranges from {kl.min():.3f} to {kl[finite].max():.2f} "
        f"(rank correlation {rank_correlation(kl, excess):.3f})."
    )


def _counterexample_sentence(rows: Sequence[StudyRow]) -> str:
    parts = []
    for name in ("base rate", "features alone"):
        lower, graphs = count_graphs_below_truth(rows, name, "edge_ece")
        parts.append(
            f"{name!r} has a lower edge ECE than the true joints on {lower} of {graphs} graphs, at a mean "
            f"KL of {mean_score(rows, name, 'edge_kl'):.2f} nats"
        )
    return f"Counterexamples: {'; '.join(parts)}."


def _evidence_word(value: Agreement) -> str:
    return next((word for limit, word in EVIDENCE_WORDS if value.concordance < limit), "no")


def _percent(value: Agreement) -> str:
    low, high = value.interval
    interval = "" if np.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * value.concordance:.0f}%{interval}"


def _predictor_lines(rows: Sequence[StudyRow]) -> list[str]:
    """Return lines with the means over graphs of each predictor, closest to the truth first."""
    names = ("edge_kl", "edge_tv", "edge_nll", "edge_brier", "edge_ece", "same_ece", "node_ece")
    heads = ("KL", "TV", "NLL", "Brier", "edge ECE", "same label ECE", "node ECE")
    widths = [max(10, len(head) + 2) for head in heads]
    lines = [f"{'mean over graphs':32}" + "".join(map(str.rjust, heads, widths))]
    predictors = [name for name in PREDICTORS if select_rows(rows, [name])]
    predictors.sort(key=lambda name: mean_score(rows, name, "edge_kl"))
    for predictor in predictors:
        means = (f"{mean_score(rows, predictor, name):.3f}" for name in names)
        lines.append(f"{predictor:32}" + "".join(map(str.rjust, means, widths)))
    return lines


def _agreement_lines(rows: Sequence[StudyRow]) -> list[str]:
    """Return a line per score on how well it orders trained models, and all predictors but the truth."""
    sets = {"trained models": list(TRAINED_PREDICTORS), "all but the truth": list(PREDICTORS_WITHOUT_TRUTH)}
    lines = [f"{'':22}" + "".join(f"{name:^34}" for name in sets)]
    lines.append(f"{'score':22}" + f"{'closer by KL':>16}{'rank KL':>9}{'rank TV':>9}" * len(sets))
    for metric, name in SCORE_NAMES.items():
        cells = ""
        for predictors in sets.values():
            kl, tv = (agreement(select_rows(rows, predictors), metric, distance) for distance in ("edge_kl", "edge_tv"))
            cells += f"{_percent(kl):>16}{kl.rank:9.2f}{tv.rank:9.2f}"
        lines.append(f"{name:22}{cells}")
    return lines


# Trained models have filled markers, references hollow ones. There are more markers than colors, so that models beyond
# the eighth still differ.
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, OCHRE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
TITLE: Mapping[str, Any] = {"fontsize": "medium", "loc": "left"}
MIN_PLOTTED = 1e-4  # smaller values are drawn here, as axes are logarithmic


def write_study_figure(rows: Sequence[StudyRow], path: Path) -> None:
    """Draw the figure and save it."""
    figure = draw_study(rows)
    replace_file(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150))
    plt.close(figure)


def draw_study(rows: Sequence[StudyRow]) -> Figure:
    """Draw edge ECE against KL, excess edge NLL against KL, and the concordance of each score."""
    figure, ((ece, nll), (bars, corner)) = plt.subplots(2, 2, figsize=(9.4, 7.4), layout="constrained")
    excesses = excess_edge_nll(rows)
    others = [row for row, _ in excesses]
    _scatter(ece, others, [row.scores["edge_ece"] for row in others])
    _scatter(nll, others, [excess for _, excess in excesses])
    ece.set_ylabel("edge ECE")
    ece.set_title("Edge ECE against the distance from the truth", **TITLE)
    nll.set_ylabel("edge NLL minus that of the truth, nats")
    nll.set_title("Edge NLL against the distance from the truth", **TITLE)
    nll.axline((MIN_PLOTTED, MIN_PLOTTED), (1.0, 1.0), color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    _bars(bars, rows)
    corner.axis("off")
    corner.legend(
        *ece.get_legend_handles_labels(),
        loc="center",
        ncols=2,
        frameon=False,
        fontsize="small",
        markerscale=1.4,
        title="Trained models; references are hollow",
    )
    return figure


class Style(NamedTuple):
    """Marker and colors of a predictor."""

    marker: str
    face: str
    edge: str


def _styles() -> dict[str, Style]:
    colors, markers = cycle(COLORS), cycle(MARKERS)
    trained = {name: Style(marker, c, c) for name, marker, c in zip(TRAINED_PREDICTORS, markers, colors, strict=False)}
    references = [name for name in REFERENCE_PREDICTORS if name != "truth"]
    return trained | {name: Style(marker, "none", "0.25") for name, marker in zip(references, MARKERS, strict=False)}


def _scatter(ax: Axes, rows: Sequence[StudyRow], heights: Sequence[float]) -> None:
    """Draw a point per graph and predictor, on logarithmic axes."""
    for predictor, style in _styles().items():
        points = [
            (row.scores["edge_kl"], height)
            for row, height in zip(rows, heights, strict=True)
            if row.predictor == predictor
        ]
        if points:
            x, y = np.maximum(np.array(points).T, MIN_PLOTTED)
            ax.scatter(
                x,
                y,
                s=22,
                marker=style.marker,
                facecolors=style.face,
                edgecolors=style.edge,
                linewidths=0.8,
                alpha=0.75,
                label=", ".join(map(display_name, predictor.split(", "))),
            )
    ax.set(xscale="log", yscale="log", xlabel="KL from the truth on test edges, nats")
    ax.spines[["top", "right"]].set_visible(False)


def _bars(ax: Axes, rows: Sequence[StudyRow]) -> None:
    """Draw the concordance of each score for pairs of trained models."""
    trained = select_rows(rows, list(TRAINED_PREDICTORS))
    values = [agreement(trained, metric, "edge_kl") for metric in SCORE_NAMES]
    percent = 100 * np.array([value.concordance for value in values])
    limits = 100 * np.array([value.interval for value in values])
    places = np.arange(len(values))[::-1]
    proper = ["nll" in metric or "brier" in metric for metric in SCORE_NAMES]
    ax.barh(places, percent, color=[BLUE if is_proper else ORANGE for is_proper in proper], height=0.65)
    if np.isfinite(limits).all():
        ax.hlines(places, limits[:, 0], limits[:, 1], color="0.2", linewidth=1.2)
    for place, value, is_proper in zip(places, percent, proper, strict=True):
        color = "white" if is_proper else "black"  # readable on blue and on orange
        ax.text(2.0, place, f"{value:.0f}%", va="center", color=color, fontsize="small", fontweight="bold")
    ax.axvline(50.0, color="0.6", linewidth=0.8, linestyle="--")
    ax.set_yticks(places, list(SCORE_NAMES.values()))
    ax.set(xlim=(0, 100), xlabel="pairs of trained models, percent")
    ax.set_title("Pairs in which the better score is closer", **TITLE)
    ax.spines[["top", "right"]].set_visible(False)
