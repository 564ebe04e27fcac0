"""Differences between models over many runs, with two intervals.

Initializations of a split and fold are averaged first, so a difference per split and fold remains. These k differences
are not independent: training and test sets of different splits overlap. The naive interval ignores this, with the
variance s²/k of their mean. The corrected one has the variance (1/k + n_test/n_train) s² (Nadeau and Bengio 2003, for
repeated random splits), also with k - 1 degrees of freedom of Student's t. Here a test set is seven times as large as a
training set, so the corrected interval is ten times as wide for k = 15 and hardly narrows with more splits. It is very
cautious: a difference that it does not show may still be real. If a score is infinite, such as the NLL of a label with
probability 0, so is the mean difference, and there is no interval.

Two predictions of the same runs, such as a model before and after calibration, are compared run by run: a mean
difference and its standard error s/√n over n runs. This is simpler, and too small for the same reason as the naive
interval.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

from edgewise.metrics.evaluation import Interval
from edgewise.paper.findings import BETTER, CONFIDENCE, UNCLEAR, WORSE
from edgewise.paper.formatting import NO_VALUE, PERCENT, display_name, format_signed, score_name
from edgewise.paper.readings import AS_DEFINED, Source
from edgewise.paper.results import Results
from edgewise.paper.score_rows import STRUCTURED, TEMPERATURE, run_position
from edgewise.paper.text_tables import Cell, Row, Table
from edgewise.sweep.runs import Run

REFERENCE = "gcn"
DIFFERENCE_SCORES = (("edgewise", "nll"), ("edgewise", "ece"), ("nodewise", "accuracy"))
MIN_DIFFERENCES = 2
TITLE = "Which model is better?"


@dataclass(frozen=True)
class RunDifference:
    """Mean difference of a score between two predictions, over splits and folds, with two intervals.

    Attributes
    ----------
    mean
        Mean of the differences, NaN without any. Infinite if a score of one prediction is.
    count
        Number k of splits and folds with runs of both.
    naive
        Student's t interval of independent differences. NaN for fewer than two differences, and if any is infinite.
    corrected
        Interval for overlapping training sets (Nadeau and Bengio 2003). NaN also if their size is unknown.
    """

    mean: float
    count: int
    naive: Interval
    corrected: Interval


def compare_runs(
    a: Sequence[Run],
    b: Sequence[Run],
    predictions: tuple[str, str],
    view: str,
    metric: str,
    test_per_train: float,
    confidence_level: float = CONFIDENCE,
) -> RunDifference:
    """Compare a score of runs ``b`` with that of runs ``a``, paired by split and fold: b minus a.

    ``predictions`` are the names of the compared predictions of ``a`` and ``b``, and ``test_per_train`` is the number
    of test nodes per training node, NaN if it is unknown. A split and fold counts if both have runs.
    """
    of_a, of_b = (
        _mean_by_fold(runs, prediction, view, metric) for runs, prediction in zip((a, b), predictions, strict=True)
    )
    differences = [of_b[fold] - of_a[fold] for fold in sorted(of_a.keys() & of_b.keys())]
    k = len(differences)
    mean = sum(differences) / k if k else math.nan
    if k < MIN_DIFFERENCES or not math.isfinite(mean):
        unknown = Interval(math.nan, math.nan)
        return RunDifference(mean, k, unknown, unknown)
    t = float(stdtrit(k - 1, (1 + confidence_level) / 2))
    naive, corrected = (t * stdev(differences) * math.sqrt(factor) for factor in (1 / k, 1 / k + test_per_train))
    intervals = (Interval(mean - half_width, mean + half_width) for half_width in (naive, corrected))
    return RunDifference(mean, k, *intervals)


def _mean_by_fold(runs: Sequence[Run], prediction: str, view: str, metric: str) -> dict[tuple[int, int], float]:
    """Average the initializations of each split and fold."""
    scores = defaultdict(list)
    for run in runs:
        scores[run.key.split, run.key.fold].append(run.predictions[prediction][view][metric])
    return {fold: sum(values) / len(values) for fold, values in scores.items()}


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference of a score between two predictions over runs, with its standard error.

    Attributes
    ----------
    mean
        Mean of the differences, NaN without any. Infinite if a score of one prediction is.
    error
        s / √n, with the sample standard deviation s of n differences. NaN for fewer than two, and if any is infinite.
    runs
        Number n of split, fold and initialization with a score of both.
    """

    mean: float
    error: float
    runs: int


