from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from pyarrow.parquet import read_table

from edgewise.data.datasets import DATASET_NAMES
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import KNOWN_MODELS, MODELS
from edgewise.paper.recipes import paper_plan
from edgewise.sweep.estimates import TIME_RELATIVE_TO_PUBMED, TYPICAL_SECONDS, estimate_seconds, typical_seconds
from edgewise.sweep.progress import Progress
from edgewise.sweep.runs import RunKey
from edgewise.workers.processes import choose_job

QUICK = {"splits": 1, "inits": 1}
PAPER_CELLS = {(dataset, model) for dataset in DATASETS for model in MODELS}
RUNS = Path(__file__).parents[2] / "docs" / "reproduction" / "runs.parquet"


def key(dataset: str, model: str, init: int = 0) -> RunKey:
    return RunKey(dataset, model, "", 0, 0, init)


def test_estimate_without_measurements_uses_typical_times() -> None:
    missing = [key("cora", "gcn", init) for init in range(3)] + [key("pubmed", "gat")]
    typical = 3 * TYPICAL_SECONDS["cora", "gcn"] + TYPICAL_SECONDS["pubmed", "gat"]
    assert estimate_seconds(missing, {}, 1) == pytest.approx(typical)
    assert estimate_seconds(missing, {("cora", "gcn"): []}, 4) == pytest.approx(typical / 4)
    assert estimate_seconds([], {}, 2) == 0


def test_measured_runs_replace_typical_times() -> None:
    cora, pubmed = TYPICAL_SECONDS["cora", "gcn"], TYPICAL_SECONDS["pubmed", "gat"]
    few = {("cora", "gcn"): [20 * cora, 2 * cora, 2 * cora]}  # twice as slow as typical; the first run compiled
    missing = [key("cora", "gcn"), key("pubmed", "gat")]
    assert estimate_seconds(missing, few, 1) == pytest.approx(2 * cora + 2 * pubmed)
    assert estimate_seconds(missing, few, 2) == pytest.approx(cora + pubmed)
    many = {("cora", "gcn"): [2 * cora] * 100, ("pubmed", "gat"): [6 * pubmed] * 50}
    assert estimate_seconds(missing, many, 1) == pytest.approx(2 * cora + 6 * pubmed, rel=0.05)


def test_time_spent_on_running_runs_is_subtracted() -> None:
    cora, pubmed = TYPICAL_SECONDS["cora", "gcn"], TYPICAL_SECONDS["pubmed", "gat"]
    missing = [key("cora", "gcn"), key("pubmed", "gat"), key("pubmed", "gat", 1)]
    assert estimate_seconds(missing, {}, 2, 10.0) == pytest.approx((cora + 2 * pubmed - 10.0) / 2)
    assert estimate_seconds(missing, {}, 2, 1e9) == pytest.approx(cora / 2)  # at most two runs are running


def replay(seconds: dict[RunKey, float], workers: int) -> dict[RunKey, float]:
    """Return when each run of a sweep ends."""
    waiting, ends = list(seconds), {}
    free_at, groups = [0.0] * workers, dict[int, object]()
    while waiting:
        worker = free_at.index(min(free_at))
        others = {group for other, group in groups.items() if other != worker}
        run = waiting.pop(choose_job([run.group for run in waiting], groups.get(worker), others))
        groups[worker] = run.group
        free_at[worker] = ends[run] = free_at[worker] + seconds[run]
    return ends


@pytest.mark.parametrize(
    ("repeats", "slowness"),
    [(QUICK, 3.0), (QUICK, 10.0), ({}, 0.5), ({}, 1.0), ({}, 3.0), ({}, 10.0)],
    ids=lambda value: "all runs" if value == {} else "quick" if value == QUICK else f"{value} times as long",
)
def test_time_left_is_within_a_quarter_after_the_first_minute(repeats: dict[str, int], slowness: float) -> None:
    """Replay the stored runs of the paper on two workers, on machines of different speed.

    Each run takes its stored number of epochs, with the median time per epoch of its cell: the load of the machine that
    stored them changed within hours, which no estimate can foresee.
    """
    columns = ["dataset", "model", "split", "fold", "init", "epochs", "seconds"]
    stored = {
        tuple(row[:5]): row[5:] for row in zip(*read_table(RUNS, columns=columns).to_pydict().values(), strict=True)
    }
    runs = paper_plan(**repeats).runs()
    pace = {
        cell: median(seconds / epochs for (*of, _, _, _), (epochs, seconds) in stored.items() if tuple(of) == cell)
        for cell in PAPER_CELLS
    }
    seconds = {
        run: slowness * pace[run.cell] * stored[run.dataset, run.model, run.split, run.fold, run.init][0]
        for run in runs
    }
    ends = replay(seconds, workers=2)
    finished = [SimpleNamespace(key=run, seconds=seconds[run]) for run, end in ends.items() if end <= 60.0]
    progress = Progress(list(seconds), finished, workers=2)
    left = progress.seconds_left_after(60.0, sum(run.seconds for run in finished))
    assert left == pytest.approx(max(ends.values()) - 60.0, rel=0.25)


def test_every_cell_of_the_paper_has_a_typical_time() -> None:
    assert set(TYPICAL_SECONDS) >= PAPER_CELLS
    assert {dataset for dataset, _ in TYPICAL_SECONDS} == set(DATASETS)
    assert all(seconds > 0 for seconds in TYPICAL_SECONDS.values())


def test_typical_time_of_other_cells_grows_with_their_size() -> None:
    assert set(TIME_RELATIVE_TO_PUBMED) == set(DATASET_NAMES) - set(DATASETS)
    assert all(typical_seconds(cell) == seconds for cell, seconds in TYPICAL_SECONDS.items())
    for model in KNOWN_MODELS:
        assert 0 < typical_seconds(("texas", model)) < typical_seconds(("synthetic-0.3", model))
        assert typical_seconds(("synthetic-0.3", model)) < typical_seconds(("questions", model))
    measured = {("texas", "gcn"): [4 * typical_seconds(("texas", "gcn"))]}
    missing = [key("texas", "gcn"), key("cora", "gat")]
    assert estimate_seconds(missing, measured, 1) == pytest.approx(
        4 * typical_seconds(("texas", "gcn")) + 4 * TYPICAL_SECONDS["cora", "gat"]
    )
