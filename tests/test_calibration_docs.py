"""Numbers of docs/calibration.md, docs/choosing.md and the README are those of the stored runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgewise.paper.findings import verdicts
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import MODELS, READINGS
from edgewise.paper.recipes import RECIPES
from edgewise.paper.report import write_tables
from edgewise.paper.results import Results, read_sources
from edgewise.sweep.plan import calibrators_of, hyperparameters
from helpers.page_numbers import has_numbers

DOCS = Path(__file__).parents[1] / "docs"
PAGE, README = DOCS / "calibration.md", DOCS.parent / "README.md"


class Column(NamedTuple):
    """A score and its format on the pages."""

    view: str
    metric: str
    scale: int
    digits: int

    def mean(self, runs: Sequence[Mapping[str, Any]]) -> float:
        return self.scale * sum(run[self.view][self.metric] for run in runs) / len(runs)

    def text(self, runs: Sequence[Mapping[str, Any]]) -> str:
        return f"{self.mean(runs):.{self.digits}f}"


NODE_ACCURACY, NODE_ECE = Column("nodewise", "accuracy", 100, 1), Column("nodewise", "ece", 100, 1)
EDGE_NLL, EDGE_BRIER = Column("edgewise", "nll", 1, 3), Column("edgewise", "brier", 1, 3)
EDGE_ECE, SAME_LABEL_ECE = Column("edgewise", "ece", 100, 1), Column("same_label", "ece", 100, 1)


@pytest.fixture(scope="module")
def results() -> Results:
    return read_sources([DOCS / "calibration" / "runs.parquet", DOCS / "reproduction" / "own" / "runs.parquet"])


def calibrated_runs(results: Results, dataset: str, model: str, name: str) -> list[Mapping[str, Any]]:
    """Return the predictions with this name on the page, of all runs that were calibrated."""
    both = {"local and structured": "structured", "local, structured": "structured"}
    prediction = {"uncalibrated": "product", **both}.get(name, name.lower())
    runs = results.of(dataset.lower(), model.lower())
    return [run.predictions[prediction] for run in runs if "local" in run.predictions]


def table_rows(page: Path, label: str) -> Iterator[tuple[str, ...]]:
    """Yield the groups of the label and the cells of each table row whose label matches a pattern."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(rf"\| {label} \| ([\d. *|]+) \|", line):
            *groups, cells = match.groups()
            yield *groups, *(cell.strip(" *") for cell in cells.split("|"))


def test_every_run_is_stored_with_the_current_calibrators(results: Results) -> None:
    for dataset in DATASETS:
        for model in ("gcn", "gat"):
            runs = [run for run in results.of(dataset, model) if "structured" in run.predictions]
            assert len(runs) == 75
            (stored,) = {run.key.hyperparameters for run in runs}  # without calibrators that were added later
            assert stored == hyperparameters(dataset, model, RECIPES, tuple(calibrators_of(stored)))


def test_tables_are_those_of_the_runs(results: Results, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    written = (DOCS / "calibration" / "tables.md").read_text(encoding="utf-8")
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == written


@pytest.mark.parametrize(("page", "num_rows"), [(PAGE, 6 * 4), (README, 3 * 3)], ids=["calibration", "README"])
def test_edge_scores_are_means_of_the_runs(results: Results, page: Path, num_rows: int) -> None:
    rows = list(table_rows(page, r"(\w+) (GCN|GAT), (\w+)"))
    assert len(rows) == num_rows
    for dataset, model, name, *cells in rows:
        runs = calibrated_runs(results, dataset, model, name)
        assert cells == [column.text(runs) for column in (EDGE_NLL, EDGE_BRIER, EDGE_ECE, SAME_LABEL_ECE)]


def test_scores_of_all_models_and_datasets_are_means_of_the_runs(results: Results) -> None:
    columns = {"node ECE": NODE_ECE, "edge NLL": EDGE_NLL, "same-label ECE": SAME_LABEL_ECE}
    rows = list(table_rows(DOCS / "choosing.md", r"(node ECE|edge NLL|same-label ECE), ([^|]+)"))
    assert len(rows) == 11
    node_ece = [("node ECE", *row) for row in table_rows(PAGE, r"(\w+|local, structured)") if len(row) == 7]
    assert len(node_ece) == 8
    for score, name, *cells in [*rows, *node_ece]:
        runs = (calibrated_runs(results, dataset, model, name) for dataset in DATASETS for model in ("gcn", "gat"))
        assert cells == [columns[score].text(of_cell) for of_cell in runs], (score, name)


def test_scores_of_joint_gcn_are_means_of_its_runs_and_below_those_of_the_paper(results: Results) -> None:
    columns = (EDGE_NLL, EDGE_BRIER, EDGE_ECE, NODE_ACCURACY)

    def runs_of(dataset: str, model: str, prediction: str) -> list[Mapping[str, Any]]:
        runs = [run.predictions[prediction] for run in results.of(dataset, model) if prediction in run.predictions]
        assert len(runs) >= 75
        return runs

    table = {row[0].lower(): row[1:] for row in table_rows(PAGE, "(Cora|Citeseer|Pubmed)")}
    assert list(table) == list(DATASETS)
    joint, gcn = [], []
    for dataset, cells in table.items():
        runs = runs_of(dataset, "jointgcn", "joint")
        assert list(cells) == [column.text(runs) for column in columns]
        for source in (rows[model] for rows in READINGS.values() for model in MODELS):
            others = runs_of(dataset, *source)
            assert EDGE_NLL.mean(runs) < EDGE_NLL.mean(others), source
            assert EDGE_BRIER.mean(runs) < EDGE_BRIER.mean(others), source
            assert EDGE_ECE.mean(runs) <= EDGE_ECE.mean(others), source
        joint.append(NODE_ACCURACY.text(runs))
        gcn.append(NODE_ACCURACY.text(runs_of(dataset, "gcn", "product")))
    assert has_numbers(PAGE, *joint[:2], f"{joint[2]}%", *gcn[:2], f"{gcn[2]}%")


def test_structured_calibration_misses_only_the_aims_that_the_page_lists(results: Results) -> None:
    missed = {(verdict.dataset, verdict.model): verdict.missed for verdict in verdicts(results)}
    assert missed == {
        ("cora", "gcn"): ["edge ECE"],
        ("cora", "gat"): ["edge ECE"],
        ("citeseer", "gcn"): [],
        ("citeseer", "gat"): [],
        ("pubmed", "gcn"): ["edge ECE"],
        ("pubmed", "gat"): ["edge Brier score", "edge ECE"],
    }


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_page_has_no_placeholder(page: Path) -> None:
    assert not re.search(r"\{[A-Z_]+\}|TODO|TBD", page.read_text(encoding="utf-8"))
