"""Numbers of docs/benchmark.md, docs/calibration.md, docs/choosing.md and the README are those of the stored runs."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from edgewise.paper.recipes import RECIPES
from edgewise.paper.report import write_tables
from edgewise.paper.results import Results
from edgewise.sweep.own_models import read_own_models
from edgewise.sweep.plan import SOURCE_ENTRY, calibrators_of, hyperparameters
from helpers.scripts import load_script

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
OWN = read_own_models([str(HOME / "examples" / "graph_sage.py") + ":GraphSAGE"])
WITHOUT_GRAPHSAGE = ("cs", "physics")
NEW_MODELS = ("deepensemble", "mcdropout", "spn")  # 5 runs on some graphs
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


def test_every_run_is_stored_with_the_current_options(results: Results, script: ModuleType) -> None:
    """Hyperparameters are part of the keys: after a change of a default, the runs have to be repeated."""
    models = {source.model for source in script.METHODS.values()}
    assert set(results.models) == models and set(results.datasets) == set(script.GRAPHS)
    (own,) = OWN.values()
    recipes = {**RECIPES, own.name: own}
    for dataset in script.GRAPHS:
        for model in models:
            runs = results.of(dataset, model)
            if model == own.name and dataset in WITHOUT_GRAPHSAGE:
                assert not runs
                continue
            positions = {(run.key.split, run.key.fold, run.key.init) for run in runs}
            all_folds = {(split, fold, 0) for split in range(5) for fold in range(3)}
            first_folds = [(split, 0, 0) for split in range(5)]
            if dataset in LARGE:
                splits = 5 if model == "gcn" else len(positions)
                assert splits >= 2 and positions == set(first_folds[:splits]), (dataset, model)
            else:
                assert positions in (all_folds, set(first_folds)), (dataset, model)
                assert positions == all_folds or model in NEW_MODELS
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


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_page_has_no_placeholder(page: Path) -> None:
    assert not re.search(r"\{[A-Z_]+\}|TODO|TBD", page.read_text(encoding="utf-8"))
