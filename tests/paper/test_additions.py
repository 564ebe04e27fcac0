"""A new model and a new calibrator are run, stored and shown without changes elsewhere."""

import csv
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pytest
from jaxtyping import Float
from torch import Tensor

import edgewise as ew
from edgewise.calibration import known_calibrators
from edgewise.calibration.calibration_input import CalibrationInput, Predictions
from edgewise.calibration.calibrator import Learned, NodeCalibrator, Parameters
from edgewise.models import known_models
from edgewise.paper import recipes
from edgewise.paper.recipes import paper_plan
from edgewise.sweep import plan as plan_module
from edgewise.sweep import run as run_module
from edgewise.sweep.plan import sort_models
from edgewise.sweep.progress import plan_text
from edgewise.sweep.run import read_progress, run_sweep
from edgewise.sweep.sources import Sources
from helpers.in_process_workers import InProcessWorkers
from helpers.tiny_datasets import write_planetoid

mpl.use("Agg")

from edgewise.paper.page import results_page
from edgewise.paper.report import write_tables
from edgewise.paper.results import Results


@dataclass(frozen=True, kw_only=True)
class Brief(ew.GCN):
    """A GCN of few epochs."""

    name = "brief"
    max_epochs: int = 10


@dataclass(frozen=True)
class Halved(NodeCalibrator):
    """Halves the logits."""

    name = "halved"

    def learn_parameters(self, inputs: CalibrationInput) -> Parameters:
        return {"factor": 0.5}

    def log_marginals(self, learned: Learned, predictions: Predictions) -> Float[Tensor, "nodes classes"]:
        return predictions.logits * learned["factor"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root, out = write_planetoid(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("results")
    models, calibrators = {**known_models(), "brief": Brief}, {**known_calibrators(), "halved": Halved}
    with pytest.MonkeyPatch.context() as patch:  # as if they were part of the package
        patch.setattr(plan_module, "known_models", lambda: models)
        for module in (plan_module, run_module, recipes):
            patch.setattr(module, "known_calibrators", lambda: calibrators)
        plan = paper_plan(("cora",), ("brief", "gcn"), 1, 1, 1, ("halved", "temperature"))
        assert plan.calibrators == ("temperature", "halved")
        assert plan_text(read_progress(plan, out, 1)).splitlines()[2].split() == ["gcn", "brief"]
        progress = run_sweep(plan, out, Sources(str(root)), InProcessWorkers(), lambda _: lambda outcome: None)
        assert progress.missing == [], progress.failures
    return Results.read(out)


def test_new_models_and_calibrators_come_last(results: Results) -> None:
    assert sort_models(["brief", "jointgcn", "gcn"]) == ["gcn", "brief", "jointgcn"]
    assert results.models == ["gcn", "brief"]
    assert results.calibrators == ["temperature", "halved"]
    for run in results.runs:
        assert list(run.predictions) == ["product", "temperature", "halved"]
        assert run.predictions["halved"]["nodewise"].ece != run.predictions["product"]["nodewise"].ece


def test_new_models_and_calibrators_are_in_tables_and_page(results: Results, tmp_path: Path) -> None:
    write_tables(results, tmp_path)
    with (tmp_path / "tables.csv").open(encoding="utf-8") as file:
        rows = {(row["reading"], row["row"]) for row in csv.DictReader(file)}
    assert ("as_defined", "brief") in rows and ("as_published", "brief") not in rows
    html = results_page(results)
    assert "brief" in html and "halved" in html
