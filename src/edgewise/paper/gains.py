"""What a calibrator with dependent ends of edges gains over calibrators whose joints are products, on each graph.

The other predictions are those of the same trained models, so all differences are paired by run.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgewise.paper.formatting import NO_VALUE, PERCENT, display_name, format_signed
from edgewise.paper.model_differences import PairedDifference, paired_difference
from edgewise.paper.readings import UNCALIBRATED_PREDICTION
from edgewise.paper.results import Results, runs_with
from edgewise.paper.score_rows import STRUCTURED, TEMPERATURE, UNCALIBRATED, summarize
from edgewise.paper.text_tables import Cell, Row, Table
from edgewise.sweep.runs import SAME_LABEL

# Predictions whose joints are products.
PRODUCT_JOINTS = (UNCALIBRATED_PREDICTION, TEMPERATURE, "vector", "ensemble")
TITLE = "Structured calibration compared with product joints"
COLUMNS = ("best product joints", "edge NLL", "in standard errors", "same label ECE", "node accuracy", "runs")
NOTE = (
    "Mean difference over runs ± its standard error s/√n, paired by run: structured calibration minus, for the edge "
    "NLL, the one of uncalibrated, temperature, vector and ensemble that has the lowest mean edge NLL on the graph; "
    "for the ECE of the event that both ends have the same label, temperature; for the node accuracy, uncalibrated. "
    "ECE and accuracy in points; lower NLL and ECE are better. Runs on one split share test nodes, so the standard "
    "errors are too small."
)


@dataclass(frozen=True)
class Gain:
    """Paired differences of a calibrator from other predictions of the same model.

    ``rival`` is the prediction with product joints that has the lowest mean edge NLL. ``edge_nll`` is compared with the
    rival, ``same_label_ece`` with temperature scaling, and ``node_accuracy`` with the uncalibrated model.
    """

    rival: str
    edge_nll: PairedDifference
    same_label_ece: PairedDifference
    node_accuracy: PairedDifference


def gain(results: Results, dataset: str, model: str = "gcn", method: str = STRUCTURED) -> Gain | None:
    """Compare a calibrator with product joints on a graph; None if no run has both.

    Only runs that have the method are used, also to choose the rival.
    """
    runs = runs_with(method, results.of(dataset, model))
    means = {}
    for name in PRODUCT_JOINTS:
        if name == method:
            continue
        scored = runs_with(name, runs)
        mean, _, count = summarize(run.predictions[name]["edgewise"].nll for run in scored)
        if count:
            means[name] = mean
    if not means:
        return None
    rival = min(means, key=lambda name: means[name])

    def difference(other: str, view: str, metric: str) -> PairedDifference:
        return paired_difference(runs_with(other, runs), runs, (other, method), view, metric)

    return Gain(
        rival,
        difference(rival, "edgewise", "nll"),
        difference(TEMPERATURE, SAME_LABEL, "ece"),
        difference(UNCALIBRATED_PREDICTION, "nodewise", "accuracy"),
    )


def gain_table(results: Results, datasets: Iterable[str] | None = None, models: Iterable[str] | None = None) -> Table:
    """Return a row per graph and model with structured calibration, by default of all graphs and models."""
    cells = [
        (dataset, model)
        for dataset in (results.datasets if datasets is None else datasets)
        for model in (results.models if models is None else models)
    ]
    rows = [Row(dataset, model, _cells(found)) for dataset, model in cells if (found := gain(results, dataset, model))]
    return Table(TITLE, COLUMNS, rows, [NOTE] if rows else [])


def _cells(gain: Gain) -> list[Cell]:
    rival = UNCALIBRATED if gain.rival == UNCALIBRATED_PREDICTION else gain.rival
    in_errors = gain.edge_nll.in_errors
    return [
        Cell(display_name(rival)),
        _difference_cell(gain.edge_nll, "nll"),
        Cell(format_signed(in_errors, 1), value=in_errors),
        _difference_cell(gain.same_label_ece, "ece"),
        _difference_cell(gain.node_accuracy, "accuracy"),
        Cell(str(gain.edge_nll.runs), value=gain.edge_nll.runs),
    ]


def _difference_cell(difference: PairedDifference, metric: str) -> Cell:
    if math.isnan(difference.mean):
        return Cell(NO_VALUE)
    factor, digits = (100, 2) if metric in PERCENT else (1, 4)
    error = "" if math.isnan(difference.error) else f" ± {factor * difference.error:.{digits}f}"
    return Cell(f"{format_signed(factor * difference.mean, digits)}{error}", value=difference.mean)
