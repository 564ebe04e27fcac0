"""What calibrators do: a row of scores for each calibrator of each model, all on the same runs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from edgewise.experiments.readings import CALIBRATORS, KNOWN_MODELS, STARTED_FROM
from edgewise.experiments.runs import SAME_LABEL, Run
from edgewise.report.results import Results
from edgewise.report.score_rows import ScoreRow, prediction_row, with_best

UNCALIBRATED = "uncalibrated"
# By the name of the column: view and metric.
CALIBRATOR_SCORES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "node accuracy": ("nodewise", "accuracy"),
        "node ECE": ("nodewise", "ece"),
        "node NLL": ("nodewise", "nll"),
        "edge ECE": ("edgewise", "ece"),
        "edge NLL": ("edgewise", "nll"),
        "edge Brier": ("edgewise", "brier"),
        "P(same) ECE": (SAME_LABEL, "ece"),
    }
)


def calibrated_runs(results: Results) -> dict[tuple[str, str], list[Run]]:
    """Give the runs that have calibrated predictions, by dataset and model."""
    cells = [(dataset, model) for dataset in results.datasets for model in KNOWN_MODELS]
    found = {cell: [run for run in results.of(*cell) if _is_calibrated(run)] for cell in cells}
    return {cell: runs for cell, runs in found.items() if runs}


def _is_calibrated(run: Run) -> bool:
    return any(name in run.predictions for name in CALIBRATORS)


def calibrated_predictions(runs: Sequence[Run]) -> dict[str, str]:
    """Give the predictions of the runs by the names of calibrators, first the one that they start from."""
    having = [name for name in CALIBRATORS if any(name in run.predictions for run in runs)]
    return {UNCALIBRATED: STARTED_FROM, **{name: name for name in having}}


def calibrator_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset, model and calibrator; the name is that of the model and that of the calibrator."""
    metrics = [metric for _, metric in CALIBRATOR_SCORES.values()]
    cells = calibrated_runs(results)
    return [
        row
        for dataset in results.datasets
        for row in with_best(
            [
                prediction_row(dataset, f"{model} {name}", runs, prediction, CALIBRATOR_SCORES.values())
                for (of_dataset, model), runs in cells.items()
                if of_dataset == dataset
                for name, prediction in calibrated_predictions(runs).items()
            ],
            metrics,
        )
    ]
