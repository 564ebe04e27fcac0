"""Whether structured calibration does what it is for, in sentences that are made from its runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgewise.paper.formatting import PERCENT, label, listed, signed
from edgewise.paper.readings import MODELS, STARTED_FROM
from edgewise.paper.results import Results, runs_with
from edgewise.paper.score_rows import STRUCTURED, TEMPERATURE, NamedPrediction, compared_predictions, summarize
from edgewise.sweep.progress import counted


@dataclass(frozen=True)
class Aim:
    """One thing that structured calibration should reach, what came out, and whether that is it."""

    name: str
    outcome: str
    is_met: bool


@dataclass(frozen=True)
class Verdict:
    """What came out for a model on a dataset; ``paired`` compares its runs with temperature scaling."""

    dataset: str
    model: str
    aims: Sequence[Aim]
    paired: str

    @property
    def missed(self) -> list[str]:
        """The names of the aims that are not reached."""
        return [aim.name for aim in self.aims if not aim.is_met]

    def __str__(self) -> str:
        return f"{label(self.dataset)}, {label(self.model)}: {self.outcome}"

    @property
    def outcome(self) -> str:
        """Which aims are missed, then the numbers of all."""
        whole = f"missed in {listed(self.missed)}" if self.missed else "all aims are met"
        numbers = "; ".join([*(aim.outcome for aim in self.aims), *([self.paired] if self.paired else [])])
        return f"{whole}. {numbers[0].upper()}{numbers[1:]}."


def verdicts(results: Results) -> list[Verdict]:
    """Judge each dataset and model that has structured calibration."""
    return [
        _verdict(one, [other for other in found if _is_rival(one, other)])
        for dataset in results.datasets
        for found in [compared_predictions(results, dataset)]
        for one in found
        if one.source.prediction == STRUCTURED
    ]


def _is_rival(one: NamedPrediction, other: NamedPrediction) -> bool:
    """Tell whether another is a model of the paper as it is, or temperature scaling of the same model."""
    if other.source.prediction in (TEMPERATURE, STRUCTURED):
        return other.source == one.source._replace(prediction=TEMPERATURE)
    return other.source.model in MODELS


def verdict_summary(found: Sequence[Verdict]) -> str:
    """Say what the aims are, and for how many pairs of dataset and model each is met, and all of them."""
    names = [aim.name for aim in found[0].aims] if found else []
    met = [f"{name} {sum(name not in verdict.missed for verdict in found)}" for name in names]
    return (
        "Structured calibration aims at a mean edge NLL and a mean edge Brier score below those of the paper's models, "
        "in both readings, and of temperature scaling of the same model, at a mean edge ECE that is above none of "
        "theirs, and at the node accuracy of each run as it was. Of "
        f"{counted(len(found), 'pair')} of dataset and model, all aims are met for "
        f"{sum(not verdict.missed for verdict in found)}; one by one: {', '.join(met)}."
    )


def _verdict(one: NamedPrediction, others: Sequence[NamedPrediction]) -> Verdict:
    aims = [
        _lowest(one, others, "edge NLL", "nll", or_equal=False),
        _lowest(one, others, "edge Brier score", "brier", or_equal=False),
        _lowest(one, others, "edge ECE", "ece", or_equal=True),
        _same_accuracy(one),
    ]
    return Verdict(one.runs[0].key.dataset, one.source.model, aims, _paired(one))


def _lowest(one: NamedPrediction, others: Sequence[NamedPrediction], name: str, metric: str, or_equal: bool) -> Aim:
    """Compare a mean over the runs with those of others, of which those without a value do not count."""
    ours = _mean(one, metric)
    if math.isnan(ours):
        return Aim(name, f"{name}: nothing to score", False)
    means = sorted((mean, other.name) for other in others if not math.isnan(mean := _mean(other, metric)))
    before = [(mean, other) for mean, other in means if (mean < ours if or_equal else mean <= ours)]
    said = f"{name} {_number(ours, metric)}"
    if before:
        return Aim(name, f"{said} is {'above' if or_equal else 'not below'} {_named(before, metric)}", False)
    held = f"{'not above any of' if or_equal else 'below all'} {counted(len(means), 'other')}"
    return Aim(name, f"{said} is {held}, the lowest {_named(means[:1], metric)}", True)


def _mean(one: NamedPrediction, metric: str) -> float:
    return summarize(one.values("edgewise", metric))[0]


def _named(means: Sequence[tuple[float, str]], metric: str) -> str:
    return listed([f"{label(name)} ({_number(mean, metric)})" for mean, name in means])


def _number(value: float, metric: str) -> str:
    """Write more digits than tables do, so that means that differ look so."""
    return (f"{100 * value:.3f}%" if metric in PERCENT else f"{value:.4f}").replace("inf", "∞")


def _same_accuracy(one: NamedPrediction) -> Aim:
    """Compare each run with what its calibration started from."""
    base = label(one.source.model)
    before = NamedPrediction(base, one.source._replace(prediction=STARTED_FROM), one.runs).values(
        "nodewise", "accuracy"
    )
    pairs = zip(one.values("nodewise", "accuracy"), before, strict=True)
    changes = sorted(ours - theirs for ours, theirs in pairs if ours != theirs)
    runs = counted(len(one.runs), "run")
    if not changes:
        return Aim("node accuracy", f"node accuracy is that of {base} in each of {runs}", True)
    ends = " to ".join(dict.fromkeys(signed(100 * change, 3) for change in (changes[0], changes[-1])))
    outcome = f"node accuracy is not that of {base} in {len(changes)} of {runs}, by {ends} points"
    return Aim("node accuracy", outcome, False)


def _paired(one: NamedPrediction) -> str:
    """Count the runs whose edge NLL is below that of temperature scaling in the same run."""
    both = runs_with(TEMPERATURE, one.runs)
    if not both:
        return ""
    ours, theirs = (
        NamedPrediction(name, one.source._replace(prediction=name), both).values("edgewise", "nll")
        for name in (one.source.prediction, TEMPERATURE)
    )
    below = sum(mine < other for mine, other in zip(ours, theirs, strict=True))
    runs = counted(len(both), "run")
    return f"run by run its edge NLL is below that of {label(one.source.model)} + {TEMPERATURE} in {below} of {runs}"
