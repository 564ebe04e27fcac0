"""Write the tables of docs/benchmark.md, docs/calibration.md and the README from the stored runs of the benchmark.

python scripts/benchmark_tables.py
"""

import math
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgewise.paper.formatting import PERCENT, display_name, format_number, format_signed
from edgewise.paper.gains import gain
from edgewise.paper.readings import CALIBRATORS, UNCALIBRATED_PREDICTION, Source
from edgewise.paper.results import Results
from edgewise.paper.score_rows import METHOD_SCORES, UNCALIBRATED, ScoreRow, mark_best, prediction_row, run_position

HOME = Path(__file__).parents[1]
PAGES = (HOME / "docs" / "benchmark.md", HOME / "docs" / "calibration.md", HOME / "README.md")
RUNS = HOME / "docs" / "benchmark" / "runs.parquet"

# The structured calibrator was chosen on the first graphs, and run once on the others after that.
DEVELOPMENT = ("cora", "citeseer", "pubmed", "photo", "dblp", "cora-ml", "actor", "minesweeper")
CONFIRMATION = ("computers", "cs", "physics", "tolokers")
GRAPHS = (*DEVELOPMENT, *CONFIRMATION)
PUBLISHED_SPLITS = ("cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics")

METHODS = {
    "GCN": Source("gcn", UNCALIBRATED_PREDICTION),
    "GCN, temperature": Source("gcn", "temperature"),
    "GCN, structured": Source("gcn", "structured"),
    "GAT": Source("gat", UNCALIBRATED_PREDICTION),
    "GAT, temperature": Source("gat", "temperature"),
    "GAT, structured": Source("gat", "structured"),
    "GraphSAGE": Source("graphsage", UNCALIBRATED_PREDICTION),
    "GraphSAGE, temperature": Source("graphsage", "temperature"),
    "GraphSAGE, structured": Source("graphsage", "structured"),
    "GMNN, mixture": Source("gmnn", "mixture"),
    "EPFGNN": Source("epfgnn", "sum_product"),
    "JointGCN": Source("jointgcn", "joint"),
    "5 GCNs": Source("deepensemble", "deepensemble_mixture"),
    "GCN, dropout": Source("mcdropout", "mcdropout_mixture"),
    "SPN": Source("spn", "spn_sum_product"),
}
CALIBRATED = {
    UNCALIBRATED: Source("gcn", UNCALIBRATED_PREDICTION),
    **{name: Source("gcn", name) for name in CALIBRATORS},
}
SCORES_OF_METHODS = ("edge NLL", "same label ECE", "node NLL", "node accuracy")
SCORES_OF_CALIBRATORS = ("node ECE", "edge NLL", "edge ECE", "same label ECE")
SUMMARY = (UNCALIBRATED, "temperature", "structured")
SCORES_OF_SUMMARY = ("edge NLL", "same label ECE")


def sections(results: Results) -> dict[str, str]:
    """Return all tables by name."""
    of_methods = {section_name("methods", name): score_table(results, name, METHODS) for name in SCORES_OF_METHODS}
    of_calibrators = {
        section_name("calibrators", name): score_table(results, name, CALIBRATED) for name in SCORES_OF_CALIBRATORS
    }
    aims = {section_name("aims", model): aim_table(results, model) for model in ("gcn", "gat", "graphsage")}
    return {"graphs": graph_table(results), **of_methods, **of_calibrators, **aims, "summary": summary_table(results)}


def section_name(kind: str, name: str) -> str:
    """Return the name of a section in the comments of a page."""
    return f"{kind}: {name}"


def graph_table(results: Results) -> str:
    """Return sizes of the graphs, kind of their splits, and numbers of runs of GCN and of all models."""
    rows = []
    for dataset in GRAPHS:
        task = next(task for task in results.tasks if task.dataset == dataset)
        runs = len(results.of(dataset, "gcn")), len(common_positions(results, dataset, METHODS))
        rows.append(
            [
                display_name(dataset),
                f"{task.nodes:,}",
                f"{task.directed_edges // 2:,}",
                f"{task.features:,}",
                str(task.classes),
                f"{task.homophily:.2f}",
                "published" if dataset in PUBLISHED_SPLITS else "random",
                *map(str, runs),
            ]
        )
    head = [
        "Graph",
        "nodes",
        "edges",
        "features",
        "classes",
        "homophily",
        "splits",
        "runs of GCN",
        "runs of all models",
    ]
    return table(head, rows)


