"""Datasets without published numbers, in tables, page, figures and progress."""

import csv
import io
import re

import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console

from edgewise.paper.published import PUBLISHED_DATASETS
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED, READINGS, changed_rows
from helpers.fake_results import fake_results

mpl.use("Agg")
import matplotlib.pyplot as plt

from edgewise.paper import results
from edgewise.paper.comparison import compare, tally_line
from edgewise.paper.figures import draw_errors, draw_reliability_grid, sweep_figures
from edgewise.paper.findings import change_rows, describe_changes
from edgewise.paper.formatting import display_name, format_signed
from edgewise.paper.page import page_data, results_page
from edgewise.paper.paper_tables import paper_tables, scores_csv
from edgewise.paper.report import report_text
from edgewise.paper.results import Results
from edgewise.paper.score_rows import score_rows, statistics_rows, statistics_score
from edgewise.paper.text_tables import printed_rows, table_latex, table_text
from edgewise.sweep.progress import Progress, SweepDisplay, plan_text

OTHERS = ("texas", "roman-empire", "synthetic-0.1")


@pytest.fixture(scope="module")
def others() -> Results:
    return fake_results(OTHERS)


@pytest.fixture(scope="module")
def mixed() -> Results:
    return fake_results(("synthetic-0.9", "texas", "cora", "synthetic-0.25"))


def test_datasets_of_the_paper_come_first(mixed: Results) -> None:
    assert mixed.datasets == mixed.described_datasets == ["cora", "texas", "synthetic-0.25", "synthetic-0.9"]


def test_tally_counts_only_published_cells(mixed: Results, others: Results) -> None:
    alone = fake_results(("cora",))
    assert [repr(cell) for cell in compare(mixed)] == [repr(cell) for cell in compare(alone)]
    assert tally_line(mixed) == tally_line(alone)
    assert "of 44 published cells" in tally_line(mixed)  # five rows of eight cells, and four statistics
    assert "Texas, Roman-empire, synthetic-0.1" in tally_line(others)
    assert report_text(others).endswith(f"72 runs: {tally_line(others)}")


def test_tables_have_no_published_line(others: Results) -> None:
    tables = paper_tables(others)
    assert "Published cells more than one standard deviation away" not in [table.title for table in tables]
    for table in tables:
        assert not any("published value" in note for note in table.notes), table.title
        if table.title not in ("Differences between the readings", "Which model is better?"):
            assert not any(cell.subtext for row in table.rows for cell in row.cells), table.title
        assert table_latex(table).isascii()


def test_cells_are_means_over_runs(others: Results) -> None:
    ece = next(table for table in paper_tables(others) if table.title.startswith("ECE, as defined"))
    row = next(row for row in ece.rows if (row.group, row.label) == ("roman-empire", "gmnn"))
    values = [100 * run.predictions["mixture"]["disagree"].ece for run in others.of("roman-empire", "gmnn")]
    assert row.cells[3].text == f"{np.mean(values):.2f} ± {np.std(values):.2f}"
    texas = [row for row in ece.rows if row.group == "texas"]
    assert {row.cells[2].line for row in texas} == {"– (nothing to score)"}  # no edge agrees


def test_mixed_table_has_a_published_line_only_for_the_paper(mixed: Results) -> None:
    accuracy = next(table for table in paper_tables(mixed) if table.title.startswith("Accuracy, as published"))
    second = {row.group for row in accuracy.rows if any(cell.subtext for cell in row.cells)}
    assert second == {"cora"}
    assert "published value" in accuracy.notes[0]


def test_statistics_are_over_splits_with_edges(others: Results) -> None:
    homophily = statistics_score(others, "texas", "homophily")
    assert (homophily.mean, homophily.std) == (0, 0)  # of the second split, as the first has no edge
    assert statistics_score(others, "texas", "k_edgewise").mean == pytest.approx(0.45)
    row = next(row for row in statistics_rows(others) if row.dataset == "texas")
    assert [score.published for score in row.scores] == [None] * 8
    without_edges = fake_results(("texas",), ("gcn",), splits=1)
    cell = printed_rows(statistics_rows(without_edges))[0].cells[4]
    assert (cell.text, cell.remark) == ("–", "nothing to score")


def test_many_datasets_are_split_into_tables_that_fit() -> None:
    datasets = [*PUBLISHED_DATASETS, *OTHERS, "actor", "questions", "synthetic-0.9"]
    tables = [table for table in paper_tables(fake_results(datasets, ("gcn",))) if table.title.startswith("Datasets")]
    assert [table.title for table in tables] == ["Datasets", "Datasets, continued", "Datasets, continued"]
    columns = [name for table in tables for name in table.columns]
    named = [*PUBLISHED_DATASETS, "texas", "actor", "roman-empire", "questions"]
    assert columns == [*map(display_name, named), *sorted(columns[7:])]
    assert all(len(line) <= 120 for table in tables for line in table_text(table).splitlines())
    assert "published value" in tables[0].notes[0] and "published value" not in tables[1].notes[0]


def test_csv_has_scores_and_statistics_of_all_datasets(mixed: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(scores_csv(mixed))))
    for row in rows:
        assert bool(row["published_mean"]) == (row["dataset"] == "cora" and row["metric"] not in ("nll", "brier"))
        assert not re.search("nan", row["mean"])
    texas = {row["metric"]: row for row in rows if (row["dataset"], row["row"]) == ("texas", "statistics")}
    assert (texas["homophily"]["mean"], texas["homophily"]["runs"]) == ("0.0", "1")
    assert texas["k_disagree"]["runs"] == "2"


def test_changes_include_unpublished_datasets(others: Results) -> None:
    assert {row.group for row in change_rows(others)} == set(OTHERS)
    assert all(one.summary and "nan" not in one.summary for one in describe_changes(others))
    assert format_signed(float("nan")) == "–"


