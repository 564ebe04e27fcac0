"""The runs that docs/reproduction.md speaks of: whole, of these recipes, and with the tables that the page shows."""

from pathlib import Path

import numpy as np
import pytest

from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import compare, scores_beyond_one_std, tally_line
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import MODELS
from edgewise.paper.recipes import RECIPES, paper_plan
from edgewise.paper.report import time_line, write_tables
from edgewise.paper.results import Results
from edgewise.paper.text_tables import score_cell
from edgewise.sweep.estimates import TYPICAL_SECONDS
from edgewise.sweep.run import Runner
from edgewise.sweep.sources import Sources

DOCS = Path(__file__).parents[1] / "docs"
TABLE = DOCS / "reproduction" / "runs.parquet"
EDGE_ECE = ("edgewise", "ece")


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(TABLE)


@pytest.fixture(scope="module")
def text() -> str:
    return (DOCS / "reproduction.md").read_text(encoding="utf-8")


def test_every_run_of_the_paper_is_there_once(results: Results) -> None:
    # Their hyper-parameters are part of keys: whoever changes a default has to do the runs again.
    assert sorted(run.key for run in results.runs) == sorted(paper_plan().runs())
    assert results.failures == {}


def test_graphs_and_splits_are_the_bundled_ones(results: Results) -> None:
    found = {(task.dataset, task.split): task.fingerprint for task in results.tasks}
    for dataset in ("cora", "citeseer"):
        rows = Sources().load(dataset, 5).rows()
        assert {(row.dataset, row.split): row.fingerprint for row in rows}.items() <= found.items()


def test_tables_are_those_of_the_runs(results: Results, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    for name in ("tables.md", "tables.csv"):
        written = (DOCS / "reproduction" / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == written, f"edgewise report {TABLE} --to {DOCS}/…"


def test_the_text_says_what_came_out(results: Results, text: str) -> None:
    words = " ".join(text.split())
    assert tally_line(results) in words
    assert time_line(results) in words
    for name, versions in results.versions.items():
        assert f"{name} {', '.join(versions)}" in words


def test_the_text_speaks_of_every_cell_that_is_far(results: Results, text: str) -> None:
    for score in scores_beyond_one_std(results):
        row, cell = f"| {score.dataset} {score.row} | ", score_cell(score)
        numbers = f"| {cell.text} | {cell.subtext} |"
        assert any(line.startswith(row) and numbers in line for line in text.splitlines()), score


def test_the_readme_has_the_means_of_the_runs(results: Results) -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    cells = {(cell.dataset, cell.row): cell for cell in compare(results) if (cell.view, cell.metric) == EDGE_ECE}
    for model in MODELS:
        means = [(100 * cells[name, model].mean, 100 * cells[name, model].published.mean) for name in DATASETS]
        row = (f"{ours:.1f} ({published:.1f})" for ours, published in means)
        assert f"| {model.upper()} | {' | '.join(row)} |" in readme


def test_typical_seconds_are_those_of_the_runs(results: Results) -> None:
    for cell, typical in TYPICAL_SECONDS.items():
        seconds = [run.seconds for run in results.of(*cell)]
        assert round(float(np.percentile(seconds, 25)), 1) == typical, cell


def test_a_run_is_done_again_with_the_same_numbers(results: Results) -> None:
    """To the last bit on the same kind of machine; on others rounding may take training another way, but not far."""
    key = next(key for key in paper_plan(("cora",), ("gmnn",), 1, 1, 1).runs())
    again = Runner(Sources(), 1, RECIPES)(key)
    (before,) = (run for run in results.runs if run.key == key)
    for name, prediction in again.predictions.items():
        for view in VIEWS:
            assert prediction[view].count == before.predictions[name][view].count
            assert prediction[view].accuracy == pytest.approx(before.predictions[name][view].accuracy, abs=0.05)
            assert prediction[view].ece == pytest.approx(before.predictions[name][view].ece, abs=0.05)