def common_positions(results: Results, dataset: str, sources: Mapping[str, Source]) -> set[tuple[int, int, int]]:
    """Return split, fold and initialization of the runs that all models have, of those with any run on a graph."""
    models = dict.fromkeys(source.model for source in sources.values())
    positions = [{run_position(run) for run in results.of(dataset, model)} for model in models]
    return set.intersection(*filter(None, positions))


def score_rows(results: Results, dataset: str, sources: Mapping[str, Source], *names: str) -> list[ScoreRow]:
    """Return the scores of methods on a graph over the runs that all have, with the best of each column marked."""
    scores, common = [METHOD_SCORES[name] for name in names], common_positions(results, dataset, sources)
    rows = []
    for model, prediction in sources.values():
        runs = [run for run in results.of(dataset, model) if run_position(run) in common]
        rows.append(prediction_row(dataset, model, prediction, prediction, runs, scores))
    return mark_best(rows)


def score_table(results: Results, name: str, sources: Mapping[str, Source]) -> str:
    """Return means of a score with methods in rows and graphs in columns, the best of each graph in bold."""
    columns = [score_rows(results, dataset, sources, name) for dataset in GRAPHS]
    rows = [[label, *(cell(column[at]) for column in columns)] for at, label in enumerate(sources)]
    unit = f"{name}, percent" if METHOD_SCORES[name][1] in PERCENT else name
    return table([unit[0].upper() + unit[1:], *map(display_name, GRAPHS)], rows)


def summary_table(results: Results) -> str:
    """Return two scores of the GCN before and after calibration, with graphs in rows."""
    sources = {name: CALIBRATED[name] for name in SUMMARY}
    rows = []
    for dataset in GRAPHS:
        scored = score_rows(results, dataset, sources, *SCORES_OF_SUMMARY)
        rows.append([display_name(dataset), *(cell(row, at) for at in range(len(SCORES_OF_SUMMARY)) for row in scored)])
    head = [f"{score.replace(' label', '-label')}, {name}" for score in SCORES_OF_SUMMARY for name in SUMMARY]
    return table(["Graph", *head], rows)


def cell(row: ScoreRow, at: int = 0) -> str:
    """Format the mean of a score, with – if there are no runs."""
    score = row.scores[at]
    text = "–" if math.isnan(score.mean) else format_number(score.mean, score.metric)
    return f"**{text}**" if score.is_best else text


def aim_table(results: Results, model: str) -> str:
    """Return for each graph whether structured calibration of a model meets its aims."""
    rows = []
    for dataset in GRAPHS:
        found = gain(results, dataset, model)
        if found is None:
            continue
        nll, ece, accuracy = found.edge_nll, found.same_label_ece, found.node_accuracy
        rows.append(
            [
                display_name(dataset),
                UNCALIBRATED if found.rival == UNCALIBRATED_PREDICTION else found.rival,
                f"{format_signed(nll.mean, 4)} ± {nll.error:.4f}",
                f"{found.max_edge_nll:.4f}",
                format_signed(100 * ece.mean, 2),
                format_signed(100 * accuracy.mean, 2),
                str(nll.runs),
                found.verdict,
            ]
        )
    head = ["Graph", "best product joints", "edge NLL", "limit", "same-label ECE", "node accuracy", "runs", "aims"]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def sections_of(page: Path) -> dict[str, str]:
    """Return the text between the two comments of each section of a page."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- ([^>]*) -->\n\n(.*?)\n\n<!-- end of \1 -->", text, re.DOTALL))


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    tables = sections(Results.read(RUNS))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, old in sections_of(page).items():
            text = text.replace(
                f"<!-- {name} -->\n\n{old}\n\n<!-- end of", f"<!-- {name} -->\n\n{tables[name]}\n\n<!-- end of"
            )
        page.write_text(text, encoding="utf-8")
