"""Structured calibration beside the paper's models and temperature scaling, on the same splits and initialisations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgewise.experiments.readings import AS_DEFINED, AS_PUBLISHED, READINGS, Source
from edgewise.experiments.runs import Run
from edgewise.report.calibrator_rows import calibrated_runs
from edgewise.report.results import Results, runs_with
from edgewise.report.score_rows import ScoreRow, prediction_row, with_best
from edgewise.report.words import READING_NAMES, counted

STRUCTURED, TEMPERATURE = "structured", "temperature"
# By the name of the column: view and metric.
STRUCTURED_SCORES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "edge NLL": ("edgewise", "nll"),
        "edge Brier": ("edgewise", "brier"),
        "edge ECE": ("edgewise", "ece"),
        "node accuracy": ("nodewise", "accuracy"),
    }
)


@dataclass(frozen=True)
class Contender:
    """What is compared: its name, the prediction that it is, and the runs that have it."""

    name: str
    source: Source
    runs: Sequence[Run]

    @property
    def is_structured(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.source.prediction == STRUCTURED

    def scores(self, view: str, metric: str) -> list[float]:
        """Give a score of each run."""
        return [run.predictions[self.source.prediction][view][metric] for run in self.runs]


def contenders(results: Results, dataset: str) -> list[Contender]:
    """Give all that have runs on a dataset, only runs whose split, fold and init structured calibration has too."""
    structured = [
        run
        for (of_dataset, _), runs in calibrated_runs(results).items()
        for run in runs_with(STRUCTURED, runs)
        if of_dataset == dataset
    ]
    bases, places = dict.fromkeys(run.key.model for run in structured), {_place(run) for run in structured}
    found = [
        Contender(name, source, [run for run in runs if _place(run) in places])
        for name, source in _named(bases)
        for runs in [runs_with(source.prediction, results.of(dataset, source.model))]
    ]
    return [one for one in found if one.runs]


def _named(bases: Iterable[str]) -> list[tuple[str, Source]]:
    """Name the rows of the tables, twice where the readings differ, and what calibrators make of models."""
    named = []
    for row in dict.fromkeys(row for rows in READINGS.values() for row in rows):
        of_reading = {reading: READINGS[reading].get(row) for reading in (AS_PUBLISHED, AS_DEFINED)}
        differ = None not in of_reading.values() and len(set(of_reading.values())) > 1
        for reading, source in of_reading.items():
            if source is not None:
                named.append((f"{row} {READING_NAMES[reading]}" if differ else row, source))
    named += [
        (f"{base} + {calibrator}", Source(base, calibrator))
        for calibrator in (TEMPERATURE, STRUCTURED)
        for base in bases
    ]
    return list(dict.fromkeys(named))


def _place(run: Run) -> tuple[int, int, int]:
    return run.key.split, run.key.fold, run.key.init


def structured_rows(results: Results) -> list[ScoreRow]:
    """Give a row for each dataset with structured calibration and each contender."""
    metrics = [metric for _, metric in STRUCTURED_SCORES.values()]
    return [row for dataset in results.datasets for row in with_best(_rows(contenders(results, dataset)), metrics)]


def _rows(found: Sequence[Contender]) -> list[ScoreRow]:
    most = max((len(one.runs) for one in found), default=0)
    return [
        replace(
            prediction_row(
                one.runs[0].key.dataset, one.name, one.runs, one.source.prediction, STRUCTURED_SCORES.values()
            ),
            remark=counted(len(one.runs), "run") if len(one.runs) < most else "",
        )
        for one in found
    ]
