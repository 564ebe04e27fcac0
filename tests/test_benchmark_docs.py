"""Numbers of docs/benchmark.md, docs/calibration.md, docs/choosing.md and the README are those of the stored runs."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

from edgewise.paper.gains import gains
from edgewise.paper.readings import Source
from edgewise.paper.recipes import RECIPES
from edgewise.paper.report import write_tables
from edgewise.paper.results import Results
from edgewise.paper.score_rows import run_position
from edgewise.sweep.own_models import read_own_models
from edgewise.sweep.plan import SOURCE_ENTRY, calibrators_of, hyperparameters
from helpers.page_numbers import has_numbers
from helpers.scripts import load_script

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
BENCHMARK, PAGE, CHOOSING = DOCS / "benchmark.md", DOCS / "calibration.md", DOCS / "choosing.md"
NOT_RUN = {
    ("tolokers", "gat"),
    *((graph, "graphsage") for graph in ("photo", "computers", "cs", "physics", "tolokers")),
}
ROUNDING = 1e-6  # an EPFGNN without couplings is its backbone
MODELS = ("gcn", "gat", "graphsage")  # that are calibrated
FEWER_RUNS = ("deepensemble", "mcdropout", "spn", "graphsage")  # one fold on some graphs
LARGE = ("photo", "computers", "physics", "tolokers")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with load_script("benchmark_tables") as module:
        yield module


def without_hash(stored: str) -> str:
    """Remove the hash of the text of an example, whose comments may change."""
    return re.sub(rf', "{SOURCE_ENTRY}": "\w+"', "", stored)


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(DOCS / "benchmark" / "runs.parquet")


@pytest.mark.usefixtures("forget_own_models")
def test_every_run_is_stored_with_the_current_options(results: Results, script: ModuleType) -> None:
    """Hyperparameters are part of the keys: after a change of a default, the runs have to be repeated."""
    models = {source.model for source in script.METHODS.values()}
    assert set(results.models) == models and set(results.datasets) == set(script.GRAPHS)
    (own,) = read_own_models([str(HOME / "examples" / "graph_sage.py") + ":GraphSAGE"]).values()
    recipes = {**RECIPES, own.name: own}
    for dataset in script.GRAPHS:
        for model in models:
            runs = results.of(dataset, model)
            assert bool(runs) == ((dataset, model) not in NOT_RUN)
            if not runs:
                continue
            positions = {(run.key.split, run.key.fold, run.key.init) for run in runs}
            all_folds = {(split, fold, 0) for split in range(5) for fold in range(3)}
            first_folds = [(split, 0, 0) for split in range(5)]
            if dataset in LARGE:
                three = dataset != "tolokers" and model in ("gat", "gmnn", "epfgnn", "mcdropout")
                splits = 5 if model == "gcn" else 3 if three else 2
                assert positions == set(first_folds[:splits]), (dataset, model)
            else:
                assert positions in (all_folds, set(first_folds)), (dataset, model)
                assert positions == all_folds or model in FEWER_RUNS
            (stored,) = {run.key.hyperparameters for run in runs}
            current = hyperparameters(dataset, model, recipes, tuple(calibrators_of(stored)))
            assert without_hash(stored) == without_hash(current)


def test_large_graphs_have_more_than_100_000_edges(results: Results, script: ModuleType) -> None:
    edges = {task.dataset: task.directed_edges // 2 for task in results.tasks}
    assert {dataset for dataset in script.GRAPHS if edges[dataset] > 100_000} == set(LARGE)


def test_tables_are_those_of_the_runs(results: Results, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    written = (DOCS / "benchmark" / "tables.md").read_text(encoding="utf-8")
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == written


def test_tables_of_the_pages_are_those_of_the_script(results: Results, script: ModuleType) -> None:
    expected = script.sections(results)
    found = {name: text for page in script.PAGES for name, text in script.sections_of(page).items()}
    assert found.keys() == expected.keys()
    for name, text in found.items():
        assert text == expected[name], name


def test_a_table_has_the_means_of_the_runs(results: Results, script: ModuleType) -> None:
    """One table by a plain loop."""
    lines = script.sections(results)["methods: same label ECE"].splitlines()[2:]
    for line, (model, prediction) in zip(lines, script.METHODS.values(), strict=True):
        for text, dataset in zip(line.strip("| ").split(" | ")[1:], script.GRAPHS, strict=True):
            common = script.common_positions(results, dataset, script.METHODS)
            runs = [run for run in results.of(dataset, model) if (run.key.split, run.key.fold, run.key.init) in common]
            values = [run.predictions[prediction]["same_label"].ece for run in runs]
            assert text.strip("*") == (f"{100 * sum(values) / len(values):.2f}" if values else "–")


class Means:
    """Means of scores of calibrators of the GCN over the runs on a graph."""

    def __init__(self, results: Results, calibrators: Mapping[str, Source]) -> None:
        self.results, self.calibrators = results, calibrators

    def __call__(self, dataset: str, name: str, view: str, metric: str) -> float:
        prediction = self.calibrators[name].prediction
        return fmean(run.predictions[prediction][view][metric] for run in self.results.of(dataset, "gcn"))

    def lowest(self, view: str, metric: str, dataset: str) -> str:
        return min(self.calibrators, key=lambda name: self(dataset, name, view, metric))


def test_statements_on_calibrators_are_those_of_the_runs(results: Results, script: ModuleType) -> None:
    mean, graphs = Means(results, script.CALIBRATED), script.GRAPHS

    def count(name: str, other: str, view: str, metric: str) -> str:
        return str(sum(mean(graph, name, view, metric) > mean(graph, other, view, metric) for graph in graphs))

    lowest = [graph for graph in graphs if mean.lowest("edgewise", "nll", graph) == "structured"]
    assert set(graphs).difference(lowest) == {"actor"} and mean.lowest("edgewise", "nll", "actor") == "cagcn"
    behind = mean("actor", "structured", "edgewise", "nll") - mean("actor", "cagcn", "edgewise", "nll")
    runs = [run for graph in graphs for run in results.of(graph, "gcn")]
    below = sum(
        run.predictions["structured"]["edgewise"].nll < run.predictions["temperature"]["edgewise"].nll for run in runs
    )
    assert count("temperature", "uncalibrated", "nodewise", "nll") == "0"
    worse = count("temperature", "uncalibrated", "edgewise", "nll")
    of_runs = str(below), str(len(runs))
    assert has_numbers(PAGE, "11", "12", f"{behind:.3f}", *of_runs, "12", worse, near="**Pairs.**")
    assert has_numbers(CHOOSING, str(len(runs)), str(below), near="lower edge NLL than temperature scaling")

    ece = {graph: mean(graph, "structured", "edgewise", "ece") for graph in graphs}
    above = {graph: ece[graph] - mean(graph, "temperature", "edgewise", "ece") for graph in graphs}
    assert max(above, key=above.__getitem__) == "dblp"
    of_dblp = (f"{100 * value:.1f}%" for value in (ece["dblp"], ece["dblp"] - above["dblp"]))
    higher = str(sum(value > 0 for value in above.values()))
    assert has_numbers(PAGE, higher, *of_dblp, near="**Its edge ECE is not always the lowest.**")

    gaps = {
        graph: mean(graph, "bayesian", "nodewise", "nll") - mean(graph, best, "nodewise", "nll")
        for graph in graphs
        if (best := mean.lowest("nodewise", "nll", graph)) not in ("bayesian", "structured")
    }
    assert max(gaps.values()) < 0.004 and count("cagcn", "temperature", "nodewise", "ece") == "12"
    assert has_numbers(PAGE, str(12 - len(gaps)), "0.004", str(len(gaps)), "12", near="**Nodes.**")
    assert has_numbers(CHOOSING, str(12 - len(gaps)), "12", "0.004", near="| nodes only |")

    hubs = [f"{100 * mean('pubmed', name, 'edgewise', 'ece'):.1f}%" for name in ("uncalibrated", "temperature")]
    assert has_numbers(CHOOSING, *hubs, worse, "12", near="| a graph with hubs |")
    isotonic = count("isotonic", "uncalibrated", "edgewise", "nll")
    assert has_numbers(CHOOSING, isotonic, "12", near="| lowest node ECE of one graph")
    assert {graph for graph in graphs if mean.lowest("nodewise", "ece", graph) == "isotonic"} == {"cora", "tolokers"}
    physics = mean("physics", "uncalibrated", "nodewise", "ece")
    assert abs(mean("physics", "bayesian", "nodewise", "ece") - physics) < 0.001
    gain_on_physics = mean("physics", "uncalibrated", "edgewise", "nll") - mean(
        "physics", "structured", "edgewise", "nll"
    )
    shown = f"{100 * physics:.1f}%", "0.1", f"{gain_on_physics:.3f}"
    assert has_numbers(CHOOSING, *shown, near="| a model that is calibrated already |")


def finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def test_statements_on_models_are_those_of_the_runs(results: Results, script: ModuleType) -> None:
    nll: dict[str, dict[str, float]] = {}
    for graph in script.GRAPHS:
        rows = script.score_rows(results, graph, script.METHODS, "edge NLL")
        means = {label: row.scores[0].mean for label, row in zip(script.METHODS, rows, strict=True)}
        nll[graph] = {label: mean for label, mean in means.items() if not math.isnan(mean)}

    def differences(one: str, other: str) -> dict[str, float]:
        return {graph: of[one] - of[other] for graph, of in nll.items() if one in of and other in of}

    def lower(one: str, other: str) -> tuple[str, str]:
        values = differences(one, other).values()
        return str(sum(value < -ROUNDING for value in values)), str(len(values))

    gcn, gat = differences("GCN, structured", "GCN"), differences("GAT, structured", "GAT")
    assert max(gcn.values()) < 0 and [graph for graph in gat if gat[graph] > 0] == ["computers"]
    of_gat = *lower("GAT, structured", "GAT"), f"{gat['computers']:.2f}"
    assert has_numbers(BENCHMARK, "12", f"{-min(gcn.values()):.2f}", *of_gat, near="**For pairs, calibrate any model")
    best = {graph: min(of, key=of.__getitem__) for graph, of in nll.items()}
    others = {graph: label for graph, label in best.items() if not label.endswith("structured")}
    assert others == {"cs": "JointGCN", "physics": "JointGCN", "computers": "GAT"}
    assert has_numbers(BENCHMARK, str(12 - len(others)), "12", near="**For pairs, calibrate any model")
    shown = [
        f"{nll[graph][label]:.3f}"
        for graph in ("actor", "minesweeper")
        for label in ("GraphSAGE, structured", "GCN, structured")
    ]
    vector = fmean(run.predictions["vector"]["edgewise"].nll for run in results.of("actor", "graphsage"))
    assert vector < nll["actor"]["GraphSAGE, structured"]
    assert has_numbers(BENCHMARK, *shown, f"{vector:.3f}", near="**Where neighbors differ")
    assert has_numbers(
        BENCHMARK, *lower("JointGCN", "GCN"), *lower("JointGCN", "GCN, structured"), near="**JointGCN** is"
    )
    lowest = {graph: script.score_rows(results, graph, script.METHODS, "node NLL") for graph in script.GRAPHS}
    winners = {
        graph: min(zip(script.METHODS, rows, strict=True), key=lambda pair: finite(pair[1].scores[0].mean))[0]
        for graph, rows in lowest.items()
    }
    uncalibrated = {graph: label for graph, label in winners.items() if ", " not in label or label == "GCN, dropout"}
    assert uncalibrated == {"cs": "JointGCN", "physics": "JointGCN", "tolokers": "GCN, dropout"}
    dropout = max(map(abs, differences("GCN, dropout", "GCN").values()))
    mixtures = *lower("5 GCNs", "GCN"), *lower("5 GCNs", "GCN, structured"), f"{dropout:.3f}"
    assert has_numbers(BENCHMARK, *mixtures, near="**Mixtures do not replace")
    fields = *lower("GMNN, mixture", "GCN"), *lower("EPFGNN", "GCN"), *lower("SPN", "GCN, structured")
    rejected = *uncoupled(results, script.METHODS["EPFGNN"]), *uncoupled(results, script.METHODS["SPN"])
    assert has_numbers(BENCHMARK, *fields, *rejected, near="**Markov random fields")


def uncoupled(results: Results, source: Source) -> tuple[str, str]:
    """Count the runs with the edge NLL of the GCN, and all runs."""
    differences = {}
    for graph in results.datasets:
        plain = {run_position(run): run.predictions["product"]["edgewise"].nll for run in results.of(graph, "gcn")}
        for run in results.of(graph, source.model):
            own = run.predictions[source.prediction]["edgewise"].nll
            differences[graph, run_position(run)] = abs(own - plain[run_position(run)])
    if source.model == "spn":
        coupled = {graph for (graph, _), gap in differences.items() if gap > ROUNDING}
        assert set(results.datasets) - coupled == {"photo", "computers", "cs", "physics"}
    return str(sum(gap <= ROUNDING for gap in differences.values())), str(len(differences))


def test_epochs_and_time_are_those_of_the_runs(results: Results) -> None:
    epochs = {graph: fmean(run.epochs for run in results.of(graph, "gcn")) for graph in ("photo", "computers")}
    shown = f"{epochs['photo']:.0f}", f"{epochs['computers']:.0f}"
    assert has_numbers(BENCHMARK, "200", "2000", *shown, near="- **Training.**")
    assert {run.epochs for graph in epochs for run in results.of(graph, "jointgcn")} == {5 * 200}
    cells = ((graph, model) for graph in results.datasets for model in results.models)
    seconds = sum(run.seconds for cell in cells for run in results.of(*cell))
    assert has_numbers(BENCHMARK, f"{seconds / 3600:.1f}", near="All stored runs together took")


def test_statements_on_aims_are_those_of_the_runs(results: Results) -> None:
    found = {(model, graph): one for graph, model, one in gains(results)}
    of = {model: {graph: one for (name, graph), one in found.items() if name == model} for model in MODELS}
    met = {model: [str(sum(not one.missed for one in ones.values())), str(len(ones))] for model, ones in of.items()}
    assert met["gcn"] == ["12", "12"] and met["gat"] == ["11", "11"]
    missed = {key: one.missed for key, one in found.items() if one.missed}
    assert missed == {("graphsage", "actor"): ["NLL"]}
    above = {model: {graph for graph, one in ones.items() if one.edge_nll.mean > 0} for model, ones in of.items()}
    assert above == {"gcn": set(), "gat": {"actor", "computers"}, "graphsage": {"actor", "minesweeper"}}
    ece = {graph: one.same_label_ece.mean for graph, one in of["gcn"].items() if one.same_label_ece.mean > 0}
    assert ece.keys() == {"photo", "actor", "computers"}
    below = str(len(of["gat"]) - len(above["gat"]))
    shown = "12", str(len(ece)), f"{100 * max(ece.values()):.2f}", *met["gat"], below
    assert has_numbers(PAGE, *shown, near="**The aims of both scores")
    sage, total = of["graphsage"], len(of["graphsage"])
    below = total - len(above["graphsage"])
    assert below < 3 / 4 * total and sage["minesweeper"].edge_nll.mean < 0.001
    loss, limit = f"{sage['actor'].edge_nll.mean:.3f}", f"{sage['actor'].max_edge_nll:.3f}"
    assert has_numbers(PAGE, loss, limit, str(below), str(total), "0.001", near="**For GraphSAGE they are missed.**")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_page_has_no_placeholder(page: Path) -> None:
    assert not re.search(r"\{[A-Z_]+\}|TODO|TBD", page.read_text(encoding="utf-8"))
