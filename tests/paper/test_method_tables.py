"""Tables of all methods and the gains of structured calibration, compared with loops over fake runs."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, pstdev, stdev

import numpy as np
import pytest

from edgewise.paper.gains import Gain, aims_line, gain, gain_table
from edgewise.paper.method_tables import (
    METHOD_COLUMNS,
    meanings_table,
    method_rows,
    method_table,
    method_tables,
    overview_table,
    overview_tables,
)
from edgewise.paper.model_differences import PairedDifference, paired_difference
from edgewise.paper.page import page_data, results_page
from edgewise.paper.readings import MODELS
from edgewise.paper.report import file_tables, report_text
from edgewise.paper.results import Results
from edgewise.paper.score_rows import METHOD_SCORES
from edgewise.paper.text_tables import table_latex, table_markdown
from edgewise.sweep.runs import Run
from helpers.fake_results import PREDICTIONS_OF, fake_results, fake_run

CALIBRATORS = ("temperature", "vector", "ensemble", "structured")


@pytest.fixture(scope="module")
def results() -> Results:
    """Runs of the paper's models on three graphs, one of which is not in the paper and has one split."""
    of_two = fake_results(("cora", "pubmed"), ("gcn", "gat", "gmnn"), calibrators=CALIBRATORS)
    of_one = fake_results(("squirrel",), ("gcn", "sage"), splits=1, calibrators=CALIBRATORS)
    return Results([*of_two.runs, *of_one.runs], [*of_two.tasks, *of_one.tasks])


def with_scores(run: Run, scores: Mapping[str, Mapping[tuple[str, str], float]]) -> Run:
    """Replace scores of a run, given by prediction, then by view and metric."""
    predictions = dict(run.predictions)
    for name, of_prediction in scores.items():
        for (view, metric), value in of_prediction.items():
            views = predictions[name]
            predictions[name] = {**views, view: replace(views[view], **{metric: value})}
    return replace(run, predictions=predictions)


# --- tables of methods ---


def test_table_of_a_graph_has_the_mean_of_each_score_of_each_prediction(results: Results) -> None:
    table = method_table(method_rows(results, "cora"))
    names = [(model, name) for model in ("gcn", "gat") for name in ("product", *CALIBRATORS)]
    names += [("gmnn", name) for name in PREDICTIONS_OF["gmnn"]]
    assert [(row.group, row.label) for row in table.rows] == names
    assert table.columns == METHOD_COLUMNS
    for row in table.rows:
        runs = results.of("cora", row.group)
        assert row.cells[-1].text == str(len(runs)) == "6"
        for cell, (view, metric) in zip(row.cells[:-1], METHOD_SCORES.values(), strict=True):
            values = [getattr(run.predictions[row.label][view], metric) for run in runs]
            factor, digits = (100, 2) if metric in ("accuracy", "ece") else (1, 3)
            assert cell.text == f"{factor * fmean(values):.{digits}f} ± {factor * pstdev(values):.{digits}f}"


def test_marks_match_a_loop_over_paired_runs(results: Results) -> None:
    rows = method_rows(results, "pubmed")
    marks = set()
    for index, (view, metric) in enumerate(METHOD_SCORES.values()):
        values = [[run.predictions[row.name][view][metric] for run in results.of("pubmed", row.model)] for row in rows]
        sign = -1 if metric == "accuracy" else 1
        best = min(values, key=lambda of_row: sign * fmean(of_row))
        digits = 4 if metric in ("accuracy", "ece") else 3
        for row, of_row in zip(rows, values, strict=True):
            score = row.scores[index]
            is_best = round(fmean(of_row), digits) == round(fmean(best), digits)
            differences = [one - other for one, other in zip(of_row, best, strict=True)]
            is_near = abs(fmean(differences)) <= 2 * np.std(differences, ddof=1) / math.sqrt(len(differences))
            assert (score.is_best, score.is_near_best) == (is_best, is_near and not is_best)
            marks.add((score.is_best, score.is_near_best))
    assert len(marks) == 3  # best, near and neither


def test_mark_is_printed_after_the_score() -> None:
    nll = {"product": (1.0, 2.0, 3.0), "temperature": (1.1, 1.9, 3.1), "vector": (1.5, 2.5, 3.6)}
    runs = [
        with_scores(
            fake_run("cora", "gcn", fold=fold, calibrators=("temperature", "vector")),
            {name: {("edgewise", "nll"): values[fold]} for name, values in nll.items()},
        )
        for fold in range(3)
    ]
    column = METHOD_COLUMNS.index("edge NLL")
    table = method_table(method_rows(Results(runs), "cora"))
    # The differences from the best are 0.1, −0.1 and 0.1 with standard error 0.067, and 0.5, 0.5 and 0.6 with 0.033.
    lines = [row.cells[column].line for row in table.rows]
    assert lines == ["2.000 ± 0.816", "2.033 ± 0.822 ≈", "2.533 ± 0.858"]
    assert [row.cells[column].is_bold for row in table.rows] == [True, False, False]
    assert "| **2.000 ± 0.816** |" in table_markdown(table) and "| 2.033 ± 0.822 ≈ |" in table_markdown(table)
    assert table_latex(table).isascii()
    assert '<span class="ours">2.033 ± 0.822 ≈</span>' in results_page(Results(runs))


