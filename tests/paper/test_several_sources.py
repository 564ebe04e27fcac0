"""Merging of results from several sources."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgewise.cli import app
from edgewise.paper.page import results_page
from edgewise.paper.report import time_line
from edgewise.paper.results import Results, merge, read_sources
from edgewise.sweep.plan import CALIBRATORS_ENTRY, hyperparameters
from edgewise.sweep.run_table import write_run_table
from edgewise.sweep.runs import RunKey
from edgewise.sweep.store import Store
from helpers.fake_results import fake_results, fake_run

CALIBRATED = ("temperature", "structured")


@pytest.fixture
def paper() -> Results:
    return fake_results(("cora",), splits=2)


@pytest.fixture
def calibrated() -> Results:
    found = fake_results(("cora",), ("gcn", "jointgcn"), splits=1, calibrators=CALIBRATED)
    (command,) = found.commands
    return replace(found, commands=[replace(command, started="2026-01-01T00:00:00+00:00", sources="calibrators")])


def prediction_names(results: Results) -> dict[str, list[str]]:
    return {str(run.key): list(run.predictions) for run in results.runs}


def test_calibrators_entry_is_in_the_hyperparameters() -> None:
    assert CALIBRATORS_ENTRY in json.loads(hyperparameters("cora", "gcn", {}, ("temperature",)))[-1]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_run_in_both_sources_has_the_predictions_of_both(
    paper: Results, calibrated: Results, is_reversed: bool
) -> None:
    sources = {"paper": paper, "calibrated": calibrated}
    both = merge(dict(reversed(sources.items())) if is_reversed else sources)
    assert {key: set(names) for key, names in prediction_names(both).items()} == {
        key: set(names) for key, names in {**prediction_names(paper), **prediction_names(calibrated)}.items()
    }
    assert len(both.runs) == 4 * 6 + 3 == len({str(run.key) for run in both.runs})
    assert [task.split for task in both.tasks] == [0, 1]
    assert [command.sources for command in both.commands] == ["calibrators", paper.commands[0].sources]


def test_calibrators_of_two_sources_are_merged() -> None:
    one, other = (fake_results(("cora",), ("gcn",), splits=1, calibrators=(name,)) for name in CALIBRATED)
    both = merge({"one": one, "other": other})
    assert all({*CALIBRATED} < set(run.predictions) for run in both.runs)
    assert len(both.runs) == len(one.runs)


def test_merging_a_source_with_itself_changes_nothing(paper: Results) -> None:
    again = merge({"a": paper, "b": paper})
    assert repr([*again.runs]) == repr(sorted(paper.runs, key=lambda run: run.key))
    assert (again.tasks, again.commands) == (paper.tasks, paper.commands)
    assert merge({"a": paper}) is paper


def test_later_state_of_a_command_wins(paper: Results) -> None:
    earlier = replace(paper, commands=[replace(paper.commands[0], runs=3, seconds=1.0)])
    assert merge({"earlier": earlier, "later": paper}).commands == paper.commands


def test_time_includes_runs_executed_twice(paper: Results, calibrated: Results) -> None:
    both = merge({"paper": paper, "calibrated": calibrated})
    assert time_line(both).startswith("30 runs (27 distinct) took ")
    assert "in 2 commands" in time_line(both)
    html = results_page(both)
    assert "2 commands\n<code>edgewise reproduce</code>" in html
    assert html.count("calibrated by temperature: temperature()") == 1
    assert html.count('<span class="line">hidden 64</span>') == 5  # once for each model


def test_failure_is_dropped_if_another_source_has_the_run(paper: Results, calibrated: Results) -> None:
    plain, full = paper.of("cora", "gcn")[0].key, calibrated.of("cora", "gcn")[0].key
    lost, never = paper.of("cora", "gcn")[5].key, RunKey("cora", "gat", "[{}]", 9, 0, 0)
    not_calibrated = replace(full, split=lost.split, fold=lost.fold)
    one = replace(paper, runs=[run for run in paper.runs if run.key != plain], failures={plain: "a", never: "b"})
    other = replace(calibrated, failures={not_calibrated: "c"})
    # The first run is in the other source, calibrated. The last one still lacks its calibrators.
    assert merge({"one": one, "other": other}).failures == {never: "b", not_calibrated: "c"}


def test_different_versions_raise_except_for_python(paper: Results, calibrated: Results) -> None:
    def of_version(name: str) -> Results:
        return replace(calibrated, runs=[replace(r, versions={**r.versions, name: "9"}) for r in calibrated.runs])

    with pytest.raises(ValueError, match=r"paper has runs of torch 2\.13\.0 and new of torch 9"):
        merge({"paper": paper, "new": of_version("torch")})
    assert len(merge({"paper": paper, "new": of_version("python")}).runs) == 27


def test_different_graphs_or_splits_raise(paper: Results, calibrated: Results) -> None:
    others = replace(calibrated, tasks=[replace(task, fingerprint="f" * 16) for task in calibrated.tasks])
    with pytest.raises(ValueError, match=r"cora.* split 0 in new"):
        merge({"paper": paper, "new": others})


def test_different_hyperparameters_raise_except_for_new_calibrators(paper: Results, calibrated: Results) -> None:
    run = fake_run("cora", "gcn", 4)
    wider = replace(run, key=replace(run.key, hyperparameters='[{"hidden": 65}]'))
    with pytest.raises(ValueError, match=r"cora gcn with the same .* in new"):
        merge({"paper": paper, "new": Results([wider])})
    tuned = replace(run, key=replace(run.key, hyperparameters='[{"hidden": 64}, {"calibrators": {"structured": "x"}}]'))
    with pytest.raises(ValueError, match="cora gcn structured"):
        merge({"calibrated": calibrated, "new": Results([tuned])})
    assert len(merge({"paper": paper, "new": Results([tuned])}).runs) == 25


def test_report_command_reads_folders_and_tables(
    paper: Results, calibrated: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.paper.report.write_figures", lambda results, folder: None)  # slow
    folder, table = tmp_path / "store", tmp_path / "runs.parquet"
    one = replace(paper, runs=paper.of("cora", "gcn")[:3], tasks=paper.tasks[:1])
    write_run_table(table, one.runs, one.tasks, one.commands, {})
    with Store.writing(folder) as store:
        store.check_tasks(calibrated.tasks)
        for run in calibrated.of("cora", "gcn"):
            store.add(run)
    assert [len(run.predictions) for run in read_sources([table, folder]).runs] == [3, 3, 3]
    without_to = CliRunner().invoke(app, ["report", str(folder), str(table)])
    assert "--to" in str(without_to.exception) + without_to.output
    to, export = tmp_path / "both", tmp_path / "both.parquet"
    done = CliRunner().invoke(app, ["report", str(folder), str(table), "--to", str(to), "--export", str(export)])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) <= 24
    tables = CliRunner().invoke(app, ["report", str(folder), str(table), "--to", str(to), "--verbose"])
    assert "Calibrators" in tables.output and "Structured calibration compared" in tables.output
    assert {"report.html", "tables.md", "tables.tex", "tables.csv"} == {path.name for path in to.iterdir()}
    assert [len(run.predictions) for run in Results.read(export).runs] == [3, 3, 3]
