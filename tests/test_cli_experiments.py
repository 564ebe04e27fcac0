"""The commands `reproduce` and `report` on a small graph."""

import csv
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from edgewise import workers
from edgewise.calibration import known_calibrators
from edgewise.cli import reproduce as reproduce_module
from edgewise.paper import recipes, report
from edgewise.sweep.run_table import write_run_table
from edgewise.sweep.runs import RunKey
from edgewise.sweep.store import Store
from edgewise.workers import Failure, JobOutcome
from edgewise.workers.outcomes import attempt
from helpers.fake_results import fake_results
from helpers.quick_recipes import QUICK_RECIPES
from helpers.tiny_datasets import write_planetoid
from test_cli import run

FILES = ["report.html", "tables.csv", "tables.md", "tables.tex"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_planetoid(tmp_path_factory.mktemp("data"))


def reproduce(out: Path, tiny: Path, *more: object) -> Result:
    return run("reproduce", "--out", out, "--data-root", tiny, "--datasets", "cora", "--splits", 1, "--inits", 1, *more)


def test_failed_run_is_reported_and_retried_by_the_next_command(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_folds = [0]

    class FailingWorkers:
        """Workers in this process that fail some folds."""

        def __init__(self, count: int):
            self.count = count

        def execute(self, function: object, keys: Sequence[RunKey], *_: object) -> Iterator[JobOutcome]:
            for key in keys:
                fails = key.fold in failing_folds
                yield Failure(key, "Traceback …\nValueError: no luck") if fails else attempt(function, key)

    monkeypatch.setattr(workers, "LocalProcesses", FailingWorkers)
    monkeypatch.setattr(recipes, "RECIPES", QUICK_RECIPES)
    first = reproduce(tmp_path, tiny, "--models", "gcn", "--folds", 2)
    assert first.exit_code == 1, first.output
    assert "2 runs (1 split, 2 folds, 1 init for each cell), 0 done" in first.output
    assert "2/2 cora gcn split 0 fold 1 init 0: nodewise accuracy" in first.output
    assert "published" in first.output
    assert re.search(r"1 run took \d+ s", first.output)
    assert "cora gcn split 0 fold 0 init 0 failed: ValueError: no luck" in first.stderr
    assert "1 run failed" in first.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in FILES) == FILES
    assert "no luck" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "reliability_cora_as_published.pdf").exists()
    with Store.reading(tmp_path) as store:
        assert [key.fold for key in store.finished()] == [1]
        assert [key.fold for key in store.failures()] == [0]

    failing_folds.clear()
    monkeypatch.setattr(reproduce_module, "show_report", lambda source, folder, verbose: None)  # checked above
    again = reproduce(tmp_path, tiny, "--models", "gcn", "gmnn", "--folds", 2)
    assert again.exit_code == 0, again.output
    assert "4 runs (1 split, 2 folds, 1 init for each cell), 1 done" in again.output
    assert "cora gcn split 0 fold 0" in again.output and "cora gcn split 0 fold 1" not in again.output
    with sqlite3.connect(tmp_path / "results.sqlite") as connection:
        rows = connection.execute("SELECT dataset, model, split, fold, init FROM runs ORDER BY 2, 4").fetchall()
        assert rows == [("cora", model, 0, fold, 0) for model in ("gcn", "gmnn") for fold in (0, 1)]
        assert connection.execute("SELECT count(*) FROM failures").fetchone() == (0,)
    connection.close()


def test_dry_run_writes_nothing(tmp_path: Path, tiny: Path) -> None:
    result = reproduce(tmp_path / "out", tiny, "--models", "gcn,gat", "--dry-run")
    assert result.exit_code == 0
    assert "6 runs (1 split, 3 folds, 1 init for each cell), 0 done: about" in result.output
    assert "up to a minute to compile once" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        "--datasets cora citeseer --models gcn gat",
        "--datasets cora,citeseer --models=gcn,gat",
        "--datasets cora, citeseer",
        "--models gcn,gat --datasets=cora citeseer",
        "--datasets cora --models gcn --datasets citeseer --models gat",
    ],
)
def test_several_values_are_separated_by_commas_or_spaces(tmp_path: Path, words: str) -> None:
    models = [] if "--models" in words else ["--models", "GCN, gat"]
    result = run("reproduce", "--out", tmp_path / "out", "--quick", "--dry-run", *words.split(), *models)
    assert [line.split() for line in result.stdout.splitlines()[2:5]] == [
        ["gcn", "gat"],
        ["cora", "0/3", "0/3"],
        ["citeseer", "0/3", "0/3"],
    ]