def test_overview_has_a_column_per_graph_and_dashes_for_missing_methods(results: Results) -> None:
    rows = {dataset: method_rows(results, dataset) for dataset in results.datasets}
    assert list(rows) == ["cora", "pubmed", "squirrel"]
    table = overview_table(rows, "same label ECE")
    assert table.columns == ["Cora", "Pubmed", "Squirrel"]
    cells = {(row.group, row.label): row.cells for row in table.rows}
    assert list(dict.fromkeys(model for model, _ in cells)) == ["gcn", "gat", "gmnn", "sage"]
    for (model, name), of_row in cells.items():
        for dataset, cell in zip(rows, of_row, strict=True):
            values = [run.predictions[name]["same_label"].ece for run in results.of(dataset, model)]
            assert cell.line.removesuffix(" ≈") == (f"{100 * fmean(values):.2f}" if values else "–")
    for column in zip(*cells.values(), strict=True):
        best = min(cell.value for cell in column if not math.isnan(cell.value))
        assert {cell.text for cell in column if cell.is_bold} == {f"{100 * best:.2f}"}


def test_tables_of_methods_come_first_if_a_graph_is_not_in_the_paper(results: Results) -> None:
    titles = [table.title for table in file_tables(results)]
    assert titles[:6] == [
        *("Edge NLL of all methods", "Same label ECE of all methods, percent"),
        *("All methods on Cora", "All methods on Pubmed", "All methods on Squirrel", "Names of predictions"),
    ]
    of_paper = [table.title for table in file_tables(fake_results(("cora",)))]
    assert of_paper[0] == "Datasets" and of_paper[-2:] == ["All methods on Cora", "Names of predictions"]
    assert method_tables(Results([])) == []
    assert "All methods" not in report_text(results)


def test_names_are_explained(results: Results) -> None:
    names = [row.label for row in meanings_table(results).rows]
    assert names == ["product", "averaged_logits", "mixture_product", "mixture", *CALIBRATORS]


def test_method_without_a_score_has_a_dash_and_no_mark() -> None:
    found = fake_results(("pubmed",), ("gat", "gcn"))
    empty = [
        with_scores(run, {"product": {("edgewise", metric): math.nan for metric in ("nll", "ece", "brier")}})
        for run in found.of("pubmed", "gat")
    ]
    rows = method_table(method_rows(Results([*empty, *found.of("pubmed", "gcn")]), "pubmed")).rows
    column = METHOD_COLUMNS.index("edge NLL")
    assert {row.group: row.cells[column].is_bold for row in rows} == {"gcn": True, "gat": False}
    assert next(row.cells[column].line for row in rows if row.group == "gat") == "– (nothing to score)"


def test_page_has_every_method_and_the_overviews(results: Results) -> None:
    page = results_page(results)
    assert page.count('id="table-overview-') == 2
    assert page.index('id="predictions"') < page.index('id="diagrams"')
    assert page_data(results)["reading"] == "as_defined" and page_data(results)["dataset"] == "all"
    alone = fake_results(("cora",))
    page = results_page(alone)
    assert "table-overview" not in page and page.index('id="predictions"') > page.index('id="diagrams"')
    assert page_data(alone)["reading"] == "as_published"
    many = fake_results(("cora", "texas", "actor", "squirrel", "cornell"), ("gcn",), splits=1)
    assert page_data(many)["dataset"] == "cora"


# --- paired differences ---


def test_paired_difference_matches_a_loop(results: Results) -> None:
    a, b = results.of("cora", "gcn"), results.of("cora", "gat")
    differences = []
    for one in a:
        for other in b[1:]:
            if (one.key.split, one.key.fold, one.key.init) == (other.key.split, other.key.fold, other.key.init):
                scores = [
                    run.predictions[name]["edgewise"].nll for run, name in ((one, "product"), (other, "temperature"))
                ]
                differences.append(scores[1] - scores[0])
    found = paired_difference(a, b[:0:-1], ("product", "temperature"), "edgewise", "nll")
    assert found.runs == len(differences) == 5
    assert found.mean == pytest.approx(fmean(differences))
    assert found.error == pytest.approx(stdev(differences) / math.sqrt(5))


@pytest.mark.parametrize(("value", "mean", "runs"), [(math.nan, 0.0, 2), (math.inf, math.inf, 3)])
def test_paired_difference_of_scores_that_are_not_finite(value: float, mean: float, runs: int) -> None:
    a = [with_scores(fake_run("cora", "gcn", fold=fold), {"product": {("edgewise", "nll"): 1.0}}) for fold in range(3)]
    b = [with_scores(a[0], {"product": {("edgewise", "nll"): value}}), *a[1:]]
    found = paired_difference(a, b, ("product", "product"), "edgewise", "nll")
    assert (found.mean, found.runs) == (mean, runs)
    assert math.isnan(found.error) == math.isinf(mean)
    one = paired_difference(a[1:2], b, ("product", "product"), "edgewise", "nll")
    assert (one.mean, one.runs) == (0.0, 1) and math.isnan(one.error)


