"""What a calibrator with dependent ends of edges gains over calibrators whose joints are products, on each graph.

The other predictions are those of the same trained models, so all differences are paired by run. The aims are an edge
NLL and a same-label ECE that are not clearly above theirs, and an unchanged node accuracy.
"""

import math
from dataclasses import dataclass

from edgewise.paper.formatting import NO_VALUE, PERCENT, display_name, format_signed
from edgewise.paper.model_differences import PairedDifference, paired_difference
from edgewise.paper.readings import UNCALIBRATED_PREDICTION
from edgewise.paper.results import Results, runs_with
from edgewise.paper.score_rows import STRUCTURED, TEMPERATURE, UNCALIBRATED, summarize
from edgewise.paper.text_tables import Cell, Row, Table
from edgewise.sweep.progress import format_count
from edgewise.sweep.runs import SAME_LABEL

# Predictions whose joints are products.
PRODUCT_JOINTS = (UNCALIBRATED_PREDICTION, TEMPERATURE, "vector", "ensemble")
MAX_LOSS = 0.01  # of the aims, in nats and as a fraction
MAX_ERRORS = 2  # standard errors of the edge NLL that are not a loss
TITLE = "Structured calibration compared with product joints"
COLUMNS = ("best product joints", "edge NLL", "same label ECE", "node accuracy", "runs", "aims")
NOTE = (
    "Mean difference over runs ± its standard error s/√n, paired by run: structured calibration minus, for the edge "
    "NLL, the one of uncalibrated, temperature, vector and ensemble that has the lowest mean edge NLL on the graph; "
    "for the ECE of the event that both ends have the same label, temperature; for the node accuracy, uncalibrated. "
    "ECE and accuracy in points; lower NLL and ECE are better. Runs on one split share test nodes, so the standard "
    "errors are too small. The aims are an edge NLL higher by at most 0.01 or two standard errors, whichever is "
    "larger; an ECE higher by at most one point; and the same node accuracy in all runs."
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

    @property
    def max_edge_nll(self) -> float:
        """The largest difference of the edge NLL that meets the aim."""
        return max(MAX_LOSS, MAX_ERRORS * self.edge_nll.error)

    @property
    def verdict(self) -> str:
        """Whether the aims are met, and which are not; nothing for a single run."""
        if math.isnan(self.edge_nll.error):
            return NO_VALUE
        return f"missed: {', '.join(self.missed)}" if self.missed else "met"

    @property
    def missed(self) -> list[str]:
        """Which of "NLL", "ECE" and "accuracy" do not meet their aim. Without a score an aim is not met."""
        met = {
            "NLL": self.edge_nll.mean <= self.max_edge_nll,
            "ECE": self.same_label_ece.mean <= MAX_LOSS,
            "accuracy": self.node_accuracy.mean == 0 and not self.node_accuracy.error > 0,
        }
        return [name for name, is_met in met.items() if not is_met]


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


def gains(results: Results) -> list[tuple[str, str, Gain]]:
    """Return graph, model and gain of all models with structured calibration."""
    cells = [(dataset, model) for dataset in results.datasets for model in results.models]
    return [(*cell, found) for cell in cells if (found := gain(results, *cell))]


def gain_table(results: Results) -> Table:
    """Return a row per graph and model with structured calibration."""
    rows = [Row(dataset, model, _cells(found)) for dataset, model, found in gains(results)]
    return Table(TITLE, COLUMNS, rows, [NOTE] if rows else [])


def aims_line(results: Results) -> str:
    """Return a sentence that counts where structured calibration meets its aims, "" without several runs of it."""
    found = [gain for *_, gain in gains(results) if gain.verdict != NO_VALUE]
    if not found:
        return ""
    met, lower = sum(not gain.missed for gain in found), sum(gain.edge_nll.mean < 0 for gain in found)
    return (
        f"Structured calibration meets its aims for {met} of {format_count(len(found), 'pair')} of dataset and model; "
        f"lowest edge NLL: {lower}."
    )


def _cells(gain: Gain) -> list[Cell]:
    rival = UNCALIBRATED if gain.rival == UNCALIBRATED_PREDICTION else gain.rival
    return [
        Cell(display_name(rival)),
        _difference_cell(gain.edge_nll, "nll"),
        _difference_cell(gain.same_label_ece, "ece"),
        _difference_cell(gain.node_accuracy, "accuracy"),
        Cell(str(gain.edge_nll.runs), value=gain.edge_nll.runs),
        Cell(gain.verdict, value=len(gain.missed)),
    ]


def _difference_cell(difference: PairedDifference, metric: str) -> Cell:
    if math.isnan(difference.mean):
        return Cell(NO_VALUE)
    factor, digits = (100, 2) if metric in PERCENT else (1, 4)
    error = "" if math.isnan(difference.error) else f" ± {factor * difference.error:.{digits}f}"
    return Cell(f"{format_signed(factor * difference.mean, digits)}{error}", value=difference.mean)