def test_quick_runs_one_split_and_one_initialization(tmp_path: Path) -> None:
    result = run("reproduce", "--out", tmp_path, "--quick", "--dry-run")
    assert "36 runs (1 split, 3 folds, 1 init for each cell), 0 done" in result.output
    result = run("reproduce", "--out", tmp_path, "--dry-run")
    assert "900 runs (5 splits, 3 folds, 5 inits for each cell), 0 done" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--datasets", "coro"], "such as synthetic-0.3, but got 'coro'."),
        (
            ["--models", "gcn", "mlp"],
            "epfgnn, deepensemble, mcdropout, spn, jointgcn, or FILE.py:NAME, but got 'mlp'.",
        ),
        (["--calibrators", "platt"], f"from {', '.join(known_calibrators())}, or all, but got 'platt'."),
        (["--ray", "local", "--fitted", "x"], "Omit --fitted"),
        (["--folds", 4], "Expected --folds"),
        (["--splits", 0], "Expected --splits"),
        (["--data-root", "nowhere"], "--data-root, but nowhere does not exist"),
        (["--ray", "local", "--workers", 2], "Omit --workers"),
        (["--ray", "here"], "HOST:PORT for --ray"),
        (["--splits-dir", "x"], "Expected --data-root with --splits-dir"),
    ],
)
def test_invalid_options_exit_with_one_line(tmp_path: Path, options: list[object], message: str) -> None:
    result = run("reproduce", "--out", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("edgewise: ") and result.stderr.count("\n") == 1


def test_second_command_in_the_same_folder_is_refused(tmp_path: Path, tiny: Path) -> None:
    with Store.writing(tmp_path):
        result = reproduce(tmp_path, tiny, "--models", "gcn")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "another edgewise reproduce is writing" in result.stderr


def test_report_without_results_names_the_command_that_creates_them(tmp_path: Path) -> None:
    result = run("report", tmp_path)
    assert result.exit_code == 2
    assert f"edgewise reproduce --out {tmp_path}" in result.stderr


def test_report_of_another_programs_file_does_not_mention_out(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as foreign:
        foreign.execute("CREATE TABLE bookmarks (address TEXT)")
    result = run("report", tmp_path)
    assert result.exit_code == 2
    assert "another program's SQLite file" in result.stderr
    assert "--out" not in result.stderr


def test_report_exports_runs_and_reads_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write_figures", lambda results, folder: [])  # drawing takes seconds
    results = fake_results(("cora",), ("gcn",), splits=1)
    source = tmp_path / "runs.parquet"
    write_run_table(source, results.runs, results.tasks, results.commands, {})
    result = run("report", source, "--to", tmp_path / "new" / "folder", "--export", tmp_path / "again.parquet")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "again.parquet").read_bytes() == source.read_bytes()
    with (tmp_path / "new" / "folder" / "tables.csv").open(encoding="utf-8") as file:
        assert {row["dataset"] for row in csv.DictReader(file)} == {"cora"}


def test_report_does_not_overwrite_its_input(tmp_path: Path) -> None:
    results = fake_results(("cora",), ("gcn",), splits=1)
    source = tmp_path / "runs.parquet"
    write_run_table(source, results.runs, results.tasks, results.commands, {})
    result = run("report", source, "--export", source)
    assert result.exit_code == 2 and "named twice" in result.stderr


@pytest.mark.parametrize("name", ["reproduce", "report"])
def test_help_has_examples(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0 and "Examples:" in result.output
