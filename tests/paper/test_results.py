"""`Results`: summaries, comparison with published values, and reading from files."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgewise.data.statistics import MeanStd
from edgewise.paper.comparison import compare, tally, tally_line
from edgewise.paper.published import PUBLISHED_DATASETS, PUBLISHED_SCORES
from edgewise.paper.results import Results
from edgewise.paper.score_rows import Score, reading_score, statistics_score, summarize
from edgewise.sweep import runs
from edgewise.sweep.run_table import read_run_table, write_run_table
from edgewise.sweep.store import Store
from helpers.fake_results import fake_results, fake_run


def test_summarize_ignores_nan_and_propagates_infinity() -> None:
    assert summarize([1.0, 3.0, math.nan]) == (2.0, 1.0, 2)
    for values in ([math.nan], []):
        mean, std, runs = summarize(values)
        assert math.isnan(mean) and math.isnan(std) and runs == 0
    mean, std, runs = summarize([1.0, math.inf])
    assert mean == math.inf and math.isnan(std) and runs == 2


def test_rows_show_the_prediction_of_their_reading() -> None:
    results = fake_results(("cora",), ("gmnn",), splits=1)
    for reading, prediction in (("as_published", "averaged_logits"), ("as_defined", "mixture")):
        values = [run.predictions[prediction]["agree"].nll for run in results.runs]
        score = reading_score(results, reading, "cora", "gmnn", "agree", "nll")
        assert (score.mean, score.std) == pytest.approx((np.mean(values), np.std(values)))


def test_there_are_132_published_cells() -> None:
    cells = compare(fake_results())
    assert len(cells) == 132
    assert sum(cell.metric == "ece" and cell.row != "epfgnn mean field" for cell in cells) == 48
    assert sum(cell.metric == "accuracy" and cell.row != "epfgnn mean field" for cell in cells) == 48
    assert sum(cell.row == "epfgnn mean field" for cell in cells) == 24
    assert sum(cell.row == "statistics" for cell in cells) == 12
    published = PUBLISHED_SCORES["pubmed"]["gat"]["ece"]["agree"]
    (cell,) = (c for c in cells if (c.dataset, c.row, c.metric, c.view) == ("pubmed", "gat", "ece", "agree"))
    assert cell.published == published


def test_differences_are_in_published_standard_deviations() -> None:
    score = Score("cora", "gcn", "agree", "ece", 0.3, 9.0, 6, 6, MeanStd(0.5, 0.1))
    assert score.difference == pytest.approx(-2.0)
    assert replace(score, mean=math.nan, runs=0).difference is None
    assert replace(score, published=None).difference is None


def test_tally_counts_within_one_and_two() -> None:
    def cell(mean: float) -> Score:
        return Score("cora", "gcn", "agree", "ece", mean, 0.0, 6, 6, MeanStd(0.0, 1.0))

    missing = replace(cell(math.nan), runs=0)
    counts = tally([cell(0.5), cell(-1.0), cell(1.5), cell(-2.5), missing])
    assert (counts.cells, counts.compared, counts.within_one, counts.within_two) == (5, 4, 2, 3)
    assert "2 of 4 published cells" in str(counts) and "(50%), 3 within two; 1 have no result" in str(counts)
    assert "None of the 1" in str(tally([missing]))


def test_tally_counts_statistics_separately() -> None:
    results = fake_results()
    cells = compare(results)
    near = [cell for cell in cells if cell.difference is not None and abs(cell.difference) <= 1]
    scores, statistics = (sum((cell.row == "statistics") == kind for cell in near) for kind in (False, True))
    # GAT on Pubmed has no disagreeing edge, so two of its cells have no number.
    assert tally_line(results).endswith(f"scores {scores} of 118, dataset statistics {statistics} of 12.")
    assert "None of the 132" in tally_line(Results([]))


def test_dataset_statistics_are_over_splits() -> None:
    results = fake_results(("cora",), ("gcn",), splits=2)
    homophily, published = statistics_score(results, "cora", "homophily"), PUBLISHED_DATASETS["cora"].homophily
    assert homophily.mean == pytest.approx(published.mean + 0.2 * published.std)
    assert homophily.std == pytest.approx(0.4 * published.std)
    assert homophily.runs == 2 and statistics_score(results, "pubmed", "homophily").runs == 0


def test_names_outside_the_paper_come_last() -> None:
    results = fake_results(("zoo", "cora"), ("sage", "gmnn", "gcn"), splits=1, calibrators=("beta", "temperature"))
    assert results.datasets == ["cora", "zoo"]
    assert results.models == ["gcn", "gmnn", "sage"]
    assert results.calibrators == ["temperature", "beta"]
    assert list(results.rows("as_defined"))[-1] == "sage" and "sage" not in results.rows("as_published")
    assert results.rows("as_defined")["sage"] == ("sage", "product")


def test_run_table_round_trip(tmp_path: Path) -> None:
    results = fake_results(splits=1)
    failures = {replace(results.runs[0].key, init=9): "no luck"}
    path = tmp_path / "runs.parquet"
    write_run_table(path, results.runs, results.tasks, results.commands, failures)
    again = Results.read(path)
    # NaN is not equal to itself, but its repr is.
    assert repr(again.runs) == repr([*results.runs])
    assert (again.tasks, again.commands, again.failures) == (results.tasks, results.commands, failures)


def test_other_parquet_files_raise_value_error(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "text.parquet").write_text("no table")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("text", "other"):
        with pytest.raises(ValueError, match=f"{name}.parquet"):
            read_run_table(tmp_path / f"{name}.parquet")


def test_results_are_read_from_a_store_folder(tmp_path: Path) -> None:
    run = fake_run("cora", "gcn")
    with Store.writing(tmp_path) as store:
        store.add(run)
        store.add_failure(replace(run.key, init=1), "no luck")
    results = Results.read(tmp_path)
    assert repr(results.runs) == repr([run])
    assert list(results.failures.values()) == ["no luck"]
    assert results.versions == {name: [version] for name, version in run.versions.items()}
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, message in {
        "empty": "edgewise reproduce --out",
        "nowhere": "does not exist",
        "file": "is a file",
    }.items():
        with pytest.raises(ValueError, match=message):
            Results.read(tmp_path / name)
    assert repr(Results.read(tmp_path / "results.sqlite").runs) == repr([run])


@pytest.mark.parametrize(("constant", "added"), [("METRICS", "ace"), ("VIEWS", "triangles")])
@pytest.mark.parametrize("kind", ["store", "table"])
def test_results_without_a_current_score_or_view_raise_value_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constant: str, added: str, kind: str
) -> None:
    written = fake_results(("cora",), ("gcn",), splits=1)
    path = tmp_path if kind == "store" else tmp_path / "runs.parquet"
    if kind == "store":
        with Store.writing(tmp_path) as store:
            for run in written.runs:
                store.add(run)
    else:
        write_run_table(path, written.runs, written.tasks, written.commands, {})
    assert len(Results.read(path).runs) == 3
    monkeypatch.setattr(runs, constant, (*getattr(runs, constant), added))
    with pytest.raises(ValueError, match=f"have no {added}") as raised:
        Results.read(path)
    assert "damaged" not in str(raised.value)
