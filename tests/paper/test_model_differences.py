"""Differences between models over many runs: both intervals against a written-out loop, and the table."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgewise.paper.model_differences import TITLE, compare_runs, model_difference_table
from edgewise.paper.page import results_page
from edgewise.paper.paper_tables import paper_tables
from edgewise.paper.report import report_text
from edgewise.paper.results import Results
from helpers.fake_results import fake_results
from helpers.fake_runs import make_run

T_975 = {2: 4.302652729696, 5: 2.570581835636}  # 97.5% quantiles of Student's t


def with_nll(model: str, split: int, fold: int, init: int, nll: float):
    run = make_run(init, model, fold)
    views = {view: replace(result, nll=nll) for view, result in run.predictions["product"].items()}
    return replace(run, key=replace(run.key, split=split), predictions={"product": views})


def runs_of(model: str, scores: np.ndarray) -> list:
    """Return a run per split, fold and initialization with the given NLLs."""
    return [with_nll(model, *place, float(score)) for place, score in np.ndenumerate(scores)]


def test_both_intervals_match_a_loop():
    rng = np.random.default_rng(0)
    scores = {"a": rng.normal(1.0, 0.1, (3, 2, 4)), "b": rng.normal(0.9, 0.1, (3, 2, 4))}
    differences = []
    for split in range(3):
        for fold in range(2):
            means = [sum(scores[name][split, fold]) / 4 for name in "ab"]
            differences.append(means[1] - means[0])
    k, mean = 6, sum(differences) / 6
    variance = sum((one - mean) ** 2 for one in differences) / (k - 1)
    a, b = (runs_of(name, scores[name]) for name in "ab")
    found = compare_runs(a, b[::-1], ("product", "product"), "edgewise", "nll", test_per_train=7.2)
    assert (found.mean, found.count) == (pytest.approx(mean), k)
    for interval, factor in ((found.naive, 1 / k), (found.corrected, 1 / k + 7.2)):
        half = T_975[5] * math.sqrt(factor * variance)
        assert (interval.low, interval.high) == pytest.approx((mean - half, mean + half))


def test_only_splits_and_folds_with_runs_of_both_count():
    a, b = runs_of("a", np.ones((2, 2, 1))), runs_of("b", np.array([[[1.5], [2.0]], [[2.5], [9.0]]]))
    found = compare_runs(a[:3], b, ("product", "product"), "edgewise", "nll", 7.0)
    half = T_975[2] * np.std([0.5, 1.0, 1.5], ddof=1) / math.sqrt(3)
    assert (found.count, found.mean) == (3, 1.0)
    assert found.naive.low == pytest.approx(1.0 - half)
    one = compare_runs(a[:1], b, ("product", "product"), "edgewise", "nll", 7.0)
    assert (one.count, one.mean) == (1, 0.5) and math.isnan(one.naive.low)
    none = compare_runs([], b, ("product", "product"), "edgewise", "nll", 7.0)
    assert none.count == 0 and math.isnan(none.mean)


@pytest.mark.parametrize(
    ("of_a", "of_b", "mean"),
    [(1.0, math.inf, math.inf), (math.inf, 1.0, -math.inf), (math.inf, math.inf, math.nan)],
)
def test_an_infinite_score_makes_the_difference_infinite_and_undecided(of_a, of_b, mean):
    """A model that gives a true label probability 0 in one of 15 folds is not better in the mean."""
    scores_a, scores_b = np.ones((5, 3, 1)), np.full((5, 3, 1), 0.9)
    scores_a[2, 1], scores_b[2, 1] = of_a, of_b
    a, b = runs_of("a", scores_a), runs_of("b", scores_b)
    found = compare_runs(a, b, ("product", "product"), "edgewise", "nll", 7.0)
    assert found.count == 15 and (found.mean == mean or (math.isnan(found.mean) and math.isnan(mean)))
    assert math.isnan(found.naive.low) and math.isnan(found.corrected.high)


def test_corrected_interval_needs_the_sizes_of_the_sets():
    results = fake_results(("cora",), ("gcn", "gat"), splits=3)
    tasks = [replace(task, train=250.0, test=1950.0) for task in results.tasks]
    with_sizes = model_difference_table(replace(results, tasks=tasks))
    assert "corrected" in with_sizes.rows[0].cells[0].subtext and "7.8 times" in with_sizes.notes[0]
    unknown = [replace(task, train=math.nan, test=math.nan) for task in results.tasks]
    without = model_difference_table(replace(results, tasks=unknown))
    assert without.rows[0].cells[0].subtext == "" and "number of training nodes" in without.notes[0]


def test_table_compares_all_models_with_gcn():
    results = fake_results(("cora",), ("gcn", "gat", "gmnn"), splits=3, calibrators=("temperature", "structured"))
    table = model_difference_table(results)
    assert [row.label for row in table.rows] == ["gat", "gmnn", "gcn + temperature", "gcn + structured"]
    means = [np.mean([run.predictions["product"]["edgewise"].ece for run in results.of("cora", name)])
             for name in ("gcn", "gat")]  # fmt: skip
    assert table.rows[0].cells[1].value == pytest.approx(means[1] - means[0])
    assert "corrected [" in table.rows[0].cells[0].subtext
    assert table in paper_tables(results)
    assert TITLE in report_text(results)
    page = results_page(results)
    assert 'id="table-better"' in page and table.rows[0].cells[2].text in page


@pytest.mark.parametrize("models", [(), ("gcn",), ("gat",)])
def test_without_another_model_there_is_no_table(models):
    results = fake_results(("cora",), models) if models else Results([])
    assert model_difference_table(results).rows == []
    assert 'id="table-better"' not in results_page(results)