def test_display_names() -> None:
    assert [display_name(name) for name in ("texas", "roman-empire", "synthetic-0.1")] == [
        "Texas",
        "Roman-empire",
        "synthetic-0.1",
    ]


# --- page ---


def test_page_without_paper_datasets_is_not_a_partial_sweep(others: Results, mixed: Results) -> None:
    html = results_page(others)
    assert 'id="partial"' not in html
    second_lines = re.findall(r'<span class="theirs">([^<]*)', html)
    assert all(line.startswith("corrected") for line in second_lines)  # intervals, not published values
    assert "Texas, Roman-empire and synthetic-0.1" in html and "Hsu, Shen and Cremers (2022) published" not in html
    assert "4 models on 3 graphs" in html
    assert "2,000 nodes in 4 classes" in html and "Chameleon" not in html
    part = results_page(mixed)
    assert 'id="partial"' not in part and "published scores on Cora, which" in part
    alone = results_page(fake_results(("cora",)))
    assert "24 of the 900 runs" in alone and "8 of\n12 pairs" in alone and "models on" not in alone
    assert list(page_data(mixed)["datasets"]) == mixed.datasets


# --- figures ---


def test_reliability_grid_without_agreeing_edges() -> None:
    figure = draw_reliability_grid(fake_results(("texas",), ("gcn", "gmnn"), splits=1), AS_PUBLISHED, "texas")
    figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in texts if text in ("GCN", "GMNN")] == ["GCN", "GMNN"]
    assert texts.count("no edges") == 2
    plt.close(figure)


def test_error_figure_wraps_many_datasets() -> None:
    datasets = ["cora", "texas", "actor", "squirrel", "roman-empire", "synthetic-0.1"]
    found = fake_results(datasets, ("gcn", "gat"), splits=1)
    figure = draw_errors(found, AS_DEFINED, "agree_against_disagree_ece")
    figure.draw_without_rendering()
    assert [ax.get_title(loc="left") for ax in figure.axes] == [*map(display_name, datasets)]
    assert [
        ax.get_title(loc="left") for ax in figure.axes if "nothing to score" in [t.get_text() for t in ax.texts]
    ] == ["Texas"]
    rows = [round(ax.get_position().y0, 3) for ax in figure.axes]
    assert len(set(rows)) == 2 and rows[:4] == rows[:1] * 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GCN", "GAT"]
    plt.close(figure)


def test_figures_as_published_have_only_the_graphs_of_the_paper() -> None:
    found = fake_results(("cora", "texas"), ("gcn",), splits=1)
    names = []
    for name, figure in sweep_figures(found):
        names.append(name)
        if name.startswith("edge"):
            graphs = ["Cora"] if name.endswith("published") else ["Cora", "Texas"]
            assert [ax.get_title(loc="left") for ax in figure.axes] == graphs
        plt.close(figure)
    of_graphs = {name for name in names if name.startswith("reliability")}
    assert of_graphs == {f"reliability_{name}" for name in ("cora_as_published", "cora_as_defined", "texas_as_defined")}


def test_legend_names_models_without_a_style() -> None:
    figure = draw_errors(fake_results(("cora",), ("gcn", "mlp"), splits=1), AS_DEFINED, "edge_against_node_ece")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GCN", "MLP"]
    plt.close(figure)


def test_legend_has_models_of_all_datasets() -> None:
    found = Results([*fake_results(("cora",), ("gat",)).runs, *fake_results(("texas",), ("gcn",)).runs])
    figure = draw_errors(found, AS_DEFINED, "edge_against_node_ece")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GCN", "GAT"]
    plt.close(figure)


# --- a running sweep ---


def test_progress_of_unpublished_datasets(others: Results) -> None:
    runs = list(others.runs)
    progress = Progress([run.key for run in runs], runs[:1], workers=2)
    first, _, header, *lines = plan_text(progress).splitlines()
    assert "72 runs" in first and "very roughly" in first
    assert header.split() == ["gcn", "gat", "gmnn", "epfgnn"]
    assert [line.split() for line in lines] == [
        ["texas", "1/6", "0/6", "0/6", "0/6"],
        ["roman-empire", "0/6", "0/6", "0/6", "0/6"],
        ["synthetic-0.1", "0/6", "0/6", "0/6", "0/6"],
    ]
    assert len({len(line) for line in lines}) == 1
    paper = [run.key for run in fake_results(("cora",)).runs]
    assert ": about " in plan_text(Progress(paper, [], workers=1))
    console = Console(file=io.StringIO(), width=120)
    console.print(SweepDisplay(progress, console).renderable())
    assert "roman-empire epfgnn" in console.file.getvalue()


# --- a row in one reading only ---


def test_row_in_one_reading_only(monkeypatch: pytest.MonkeyPatch) -> None:
    source = READINGS[AS_DEFINED]["gcn"]
    readings = {
        AS_PUBLISHED: {row: of_row for row, of_row in READINGS[AS_PUBLISHED].items() if row != "gat"},
        AS_DEFINED: {**READINGS[AS_DEFINED], "jointgcn": source},
    }
    monkeypatch.setattr(results, "READINGS", readings)
    found = fake_results(("cora",), ("gcn", "gat"))
    assert found.views(AS_PUBLISHED, "cora", "gat", "nodewise") == []
    assert [row.name for row in score_rows(found, AS_PUBLISHED, "ece")] == ["gcn"]
    rows = score_rows(found, AS_DEFINED, "ece")
    assert [(row.name, bool(row.scores[0].published)) for row in rows] == [
        ("gcn", True),
        ("gat", True),
        ("jointgcn", False),
    ]
    assert "jointgcn" not in changed_rows() and "gat" not in changed_rows()
