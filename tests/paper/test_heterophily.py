"""The paper's protocol on heterophilous graphs from PyG files and on synthetic graphs."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest

import edgewise as ew
from edgewise.paper.recipes import paper_plan, published_epfgnn_predictions
from edgewise.sweep import sources as synthetic_graphs
from edgewise.sweep.plan import Training, hyperparameters
from edgewise.sweep.run import run_sweep
from edgewise.sweep.sources import Sources
from edgewise.sweep.store import Store
from helpers.in_process_workers import InProcessWorkers
from helpers.tiny_datasets import write_texas

mpl.use("Agg")
import matplotlib.pyplot as plt

from edgewise.paper.figures import draw_errors
from edgewise.paper.page import results_page
from edgewise.paper.report import report_text, write_tables
from edgewise.paper.results import Results
from edgewise.paper.score_rows import statistics_rows

SCORES = ("accuracy", "nll", "brier", "ece")

# The paper's trainings with few epochs.
BRIEF_EPFGNN = {"pretrain_epochs": 20, "rounds": 2, "steps": 5}
BRIEF_RECIPES = {
    "gcn": (Training(ew.GCN(max_epochs=20)),),
    "gat": (Training(ew.GAT(max_epochs=20)),),
    "gmnn": (Training(ew.GMNN(pretrain_epochs=20, round_epochs=10)),),
    "epfgnn": (
        Training(ew.EPFGNN(schedule="published", **BRIEF_EPFGNN), published_epfgnn_predictions),
        Training(ew.EPFGNN(**BRIEF_EPFGNN)),
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All four models on a graph without agreeing edges, and a GCN on a small synthetic graph."""
    root, out = write_texas(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_graphs, "NUM_NODES", 200)
        for plan in (
            paper_plan(("texas",), splits=1, folds=1, inits=1),
            paper_plan(("synthetic-0.2",), ("gcn",), 1, 1, 1),
        ):
            plan = replace(plan, recipes=BRIEF_RECIPES)
            progress = run_sweep(plan, out, Sources(str(root)), InProcessWorkers(), lambda _: lambda outcome: None)
            assert progress.missing == [], progress.failures
    return Results.read(out)


def test_all_models_are_scored_without_agreeing_edges(results: Results) -> None:
    assert results.datasets == ["texas", "synthetic-0.2"]
    of_texas = [run for run in results.runs if run.key.dataset == "texas"]
    assert {run.key.model for run in of_texas} == {"gcn", "gat", "gmnn", "epfgnn"}
    for run in of_texas:
        for name, views in run.predictions.items():
            assert views["agree"].count == 0, name
            assert all(math.isnan(views["agree"][score]) for score in SCORES), name
            assert views["disagree"].count == views["edgewise"].count > 0, name
            assert all(math.isfinite(views[view][score]) for view in ("nodewise", "edgewise") for score in SCORES), name


def test_statistics_of_the_graphs_are_stored(results: Results) -> None:
    rows = {row.dataset: {score.metric: score.mean for score in row.scores} for row in statistics_rows(results)}
    texas, synthetic = rows["texas"], rows["synthetic-0.2"]
    assert (texas["nodes"], texas["features"], texas["classes"]) == (183, 24, 5)
    assert (texas["homophily"], texas["k_agree"]) == (0, 0)
    assert (synthetic["nodes"], synthetic["features"], synthetic["classes"]) == (200, 16, 4)


def test_report_has_our_numbers_and_no_published_line(results: Results, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    text = report_text(results)
    assert "no published numbers for Texas, synthetic-0.2" in text
    assert "published value" not in text
    with (tmp_path / "tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["dataset"] for row in rows} == {"texas", "synthetic-0.2"}
    assert {(row["published_mean"], row["difference_in_published_std"]) for row in rows} == {("", "")}
    assert not any(row["dataset"] == "texas" and row["view"] == "agree" for row in rows)  # no agreeing edges
    (gcn,) = (
        float(row["mean"])
        for row in rows
        if [row[name] for name in ("reading", "dataset", "row", "metric", "view")]
        == ["as_defined", "texas", "gcn", "nll", "edgewise"]
    )
    (run,) = results.of("texas", "gcn")
    assert gcn == run.predictions["product"]["edgewise"].nll


def test_page_and_figure_have_both_datasets(results: Results) -> None:
    html = results_page(results)
    assert "scores the nodes and edges of Texas and synthetic-0.2." in html
    assert 'id="partial"' not in html  # no dataset of the paper
    figure = draw_errors(results, "as_defined", "agree_against_disagree_ece")  # no point of Texas has an agree ECE
    figure.draw_without_rendering()
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Texas", "synthetic-0.2"]
    plt.close(figure)


def test_weight_decay_is_0_on_graphs_other_than_citations(results: Results) -> None:
    for run in results.runs:
        assert run.key.hyperparameters == hyperparameters(run.key.dataset, run.key.model, BRIEF_RECIPES)
        expected = {"texas": 0.0, "synthetic-0.2": 5e-4}[run.key.dataset]
        assert all(training["weight_decay"] == expected for training in json.loads(run.key.hyperparameters))
    assert {run.seed for run in results.runs} == {0}


# --- sources ---


def test_dataset_files_need_data_root() -> None:
    with pytest.raises(ValueError, match=r"--data-root.*roman-empire"):
        Sources().load("roman-empire", 1)


def test_missing_file_fails_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, **_: object) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    (tmp_path / "data").mkdir()
    with pytest.raises(FileNotFoundError, match=r"roman_empire\.npz .*no network here"):
        run_sweep(
            paper_plan(("roman-empire",), ("gcn",), 1, 1, 1),
            tmp_path / "out",
            Sources(str(tmp_path / "data")),
            InProcessWorkers(),
            lambda progress: pytest.fail("a run started"),
        )
    with Store.reading(tmp_path / "out") as store:
        assert not store.finished()


@pytest.mark.parametrize("homophily", [0.1, 0.5, 0.9])
def test_synthetic_graph_has_its_named_homophily_and_is_reproducible(homophily: float) -> None:
    task, again = (Sources().load(f"synthetic-{homophily}", 2) for _ in range(2))
    data = task.data
    assert (data.num_nodes, int(data.y.max()) + 1) == (2000, 4)
    agree = (data.y[data.edge_index[0]] == data.y[data.edge_index[1]]).double().mean()
    assert float(agree) == pytest.approx(homophily, abs=0.03)  # of 4,000 edges: four standard errors
    assert data.is_undirected() and not data.has_self_loops()
    assert [row.fingerprint for row in task.rows()] == [row.fingerprint for row in again.rows()]
    assert len({row.fingerprint for row in task.rows()}) == 2