# --- gains ---


def runs_with_gains() -> Results:
    """Return three runs in which vector scaling has the lowest edge NLL of those with product joints."""
    nll = {"product": 1.3, "temperature": 1.1, "vector": 1.0, "ensemble": 1.2}
    structured, ece, accuracy = (0.7, 0.9, 0.8), (0.02, 0.03, 0.04), (0.8, 0.8, 0.81)
    runs = []
    for fold in range(3):
        scores = {name: {("edgewise", "nll"): value} for name, value in nll.items()}
        scores["product"]["nodewise", "accuracy"] = 0.8
        scores["temperature"]["same_label", "ece"] = 0.05
        scores["structured"] = {
            ("edgewise", "nll"): structured[fold],
            ("same_label", "ece"): ece[fold],
            ("nodewise", "accuracy"): accuracy[fold],
        }
        runs.append(with_scores(fake_run("cora", "gcn", fold=fold, calibrators=CALIBRATORS), scores))
    return Results(runs)


def test_gain_is_compared_with_the_best_product_joints() -> None:
    found = gain(runs_with_gains(), "cora")
    assert found.rival == "vector"
    assert found.edge_nll.mean == pytest.approx(-0.2) and found.edge_nll.runs == 3
    assert found.edge_nll.error == pytest.approx(stdev([-0.3, -0.1, -0.2]) / math.sqrt(3))
    assert found.same_label_ece.mean == pytest.approx(-0.02)
    assert found.node_accuracy.mean == pytest.approx(0.01 / 3)


def test_gain_table_has_the_numbers_and_their_standard_errors() -> None:
    (row,) = gain_table(runs_with_gains()).rows
    assert (row.group, row.label) == ("cora", "gcn")
    assert [cell.text for cell in row.cells] == [
        *("vector", "−0.2000 ± 0.0577", "−2.00 ± 0.58", "+0.33 ± 0.33", "3", "missed: accuracy"),
    ]


def difference(mean: float, error: float = 0.0) -> PairedDifference:
    return PairedDifference(mean, error, 3)


@pytest.mark.parametrize(
    ("edge_nll", "same_label_ece", "node_accuracy", "missed"),
    [
        (difference(-0.1, 0.01), difference(0.01, 0.1), difference(0.0), []),
        (difference(0.0099, 0.001), difference(-0.1), difference(0.0), []),
        (difference(0.019, 0.01), difference(0.0), difference(0.0), []),  # within two standard errors
        (difference(0.0101, 0.001), difference(0.0), difference(0.0), ["NLL"]),
        (difference(0.021, 0.01), difference(0.011, 0.1), difference(0.0), ["NLL", "ECE"]),
        (difference(0.0), difference(0.0), difference(0.0, 0.001), ["accuracy"]),  # up in one run, down in another
        (difference(math.nan, math.nan), difference(math.nan), difference(0.0), ["NLL", "ECE"]),
    ],
)
def test_aims_are_missed_beyond_their_limits(
    edge_nll: PairedDifference, same_label_ece: PairedDifference, node_accuracy: PairedDifference, missed: list[str]
) -> None:
    assert Gain("vector", edge_nll, same_label_ece, node_accuracy).missed == missed


def test_a_single_run_has_no_verdict() -> None:
    found = Results(runs_with_gains().runs[:1])
    assert gain_table(found).rows[0].cells[-1].text == "–" and aims_line(found) == ""


def test_aims_are_counted() -> None:
    found = runs_with_gains()
    assert aims_line(found) == (
        "Structured calibration meets its aims for 0 of 1 pair of dataset and model; lowest edge NLL: 1."
    )
    assert aims_line(fake_results(("cora",), MODELS)) == ""


def test_gain_uses_only_runs_with_the_method() -> None:
    found = runs_with_gains()
    extra = with_scores(
        fake_run("cora", "gcn", split=1, calibrators=CALIBRATORS[:3]), {"product": {("edgewise", "nll"): -100.0}}
    )
    more = Results([*found.runs, extra])
    assert gain(more, "cora") == gain(found, "cora")
    assert gain(more, "cora", "gat") is None and gain(more, "pubmed") is None
    assert gain(fake_results(("cora",), MODELS), "cora") is None
    assert gain(found, "cora", method="vector").rival == "temperature"


def test_overview_states_few_runs() -> None:
    runs = [*fake_results(("cora", "citeseer"), ("gcn", "gat", "gmnn"), splits=2).runs]
    found = Results([run for run in runs if run.key.cell != ("cora", "gat") or (run.key.split, run.key.fold) == (0, 0)])
    rows = {dataset: method_rows(found, dataset) for dataset in found.datasets}
    for table in overview_tables(rows):
        remarks = {row.group: [cell.remark for cell in row.cells] for row in table.rows}
        assert remarks == {"gcn": ["", ""], "gat": ["1 run", ""], "gmnn": ["", ""]}
