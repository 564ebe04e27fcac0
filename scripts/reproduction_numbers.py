"""Print the tables and the counts of docs/reproduction.md that compare predictions of the same runs.

python scripts/reproduction_numbers.py docs/reproduction/runs.parquet
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, pstdev

from edgewise.paper.formatting import display_name
from edgewise.paper.published import DATASETS, PUBLISHED_SCORES
from edgewise.paper.results import Results

EPFGNN = {
    "published_misplaced_evidence": "max-product, labels at the wrong nodes",
    "published_mean_field": "mean field, labels clamped",
    "published_sum_product": "sum-product, labels clamped",
    "sum_product": "EM that must beat its backbone, sum-product",
}
PUBLISHED_ROWS = {"epfgnn": "LBP", "epfgnn mean field": "mean field"}
EPFGNN_COLUMNS = {
    "node accuracy": ("nodewise", "accuracy"),
    "node ECE": ("nodewise", "ece"),
    "edge ECE": ("edgewise", "ece"),
    "edge NLL": ("edgewise", "nll"),
}
GMNN = {
    "averaged_logits": "logits averaged, product joints (as published)",
    "mixture_product": "probabilities averaged, product joints",
    "mixture": "the mixture and its own joints (as defined)",
}
GMNN_COLUMNS = {
    "node ECE": ("nodewise", "ece"),
    "edge ECE": ("edgewise", "ece"),
    "edge NLL": ("edgewise", "nll"),
    "edge Brier score": ("edgewise", "brier"),
    "same-label ECE": ("same_label", "ece"),
}

ROUNDING = 1e-6  # sum-product and mean field differ by less if the couplings are zero

Columns = Mapping[str, tuple[str, str]]


def values(results: Results, dataset: str, model: str, prediction: str, view: str, metric: str) -> list[float]:
    """Return a score of all runs of a model, in the order of their keys."""
    return [getattr(run.predictions[prediction][view], metric) for run in results.of(dataset, model)]


def cell(scores: Sequence[float], metric: str) -> str:
    """Format mean and standard deviation, in percent for accuracy and ECE."""
    scale, digits = (100, 2) if metric in ("accuracy", "ece") else (1, 3)
    return f"{scale * fmean(scores):.{digits}f} ± {scale * pstdev(scores):.{digits}f}"


def rows(results: Results, dataset: str, model: str, predictions: Mapping[str, str], columns: Columns) -> list[str]:
    """Format a row for each prediction of a model on a dataset."""
    lines = []
    for prediction, name in predictions.items():
        cells = (cell(values(results, dataset, model, prediction, *of), of[1]) for of in columns.values())
        lines.append(f"| {display_name(dataset)} | {name} | {' | '.join(cells)} |")
    return lines


def published_row(dataset: str, row: str) -> str:
    """Format a published row of EPFGNN."""
    scores = PUBLISHED_SCORES[dataset][row]
    published = scores["accuracy"]["nodewise"], scores["ece"]["nodewise"], scores["ece"]["edgewise"]
    cells = (f"{100 * one.mean:.2f} ± {100 * one.std:.2f}" for one in published)
    return f"| {display_name(dataset)} | *published: {PUBLISHED_ROWS[row]}* | {' | '.join(cells)} |  |"


def tables(results: Results) -> str:
    """Return the tables of EPFGNN and of GMNN."""
    epfgnn = [_head("EPFGNN by", EPFGNN_COLUMNS)]
    gmnn = [_head("GMNN by", GMNN_COLUMNS)]
    for dataset in DATASETS:
        epfgnn += rows(results, dataset, "epfgnn", EPFGNN, EPFGNN_COLUMNS)
        epfgnn += [published_row(dataset, row) for row in PUBLISHED_ROWS]
        gmnn += rows(results, dataset, "gmnn", GMNN, GMNN_COLUMNS)
    return "\n".join([*epfgnn, "", *gmnn])


def _head(first: str, columns: Columns) -> str:
    return f"| | {first} | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}"


def counts(results: Results) -> list[str]:
    """Return sentences that count runs."""

    def of(dataset: str, model: str, prediction: str, view: str, metric: str) -> list[float]:
        return values(results, dataset, model, prediction, view, metric)

    def all_of(model: str, prediction: str, view: str, metric: str) -> list[float]:
        return [score for dataset in DATASETS for score in of(dataset, model, prediction, view, metric)]

    lines = []
    one, other = "published_sum_product", "published_mean_field"
    differences = {
        metric: [
            abs(a - b)
            for a, b in zip(*(all_of("epfgnn", name, "edgewise", metric) for name in (one, other)), strict=True)
        ]
        for metric in ("accuracy", "ece", "nll")
    }
    equal = sum(gap == 0 for gap in differences["accuracy"])
    lines.append(
        f"Sum-product against mean field: equal edge accuracy in {equal} of {len(differences['accuracy'])} runs; edge "
        f"ECEs differ by at most {100 * max(differences['ece']):.2f} points, NLLs by {max(differences['nll']):.3f}."
    )
    for dataset in DATASETS:
        own, before = (of(dataset, "epfgnn", name, "nodewise", "accuracy") for name in ("sum_product", other))
        nlls = [of(dataset, "epfgnn", name, "edgewise", "nll") for name in ("sum_product", "mean_field")]
        coupled = [a for a, b in zip(*nlls, strict=True) if abs(a - b) > ROUNDING]
        alone = [a for a, b in zip(*nlls, strict=True) if abs(a - b) <= ROUNDING]
        medians = " and ".join(f"{median(part):.2f}" if part else "none" for part in (coupled, alone))
        largest = ", ".join(f"{nll:.1f}" for nll in sorted(coupled)[-2:])
        lines.append(
            f"{display_name(dataset)}: the published EM loses {100 * (fmean(own) - fmean(before)):.1f} points of node "
            f"accuracy; EM improves on its backbone in {len(coupled)} of {len(nlls[0])} runs; median edge NLL with and "
            f"without a coupling {medians}; largest with one {largest}."
        )
    lines += [
        better(all_of, "all graphs", "edgewise", metric, rival)
        for metric, rival in (("nll", "averaged_logits"), ("nll", "mixture_product"), ("brier", "mixture_product"))
    ]
    for dataset in DATASETS:
        for view, metric in (("edgewise", "brier"), ("nodewise", "nll")):
            lines.append(better(lambda *name, on=dataset: of(on, *name), dataset, view, metric, "averaged_logits"))
    return lines


def better(scores: Callable[..., list[float]], where: str, view: str, metric: str, rival: str) -> str:
    """Count the runs in which the mixture of GMNN has a lower score than another of its predictions."""
    pairs = list(zip(scores("gmnn", "mixture", view, metric), scores("gmnn", rival, view, metric), strict=True))
    wins = sum(a < b for a, b in pairs)
    return f"GMNN on {where}, {view} {metric}: the mixture is below {rival} in {wins} of {len(pairs)} runs."


def main() -> None:
    """Print everything."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="stored runs: a folder of results or a Parquet file")
    results = Results.read(parser.parse_args().runs)
    print(tables(results), "", *counts(results), sep="\n")


if __name__ == "__main__":
    main()
