"""Write the tables of docs/benchmark.md from its stored runs.

python scripts/benchmark_tables.py
"""

import math
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from edgewise.paper.formatting import PERCENT, display_name, format_number, format_signed
from edgewise.paper.gains import gain
from edgewise.paper.readings import Source
from edgewise.paper.results import Results
from edgewise.paper.score_rows import METHOD_SCORES, mark_best, prediction_row

PAGE = Path(__file__).parents[1] / "docs" / "benchmark.md"
RUNS = PAGE.parent / "benchmark" / "runs.parquet"

# The structured calibrator was chosen on the first graphs, and run once on the others after that.
DEVELOPMENT = ("cora", "citeseer", "pubmed", "photo", "dblp", "cora-ml", "actor", "minesweeper")
CONFIRMATION = ("computers", "cs", "physics", "tolokers")
PUBLISHED_SPLITS = ("cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics")

METHODS = {
    "GCN": Source("gcn", "product"),
    "GCN, temperature": Source("gcn", "temperature"),
    "GCN, vector": Source("gcn", "vector"),
    "GCN, ensemble temperature": Source("gcn", "ensemble"),
    "GCN, GATS": Source("gcn", "gats"),
    "GCN, local": Source("gcn", "local"),
    "GCN, bayesian": Source("gcn", "bayesian"),
    "GCN, structured": Source("gcn", "structured"),
    "GAT": Source("gat", "product"),
    "GAT, structured": Source("gat", "structured"),
    "GraphSAGE": Source("graphsage", "product"),
    "GraphSAGE, structured": Source("graphsage", "structured"),
    "GMNN, mixture": Source("gmnn", "mixture"),
    "EPFGNN": Source("epfgnn", "sum_product"),
    "JointGCN": Source("jointgcn", "joint"),
    "Ensemble of 5 GCNs": Source("deepensemble", "mixture"),
    "GCN, Monte-Carlo dropout": Source("mcdropout", "mixture"),
    "SPN": Source("spn", "sum_product"),
}
SCORES = ("edge NLL", "same label ECE", "node NLL", "node accuracy")
MIN_LIMIT = 0.01  # of the edge NLL, and of the ECE, above that of the other predictions


def sections(results: Results) -> dict[str, str]:
    """Return all tables of the page by name."""
    scores = {name.replace(" ", "-"): score_table(results, name) for name in SCORES}
    return {"graphs": graph_table(results), **scores, "aims": aim_table(results)}


def graph_table(results: Results) -> str:
    """Return sizes of the graphs, kind of their splits, and number of runs of each model."""
    rows = []
    for dataset in (*DEVELOPMENT, *CONFIRMATION):
        task = next(task for task in results.tasks if task.dataset == dataset)
        runs = {len(results.of(dataset, model)) for model in results.models}
        rows.append(
            [
                display_name(dataset),
                f"{task.nodes:,}",
                f"{task.directed_edges // 2:,}",
                f"{task.features:,}",
                str(task.classes),
                f"{task.homophily:.2f}",
                "published" if dataset in PUBLISHED_SPLITS else "random",
                " or ".join(map(str, sorted(runs - {0}, reverse=True))),
            ]
        )
    return table(["Graph", "nodes", "edges", "features", "classes", "homophily", "splits", "runs"], rows)


def score_table(results: Results, name: str) -> str:
    """Return means of a score, with the best of each graph in bold."""
    view, metric = METHOD_SCORES[name]
    graphs = (*DEVELOPMENT, *CONFIRMATION)
    columns = [
        mark_best(
            [
                prediction_row(dataset, *source, source.prediction, results.of(dataset, source.model), [(view, metric)])
                for source in METHODS.values()
            ]
        )
        for dataset in graphs
    ]
    rows = [
        [label, *(score_text(column[at].scores[0].mean, metric, column[at].scores[0].is_best) for column in columns)]
        for at, label in enumerate(METHODS)
    ]
    unit = f"{name}, percent" if metric in PERCENT else name
    return table([unit[0].upper() + unit[1:], *map(display_name, graphs)], rows)


def score_text(mean: float, metric: str, is_best: bool) -> str:
    """Format a mean, with – if there are no runs."""
    text = "–" if math.isnan(mean) else format_number(mean, metric)
    return f"**{text}**" if is_best else text


def aim_table(results: Results) -> str:
    """Return for each graph whether structured calibration of the GCN meets its aims."""
    rows = []
    for dataset in (*DEVELOPMENT, *CONFIRMATION):
        found = gain(results, dataset)
        if found is None:
            continue
        limit = max(MIN_LIMIT, 2 * found.edge_nll.error)
        nll_met, ece_met = found.edge_nll.mean <= limit, found.same_label_ece.mean <= MIN_LIMIT
        accuracy_met = found.node_accuracy.mean == 0 and found.node_accuracy.error == 0
        missed = [
            name
            for name, met in (("edge NLL", nll_met), ("same-label ECE", ece_met), ("accuracy", accuracy_met))
            if not met
        ]
        rows.append(
            [
                display_name(dataset),
                {"product": "uncalibrated"}.get(found.rival, found.rival),
                f"{format_signed(found.edge_nll.mean, 4)} ± {found.edge_nll.error:.4f}",
                f"{limit:.4f}",
                "yes" if found.edge_nll.mean < 0 else "no",
                format_signed(100 * found.same_label_ece.mean, 2),
                format_signed(100 * found.node_accuracy.mean, 2),
                str(found.edge_nll.runs),
                f"missed: {', '.join(missed)}" if missed else "met",
            ]
        )
    head = ["Graph", "best product joints", "edge NLL", "limit", "below", "same-label ECE", "accuracy", "runs", "aims"]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def section(page: str, name: str) -> str:
    """Return the text between the two comments of a section."""
    match = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end of {name} -->", page, re.DOTALL)
    if match is None:
        raise ValueError(f"Expected the comments <!-- {name} --> and <!-- end of {name} -->, but they are missing.")
    return match.group(1)


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    text = PAGE.read_text(encoding="utf-8")
    for name, new in sections(Results.read(RUNS)).items():
        text = text.replace(section(text, name), new)
    PAGE.write_text(text, encoding="utf-8")
