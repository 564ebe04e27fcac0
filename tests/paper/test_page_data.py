"""Data and cells of the HTML page, compared with loops over fake runs."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from edgewise.data.statistics import MeanStd
from edgewise.metrics.sums import VIEWS
from edgewise.paper.comparison import compare
from edgewise.paper.findings import change_rows, describe_changes
from edgewise.paper.formatting import format_signed
from edgewise.paper.page import MAX_CHART_STD, agreement_chart, page_data, pool_bins, source_data, source_key
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import AS_DEFINED, AS_PUBLISHED, MODELS, READINGS, Source
from edgewise.paper.results import Results
from edgewise.paper.score_rows import Score, reading_score, score_rows, statistics_rows
from edgewise.paper.text_tables import Cell, printed_rows, score_cell
from edgewise.sweep.runs import SAME_LABEL, Bins, ViewResult
from helpers.fake_results import fake_results, fake_run


@pytest.fixture(scope="module")
def results() -> Results:
    return fake_results()


def view_result(count: list[int], confidence_sum: list[float], correct_sum: list[int], ece: float) -> ViewResult:
    return ViewResult(sum(count), 0.5, 1.0, 0.5, ece, Bins(count, confidence_sum, correct_sum))


def test_pool_bins_sums_the_bins_of_runs() -> None:
    one = view_result([2, 0, 20], [0.4, 0.0, 18.0], [1, 0, 15], 0.1)
    other = view_result([1, 0, 0], [0.3, 0.0, 0.0], [0, 0, 0], 0.3)
    pooled = pool_bins([one, other])
    assert pooled["count"] == [3, 0, 20]
    assert pooled["confidence"] == [pytest.approx(0.7 / 3, abs=1e-6), None, 0.9]
    assert pooled["accuracy"] == [pytest.approx(1 / 3, abs=1e-6), None, 0.75]
    assert pooled["few"] == [True, True, False]  # fewer than 10 per run
    # The mean over runs, not the ECE of the summed bins.
    assert pooled["ece"] == {"mean": 0.2, "std": 0.1, "runs": 2}
    assert pooled["runs"] == 2


def test_empty_view_has_no_ece() -> None:
    pooled = pool_bins([view_result([0, 0], [0.0, 0.0], [0, 0], math.nan)])
    assert pooled["ece"] is None
    assert pooled["count"] == [0, 0]
    assert pooled["confidence"] == pooled["accuracy"] == [None, None]


def test_page_data_is_strict_json_with_all_rows_of_both_readings(results: Results) -> None:
    document = json.loads(json.dumps(page_data(results), allow_nan=False))
    assert list(document["datasets"]) == ["cora", "citeseer", "pubmed"]
    for reading, rows in READINGS.items():
        expected = {row: source_key(source) for row, source in rows.items() if source.model in MODELS}
        assert document["readings"][reading]["rows"] == expected
    for dataset in document["datasets"].values():
        for reading in document["readings"].values():
            assert set(reading["rows"].values()) <= set(dataset["sources"])
        for source in dataset["sources"].values():
            assert list(source["views"]) == [*VIEWS, SAME_LABEL]


def test_page_data_has_the_means_of_the_tables(results: Results) -> None:
    views = source_data(results.of("cora", "gmnn"), "mixture")["views"]
    assert isinstance(views, dict)
    for view in VIEWS:
        score = reading_score(results, AS_DEFINED, "cora", "gmnn", view, "ece")
        expected = {"mean": round(score.mean, 6), "std": round(score.std, 6), "runs": 6}
        assert views[view]["ece"] == expected
        assert sum(views[view]["count"]) == sum(one.count for one in results.views(AS_DEFINED, "cora", "gmnn", view))


def test_source_data_has_one_list_per_run() -> None:
    run = fake_run("cora", "gcn", split=1, fold=2, init=3)
    errors = [round(run.predictions["product"][view].ece, 6) for view in VIEWS]
    assert source_data([run], "product")["runs"] == [[1, 2, 3, *errors]]
    alike = fake_run("pubmed", "gat")
    assert source_data([alike], "product")["runs"] == [
        [0, 0, 0, *(round(alike.predictions["product"][view].ece, 6) for view in VIEWS[:3]), None]
    ]


def test_page_data_has_only_sources_with_runs() -> None:
    document = page_data(fake_results(["citeseer"], ["gat"], splits=1, folds=1))
    assert document["datasets"] == {
        "citeseer": {
            "label": "Citeseer",
            "sources": {"gat/product": source_data([fake_run("citeseer", "gat")], "product")},
        }
    }
    assert page_data(Results([]))["datasets"] == {}


@pytest.mark.parametrize(
    ("difference", "verdict", "text"),
    [
        (0.0, "good", "0.00"),
        (-1.0, "good", "−1.00"),
        (1.01, "near", "+1.01"),
        (-2.0, "near", "−2.00"),
        (2.5, "far", "+2.50"),
        (None, "", ""),
    ],
)
def test_verdict_depends_on_difference_from_published(difference: float | None, verdict: str, text: str) -> None:
    ours = (math.nan, math.nan, 0, 6) if difference is None else (0.5 + 0.25 * difference, 0.1, 6, 6)
    cell = score_cell(Score("cora", "gcn", "agree", "ece", *ours, MeanStd(0.5, 0.25)))
    assert (cell.subtext, cell.verdict, cell.difference) == ("50.00 ± 25.00", verdict, text)


def test_cell_remarks_on_missing_values() -> None:
    def cell(metric: str, *numbers: float, published: MeanStd | None = None) -> Cell:
        return score_cell(Score("cora", "gcn", "agree", metric, *numbers, published))

    assert cell("ece", 0.1234, 0.01, 6, 6).text == "12.34 ± 1.00"
    assert cell("ece", 0.1234, 0.01, 5, 6).remark == "5 runs"
    assert cell("ece", 0.1234, 0.0, 1, 1).text == "12.34"  # one run has no std
    assert cell("nll", 1.5, 0.25, 6, 6).text == "1.500 ± 0.250"
    assert cell("nll", math.inf, math.nan, 6, 6) == Cell("∞", value=math.inf)
    empty = cell("ece", math.nan, math.nan, 0, 6, published=MeanStd(0.5, 0.1))
    assert (empty.line, empty.second_line) == ("– (nothing to score)", "50.00 ± 10.00")


def test_sort_keys_of_cells() -> None:
    assert Cell("", value=0.25).sort_key == "0.25"
    assert Cell("", value=math.inf).sort_key == "Infinity"
    assert Cell("").sort_key == Cell("", value=math.nan).sort_key == ""
    assert [format_signed(value, 1) for value in (0.04, -0.04, 2.0, -math.inf)] == ["0.0", "0.0", "+2.0", "−∞"]


@pytest.mark.parametrize("metric", ["accuracy", "ece", "nll", "brier"])
def test_best_score_of_each_dataset_is_marked(results: Results, metric: str) -> None:
    rows = score_rows(results, AS_PUBLISHED, metric)
    assert [(row.dataset, row.name) for row in rows[:2]] == [("cora", "gcn"), ("cora", "gat")]
    assert len(rows) == 15
    for dataset in results.datasets:
        for place in range(len(VIEWS)):
            scores = [row.scores[place] for row in rows if row.dataset == dataset]
            means = [one.mean for one in scores if one.runs]
            best = max(means) if metric == "accuracy" else min(means)
            assert best in [one.mean for one in scores if one.is_best]
            assert sum(one.is_best for one in scores) < len(scores)


def test_single_model_is_not_marked_as_best() -> None:
    (row,) = score_rows(fake_results(["cora"], ["gcn"]), AS_PUBLISHED, "ece")
    assert not any(one.is_best for one in row.scores)


def test_row_with_fewer_runs_has_a_remark(results: Results) -> None:
    fewer = replace(
        results, runs=[run for run in results.runs if run.key.cell != ("cora", "gat") or run.key.split == 0]
    )
    rows = printed_rows(score_rows(fewer, AS_PUBLISHED, "ece"))
    remarks = {(row.group, row.label): row.remark for row in rows}
    assert remarks.pop(("cora", "gat")) == "3 runs"
    assert set(remarks.values()) == {""}


def test_statistics_are_compared_with_published_ones(results: Results) -> None:
    row = printed_rows(statistics_rows(results))[0]
    assert [one.text for one in row.cells[:4]] == ["2,708", "10,556", "1,433", "7"]
    homophily = row.cells[4]
    # Two splits, at −0.2 and at +0.6 published standard deviations.
    assert homophily.subtext == "80.63 ± 0.81"
    assert homophily.difference == "+0.20"
    assert (row.cells[0].subtext, row.cells[0].verdict) == ("2,708", "")


def test_differences_are_paired_by_run(results: Results) -> None:
    row = next(row for row in change_rows(results) if (row.group, row.label) == ("cora", "gmnn"))
    pairs = [
        (run.predictions["averaged_logits"]["edgewise"].nll, run.predictions["mixture"]["edgewise"].nll)
        for run in results.of("cora", "gmnn")
    ]
    differences = [after - before for before, after in pairs]
    assert row.cells[3].value == pytest.approx(sum(differences) / 6)
    assert row.cells[3].remark == f"{sum(one < 0 for one in differences)} of 6 runs"


def test_infinite_score_counts_as_worse_but_has_no_difference(results: Results) -> None:
    row = next(row for row in change_rows(results) if (row.group, row.label) == ("citeseer", "gmnn"))
    pairs = [
        (run.predictions["averaged_logits"]["edgewise"].nll, run.predictions["mixture"]["edgewise"].nll)
        for run in results.of("citeseer", "gmnn")
    ]
    finite = [after - before for before, after in pairs if math.isfinite(before)]
    assert len(finite) == 5
    assert row.cells[3].value == pytest.approx(sum(finite) / 5)
    assert row.cells[3].remark == f"{sum(after < before for before, after in pairs)} of 6 runs"


def shifted(results: Results, source: Source, shift: float, datasets: Sequence[str] = DATASETS) -> Results:
    """Set node accuracies of one prediction to those of the published reading, plus a shift."""
    runs = []
    for run in results.runs:
        if run.key.model == source.model and run.key.dataset in datasets:
            published = run.predictions[READINGS[AS_PUBLISHED][source.model].prediction]["nodewise"]
            of_source = {**run.predictions[source.prediction]}
            of_source["nodewise"] = replace(of_source["nodewise"], accuracy=published.accuracy + shift)
            run = replace(run, predictions={**run.predictions, source.prediction: of_source})
        runs.append(run)
    return replace(results, runs=runs)


@pytest.mark.parametrize(
    ("shift", "outcome", "sentence"),
    [
        (0.02, "better", "Better on every dataset: node accuracy"),
        (-0.01, "worse", "Worse on every dataset: node accuracy"),
        (0.0, "not clearly different", "Not clearly different on any dataset: node accuracy"),
    ],
)
def test_outcomes_match_the_numbers(shift: float, outcome: str, sentence: str) -> None:
    results = shifted(fake_results(splits=3, folds=2), READINGS[AS_DEFINED]["gmnn"], shift)
    found = describe_changes(results)
    assert [one.row for one in found] == ["gmnn", "epfgnn", "epfgnn mean field"]
    assert sentence in found[0].summary
    assert [row.cells[0].outcome for row in change_rows(results) if row.label == "gmnn"] == [outcome] * 3


def test_summary_has_each_score_once() -> None:
    gmnn = READINGS[AS_DEFINED]["gmnn"]
    better = shifted(fake_results(splits=3, folds=2), gmnn, 0.02)
    summary = describe_changes(shifted(better, gmnn, -0.02, ["cora"]))[0].summary
    assert "Depends on the dataset: node accuracy" in summary
    for score in ("node accuracy", "node ECE", "edge ECE", "edge NLL", "edge Brier score"):
        assert summary.count(score) == 1


def test_without_changed_rows_there_are_no_changes() -> None:
    assert describe_changes(fake_results(["cora"], ["gcn"])) == []
    assert change_rows(Results([])) == []


def test_chart_has_a_dot_for_each_compared_cell_on_its_side_of_one_deviation(results: Results) -> None:
    chart = agreement_chart(results)
    assert chart is not None
    scores = {score_cell(one).difference: one for one in compare(results) if one.difference is not None}
    assert len(chart.dots) == sum(one.difference is not None for one in compare(results))
    low, high = chart.within
    for dot in chart.dots:
        score = scores[dot.text.split("difference ")[1].removesuffix(" sd")]
        assert dot.verdict == score_cell(score).verdict
        assert (low <= dot.x <= high) == (abs(score.difference or 0) <= 1)
    assert len({(dot.x, dot.y) for dot in chart.dots}) == len(chart.dots)
    assert chart.num_within == sum(abs(one.difference) <= 1 for one in compare(results) if one.difference is not None)


def test_chart_draws_distant_cells_at_its_edge() -> None:
    (gcn, *others) = fake_results(["cora"], ["gcn"], splits=1).runs
    far = replace(gcn.predictions["product"]["nodewise"], ece=30.0)
    run = replace(gcn, predictions={"product": {**gcn.predictions["product"], "nodewise": far}})
    chart = agreement_chart(Results([run, *others]))
    assert chart is not None
    assert chart.ticks[-1][1] == f"+{MAX_CHART_STD}"
    assert chart.ticks[-2][0] < max(dot.x for dot in chart.dots) < chart.ticks[-1][0]


def test_without_published_cells_there_is_no_chart() -> None:
    assert agreement_chart(fake_results(["texas"], ["gcn"])) is None
    assert agreement_chart(Results([])) is None


def test_page_opens_as_defined_if_a_model_has_no_published_reading() -> None:
    assert page_data(fake_results(["cora"], ["gcn"]))["reading"] == "as_published"
    assert page_data(fake_results(["cora"], ["gcn", "sage"]))["reading"] == "as_defined"
