"""Calibrators in tables, sentences and a figure, compared with loops over fake runs."""

import csv
import io
import math
from dataclasses import replace
from statistics import fmean, pstdev

import matplotlib as mpl
import pytest

from edgewise.paper.readings import CALIBRATORS, PREDICTIONS
from edgewise.sweep.runs import SAME_LABEL
from helpers.fake_results import fake_results, fake_run

mpl.use("Agg")
import matplotlib.pyplot as plt

from edgewise.paper.figures import draw_calibrators, sweep_figures
from edgewise.paper.page import page_data
from edgewise.paper.paper_tables import paper_tables, scores_csv
from edgewise.paper.report import report_text
from edgewise.paper.results import Results
from edgewise.paper.score_rows import calibrated_runs, calibrator_rows
from edgewise.paper.text_tables import printed_rows, table_latex

SOME = ("temperature", "isotonic", "structured")


@pytest.fixture(scope="module")
def results() -> Results:
    return fake_results(("cora", "citeseer"), ("gcn", "gat", "gmnn", "jointgcn"), splits=1, calibrators=SOME)


def partly(results: Results) -> Results:
    """Add a split whose runs are not calibrated."""
    return replace(results, runs=[*results.runs, *(fake_run("cora", "gcn", 1, fold) for fold in range(3))])


def test_every_calibrator_has_a_description() -> None:
    assert set(CALIBRATORS) <= set(PREDICTIONS)


@pytest.mark.parametrize("is_partly", [False, True])
def test_rows_are_means_over_the_calibrated_runs(results: Results, is_partly: bool) -> None:
    rows = printed_rows(calibrator_rows(partly(results) if is_partly else results))
    names = [(model, name) for model in ("gcn", "gat") for name in ("uncalibrated", *SOME)]
    assert [(row.group, row.model, row.label) for row in rows] == [
        (dataset, *name) for dataset in ("cora", "citeseer") for name in names
    ]
    columns = [("nodewise", "accuracy"), ("nodewise", "ece"), ("nodewise", "nll"), ("edgewise", "ece")]
    columns += [("edgewise", "nll"), ("edgewise", "brier"), (SAME_LABEL, "ece")]
    for row in rows:
        prediction = "product" if row.label == "uncalibrated" else row.label
        runs = [run for run in results.runs if run.key.cell == (row.group, row.model)]
        for cell, (view, metric) in zip(row.cells, columns, strict=True):
            values = [getattr(run.predictions[prediction][view], metric) for run in runs]
            factor, digits = (100, 2) if metric in ("accuracy", "ece") else (1, 3)
            mean, std = factor * fmean(values), factor * pstdev(values)
            assert cell.text == f"{mean:.{digits}f} ± {std:.{digits}f}"
            of_dataset = [other.cells[columns.index((view, metric))] for other in rows if other.group == row.group]
            texts = [float(other.text.split()[0]) for other in of_dataset]
            best = max(texts) if metric == "accuracy" else min(texts)
            assert cell.is_bold == (float(cell.text.split()[0]) == best)


def test_calibrator_with_fewer_runs_has_a_remark(results: Results) -> None:
    first, *others = results.runs
    without = replace(first, predictions={n: p for n, p in first.predictions.items() if n != "isotonic"})
    rows = calibrator_rows(replace(results, runs=[without, *others]))
    short = [row for row in printed_rows(rows) if row.group == "cora" and row.remark]
    assert [(row.model, row.label, row.remark) for row in short] == [("gcn", "isotonic", "2 runs")]


def test_tables_fit_a_terminal_and_latex_is_ascii() -> None:
    calibrated = fake_results(("cora", "pubmed"), calibrators=CALIBRATORS)
    tables = paper_tables(calibrated)
    titles = [table.title for table in tables]
    place = titles.index("Calibrators")
    assert titles[place + 1].startswith("Structured calibration")
    assert all(table_latex(table).isascii() for table in tables[place : place + 2])
    lines = report_text(calibrated).splitlines()[:-1]
    assert max(map(len, lines)) <= 120
    assert lines.index("Cora GAT") > lines.index("Cora GCN") > lines.index("Calibrators")


def test_report_without_calibrators_does_not_mention_them(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    uncalibrated = fake_results(("cora",), ("gcn", "jointgcn"), splits=1)
    assert not any("alibrat" in table.title for table in paper_tables(uncalibrated))
    assert "calibrated" not in scores_csv(uncalibrated)
    monkeypatch.setattr("edgewise.paper.figures.READINGS", {})  # no other figures
    assert [name for name, _ in sweep_figures(uncalibrated)] == []
    assert [name for name, _ in sweep_figures(results)] == ["calibrators"]
    plt.close()
    assert page_data(uncalibrated)["calibrated"] == {} == page_data(uncalibrated)["calibrators"]


def test_csv_has_all_scores_of_calibrators(results: Results) -> None:
    lines = [row for row in csv.DictReader(io.StringIO(scores_csv(results))) if row["reading"] == "calibrated"]
    assert len(lines) == 2 * 2 * (1 + len(SOME)) * 4 * 5
    (line,) = (
        row
        for row in lines
        if (row["dataset"], row["row"], row["metric"], row["view"]) == ("cora", "gcn structured", "nll", "disagree")
    )
    values = [run.predictions["structured"]["disagree"].nll for run in results.of("cora", "gcn")]
    valid = [value for value in values if not math.isnan(value)]
    assert float(line["mean"]) == pytest.approx(fmean(valid)) and int(line["runs"]) == len(valid) == 2


# --- figure ---


def test_figure_has_mean_and_std_of_both_errors(results: Results) -> None:
    figure = draw_calibrators(partly(results))
    panels = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in panels] == ["Cora, GCN", "Citeseer, GCN", "Cora, GAT", "Citeseer, GAT"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["uncalibrated", *SOME]
    for ax, cell in zip(
        panels, [("cora", "gcn"), ("citeseer", "gcn"), ("cora", "gat"), ("citeseer", "gat")], strict=True
    ):
        for bars, view in zip(ax.containers, ("nodewise", "edgewise"), strict=True):
            for place, name in enumerate(("product", *SOME)):
                values = [100 * run.predictions[name][view].ece for run in results.of(*cell)]
                assert bars.lines[0].get_xdata()[place] == pytest.approx(fmean(values))
                (low, _), (high, _) = bars.lines[2][0].get_segments()[place]
                assert (high - low) / 2 == pytest.approx(pstdev(values))
    plt.close(figure)


def test_figure_has_a_gap_for_a_missing_dataset_and_model() -> None:
    runs = [fake_run("cora", "gcn", calibrators=SOME), fake_run("pubmed", "gat", calibrators=SOME[:1])]
    figure = draw_calibrators(Results(runs))
    figure.draw_without_rendering()
    panels = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in panels] == ["Cora, GCN", "Pubmed, GAT"]
    for ax in panels:  # the same lines in all panels
        assert [text.get_text() for text in ax.get_yticklabels()] == ["uncalibrated", *SOME]
    assert len(panels[1].containers[0].lines[0].get_xdata()) == 2
    assert list(calibrated_runs(Results(runs))) == [("cora", "gcn"), ("pubmed", "gat")]
    plt.close(figure)
