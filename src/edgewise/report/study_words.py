"""A study in words: a table of how well scores tell what is nearer to the truth, and the answer."""

from collections.abc import Sequence

import numpy as np

from edgewise.experiments.study_answer import (
    SCORE_NAMES,
    Agreement,
    above_truth,
    agreement,
    chosen,
    lower_than_truth,
    mean_of,
    rank_correlation,
)
from edgewise.experiments.study_predictors import LEARNT, PREDICTORS
from edgewise.experiments.study_rows import Row

WITHOUT_TRUTH = tuple(name for name in PREDICTORS if name != "truth")
WORTH = ((0.6, "hardly any"), (0.8, "weak"), (0.9, "fair"), (1.01, "strong"))


def study_text(rows: Sequence[Row]) -> str:
    """Give the table of predictors, the table of scores, and the answer."""
    return "\n".join([*_predictor_lines(rows), "", *_agreement_lines(rows), "", study_answer(rows)])


def study_page(rows: Sequence[Row]) -> str:
    """Give the same as Markdown, with the picture."""
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


def study_answer(rows: Sequence[Row]) -> str:
    """Answer the question of the study, with numbers from the rows."""
    learnt = chosen(rows, list(LEARNT))
    ece, noiseless, nll = (agreement(learnt, m, "edge_kl") for m in ("edge_ece", "edge_ece_expected", "edge_nll"))
    return "\n".join(
        [
            "Does a lower edge ECE mean a joint nearer to the truth? "
            f"Of two models trained on the same graph, the one with the lower edge ECE is the nearer one (KL) in "
            f"{_percent(ece)} of {ece.pairs} pairs: {_worth(ece)} evidence. By the edge NLL it is {_percent(nll)}.",
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


def _excess_sentence(rows: Sequence[Row]) -> str:
    above = above_truth(rows)
    kl, excess = np.array([row.scores["edge_kl"] for row, _ in above]), np.array([nll for _, nll in above])
    finite = np.isfinite(kl) & np.isfinite(excess)
    gap = np.abs(kl[finite] - excess[finite])
    return (
        f"The edge NLL above that of the true joints is the KL divergence, up to the labels that were drawn: they "
        f"differ by {gap.mean():.3f} nats in the mean, while KL goes from {kl.min():.3f} to {kl[finite].max():.2f} "
        f"(rank correlation {rank_correlation(kl, excess):.3f})."
    )


def _counterexample_sentence(rows: Sequence[Row]) -> str:
    parts = []
    for name in ("base rate", "features alone"):
        lower, graphs = lower_than_truth(rows, name, "edge_ece")
        parts.append(
            f"{name!r} has a lower edge ECE than the true joints themselves on {lower} of {graphs} graphs, at a mean "
            f"KL of {mean_of(rows, name, 'edge_kl'):.2f} nats"
        )
    return f"Counter-examples: {'; '.join(parts)}."


def _worth(value: Agreement) -> str:
    return next((word for limit, word in WORTH if value.right < limit), "no")


def _percent(value: Agreement) -> str:
    low, high = value.interval
    interval = "" if np.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * value.right:.0f}%{interval}"


def _predictor_lines(rows: Sequence[Row]) -> list[str]:
    """Give the means over graphs of each predictor, the nearest to the truth first."""
    names = ("edge_kl", "edge_tv", "edge_nll", "edge_brier", "edge_ece", "same_ece", "node_ece")
    heads = ("KL", "TV", "NLL", "Brier", "edge ECE", "same ECE", "node ECE")
    lines = [f"{'mean over graphs':32}" + "".join(f"{head:>10}" for head in heads)]
    there = [name for name in PREDICTORS if chosen(rows, [name])]
    there.sort(key=lambda name: mean_of(rows, name, "edge_kl"))
    return lines + [f"{name:32}" + "".join(f"{mean_of(rows, name, score):10.3f}" for score in names) for name in there]


def _agreement_lines(rows: Sequence[Row]) -> list[str]:
    """Give for each score how well it orders models, and all predictors but the truth."""
    sets = {"trained models": list(LEARNT), "all but the truth": list(WITHOUT_TRUTH)}
    lines = [f"{'':22}" + "".join(f"{name:^34}" for name in sets)]
    lines.append(f"{'score':22}" + f"{'nearer by KL':>16}{'rank KL':>9}{'rank TV':>9}" * len(sets))
    for metric, name in SCORE_NAMES.items():
        cells = ""
        for predictors in sets.values():
            kl, tv = (agreement(chosen(rows, predictors), metric, distance) for distance in ("edge_kl", "edge_tv"))
            cells += f"{_percent(kl):>16}{kl.rank:9.2f}{tv.rank:9.2f}"
        lines.append(f"{name:22}{cells}")
    return lines
