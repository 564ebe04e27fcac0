"""Tables of the report: text, Markdown, LaTeX and CSV, compared with loops over fake runs."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.paper.comparison import scores_beyond_one_std
from edgewise.paper.findings import BETTER, TOO_FEW, UNCLEAR, WORSE, Change, change, classify_change
from edgewise.paper.formatting import display_name, format_mean_std, format_signed
from edgewise.paper.paper_tables import paper_tables, scores_csv
from edgewise.paper.published import PUBLISHED_SCORES
from edgewise.paper.readings import AS_PUBLISHED, CALIBRATORS, READINGS
from edgewise.paper.report import report_text, summary_text, time_line, write_tables
from edgewise.paper.results import Results
from edgewise.paper.score_rows import reading_score
from edgewise.paper.text_tables import Cell, Row, Table, table_latex, table_markdown, table_text
from edgewise.representation import format_duration
from helpers.fake_results import fake_results

SMALL = Table(
    "A title",
    ("one", "two"),
    [
        Row("here", "a", [Cell("1.0", subtext="0.9", is_bold=True), Cell("20")]),
        Row("there", "b_c", [Cell("3 ± 1"), Cell("50%")]),
    ],
    ["A note."],
)


def test_table_as_text() -> None:
    assert table_text(SMALL, lambda text: f"<{text}>").splitlines() == [
        "<A title>",
        "       one    two",
        "",
        "here",
        "  a    <1.0>    20",
        "       0.9",
        "",
        "there",
        "  b_c  3 ± 1  50%",
        "",
        "A note.",
    ]


def test_table_as_markdown() -> None:
    assert table_markdown(SMALL).splitlines() == [
        "## A title",
        "",
        "|  |  | one | two |",
        "| --- | --- | --- | --- |",
        "| here | a | **1.0**<br>0.9 | 20 |",
        "| there | b_c | 3 ± 1 | 50% |",
        "",
        "A note.",
    ]


def test_table_as_latex() -> None:
    lines = table_latex(SMALL).splitlines()
    assert r"a & \textbf{1.0} & 20 \\" in lines
    assert r" & {\scriptsize 0.9} &  \\" in lines
    assert r"b\_c & 3 $\pm$ 1 & 50\% \\" in lines
    assert r"\caption{A title. A note.}" in lines
    assert lines.count(r"\addlinespace") == 1


def test_latex_rows_have_one_cell_per_column() -> None:
    for table in paper_tables(fake_results()):
        rows = [line for line in table_latex(table).splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(table.columns)}


def test_latex_is_ascii() -> None:
    """Other characters depend on the LaTeX version and its packages."""
    results = fake_results()
    for table in paper_tables(results):
        assert table_latex(table).isascii(), table.title


def test_titles_of_the_tables() -> None:
    titles = [table.title for table in paper_tables(fake_results())]
    assert titles[0] == "Datasets"
    for metric in ("ECE", "Accuracy", "NLL", "Brier score"):
        for reading in ("as published", "as defined"):
            assert sum(title.startswith(f"{metric}, {reading}") for title in titles) == 1
    assert "Differences between the readings" in titles
    assert "Which model is better?" in titles
    assert len(titles) == 12


def test_cells_have_our_score_published_score_and_difference() -> None:
    results = fake_results(("cora",))
    table = paper_tables(results)[1]
    row = next(row for row in table.rows if row.label == "gmnn")
    ours = reading_score(results, "as_published", "cora", "gmnn", "agree", "ece")
    published = PUBLISHED_SCORES["cora"]["gmnn"]["ece"]["agree"]
    difference = format_signed((ours.mean - published.mean) / published.std)
    assert row.cells[2].text == f"{100 * ours.mean:.2f} ± {100 * ours.std:.2f}"
    assert row.cells[2].second_line == f"9.96 ± 2.59  {difference}"


@pytest.mark.parametrize(("place", "better"), [(1, min), (2, max), (3, min), (4, min)])
def test_best_score_of_a_dataset_is_bold(place: int, better: type) -> None:
    table = paper_tables(fake_results(("citeseer", "pubmed")))[place]
    for dataset in ("citeseer", "pubmed"):
        rows = [row for row in table.rows if row.group == dataset]
        for column in range(4):
            means = {row.label: row.cells[column].text.split(" ")[0] for row in rows}
            finite = {label: float(mean) for label, mean in means.items() if mean not in ("–", "∞")}
            bold = {row.label for row in rows if row.cells[column].is_bold}
            assert bold == {label for label, mean in finite.items() if mean == better(finite.values())}


def test_single_row_is_not_bold() -> None:
    table = paper_tables(fake_results(("cora",), ("gcn",)))[1]
    assert not any(cell.is_bold for row in table.rows for cell in row.cells)


def test_empty_set_is_shown_as_a_dash() -> None:
    table = paper_tables(fake_results(("pubmed",)))[1]
    (gat,) = (row for row in table.rows if row.label == "gat")
    assert gat.cells[3].line == "– (nothing to score)"


def test_changes_are_paired_by_run() -> None:
    results = fake_results(("cora",), splits=1)
    found = change(results, "cora", "gmnn", "edgewise", "nll")
    pairs = [
        (run.predictions["averaged_logits"]["edgewise"].nll, run.predictions["mixture"]["edgewise"].nll)
        for run in results.of("cora", "gmnn")
    ]
    assert found is not None
    assert found.better == sum(after < before for before, after in pairs)
    assert found.difference == pytest.approx(sum(after - before for before, after in pairs) / len(pairs))
    assert found.runs == len(pairs) == 3
    accuracy = change(results, "cora", "gmnn", "nodewise", "accuracy")
    rises = [
        run.predictions["mixture"]["nodewise"].accuracy > run.predictions["averaged_logits"]["nodewise"].accuracy
        for run in results.of("cora", "gmnn")
    ]
    assert accuracy is not None and accuracy.better == sum(rises)


def test_changes_by_split_are_means_over_runs() -> None:
    results = fake_results(("cora",), splits=3, folds=2, inits=2)
    found = change(results, "cora", "gmnn", "edgewise", "nll")
    assert found is not None
    by_hand = [
        [
            run.predictions["mixture"]["edgewise"].nll - run.predictions["averaged_logits"]["edgewise"].nll
            for run in results.of("cora", "gmnn")
            if run.key.split == split
        ]
        for split in range(3)
    ]
    assert found.by_split == pytest.approx([sum(of_split) / 4 for of_split in by_hand])


@pytest.mark.parametrize(
    ("by_split", "outcome"),
    [
        ([-0.1, -0.1, -0.1], BETTER),
        ([0.1, 0.1, 0.1], WORSE),
        ([0.0, 0.0, 0.0], UNCLEAR),
        ([-0.1, -0.1], TOO_FEW),
        ([], TOO_FEW),
        # Quantiles of t: 4.303 with 2 degrees of freedom, 2.776 with 4.
        ([0.0, 1.0, 2.0], UNCLEAR),
        ([1 - 0.39, 1.0, 1 + 0.39], WORSE),  # 1 > 4.303 · 0.39 / √3 = 0.969
        ([1 - 0.42, 1.0, 1 + 0.42], UNCLEAR),  # 1 < 4.303 · 0.42 / √3 = 1.043
        ([1 - 0.7, 1 - 0.7, 1.0, 1 + 0.7, 1 + 0.7], WORSE),  # 1 > 2.776 · 0.7 / √5 = 0.869
        ([1 - 0.9, 1 - 0.9, 1.0, 1 + 0.9, 1 + 0.9], UNCLEAR),  # 1 < 2.776 · 0.9 / √5 = 1.117
    ],
)
def test_classify_change_uses_students_t_over_splits(by_split: list[float], outcome: str) -> None:
    found = Change(0.0, 0.0, 0.0, by_split, better=0, runs=len(by_split))
    assert classify_change(found, "nll") == outcome
    opposite = {BETTER: WORSE, WORSE: BETTER}
    assert classify_change(found, "accuracy") == opposite.get(outcome, outcome)


def test_infinite_score_is_worse_than_any_other() -> None:
    results = fake_results(("citeseer",), ("gmnn",), splits=1)
    found = change(results, "citeseer", "gmnn", "edgewise", "nll")
    assert found is not None
    assert found.before == math.inf and math.isfinite(found.after) and math.isfinite(found.difference)
    pairs = [
        (run.predictions["averaged_logits"]["edgewise"].nll, run.predictions["mixture"]["edgewise"].nll)
        for run in results.runs
    ]
    assert found.better == sum(after < before for before, after in pairs) and found.runs == 3
    (row,) = (row for t in paper_tables(results) if t.title.startswith("Differences") for row in t.rows)
    assert row.cells[3].text.startswith("∞ → ")


def test_scores_beyond_one_std_are_sorted_by_distance() -> None:
    distances = [abs(cell.difference or 0.0) for cell in scores_beyond_one_std(fake_results())]
    assert distances and distances == sorted(distances, reverse=True) and min(distances) > 1


def test_csv_has_all_numbers_of_both_readings(tmp_path: Path) -> None:
    results = fake_results(("cora", "pubmed"))
    write_tables(results, tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables.csv").read_text(encoding="utf-8"))))
    # two readings, two datasets, five rows, four metrics, four views; GAT on Pubmed has no disagreeing edge
    assert len(rows) == 2 * (2 * 5 * 4 * 4 - 4) + 2 * 4
    assert sum(bool(row["published_mean"]) for row in rows) == 2 * (2 * 5 * 2 * 4 - 2) + 2 * 4
    first = next(row for row in rows if (row["row"], row["metric"], row["view"]) == ("gat", "brier", "agree"))
    ours = reading_score(results, first["reading"], first["dataset"], "gat", "agree", "brier")
    assert float(first["mean"]) == ours.mean and int(first["runs"]) == ours.runs == 6


@pytest.mark.parametrize(
    ("mean", "std", "metric", "text"),
    [
        (0.12345, 0.01, "ece", "12.35 ± 1.00"),
        (1.2345, 0.01, "nll", "1.234 ± 0.010"),
        (0.12345, math.nan, "ece", "12.35"),
        (math.inf, math.nan, "nll", "∞"),
        (math.nan, math.nan, "ece", "–"),
        (19717.0, math.nan, "nodes", "19,717"),
    ],
)
def test_format_mean_std(mean: float, std: float, metric: str, text: str) -> None:
    assert format_mean_std(mean, std, metric) == text


def test_format_signed() -> None:
    assert [format_signed(x) for x in (0.004, -0.004, 0.006, -1.25)] == ["0.00", "0.00", "+0.01", "−1.25"]


def test_report_text_fits_120_columns() -> None:
    text = report_text(fake_results())
    *lines, last = text.splitlines()
    assert max(map(len, lines)) <= 120
    assert "published cells" in last
    assert all(display_name(row) in text for row in READINGS["as_published"])


@pytest.mark.parametrize(
    ("datasets", "models"),
    [
        (("cora", "citeseer", "pubmed"), ("gcn", "gat", "gmnn", "epfgnn", "jointgcn")),
        (("texas", "actor", "chameleon", "squirrel", "amazon-ratings", "roman-empire"), ("gcn", "gat", "sage")),
        (("cora",), ("gcn",)),
    ],
)
def test_summary_fits_one_screen(datasets: Sequence[str], models: Sequence[str]) -> None:
    results = fake_results(datasets, models, calibrators=CALIBRATORS)
    lines = summary_text(results).splitlines()
    assert len(lines) <= 20  # four more lines tell the time and the files
    assert max(map(len, lines)) <= 100
    for model in models:
        assert any(line.split("   ")[0] == f"  {display_name(model)}" for line in lines)


def test_summary_has_the_largest_differences_and_the_edge_errors() -> None:
    results = fake_results()
    text = summary_text(results)
    score = reading_score(results, AS_PUBLISHED, "cora", "gcn", "edgewise", "ece")
    assert f"{100 * score.mean:.2f} ({100 * score.published.mean:.2f})" in text
    largest, *_ = scores_beyond_one_std(results)
    assert text.splitlines()[-3].endswith(format_signed(largest.difference))
    assert summary_text(Results([])).startswith("There are no runs")


def test_report_without_runs(tmp_path: Path) -> None:
    write_tables(Results([]), tmp_path)
    assert "None of the 132" in report_text(Results([]))
    assert (tmp_path / "tables.csv").read_text(encoding="utf-8") == scores_csv(Results([]))
    assert scores_csv(Results([])).count("\n") == 1


def test_time_line_of_one_and_of_several_commands() -> None:
    results = fake_results(("cora",), ("gcn",))
    (command,) = results.commands
    work = format_duration(sum(run.seconds for run in results.runs))
    assert time_line(results) == f"6 runs took {work}; total computing time {work}."
    parts = [replace(command, runs=4, seconds=100.0), replace(command, runs=2, seconds=31.0)]
    idle = replace(command, runs=0, seconds=0.0)
    again = time_line(replace(results, commands=[*parts, idle]))
    assert again == f"6 runs took 2 min 11 s in 2 commands; total computing time {work}."


def test_models_and_calibrators_outside_the_paper_come_last() -> None:
    results = fake_results(("cora",), ("sage", "gcn", "gmnn"), calibrators=("beta", "temperature"))
    tables = {table.title: table.rows for table in paper_tables(results)}
    assert [row.label for row in tables["NLL, as defined"]] == ["gcn", "gmnn", "sage"]
    names = ["uncalibrated", "temperature", "beta"]
    groups = [(f"Cora {model}", name) for model in ("GCN", "sage") for name in names]
    assert [(row.group, row.label) for row in tables["Calibrators"]] == groups
    rows = list(csv.DictReader(io.StringIO(scores_csv(results))))
    of_sage = next(row for row in rows if (row["row"], row["metric"], row["view"]) == ("sage", "nll", "edgewise"))
    values = [run.predictions["product"]["edgewise"].nll for run in results.of("cora", "sage")]
    assert of_sage["reading"] == "as_defined" and float(of_sage["mean"]) == pytest.approx(sum(values) / 6)
    assert of_sage["published_mean"] == ""
    assert "gcn beta" in {row["row"] for row in rows if row["reading"] == "calibrated"}
