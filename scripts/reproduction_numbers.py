"""Print the tables and the counts of docs/reproduction.md that compare predictions of the same runs.

python scripts/reproduction_numbers.py docs/reproduction/runs.parquet
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

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

NAMES = {"nll": "NLL", "brier": "Brier score"}
RIVALS = {"averaged_logits": "averaged logits", "mixture_product": "products of its own node marginals"}

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


def epfgnn_counts(results: Results) -> list[str]:
    """Return sentences on inference and on EM in the runs of EPFGNN."""
    gaps = {metric: _gaps(results, "edgewise", metric) for metric in ("accuracy", "ece", "nll")}
    lines = [
        f"Sum-product and mean field have the same edge accuracy in {sum(gap == 0 for gap in gaps['accuracy'])} of "
        f"{len(gaps['accuracy'])} runs. Their edge ECEs differ by at most {100 * max(gaps['ece']):.2f} points, their "
        f"edge NLLs by at most {max(gaps['nll']):.3f}."
    ]
    for dataset in DATASETS:
        defined, published = (
            fmean(values(results, dataset, "epfgnn", name, "nodewise", "accuracy"))
            for name in ("sum_product", "published_mean_field")
        )
        by_sums, by_means = (
            values(results, dataset, "epfgnn", name, "edgewise", "nll") for name in ("sum_product", "mean_field")
        )
        coupled = sum(abs(a - b) > ROUNDING for a, b in zip(by_sums, by_means, strict=True))
        lines.append(
            f"{display_name(dataset)}: EM as defined improves on its backbone in {coupled} of {len(by_sums)} runs. The "
            f"node accuracy of the published EM is {100 * (defined - published):.1f} points lower."
        )
    return lines


def _gaps(results: Results, view: str, metric: str) -> list[float]:
    """Return the difference between sum-product and mean field in each run of the published EM."""
    both = (
        [gap for dataset in DATASETS for gap in values(results, dataset, "epfgnn", name, view, metric)]
        for name in ("published_sum_product", "published_mean_field")
    )
    return [abs(a - b) for a, b in zip(*both, strict=True)]


def gmnn_counts(results: Results) -> list[str]:
    """Return sentences that count the runs in which the mixture of GMNN has the lower score."""
    lines = []
    for metric, rival in (("nll", "averaged_logits"), ("nll", "mixture_product"), ("brier", "mixture_product")):
        wins = [_wins(results, dataset, "edgewise", metric, rival) for dataset in DATASETS]
        lines.append(
            f"Its edge {NAMES[metric]} is lower than that of {RIVALS[rival]} in {sum(won for won, _ in wins)} of "
            f"{sum(num for _, num in wins)} runs."
        )
    for dataset in DATASETS:
        of_edges, of_nodes, of_event = (
            _wins(results, dataset, *score, "averaged_logits")
            for score in (("edgewise", "brier"), ("nodewise", "brier"), ("same_label", "ece"))
        )
        lines.append(
            f"{display_name(dataset)}: its Brier score is lower than that of averaged logits in {of_edges[0]} of "
            f"{of_edges[1]} runs for edges and in {of_nodes[0]} for nodes, its same-label ECE in {of_event[0]}."
        )
    return lines


def _wins(results: Results, dataset: str, view: str, metric: str, rival: str) -> tuple[int, int]:
    """Return in how many runs the mixture has the lower score, and the number of runs."""
    scores = (values(results, dataset, "gmnn", name, view, metric) for name in ("mixture", rival))
    pairs = list(zip(*scores, strict=True))
    return sum(a < b for a, b in pairs), len(pairs)


def main() -> None:
    """Print everything."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="stored runs: a folder of results or a Parquet file")
    results = Results.read(parser.parse_args().runs)
    print(tables(results), "", *epfgnn_counts(results), "", *gmnn_counts(results), sep="\n")


if __name__ == "__main__":
    main()
