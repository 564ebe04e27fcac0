"""docs/calibration.md is made of its runs."""

import re
from pathlib import Path

import pytest

from edgewise.paper.findings import verdicts
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import MODELS, READINGS
from edgewise.paper.recipes import RECIPES
from edgewise.paper.report import write_tables
from edgewise.paper.results import Results, read_sources
from edgewise.sweep.plan import calibrators_of, hyperparameters

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "calibration.md").read_text(encoding="utf-8")
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results() -> Results:
    return read_sources([DOCS / "calibration" / "runs.parquet", DOCS / "reproduction" / "runs.parquet"])


def test_every_run_is_there_with_calibrators_as_this_version_has_them(results: Results) -> None:
    for dataset in DATASETS:
        for model in ("gcn", "gat"):
            runs = [run for run in results.of(dataset, model) if "structured" in run.predictions]
            assert len(runs) == 75
            (stored,) = {run.key.hyperparameters for run in runs}  # without calibrators that are newer than the runs
            assert stored == hyperparameters(model, RECIPES, tuple(calibrators_of(stored)))


def test_tables_are_those_of_the_runs(results: Results, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    written = (DOCS / "calibration" / "tables.md").read_text(encoding="utf-8")
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == written


@pytest.mark.parametrize(("text", "number"), [(TEXT, 6 * 4), (README, 3 * 3)], ids=["docs", "README"])
def test_the_text_has_the_means_of_the_runs(results: Results, text: str, number: int) -> None:
    rows = re.findall(r"^\| (\w+) (GCN|GAT), (\w+) \| ([\d. *|]+) \|$", text, re.MULTILINE)
    assert len(rows) == number
    for dataset, model, name, cells in rows:
        prediction = "product" if name == "uncalibrated" else name
        runs = [run.predictions for run in results.of(dataset.lower(), model.lower()) if "local" in run.predictions]
        asked = [("edgewise", "nll", 1), ("edgewise", "brier", 1), ("edgewise", "ece", 100), ("same_label", "ece", 100)]
        means = [
            scale * sum(run[prediction][view][metric] for run in runs) / len(runs) for view, metric, scale in asked
        ]
        shown = [cell.strip(" *") for cell in cells.split("|")]
        assert shown == [f"{mean:.{digits}f}" for mean, digits in zip(means, (3, 3, 1, 1), strict=True)]


def test_the_text_on_joint_gcn_is_what_its_runs_say(results: Results) -> None:
    (section,) = re.findall(r"^## JointGCN\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    asked = [("edgewise", "nll", 1, 3), ("edgewise", "brier", 1, 3), ("edgewise", "ece", 100, 1)]
    asked.append(("nodewise", "accuracy", 100, 1))

    def means(dataset: str, model: str, prediction: str) -> list[float]:
        runs = [run.predictions[prediction] for run in results.of(dataset, model) if prediction in run.predictions]
        assert len(runs) >= 75
        return [scale * sum(run[view][metric] for run in runs) / len(runs) for view, metric, scale, _ in asked]

    table = re.findall(r"^\| (\w+) \| ([\d. |]+) \|$", section, re.MULTILINE)
    assert [dataset.lower() for dataset, _ in table] == list(DATASETS)
    accuracies = []
    for dataset, cells in table:
        ours = means(dataset.lower(), "jointgcn", "joint")
        assert cells.split(" | ") == [f"{mean:.{digits}f}" for mean, (*_, digits) in zip(ours, asked, strict=True)]
        for source in (rows[model] for rows in READINGS.values() for model in MODELS):
            nll, brier, ece, _ = means(dataset.lower(), *source)
            assert ours[0] < nll, source
            assert ours[1] < brier, source
            assert ours[2] <= ece, source
        accuracies.append((f"{ours[3]:.1f}", f"{means(dataset.lower(), 'gcn', 'product')[3]:.1f}"))
    joint, gcn = zip(*accuracies, strict=True)
    claim = "{}, {} and {}% where GCN has {}, {} and {}%"
    assert claim.format(*joint, *gcn) in " ".join(section.split())


def test_the_page_on_choosing_has_the_means_of_the_runs(results: Results) -> None:
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    asked = {"node ECE": ("nodewise", "ece", 100, 1), "edge NLL": ("edgewise", "nll", 1, 3)}
    asked["P(same) ECE"] = ("same_label", "ece", 100, 1)
    rows = re.findall(r"^\| (node ECE|edge NLL|P\(same\) ECE), ([^|]+?) \| ([\d. *|]+) \|$", text, re.MULTILINE)
    assert len(rows) == 11
    for score, name, cells in rows:
        view, metric, scale, digits = asked[score]
        prediction = {"uncalibrated": "product", "local and structured": "structured"}.get(name, name)
        columns = [(dataset, model) for dataset in DATASETS for model in ("gcn", "gat")]
        runs = ([run.predictions for run in results.of(*cell) if "local" in run.predictions] for cell in columns)
        means = (scale * sum(run[prediction][view][metric] for run in cell) / len(cell) for cell in runs)
        assert [cell.strip(" *") for cell in cells.split("|")] == [f"{mean:.{digits}f}" for mean in means], name


def test_the_aims_are_met_where_the_text_says_so(results: Results) -> None:
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
def test_no_page_has_a_gap(page: Path) -> None:
    assert not re.search(r"\{[A-Z_]+\}|TODO|TBD", page.read_text(encoding="utf-8"))
