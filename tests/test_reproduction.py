"""Stored runs of docs/reproduction.md on both kinds of splits: they are complete, and the page shows their numbers."""

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import compare, scores_beyond_one_std, tally_line
from edgewise.paper.formatting import display_name
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import MODELS
from edgewise.paper.recipes import RECIPES, paper_plan
from edgewise.paper.report import time_line, write_tables
from edgewise.paper.results import Results
from edgewise.paper.score_rows import STATISTICS
from edgewise.paper.text_tables import score_cell
from edgewise.sweep.estimates import TYPICAL_SECONDS
from edgewise.sweep.run import Runner
from edgewise.sweep.sources import Sources
from helpers.page_numbers import has_numbers, numbers
from helpers.scripts import load_script

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reproduction.md"
FOLDERS = {"published splits": DOCS / "reproduction", "own splits": DOCS / "reproduction" / "own"}
EDGE_ECE = ("edgewise", "ece")


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> Path:
    return FOLDERS[request.param]


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return Results.read(folder / "runs.parquet")


@pytest.fixture(scope="module")
def on_published_splits() -> Results:
    return Results.read(FOLDERS["published splits"] / "runs.parquet")


@pytest.fixture(scope="module")
def on_own_splits() -> Results:
    return Results.read(FOLDERS["own splits"] / "runs.parquet")


def test_every_run_of_the_paper_is_stored_once(results: Results) -> None:
    # Hyperparameters are part of the keys: after a change of a default, the runs have to be repeated.
    assert sorted(run.key for run in results.runs) == sorted(paper_plan().runs())
    assert results.failures == {}


def test_statistics_of_the_published_splits_are_the_published_ones(on_published_splits: Results) -> None:
    """To the digits of the paper, so these are its splits."""
    statistics = [score for score in compare(on_published_splits) if score.row == STATISTICS]
    assert len(statistics) == 12
    for score in statistics:
        assert [f"{100 * number:.2f}" for number in (score.mean, score.std)] == [
            f"{100 * number:.2f}" for number in (score.published.mean, score.published.std)
        ], score


def test_graphs_and_own_splits_are_the_bundled_ones(on_own_splits: Results) -> None:
    fingerprints = {(task.dataset, task.split): task.fingerprint for task in on_own_splits.tasks}
    for dataset in ("cora", "citeseer"):
        rows = Sources().load(dataset, 5).rows()
        assert {(row.dataset, row.split): row.fingerprint for row in rows}.items() <= fingerprints.items()


def test_tables_are_those_of_the_runs(results: Results, folder: Path, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    for name in ("tables.md", "tables.csv"):
        written = (folder / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == written, f"edgewise report {folder}/runs.parquet"


def test_page_has_the_counts_times_and_versions_of_the_runs(results: Results) -> None:
    assert has_numbers(PAGE, *numbers(tally_line(results)))
    assert has_numbers(PAGE, *numbers(time_line(results)))
    text = PAGE.read_text(encoding="utf-8")
    for name, versions in results.versions.items():
        assert f"{name} {', '.join(versions)}" in " ".join(text.split())


def test_page_lists_every_score_that_is_far_from_the_published_one(results: Results) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for score in scores_beyond_one_std(results):
        row, cell = f"| {display_name(score.dataset)} {display_name(score.row)} | ", score_cell(score)
        shown = f"| {cell.text} | {cell.subtext} |"
        assert any(line.startswith(row) and shown in line for line in lines), score


def test_page_has_the_tables_and_counts_of_epfgnn_and_gmnn(on_published_splits: Results) -> None:
    page = PAGE.read_text(encoding="utf-8")
    with load_script("reproduction_numbers") as script:
        tables = script.tables(on_published_splits).split("\n\n")
        counts = script.epfgnn_counts(on_published_splits) + script.gmnn_counts(on_published_splits)
    assert len(tables) == 2 and len(counts) == 10
    assert all(table in page for table in tables)
    assert all(f"- {line}" in " ".join(page.split()) for line in counts)


@pytest.mark.slow
def test_gmnn_is_worse_where_few_drawn_labels_are_correct(on_own_splits: Results) -> None:
    graph = Sources().load("citeseer", 5)
    with load_script("gmnn_pretraining") as script:
        found = [script.pretrain(run, graph) for run in on_own_splits.of("citeseer", "gmnn")[::3]]
        table = script.as_table(found).splitlines()
    correlation = np.corrcoef([one.drawn_correct for one in found], [one.accuracy for one in found])[0, 1]
    assert correlation > 0.5
    assert sum(int(line.split(" | ")[1]) for line in table[2:]) == len(found) == 25


def test_readme_has_the_means_of_the_runs(on_published_splits: Results) -> None:
    results = on_published_splits
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    cells = {(cell.dataset, cell.row): cell for cell in compare(results) if (cell.view, cell.metric) == EDGE_ECE}
    for model in MODELS:
        means = [(100 * cells[name, model].mean, 100 * cells[name, model].published.mean) for name in DATASETS]
        row = (f"{ours:.1f} ({published:.1f})" for ours, published in means)
        assert f"| {model.upper()} | {' | '.join(row)} |" in readme


def test_typical_seconds_are_the_means_of_the_runs(on_published_splits: Results) -> None:
    for cell in {cell for cell in TYPICAL_SECONDS if cell[1] in MODELS}:
        seconds = [run.seconds for run in on_published_splits.of(*cell)]
        assert TYPICAL_SECONDS[cell] == pytest.approx(fmean(seconds), rel=0.05), cell


@pytest.mark.slow
def test_repeated_run_has_the_stored_scores(on_own_splits: Results) -> None:
    """Bitwise on the same kind of machine. On others, rounding may change training slightly."""
    key = next(key for key in paper_plan(("cora",), ("gmnn",), 1, 1, 1).runs())
    repeated = Runner(Sources(), 1, RECIPES)(key)
    (stored,) = (run for run in on_own_splits.runs if run.key == key)
    for name, prediction in repeated.predictions.items():
        for view in VIEWS:
            assert prediction[view].count == stored.predictions[name][view].count
            assert prediction[view].accuracy == pytest.approx(stored.predictions[name][view].accuracy, abs=0.05)
            assert prediction[view].ece == pytest.approx(stored.predictions[name][view].ece, abs=0.05)