def paired_difference(
    a: Sequence[Run], b: Sequence[Run], predictions: tuple[str, str], view: str, metric: str
) -> PairedDifference:
    """Compare a score of runs ``b`` with that of runs ``a``, paired by split, fold and initialization: b minus a.

    ``predictions`` are the names of the compared predictions of ``a`` and ``b``. Runs without a score, because nothing
    was there to score, are left out.
    """
    of_a, of_b = (
        {run_position(run): run.predictions[prediction][view][metric] for run in runs}
        for runs, prediction in zip((a, b), predictions, strict=True)
    )
    pairs = [(of_a[position], of_b[position]) for position in sorted(of_a.keys() & of_b.keys())]
    differences = [second - first for first, second in pairs if not (math.isnan(first) or math.isnan(second))]
    n = len(differences)
    mean = sum(differences) / n if n else math.nan
    has_error = n >= MIN_DIFFERENCES and math.isfinite(mean)
    return PairedDifference(mean, stdev(differences) / math.sqrt(n) if has_error else math.nan, n)


def model_difference_table(results: Results) -> Table:
    """Return the differences of all models to GCN, as the paper defines them, and of calibrated GCN."""
    rows = [
        Row(dataset, name, [_cell(results, dataset, source, *score) for score in DIFFERENCE_SCORES])
        for dataset in results.datasets
        for name, source in _compared_sources(results).items()
        if results.runs_of(dataset, _reference(results)) and results.runs_of(dataset, source)
    ]
    return Table(TITLE, [score_name(*score) for score in DIFFERENCE_SCORES], rows, [_note(results)] if rows else [])


def _reference(results: Results) -> Source:
    return results.rows(AS_DEFINED)[REFERENCE]


def _compared_sources(results: Results) -> dict[str, Source]:
    """Return the rows of the tables as defined, without the reference, and calibrated predictions of the reference."""
    models = {name: source for name, source in results.rows(AS_DEFINED).items() if name != REFERENCE}
    calibrators = [name for name in (TEMPERATURE, STRUCTURED) if name in results.calibrators]
    return {**models, **{f"{REFERENCE} + {name}": Source(REFERENCE, name) for name in calibrators}}


def _test_per_train(results: Results, dataset: str) -> float:
    """Return the mean number of test nodes per training node of the splits, NaN if it is not stored."""
    tasks = [task for task in results.tasks if task.dataset == dataset]
    return fmean(task.test / task.train for task in tasks) if tasks else math.nan


def _cell(results: Results, dataset: str, source: Source, view: str, metric: str) -> Cell:
    reference = _reference(results)
    runs = results.runs_of(dataset, reference), results.runs_of(dataset, source)
    predictions = reference.prediction, source.prediction
    one = compare_runs(*runs, predictions, view, metric, _test_per_train(results, dataset))
    if math.isnan(one.mean):
        return Cell(NO_VALUE, "both infinite" if one.count else "nothing to compare")
    if math.isinf(one.mean):
        return Cell("∞" if one.mean > 0 else "−∞", "infinite in some runs", outcome=UNCLEAR, value=one.mean)
    outcome = UNCLEAR
    if one.corrected.low > 0 or one.corrected.high < 0:
        outcome = BETTER if (one.mean > 0) == (metric == "accuracy") else WORSE
    return Cell(
        f"{_number(one.mean, metric)} {_interval(one.naive, metric)}",
        subtext="" if math.isnan(one.corrected.low) else f"corrected {_interval(one.corrected, metric)}",
        outcome=outcome,
        value=one.mean,
    )


def _number(value: float, metric: str) -> str:
    return format_signed(100 * value) if metric in PERCENT else format_signed(value, 3)


def _interval(interval: Interval, metric: str) -> str:
    return f"[{_number(interval.low, metric)}, {_number(interval.high, metric)}]"


def _note(results: Results) -> str:
    reference = display_name(REFERENCE)
    return (
        f"Score minus that of {reference}, mean over splits and folds after averaging initializations; accuracy and "
        "ECE in points. In brackets the naive 95% interval of Student's t, as if splits were independent. They share "
        "nodes, so it is too narrow. Second line: the corrected interval of Nadeau and Bengio (2003), with variance "
        f"(1/k + n_test/n_train) s².{_size_note(results)}"
    )


def _size_note(results: Results) -> str:
    ratios = [ratio for dataset in results.datasets if math.isfinite(ratio := _test_per_train(results, dataset))]
    if not ratios:
        return " It needs the number of training nodes, which these runs do not have."
    least, most = (f"{ratio:.1f}" for ratio in (min(ratios), max(ratios)))
    times = least if least == most else f"{least} to {most}"
    return (
        f" A test set has {times} times as many nodes as a training set, so this one is very cautious, and a "
        "difference that it does not show may still be real."
    )
