"""Calibrators in tables, sentences and a figure, compared with loops over fake runs."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, pstdev

import matplotlib as mpl
import pytest

from edgewise.paper.readings import CALIBRATORS, PREDICTIONS
from edgewise.sweep.runs import SAME_LABEL, Run
from helpers.fake_results import fake_results, fake_run

mpl.use("Agg")
import matplotlib.pyplot as plt

from edgewise.paper.figures import draw_calibrators, sweep_figures
from edgewise.paper.findings import verdict_summary, verdicts
from edgewise.paper.page import page_data
from edgewise.paper.paper_tables import paper_tables, scores_csv
from edgewise.paper.report import report_text
from edgewise.paper.results import Results
from edgewise.paper.score_rows import calibrated_runs, calibrator_rows, structured_rows
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


# --- structured calibration compared with others ---

SCORES = {"gcn": 1.0, "gat": 1.1, "gmnn": 0.9, "jointgcn": 0.8}  # uncalibrated edge NLL


def with_scores(run: Run, shifts: Mapping[str, float]) -> Run:
    """Set edge NLL, Brier score and ECE to those of the model minus a shift per calibrator, and accuracy to 0.8."""
    base = SCORES[run.key.model]
    predictions = {}
    for name, views in run.predictions.items():
        nll = base - shifts.get(name, 0.0) + 0.01 * run.key.fold
        edgewise = replace(views["edgewise"], nll=nll, brier=nll / 2, ece=nll / 10)
        predictions[name] = {**views, "edgewise": edgewise, "nodewise": replace(views["nodewise"], accuracy=0.8)}
    return replace(run, predictions=predictions)


def with_fixed_scores(results: Results, structured: float) -> Results:
    """Set the scores of Cora runs: temperature scaling lowers the NLL by 0.15, structured calibration as given."""
    shifts = {"temperature": 0.15, "structured": structured}
    return replace(results, runs=[with_scores(run, shifts) for run in results.runs if run.key.dataset == "cora"])


def test_structured_table_has_paper_models_and_calibrated_models(results: Results) -> None:
    rows = printed_rows(structured_rows(with_fixed_scores(results, 0.4)))
    assert [row.label for row in rows] == [
        *("gcn", "gat", "gmnn as published", "gmnn as defined", "jointgcn"),
        *("gcn + temperature", "gat + temperature", "gcn + structured", "gat + structured"),
    ]
    by_name = {row.label: row.cells for row in rows}
    assert by_name["gcn + structured"][0].text == "0.610 ± 0.008" and by_name["gcn + structured"][0].is_bold
    assert by_name["gat + temperature"][2].text == "9.60 ± 0.08"


def test_verdict_with_all_aims_met(results: Results) -> None:
    of_gcn, of_gat = verdicts(with_fixed_scores(results, 0.4))
    assert of_gcn.missed == of_gat.missed == []
    assert str(of_gcn) == (
        "Cora, GCN: all aims are met. Edge NLL 0.6100 is below all 5 others, the lowest GCN + temperature (0.8600); "
        "edge Brier score 0.3050 is below all 5 others, the lowest GCN + temperature (0.4300); "
        "edge ECE 6.100% is not above any of 5 others, the lowest GCN + temperature (8.600%); "
        "node accuracy equals that of GCN in each of 3 runs; "
        "paired by run, its edge NLL is below that of GCN + temperature in 3 of 3 runs."
    )
    assert "all aims are met for 2; each aim: edge NLL 2," in verdict_summary([of_gcn, of_gat])


def test_verdict_lists_missed_aims_with_their_numbers(results: Results) -> None:
    found = with_fixed_scores(results, 0.15)  # equal to temperature scaling
    first = next(run for run in found.runs if run.key.model == "gcn" and run.key.fold == 1)
    structured = first.predictions["structured"]
    other = replace(structured["nodewise"], accuracy=0.7)
    lower = replace(structured["edgewise"], nll=0.859)
    changed = replace(
        first,
        predictions={**first.predictions, "structured": {**structured, "nodewise": other, "edgewise": lower}},
    )
    found = replace(found, runs=[changed if run is first else run for run in found.runs])
    of_gcn, of_gat = verdicts(found)
    assert of_gcn.missed == ["edge Brier score", "node accuracy"]
    assert str(of_gcn) == (
        "Cora, GCN: not met for edge Brier score and node accuracy. "
        "Edge NLL 0.8597 is below all 5 others, the lowest GCN + temperature (0.8600); "
        "edge Brier score 0.4300 is not below GCN + temperature (0.4300); "
        "edge ECE 8.600% is not above any of 5 others, the lowest GCN + temperature (8.600%); "
        "node accuracy differs from that of GCN in 1 of 3 runs, by −10.000 points; "
        "paired by run, its edge NLL is below that of GCN + temperature in 1 of 3 runs."
    )
    assert of_gat.missed == ["edge NLL", "edge Brier score", "edge ECE"]
    assert "GMNN as defined (0.9100), GMNN as published (0.9100)" in str(of_gat)
    assert "all aims are met for 0; each aim: edge NLL 1, edge Brier score 0, edge ECE 1, node accuracy 1." in (
        verdict_summary([of_gcn, of_gat])
    )


def test_structured_table_uses_only_runs_of_structured_calibration(results: Results) -> None:
    """Otherwise a split without calibration would give rows means over different test sets."""
    more = [replace(run, key=replace(run.key, split=1)) for run in results.of("cora", "gmnn")]
    alone = structured_rows(results)
    assert structured_rows(replace(results, runs=[*results.runs, *more])) == alone
    fewer = [run for run in results.runs if run.key.cell != ("cora", "gmnn") or run.key.fold]
    of_cora = [row for row in structured_rows(replace(results, runs=fewer)) if row.dataset == "cora"]
    assert {row.name: row.runs for row in of_cora if row.has_fewer_runs} == {
        "gmnn as published": 2,
        "gmnn as defined": 2,
    }


def test_empty_edge_set_does_not_meet_the_aims(results: Results) -> None:
    def without_edges(run: Run) -> Run:
        nothing = dict.fromkeys(("nll", "brier", "ece"), math.nan)
        views = {n: {**p, "edgewise": replace(p["edgewise"], **nothing)} for n, p in run.predictions.items()}
        return replace(run, predictions=views)

    found = replace(results, runs=[without_edges(run) for run in results.runs if run.key.cell == ("cora", "gcn")])
    (verdict,) = verdicts(found)
    assert verdict.missed[:3] == ["edge NLL", "edge Brier score", "edge ECE"]
    assert "edge ECE: nothing to score" in str(verdict)


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
