import pytest

from edgewise.data.datasets import DATASET_NAMES
from edgewise.paper.published import DATASETS
from edgewise.paper.readings import KNOWN_MODELS, MODELS
from edgewise.sweep.estimates import TIME_RELATIVE_TO_PUBMED, TYPICAL_SECONDS, estimate_seconds, typical_seconds
from edgewise.sweep.runs import RunKey


def key(dataset: str, model: str, init: int = 0) -> RunKey:
    return RunKey(dataset, model, "", 0, 0, init)


def test_estimate_without_measurements_uses_typical_times() -> None:
    missing = [key("cora", "gcn", init) for init in range(3)] + [key("pubmed", "gat")]
    typical = 3 * TYPICAL_SECONDS["cora", "gcn"] + TYPICAL_SECONDS["pubmed", "gat"]
    assert estimate_seconds(missing, {}, 1) == pytest.approx(typical)
    assert estimate_seconds(missing, {("cora", "gcn"): []}, 4) == pytest.approx(typical / 4)
    assert estimate_seconds([], {}, 2) == 0


def test_estimate_uses_medians_of_measured_cells_and_scales_others() -> None:
    cora = TYPICAL_SECONDS["cora", "gcn"]
    measured = {("cora", "gcn"): [20 * cora, 2 * cora, 2 * cora]}  # twice as slow as typical; the first run compiled
    missing = [key("cora", "gcn"), key("pubmed", "gat")]
    expected = 2 * cora + 2 * TYPICAL_SECONDS["pubmed", "gat"]
    assert estimate_seconds(missing, measured, 1) == pytest.approx(expected)
    assert estimate_seconds(missing, measured, 2) == pytest.approx(expected / 2)


def test_every_cell_of_the_paper_has_a_typical_time() -> None:
    assert set(TYPICAL_SECONDS) == {(dataset, model) for dataset in DATASETS for model in MODELS}
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
